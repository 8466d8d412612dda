"""The `Sandbox` that every backend with a guest returns: files and commands over one link."""

from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Self

from sandbox import arguments
from sandbox.client import processes
from sandbox.client.files import GuestFiles
from sandbox.client.link import Link, Welcome
from sandbox.client.processes import GuestProcess, start_request
from sandbox.errors import InvalidArgument, LeaseLost, SandboxBroken
from sandbox.protocol import Command, PathLike
from sandbox.types import ExecResult, ProcessId, ProcessInfo, RequestId, SandboxId, TerminalSize


class GuestSandbox(GuestFiles):
    """`destroy` is the backend's; everything else is the guest's."""

    def __init__(
        self,
        link: Link,
        sandbox_id: SandboxId,
        *,
        created: bool,
        destroy: Callable[[], Awaitable[None]],
        is_held: Callable[[int], Awaitable[bool]],
    ) -> None:
        """`is_held` asks whether a sandbox that we lost touch with is still held under this epoch, by nobody newer."""
        super().__init__(link)
        self._id = sandbox_id
        self._is_ours = created
        self._destroy = destroy
        self._is_held = is_held

    @property
    def id(self) -> SandboxId:
        return self._id

    @property
    def welcome(self) -> Welcome:
        if self._link.welcome is None:
            raise SandboxBroken("the sandbox never said hello")
        return self._link.welcome

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
        head_bytes: int = processes.HEAD_BYTES,
        tail_bytes: int = processes.TAIL_BYTES,
        request_id: RequestId | None = None,
    ) -> ExecResult:
        request = start_request(command, cwd=cwd, env=env, user=user, timeout_s=timeout_s)
        if stdin is not None:
            arguments.raw("stdin", stdin)
        if separate:
            request["separate"] = True
        return await processes.execute(
            self._link,
            request,
            stdin=stdin,
            head_bytes=head_bytes,
            tail_bytes=tail_bytes,
            request_id=request_id,
        )

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
    ) -> GuestProcess:
        if tty is not None and separate:
            raise InvalidArgument("a terminal has one output; leave out `separate` or `tty`")
        request = start_request(command, cwd=cwd, env=env, user=user, timeout_s=timeout_s)
        request.update(stdin=stdin, separate=separate, tty=None if tty is None else [tty.rows, tty.cols])
        process_id = ProcessId(request_id or self._link.new_id())
        process = GuestProcess(self._link, process_id, ours=request_id is None)
        await process.start(request)
        return process

    async def attach(self, process_id: ProcessId, *, offset: int = 0, stderr_offset: int = 0) -> GuestProcess:
        arguments.count("offset", offset)
        arguments.count("stderr_offset", stderr_offset)
        process = GuestProcess(self._link, process_id, ours=False)
        await process.find(offset=offset, stderr_offset=stderr_offset)
        return process

    async def processes(self) -> list[ProcessInfo]:
        return await processes.processes(self._link)

    async def acknowledge(self, *request_ids: RequestId | ProcessId) -> None:
        self._link.acknowledge([str(request_id) for request_id in request_ids])

    async def detach(self) -> None:
        self._is_ours = False
        self._link.close()

    async def destroy(self) -> None:
        self._link.close()
        await self._destroy()
        self._is_ours = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await (self.destroy() if await self._may_destroy() else self.detach())

    async def _may_destroy(self) -> bool:
        """Whoever created it destroys it, unless they let go of it, or somebody took it over: then it is theirs."""
        ended = self._link.ended
        if not self._is_ours or isinstance(ended, LeaseLost):
            return False
        return ended is None or await self._is_held(self.welcome.epoch)
