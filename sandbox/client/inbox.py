"""What a guest sent on a channel and nobody has taken yet: in order, and in little more memory than its bytes."""

import struct
from collections import deque

EVENT = 0xFF
"""The label of an EVENT; a DATA's is its stream."""
MARK = struct.Struct("!BI")
_LARGE = 4096
_JOINED = 64 << 10


class Inbox:
    """A command may write single bytes to two streams by turns, and a guest may cut what it sends as small as it likes:
    an object for each piece would take fifty times the memory that was granted. So small pieces lie in one buffer,
    each behind a mark of five bytes with its label and length; of a large one only the mark does."""

    def __init__(self) -> None:
        self._packed = bytearray()
        self._large: deque[bytes] = deque()

    def __bool__(self) -> bool:
        return bool(self._packed)

    def put(self, label: int, payload: bytes) -> None:
        self._packed += MARK.pack(label, len(payload))
        if len(payload) < _LARGE:
            self._packed += payload
        else:
            self._large.append(payload)

    def pop(self) -> tuple[int, bytes]:
        """The label and bytes of what came first; pieces of one stream that follow each other are joined."""
        label, piece = self._next()
        pieces, n_bytes = [piece], len(piece)
        while label != EVENT and n_bytes < _JOINED and self._packed and self._packed[0] == label:
            _, piece = self._next()
            pieces.append(piece)
            n_bytes += len(piece)
        return label, b"".join(pieces)

    def _next(self) -> tuple[int, bytes]:
        label, n_bytes = MARK.unpack_from(self._packed)
        stop = MARK.size + (n_bytes if n_bytes < _LARGE else 0)
        payload = bytes(self._packed[MARK.size : stop]) if n_bytes < _LARGE else self._large.popleft()
        del self._packed[:stop]
        return label, payload
