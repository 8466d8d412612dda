"""The guest's event loop: file descriptors, timers, dead children. One thread, no asyncio (that alone costs 10 MB)."""

import contextlib
import heapq
import os
import select
import signal
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from sandbox.guest.refusal import report

READ = select.EPOLLIN
WRITE = select.EPOLLOUT

_MAX_WAIT_S = 1.0
_MAX_STEP_S = 2.0
"""A turn that took longer than this was not spent running: the container was paused. Timers do not count it."""


class Timer:
    __slots__ = ("callback", "due")

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback: Optional[Callable[[], None]] = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    def __init__(self) -> None:
        self.now = 0.0
        """Seconds in which this loop ran; frozen time is left out."""
        self.on_child_exit: Callable[[int, int], None] = lambda pid, status: None
        self.running = True
        self._epoll = select.epoll()
        self._handlers: Dict[int, Callable[[int], None]] = {}
        self._timers: List[Tuple[float, int, Timer]] = []
        self._n_timers = 0
        self._soon: List[Callable[[], None]] = []
        self._last = time.monotonic()
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self.watch(self._wake_r, READ, self._woken)

    def handle_signals(self) -> None:
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)
        # Nothing else is handled: as PID 1 we are deaf to the rest, whoever sends it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def stop(self) -> None:
        self.running = False

    def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, events)

    def rewatch(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def is_watched(self, fd: int) -> bool:
        return fd in self._handlers

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(self.now + delay_s, callback)
        self._n_timers += 1
        heapq.heappush(self._timers, (timer.due, self._n_timers, timer))
        return timer

    def run(self) -> None:
        while self.running:
            self.turn()

    def turn(self) -> None:
        try:
            ready = self._epoll.poll(self._wait_s())
        except InterruptedError:
            ready = []
        present = time.monotonic()
        self.now += min(present - self._last, _MAX_STEP_S)
        self._last = present
        for fd, events in ready:
            handler = self._handlers.get(fd)
            if handler is not None:
                self._call(handler, events)
        while self._timers and self._timers[0][0] <= self.now:
            callback = heapq.heappop(self._timers)[2].callback
            if callback is not None:
                self._call(callback)
        soon, self._soon = self._soon, []
        for callback in soon:
            self._call(callback)

    def _call(self, callback: Callable[..., None], *args: Any) -> None:
        """Nothing that goes wrong in one place may end the guest, and every command with it."""
        try:
            callback(*args)
        except Exception as error:  # noqa: BLE001  see above
            report(error)

    def _wait_s(self) -> float:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        if self._soon:
            return 0
        if not self._timers:
            return -1
        return min(max(self._timers[0][0] - self.now, 0), _MAX_WAIT_S)

    def _woken(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_r, 4096)
        self.reap()

    def reap(self) -> None:
        """Collects every dead child, ours or inherited: zombies count against the process limit."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.on_child_exit(pid, status)
