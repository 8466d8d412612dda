"""The session with whoever is connected: hello, epochs, channels, and the bytes on their way out."""

import os
import sys
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Set

from sandbox import wire
from sandbox.guest.channel import Channel
from sandbox.guest.loop import READ, WRITE, Loop
from sandbox.guest.refusal import Refusal

CLOGGED = 2 << 20
_READ_SIZE = 512 << 10
_QUIET_S = 0.02
_MAX_QUIET_WAITS = 100
"""What a former peer had sent may still be on its way through the engine, cut anywhere, and would fall between the
frames of its successor or into them. So a successor is welcomed, and sends, only when nothing came for a moment."""

Opener = Callable[["Peer", int, Dict[str, Any]], Optional[Channel]]


class Peer:
    """One at a time. A newer epoch replaces the older; what it had open is closed, what runs goes on."""

    def __init__(
        self, loop: Loop, fd_in: int, fd_out: int, welcome: Callable[[Dict[str, Any]], Dict[str, Any]]
    ) -> None:
        self.loop = loop
        self.opener: Opener = lambda peer, number, request: None
        self.on_ack: Callable[[List[Any]], None] = lambda ids: None
        self.on_superseded: Callable[[str], None] = lambda ids: None
        """With the beginning of the ids that the former peer made up itself."""
        self.epoch = 0
        self.last_heard = 0.0
        self._welcome = welcome
        self._in = fd_in
        self._out = fd_out
        self._decoder = wire.SessionDecoder()
        self._tag = 0
        self._channels: Dict[int, Channel] = {}
        self._waiting: Set[Channel] = set()
        self._outbox: Deque[bytes] = deque()
        self._outbox_bytes = 0
        self._flushing = False
        self._settling = False
        self._n_reads = 0
        self._own_ids = ""
        os.set_blocking(fd_in, False)
        os.set_blocking(fd_out, False)
        loop.watch(fd_in, READ, self._readable)

    @property
    def clogged(self) -> bool:
        return self._outbox_bytes > CLOGGED

    def wait_for_room(self, channel: Channel) -> None:
        self._waiting.add(channel)

    def forget(self, channel: Channel) -> None:
        self._channels.pop(channel.number, None)
        self._waiting.discard(channel)

    def send(self, channel: int, kind: int, payload: bytes = b"", flags: int = 0) -> None:
        self._queue(wire.header(self._tag, channel, kind, len(payload), flags))
        if payload:
            self._queue(payload)

    def _queue(self, data: bytes) -> None:
        self._outbox.append(data)
        self._outbox_bytes += len(data)
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        while self._outbox:
            batch = [self._outbox[i] for i in range(min(len(self._outbox), 64))]
            try:
                written = os.writev(self._out, batch)
            except BlockingIOError:
                if not self.loop.is_watched(self._out):
                    self.loop.watch(self._out, WRITE, lambda _: self._flush())
                return
            except BrokenPipeError:
                self._outbox.clear()
                self._outbox_bytes = 0
                break
            self._outbox_bytes -= written
            while written:
                first = self._outbox.popleft()
                if written < len(first):
                    self._outbox.appendleft(first[written:])
                    break
                written -= len(first)
        self.loop.unwatch(self._out)
        self._flushing = False
        waiting, self._waiting = self._waiting, set()
        for channel in waiting:
            if channel.open:
                channel.pump()

    def _readable(self, _events: int) -> None:
        try:
            data = os.read(self._in, _READ_SIZE)
        except BlockingIOError:
            return
        if not data:
            self.loop.stop()
            return
        self.last_heard = self.loop.now
        self._n_reads += 1
        for frame in self._decoder.feed(data):
            if self._settling and frame.kind != wire.HELLO:
                continue
            try:
                self._handle(frame)
            except wire.Violation:
                self.send(0, wire.DESYNC)

    def _handle(self, frame: wire.Frame) -> None:
        kind = frame.kind
        if kind == wire.OPEN:
            self._open(frame)
        elif kind == wire.DATA:
            channel = self._channels.get(frame.channel)
            if channel is not None:
                channel.on_data(frame.flags & wire.STREAM_MASK, frame.payload, bool(frame.flags & wire.END))
        elif kind == wire.CREDIT:
            channel = self._channels.get(frame.channel)
            if channel is not None:
                channel.on_credit(wire.unpack_credit(frame.payload))
                channel.pump()
        elif kind == wire.CLOSE:
            channel = self._channels.pop(frame.channel, None)
            if channel is not None:
                self._shut(channel)
                self.send(frame.channel, wire.CLOSE)
        elif kind == wire.PING:
            self.send(0, wire.PONG, frame.payload)
        elif kind == wire.ACK:
            self.on_ack(list(wire.unpack_json(frame.payload).get("ids", ())))
        elif kind == wire.HELLO:
            self._hello(wire.unpack_json(frame.payload))
        elif kind == wire.DESYNC:
            self.send(0, wire.DESYNC)

    def _open(self, frame: wire.Frame) -> None:
        request = wire.unpack_json(frame.payload)
        if request.get("ack"):
            self.on_ack(request["ack"])
        channel = Channel(self, frame.channel, request)
        try:
            if len(self._channels) >= wire.MAX_CHANNELS:
                raise Refusal("cannot_start", "too many channels are open")
            made = self.opener(self, frame.channel, request)
        except Refusal as refusal:
            channel.fail(refusal)
            return
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            channel.fail(Refusal("invalid_argument", f"the request makes no sense: {type(error).__name__}: {error}"))
            return
        if made is not None and made.open:
            self._channels[frame.channel] = made
            made.pump()

    def _shut(self, channel: Channel) -> None:
        if channel.open:
            channel.open = False
            self._waiting.discard(channel)
            channel.on_close()

    def _hello(self, hello: Dict[str, Any]) -> None:
        nonce = bytes.fromhex(hello["nonce"])
        epoch = hello.get("epoch")
        tag = wire.tag_of(nonce)
        marker = wire.MAGIC + nonce
        if epoch is not None and epoch < self.epoch:
            self._decoder.settle(accepted=False)
            body = wire.pack_json({"code": "stale_epoch", "epoch": self.epoch})
            # Everybody attached reads this. Inside a frame of its own session it is nothing to the holder.
            self.send(0, wire.PONG, marker + wire.frame(tag, 0, wire.REFUSED, body))
            return
        self._decoder.settle(accepted=True)
        self.epoch = self.epoch + 1 if epoch is None else epoch
        self.drop()
        if self._own_ids:
            self.on_superseded(self._own_ids)
        self._own_ids = str(hello.get("ids") or "")
        self._settling, self._tag = bool(self._tag), tag
        answer = self._welcome(hello)
        answer.update(protocol=wire.PROTOCOL, epoch=self.epoch, python=list(sys.version_info[:3]))
        self._queue(marker)  # a former peer that still listens falls silent at this
        self._greet(tag, wire.pack_json(answer), -1, _MAX_QUIET_WAITS)

    def _greet(self, tag: int, welcome: bytes, n_reads: int, n_waits: int) -> None:
        if tag != self._tag:
            return
        if self._settling and self._n_reads != n_reads and n_waits:
            n_reads = self._n_reads
            self.loop.call_later(_QUIET_S, lambda: self._greet(tag, welcome, n_reads, n_waits - 1))
            return
        if self._settling:
            self._settling = False
            self._decoder.resynchronise()
        self.send(0, wire.WELCOME, welcome)

    def drop(self) -> None:
        """Forgets the peer's channels and what was to be sent to it."""
        for channel in list(self._channels.values()):
            self._shut(channel)
        self._channels.clear()
        self._waiting.clear()
        self._outbox.clear()
        self._outbox_bytes = 0
