"""A command that does what it was told to: says its pieces in time, waits, ends, can be fed, signalled and killed."""

import asyncio
import signal as signals
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from sandbox.errors import InvalidArgument, NotSupported, ProcessEnded
from sandbox.types import Captured, ExecResult, ProcessId, ProcessInfo, Reason, Stream, TerminalSize


@dataclass(frozen=True, slots=True)
class Reply:
    """What a command does. A sequence of pieces comes in as many pieces, `delay_s` before each."""

    stdout: bytes | Sequence[bytes] = b""
    stderr: bytes | Sequence[bytes] = b""
    exit_code: int = 0
    delay_s: float = 0.0
    forever: bool = False
    """It goes on until it is signalled, killed or times out."""
    echo: bool = False
    """Like `cat`: what is fed comes back, and the end of stdin ends it."""
    ends_as: ExecResult | None = None
    """Overrides how it ends: reason, signal, exit code, duration."""

    @classmethod
    def of(cls, result: ExecResult) -> Self:
        return cls(result.stdout.head + result.stdout.tail, result.stderr.head + result.stderr.tail, ends_as=result)

    def pieces(self) -> list[tuple[Stream, bytes]]:
        out = [self.stdout] if isinstance(self.stdout, bytes) else list(self.stdout)
        err = [self.stderr] if isinstance(self.stderr, bytes) else list(self.stderr)
        return [(Stream.STDOUT, piece) for piece in out if piece] + [(Stream.STDERR, piece) for piece in err if piece]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedChunk:
    stream: Stream
    offset: int
    data: bytes
    skipped_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    reason: Reason
    exit_code: int | None = None
    signal: int | None = None


class ScriptedProcess:
    """The command itself; handles look at it. It runs in a task of its own until it is over."""

    def __init__(
        self,
        process_id: ProcessId,
        *,
        pid: int,
        argv: tuple[str, ...],
        reply: Reply,
        separate: bool,
        tty: bool,
        timeout_s: float | None,
    ) -> None:
        self.id = process_id
        self.pid = pid
        self.tty = tty
        self._argv = argv
        self._reply = reply
        self._separate = separate
        self._said: list[tuple[Stream, bytes]] = []
        self._news = asyncio.Event()
        self._stdin: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._stdin_open = True
        self._started_at = datetime.now(UTC)
        self._begin = time.monotonic()
        self._duration_s = 0.0
        self._end: _End | None = None
        self._sentence: _End | None = None
        self._task = asyncio.create_task(self._live(timeout_s))
        self._task.add_done_callback(self._ended)

    @property
    def is_over(self) -> bool:
        return self._end is not None

    @property
    def said(self) -> list[tuple[Stream, bytes]]:
        return self._said

    def info(self) -> ProcessInfo:
        return ProcessInfo(
            id=self.id,
            pid=self.pid,
            argv=self._argv,
            running=self._end is None,
            n_alive=int(self._end is None),
            started_at=self._started_at,
            tty=self.tty,
            exit_code=self._end.exit_code if self._end else None,
            reason=self._end.reason if self._end else None,
        )

    def feed(self, data: bytes) -> None:
        if self._end is not None or not self._stdin_open:
            raise ProcessEnded("the command is over, or has no stdin")
        self._stdin.put_nowait(data)

    def end_stdin(self) -> None:
        if self._stdin_open:
            self._stdin_open = False
            self._stdin.put_nowait(None)

    def end_by(self, signum: int) -> None:
        if self._end is not None:
            raise ProcessEnded("the command is over")
        self._sentence = _End(reason=Reason.SIGNALED, signal=signum)
        self._task.cancel()

    def kill(self) -> int:
        if self._end is not None:
            return 0
        self._sentence = _End(reason=Reason.KILLED, signal=signals.SIGKILL)
        self._task.cancel()
        return 1

    async def over(self) -> None:
        while self._end is None:
            await self._news.wait()

    async def more_than(self, n_pieces: int) -> bool:
        """Waits for a further piece of output; False where the command ended without one."""
        while len(self._said) <= n_pieces and self._end is None:
            await self._news.wait()
        return len(self._said) > n_pieces

    async def result(self, head_bytes: int, tail_bytes: int) -> ExecResult:
        await self.over()
        assert self._end is not None
        out = b"".join(data for stream, data in self._said if stream is not Stream.STDERR)
        err = b"".join(data for stream, data in self._said if stream is Stream.STDERR)
        return ExecResult(
            exit_code=self._end.exit_code,
            reason=self._end.reason,
            signal=self._end.signal,
            duration_s=self._duration_s,
            stdout=_captured(out, head_bytes, tail_bytes),
            stderr=_captured(err, head_bytes, tail_bytes),
        )

    async def _live(self, timeout_s: float | None) -> _End:
        try:
            async with asyncio.timeout(timeout_s):
                await self._perform()
        except TimeoutError:
            return _End(reason=Reason.TIMED_OUT, signal=signals.SIGKILL)
        return self._own_end()

    def _ended(self, task: asyncio.Task[_End]) -> None:
        told = self._reply.ends_as
        self._end = self._sentence or _End(reason=Reason.LOST) if task.cancelled() else task.result()
        self._duration_s = time.monotonic() - self._begin if told is None else told.duration_s
        self._tell()

    def _tell(self) -> None:
        """Wakes whoever waits for news."""
        self._news.set()
        self._news = asyncio.Event()

    async def _perform(self) -> None:
        for stream, piece in self._reply.pieces() or [(Stream.STDOUT, b"")]:
            await asyncio.sleep(self._reply.delay_s)
            self._say(stream, piece)
        if self._reply.echo:
            while (data := await self._stdin.get()) is not None:
                self._say(Stream.STDOUT, data)
        if self._reply.forever:
            await asyncio.Event().wait()

    def _say(self, stream: Stream, data: bytes) -> None:
        if data:
            self._said.append((stream if self._separate else Stream.OUTPUT, data))
            self._tell()

    def _own_end(self) -> _End:
        told = self._reply.ends_as
        if told is None:
            return _End(reason=Reason.EXITED, exit_code=self._reply.exit_code)
        return _End(reason=told.reason, exit_code=told.exit_code, signal=told.signal)


