"""Frames: how bytes on a guest stream become messages. Used at both ends, so Python 3.8 and nothing but the library.

Owns the header, the marker that starts a session and the incremental decoders. Knows no operation and no channel's
state. `docs/decisions/wire.md` is the page behind it.
"""

import json
import struct
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union, cast

PROTOCOL = 1
MAGIC = b"\xb0a7yard\x01"
KEY_BYTES = 16
NONCE_BYTES = 16
MARKER_BYTES = len(MAGIC) + KEY_BYTES

MAX_PAYLOAD = 1 << 20
MAX_GUEST_JSON = 64 << 10
MAX_CHANNELS = 256
MAX_CREDIT = 8 << 20
HOST_CREDIT = 256 << 10
"""What the host may send on a channel before the guest grants more."""

HELLO, WELCOME, REFUSED, PING, PONG, ACK, DESYNC = 1, 2, 3, 4, 5, 6, 7
OPEN, DATA, CREDIT, EVENT, RESULT, CLOSE = 16, 17, 18, 19, 20, 21
KINDS = frozenset((HELLO, WELCOME, REFUSED, PING, PONG, ACK, DESYNC, OPEN, DATA, CREDIT, EVENT, RESULT, CLOSE))

STREAM_MASK = 0x03
END = 0x80
STDIN, STDOUT, STDERR = 0, 1, 2

HEADER = struct.Struct("!IIIBBH")
_CREDIT = struct.Struct("!I")
Buffer = Union[bytes, bytearray, memoryview]


class Frame(NamedTuple):
    channel: int
    kind: int
    flags: int
    payload: bytes


class Violation(Exception):
    """The other side broke the protocol. The message is ours; nothing of the payload is in it."""


class Superseded(Exception):
    """A marker stands where a header was expected: another peer took the stream over."""


def tag_of(nonce: bytes) -> int:
    return int.from_bytes(nonce[:4], "big")


def header(tag: int, channel: int, kind: int, length: int, flags: int = 0) -> bytes:
    return HEADER.pack(tag, length, channel, kind, flags, 0)


