"""Edit, search and bulk transfer for any `FileSystem`.

`edit`, `glob`, `grep`, `upload` and `download` use a backend's own ability where it has one. `generic_*` are built from
ls, read and write alone: slower, and an edit or upload is not atomic against others that write at the same time.
Regular expressions run in this process there, with nothing to stop a slow one: a backend that serves strangers should
bring a search of its own.
"""

import io
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Sequence
from pathlib import PurePosixPath

from sandbox import arguments, search, tars
from sandbox import edit as text_edit
from sandbox.errors import (
    EditNotFound,
    EditNotUnique,
    InvalidArgument,
    IsDirectory,
    NotDirectory,
    NotFound,
    PermissionDenied,
    TooLarge,
)
from sandbox.paths import resolve
from sandbox.protocol import FileSystem, PathLike, SupportsEdit, SupportsSearch, SupportsStreams
from sandbox.types import MIB, EditResult, FileInfo, FileKind, GlobResult, GrepLine, GrepMode, GrepResult, RequestId

MAX_EDIT_BYTES = 16 * MIB
MAX_SEARCH_BYTES = 64 * MIB
MAX_UPLOAD_BYTES = 256 * MIB
_PIECE_BYTES = MIB

Names = tuple[str, ...]


async def edit(
    files: FileSystem,
    path: PathLike,
    old: str,
    new: str,
    *,
    replace_all: bool = False,
    request_id: RequestId | None = None,
) -> EditResult:
    """As `SupportsEdit.edit`."""
    if isinstance(files, SupportsEdit):
        return await files.edit(path, old, new, replace_all=replace_all, request_id=request_id)
    return await generic_edit(files, path, old, new, replace_all=replace_all, request_id=request_id)


async def glob(files: FileSystem, pattern: str, path: PathLike = ".", *, limit: int = 1000) -> GlobResult:
    """As `SupportsSearch.glob`."""
    if isinstance(files, SupportsSearch):
        return await files.glob(pattern, path, limit=limit)
    return await generic_glob(files, pattern, path, limit=limit)


