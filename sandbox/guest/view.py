"""Channels on a command: what it says from an offset on, and what is typed into it."""

from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Optional, Tuple

from sandbox import wire
from sandbox.guest.channel import Channel
from sandbox.guest.process import Process, Watcher
from sandbox.guest.stdin import Feeder, WholeFeeder

if TYPE_CHECKING:
    from sandbox.guest.peer import Peer
    from sandbox.guest.supervisor import Supervisor

_EVENT_ROOM = 256


class Bounds(NamedTuple):
    """How much of a stream to send: its first `head` bytes as they come, its last `tail` bytes at the end."""

    head: int
    tail: int


class View(Channel, Watcher):
    """Sends each stream from its offset on, then the result; takes the input on the way that belongs to the request.

    Without bounds it sends everything, and makes the command wait for it rather than lose bytes.
    """

    def __init__(
        self, peer: "Peer", number: int, request: Dict[str, Any], process: Process, supervisor: "Supervisor"
    ) -> None:
        super().__init__(peer, number, request)
        self._process = process
        self._supervisor = supervisor
        self._offsets = {wire.STDOUT: int(request.get("offset", 0)), wire.STDERR: int(request.get("stderr_offset", 0))}
        self._bounds: Optional[Bounds] = None
        if request.get("head") is not None:
            self._bounds = Bounds(int(request["head"]), int(request["tail"]))
        self._totals: Optional[Dict[int, int]] = None
        self._feeder = WholeFeeder(self, process.stdin) if process.stdin is not None else None
        process.watch(self)
        if self._feeder is not None and process.stdin is not None:
            process.stdin.feeders.add(self._feeder)

    def process_changed(self) -> None:
        self.attempt(self.pump)

    def needs(self, stream: int) -> Optional[int]:
        return self._offsets[stream] if self._bounds is None else None

    def on_data(self, stream: int, data: bytes, end: bool) -> None:
        if self._feeder is not None:
            self._feeder.feed(data, end)

    def pump(self) -> None:
        process = self._process
        if not self.open:
            return
        if process.ended and self._totals is None:
            self._totals = {stream: recorder.total for stream, recorder in process.recorders.items()}
        sent = [self._send(stream) for stream in process.recorders]
        if self._bounds is None:
            process.release()
        if all(sent) and self._totals is not None:
            outcome = process.outcome(self._totals)
            self._leave()
            self.finish(outcome)

    def _send(self, stream: int) -> bool:
        """Sends what is there and due; True if nothing due is left."""
        recorder = self._process.recorders[stream]
        total = recorder.total if self._totals is None else self._totals[stream]
        while True:
            offset = self._offsets[stream]
            start, stop = next_piece(offset, total, self._bounds, ended=self._totals is not None)
            if start >= stop:
                return True
            room = self.room - _EVENT_ROOM
            if room <= 0:
                return False
            where, data = recorder.read(start, min(room, stop - start))
            if where >= stop or not data:
                where, data = stop, b""  # what was there is recorded nowhere any more
            if where > offset:
                self.event(gap=[stream, offset, where])
            if data:
                self.send(data, stream)
            self._offsets[stream] = where + len(data)

    def on_close(self) -> None:
        self._leave()
        self._process.release()

    def _leave(self) -> None:
        self._process.unwatch(self)
        if self._process.stdin is not None:
            self._process.stdin.feeders.discard(self._feeder)
        self._supervisor.retire(self._process)


def next_piece(offset: int, total: int, bounds: Optional[Bounds], *, ended: bool) -> Tuple[int, int]:
    """The next bytes to send of a stream, from what was sent up to `offset`: (start, stop), empty if there are none.

    A start beyond the offset leaves bytes out.
    """
    if bounds is None:
        return offset, total
    if offset < bounds.head:
        return offset, min(bounds.head, total)
    if not ended:
        return offset, offset
    return max(offset, total - bounds.tail), total


class InputChannel(Channel):
    """Input alone. Says that it is open, if it is; its result comes when the command takes no more."""

    def __init__(self, peer: "Peer", number: int, request: Dict[str, Any], process: Process) -> None:
        super().__init__(peer, number, request)
        self._stdin = process.stdin
        self._said_open = False
        if self._stdin is not None:
            self._feeder = Feeder(self, self._stdin)
            self._stdin.feeders.add(self._feeder)

    def on_data(self, stream: int, data: bytes, end: bool) -> None:
        if self._stdin is not None:
            self._feeder.feed(data, end)
        self.pump()

    def pump(self) -> None:
        if self._stdin is None or not self._stdin.open:
            self.on_close()
            self.finish()
        elif not self._said_open:
            self._said_open = True
            self.event(open=True)

    def on_close(self) -> None:
        if self._stdin is not None:
            self._stdin.feeders.discard(self._feeder)
