"""A sandbox for tests of what uses one: real files (in memory), commands that answer what the test said they would.

    sandbox = ScriptedSandbox([
        Rule("git status", Reply(b"clean\n")),
        Rule(re.compile("^make"), Reply(b"error\n", exit_code=2)),
        Rule(lambda call: call.user == "root", UserNotAllowed("not as root")),
    ])

The first rule that matches answers. A command without a rule is the test's mistake: `UnexpectedCommand`, which is an
AssertionError and not a SandboxError, so that no error handling under test can swallow it.
"""

import asyncio
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from types import TracebackType
from typing import Self

from sandbox.backends.memory import MemoryFiles
from sandbox.backends.scripted_process import Reply, ScriptedHandle, ScriptedProcess
from sandbox.client.processes import bounds, start_request
from sandbox.errors import InvalidArgument, ProcessNotFound, RequestConflict, SandboxError, SandboxLost
from sandbox.paths import resolve
from sandbox.protocol import Command, PathLike
from sandbox.types import ExecResult, ProcessId, ProcessInfo, RequestId, SandboxId, TerminalSize

__all__ = ["Call", "Reply", "Rule", "ScriptedSandbox", "UnexpectedCommand"]


class UnexpectedCommand(AssertionError):
    """A command that no rule answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A command as it was asked for."""

    command: str | tuple[str, ...]
    cwd: PurePosixPath | None = None
    env: Mapping[str, str] | None = None
    user: str | None = None
    timeout_s: float | None = None
    stdin: bytes | None = None
    """What `execute` fed; None for a start."""
    tty: TerminalSize | None = None
    separate: bool = False

    @property
    def line(self) -> str:
        """The command in one string, for matching."""
        return self.command if isinstance(self.command, str) else " ".join(self.command)


Match = str | re.Pattern[str] | Callable[[Call], bool]
Answer = Reply | ExecResult | SandboxError | Callable[[Call], Reply | ExecResult | SandboxError]


@dataclass(frozen=True, slots=True)
class Rule:
    """A string matches the whole command line, an expression a part of it, a function whatever it likes."""

    match: Match
    answer: Answer
    n_times: int | None = None
    """How often it may answer; None: always."""

    def matches(self, call: Call) -> bool:
        if isinstance(self.match, str):
            return call.line == self.match
        if isinstance(self.match, re.Pattern):
            return self.match.search(call.line) is not None
        return self.match(call)


class ScriptedSandbox(MemoryFiles):
    """`Sandbox`, with all that `MemoryFiles` can. `calls` is what it was asked to run, in order."""

    def __init__(self, rules: Iterable[Rule] = (), *, sandbox_id: str = "scripted") -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._rules = list(rules)
        self._n_used = [0] * len(self._rules)
        self._id = SandboxId(sandbox_id)
        self._processes: dict[str, tuple[Call, ScriptedProcess]] = {}
        self._is_gone = False

    @property
    def id(self) -> SandboxId:
        return self._id

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
        call = _call(command, cwd, env, user, timeout_s)
        bounds(head_bytes, tail_bytes, 1)
        if stdin is not None and not isinstance(stdin, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]  callers are models, too
            raise InvalidArgument(f"stdin takes bytes, not {type(stdin).__name__}")
        process = await self._run(replace(call, stdin=stdin or b"", separate=separate), request_id)
        process.end_stdin()
        try:
            return await process.result(head_bytes, tail_bytes)
        except asyncio.CancelledError:
            process.kill()
            raise
        finally:
            if request_id is None:
                await self.acknowledge(process.id)

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
    ) -> ScriptedHandle:
        call = _call(command, cwd, env, user, timeout_s)
        process = await self._run(replace(call, tty=tty, separate=separate), request_id)
        if not stdin and tty is None:
            process.end_stdin()
        return ScriptedHandle(process, forget=None if request_id else lambda: self._forget(process.id))

    async def attach(self, process_id: ProcessId, *, offset: int = 0, stderr_offset: int = 0) -> ScriptedHandle:
        return ScriptedHandle(self._process(process_id), offset=offset, stderr_offset=stderr_offset)

    async def processes(self) -> list[ProcessInfo]:
        self._check_alive()
        return [process.info() for _, process in self._processes.values()]

    async def acknowledge(self, *request_ids: RequestId | ProcessId) -> None:
        for request_id in request_ids:
            self._forget(request_id)

    async def detach(self) -> None:
        """Commands run on."""

    async def destroy(self) -> None:
        self._is_gone = True
        for _, process in self._processes.values():
            process.kill()
            await process.over()
        self._processes.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.destroy()

    async def _run(self, call: Call, request_id: RequestId | None) -> ScriptedProcess:
        self._check_alive()
        identity = request_id or uuid.uuid4().hex
        if identity in self._processes:
            earlier, process = self._processes[identity]
            if earlier != call:
                raise RequestConflict(f"the request id {identity} was used for something else; take a new one")
            return process
        if call.cwd is not None:
            await self.ls(call.cwd)
        reply = self._answer(call)
        words = ("bash", "-c", call.command) if isinstance(call.command, str) else call.command
        process = ScriptedProcess(
            ProcessId(identity),
            pid=100 + len(self.calls),
            argv=words,
            reply=reply,
            separate=call.separate,
            tty=call.tty is not None,
            timeout_s=call.timeout_s,
        )
        if call.stdin:
            process.feed(call.stdin)
        self._processes[identity] = (call, process)
        return process

    def _answer(self, call: Call) -> Reply:
        self.calls.append(call)
        for number, rule in enumerate(self._rules):
            if (rule.n_times is None or self._n_used[number] < rule.n_times) and rule.matches(call):
                self._n_used[number] += 1
                answer = rule.answer
                found = answer(call) if callable(answer) else answer
                if isinstance(found, SandboxError):
                    raise found
                return Reply.of(found) if isinstance(found, ExecResult) else found
        known = "; ".join(repr(rule.match) for rule in self._rules) or "none"
        raise UnexpectedCommand(f"no rule answers {call.line!r}. Rules: {known}")

    def _process(self, process_id: ProcessId) -> ScriptedProcess:
        self._check_alive()
        if process_id not in self._processes:
            raise ProcessNotFound(f"there is no process {process_id}: it never was, or was acknowledged")
        return self._processes[process_id][1]

    def _forget(self, process_id: str) -> None:
        if process_id in self._processes and self._processes[process_id][1].is_over:
            del self._processes[process_id]

    def _check_alive(self) -> None:
        if self._is_gone:
            raise SandboxLost("the sandbox was destroyed")


def _call(
    command: Command,
    cwd: PathLike | None,
    env: Mapping[str, str] | None,
    user: str | None,
    timeout_s: float | None,
) -> Call:
    """Checked as a real sandbox does. Raises: InvalidArgument, InvalidPath, PathEscapes."""
    start_request(command, cwd=cwd, env=env, user=user, timeout_s=timeout_s)
    return Call(
        command=command if isinstance(command, str) else tuple(command),
        cwd=None if cwd is None else resolve(cwd),
        env=None if env is None else dict(env),
        user=user,
        timeout_s=timeout_s,
    )
