"""File operations that are over in a moment, done in the loop with the user's rights.

Nothing here may block for long: files are opened without waiting (a pipe would), only regular ones are read, and
what is big goes piece by piece. Whatever walks a tree or runs a pattern is a job instead.
"""

import contextlib
import errno
import os
import stat as stat_module
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional

from sandbox import edit as text_edit
from sandbox import wire
from sandbox.guest.accounts import Account, acting_as
from sandbox.guest.channel import CHUNK, Channel
from sandbox.guest.refusal import Refusal, from_os_error
from sandbox.guest.requests import Requests

if TYPE_CHECKING:
    from sandbox.guest.peer import Peer

MAX_EDIT = 16 << 20
MAX_EDITED = 64 << 20
_WRITE_WINDOW = 2 << 20
_ENTRIES_PER_SLICE = 256


def describe(path: str, found: os.stat_result, target: Optional[str]) -> List[Any]:
    """What `FileInfo` is made of; a list, because directories have many."""
    mode = found.st_mode
    if stat_module.S_ISREG(mode):
        kind = "file"
    elif stat_module.S_ISDIR(mode):
        kind = "directory"
    elif stat_module.S_ISLNK(mode):
        kind = "symlink"
    else:
        kind = "other"
    return [path, kind, found.st_size, found.st_mtime_ns, mode & 0o7777, found.st_uid, found.st_gid, target]


def _described(path: str, follow: bool) -> List[Any]:
    found = os.stat(path) if follow else os.lstat(path)
    target = os.readlink(path) if stat_module.S_ISLNK(found.st_mode) else None
    return describe(path, found, target)


def _open_regular(path: str, flags: int) -> int:
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    mode = os.fstat(fd).st_mode
    if stat_module.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat_module.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.ENXIO, os.strerror(errno.ENXIO), path)


def _make_parents(path: str) -> None:
    directory = os.path.dirname(path)
    try:
        os.makedirs(directory, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory) from None


class Files:
    """`trees` are the directories out of which a symlink must not lead a write."""

    def __init__(self, trees: List[str]) -> None:
        self.trees = trees
        self._n_temporary = 0

    def stat(self, request: Dict[str, Any]) -> Dict[str, Any]:
        return {"info": _described(request["path"], bool(request.get("follow", True)))}

    def mkdir(self, request: Dict[str, Any]) -> Dict[str, Any]:
        path = request["path"]
        try:
            if request.get("parents"):
                _make_parents(path)
            os.mkdir(path)
        except FileExistsError:
            if not (request.get("exist_ok") and os.path.isdir(path)):
                raise
        return {}

    def move(self, request: Dict[str, Any]) -> Dict[str, Any]:
        self._prepare_move(request)
        os.rename(request["source"], request["target"])
        return {}

    def crosses(self, request: Dict[str, Any]) -> bool:
        """Whether a move leads to another file system, where a job must copy."""
        try:
            device = os.lstat(request["source"]).st_dev
            there = request["target"]
            while not os.path.lexists(there):
                there = os.path.dirname(there)
            if os.stat(there if there != request["target"] else os.path.dirname(there)).st_dev == device:
                return False
        except OSError:
            return False  # the move itself says what is wrong
        self._prepare_move(request)
        return True

    def _prepare_move(self, request: Dict[str, Any]) -> None:
        source, target = request["source"], request["target"]
        os.lstat(source)
        try:
            found = os.lstat(target)
        except FileNotFoundError:
            _make_parents(target)
        else:
            if not request.get("overwrite") or stat_module.S_ISDIR(found.st_mode):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        if target.startswith(source + "/"):
            raise Refusal("invalid_argument", f"{source}: cannot be moved into itself")

    def delete(self, request: Dict[str, Any]) -> Dict[str, Any]:
        path = request["path"]
        try:
            if stat_module.S_ISDIR(os.lstat(path).st_mode):
                os.rmdir(path)
            else:
                os.unlink(path)
        except FileNotFoundError:
            if not request.get("missing_ok"):
                raise
        return {}

    def edit(self, request: Dict[str, Any]) -> Dict[str, Any]:
        path = self.writable_path(request["path"])
        fd = _open_regular(path, os.O_RDONLY)
        with os.fdopen(fd, "rb") as file:
            if os.fstat(fd).st_size > MAX_EDIT:
                raise Refusal("too_large", f"{path}: larger than {MAX_EDIT >> 20} MiB; edit it with a command")
            content = file.read()
        n_found = content.count(request["old"].encode("utf-8", "surrogatepass"))
        if n_found * len(request["new"]) > MAX_EDITED:
            raise Refusal("too_large", f"{path}: the edit would make it larger than {MAX_EDITED >> 20} MiB")
        try:
            changed, n_replaced = text_edit.replace(
                content, request["old"], request["new"], bool(request.get("replace_all"))
            )
        except text_edit.NotFoundInText as error:
            raise Refusal("edit_not_found", f"{path}: {error}") from None
        except text_edit.NotUnique as error:
            raise Refusal("edit_not_unique", f"{path}: {error}") from None
        except text_edit.EditError as error:
            raise Refusal("invalid_argument", f"{path}: {error}") from None
        pending = PendingFile(self, path, atomic=True, overwrite=True, mode=None)
        try:
            pending.write(changed)
            return {"info": describe(path, pending.commit(), None), "n_replaced": n_replaced}
        except BaseException:
            pending.abandon()
            raise

    def writable_path(self, path: str) -> str:
        """Where a write to `path` goes. Links are followed inside the tree they are in, never out of it."""
        real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        if os.path.islink(real):
            real = os.path.realpath(real)
        for tree in self.trees:
            if _within(path, tree) and not _within(real, os.path.realpath(tree)):
                raise Refusal(
                    "path_escapes", f"{path}: a symbolic link leads out of {tree}; write to its target by name"
                )
        return real

    def temporary_name(self) -> str:
        self._n_temporary += 1
        return f".boatyard-{os.getpid()}-{self._n_temporary}.tmp"


