"""Moves a file or tree to another file system: `{source, target}`.

It is copied to a temporary name beside the target, renamed, and only then deleted at the source, so that at every
moment one of the two is whole. Modes, times and symlinks are kept; hard links become files of their own.
"""

import contextlib
import os
import stat
from typing import Any, Dict

from sandbox.guest.jobs import stopping
from sandbox.guest.jobs.remove import remove
from sandbox.guest.jobs.stream import CHUNK_BYTES, write_all
from sandbox.guest.refusal import Refusal, from_os_error


def run(request: Dict[str, Any]) -> Dict[str, Any]:
    source: str = request["source"]
    target: str = request["target"]
    directory, name = os.path.split(target.rstrip("/"))
    staged = os.path.join(directory, ".%.200s.boatyard-%d" % (name, os.getpid()))
    stopping.on_sigterm("the move was stopped")
    try:
        _copy(source, staged)
        stopping.ignore_sigterm()  # once it has its name it is moved, and must be told as such
        os.rename(staged, target)
    except BaseException as error:
        stopping.ignore_sigterm()
        _discard(staged)
        if isinstance(error, OSError):
            raise from_os_error(error, error.filename if isinstance(error.filename, str) else target) from None
        raise
    try:
        remove(source)
    except OSError as error:
        refusal = from_os_error(error, source)
        message = "it was copied to %s, but not deleted: %s" % (target, refusal.message)
        raise Refusal(refusal.code, message, took_effect=True) from None
    return {}


def _discard(path: str) -> None:
    with contextlib.suppress(OSError):
        remove(path)


def _copy(source: str, target: str) -> None:
    found = os.lstat(source)
    kind = stat.S_IFMT(found.st_mode)
    if kind == stat.S_IFLNK:
        os.symlink(os.readlink(source), target)
    elif kind == stat.S_IFDIR:
        os.mkdir(target, 0o700)
        with os.scandir(source) as entries:
            for entry in entries:
                _copy(entry.path, os.path.join(target, entry.name))
        os.chmod(target, stat.S_IMODE(found.st_mode))
    elif kind == stat.S_IFREG:
        _copy_file(source, target, stat.S_IMODE(found.st_mode))
    elif kind == stat.S_IFIFO:
        os.mkfifo(target, stat.S_IMODE(found.st_mode))
    else:
        raise Refusal("not_regular_file", "%s: a socket or device cannot be moved to another file system" % source)
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns), follow_symlinks=False)


def _copy_file(source: str, target: str, mode: int) -> None:
    reading = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while True:
                data = os.read(reading, CHUNK_BYTES)
                if not data:
                    break
                write_all(data, writing)
            os.fchmod(writing, mode)
        finally:
            os.close(writing)
    finally:
        os.close(reading)
