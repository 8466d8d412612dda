"""Closes our streams when we cannot: a helper process that shuts sockets down once their owner has gone quiet.

An engine broadcasts a container's output to everybody attached, so a peer that neither reads nor closes stalls
whoever takes its sandbox over. A thread would not do: a stopped process stops its threads. The helper gets a copy of
each socket and a heartbeat from our event loop, whatever else that does; without one for a lease, or when we die, it
shuts them down.
"""

import asyncio
import contextlib
import itertools
import math
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

MESSAGE = struct.Struct("!cII")
"""Kind (`+` guard, `-` release, `.` heartbeat), the guard's number, its lease in milliseconds."""

_GUARD, _RELEASE, _BEAT = b"+", b"-", b"."
_HELPER = Path(__file__).with_name("watchdog_helper.py")
_END_S = 2.0
_BEATS_PER_LEASE = 4
_RESTART_AFTER_S = 0.5
"""A helper that cannot live is not started with every heartbeat."""


class Watchdog:
    """One per process and event loop; started with the first socket, gone with the process."""

    def __init__(self) -> None:
        self._pipe: socket.socket | None = None
        self._helper: subprocess.Popen[bytes] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._started_at = -_RESTART_AFTER_S
        self._numbers = itertools.count(1)
        self._guarded: dict[int, tuple[socket.socket, float]] = {}
        self._untold: dict[int, bytes] = {}
        """What the helper is still to be told, by guard: it may be behind with reading."""
        self._pause_s = math.inf
        """Between heartbeats: the shortest lease so far decides."""
        self._next_beat: asyncio.TimerHandle | None = None

    @property
    def n_guarded(self) -> int:
        return len(self._guarded)

    async def guard(self, sock: socket.socket, lease_s: float) -> int:
        """Shuts `sock` down when our event loop has stood still for a lease. Returns a number for `release`.

        Raises: OSError if no helper can be started.
        """
        copy = sock.dup()
        try:
            await asyncio.shield(self._ensure_helper())
        except BaseException:
            copy.close()
            raise
        number = next(self._numbers)
        self._guarded[number] = (copy, lease_s)
        self._untold[number] = _GUARD
        self._pause_s = min(self._pause_s, lease_s / _BEATS_PER_LEASE)
        self._beat()
        if self._pipe is None:
            try:
                await asyncio.shield(self._ensure_helper())
            except BaseException:
                self.release(number)
                raise
        return number

    def release(self, number: int) -> None:
        entry = self._guarded.pop(number, None)
        if entry is None:
            return
        entry[0].close()
        if self._untold.pop(number, None) is None and self._pipe is not None:
            self._untold[number] = _RELEASE
        self._tell()

    def _beat(self) -> None:
        """Says that we are alive, now and until there is nothing left to say. Replaces a helper that is not."""
        self._tell()
        self._send(_BEAT, 0)
        if self._pipe is None and self._guarded and time.monotonic() - self._started_at >= _RESTART_AFTER_S:
            self._ensure_helper()
        if self._next_beat is not None:
            self._next_beat.cancel()
        self._next_beat = None
        if self._guarded or self._untold:
            self._next_beat = asyncio.get_running_loop().call_later(self._pause_s, self._beat)

    async def close(self) -> None:
        """Lets the helper go, and with it whatever it still guards."""
        if self._starting is not None:
            await asyncio.wait([self._starting])
        for number in list(self._guarded):
            self.release(number)
        self._hang_up()
        if self._next_beat is not None:
            self._next_beat.cancel()
        await self._reap()

    def _ensure_helper(self) -> "asyncio.Task[None]":
        """A task of our own: whoever waits for it may be cancelled, and a helper half started would be nobody's."""
        if self._starting is None or (self._pipe is None and self._starting.done()):
            self._starting = asyncio.create_task(self._start(), name="watchdog start")
            self._starting.add_done_callback(_retrieve)
        return self._starting

    async def _start(self) -> None:
        await self._reap()
        self._started_at = time.monotonic()
        self._pipe, self._helper = await asyncio.to_thread(_start_helper)
        self._untold = dict.fromkeys(self._guarded, _GUARD)
        self._tell()

    async def _reap(self) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            await asyncio.to_thread(_wait_for, helper)

    def _tell(self) -> None:
        while self._untold:
            number, kind = next(iter(self._untold.items()))
            sock, lease_s = self._guarded.get(number, (None, 0))
            if not self._send(kind, number, lease_s, sock):
                return
            self._untold.pop(number, None)

    def _send(self, kind: bytes, number: int, lease_s: float = 0, sock: socket.socket | None = None) -> bool:
        if self._pipe is None:
            return False
        message = MESSAGE.pack(kind, number, int(lease_s * 1000))
        try:
            socket.send_fds(self._pipe, [message], [sock.fileno()] if sock is not None else [])
        except BlockingIOError:
            return False
        except OSError:
            self._hang_up()  # somebody killed it; the next one is told of everything that is guarded
            return False
        return True

    def _hang_up(self) -> None:
        self._untold.clear()
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None


def _start_helper() -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.ExitStack() as undo, theirs:
        undo.enter_context(ours)
        ours.setblocking(False)
        helper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_HELPER), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        undo.pop_all()
    return ours, helper


def _wait_for(helper: "subprocess.Popen[bytes]") -> None:
    """It ends by itself once its pipe is closed; one that is stopped does not."""
    try:
        helper.wait(_END_S)
    except subprocess.TimeoutExpired:
        helper.kill()
        helper.wait()


def _retrieve(task: "asyncio.Task[None]") -> None:
    """Whoever waited has the error; a heartbeat does not wait, and tries again."""
    if not task.cancelled():
        task.exception()
