"""Commands in a sandbox, over its link."""

import asyncio
import contextlib
import signal as signals
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from sandbox import arguments, wire
from sandbox.cancellation import to_its_end
from sandbox.client.channel import Channel, Item
from sandbox.client.files import digest
from sandbox.client.link import WINDOW, Link, Urgency
from sandbox.client.parse import Lines, believed, exec_result, process_info
from sandbox.errors import InvalidArgument, ProcessEnded, ProcessNotFound, SandboxBroken, SandboxError
from sandbox.paths import resolve
from sandbox.protocol import Command, PathLike
from sandbox.types import ExecResult, ProcessId, ProcessInfo, RequestId, Stream, TerminalSize

HEAD_BYTES = 32768
TAIL_BYTES = 32768
MAX_CAPTURE_BYTES = 2 << 20
_EVENT_CREDIT = 4096
_OVERDUE_S = 30.0
"""How long after a command's timeout a sandbox may take to end it before we stop waiting."""
_KILL_TIMEOUT_S = 15.0
_STREAMS = {wire.STDOUT: Stream.STDOUT, wire.STDERR: Stream.STDERR}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    stream: Stream
    offset: int
    data: bytes
    skipped_bytes: int = 0


class Capture:
    """Collects what a bounded view sends: each stream's beginning and, after a gap, its end."""

    def __init__(self) -> None:
        self._parts: dict[int, tuple[bytearray, bytearray]] = {}
        self._gaps: set[int] = set()

    def __call__(self, item: Item) -> None:
        if isinstance(item, tuple):
            head, tail = self._parts.setdefault(item[0], (bytearray(), bytearray()))
            (tail if item[0] in self._gaps else head).extend(item[1])
        elif "gap" in item:
            self._gaps.add(believed(_gap, item["gap"])[0])

    def result(self, raw: dict[str, Any]) -> ExecResult:
        return believed(exec_result, raw, {n: (bytes(head), bytes(tail)) for n, (head, tail) in self._parts.items()})


def start_request(
    command: Command,
    *,
    cwd: PathLike | None,
    env: Mapping[str, str] | None,
    user: str | None,
    timeout_s: float | None,
) -> dict[str, Any]:
    """The part of a start that `execute` and `start` share, checked. Raises: InvalidArgument, InvalidPath."""
    request: dict[str, Any] = {}
    if isinstance(command, str):
        request["shell"] = arguments.word("the command", command)
        if not command.strip():
            raise InvalidArgument("the command is empty; give a shell line or a list of words")
    else:
        request["argv"] = arguments.words(command)
    if cwd is not None:
        request["cwd"] = str(resolve(cwd))
    if env:
        request["env"] = arguments.environment(env)
    if user is not None:
        request["user"] = arguments.word("user", user)
        if not user:
            raise InvalidArgument("user must be a name; leave it out to run as the default")
    if timeout_s is not None:
        request["timeout_s"] = arguments.timeout_s(timeout_s)
    return request


def bounds(head_bytes: int, tail_bytes: int, n_streams: int) -> tuple[dict[str, int], int]:
    """The request's bounds, and the credit that lets exactly that much through."""
    for name, value in (("head_bytes", head_bytes), ("tail_bytes", tail_bytes)):
        if type(value) is not int or not 0 <= value <= MAX_CAPTURE_BYTES:
            raise InvalidArgument(f"{name} must lie between 0 and {MAX_CAPTURE_BYTES}, not {value!r}")
    return {"head": head_bytes, "tail": tail_bytes}, n_streams * (head_bytes + tail_bytes) + _EVENT_CREDIT


