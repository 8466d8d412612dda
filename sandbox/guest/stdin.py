"""What is typed into a command: buffered, passed on as it is taken, ended once."""

import os
from typing import TYPE_CHECKING, Set

from sandbox.guest.loop import WRITE, Loop

if TYPE_CHECKING:
    from sandbox.guest.channel import Channel

_RETRY_S = 0.01
_END_OF_FILE = b"\x04"


class Feeder:
    """One channel's part in it: what it sends goes behind what is there, for new credit as the command takes it."""

    def __init__(self, channel: "Channel", stdin: "Stdin") -> None:
        self._channel = channel
        self._stdin = stdin
        self._owed = 0

    def feed(self, data: bytes, end: bool) -> None:
        self._owed += len(data)
        self._stdin.feed(data, end)

    def settle(self, n_waiting: int) -> None:
        """Gives credit for all but so many bytes, which the command has not taken yet."""
        granted = self._owed - n_waiting
        if granted > 0 and self._channel.open:
            self._owed -= granted
            self._channel.grant(granted)

    def closed(self) -> None:
        self._channel.attempt(self._channel.pump)


class WholeFeeder(Feeder):
    """Sends the input that belongs to a request, from its first byte on. Whoever repeats the request sends it again,
    perhaps while another still does: every byte is passed on once, by the first that has it."""

    def __init__(self, channel: "Channel", stdin: "Stdin") -> None:
        super().__init__(channel, stdin)
        self._sent = 0

    def feed(self, data: bytes, end: bool) -> None:
        n_known = min(max(self._stdin.n_whole - self._sent, 0), len(data))
        self._sent += len(data)
        self._owed += n_known
        self._stdin.n_whole = max(self._stdin.n_whole, self._sent)
        super().feed(data[n_known:], end)


class Stdin:
    def __init__(self, loop: Loop, fd: int, *, is_terminal: bool) -> None:
        self.n_bytes = 0
        """Received, whether the command has read it or not: where a writer that comes back goes on."""
        self.n_whole = 0
        """Of these, how many of the input that belongs to the command's own request."""
        self.feeders: Set[Feeder] = set()
        self.open = True
        self._loop = loop
        self._fd = fd
        self._is_terminal = is_terminal
        self._buffer = bytearray()
        self._ending = False
        self._at_line_start = True
        self._waiting = False

    @property
    def takes(self) -> bool:
        return self.open and not self._ending

    def feed(self, data: bytes, end: bool) -> None:
        if not self.takes:
            return
        self.n_bytes += len(data)
        self._buffer += data
        if data:
            self._at_line_start = data.endswith((b"\n", b"\r", _END_OF_FILE))
        if end and self._is_terminal:
            self._type_end()
        else:
            self._ending = end
        self._write()

    def _type_end(self) -> None:
        """A terminal has no end but the one typed into it, and behind an unfinished line the first only sends the
        line."""
        self._buffer += _END_OF_FILE if self._at_line_start else _END_OF_FILE * 2
        self._at_line_start = True

    def close(self) -> None:
        """No more of it. A terminal's descriptor belongs to its output too, and stays."""
        if not self.open:
            return
        self.open = False
        self._buffer.clear()
        if not self._is_terminal:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
        for feeder in list(self.feeders):
            feeder.closed()

    def _write(self) -> None:
        if not self.open:
            return
        try:
            while self._buffer:
                del self._buffer[: os.write(self._fd, self._buffer)]
        except BlockingIOError:
            self._wait()
        except OSError:
            self.close()  # it closed its stdin, and that is its right
            return
        for feeder in list(self.feeders):
            feeder.settle(len(self._buffer))
        if not self._buffer:
            if not self._is_terminal:
                self._loop.unwatch(self._fd)
            if self._ending:
                self.close()

    def _wait(self) -> None:
        if not self._is_terminal:
            if not self._loop.is_watched(self._fd):
                self._loop.watch(self._fd, WRITE, lambda _: self._write())
        elif not self._waiting:
            # Its descriptor is watched for output already, and one watch is all that epoll allows.
            self._waiting = True
            self._loop.call_later(_RETRY_S, self._retry)

    def _retry(self) -> None:
        self._waiting = False
        self._write()