def frame(tag: int, channel: int, kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(f"a frame holds at most {MAX_PAYLOAD} bytes, not {len(payload)}")
    return HEADER.pack(tag, len(payload), channel, kind, flags, 0) + payload


def pack_json(value: Any) -> bytes:
    # ASCII escapes carry file names that are not UTF-8 (surrogate escapes) unharmed.
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def unpack_json(payload: bytes) -> Dict[str, Any]:
    """Raises Violation unless the payload is a JSON object."""
    try:
        value: Any = json.loads(payload)
    except (ValueError, RecursionError):
        raise Violation("a payload is not JSON") from None
    if not isinstance(value, dict):
        raise Violation("a payload is not a JSON object")
    return cast("Dict[str, Any]", value)


def pack_credit(n_bytes: int) -> bytes:
    return _CREDIT.pack(n_bytes)


def unpack_credit(payload: bytes) -> int:
    if len(payload) != _CREDIT.size:
        raise Violation("a credit frame has the wrong length")
    return _CREDIT.unpack(payload)[0]


class FrameDecoder:
    """Cuts one session's bytes into frames. Feed it, then iterate; what is incomplete waits for the next feed."""

    def __init__(self, tag: int) -> None:
        self.tag = tag
        self._buffer = bytearray()

    def feed(self, data: Buffer) -> Iterator[Frame]:
        """Raises Violation on a header that no honest peer sends, Superseded on a marker in its place."""
        buffer = self._buffer
        buffer += data
        at = 0
        end = len(buffer)
        try:
            while end - at >= HEADER.size:
                tag, length, channel, kind, flags, reserved = HEADER.unpack_from(buffer, at)
                if tag != self.tag:
                    if buffer.startswith(MAGIC, at):
                        raise Superseded
                    raise Violation("a frame carries the wrong session tag")
                if length > MAX_PAYLOAD or kind not in KINDS or reserved:
                    raise Violation("a frame header makes no sense")
                stop = at + HEADER.size + length
                if stop > end:
                    break
                payload = bytes(memoryview(buffer)[at + HEADER.size : stop])
                at = stop
                yield Frame(channel, kind, flags, payload)
        finally:
            del buffer[:at]


class MarkerScanner:
    """Finds `marker` in a stream whose beginning may be anything, across reads."""

    def __init__(self, marker: bytes) -> None:
        self.marker = marker
        self._tail = b""

    def feed(self, data: bytes) -> Optional[bytes]:
        """What follows the marker, or None if it has not come yet."""
        keep = len(self.marker) - 1
        window = self._tail + data
        at = window.find(self.marker)
        if at < 0:
            self._tail = window[-keep:]
            return None
        self._tail = b""
        return window[at + len(self.marker) :]


class _Session:
    """What one peer sent and was not yet cut into frames. Its first frame names its tag."""

    def __init__(self) -> None:
        self.tag: Optional[int] = None
        self.buffer = bytearray()
        self.is_lost = False
        """Its frame boundary is; nothing it sends can be understood any more."""


_DOUBTFUL_BYTES = 4
"""So much of a marker at the end of a read is kept until more comes, at the latest with the peer's next ping: it may
be a newcomer's, in the middle of the holder's frame. A shorter match is likelier to be the holder's own data."""


class SessionDecoder:
    """The guest's end of a stream that anybody may take over at any byte.

    Bytes belong to the holder until a marker with the pinned key begins the session of a newcomer. Its HELLO is to be
    answered with `settle`: accepted, it is the holder; refused, the former one goes on where it was interrupted, be
    it in the middle of a frame. Yields `DESYNC_SEEN` where the holder's boundary is lost.
    """

    DESYNC_SEEN = Frame(0, DESYNC, 0, b"")

    def __init__(self) -> None:
        self.key: Optional[bytes] = None
        self._marker = MAGIC
        self._holder = _Session()
        self._newcomer: Optional[_Session] = None
        self._stale_tags: List[int] = []
        self._tail = b""
        """The last bytes read: a marker may begin in one read and end in the next."""
        self._n_doubtful = 0
        """How many of the bytes read last look like the beginning of a marker, so are nobody's yet."""

    def feed(self, data: bytes) -> Iterator[Frame]:
        if self.key is None:
            data = self._pin_key(data)
        while data:
            before, after = self._split(data)
            reading = self._newcomer or self._holder
            if not reading.is_lost:
                reading.buffer += before
            for found in self._frames(reading):
                yield found
            if after is None:
                return
            self._newcomer = _Session()
            data = after

    def settle(self, *, accepted: bool) -> None:
        """Whether the newcomer holds the stream from now on."""
        newcomer = self._newcomer
        if newcomer is None:
            return
        self._newcomer = None
        loser, winner = (self._holder, newcomer) if accepted else (newcomer, self._holder)
        if loser.tag is not None:
            self._stale_tags = [*self._stale_tags[-7:], loser.tag]
        if not accepted:
            winner.buffer += loser.buffer
            loser.buffer.clear()
        self._holder = winner

    def resynchronise(self) -> None:
        """The next byte is the first of a header; whatever came before is void."""
        self._holder.buffer.clear()
        self._holder.is_lost = False

    def _pin_key(self, data: bytes) -> bytes:
        """Takes the key from the first marker; returns what follows the bytes before it, or nothing yet."""
        window = self._tail + data
        at = window.find(MAGIC)
        if at < 0 or len(window) < at + MARKER_BYTES:
            self._tail = window[at:] if at >= 0 else window[-(len(MAGIC) - 1) :]
            return b""
        self.key = window[at + len(MAGIC) : at + MARKER_BYTES]
        self._marker = MAGIC + self.key
        self._tail = b""
        return window[at:]

    def _split(self, data: bytes) -> Tuple[bytes, Optional[bytes]]:
        """What lies before the first marker in `data`, and what after it; None if there is none."""
        keep = MARKER_BYTES - 1
        self._n_doubtful = 0
        seam = (self._tail + data[:keep]).find(self._marker)
        if seam >= 0:
            n_begun = len(self._tail) - seam
            reading = self._newcomer or self._holder
            del reading.buffer[max(len(reading.buffer) - n_begun, 0) :]
            self._tail = b""
            return b"", data[MARKER_BYTES - n_begun :]
        at = data.find(self._marker)
        if at >= 0:
            self._tail = b""
            return data[:at], data[at + MARKER_BYTES :]
        self._tail = data[-keep:] if len(data) >= keep else (self._tail + data)[-keep:]
        at = self._tail.rfind(MAGIC[:_DOUBTFUL_BYTES])
        if at >= 0 and self._marker.startswith(self._tail[at:]):
            self._n_doubtful = len(self._tail) - at
        return data, None

    def _frames(self, session: _Session) -> Iterator[Frame]:
        """Every whole frame. `settle` may be called in between, and hand the rest of the bytes to another session."""
        while not session.is_lost and len(session.buffer) - self._n_doubtful >= HEADER.size:
            tag, length, channel, kind, flags, reserved = HEADER.unpack_from(session.buffer)
            if session.tag is None:
                session.tag = tag
            if length > MAX_PAYLOAD or reserved or (tag != session.tag and tag not in self._stale_tags):
                session.is_lost = True
                session.buffer.clear()
                yield self.DESYNC_SEEN
                return
            stop = HEADER.size + length
            if stop > len(session.buffer) - self._n_doubtful:
                return
            payload = bytes(memoryview(session.buffer)[HEADER.size : stop])
            del session.buffer[:stop]
            if tag == session.tag:
                yield Frame(channel, kind, flags, payload)
            if session is not self._newcomer and session is not self._holder:
                session = self._holder
