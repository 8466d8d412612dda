"""What is said about sandboxes, files and processes. Values only: no behaviour, no I/O."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, NewType

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

SandboxId = NewType("SandboxId", str)
ProcessId = NewType("ProcessId", str)
RequestId = NewType("RequestId", str)

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

WORKSPACE = PurePosixPath("/workspace")
HOME = PurePosixPath("/home/user")


class Value(BaseModel):
    """The base of what is stored or sent."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


SHM_BYTES = 16 * MIB


class Limits(Value):
    """What one sandbox may use. A tmpfs counts against `memory_bytes`, so all of them together take at most half."""

    memory_bytes: Annotated[int, Field(ge=64 * MIB)] = 2 * GIB
    cpus: Annotated[float, Field(gt=0, le=256)] = 1.0
    n_processes: Annotated[int, Field(ge=32, le=65536)] = 512
    n_open_files: Annotated[int, Field(ge=64, le=1048576)] = 4096
    disk_bytes: Annotated[int, Field(ge=8 * MIB)] = 2 * GIB
    """/workspace and home together."""
    tmp_bytes: Annotated[int, Field(ge=MIB)] = 128 * MIB
    output_bytes: Annotated[int, Field(ge=MIB)] = 64 * MIB
    """All recorded command output together; the oldest file goes first."""

    @property
    def tmpfs_bytes(self) -> int:
        return self.tmp_bytes + self.output_bytes + SHM_BYTES

    @model_validator(mode="after")
    def _tmpfs_fits(self) -> "Limits":
        if self.tmpfs_bytes > self.memory_bytes // 2:
            raise ValueError(
                f"the tmpfs sizes add up to {self.tmpfs_bytes} bytes, over half of memory_bytes={self.memory_bytes}: "
                "raise memory_bytes or lower tmp_bytes or output_bytes"
            )
        return self

    @classmethod
    def for_memory(cls, memory_bytes: int) -> "Limits":
        """The defaults with another size of memory, and no larger a tmpfs than fits into it."""
        share = memory_bytes // 2 - SHM_BYTES
        return cls(
            memory_bytes=memory_bytes,
            tmp_bytes=min(128 * MIB, share * 2 // 3),
            output_bytes=min(64 * MIB, share // 3),
        )


class Weakness(StrEnum):
    """A protection that may be missing, if whoever asks for a sandbox says so. `docs/decisions/isolation.md`."""

    DISK_IN_MEMORY = "disk_in_memory"
    """/workspace and home are kept in memory: bounded, but counted as memory and gone with the sandbox."""


class Mount(Value):
    """A host directory or file shown inside. Read-only unless said otherwise."""

    source: Path
    target: PurePosixPath
    read_only: bool = True

    @field_validator("source")
    @classmethod
    def _absolute_source(cls, value: Path) -> Path:
        if not value.is_absolute():
            raise ValueError(f"a mount's source must be absolute, not {str(value)!r}")
        return value

    @field_validator("target")
    @classmethod
    def _absolute_target(cls, value: PurePosixPath) -> PurePosixPath:
        if not value.is_absolute() or ".." in value.parts or value == PurePosixPath("/"):
            raise ValueError(f"a mount's target must be an absolute path below /, not {str(value)!r}")
        return value


LABEL_PATTERN = r"^[a-zA-Z0-9][a-zA-Z0-9._/-]{0,62}$"
ENV_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
LabelName = Annotated[str, Field(pattern=LABEL_PATTERN)]
EnvName = Annotated[str, Field(pattern=ENV_PATTERN)]
EnvValue = Annotated[str, Field(pattern=r"^[^\x00]*$", max_length=128 * KIB)]


class SandboxSpec(Value):
    """What to create."""

    image: Annotated[str, Field(min_length=1, max_length=255)] = "base"
    limits: Limits = Limits()
    mounts: tuple[Mount, ...] = ()
    labels: Mapping[LabelName, Annotated[str, Field(max_length=4096)]] = {}
    env: Mapping[EnvName, EnvValue] = {}
    orphan_after_s: Annotated[float, Field(gt=0)] | None = None
    """End the sandbox when nobody has been connected for so long. None: it stays until it is destroyed."""
    allow_weaker: frozenset[Weakness] = frozenset()
    """What it may do without. Anything else that cannot be had makes `create` fail."""

    @model_validator(mode="after")
    def _disk_fits_in_memory(self) -> "SandboxSpec":
        limits = self.limits
        if Weakness.DISK_IN_MEMORY in self.allow_weaker:
            wanted = limits.tmpfs_bytes + limits.disk_bytes
            if wanted > limits.memory_bytes // 2:
                raise ValueError(
                    f"a disk in memory: with it all tmpfs add up to {wanted} bytes, over half of "
                    f"memory_bytes={limits.memory_bytes}; raise memory_bytes or lower disk_bytes"
                )
        return self


class SandboxState(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"


class SandboxInfo(Value):
    """A sandbox as the engine sees it, without connecting to it."""

    id: SandboxId
    state: SandboxState
    image: str
    image_digest: str
    labels: Mapping[str, str]
    created_at: datetime
    weaker: frozenset[Weakness] = frozenset()
    """The protections that it does without."""


class FileKind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


class FileInfo(Value):
    path: PurePosixPath
    kind: FileKind
    size_bytes: int
    modified_at: datetime
    mode: int
    """The permission bits, as in 0o644."""
    uid: int = 0
    gid: int = 0
    target: str | None = None
    """Where a symlink points, as written in it."""


class EditResult(Value):
    n_replaced: int
    info: FileInfo


class GlobResult(Value):
    paths: tuple[PurePosixPath, ...]
    truncated: bool
    """True where the limit cut the list: there are more."""


class GrepMode(StrEnum):
    FILES = "files"
    CONTENT = "content"
    COUNT = "count"


class GrepLine(Value):
    path: PurePosixPath
    number: int
    text: str
    is_match: bool = True
    """False for a line of context."""


class GrepResult(Value):
    """`files` for mode FILES, `lines` for CONTENT, `counts` for COUNT; the other two are empty."""

    files: tuple[PurePosixPath, ...] = ()
    lines: tuple[GrepLine, ...] = ()
    counts: Mapping[PurePosixPath, int] = {}
    truncated: bool = False
    n_skipped_binary: int = 0


class FileChange(Value):
    """One change seen by a watch. `overflow`: changes were lost, look at the tree again."""

    kind: Literal["created", "modified", "deleted", "moved_from", "moved_to", "attributes", "overflow"]
    path: PurePosixPath
    is_directory: bool = False


class Reason(StrEnum):
    """Why a command is over."""

    EXITED = "exited"
    SIGNALED = "signaled"
    TIMED_OUT = "timed_out"
    KILLED = "killed"
    OOM_KILLED = "oom_killed"
    """The kernel killed it, or the last program of its shell, at the memory limit."""
    LOST = "lost"


class Exhausted(StrEnum):
    """What a sandbox had no more of."""

    MEMORY = "memory"
    PROCESSES = "processes"
    DISK = "disk"
    """A file system that commands can write to is full, of bytes or of files."""


class Stream(StrEnum):
    """`output` is stdout and stderr in one pipe (or a terminal), so that their order is exact."""

    OUTPUT = "output"
    STDOUT = "stdout"
    STDERR = "stderr"


class Captured(Value):
    """The bounded record of one output stream: its beginning, its end, and how much there was."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")

    head: bytes = b""
    tail: bytes = b""
    total_bytes: int = 0
    file: PurePosixPath | None = None
    """The recorded output inside the sandbox; None where it is whole in `head`."""
    file_truncated: bool = False
    """The file was capped, or deleted to make room: it does not hold every byte."""

    @property
    def truncated(self) -> bool:
        return len(self.head) + len(self.tail) < self.total_bytes

    @property
    def omitted_bytes(self) -> int:
        return self.total_bytes - len(self.head) - len(self.tail)


class ExecResult(Value):
    """How a command ended and what it said. A non-zero exit code is a result, not an error."""

    exit_code: int | None
    """None unless the reason is `exited`."""
    reason: Reason
    signal: int | None = None
    duration_s: float = 0.0
    exhausted: tuple[Exhausted, ...] = ()
    """What the sandbox ran out of while the command ran, by whichever command; it may be why this one failed."""
    stdout: Captured = Captured()
    """Everything, in order, where the streams are combined (the default)."""
    stderr: Captured = Captured()
    """Empty where the streams are combined."""

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


class ProcessInfo(Value):
    id: ProcessId
    pid: int
    argv: tuple[str, ...]
    running: bool
    """False once the command itself is over; `n_alive` may still count its background children."""
    n_alive: int
    started_at: datetime
    tty: bool = False
    exit_code: int | None = None
    reason: Reason | None = None


class TerminalSize(Value):
    rows: Annotated[int, Field(ge=1, le=10000)] = 24
    cols: Annotated[int, Field(ge=1, le=10000)] = 80
