"""Where a tar is extracted before anything of it shows, and what a tar may contain.

Every directory in the staging tree was made here, so no entry can be written through a link that came with the tar.
Symlinks are kept as they are, wherever they point (a virtual environment's lead to /usr): they are never followed.
"""

import contextlib
import os
import tarfile
from typing import Callable, Collection, Dict, List, Optional, Tuple

from sandbox.guest.jobs.tape import Tape
from sandbox.guest.refusal import Refusal

Names = Tuple[str, ...]
_DEFAULT_MODE = 0o755
_MAX_TIME = 1 << 33


class Staging:
    def __init__(self, root: str, target: str, reserved: str) -> None:
        os.mkdir(root, 0o700)
        self._root = root
        self._target = target
        self._reserved = reserved
        self._directories: Dict[Names, Optional[Tuple[int, float]]] = {(): None}
        self.n_entries = 0

    def add(self, info: tarfile.TarInfo, tape: Tape) -> None:
        """Raises: Refusal, OSError."""
        names = self._names(info.name)
        if info.isdir():
            self._directory(names)
            if names:
                self._directories[names] = (info.mode & 0o777, _time(info))
        elif not names:
            raise Refusal("invalid_argument", "the tar has an entry without a name")
        elif info.isreg():
            self._file(names, info, tape)
        elif info.issym():
            if not info.linkname or "\0" in info.linkname:
                raise Refusal("invalid_argument", "%s: a link to nowhere in the tar" % info.name)
            self._create(names, lambda path: os.symlink(info.linkname, path))
        elif info.islnk():
            self._hard_link(names, info)
        else:
            raise Refusal("invalid_argument", "%s: a device or pipe in a tar is not unpacked" % info.name)
        self.n_entries += 1

    def finish(self, merged: Collection[Names]) -> None:
        """Gives the directories, now in place, their modes and times; those that were there before keep theirs.

        Nothing fails any more: what somebody has deleted or locked meanwhile is as they want it.
        """
        for names in sorted(self._directories, key=len, reverse=True):
            if names and names not in merged:
                path = os.path.join(self._target, *names)
                mode, time = self._directories[names] or (_DEFAULT_MODE, None)
                with contextlib.suppress(OSError):
                    os.chmod(path, mode)
                    if time is not None:
                        os.utime(path, (time, time))

    def _file(self, names: Names, info: tarfile.TarInfo, tape: Tape) -> None:
        opened: List[int] = []
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._create(names, lambda path: opened.append(os.open(path, flags, 0o600)))
        fd = opened[0]
        try:
            tape.copy(info, fd)
            os.fchmod(fd, info.mode & 0o777)
            os.utime(fd, (_time(info), _time(info)))
        finally:
            os.close(fd)

    def _hard_link(self, names: Names, info: tarfile.TarInfo) -> None:
        source = self._names(info.linkname)
        if source == names:
            return
        path = os.path.join(self._root, *source)
        if source[:-1] not in self._directories or source in self._directories or not os.path.lexists(path):
            raise Refusal(
                "invalid_argument", "%s: a link to %s, which is no file earlier in the tar" % (info.name, info.linkname)
            )
        self._create(names, lambda new: os.link(path, new, follow_symlinks=False))

    def _create(self, names: Names, create: Callable[[str], object]) -> None:
        """Makes an entry that is not a directory; a later one of the same name replaces it."""
        self._directory(names[:-1])
        if names in self._directories:
            raise Refusal("is_directory", "%s is both a directory and a file in the tar" % "/".join(names))
        path = os.path.join(self._root, *names)
        try:
            create(path)
        except FileExistsError:
            os.unlink(path)
            create(path)

    def _directory(self, names: Names) -> None:
        if names in self._directories:
            return
        self._directory(names[:-1])
        try:
            os.mkdir(os.path.join(self._root, *names), 0o700)
        except FileExistsError:
            raise Refusal("path_escapes", "%s: the tar leads through a link or a file" % "/".join(names)) from None
        self._directories[names] = None

    def _names(self, name: str) -> Names:
        names = tuple(part for part in name.split("/") if part not in ("", "."))
        if name.startswith("/") or ".." in names:
            raise Refusal("path_escapes", "%s: a name in the tar leads out of %s" % (name, self._target))
        if "\0" in name or names[:1] == (self._reserved,):
            raise Refusal("invalid_argument", "%r is not a name that can be unpacked" % name)
        return names


def _time(info: tarfile.TarInfo) -> float:
    return min(max(info.mtime, 0), _MAX_TIME)