class GuestProcess:
    """A handle on a command. It costs nothing while nobody reads or writes through it."""

    def __init__(self, link: Link, process_id: ProcessId, *, ours: bool) -> None:
        self.id = process_id
        self.pid = 0
        self._link = link
        self._separate = False
        self._ours = ours
        """We chose the id, so we acknowledge."""
        self._offsets: dict[int, int] = {wire.STDOUT: 0, wire.STDERR: 0}
        self._result: ExecResult | None = None
        self._input = contextlib.AsyncExitStack()
        self._input_channel: Channel | None = None
        self._writing = asyncio.Lock()

    async def start(self, request: dict[str, Any]) -> None:
        """Raises as `Sandbox.start`. A command whose start is cancelled is killed, unless the caller knows its id."""
        try:
            found = await self._link.call("start", {**request, "id": self.id, "detached": True}, urgency=Urgency.LONG)
        except asyncio.CancelledError:
            if self._ours:
                await kill_cancelled(self._link, self.id)
                self._link.acknowledge_later(self.id)
            raise
        self.pid, self._separate = believed(_handle, found)

    async def find(self, *, offset: int, stderr_offset: int) -> None:
        """Raises: ProcessNotFound."""
        self._offsets = {wire.STDOUT: offset, wire.STDERR: stderr_offset}
        self.pid, self._separate = believed(_handle, await self._link.call("find", {"process": self.id}))

    async def output(self) -> AsyncGenerator[Chunk]:
        stdout, stderr = self._offsets[wire.STDOUT], self._offsets[wire.STDERR]
        request = {"process": self.id, "offset": stdout, "stderr_offset": stderr}
        skipped = dict.fromkeys(self._offsets, 0)
        async with self._link.open("attach", request, credit=WINDOW) as channel:
            while (item := await channel.take()) is not None:
                if isinstance(item, tuple):
                    number, data = item
                    yield self._chunk(number, data, skipped)
                elif "gap" in item:
                    number, start, stop = believed(_gap, item["gap"])
                    skipped[number] += stop - start
                    self._offsets[number] = stop
        for number in [number for number, n_bytes in skipped.items() if n_bytes]:
            yield self._chunk(number, b"", skipped)

    def _chunk(self, number: int, data: bytes, skipped: dict[int, int]) -> Chunk:
        stream, offset = self._name(number), self._offsets[number]
        self._offsets[number] += len(data)
        n_skipped, skipped[number] = skipped[number], 0
        return Chunk(stream=stream, offset=offset, data=data, skipped_bytes=n_skipped)

    async def wait(self) -> ExecResult:
        if self._result is None:
            bounded, credit = bounds(HEAD_BYTES, TAIL_BYTES, 2)
            capture = Capture()
            request = {"process": self.id, **bounded}
            async with self._link.open("attach", request, credit=credit, refill=False, on_item=capture) as channel:
                self._result = capture.result(await channel.done)
            if self._ours:
                self._link.acknowledge_later(self.id)
        return self._result

    async def write_stdin(self, data: bytes) -> None:
        arguments.raw("stdin", data)
        async with self._writing:
            if data and not await (await self._open_input()).send(data):
                raise ProcessEnded("the command is over, closed its input or was started without; it reads nothing")

    async def close_stdin(self) -> None:
        async with self._writing:
            await (await self._open_input()).send(b"", end=True)

    async def _open_input(self) -> Channel:
        self._check_alive()
        if self._input_channel is None:
            opened = self._link.open("input", {"process": self.id})
            self._input_channel = await self._input.enter_async_context(opened)
            await self._input_channel.take()  # it says whether there is any input to be taken
        return self._input_channel

    async def signal(self, signum: int) -> None:
        if type(signum) is bool or not 1 <= int(signum) <= signals.NSIG - 1:
            raise InvalidArgument(f"{signum!r} is not a signal number")
        self._check_alive()
        await self._link.call("signal", {"process": self.id, "signum": int(signum)}, urgency=Urgency.KILL)

    async def resize(self, size: TerminalSize) -> None:
        self._check_alive()
        await self._link.call("resize", {"process": self.id, "rows": size.rows, "cols": size.cols})

    async def kill(self) -> int:
        try:
            return await kill(self._link, self.id)
        except ProcessNotFound:
            if self._result is None:
                raise
            return 0  # over, acknowledged, and nothing of it left

    async def detach(self) -> None:
        if self._ours and self._result is None:
            self._link.acknowledge_later(self.id)
        await self._input.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.detach()

    def _check_alive(self) -> None:
        if self._result is not None:
            raise ProcessEnded("the command is over")

    def _name(self, number: int) -> Stream:
        if number not in _STREAMS:
            raise SandboxBroken("the sandbox sent output of an unknown stream; destroy it")
        return _STREAMS[number] if self._separate else Stream.OUTPUT


async def execute(
    link: Link,
    request: dict[str, Any],
    *,
    stdin: bytes | None,
    head_bytes: int,
    tail_bytes: int,
    request_id: RequestId | None,
) -> ExecResult:
    """Start, feed and wait in one exchange; a command that is cancelled is killed before this returns."""
    identity = request_id or link.new_id()
    bounded, credit = bounds(head_bytes, tail_bytes, 2 if request.get("separate") else 1)
    capture = Capture()
    request = {**request, **bounded, "id": identity, "stdin": stdin is not None}
    if request_id is not None and stdin is not None:
        request["digest"] = digest(stdin)
    small = stdin if stdin is not None and len(stdin) <= wire.HOST_CREDIT else None
    timeout_s = request.get("timeout_s")
    deadline_s = None if timeout_s is None else timeout_s + _OVERDUE_S
    try:
        async with link.open("start", request, credit=credit, refill=False, data=small, on_item=capture) as channel:
            try:
                async with link.within("a command with a timeout", deadline_s):
                    if stdin is not None and small is None:
                        await channel.send(stdin, end=True)
                    return capture.result(await channel.done)
            except asyncio.CancelledError:
                await kill_cancelled(link, ProcessId(identity))
                raise
    finally:
        if request_id is None:
            link.acknowledge_later(identity)


async def kill_cancelled(link: Link, process_id: ProcessId) -> None:
    """Not to be cancelled a second time: when it returns, the command is gone, or the sandbox is, or the time is up.

    For use in an `except CancelledError` that raises it again, so that those which came meanwhile are not lost.
    """
    with contextlib.suppress(SandboxError, asyncio.CancelledError):
        await to_its_end(kill(link, process_id))


async def kill(link: Link, process_id: ProcessId) -> int:
    answer = await link.call("kill", {"process": process_id}, timeout_s=_KILL_TIMEOUT_S, urgency=Urgency.KILL)
    return believed(int, answer.get("n_killed"))


async def processes(link: Link) -> list[ProcessInfo]:
    lines, found = Lines(), list[ProcessInfo]()
    async with link.open("processes", {}, credit=WINDOW, urgency=Urgency.SHORT) as channel:
        while (item := await channel.take()) is not None:
            if isinstance(item, tuple):
                found += [believed(process_info, raw) for raw in lines.feed(item[1])]
    return found


def _handle(raw: Any) -> tuple[int, bool]:
    return int(raw["pid"]), bool(raw["separate"])


def _gap(raw: Any) -> tuple[int, int, int]:
    stream, start, stop = raw
    return int(stream), int(start), int(stop)
