"""Frames: how bytes on a guest stream become messages. Used at both ends, so Python 3.8 and nothing but the library.

Owns the header, the marker that starts a session and the incremental decoders. Knows no operation and no channel's
state. `docs/decisions/wire.md` is the page behind it.
"""

import json
import struct
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Union, cast

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


class SessionDecoder:
    """The guest's end: frames of the current session, restarted by any marker with the pinned key.

    Yields `DESYNC_SEEN` where the boundary was lost. A HELLO frame is to be answered with `settle`.
    """

    DESYNC_SEEN = Frame(0, DESYNC, 0, b"")

    def __init__(self) -> None:
        self.key: Optional[bytes] = None
        self._marker = MAGIC
        self._buffer = bytearray()
        self._tail = b""
        self._tag: Optional[int] = None
        self._previous_tag: Optional[int] = None
        self._old_tags: List[int] = []
        self._synced = False
        self._interrupted = b""
        """What the current session had sent when the last marker came."""
        self._resumed: Optional[bytes] = None

    def feed(self, data: bytes) -> Iterator[Frame]:
        if self.key is None:
            data = self._pin_key(data)
        if self.key is None:
            self._buffer += data
            return iter(())
        at = self._find_marker(data)
        if at >= 0:
            self._restart(bytes(self._buffer) + data[:at], data[at:])
        else:
            self._buffer += data
        return self._frames()

    def settle(self, *, accepted: bool) -> None:
        """Whether the session that the last marker began is the one to listen to from now on."""
        stale = self._previous_tag if accepted else self._tag
        if not accepted:
            self._tag = self._previous_tag
            self._resumed = self._interrupted
        self._interrupted = b""
        if stale is not None:
            self._old_tags = [*self._old_tags[-7:], stale]

    def resynchronise(self) -> None:
        """The next byte is the first of a header; whatever came before is void."""
        self._buffer = bytearray()
        self._synced = True

    def _pin_key(self, data: bytes) -> bytes:
        """Takes the key from the first marker; returns what is to be decoded, from that marker on."""
        window = bytes(self._buffer) + data
        self._buffer.clear()
        at = window.find(MAGIC)
        if at < 0:
            return window[-(len(MAGIC) - 1) :]
        if len(window) >= at + MARKER_BYTES:
            self.key = window[at + len(MAGIC) : at + MARKER_BYTES]
            self._marker = MAGIC + self.key
        return window[at:]

    def _find_marker(self, data: bytes) -> int:
        """The index in `data` just after the last marker that ends in it, or -1."""
        keep = MARKER_BYTES - 1
        at = data.rfind(self._marker)
        if at >= 0:
            at += MARKER_BYTES
        else:
            seam = self._tail + data[:keep]
            begun = seam.find(self._marker)
            at = begun + MARKER_BYTES - len(self._tail) if begun >= 0 else -1
        # What follows may hold the beginning of yet another one.
        if at >= 0:
            self._tail = data[max(at, len(data) - keep) :]
        else:
            self._tail = data[-keep:] if len(data) >= keep else (self._tail + data)[-keep:]
        return at

    def _restart(self, before: bytes, rest: bytes) -> None:
        if self._tag is not None:
            self._previous_tag = self._tag
            self._interrupted = before[:-MARKER_BYTES] if self._synced else b""
        self._tag = None
        self._synced = True
        self._buffer = bytearray(rest)

    def _frames(self) -> Iterator[Frame]:
        buffer = self._buffer
        at = 0
        try:
            while self._synced:
                if self._resumed is not None:
                    # A newcomer was refused; it may have come in the middle of one of the holder's frames.
                    buffer[:at], at, self._resumed = self._resumed, 0, None
                if len(buffer) - at < HEADER.size:
                    return
                tag, length, channel, kind, flags, reserved = HEADER.unpack_from(buffer, at)
                if self._tag is None:
                    self._tag = tag
                if length > MAX_PAYLOAD or reserved or (tag != self._tag and tag not in self._old_tags):
                    self._synced = False
                    at = len(buffer)
                    yield self.DESYNC_SEEN
                    return
                stop = at + HEADER.size + length
                if stop > len(buffer):
                    return
                payload = bytes(memoryview(buffer)[at + HEADER.size : stop])
                at = stop
                if tag == self._tag:
                    yield Frame(channel, kind, flags, payload)
        finally:
            if self._synced:
                del buffer[:at]
            else:
                self._buffer = bytearray()
