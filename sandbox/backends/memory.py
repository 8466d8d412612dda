"""Files in this process's memory, and nothing else: no commands, no links, no owners.

For tests, for scratch space, for an agent that needs no machine. Bounded in bytes; every method runs without a pause
inside, so callers in one event loop see each change whole.
"""

import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import TypeVar, cast

from sandbox import arguments, fallbacks, tars
from sandbox.errors import (
    AlreadyExists,
    DirectoryNotEmpty,
    InvalidArgument,
    IsDirectory,
    NoSpace,
    NotDirectory,
    NotFound,
    PermissionDenied,
    RequestConflict,
)
from sandbox.paths import resolve
from sandbox.protocol import PathLike
from sandbox.types import (
    HOME,
    MIB,
    WORKSPACE,
    EditResult,
    FileInfo,
    FileKind,
    GlobResult,
    GrepMode,
    GrepResult,
    RequestId,
)

ENTRY_BYTES = 512
"""What a name costs, so that empty files are not free."""
MAX_KEPT_OUTCOMES = 4096
_PIECE_BYTES = 256 * 1024


@dataclass(slots=True, kw_only=True)
class _File:
    data: bytes
    mode: int
    modified_at: datetime


@dataclass(slots=True, kw_only=True)
class _Directory:
    modified_at: datetime
    entries: "dict[str, _File | _Directory]" = field(default_factory=dict[str, "_File | _Directory"])
    mode: int = 0o755


_Node = _File | _Directory
T = TypeVar("T")


def _now() -> datetime:
    return datetime.now(UTC)


