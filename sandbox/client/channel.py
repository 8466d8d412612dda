"""One exchange with a guest, seen from our side: what it may still send, what we may, and how it ended."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from sandbox import wire
from sandbox.errors import SandboxError

Json = dict[str, Any]
Item = tuple[int, bytes] | Json
"""DATA as (stream, bytes), or an EVENT's fields."""


class Wires(Protocol):
    """What a channel needs of its link."""

    def send(self, channel: int, kind: int, payload: bytes = b"", flags: int = 0) -> None: ...
    async def drain(self) -> None: ...


class Channel:
    """Items wait here until they are taken; only what is taken earns the guest new credit."""

    def __init__(self, link: Wires, number: int, *, credit: int, refill: bool) -> None:
        self.number = number
        self.done: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self.on_item: Callable[[Item], None] | None = None
        """Called instead of queueing, by who takes everything at once."""
        self.input_closed = False
        """The other side takes no more of what we send."""
        self._link = link
        self._window = credit
        self._allowed = credit
        self._taken = 0
        self._refill = refill
        self._items: deque[Item] = deque()
        self._arrived = asyncio.Event()
        self._may_send = wire.HOST_CREDIT
        self._send_room = asyncio.Event()

    # From the link

    def receive(self, item: Item, n_bytes: int) -> None:
        """Raises Violation if the guest sends more than it was allowed."""
        self._allowed -= n_bytes
        if self._allowed < 0:
            raise wire.Violation("a channel sent more than its credit")
        if isinstance(item, dict) and "input_closed" in item:
            self.input_closed = True
            self._send_room.set()
            self._took(n_bytes)
        elif self.on_item is not None:
            self.on_item(item)
            self._took(n_bytes)
        else:
            self._items.append(item)
            self._arrived.set()

    def receive_credit(self, n_bytes: int) -> None:
        self._may_send = min(self._may_send + n_bytes, wire.MAX_CREDIT)
        self._send_room.set()

    def finish(self, result: Json) -> None:
        if not self.done.done():
            self.done.set_result(result)
        self._wake()

    def fail(self, error: SandboxError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # whoever awaits it gets it; nobody awaiting is no reason to warn
        self._wake()

    def _wake(self) -> None:
        self._arrived.set()
        self._send_room.set()

    # From the caller

    @property
    def _over(self) -> bool:
        return self.input_closed or self.done.done()

    def grant(self, n_bytes: int) -> None:
        self._window += n_bytes
        self._allowed += n_bytes
        self._link.send(self.number, wire.CREDIT, wire.pack_credit(n_bytes))

    async def take(self) -> Item | None:
        """The next item, or None after the last one. Raises what the exchange failed with."""
        while not self._items:
            if self.done.done():
                self.done.result()
                return None
            self._arrived.clear()
            await self._arrived.wait()
        item = self._items.popleft()
        self._took(len(item[1]) if isinstance(item, tuple) else 0)
        return item

    def _took(self, n_bytes: int) -> None:
        if not self._refill or self.done.done():
            return
        self._taken += n_bytes
        if self._taken >= self._window // 4:
            self._allowed += self._taken
            self._link.send(self.number, wire.CREDIT, wire.pack_credit(self._taken))
            self._taken = 0

    async def send(self, data: bytes, *, end: bool = False) -> bool:
        """Sends as credit comes in; False if the exchange or its input was over before all was sent."""
        view = memoryview(data)
        while True:
            while not self._may_send and len(view) and not self._over:
                self._send_room.clear()
                await self._send_room.wait()
            if self._over:
                return False
            piece = view[: min(self._may_send, wire.HOST_CREDIT)]
            view = view[len(piece) :]
            self._may_send -= len(piece)
            last = not len(view)
            self._link.send(self.number, wire.DATA, bytes(piece), wire.END if end and last else 0)
            await self._link.drain()
            if last:
                return True