class ScriptedHandle:
    """`Process`."""

    def __init__(
        self,
        process: ScriptedProcess,
        *,
        offset: int = 0,
        stderr_offset: int = 0,
        forget: Callable[[], None] | None = None,
    ) -> None:
        self._process = process
        self._forget = forget
        self._skip = {Stream.OUTPUT: offset, Stream.STDOUT: offset, Stream.STDERR: stderr_offset}
        self._n_pieces = 0
        self._offsets = dict.fromkeys(Stream, 0)

    @property
    def id(self) -> ProcessId:
        return self._process.id

    @property
    def pid(self) -> int:
        return self._process.pid

    async def output(self) -> AsyncIterator[ScriptedChunk]:
        while await self._process.more_than(self._n_pieces):
            stream, data = self._process.said[self._n_pieces]
            self._n_pieces += 1
            begin = self._offsets[stream]
            self._offsets[stream] += len(data)
            unseen = data[max(0, self._skip[stream] - begin) :]
            if unseen:
                yield ScriptedChunk(stream=stream, offset=begin + len(data) - len(unseen), data=unseen)

    async def wait(self) -> ExecResult:
        result = await self._process.result(32768, 32768)
        if self._forget is not None:
            self._forget()
        return result

    async def write_stdin(self, data: bytes) -> None:
        self._process.feed(data)

    async def close_stdin(self) -> None:
        self._process.end_stdin()

    async def signal(self, signum: int) -> None:
        if type(signum) is bool or not 1 <= signum < signals.NSIG:
            raise InvalidArgument(f"{signum!r} is not a signal number")
        self._process.end_by(signum)
        await self._process.over()

    async def resize(self, size: TerminalSize) -> None:
        if not self._process.tty:
            raise NotSupported("the command has no terminal")
        if self._process.is_over:
            raise ProcessEnded("the command is over")

    async def kill(self) -> int:
        n_killed = self._process.kill()
        await self._process.over()
        return n_killed

    async def detach(self) -> None:
        """It runs on."""


def _captured(data: bytes, head_bytes: int, tail_bytes: int) -> Captured:
    if len(data) <= head_bytes + tail_bytes:
        return Captured(head=data, total_bytes=len(data))
    tail = data[len(data) - tail_bytes :] if tail_bytes else b""
    return Captured(head=data[:head_bytes], tail=tail, total_bytes=len(data))
