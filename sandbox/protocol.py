"""What a sandbox can do, as protocols. Implementers do not inherit; `sandbox/conformance.py` is the test of them.

Paths are absolute, or relative to the workspace; see `sandbox/paths.py` for what is refused. Every method may raise
`Unavailable` (the sandbox is gone, broken or taken over) and `InvalidPath`/`PathEscapes`/`InvalidArgument`; the
docstrings name only what is particular.
"""

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Protocol, runtime_checkable

from sandbox.types import (
    EditResult,
    ExecResult,
    FileChange,
    FileInfo,
    GlobResult,
    GrepMode,
    GrepResult,
    ProcessId,
    ProcessInfo,
    RequestId,
    SandboxId,
    SandboxInfo,
    SandboxSpec,
    Stream,
    TerminalSize,
)

PathLike = PurePosixPath | str
Command = str | Sequence[str]
"""A string is run by the shell (`bash -c`, else `sh -c`); a sequence is an argv and meets no shell."""


@runtime_checkable
class FileSystem(Protocol):
    """Files, and nothing else: the part every backend has."""

    async def ls(self, path: PathLike = ".") -> list[FileInfo]:
        """The entries of a directory, sorted by name, symlinks not followed.

        Raises: NotFound, NotDirectory, PermissionDenied.
        """
        ...

    async def stat(self, path: PathLike, *, follow: bool = True) -> FileInfo:
        """Raises: NotFound, NotDirectory, PermissionDenied, TooManyLinks."""
        ...

    async def read(self, path: PathLike, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Bytes `offset` to `offset + limit`; fewer where the file ends, none past its end.

        Raises: NotFound, IsDirectory, NotRegularFile, PermissionDenied.
        """
        ...

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
        """Makes the file hold exactly `data`; missing parents are made.

        `atomic`: the old content or the new, never a mixture, also after a crash or ENOSPC; an existing file keeps
        its mode. Otherwise it is written in place. A symlink is followed while it stays inside the tree it is in.

        Raises: IsDirectory, NotDirectory, AlreadyExists (with overwrite=False), PermissionDenied, NoSpace,
        PathEscapes (a symlink leads out), NotRegularFile.
        """
        ...

    async def mkdir(self, path: PathLike, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Raises: AlreadyExists, NotFound (parents=False), NotDirectory, PermissionDenied, NoSpace."""
        ...

    async def move(
        self, source: PathLike, target: PathLike, *, overwrite: bool = False, request_id: RequestId | None = None
    ) -> None:
        """Renames a file, link or directory. Across file systems files are copied, then removed.

        Raises: NotFound, AlreadyExists (without overwrite, or the target is a directory), PermissionDenied.
        """
        ...

    async def delete(
        self,
        path: PathLike,
        *,
        recursive: bool = False,
        missing_ok: bool = False,
        request_id: RequestId | None = None,
    ) -> None:
        """Deletes a file, a link (never its target) or an empty directory; with `recursive`, a tree.

        Raises: NotFound (unless missing_ok), DirectoryNotEmpty, PermissionDenied.
        """
        ...


@runtime_checkable
class SupportsEdit(Protocol):
    async def edit(
        self,
        path: PathLike,
        old: str,
        new: str,
        *,
        replace_all: bool = False,
        request_id: RequestId | None = None,
    ) -> EditResult:
        """Replaces `old`, which must occur exactly once unless `replace_all`. CRLF files keep their line ends.

        Raises: EditNotFound, EditNotUnique, TooLarge, and what read and write raise.
        """
        ...


@runtime_checkable
class SupportsSearch(Protocol):
    async def glob(self, pattern: str, path: PathLike = ".", *, limit: int = 1000) -> GlobResult:
        """Paths below `path` that match (`*`, `?`, `[…]`, `**`; dotfiles too), sorted; symlinks are not entered.

        Raises: InvalidArgument, NotFound, NotDirectory.
        """
        ...

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
        """Lines that match a regular expression (or contain a literal) in the file `path`, or the files below it.

        `limit` bounds files, lines or counts, by mode. Binary files are skipped and counted.

        Raises: InvalidArgument (bad pattern), NotFound, OperationTimedOut.
        """
        ...


@runtime_checkable
class SupportsStreams(Protocol):
    """Content that need not fit in memory."""

    def read_stream(self, path: PathLike, *, offset: int = 0, limit: int | None = None) -> AsyncIterator[bytes]:
        """As `read`, in pieces."""
        ...

    def download(self, path: PathLike = ".") -> AsyncIterator[bytes]:
        """A tar of the file or directory; names in it are relative to it."""
        ...

    async def upload(
        self, tar: bytes | AsyncIterable[bytes], path: PathLike = ".", *, request_id: RequestId | None = None
    ) -> int:
        """Unpacks a tar below `path`, whole or not at all, and returns the number of entries.

        Symlinks are kept as they are and never followed.

        Raises: PathEscapes (a name or hard link leads out), InvalidArgument (not a tar, a device in it), NoSpace.
        """
        ...


@runtime_checkable
class SupportsWatch(Protocol):
    def watch(self, path: PathLike = ".", *, recursive: bool = True) -> AsyncIterator[FileChange]:
        """Changes below a directory, from the moment the iteration starts until it is closed.

        Raises: NotFound, NotDirectory.
        """
        ...


class OutputChunk(Protocol):
    """A piece of output, in order within its stream."""

    @property
    def stream(self) -> Stream: ...
    @property
    def offset(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    @property
    def skipped_bytes(self) -> int:
        """How much before this piece was recorded nowhere, or left out on purpose."""
        ...


class Process(Protocol):
    """A command that was started, here or by a process that is no more."""

    @property
    def id(self) -> ProcessId: ...
    @property
    def pid(self) -> int: ...

    def output(self) -> AsyncIterator[OutputChunk]:
        """What it says, live, from where this handle stands, until the command is over.

        Whoever reads gets every byte: a command with too slow a reader waits for it, until the iteration is closed. To
        be read before `wait` returns, which lets the sandbox forget the output.
        """
        ...

    async def wait(self) -> ExecResult:
        """Waits for the end of the command (not of its background children)."""
        ...

    async def write_stdin(self, data: bytes) -> None:
        """Raises: ProcessEnded (it is over, or closed its stdin, or was started without one)."""
        ...

    async def close_stdin(self) -> None: ...

    async def signal(self, signum: int) -> None:
        """To the command's process group. Raises: ProcessEnded."""
        ...

    async def resize(self, size: TerminalSize) -> None:
        """Raises: NotSupported (no terminal), ProcessEnded."""
        ...

    async def kill(self) -> int:
        """Ends the command and everything it left behind, also after it is over. Returns how many were killed."""
        ...

    async def detach(self) -> None:
        """Lets go of it: it runs on."""
        ...


@runtime_checkable
class Sandbox(FileSystem, Protocol):
    """A place where commands run. `async with` ends it if this handle created it, and lets go of it otherwise."""

    @property
    def id(self) -> SandboxId: ...

    async def execute(
        self,
        command: Command,
        *,
        cwd: PathLike | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout_s: float | None = None,
        stdin: bytes | None = None,
        separate: bool = False,
        head_bytes: int = 32768,
        tail_bytes: int = 32768,
        request_id: RequestId | None = None,
    ) -> ExecResult:
        """Runs a command to its end. Cancelling the call kills the command and all it started.

        Raises: CommandNotFound, CommandNotExecutable, CannotStart, UnknownUser, UserNotAllowed, NotFound or
        NotDirectory (the cwd), RequestConflict.
        """
        ...

    async def start(
        self,
        command: Command,
        *,
        cwd: PathLike | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout_s: float | None = None,
        stdin: bool = False,
        tty: TerminalSize | None = None,
        separate: bool = False,
        request_id: RequestId | None = None,
    ) -> Process:
        """Starts a command and returns at once. Raises as `execute`."""
        ...

    async def attach(self, process_id: ProcessId, *, offset: int = 0, stderr_offset: int = 0) -> Process:
        """A handle on a command that runs, or ran and was not acknowledged. Raises: ProcessNotFound."""
        ...

    async def processes(self) -> list[ProcessInfo]:
        """Commands that run, that left something running, or whose end was not acknowledged."""
        ...

    async def acknowledge(self, *request_ids: RequestId | ProcessId) -> None:
        """The outcome of these requests is written down; the sandbox may forget it."""
        ...

    async def detach(self) -> None:
        """Closes the connection; the sandbox and its commands run on, also after the `async with` it was made in."""
        ...

    async def destroy(self) -> None:
        """Ends the sandbox and removes what it left. Idempotent."""
        ...


@runtime_checkable
class SandboxBackend(Protocol):
    """Makes sandboxes of one kind, and finds them again."""

    @property
    def name(self) -> str: ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Raises: EngineUnavailable, ImageNotFound, ImageUnsuitable, CannotCreate."""
        ...

    async def connect(self, sandbox_id: SandboxId, *, epoch: int | None = None) -> Sandbox:
        """Takes a running sandbox over, from a process that died or from one that lives.

        Raises: SandboxNotFound, SandboxLost, LeaseLost (the epoch is older than its holder's).
        """
        ...

    async def list(self, labels: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        """Every sandbox of ours that carries these labels, in every state."""
        ...

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Idempotent: a sandbox that is not there is gone already."""
        ...

    async def close(self) -> None:
        """Lets go of the engine. Sandboxes live on."""
        ...
