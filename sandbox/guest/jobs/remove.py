"""Deletes a file, a link or a whole tree: `{path}` -> `{n_removed}`.

Works by directory descriptors, so a symlink swapped in meanwhile is deleted, not followed. Entries that vanish are
nobody's problem. Own directories without the bits to be emptied get them.
"""

import contextlib
import os
import stat
from typing import Any, Dict

from sandbox.guest.jobs import stopping
from sandbox.guest.refusal import from_os_error

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# One descriptor is open for each level; what lies deeper is first moved up to the top of the tree.
MAX_DEPTH = 100


def run(request: Dict[str, Any]) -> Dict[str, Any]:
    path: str = request["path"]
    try:
        return {"n_removed": remove(path)}
    except OSError as error:
        raise from_os_error(error, _named(path, error)) from None


def remove(path: str) -> int:
    """Raises: OSError, FileNotFoundError where there was nothing."""
    directory, name = os.path.split(path.rstrip("/"))
    parent = os.open(directory or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=parent)
            return 1
        tree = _Tree()
        tree.remove(parent, name)
        return tree.n_removed
    finally:
        os.close(parent)


def _named(path: str, error: OSError) -> str:
    """What could not be deleted: a descriptor knows only the last name of it."""
    name = error.filename
    if not isinstance(name, str) or name in (path, os.path.basename(path)):
        return path
    return "%s/…/%s" % (path, name)


class _Tree:
    def __init__(self) -> None:
        self.n_removed = 0
        self._top = -1
        self._n_moved = 0

    def remove(self, parent: int, name: str, depth: int = 0) -> None:
        try:
            fd = _open_directory(parent, name)
        except FileNotFoundError:
            return
        if depth == 0:
            self._top = fd
        try:
            while self._remove_content(fd, depth):
                pass
        finally:
            os.close(fd)
        if depth == 0:
            stopping.ignore_sigterm()  # without its last directory it is deleted, and must be told as such
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(name, dir_fd=parent)
            self.n_removed += 1

    def _remove_content(self, fd: int, depth: int) -> bool:
        """One pass over a directory; whether there was anything in it."""
        anything = False
        with os.scandir(fd) as entries:
            for entry in entries:
                anything = True
                try:
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.name, dir_fd=fd)
                        self.n_removed += 1
                    elif depth < MAX_DEPTH:
                        self.remove(fd, entry.name, depth + 1)
                    else:
                        self._move_up(fd, entry.name)
                except (FileNotFoundError, NotADirectoryError):
                    continue  # it vanished, or became something else: the next pass sees what it is
        return anything

    def _move_up(self, fd: int, name: str) -> None:
        _make_usable(fd, name)
        self._n_moved += 1
        os.rename(name, ".boatyard-deep-%d-%d" % (os.getpid(), self._n_moved), src_dir_fd=fd, dst_dir_fd=self._top)


def _open_directory(parent: int, name: str) -> int:
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=parent)
    except PermissionError:
        _make_usable(parent, name)
        return os.open(name, _DIRECTORY, dir_fd=parent)
    mode = os.fstat(fd).st_mode
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        with contextlib.suppress(PermissionError):
            os.fchmod(fd, stat.S_IMODE(mode) | stat.S_IRWXU)
    return fd


def _make_usable(parent: int, name: str) -> None:
    """Gives the owner all bits of a directory. It may not be readable, so it is opened by O_PATH, and changed by name
    in /proc because fchmod does not take such a descriptor."""
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        os.chmod("/proc/self/fd/%d" % fd, mode | stat.S_IRWXU)
    finally:
        os.close(fd)