def _within(path: str, tree: str) -> bool:
    return path == tree or path.startswith(tree.rstrip("/") + "/")


class PendingFile:
    """A file on its way: written beside its place and renamed into it, or in place where so asked."""

    def __init__(self, files: Files, path: str, *, atomic: bool, overwrite: bool, mode: Optional[int]) -> None:
        self.path = path
        self._overwrite = overwrite
        self._directory = os.path.dirname(path)
        _make_parents(path)
        existing = self._existing_mode()
        self._mode = mode if mode is not None else existing
        self._temporary: Optional[str] = None
        self._leftover = path if existing is None else None
        """What is to go if it comes to nothing."""
        if atomic:
            self._temporary = self._leftover = os.path.join(self._directory, files.temporary_name())
            if existing is not None and not os.access(path, os.W_OK, effective_ids=True) and os.path.lexists(path):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            self.fd = os.open(
                self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644
            )
        elif existing is None:
            self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        else:
            self.fd = _open_regular(path, os.O_WRONLY | os.O_TRUNC)

    def _existing_mode(self) -> Optional[int]:
        try:
            found = os.lstat(self.path).st_mode
        except FileNotFoundError:
            return None
        if not self._overwrite:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.path)
        if stat_module.S_ISDIR(found):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.path)
        if not stat_module.S_ISREG(found):
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO), self.path)
        return stat_module.S_IMODE(found)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view) :]

    def commit(self) -> os.stat_result:
        """What it is now. Raises: OSError; it has not become the file then."""
        if self._mode is not None:
            os.fchmod(self.fd, self._mode & 0o777)
        found = os.fstat(self.fd)
        fd, self.fd = self.fd, -1
        os.close(fd)
        if self._temporary is not None:
            if self._overwrite:
                os.rename(self._temporary, self.path)
            else:
                os.link(self._temporary, self.path)
                with contextlib.suppress(OSError):
                    os.unlink(self._temporary)
        self._leftover = None  # from here on it is the file, and not ours to take back
        return found

    def abandon(self) -> None:
        """Leaves nothing half-done behind, as far as that can be had in place."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self._leftover is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._leftover)


class ReadChannel(Channel):
    def __init__(self, peer: "Peer", number: int, request: Dict[str, Any], account: Account) -> None:
        super().__init__(peer, number, request)
        self._path: str = request["path"]
        self._offset = int(request.get("offset", 0))
        limit = request.get("limit")
        with acting_as(account):
            self._fd = _open_regular(self._path, os.O_RDONLY)
        self._left: Optional[int] = None if limit is None else int(limit)

    def pump(self) -> None:
        while self._fd >= 0:
            wanted = CHUNK if self._left is None else min(self._left, CHUNK)
            room = min(self.room, wanted)
            if room <= 0 and wanted:
                return
            try:
                data = os.pread(self._fd, room, self._offset) if wanted else b""
            except OSError as error:
                self.on_close()
                self.fail(from_os_error(error, self._path))
                return
            if not data:
                self.on_close()
                self.finish()
                return
            self._offset += len(data)
            if self._left is not None:
                self._left -= len(data)
            self.send(data)

    def on_close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class WriteChannel(Channel):
    def __init__(
        self,
        peer: "Peer",
        number: int,
        request: Dict[str, Any],
        files: Files,
        account: Account,
        requests: Requests,
    ) -> None:
        super().__init__(peer, number, request)
        self._account = account
        self._requests = requests
        self._id = request.get("id")
        self._shown: str = request["path"]
        mode = request.get("mode")
        with acting_as(account):
            self._pending: Optional[PendingFile] = PendingFile(
                files,
                files.writable_path(self._shown),
                atomic=bool(request.get("atomic", True)),
                overwrite=bool(request.get("overwrite", True)),
                mode=mode,
            )
        if request.get("large"):
            self.grant(_WRITE_WINDOW)

    def on_data(self, stream: int, data: bytes, end: bool) -> None:
        pending = self._pending
        if pending is None:
            return
        try:
            pending.write(data)
            if end:
                self._commit(pending)
            else:
                self.grant(len(data))
        except OSError as error:
            self.on_close()
            self.fail(from_os_error(error, self._shown))

    def _commit(self, pending: PendingFile) -> None:
        with acting_as(self._account):
            found = pending.commit()
        self._pending = None
        answer = {"info": describe(self._shown, found, None)}
        self._requests.keep(self._id, {"ok": answer})
        self.finish(answer)

    def on_close(self) -> None:
        self._requests.drop(self._id)
        if self._pending is not None:
            with acting_as(self._account):
                self._pending.abandon()
            self._pending = None


class ListChannel(Channel):
    """The entries as JSON lines, in the order of the directory; the receiver sorts."""

    def __init__(self, peer: "Peer", number: int, request: Dict[str, Any], account: Account) -> None:
        super().__init__(peer, number, request)
        self._path: str = request["path"]
        self._account = account
        with acting_as(account):
            self._entries: Optional[Iterator["os.DirEntry[str]"]] = os.scandir(self._path)
        self._ready = b""

    def pump(self) -> None:
        """One slice a turn of the loop, so that a hundred thousand entries hold nobody up."""
        if not self._ready and self._entries is not None:
            self._ready = self._slice()
        while self._ready:
            room = self.room
            if room <= 0:
                return
            piece, self._ready = self._ready[:room], self._ready[room:]
            self.send(piece)
        if not self.open:
            return
        if self._entries is None:
            self.finish()
        else:
            self.peer.loop.call_soon(lambda: self.attempt(self.pump))

    def _slice(self) -> bytes:
        entries = self._entries
        lines: List[bytes] = []
        with acting_as(self._account):
            for _ in range(_ENTRIES_PER_SLICE):
                entry = next(entries, None) if entries is not None else None
                if entry is None:
                    self._entries = None
                    break
                try:
                    found = entry.stat(follow_symlinks=False)
                    target = os.readlink(entry.path) if entry.is_symlink() else None
                except OSError:
                    continue  # it vanished meanwhile
                lines.append(wire.pack_json(describe(entry.name, found, target)))
        return b"\n".join(lines) + b"\n" if lines else b""

    def on_close(self) -> None:
        self._entries = None