class MemoryFiles:
    """`FileSystem`, `SupportsEdit`, `SupportsSearch` and `SupportsStreams`."""

    def __init__(self, *, max_bytes: int = 64 * MIB, clock: Callable[[], datetime] = _now) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._n_bytes = 0
        self._root = _Directory(modified_at=clock())
        self._outcomes: dict[RequestId, tuple[object, object]] = {}
        for path in (WORKSPACE, HOME, PurePosixPath("/tmp")):
            self._make_directory(path)

    async def ls(self, path: PathLike = ".") -> list[FileInfo]:
        where = resolve(path)
        node = self._find(where)
        if isinstance(node, _File):
            raise NotDirectory(f"{where}: is not a directory")
        return [_info(where / name, node.entries[name]) for name in sorted(node.entries)]

    async def stat(self, path: PathLike, *, follow: bool = True) -> FileInfo:
        where = resolve(path)
        return _info(where, self._find(where))

    async def read(self, path: PathLike, *, offset: int = 0, limit: int | None = None) -> bytes:
        begin, size = arguments.count("offset", offset), arguments.optional_count("limit", limit)
        data = self._file(resolve(path)).data
        return data[begin:] if size is None else data[begin : begin + size]

    async def write(
        self,
        path: PathLike,
        data: bytes | AsyncIterable[bytes],
        *,
        atomic: bool = True,
        overwrite: bool = True,
        mode: int | None = None,
        request_id: RequestId | None = None,
    ) -> FileInfo:
        where, bits = resolve(path), arguments.permission_bits(mode)
        content = await arguments.gather(data, self._max_bytes, self._no_space(where))
        request = ("write", where, hashlib.sha256(content).digest(), overwrite, bits)
        return self._once(request_id, request, lambda: self._write(where, content, overwrite, bits))

    async def mkdir(self, path: PathLike, *, parents: bool = True, exist_ok: bool = True) -> None:
        where = resolve(path)
        found = self._look(where)
        if isinstance(found, _File) or (found is not None and not exist_ok):
            raise AlreadyExists(f"{where}: already exists")
        if found is None:
            if not parents:
                self._find(where.parent)
            self._make_directory(where)

    async def move(
        self, source: PathLike, target: PathLike, *, overwrite: bool = False, request_id: RequestId | None = None
    ) -> None:
        here, there = resolve(source), resolve(target)
        request = ("move", here, there, overwrite)
        self._once(request_id, request, lambda: self._move(here, there, overwrite))

    async def delete(
        self,
        path: PathLike,
        *,
        recursive: bool = False,
        missing_ok: bool = False,
        request_id: RequestId | None = None,
    ) -> None:
        where = resolve(path)
        request = ("delete", where, recursive, missing_ok)
        self._once(request_id, request, lambda: self._delete(where, recursive, missing_ok))

    async def edit(
        self,
        path: PathLike,
        old: str,
        new: str,
        *,
        replace_all: bool = False,
        request_id: RequestId | None = None,
    ) -> EditResult:
        where = resolve(path)
        request = ("edit", where, old, new, replace_all)
        return self._once(request_id, request, lambda: self._edit(where, old, new, replace_all))

    async def glob(self, pattern: str, path: PathLike = ".", *, limit: int = 1000) -> GlobResult:
        return await fallbacks.generic_glob(self, pattern, path, limit=limit)

    async def grep(
        self,
        pattern: str,
        path: PathLike = ".",
        *,
        mode: GrepMode = GrepMode.FILES,
        literal: bool = False,
        ignore_case: bool = False,
        glob: str | None = None,
        context: int = 0,
        limit: int = 1000,
    ) -> GrepResult:
        return await fallbacks.GenericGrep(self)(
            pattern,
            path,
            mode=mode,
            literal=literal,
            ignore_case=ignore_case,
            glob=glob,
            context=context,
            limit=limit,
        )

    async def read_stream(self, path: PathLike, *, offset: int = 0, limit: int | None = None) -> AsyncIterator[bytes]:
        data = await self.read(path, offset=offset, limit=limit)
        for begin in range(0, len(data), _PIECE_BYTES):
            yield data[begin : begin + _PIECE_BYTES]

    def download(self, path: PathLike = ".") -> AsyncIterator[bytes]:
        return fallbacks.generic_download(self, path)

    async def upload(
        self, tar: bytes | AsyncIterable[bytes], path: PathLike = ".", *, request_id: RequestId | None = None
    ) -> int:
        where = resolve(path)
        content = await arguments.gather(tar, 2 * self._max_bytes + MIB, self._no_space(where))
        request = ("upload", where, hashlib.sha256(content).digest())
        return self._once(request_id, request, lambda: self._unpack(where, list(tars.entries(content))))

    # How it is done

    def _unpack(self, root: PurePosixPath, entries: list[tars.Entry]) -> int:
        """On a copy of the tree, which takes the place of the tree when all is well."""
        before, n_bytes = self._root, self._n_bytes
        self._root = _copy(before)
        try:
            self._make_directory(root)
            for entry in entries:
                target = root.joinpath(*entry.names)
                if entry.data is None:
                    self._make_directory(target)
                else:
                    self._write(target, entry.data, True, entry.mode)
        except BaseException:
            self._root, self._n_bytes = before, n_bytes
            raise
        return len(entries)

    def _write(self, where: PurePosixPath, content: bytes, overwrite: bool, mode: int | None) -> FileInfo:
        found = self._look(where)
        if isinstance(found, _Directory):
            raise IsDirectory(f"{where}: is a directory, not a file")
        if found is not None and not overwrite:
            raise AlreadyExists(f"{where}: already exists")
        if found is None:
            parent = self._make_directory(where.parent)
            self._charge(where, ENTRY_BYTES + len(content))
            found = parent.entries[where.name] = _File(data=b"", mode=0o644, modified_at=self._clock())
        else:
            self._charge(where, len(content) - len(found.data))
        found.data, found.modified_at = content, self._clock()
        if mode is not None:
            found.mode = mode
        return _info(where, found)

    def _edit(self, where: PurePosixPath, old: str, new: str, replace_all: bool) -> EditResult:
        content = self._file(where).data
        changed, n_replaced = fallbacks.edited(where, content, old, new, replace_all=replace_all)
        return EditResult(n_replaced=n_replaced, info=self._write(where, changed, True, None))

    def _move(self, here: PurePosixPath, there: PurePosixPath, overwrite: bool) -> None:
        node = self._find(here)
        if here in (there, *there.parents) and here != there:
            raise InvalidArgument(f"{here}: cannot be moved into itself")
        found = self._look(there)
        if found is not None and (not overwrite or isinstance(found, _Directory)):
            raise AlreadyExists(f"{there}: already exists")
        if here == there:
            return
        parent = self._make_directory(there.parent)
        self._n_bytes -= 0 if found is None else _size(found)
        del self._parent(here).entries[here.name]
        parent.entries[there.name] = node

    def _delete(self, where: PurePosixPath, recursive: bool, missing_ok: bool) -> None:
        if not where.name:
            raise PermissionDenied("/: the root cannot be deleted")
        found = self._look(where)
        if found is None:
            if missing_ok:
                return
            raise NotFound(f"{where}: there is no such file or directory")
        if isinstance(found, _Directory) and found.entries and not recursive:
            raise DirectoryNotEmpty(f"{where}: the directory is not empty; delete it recursively")
        self._n_bytes -= _size(found)
        del self._parent(where).entries[where.name]

    def _look(self, path: PurePosixPath) -> _Node | None:
        """Raises: NotDirectory (a file stands in the way)."""
        node: _Node = self._root
        for name in path.parts[1:]:
            if isinstance(node, _File):
                raise NotDirectory(f"{path}: a part of the path is not a directory")
            below = node.entries.get(name)
            if below is None:
                return None
            node = below
        return node

    def _find(self, path: PurePosixPath) -> _Node:
        node = self._look(path)
        if node is None:
            raise NotFound(f"{path}: there is no such file or directory")
        return node

    def _file(self, path: PurePosixPath) -> _File:
        node = self._find(path)
        if isinstance(node, _Directory):
            raise IsDirectory(f"{path}: is a directory, not a file")
        return node

    def _parent(self, path: PurePosixPath) -> _Directory:
        node = self._find(path.parent)
        if isinstance(node, _File):
            raise NotDirectory(f"{path.parent}: is not a directory")
        return node

    def _make_directory(self, path: PurePosixPath) -> _Directory:
        """The directory, made with its parents where it is missing."""
        directory = self._root
        for depth, name in enumerate(path.parts[1:], 2):
            below = directory.entries.get(name)
            if below is None:
                self._charge(path, ENTRY_BYTES)
                below = directory.entries[name] = _Directory(modified_at=self._clock())
            elif isinstance(below, _File):
                raise NotDirectory(f"{PurePosixPath(*path.parts[:depth])}: is not a directory")
            directory = below
        return directory

    def _charge(self, path: PurePosixPath, n_bytes: int) -> None:
        if self._n_bytes + n_bytes > self._max_bytes:
            raise self._no_space(path)
        self._n_bytes += n_bytes

    def _no_space(self, path: PurePosixPath) -> NoSpace:
        return NoSpace(f"{path}: no space left of {self._max_bytes} bytes; delete files or ask for a larger sandbox")

    def _once(self, request_id: RequestId | None, request: object, act: Callable[[], T]) -> T:
        """Does it, or gives the outcome that the same request had before; one that was refused has none.

        Raises: RequestConflict.
        """
        if request_id is None:
            return act()
        if request_id not in self._outcomes:
            done = act()
            while len(self._outcomes) >= MAX_KEPT_OUTCOMES:
                del self._outcomes[next(iter(self._outcomes))]
            self._outcomes[request_id] = (request, done)
        earlier, outcome = self._outcomes[request_id]
        if earlier != request:
            raise RequestConflict(f"the request id {request_id} was used for something else; take a new one")
        return cast(T, outcome)


def _info(path: PurePosixPath, node: _Node) -> FileInfo:
    is_file = isinstance(node, _File)
    return FileInfo(
        path=path,
        kind=FileKind.FILE if is_file else FileKind.DIRECTORY,
        size_bytes=len(node.data) if is_file else 0,
        modified_at=node.modified_at,
        mode=node.mode,
    )


def _size(node: _Node) -> int:
    n_bytes, todo = 0, [node]
    while todo:
        node = todo.pop()
        n_bytes += ENTRY_BYTES
        if isinstance(node, _File):
            n_bytes += len(node.data)
        else:
            todo += node.entries.values()
    return n_bytes


def _copy(directory: _Directory) -> _Directory:
    root = _Directory(modified_at=directory.modified_at, mode=directory.mode)
    todo = [(directory, root)]
    while todo:
        original, copy = todo.pop()
        for name, node in original.entries.items():
            if isinstance(node, _File):
                copy.entries[name] = _File(data=node.data, mode=node.mode, modified_at=node.modified_at)
            else:
                below = copy.entries[name] = _Directory(modified_at=node.modified_at, mode=node.mode)
                todo.append((node, below))
    return root
