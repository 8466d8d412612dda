"""A tar read once, forwards, from fd 0; gzip is recognised. Headers are tarfile's business, content never is."""

import gzip
import io
import os
import tarfile
import zlib
from typing import Any, BinaryIO, Iterator, List, Tuple, cast

from sandbox.guest.jobs.stream import CHUNK_BYTES, STDIN, write_all
from sandbox.guest.refusal import Refusal

# Long names and attributes of one entry; tarfile would hold any size in memory.
MAX_HEADER_BYTES = 1 << 20


class Tape:
    def __init__(self, fd: int = STDIN) -> None:
        raw = io.BufferedReader(io.FileIO(fd, "rb", closefd=False), 1 << 16)
        self._source = raw
        if raw.peek(1)[:1] == b"\x1f":
            self._source = cast(io.BufferedReader, gzip.GzipFile(fileobj=raw))
        self._position = 0
        self._last = b""
        self._buffer = memoryview(bytearray(CHUNK_BYTES))

    def entries(self) -> Iterator[tarfile.TarInfo]:
        """Each entry of the tar; its content is to be copied, or is skipped. Raises: Refusal (invalid_argument)."""
        tar = None
        while True:
            try:
                if tar is None:
                    tar = tarfile.TarFile(fileobj=cast(BinaryIO, self), encoding="utf-8", errors="surrogateescape")
                else:
                    self.seek(tar.offset)
                info = tar.next()
                cast(Any, tar).members = []  # it would keep every entry
            except (tarfile.TarError, ValueError, ArithmeticError, LookupError, EOFError, zlib.error) as error:
                raise Refusal("invalid_argument", "the upload is not a whole tar: %s" % error) from None
            if info is None:
                break
            yield info
        if self._last != bytes(tarfile.BLOCKSIZE):
            raise Refusal("invalid_argument", "the upload is not a whole tar: it has no end mark")
        while self._fill(self._buffer):
            pass

    def copy(self, info: tarfile.TarInfo, fd: int) -> None:
        """Writes the content of the entry that was just given, holes included, to a file."""
        extents = cast(List[Tuple[int, int]], info.sparse) or [(0, info.size)]
        for offset, size in extents:
            if offset != os.lseek(fd, 0, os.SEEK_CUR):
                os.lseek(fd, offset, os.SEEK_SET)
            while size:
                n = self._fill(self._buffer[: min(size, CHUNK_BYTES)])
                if not n:
                    raise Refusal("invalid_argument", "the upload is not a whole tar: %s is cut short" % info.name)
                write_all(self._buffer[:n], fd)
                size -= n
        if info.sparse:
            os.ftruncate(fd, info.size)

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MAX_HEADER_BYTES:
            raise ValueError("a header of %d bytes" % size)
        data = bytearray()
        while len(data) < size:
            n = self._fill(self._buffer[: size - len(data)])
            if not n:
                break
            data += self._buffer[:n]
        self._last = bytes(data)
        return self._last

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = io.SEEK_SET) -> None:
        if whence != io.SEEK_SET or position < self._position:
            raise ValueError("an entry of negative size")
        while self._position < position:
            if not self._fill(self._buffer[: min(position - self._position, CHUNK_BYTES)]):
                raise EOFError("it is cut short")

    def _fill(self, view: memoryview) -> int:
        try:
            n = self._source.readinto(view)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise Refusal("invalid_argument", "the upload is not whole gzip data: %s" % error) from None
        self._position += n
        return n
