"""Channels on a command: what it says from an offset on, and what is typed into it."""

from typing import TYPE_CHECKING, Any, Dict, Optional

from sandbox import wire
from sandbox.guest.channel import Channel
from sandbox.guest.process import Process, Watcher

if TYPE_CHECKING:
    from sandbox.guest.peer import Peer
    from sandbox.guest.supervisor import Supervisor

_EVENT_ROOM = 256


class View(Channel, Watcher):
    """Sends each stream from `offsets` on, then the result.

    With `head` and `tail` only so much of the beginning and the end. A view that reads everything (`hold`) makes the
    command wait rather than lose bytes, from its first grant of credit until it is closed.
    """

    def __init__(
        self, peer: "Peer", number: int, request: Dict[str, Any], process: Process, supervisor: "Supervisor"
    ) -> None:
        super().__init__(peer, number, request)
        self._process = process
        self._supervisor = supervisor
        self._offsets = {wire.STDOUT: int(request.get("offset", 0)), wire.STDERR: int(request.get("stderr_offset", 0))}
        self._head: Optional[int] = request.get("head")
        self._tail: int = request.get("tail") or 0
        self._paused = bool(request.get("paused"))
        self._hold = bool(request.get("hold"))
        self._notify = bool(request.get("notify"))
        self._totals: Optional[Dict[int, int]] = None
        self._input_owed = 0
        process.watchers.add(self)

    def process_changed(self) -> None:
        self.pump()

    def needs(self, stream: int) -> Optional[int]:
        return self._offsets[stream] if self._hold and not self._paused else None

    def on_data(self, stream: int, data: bytes, end: bool) -> None:
        self._input_owed += len(data)
        if self._process.takes_input:
            self._process.feed(data, end)
        else:
            self.stdin_closed()

    def stdin_room(self, n_bytes: int) -> None:
        granted = min(n_bytes, self._input_owed)
        if granted and self.open:
            self._input_owed -= granted
            self.grant(granted)

    def stdin_closed(self) -> None:
        if self.open and (self._hold or self._input_owed):
            self.event(input_closed=True)

    def on_credit(self, n_bytes: int) -> None:
        super().on_credit(n_bytes)
        self._paused = False

    def pump(self) -> None:
        process = self._process
        if not self.open:
            return
        if self._notify:
            self._notify = False
            self.event(started={"pid": process.pid, "stdin_bytes": process.stdin_bytes, "separate": process.separate})
            if not process.takes_input:
                self.stdin_closed()
        if process.ended and self._totals is None:
            self._totals = {stream: recorder.total for stream, recorder in process.recorders.items()}
        sent = [self._send(stream) for stream in process.recorders]
        if self._hold:
            process.release()
        if all(sent) and self._totals is not None:
            self._leave()
            self.finish(process.outcome(self._totals))

    def _send(self, stream: int) -> bool:
        """Sends what is there and due; True if nothing due is left."""
        if self._paused:
            return False
        recorder = self._process.recorders[stream]
        total = recorder.total if self._totals is None else self._totals[stream]
        due = min(self._head, total) if self._head is not None and self._totals is None else total
        while self._offsets[stream] < due:
            offset = self._offsets[stream]
            room = self.room - _EVENT_ROOM
            if room <= 0:
                return False
            if self._head is not None and self._head <= offset < due - self._tail:
                where, data = due - self._tail, b""
            elif self._head is not None and offset < self._head:
                where, data = recorder.read(offset, min(room, self._head - offset, due - offset))
            else:
                where, data = recorder.read(offset, min(room, due - offset))
            if where >= due or (not data and where == offset):
                where, data = due, b""
            if where > offset:
                self.event(gap=[stream, offset, where])
            if data:
                self.send(data, stream)
            self._offsets[stream] = where + len(data)
        return True

    def on_close(self) -> None:
        self._leave()
        self._process.release()

    def _leave(self) -> None:
        self._process.watchers.discard(self)
        self._supervisor.retire(self._process)
