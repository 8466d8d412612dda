"""A session with a guest over one byte stream: hello, channels, keep-alive. Believes nothing it has not checked."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, cast

from sandbox import wire
from sandbox.client.channel import Channel, Item, Json
from sandbox.errors import (
    InvalidArgument,
    LeaseLost,
    OperationTimedOut,
    SandboxBroken,
    SandboxError,
    SandboxLost,
    from_guest,
)

LEASE_S = 10.0
HELLO_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 60.0
WINDOW = 1 << 20
SMALL_WINDOW = 64 << 10


class Urgency(Enum):
    """Which requests wait for which: what runs long must not keep a kill from being sent."""

    LONG = "long"
    TREE = "tree"
    SHORT = "short"
    KILL = "kill"


_SLOTS = {Urgency.LONG: wire.MAX_CHANNELS - 48, Urgency.TREE: 16, Urgency.SHORT: 24, Urgency.KILL: 8}
_MAX_ACKS = 512
_MAX_PONG = 512
"""A refusal to somebody else travels in one, see the guest's `Peer`."""
_MAX_PREAMBLE = 64 << 20
"""How much of a former session's output is skipped in search of our marker."""


class ByteStream(Protocol):
    """What a backend hands over. `receiver` gets every byte in order, then `lost` once."""

    receiver: "Receiver"

    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None:
        """Ends it at once, in both directions. Idempotent."""
        ...


