"""One exchange with a guest, seen from our side: what it may still send, what we may, and how it ended."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from sandbox import wire
from sandbox.client.inbox import EVENT, Inbox
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

    def __init__(
        self, link: Wires, number: int, *, credit: int, refill: bool, on_item: Callable[[Item], None] | None
    ) -> None:
        self.number = number
        self.done: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._on_item = on_item
        self._link = link
        self._window = credit
        self._allowed = credit
        self._taken = 0
        self._refill = refill
        self._inbox = Inbox()
        self._arrived = asyncio.Event()
        self._may_send = wire.HOST_CREDIT
        self._send_room = asyncio.Event()

    # From the link

    def receive(self, stream: int, data: bytes) -> None:
        """DATA. Raises Violation if the guest sends more than it was allowed."""
        self._receive((stream, data), stream, data)

    def receive_event(self, fields: Json, payload: bytes) -> None:
        """An EVENT, as it was understood and as it came. Raises as `receive`."""
        self._receive(fields, EVENT, payload)

    def _receive(self, item: Item, label: int, payload: bytes) -> None:
        self._allowed -= len(payload)
        if self._allowed < 0 or not payload:
            raise wire.Violation("a channel sent more than its credit, or nothing at all")
        if self._on_item is not None:
            self._on_item(item)
            self._took(len(payload))
            return
        self._inbox.put(label, payload)
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

    async def take(self) -> Item | None:
        """The next item, or None after the last one. Raises what the exchange failed with."""
        while not self._inbox:
            if self.done.done():
                self.done.result()
                return None
            self._arrived.clear()
            await self._arrived.wait()
        label, payload = self._inbox.pop()
        self._took(len(payload))
        return wire.unpack_json(payload) if label == EVENT else (label, payload)

    def _took(self, n_bytes: int) -> None:
        if not self._refill or self.done.done():
            return
        self._taken += n_bytes
        if self._taken >= self._window // 4:
            self._allowed += self._taken
            self._link.send(self.number, wire.CREDIT, wire.pack_credit(self._taken))
            self._taken = 0

    async def send(self, data: bytes, *, end: bool = False) -> bool:
        """Sends as credit comes in; False if the exchange was over before all was sent."""
        view = memoryview(data)
        while True:
            while not self._may_send and len(view) and not self.done.done():
                self._send_room.clear()
                await self._send_room.wait()
            if self.done.done():
                return False
            piece = view[: min(self._may_send, wire.HOST_CREDIT)]
            view = view[len(piece) :]
            self._may_send -= len(piece)
            last = not len(view)
            self._link.send(self.number, wire.DATA, bytes(piece), wire.END if end and last else 0)
            await self._link.drain()
            if last:
                return True
