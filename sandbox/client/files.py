"""Files of a sandbox, over its link."""

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Callable
from pathlib import PurePosixPath
from typing import Any

from sandbox import arguments
from sandbox.client.channel import Channel
from sandbox.client.link import CALL_TIMEOUT_S, SMALL_WINDOW, WINDOW, Link, Urgency
from sandbox.client.parse import Lines, believed, file_change, file_info, grep_line, relative
from sandbox.errors import OperationTimedOut
from sandbox.paths import resolve
from sandbox.protocol import PathLike
from sandbox.types import (
    EditResult,
    FileChange,
    FileInfo,
    GlobResult,
    GrepLine,
    GrepMode,
    GrepResult,
    RequestId,
)

TREE_TIMEOUT_S = 600.0
SEARCH_TIMEOUT_S = 120.0
BULK_WINDOW = 4 << 20
_MANY_LINES = 2000
_PIECE = 4 << 20


class GuestFiles:
    """`FileSystem` and every `Supports*` of it. The base of `GuestSandbox`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def ls(self, path: PathLike = ".") -> list[FileInfo]:
        directory = resolve(path)
        async with self._link.open("list", {"path": str(directory)}, credit=WINDOW) as channel:
            lines = self._lines(channel, CALL_TIMEOUT_S)
            found = [believed(file_info, raw, directory) async for raw in lines]
        found.sort(key=lambda info: info.path.name)
        return found

    async def stat(self, path: PathLike, *, follow: bool = True) -> FileInfo:
        answer = await self._link.call("stat", {"path": str(resolve(path)), "follow": follow})
        return believed(_info_of, answer)

    async def read(self, path: PathLike, *, offset: int = 0, limit: int | None = None) -> bytes:
        return b"".join([piece async for piece in self.read_stream(path, offset=offset, limit=limit)])

    async def read_stream(self, path: PathLike, *, offset: int = 0, limit: int | None = None) -> AsyncIterator[bytes]:
        request = {
            "path": str(resolve(path)),
            "offset": arguments.count("offset", offset),
            "limit": arguments.optional_count("limit", limit),
        }
        credit = BULK_WINDOW if limit is None or limit > SMALL_WINDOW else SMALL_WINDOW
        async with self._link.open("read", request, credit=credit) as channel:
            async for piece in self._pieces(channel, CALL_TIMEOUT_S):
                yield piece

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
        arguments.content(data)
        request: dict[str, Any] = {"path": str(resolve(path)), "atomic": atomic, "overwrite": overwrite}
        request["mode"] = arguments.permission_bits(mode)
        answer = await self._send("write", request, data, request_id, CALL_TIMEOUT_S)
        return believed(_info_of, answer)

    async def mkdir(self, path: PathLike, *, parents: bool = True, exist_ok: bool = True) -> None:
        await self._link.call("mkdir", {"path": str(resolve(path)), "parents": parents, "exist_ok": exist_ok})

    async def move(
        self, source: PathLike, target: PathLike, *, overwrite: bool = False, request_id: RequestId | None = None
    ) -> None:
        request = {"source": str(resolve(source)), "target": str(resolve(target)), "overwrite": overwrite}
        await self._once("move", request, request_id, TREE_TIMEOUT_S, Urgency.TREE)

    async def delete(
        self,
        path: PathLike,
        *,
        recursive: bool = False,
        missing_ok: bool = False,
        request_id: RequestId | None = None,
    ) -> None:
        request = {"path": str(resolve(path)), "recursive": recursive, "missing_ok": missing_ok}
        await self._once("delete", request, request_id, TREE_TIMEOUT_S, Urgency.TREE)

    async def edit(
        self,
        path: PathLike,
        old: str,
        new: str,
        *,
        replace_all: bool = False,
        request_id: RequestId | None = None,
    ) -> EditResult:
        arguments.text("old", old)
        arguments.text("new", new)
        request = {"path": str(resolve(path)), "old": old, "new": new, "replace_all": replace_all}
        answer = await self._once("edit", request, request_id, CALL_TIMEOUT_S)
        return believed(lambda: EditResult(n_replaced=int(answer["n_replaced"]), info=_info_of(answer)))

    async def glob(self, pattern: str, path: PathLike = ".", *, limit: int = 1000) -> GlobResult:
        directory = resolve(path)
        request: dict[str, Any] = {"path": str(directory), "pattern": arguments.pattern(pattern)}
        request["limit"] = arguments.count("limit", limit)
        paths: list[PurePosixPath] = []

        def take(raw: Any) -> None:
            paths.append(relative(raw["path"], directory))

        answer = await self._search("glob", request, take)
        return GlobResult(paths=tuple(paths), truncated=bool(answer.get("truncated")))

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
        root = resolve(path)
        request: dict[str, Any] = {"path": str(root), "pattern": arguments.pattern(pattern), "literal": literal}
        request.update(mode=arguments.grep_mode(mode).value, ignore_case=ignore_case, glob=glob)
        request.update(context=arguments.count("context", context), limit=arguments.count("limit", limit))
        files: list[PurePosixPath] = []
        lines: list[GrepLine] = []
        counts: dict[PurePosixPath, int] = {}

        def take(raw: Any) -> None:
            found = relative(raw["path"], root)
            if "count" in raw:
                counts[found] = int(raw["count"])
            elif "n" in raw:
                lines.append(grep_line(raw, found))
            else:
                files.append(found)

        answer = await self._search("grep", request, take)
        return GrepResult(
            files=tuple(files),
            lines=tuple(lines),
            counts=counts,
            truncated=bool(answer.get("truncated")),
            n_skipped_binary=believed(int, answer.get("n_skipped_binary", 0)),
        )

    async def download(self, path: PathLike = ".") -> AsyncIterator[bytes]:
        async with self._link.open("pack", {"path": str(resolve(path))}, credit=BULK_WINDOW) as channel:
            async for piece in self._pieces(channel, CALL_TIMEOUT_S):
                yield piece

    async def upload(
        self, tar: bytes | AsyncIterable[bytes], path: PathLike = ".", *, request_id: RequestId | None = None
    ) -> int:
        answer = await self._send("unpack", {"path": str(resolve(path))}, tar, request_id, TREE_TIMEOUT_S)
        return believed(int, answer.get("n_entries"))

    async def watch(self, path: PathLike = ".", *, recursive: bool = True) -> AsyncIterator[FileChange]:
        directory = resolve(path)
        request = {"path": str(directory), "recursive": recursive}
        async with self._link.open("watch", request, credit=SMALL_WINDOW) as channel:
            async for raw in self._lines(channel, None):
                if raw != {"ready": True}:
                    yield believed(file_change, raw, directory)

    # How it is done

    async def _once(
        self,
        op: str,
        request: dict[str, Any],
        request_id: RequestId | None,
        timeout_s: float,
        urgency: Urgency = Urgency.SHORT,
    ) -> dict[str, Any]:
        """A change, under an id: the caller's, who acknowledges it, or one of ours, acknowledged on the way."""
        identity = request_id or self._link.new_id()
        try:
            return await self._link.call(op, {**request, "id": identity}, timeout_s=timeout_s, urgency=urgency)
        finally:
            if request_id is None:
                self._link.acknowledge_later(identity)

    async def _send(
        self,
        op: str,
        request: dict[str, Any],
        data: bytes | AsyncIterable[bytes],
        request_id: RequestId | None,
        timeout_s: float,
    ) -> dict[str, Any]:
        identity = request_id or self._link.new_id()
        small = data if isinstance(data, bytes) and len(data) <= SMALL_WINDOW else None
        request = {**request, "id": identity, "large": small is None}
        if request_id is not None and isinstance(data, bytes):
            request["digest"] = digest(data)
        try:
            async with self._link.open(op, request, data=small) as channel:
                if small is None:
                    await self._send_all(channel, op, data, timeout_s)
                async with self._link.within(op, timeout_s):
                    return await channel.done
        finally:
            if request_id is None:
                self._link.acknowledge_later(identity)

    async def _send_all(self, channel: Channel, op: str, data: bytes | AsyncIterable[bytes], timeout_s: float) -> None:
        """`timeout_s` is for each piece: a source may be as slow as it likes, the sandbox may not."""
        async for piece in _pieces_of(data):
            async with self._link.within(op, timeout_s):
                if not await channel.send(piece):
                    return
        await channel.send(b"", end=True)

    async def _search(self, op: str, request: dict[str, Any], take: Callable[[Any], None]) -> dict[str, Any]:
        request = {**request, "timeout_s": SEARCH_TIMEOUT_S}
        async with self._link.open(op, request, credit=WINDOW) as channel:
            async for raw in self._lines(channel, SEARCH_TIMEOUT_S + 5):
                believed(take, raw)
            return await channel.done

    async def _pieces(self, channel: Channel, timeout_s: float | None) -> AsyncIterator[bytes]:
        """DATA in order. `timeout_s` is the longest silence."""
        while True:
            try:
                async with asyncio.timeout(timeout_s):
                    item = await channel.take()
            except TimeoutError:
                raise OperationTimedOut(f"nothing came for {timeout_s} s; try again") from None
            if item is None:
                return
            if isinstance(item, tuple):
                yield item[1]

    async def _lines(self, channel: Channel, timeout_s: float | None) -> AsyncIterator[Any]:
        lines = Lines()
        n_lines = 0
        async for piece in self._pieces(channel, timeout_s):
            for raw in lines.feed(piece):
                yield raw
                n_lines += 1
                if n_lines % _MANY_LINES == 0:
                    await asyncio.sleep(0)  # a hundred thousand entries must not hold the event loop


async def _pieces_of(data: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(data, bytes):
        for at in range(0, len(data), _PIECE):
            yield data[at : at + _PIECE]
    else:
        async for piece in data:
            yield piece


def digest(data: bytes) -> str:
    """Of what is sent under an id of the caller's: other content under the same id is another request."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _info_of(answer: dict[str, Any]) -> FileInfo:
    return file_info(answer["info"])
