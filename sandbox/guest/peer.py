"""The session with whoever is connected: hello, epochs, channels.

Everybody comes in through the rendezvous, our stdin and stdout. A peer that offers a socket is met there, and the
rendezvous is left to whoever comes next; otherwise the session stays where it began.
"""

import socket
import sys
from typing import Any, Callable, Dict, List, Optional, Set

from sandbox import wire
from sandbox.guest.channel import Channel
from sandbox.guest.conduit import Conduit
from sandbox.guest.loop import Loop
from sandbox.guest.refusal import Refusal, report

_LAST_WORD_S = 10.0
"""A former peer that reads nothing for so long is left without being told why."""
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
        self._decoder = wire.SessionDecoder()
        self._tag = 0
        self._marker = b""
        self._channels: Dict[int, Channel] = {}
        self._waiting: Set[Channel] = set()
        self._settling = False
        self._n_reads = 0
        self._own_ids = ""
        self._rendezvous = Conduit(loop, fd_in, fd_out, on_bytes=self._met, on_end=loop.stop, on_room=self._room)
        self._conduit = self._rendezvous
        self._former: Optional[Conduit] = None
        """On its way out: it is being told that it was replaced."""

    # Outwards

    @property
    def clogged(self) -> bool:
        return self._conduit.clogged

    def wait_for_room(self, channel: Channel) -> None:
        self._waiting.add(channel)

    def register(self, channel: Channel) -> None:
        self._channels[channel.number] = channel

    def forget(self, channel: Channel) -> None:
        self._channels.pop(channel.number, None)
        self._waiting.discard(channel)

    def send(self, channel: int, kind: int, payload: bytes = b"", flags: int = 0) -> None:
        self._conduit.send(wire.header(self._tag, channel, kind, len(payload), flags), payload)

    def _room(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for channel in waiting:
            if channel.open:
                channel.attempt(channel.pump)

    # Inwards

    def _met(self, data: bytes) -> None:
        """At the rendezvous: hellos always, the rest only from a session that has no socket."""
        self._n_reads += 1
        for frame in self._decoder.feed(data):
            if frame.kind == wire.HELLO:
                self._hello(wire.unpack_json(frame.payload))
            elif self._conduit is self._rendezvous and not self._settling:
                self._heard(frame)

    def _heard(self, frame: wire.Frame) -> None:
        self.last_heard = self.loop.now
        try:
            self._handle(frame)
        except wire.Violation:
            self.send(0, wire.DESYNC)
        except Exception as error:  # noqa: BLE001  one frame's bug must not lose the frames behind it
            report(error)

    def _handle(self, frame: wire.Frame) -> None:
        kind = frame.kind
        if kind == wire.OPEN:
            self._open(frame)
        elif kind == wire.DATA:
            channel = self._channels.get(frame.channel)
            if channel is not None:
                stream, end = frame.flags & wire.STREAM_MASK, bool(frame.flags & wire.END)
                channel.attempt(channel.on_data, stream, frame.payload, end)
        elif kind == wire.CREDIT:
            channel = self._channels.get(frame.channel)
            if channel is not None:
                channel.credit += wire.unpack_credit(frame.payload)
                channel.attempt(channel.pump)
        elif kind == wire.CLOSE:
            channel = self._channels.pop(frame.channel, None)
            if channel is not None:
                self._shut(channel)
                self.send(frame.channel, wire.CLOSE)
        elif kind == wire.PING:
            self.send(0, wire.PONG, frame.payload)
        elif kind == wire.ACK:
            self.on_ack(list(wire.unpack_json(frame.payload).get("ids", ())))
        elif kind == wire.DESYNC:
            self.send(0, wire.DESYNC)

    def _open(self, frame: wire.Frame) -> None:
        request = wire.unpack_json(frame.payload)
        channel = Channel(self, frame.channel, request)
        try:
            self.on_ack(request.get("ack") or [])
            if len(self._channels) >= wire.MAX_CHANNELS:
                raise Refusal("cannot_start", "too many channels are open")
            made = self.opener(self, frame.channel, request)
        except Refusal as refusal:
            channel.fail(refusal)
            return
        except Exception as error:  # noqa: BLE001  a request of any shape gets an answer
            report(error)
            channel.fail(Refusal("invalid_argument", f"the request makes no sense: {type(error).__name__}: {error}"))
            return
        if made is not None and made.open:
            self.register(made)
            made.attempt(made.pump)

    def _shut(self, channel: Channel) -> None:
        if channel.open:
            channel.open = False
            self._waiting.discard(channel)
            channel.attempt(channel.on_close)

    # Who it is

    def _hello(self, hello: Dict[str, Any]) -> None:
        nonce = bytes.fromhex(hello["nonce"])
        epoch = hello.get("epoch")
        tag = wire.tag_of(nonce)
        marker = wire.MAGIC + nonce
        if epoch is not None and epoch < self.epoch:
            self._decoder.settle(accepted=False)
            refused = marker + wire.frame(
                tag, 0, wire.REFUSED, wire.pack_json({"code": "stale_epoch", "epoch": self.epoch})
            )
            # Everybody at the rendezvous reads this. Inside a frame of its own session it is nothing to the holder.
            self._rendezvous.send(wire.header(self._tag, 0, wire.PONG, len(refused)), refused)
            return
        self._decoder.settle(accepted=True)
        self.epoch = self.epoch + 1 if epoch is None else epoch
        self.last_heard = self.loop.now
        self._replace(marker, tag, str(hello.get("ids") or ""))
        answer = self._welcome(hello)
        answer.update(protocol=wire.PROTOCOL, epoch=self.epoch, python=list(sys.version_info[:3]))
        welcome = wire.pack_json(answer)
        if self._meet(hello.get("socket"), tag):
            self._conduit.send(marker)
            self.send(0, wire.WELCOME, welcome)
        else:
            self._conduit.send(marker)
            self._greet(tag, welcome, -1, _MAX_QUIET_WAITS)

    def _replace(self, marker: bytes, tag: int, own_ids: str) -> None:
        """Forgets the former peer, its channels, what was to be sent to it, and what it asked for by ids of its own.

        It is told by a marker in place of a frame: its own, twice, as it may not have got the one that greets it.
        """
        self._drop()
        if self._own_ids:
            self.on_superseded(self._own_ids)
        self._own_ids = own_ids
        self._settling = bool(self._tag) and self._conduit is self._rendezvous
        self._tag = tag
        last_word, self._marker = self._marker * 2, marker
        if self._conduit is self._rendezvous:
            self._conduit.send(last_word)
            self._conduit.flush()
            return
        if self._former is not None:
            self._former.close()
        self._former, self._conduit = self._conduit, self._rendezvous
        self._former.dismiss(last_word, _LAST_WORD_S)

    def _meet(self, path: Optional[str], tag: int) -> bool:
        """Moves the session to the socket it was offered, if that can be reached from in here."""
        if not path:
            return False
        offered = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            offered.connect(path)
        except OSError:
            offered.close()
            return False
        decoder = wire.FrameDecoder(tag)
        fd = offered.detach()

        def received(data: bytes) -> None:
            try:
                for frame in decoder.feed(data):
                    self._heard(frame)
            except (wire.Violation, wire.Superseded):
                self._part(conduit)

        conduit = Conduit(self.loop, fd, fd, on_bytes=received, on_end=lambda: self._part(conduit), on_room=self._room)
        self._conduit = conduit
        self._settling = False
        return True

    def _part(self, conduit: Conduit) -> None:
        """The peer hung up, or is not to be talked to. Commands run on."""
        conduit.close()
        if conduit is self._conduit:
            self._conduit = self._rendezvous
            self._drop()

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

    def _drop(self) -> None:
        for channel in list(self._channels.values()):
            self._shut(channel)
        self._channels.clear()
        self._waiting.clear()
        self._conduit.forget_unsent()
