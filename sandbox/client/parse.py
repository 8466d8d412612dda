"""From a guest's JSON to our types. A guest that sends nonsense is broken; nothing here guesses."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any, TypeVar

from sandbox.errors import SandboxBroken
from sandbox.types import (
    Captured,
    ExecResult,
    Exhausted,
    FileChange,
    FileInfo,
    FileKind,
    GrepLine,
    ProcessId,
    ProcessInfo,
    Reason,
)

T = TypeVar("T")
_MAX_LINE = 1 << 20
_NONSENSE = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError)


def believed(parse: Callable[..., T], *args: Any) -> T:
    """What `parse` makes of it. Raises: SandboxBroken if it makes nothing."""
    try:
        return parse(*args)
    except _NONSENSE as error:
        raise SandboxBroken(
            f"the sandbox sent an answer that makes no sense ({type(error).__name__}); destroy it"
        ) from None


class Lines:
    """JSON lines out of pieces of any size. Raises: SandboxBroken."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Any]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_LINE:
            raise SandboxBroken("the sandbox sent an endless line; destroy it")
        for line in whole:
            if line:
                yield believed(json.loads, line)


def file_info(raw: Any, directory: PurePosixPath | None = None) -> FileInfo:
    name, kind, size, mtime_ns, mode, uid, gid, target = raw
    path = PurePosixPath(_text(name)) if directory is None else directory / _name(name)
    return FileInfo.model_construct(
        path=path,
        kind=FileKind(kind),
        size_bytes=int(size),
        modified_at=_moment(int(mtime_ns)),
        mode=int(mode) & 0o7777,
        uid=int(uid),
        gid=int(gid),
        target=None if target is None else _text(target),
    )


def relative(raw: Any, directory: PurePosixPath) -> PurePosixPath:
    """A path below `directory`, as jobs send them."""
    path = PurePosixPath(_text(raw))
    if path.is_absolute() or ".." in path.parts:
        raise ValueError("not a relative path")
    return directory / path


def grep_line(raw: Any, path: PurePosixPath) -> GrepLine:
    return GrepLine.model_construct(path=path, number=int(raw["n"]), text=_text(raw["text"]), is_match=bool(raw["m"]))


def file_change(raw: Any, directory: PurePosixPath) -> FileChange:
    return FileChange(kind=raw["kind"], path=relative(raw["path"], directory), is_directory=bool(raw.get("dir", False)))


def process_info(raw: Any) -> ProcessInfo:
    return ProcessInfo(
        id=ProcessId(_text(raw["id"])),
        pid=int(raw["pid"]),
        argv=tuple(_text(word) for word in raw["argv"]),
        running=bool(raw["running"]),
        n_alive=int(raw["n_alive"]),
        started_at=_moment(int(float(raw["started_at"]) * 1e9)),
        tty=bool(raw["tty"]),
        exit_code=None if raw["exit_code"] is None else int(raw["exit_code"]),
        reason=None if raw["reason"] is None else Reason(raw["reason"]),
    )


def exec_result(raw: Any, streams: "dict[int, tuple[bytes, bytes]]") -> ExecResult:
    """`streams` is what was received of each: its beginning and its end."""
    captured = {
        int(number): Captured.model_construct(
            head=streams.get(int(number), (b"", b""))[0],
            tail=streams.get(int(number), (b"", b""))[1],
            total_bytes=int(said["total"]),
            file=None if said["file"] is None else PurePosixPath(_text(said["file"])),
            file_truncated=bool(said["file_truncated"]),
        )
        for number, said in raw["streams"].items()
    }
    return ExecResult.model_construct(
        exit_code=None if raw["exit_code"] is None else int(raw["exit_code"]),
        reason=Reason(raw["reason"]),
        signal=None if raw["signal"] is None else int(raw["signal"]),
        duration_s=float(raw["duration_s"]),
        exhausted=tuple(Exhausted(name) for name in raw["exhausted"]),
        stdout=captured.get(1, Captured()),
        stderr=captured.get(2, Captured()),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value


def _name(value: Any) -> str:
    name = _text(value)
    if not name or "/" in name or name in (".", ".."):
        raise ValueError("not a file name")
    return name


def _moment(ns: int) -> datetime:
    # A file may carry any time stamp; years outside of datetime's range become its ends.
    try:
        return datetime.fromtimestamp(ns / 1e9, UTC)
    except (OverflowError, OSError, ValueError):
        return datetime.max.replace(tzinfo=UTC) if ns > 0 else datetime.min.replace(tzinfo=UTC)