async def grep(
    files: FileSystem,
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
    """As `SupportsSearch.grep`."""
    run = files.grep if isinstance(files, SupportsSearch) else GenericGrep(files)
    return await run(
        pattern,
        path,
        mode=mode,
        literal=literal,
        ignore_case=ignore_case,
        glob=glob,
        context=context,
        limit=limit,
    )


async def upload(
    files: FileSystem,
    tar: bytes | AsyncIterable[bytes],
    path: PathLike = ".",
    *,
    request_id: RequestId | None = None,
) -> int:
    """As `SupportsStreams.upload`."""
    if isinstance(files, SupportsStreams):
        return await files.upload(tar, path, request_id=request_id)
    return await generic_upload(files, tar, path)


def download(files: FileSystem, path: PathLike = ".") -> AsyncIterator[bytes]:
    """As `SupportsStreams.download`."""
    if isinstance(files, SupportsStreams):
        return files.download(path)
    return generic_download(files, path)


async def generic_edit(
    files: FileSystem,
    path: PathLike,
    old: str,
    new: str,
    *,
    replace_all: bool = False,
    request_id: RequestId | None = None,
) -> EditResult:
    content = await files.read(path, limit=MAX_EDIT_BYTES + 1)
    if len(content) > MAX_EDIT_BYTES:
        raise TooLarge(f"{path}: larger than {MAX_EDIT_BYTES // MIB} MiB; edit it with a command")
    changed, n_replaced = edited(path, content, old, new, replace_all=replace_all)
    info = await files.write(path, changed, request_id=request_id)
    return EditResult(n_replaced=n_replaced, info=info)


def edited(path: PathLike, content: bytes, old: str, new: str, *, replace_all: bool) -> tuple[bytes, int]:
    """The content after an edit, and how much was replaced. Raises: EditNotFound, EditNotUnique, InvalidArgument."""
    try:
        return text_edit.replace(content, arguments.text("old", old), arguments.text("new", new), replace_all)
    except text_edit.NotFoundInText as error:
        raise EditNotFound(f"{path}: {error}") from None
    except text_edit.NotUnique as error:
        raise EditNotUnique(f"{path}: {error}", count=error.count) from None
    except text_edit.EditError as error:
        raise InvalidArgument(f"{path}: {error}") from None


async def generic_glob(files: FileSystem, pattern: str, path: PathLike = ".", *, limit: int = 1000) -> GlobResult:
    arguments.count("limit", limit)
    try:
        wanted = search.Glob(arguments.pattern(pattern))
    except search.BadPattern as error:
        raise InvalidArgument(str(error)) from None
    found: list[PurePosixPath] = []
    async for names, info in _walk(files, resolve(path), wanted.may_match_below):
        if wanted.matches(names, info.kind is FileKind.DIRECTORY):
            if len(found) == limit:
                return GlobResult(paths=tuple(found), truncated=True)
            found.append(info.path)
    return GlobResult(paths=tuple(found), truncated=False)


async def generic_upload(files: FileSystem, tar: bytes | AsyncIterable[bytes], path: PathLike = ".") -> int:
    """Everything is checked before the first file is written; a write that fails then leaves those before it."""
    root = resolve(path)
    too_large = TooLarge(f"the upload is larger than {MAX_UPLOAD_BYTES // MIB} MiB; send it in parts")
    found = list(tars.entries(await arguments.gather(tar, MAX_UPLOAD_BYTES, too_large)))
    for entry in found:
        await _check_place(files, root.joinpath(*entry.names), is_directory=entry.data is None)
    await files.mkdir(root)
    for entry in found:
        target = root.joinpath(*entry.names)
        if entry.data is None:
            await files.mkdir(target)
        else:
            await files.write(target, entry.data, mode=entry.mode)
    return len(found)


async def _check_place(files: FileSystem, path: PurePosixPath, *, is_directory: bool) -> None:
    try:
        info = await files.stat(path, follow=False)
    except NotFound:
        return
    if is_directory and info.kind is not FileKind.DIRECTORY:
        raise NotDirectory(f"{path} is a file, and a directory in the tar: delete it first")
    if not is_directory and info.kind is FileKind.DIRECTORY:
        raise IsDirectory(f"{path} is a directory, and a file in the tar: delete it first")


async def generic_download(files: FileSystem, path: PathLike = ".") -> AsyncIterator[bytes]:
    root = resolve(path)
    info = await files.stat(root)
    if info.kind is not FileKind.DIRECTORY:
        async for piece in _packed(files, root.name, info):
            yield piece
    else:
        async for names, info in _walk(files, root, lambda _: True):
            async for piece in _packed(files, "/".join(names), info):
                yield piece
    yield tars.END


async def _packed(files: FileSystem, name: str, info: FileInfo) -> AsyncIterator[bytes]:
    if info.kind is FileKind.DIRECTORY:
        yield tars.header(name, size=0, mode=info.mode, modified_at=info.modified_at, is_directory=True)
    elif info.kind is FileKind.SYMLINK:
        yield tars.symlink_header(name, info.target or "", modified_at=info.modified_at)
    elif info.kind is FileKind.FILE:
        yield tars.header(name, size=info.size_bytes, mode=info.mode, modified_at=info.modified_at)
        offset = 0
        while offset < info.size_bytes:
            wanted = min(_PIECE_BYTES, info.size_bytes - offset)
            piece = await files.read(info.path, offset=offset, limit=wanted)
            yield piece or bytes(wanted)  # it shrank meanwhile, and the header has promised its size
            offset += len(piece) or wanted
        yield tars.padding(info.size_bytes)


class GenericGrep:
    """The generic grep, callable as `SupportsSearch.grep`."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files

    async def __call__(
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
        mode = arguments.grep_mode(mode)
        n_context, n_limit = arguments.count("context", context), arguments.count("limit", limit)
        try:
            test = search.line_test(arguments.pattern(pattern), literal, ignore_case)
            admits = search.file_filter(None if glob is None else arguments.pattern(glob))
        except search.BadPattern as error:
            raise InvalidArgument(str(error)) from None
        found = _Found(mode, search.Quota(n_limit, n_context))
        async for info in self._candidates(resolve(path), admits):
            await self._search(info, test, n_context, found)
            if found.quota.exceeded:
                break
        return found.result()

    async def _candidates(
        self, root: PurePosixPath, admits: Callable[[Sequence[str]], bool]
    ) -> AsyncIterator[FileInfo]:
        info = await self._files.stat(root)
        if info.kind is FileKind.FILE:
            yield info
        elif info.kind is FileKind.DIRECTORY:
            async for names, below in _walk(self._files, root, lambda _: True):
                if below.kind is FileKind.FILE and admits(names):
                    yield below

    async def _search(self, info: FileInfo, test: search.LineTest, context: int, found: "_Found") -> None:
        try:
            content = await self._files.read(info.path, limit=MAX_SEARCH_BYTES + 1)
        except (NotFound, PermissionDenied):
            return
        if len(content) > MAX_SEARCH_BYTES:
            raise TooLarge(f"{info.path}: larger than {MAX_SEARCH_BYTES // MIB} MiB; leave it out by `glob`")
        hits = search.scan(io.BytesIO(content), test, context)
        if search.is_binary(content):
            found.n_skipped_binary += any(hit.is_match for hit in hits)
        else:
            found.take(info.path, hits)


class _Found:
    """The growing result of a grep."""

    def __init__(self, mode: GrepMode, quota: search.Quota) -> None:
        self.quota = quota
        self.n_skipped_binary = 0
        self._mode = mode
        self._lines: list[GrepLine] = []
        self._counts: dict[PurePosixPath, int] = {}

    def take(self, path: PurePosixPath, hits: Iterator[search.Hit]) -> None:
        if self._mode is GrepMode.CONTENT:
            for hit in hits:
                if self.quota.admits(path, hit):
                    line = GrepLine(path=path, number=hit.number, text=hit.text, is_match=hit.is_match)
                    self._lines.append(line)
                if self.quota.exceeded:
                    return
            return
        n_matches = sum(hit.is_match for hit in hits)
        if n_matches and self.quota.admits(path, search.Hit(n_matches, "", True)):
            self._counts[path] = n_matches

    def result(self) -> GrepResult:
        is_count = self._mode is GrepMode.COUNT
        return GrepResult(
            files=tuple(self._counts) if self._mode is GrepMode.FILES else (),
            lines=tuple(self._lines),
            counts=self._counts if is_count else {},
            truncated=self.quota.exceeded,
            n_skipped_binary=self.n_skipped_binary,
        )


async def _walk(
    files: FileSystem, root: PurePosixPath, enter: Callable[[Names], bool]
) -> AsyncIterator[tuple[Names, FileInfo]]:
    """Depth first, sorted by component, symlinks not followed. What vanishes or is forbidden below is passed over."""
    stack = [iter(_sorted(await files.ls(root)))]
    while stack:
        info = next(stack[-1], None)
        if info is None:
            stack.pop()
            continue
        names = info.path.relative_to(root).parts
        yield names, info
        if info.kind is FileKind.DIRECTORY and enter(names):
            try:
                stack.append(iter(_sorted(await files.ls(info.path))))
            except (NotFound, NotDirectory, PermissionDenied):
                continue


def _sorted(found: list[FileInfo]) -> list[FileInfo]:
    return sorted(found, key=lambda info: info.path.name.encode("utf-8", "surrogateescape"))
