"""A request made again while its first attempt is under way: it waits for how that ends."""

from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

from sandbox.guest.channel import Channel
from sandbox.guest.refusal import Refusal

if TYPE_CHECKING:
    from sandbox.guest.peer import Peer

_PATIENCE_S = 15.0
"""A job whose peer is gone has a grace, then is swept for: it is over before this."""


class Repeat(Channel):
    """Takes what is sent with the request meanwhile: no more than a channel's first credit, for none is granted."""

    def __init__(
        self,
        peer: "Peer",
        number: int,
        request: Dict[str, Any],
        under_way: Refusal,
        reopen: Callable[[], Optional[Channel]],
    ) -> None:
        super().__init__(peer, number, request)
        self._reopen = reopen
        self._received: List[Tuple[int, bytes, bool]] = []
        self._patience = peer.loop.call_later(_PATIENCE_S, lambda: self.fail(under_way))

    def on_data(self, stream: int, data: bytes, end: bool) -> None:
        self._received.append((stream, data, end))

    def on_close(self) -> None:
        self._patience.cancel()

    def first_is_over(self) -> None:
        self._patience.cancel()
        if self.open:
            self.attempt(self._go_on)

    def _go_on(self) -> None:
        """As a channel of the kind that the request asks for, unless it is answered already."""
        made = self._reopen()
        self.open = False
        if made is None:
            return
        self.peer.register(made)
        made.attempt(made.pump)
        for stream, data, end in self._received:
            if made.open:
                made.attempt(made.on_data, stream, data, end)
