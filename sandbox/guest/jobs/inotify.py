"""The kernel's inotify, by ctypes: add, remove and read watches, nothing more."""

import ctypes
import os
import struct
from typing import Iterator, NamedTuple, Optional

MODIFY = 0x2
ATTRIB = 0x4
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
UNMOUNT = 0x2000
OVERFLOW = 0x4000
IGNORED = 0x8000
ONLYDIR = 0x1000000
DONT_FOLLOW = 0x2000000
EXCL_UNLINK = 0x4000000
IS_DIRECTORY = 0x40000000

_HEADER = struct.Struct("iIII")


class RawEvent(NamedTuple):
    watch: int
    mask: int
    name: str


class Inotify:
    def __init__(self) -> None:
        """Raises: OSError."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), None)

    def add(self, path: str, mask: int) -> int:
        """The number of the watch; the one it has, where it is watched already. Raises: OSError."""
        return self._checked(self._libc.inotify_add_watch(self.fd, os.fsencode(path), ctypes.c_uint32(mask)), path)

    def remove(self, watch: int) -> None:
        self._libc.inotify_rm_watch(self.fd, watch)

    def read(self) -> Iterator[RawEvent]:
        """What has happened, until nothing is left to read."""
        while True:
            try:
                data = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                watch, mask, _, length = _HEADER.unpack_from(data, at)
                at += _HEADER.size
                name = data[at : at + length].split(b"\0", 1)[0]
                at += length
                yield RawEvent(watch, mask, os.fsdecode(name))

    def _checked(self, result: int, path: Optional[str]) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)
        return result
