"""Commands: started, recorded, watched by any number of views, killed with all they started."""

import contextlib
import fcntl
import os
import pty
import signal
import struct
import termios
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from sandbox import wire
from sandbox.guest.loop import READ, Loop, Timer
from sandbox.guest.pressure import Pressure
from sandbox.guest.recorder import OutputStore, Recorder
from sandbox.guest.refusal import Refusal
from sandbox.guest.spawn import Order, Spawner, Streams
from sandbox.guest.stdin import Stdin

_READ_SIZE = 256 << 10
_PIPE_SIZE = 1 << 20
_TERMINAL_BYTES = 128 << 10
_TERMINAL_REST_S = 0.05
_F_SETPIPE_SZ = 1031
_SHELL_SIGKILL = 128 + signal.SIGKILL
"""What a shell exits with when the program that it ran was killed."""


class Watcher:
    """Who wants to know of a process: implemented by views."""

    def process_changed(self) -> None:
        """It said something, or is over."""

    def needs(self, stream: int) -> Optional[int]:
        """The offset below which this watcher has all it wants, if the command is to wait for it."""
        return None


class Process:
    """One command, from its start until nothing of it is left."""

    def __init__(
        self,
        loop: Loop,
        store: OutputStore,
        pressure: Pressure,
        process_id: str,
        order: Order,
        *,
        stdin: bool,
        separate: bool,
        size: Optional[Tuple[int, int]],
    ) -> None:
        self.id = process_id
        self.mark = order.mark
        self.argv = order.argv
        self.pid = 0
        self.started_at = time.time()
        self.ended = False
        self.acknowledged = False
        self.exit_status: Optional[int] = None
        self.verdict: Optional[str] = None
        """Why we ended it: timed_out or killed."""
        self.sweeping = False
        self.stdin: Optional[Stdin] = None
        self.duration_s = 0.0
        self.exhausted: List[str] = []
        """What the sandbox ran out of meanwhile."""
        self.tty = size is not None
        self.separate = separate
        streams = (wire.STDOUT, wire.STDERR) if self.separate else (wire.STDOUT,)
        self.recorders: Dict[int, Recorder] = {
            stream: Recorder(store, f"{order.mark:x}.{'err' if stream == wire.STDERR else 'out'}") for stream in streams
        }
        self.timeout: Optional[Timer] = None
        self._loop = loop
        self._pressure = pressure
        self._before = pressure.counts()
        self._order = order
        self._begun = loop.now
        self._wants_stdin = stdin
        self._size = size or (24, 80)
        self._terminal = -1
        self._outputs: Dict[int, int] = {}
        self._watchers: Set[Watcher] = set()
        self._held: Set[int] = set()
        self._resting = False

    # Starting

    def start(self, spawner: Spawner) -> None:
        """Raises: Refusal; nothing is left then."""
        far: List[int] = []
        try:
            streams = self._terminal_streams() if self.tty else self._pipes(far)
            self.pid = spawner.spawn(self._order, streams)
        except BaseException as error:
            self._close_all()
            if isinstance(error, OSError):
                raise Refusal("cannot_start", f"{self.argv[0]}: {error.strerror}; kill something first") from None
            raise
        finally:
            for fd in far:
                os.close(fd)
        for stream, fd in self._outputs.items():
            self._watch_output(stream, fd)

    def _pipes(self, far: List[int]) -> Streams:
        ends = [-1, -1, -1]
        for stream in self.recorders:
            ours, ends[stream] = os.pipe()
            self._outputs[stream] = ours
            far.append(ends[stream])
            os.set_blocking(ours, False)
        if self._wants_stdin:
            ends[0], ours = os.pipe()
            self.stdin = Stdin(self._loop, ours, is_terminal=False)
            far.append(ends[0])
            os.set_blocking(ours, False)
        return Streams(ends[0], ends[1], ends[2])

    def _terminal_streams(self) -> Streams:
        self._terminal, slave = pty.openpty()
        self._outputs[wire.STDOUT] = self._terminal
        self.stdin = Stdin(self._loop, self._terminal, is_terminal=True)
        # Closed at once: a slave of ours would keep the master from ever seeing the end.
        with os.fdopen(slave, "rb", buffering=0):
            name = os.ttyname(slave)
            os.fchown(slave, self._order.account.uid, -1)
            self._set_size(*self._size)
        os.set_blocking(self._terminal, False)
        return Streams(terminal=name)

    def _close_all(self) -> None:
        if self.stdin is not None:
            self.stdin.close()
        for fd in self._outputs.values():
            os.close(fd)
        self._outputs.clear()
        self._terminal = -1

    # Watching

    def watch(self, watcher: Watcher) -> None:
        self._watchers.add(watcher)
        for recorder in self.recorders.values():
            recorder.n_readers += 1

    def unwatch(self, watcher: Watcher) -> None:
        if watcher in self._watchers:
            self._watchers.discard(watcher)
            for recorder in self.recorders.values():
                recorder.n_readers -= 1

    @property
    def is_watched(self) -> bool:
        return bool(self._watchers)

    def _changed(self) -> None:
        for watcher in list(self._watchers):
            watcher.process_changed()

    # Output

    def _watch_output(self, stream: int, fd: int) -> None:
        self._loop.watch(fd, READ, lambda _: self._readable(stream))

    def _readable(self, stream: int) -> None:
        if self._should_hold(stream):
            self._held.add(stream)
            self._loop.unwatch(self._outputs[stream])
            return
        self._read(stream, _READ_SIZE)
        self._changed()

    def _read(self, stream: int, n_bytes: int, *, trim: bool = True) -> int:
        """One read from the pipe into the record; 0 when there is nothing now, or nothing ever again."""
        fd = self._outputs.get(stream, -1)
        if fd < 0:
            return 0
        try:
            data = os.read(fd, n_bytes)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""  # EIO: the last holder of the terminal is gone
        if not data:
            if fd == self._terminal and self.exit_status is None:
                self._rest(stream)
            else:
                self._close_output(stream)
            return 0
        recorder = self.recorders[stream]
        recorder.append(data, trim=trim)
        if len(data) == 65536 and not self.tty:
            # Refused once the user's pipe budget is spent; 64 KiB work too.
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_SIZE)
        return len(data)

    def _rest(self, stream: int) -> None:
        """Nobody holds the terminal just now, but the command lives: it may be exiting, or open it again.

        To close our end here would hang up on it, and turn `exit 0` into a death by SIGHUP.
        """
        self._loop.unwatch(self._outputs[stream])
        if not self._resting:
            self._resting = True
            self._loop.call_later(_TERMINAL_REST_S, self._rested)

    def _rested(self) -> None:
        self._resting = False
        fd = self._outputs.get(wire.STDOUT, -1)
        if fd >= 0 and not self._loop.is_watched(fd):
            self._watch_output(wire.STDOUT, fd)

    def _close_output(self, stream: int) -> None:
        fd = self._outputs.pop(stream)
        self._loop.unwatch(fd)
        if fd == self._terminal:
            self._close_stdin()
            self._terminal = -1
        os.close(fd)
        self.recorders[stream].ended = True

    def _close_stdin(self) -> None:
        if self.stdin is not None:
            self.stdin.close()

    def _should_hold(self, stream: int) -> bool:
        """Whether reading on would lose bytes that a watcher waits for."""
        loss = self.recorders[stream].next_loss
        if loss is None:
            return False
        return any(need is not None and need < loss for need in (w.needs(stream) for w in self._watchers))

    def release(self) -> None:
        """A watcher moved on or left: read again what was held for it."""
        for stream in list(self._held):
            if not self._should_hold(stream):
                self._held.discard(stream)
                fd = self._outputs.get(stream, -1)
                if fd >= 0:
                    self._watch_output(stream, fd)

    # Acting on it

    def resize(self, rows: int, cols: int) -> None:
        if not self.tty:
            raise Refusal("not_supported", "the command has no terminal; start it with one to resize it")
        if self._terminal < 0:
            raise Refusal("process_ended", "the command is over")
        self._set_size(rows, cols)

    def _set_size(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def signal(self, signum: int) -> None:
        if self.exit_status is not None:
            raise Refusal("process_ended", "the command is over")
        if not 1 <= signum <= 64:
            raise Refusal("invalid_argument", f"{signum} is not a signal")
        try:
            os.killpg(self.pid, signum)
        except ProcessLookupError:
            os.kill(self.pid, signum)
        except PermissionError:
            raise Refusal("permission_denied", "the command may not be signalled") from None

    # The end

    def exited(self, status: int) -> None:
        """Its process is gone. Take what it had said by then; background children may hold the pipe for ever."""
        self.exit_status = status
        self.duration_s = self._loop.now - self._begun
        self.exhausted = [name for name, ran_out in self._pressure.since(self._before).items() if ran_out]
        for stream, fd in list(self._outputs.items()):
            # A terminal's kernel work may be behind, and only a read waits for it; it keeps less than this.
            left = _TERMINAL_BYTES if fd == self._terminal else _waiting_bytes(fd)
            # It can wait for its readers no longer. A pipe holds 1 MiB at most, so for them all of it is kept.
            trim = all(watcher.needs(stream) is None for watcher in self._watchers)
            while left > 0:
                n = self._read(stream, min(left, _READ_SIZE), trim=trim)
                if not n:
                    break
                left -= n
        self.release()
        if self._resting:
            self._rested()
        if self.timeout is not None:
            self.timeout.cancel()
        if not self.tty:
            self._close_stdin()
        self.settle()

    def settle(self) -> None:
        """Over, once its process is gone and a sweep under way is done."""
        if self.exit_status is None or self.sweeping or self.ended:
            return
        self.ended = True
        for stream, recorder in self.recorders.items():
            recorder.ended = stream not in self._outputs or recorder.ended
        self._changed()

    def forget(self) -> None:
        for stream in list(self._outputs):
            self._close_output(stream)
        self._close_stdin()
        for recorder in self.recorders.values():
            recorder.release()

    @property
    def listening(self) -> bool:
        return bool(self._outputs)

    def outcome(self, totals: Dict[int, int]) -> Dict[str, Any]:
        """The result to send; `totals` is how much of each stream the receiver was told of."""
        status = self.exit_status or 0
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        if self.verdict is not None:
            reason, code = self.verdict, None
        elif "memory" in self.exhausted and (number == signal.SIGKILL or status >> 8 == _SHELL_SIGKILL):
            reason, code, number = "oom_killed", None, signal.SIGKILL
        elif number is not None:
            reason, code = "signaled", None
        else:
            reason, code = "exited", os.WEXITSTATUS(status)
        return {
            "pid": self.pid,
            "exit_code": code,
            "reason": reason,
            "signal": number,
            "duration_s": round(self.duration_s, 6),
            "exhausted": self.exhausted,
            "streams": {
                str(stream): {"total": totals[stream], "file": r.path, "file_truncated": r.file_truncated}
                for stream, r in self.recorders.items()
            },
        }


def _waiting_bytes(fd: int) -> int:
    try:
        return struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0]
    except OSError:
        return 0