class Receiver(Protocol):
    def received(self, data: bytes) -> None: ...
    def lost(self, reason: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """What the guest said of itself. Shown to people and compared, never trusted."""

    guest_hash: str
    boot_id: str
    epoch: int
    features: frozenset[str]
    python: tuple[int, ...]
    disks: Mapping[str, int]
    """How many bytes the file systems have that the hello asked about."""


class Link:
    """Made by `connect`; over when `close` is called, the stream ends or the guest misbehaves."""

    def __init__(self, stream: ByteStream, *, lease_s: float) -> None:
        self.welcome: Welcome | None = None
        self.ended: SandboxError | None = None
        self._stream = stream
        self._lease_s = lease_s
        self._nonce = secrets.token_bytes(wire.NONCE_BYTES)
        self._tag = wire.tag_of(self._nonce)
        self._scanner: wire.MarkerScanner | None = wire.MarkerScanner(wire.MAGIC + self._nonce)
        self._n_skipped = 0
        self._decoder = wire.FrameDecoder(self._tag)
        self._channels: dict[int, Channel] = {}
        self._closing: set[int] = set()
        self._next_channel = 2
        self._slots = {urgency: asyncio.Semaphore(n_channels) for urgency, n_channels in _SLOTS.items()}
        self._greeted: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._acknowledge: list[str] = []
        self._heard_at = time.monotonic()
        self._keeper: asyncio.Task[None] | None = None
        self._id_prefix = secrets.token_hex(6)
        self._n_ids = 0
        stream.receiver = self

    @classmethod
    async def connect(
        cls,
        stream: ByteStream,
        *,
        key: bytes,
        epoch: int | None = None,
        config: Mapping[str, Any] | None = None,
        timeout_s: float = HELLO_TIMEOUT_S,
        lease_s: float = LEASE_S,
        offer: str | None = None,
    ) -> "Link":
        """Says hello. `offer` is the path inside of a socket that the guest may move the session to, which the stream
        then follows.

        Raises: SandboxLost (no answer in time, or the stream ended), LeaseLost (stale epoch), SandboxBroken.
        """
        link = cls(stream, lease_s=lease_s)
        try:
            await link._hello(key, epoch, config, offer, timeout_s)
        except BaseException:
            link.close()
            raise
        link._keeper = asyncio.create_task(link._keep_alive(), name="guest keep-alive")
        return link

    async def _hello(
        self, key: bytes, epoch: int | None, config: Mapping[str, Any] | None, offer: str | None, timeout_s: float
    ) -> None:
        hello: Json = {"protocol": wire.PROTOCOL, "features": [], "epoch": epoch, "nonce": self._nonce.hex()}
        hello.update(lease_s=self._lease_s, ids=f"{self._id_prefix}-", config=dict(config or {}), socket=offer)
        self._stream.write(wire.MAGIC + key + wire.frame(self._tag, 0, wire.HELLO, wire.pack_json(hello)))
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._greeted
        except TimeoutError:
            raise SandboxLost(f"the guest did not answer within {timeout_s:.0f} s; create the sandbox anew") from None
        self.welcome = _welcome(answer)

    # Requests

    def new_id(self) -> str:
        self._n_ids += 1
        return f"{self._id_prefix}-{self._n_ids}"

    def acknowledge_later(self, request_id: str) -> None:
        """Goes out with the next request, or within a third of the lease."""
        self._acknowledge.append(request_id)

    def acknowledge(self, request_ids: list[str]) -> None:
        for at in range(0, len(request_ids), _MAX_ACKS):
            self.send(0, wire.ACK, wire.pack_json({"ids": request_ids[at : at + _MAX_ACKS]}))

    @contextlib.asynccontextmanager
    async def open(
        self,
        op: str,
        request: Mapping[str, Any],
        *,
        credit: int = SMALL_WINDOW,
        refill: bool = True,
        urgency: Urgency = Urgency.LONG,
        data: bytes | None = None,
        on_item: Callable[[Item], None] | None = None,
    ) -> AsyncGenerator[Channel]:
        """A channel for one request; left early, the guest is told that nobody waits any more.

        `data` is sent along, whole, in the same write. `on_item` takes what comes at once, instead of `take`.
        """
        async with self._slots[urgency]:
            channel = Channel(self, self._next_channel, credit=credit, refill=refill, on_item=on_item)
            self._send_open(channel, {"op": op, "credit": credit, **request}, data)
            try:
                yield channel
            except SandboxBroken as error:
                self._end(error)
                raise
            finally:
                self._leave(channel)

    async def call(
        self,
        op: str,
        request: Mapping[str, Any],
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        urgency: Urgency = Urgency.SHORT,
    ) -> Json:
        """A request whose answer is small. `timeout_s` includes the wait for a channel."""
        async with self.within(op, timeout_s), self.open(op, request, urgency=urgency) as channel:
            return await channel.done

    @contextlib.asynccontextmanager
    async def within(self, doing: str, timeout_s: float | None) -> AsyncGenerator[None]:
        """Raises: OperationTimedOut."""
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError:
            raise OperationTimedOut(
                f"{doing} took longer than {timeout_s} s; try again or allow it more time"
            ) from None

    def _send_open(self, channel: Channel, body: Json, data: bytes | None) -> None:
        if self.ended is not None:
            raise _again(self.ended)
        acknowledged = self._acknowledge[:_MAX_ACKS]
        if acknowledged:
            body["ack"] = acknowledged
        payload = wire.pack_json(body)
        if len(payload) > wire.MAX_PAYLOAD:
            raise InvalidArgument(
                f"the request has {len(payload)} bytes, at most {wire.MAX_PAYLOAD} go; pass it by a file"
            )
        out = wire.frame(self._tag, channel.number, wire.OPEN, payload)
        if data is not None:
            out += wire.frame(self._tag, channel.number, wire.DATA, data, wire.END)
        del self._acknowledge[: len(acknowledged)]
        self._next_channel += 2
        self._channels[channel.number] = channel
        self._stream.write(out)

    def _leave(self, channel: Channel) -> None:
        if self._channels.pop(channel.number, None) is not None and self.ended is None:
            self._closing.add(channel.number)
            self.send(channel.number, wire.CLOSE)

    def send(self, channel: int, kind: int, payload: bytes = b"", flags: int = 0) -> None:
        if self.ended is None:
            self._stream.write(wire.frame(self._tag, channel, kind, payload, flags))

    async def drain(self) -> None:
        await self._stream.drain()

    # What comes in

    def received(self, data: bytes) -> None:
        self._heard_at = time.monotonic()
        try:
            if self._scanner is not None:
                rest = self._scanner.feed(data)
                if rest is None:
                    self._n_skipped += len(data)
                    if self._n_skipped > _MAX_PREAMBLE:
                        raise wire.Violation("the stream never reached our marker")
                    return
                self._scanner = None
                data = rest
            for frame in self._decoder.feed(data):
                self._dispatch(frame)
                if self.ended is not None:
                    return
        except wire.Violation as violation:
            self._end(SandboxBroken(f"the sandbox broke the protocol ({violation}); destroy it"))
        except wire.Superseded:
            self._end(LeaseLost("another process took this sandbox over; connect again to take it back"))

    def lost(self, reason: str) -> None:
        self._end(SandboxLost(f"the connection to the sandbox ended: {reason}"))

    def _dispatch(self, frame: wire.Frame) -> None:
        if frame.channel == 0:
            self._control(frame)
            return
        if frame.kind not in (wire.DATA, wire.EVENT, wire.RESULT, wire.CREDIT, wire.CLOSE):
            raise wire.Violation("a frame of that kind does not belong on a channel")
        channel = self._channels.get(frame.channel)
        if channel is None:
            if frame.channel not in self._closing:
                raise wire.Violation("a frame for a channel that is not open")
            if frame.kind in (wire.RESULT, wire.CLOSE):
                self._closing.discard(frame.channel)
        elif frame.kind == wire.DATA:
            channel.receive(frame.flags & wire.STREAM_MASK, frame.payload)
        elif frame.kind == wire.EVENT:
            channel.receive_event(_json(frame.payload), frame.payload)
        elif frame.kind == wire.CREDIT:
            channel.receive_credit(wire.unpack_credit(frame.payload))
        elif frame.kind == wire.RESULT:
            _finish(channel, _json(frame.payload))
            del self._channels[frame.channel]
        else:
            raise wire.Violation("the guest closed a channel without a result")

    def _control(self, frame: wire.Frame) -> None:
        if frame.kind == wire.PONG and len(frame.payload) <= _MAX_PONG:
            return
        if frame.kind == wire.DESYNC:
            self._end(SandboxLost("the sandbox lost track of the stream; connect again"))
        elif frame.kind == wire.WELCOME and not self._greeted.done():
            self._greeted.set_result(_json(frame.payload))
        elif frame.kind == wire.REFUSED and not self._greeted.done():
            epoch = _json(frame.payload).get("epoch")
            self._end(LeaseLost(f"the sandbox is held under a newer epoch ({epoch!r:.20}); this one may not use it"))
        else:
            raise wire.Violation("a control frame at the wrong time")

    # The end

    async def _keep_alive(self) -> None:
        interval_s = self._lease_s / 4
        while self.ended is None:
            silent_s = time.monotonic() - self._heard_at
            if silent_s > self._lease_s + HELLO_TIMEOUT_S:
                self._end(SandboxLost(f"the sandbox has not answered for {silent_s:.0f} s"))
                return
            if self._acknowledge:
                pending, self._acknowledge = self._acknowledge, []
                self.acknowledge(pending)
            self.send(0, wire.PING)
            await asyncio.sleep(interval_s)

    def close(self) -> None:
        """Ends the session from our side: the sandbox lives on. Idempotent."""
        if self._acknowledge:
            pending, self._acknowledge = self._acknowledge, []
            self.acknowledge(pending)
        self._end(SandboxLost("this connection was closed; connect again"))

    def _end(self, error: SandboxError) -> None:
        if self.ended is not None:
            return
        self.ended = error
        if self._keeper is not None and self._keeper is not asyncio.current_task():
            self._keeper.cancel()
        self._stream.close()
        if not self._greeted.done():
            self._greeted.set_exception(error)
            self._greeted.exception()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.fail(_again(error))


def _again(error: SandboxError) -> SandboxError:
    """A fresh copy: one exception raised in many tasks would collect all their tracebacks."""
    return type(error)(error.message, **error.context)


def _json(payload: bytes) -> Json:
    if len(payload) > wire.MAX_GUEST_JSON:
        raise wire.Violation("a JSON payload is too long")
    return wire.unpack_json(payload)


def _finish(channel: Channel, result: Json) -> None:
    ok, error = result.get("ok"), result.get("error")
    if isinstance(ok, dict):
        channel.finish(cast(Json, ok))
    elif isinstance(error, dict):
        said = cast(Json, error)
        channel.fail(from_guest(str(said.get("code")), str(said.get("message"))))
    else:
        raise wire.Violation("a result is neither ok nor error")


def _welcome(answer: Json) -> Welcome:
    try:
        return Welcome(
            guest_hash=str(answer["guest_hash"]),
            boot_id=str(answer["boot_id"]),
            epoch=int(answer["epoch"]),
            features=frozenset(str(feature) for feature in answer["features"]),
            python=tuple(int(part) for part in answer["python"]),
            disks={str(path): int(size) for path, size in answer.get("disks", {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise SandboxBroken("the sandbox's hello makes no sense; destroy it") from None
