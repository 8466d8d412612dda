"""A file or directory as an uncompressed tar on fd 1: `{path}` -> `{n_entries, n_skipped}`.

GNU format, because it takes names as the bytes they are. Hard links become files of their own. Sockets, devices,
pipes and what vanishes meanwhile are skipped and counted. Data goes from file to pipe inside the kernel.
"""

import os
import stat
from tarfile import BLOCKSIZE, DIRTYPE, GNU_FORMAT, SYMTYPE, TarInfo
from typing import Any, Dict

from sandbox.guest.jobs.stream import CHUNK_BYTES, STDOUT, write_all
from sandbox.guest.jobs.tree import walk
from sandbox.guest.refusal import from_os_error

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def run(request: Dict[str, Any]) -> Dict[str, Any]:
    path: str = request["path"]
    tar = _Tar()
    try:
        found = os.stat(path)
    except OSError as error:
        raise from_os_error(error, path) from None
    if stat.S_ISDIR(found.st_mode):
        for names, entry in walk(path):
            tar.add("/".join(names), entry.path)
    else:
        tar.add(os.path.basename(path), os.path.realpath(path))
    tar.close()
    return {"n_entries": tar.n_entries, "n_skipped": tar.n_skipped}


class _Tar:
    def __init__(self) -> None:
        self.n_entries = 0
        self.n_skipped = 0
        self._pending = bytearray()

    def add(self, name: str, path: str) -> None:
        try:
            self._add(name, path)
        except FileNotFoundError:
            self.n_skipped += 1
        except OSError as error:
            raise from_os_error(error, path) from None

    def _add(self, name: str, path: str) -> None:
        found = os.lstat(path)
        if stat.S_ISREG(found.st_mode):
            fd = os.open(path, _OPEN)
            try:
                found = os.fstat(fd)
                self._header(TarInfo(name), found, found.st_size)
                self._content(fd, found.st_size)
            finally:
                os.close(fd)
        elif stat.S_ISDIR(found.st_mode):
            info = TarInfo(name + "/")
            info.type = DIRTYPE
            self._header(info, found)
        elif stat.S_ISLNK(found.st_mode):
            info = TarInfo(name)
            info.type = SYMTYPE
            info.linkname = os.readlink(path)
            self._header(info, found)
        else:
            self.n_skipped += 1

    def _header(self, info: TarInfo, found: os.stat_result, size: int = 0) -> None:
        info.size = size
        info.mode = stat.S_IMODE(found.st_mode)
        info.uid, info.gid = found.st_uid, found.st_gid
        info.mtime = int(found.st_mtime)
        self._pending += info.tobuf(GNU_FORMAT, "utf-8", "surrogateescape")
        self.n_entries += 1
        if len(self._pending) >= CHUNK_BYTES:
            self._flush()

    def _content(self, fd: int, size: int) -> None:
        """Exactly `size` bytes and the padding, whatever becomes of the file meanwhile: the header has promised it."""
        if size < 65536:
            data = os.read(fd, size)
            self._pending += data + bytes(size - len(data))
        else:
            self._flush()
            n_missing = size - _send(fd, size)
            while n_missing:
                n_zeros = min(n_missing, CHUNK_BYTES)
                write_all(bytes(n_zeros))
                n_missing -= n_zeros
        self._pending += bytes(-size % BLOCKSIZE)

    def _flush(self) -> None:
        write_all(self._pending)
        self._pending = bytearray()

    def close(self) -> None:
        self._pending += bytes(2 * BLOCKSIZE)
        self._flush()


def _send(fd: int, size: int) -> int:
    n_sent = 0
    try:
        while n_sent < size:
            n = os.sendfile(STDOUT, fd, n_sent, min(size - n_sent, CHUNK_BYTES))
            if not n:
                break
            n_sent += n
        return n_sent
    except OSError:
        # Some file systems and runtimes have no sendfile; what it has sent stays sent.
        os.lseek(fd, n_sent, os.SEEK_SET)
    while n_sent < size:
        data = os.read(fd, min(size - n_sent, CHUNK_BYTES))
        if not data:
            break
        write_all(data)
        n_sent += len(data)
    return n_sent
