"""What commands said, kept within bounds: a little in memory, then a capped file, then the last bytes in a ring."""

import contextlib
import os
from typing import List, Optional, Tuple

IN_MEMORY = 16 << 10
RING = 256 << 10
_PAGE = 4096
"""A file's last page is charged whole by the file system."""


class OutputStore:
    """The directory of recorded output and its budget. The oldest file of an ended command goes first, and not before
    its room is needed: whoever was told its path may read it, though the command itself is forgotten."""

    def __init__(self, directory: str, budget: int) -> None:
        self.directory = directory
        self.budget = budget
        self._used = 0
        self._files: List["Recorder"] = []

    @property
    def file_cap(self) -> int:
        return self.budget // 2

    def add(self, recorder: "Recorder") -> None:
        if not self.take(_PAGE):
            self._used += _PAGE
        self._files.append(recorder)

    def take(self, n_bytes: int) -> bool:
        """Room for so many more bytes, after deleting what is over."""
        while self._used + n_bytes > self.budget:
            oldest = next((r for r in self._files if r.ended and not r.n_readers), None)
            if oldest is None:
                return False
            oldest.discard_file()
        self._used += n_bytes
        return True

    def untake(self, n_bytes: int) -> None:
        self._used -= n_bytes

    def give_back(self, recorder: "Recorder", n_bytes: int) -> None:
        self._used -= n_bytes + _PAGE
        self._files.remove(recorder)


class Recorder:
    """One output stream: bytes with offsets from 0."""

    def __init__(self, store: OutputStore, name: str) -> None:
        self.total = 0
        self.ended = False
        self.n_readers = 0
        """While somebody reads it, its file is not deleted for room."""
        self.path: Optional[str] = None
        self.file_truncated = False
        self._store = store
        self._name = name
        self._memory = bytearray()
        self._fd = -1
        self._in_file = 0
        """What the file holds and the store counts, whether we still have it open or not."""
        self._ring = bytearray()

    def append(self, data: bytes, *, trim: bool = True) -> None:
        """`trim=False`: the ring may grow by it, so that nothing is lost."""
        self.total += len(data)
        if self._fd < 0 and not self.file_truncated:
            if self.total <= IN_MEMORY:
                self._memory += data
                return
            self._spill()
        taken = self._write(data)
        if taken < len(data):
            self.file_truncated = True
            self._ring += data[taken:]
            if trim:
                del self._ring[: -2 * RING]

    @property
    def next_loss(self) -> Optional[int]:
        """The lowest offset that would go if a ring's worth more were appended; None while the file grows."""
        return max(self.total - RING, self._in_file) if self.file_truncated else None

    def read(self, offset: int, limit: int) -> Tuple[int, bytes]:
        """Up to `limit` bytes from `offset`, or from the first recorded byte after it: (where, what)."""
        if offset < len(self._memory):
            return offset, bytes(self._memory[offset : offset + limit])
        if self._fd >= 0 and offset < self._in_file:
            return offset, os.pread(self._fd, min(limit, self._in_file - offset), offset)
        start = self.total - len(self._ring)
        offset = max(offset, start)
        return offset, bytes(self._ring[offset - start : offset - start + limit])

    def release(self) -> None:
        """Nobody reads it through us any more. The file stays for the user, as long as there is room."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self.ended = True
        self._memory, self._ring = bytearray(), bytearray()

    def discard_file(self) -> None:
        if self.path is None:
            return
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        self._store.give_back(self, self._in_file)
        self.path = None
        self._in_file = 0
        self.file_truncated = True

    def _spill(self) -> None:
        path = os.path.join(self._store.directory, self._name)
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except OSError:
            self.file_truncated = True
            self._ring += self._memory
        else:
            self.path = path
            self._store.add(self)
            head = bytes(self._memory)
            taken = self._write(head)
            if taken < len(head):
                self.file_truncated = True
                self._ring += head[taken:]
        self._memory = bytearray()

    def _write(self, data: bytes) -> int:
        if self._fd < 0 or self.file_truncated:
            return 0
        room = min(len(data), self._store.file_cap - self._in_file)
        if room <= 0 or not self._store.take(room):
            return 0
        try:
            written = os.write(self._fd, memoryview(data)[:room])
        except OSError:
            written = 0
        self._store.untake(room - written)
        self._in_file += written
        return written
