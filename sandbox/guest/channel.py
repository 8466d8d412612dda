"""One exchange with the peer: a request, data both ways under credit, one result."""

from typing import TYPE_CHECKING, Any, Callable, Dict, Optional

from sandbox import wire
from sandbox.guest.refusal import Refusal, from_os_error, report

if TYPE_CHECKING:
    from sandbox.guest.peer import Peer

CHUNK = 256 << 10


class Channel:
    """Subclasses send what they have in `pump`, which is called again whenever there may be room for more."""

    def __init__(self, peer: "Peer", number: int, request: Dict[str, Any]) -> None:
        self.peer = peer
        self.number = number
        self.credit = int(request.get("credit", 0))
        self.open = True

    def pump(self) -> None:
        """Send what can be sent now."""

    def on_data(self, stream: int, data: bytes, end: bool) -> None:
        """The peer sent this."""

    def on_close(self) -> None:
        """The peer lost interest, or is gone, or we failed. Let go of everything."""

    def attempt(self, step: Callable[..., None], *args: Any) -> None:
        """A step of this exchange. Whatever goes wrong ends the exchange, and nothing else."""
        try:
            step(*args)
        except Refusal as refusal:
            self._give_up(refusal)
        except OSError as error:
            self._give_up(from_os_error(error, str(error.filename or "")))
        except Exception as error:  # noqa: BLE001  one exchange's bug must not end the guest
            report(error)
            self._give_up(Refusal("io_failed", f"the sandbox failed at it: {type(error).__name__}: {error}"))

    def _give_up(self, refusal: Refusal) -> None:
        if self.open:
            self.fail(refusal)
            self.on_close()

    @property
    def room(self) -> int:
        """How many payload bytes may be sent now; 0 also while the peer's stream is clogged."""
        if not self.open:
            return 0
        if self.peer.clogged:
            self.peer.wait_for_room(self)
            return 0
        return min(self.credit, CHUNK)

    def send(self, data: bytes, stream: int = wire.STDIN, end: bool = False) -> None:
        self.credit -= len(data)
        self.peer.send(self.number, wire.DATA, data, stream | (wire.END if end else 0))

    def event(self, **fields: Any) -> None:
        payload = wire.pack_json(fields)
        self.credit -= len(payload)
        self.peer.send(self.number, wire.EVENT, payload)

    def grant(self, n_bytes: int) -> None:
        self.peer.send(self.number, wire.CREDIT, wire.pack_credit(n_bytes))

    def finish(self, ok: Optional[Dict[str, Any]] = None) -> None:
        self._end({"ok": ok or {}})

    def fail(self, refusal: Refusal) -> None:
        self._end(refusal.outcome())

    def _end(self, outcome: Dict[str, Any]) -> None:
        if self.open:
            self.open = False
            self.peer.send(self.number, wire.RESULT, wire.pack_json(outcome))
            self.peer.forget(self)
