"""`boatyard exec -- CMD…`: one command in a sandbox of its own."""

import asyncio
import contextlib
import io
import os
import signal
import sys
import tarfile
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from gateway.cli import streams, terminal
from sandbox.backends.docker import DockerBackend
from sandbox.client.processes import GuestProcess
from sandbox.client.sandbox import GuestSandbox
from sandbox.errors import CommandNotExecutable, CommandNotFound, InvalidArgument, SandboxError, SandboxLost
from sandbox.types import ExecResult, Limits, Mount, Reason, SandboxSpec

TIMED_OUT, OUR_FAULT, NOT_EXECUTABLE, NOT_FOUND, BY_SIGNAL = 124, 125, 126, 127, 128
"""Exit codes for what is not the command's own, as `timeout`, `docker` and the shells have them."""

_ORPHAN_AFTER_S = 30.0
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def exec_command(
    command: Annotated[list[str] | None, typer.Argument(metavar="-- CMD…", help="The program and its words.")] = None,
    *,
    shell: Annotated[str | None, typer.Option("--shell", "-c", help="A line for the shell instead of CMD.")] = None,
    image: Annotated[str, typer.Option(help="A shipped image, an image file, or any image the engine has.")] = "base",
    timeout: Annotated[float | None, typer.Option(help="Seconds until it is killed (exit code 124).")] = None,
    memory: Annotated[str, typer.Option(help="Memory limit, as in 512m or 2g.")] = "2g",
    cpus: Annotated[float, typer.Option(help="CPU limit.")] = 1.0,
    cwd: Annotated[str | None, typer.Option(help="Directory to run in; /workspace otherwise.")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE; can be repeated.")] = None,
    user: Annotated[str | None, typer.Option(help="A user of the image to run as.")] = None,
    copy: Annotated[Path | None, typer.Option(help="Copy this directory to /workspace first.")] = None,
    mount: Annotated[list[str] | None, typer.Option(help="SOURCE:TARGET[:rw], read-only unless :rw.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, to find the sandbox by; can be repeated.")
    ] = None,
    interactive: Annotated[bool, typer.Option("--interactive", "-i", help="Pass standard input on.")] = False,
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Give it a terminal, with -i.")] = False,
) -> None:
    """Run a command in a fresh sandbox, with its output live and its own exit code.

    124: timed out. 125: Boatyard failed. 126, 127: not executable, not found. 128+N: ended by signal N.
    """
    words = [] if command is None else list(command)
    if bool(words) == bool(shell):
        raise typer.BadParameter("give either a command after -- or a line with --shell")
    if tty and not (interactive and os.isatty(0)):
        raise typer.BadParameter("--tty needs --interactive and a terminal on standard input")
    run = _Run(
        spec=_spec(image, memory, cpus, mount or [], label or []),
        command=shell or words,
        timeout_s=timeout,
        cwd=cwd,
        env=_pairs(env or []),
        user=user,
        copy=copy,
        interactive=interactive,
        tty=tty,
    )
    sys.exit(asyncio.run(run.guarded()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    spec: SandboxSpec
    command: str | list[str]
    timeout_s: float | None
    cwd: str | None
    env: dict[str, str]
    user: str | None
    copy: Path | None
    interactive: bool
    tty: bool

    async def guarded(self) -> int:
        """The exit code; a signal to us ends the command, and the sandbox with it.

        The first does: an impatient second Ctrl-C must not break off the removal of the sandbox.
        """
        loop = asyncio.get_running_loop()
        running = asyncio.ensure_future(self._run())
        stopped_by: list[int] = []

        def stop(signum: int, _frame: object) -> None:
            if not stopped_by:
                stopped_by.append(signum)
                with contextlib.suppress(RuntimeError):  # the loop is over
                    loop.call_soon_threadsafe(running.cancel)

        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Not by the loop, which at its end gives them back: a Ctrl-C after it would be a traceback.
            if signal.getsignal(signum) is not signal.SIG_IGN:  # as under nohup
                signal.signal(signum, stop)
        try:
            return await running
        except asyncio.CancelledError:
            return BY_SIGNAL + (stopped_by[0] if stopped_by else signal.SIGINT)
        except (CommandNotFound, CommandNotExecutable) as error:
            streams.say(f"boatyard: {error.message}")
            return NOT_FOUND if isinstance(error, CommandNotFound) else NOT_EXECUTABLE
        except SandboxError as error:
            streams.say(f"boatyard: {error.message} [{error.code}]")
            return OUR_FAULT
        except streams.StreamFailed as error:
            if error.reader_is_gone:
                return BY_SIGNAL + signal.SIGPIPE
            streams.say(f"boatyard: {error}")
            return OUR_FAULT

    async def _run(self) -> int:
        async with DockerBackend.open() as backend, await backend.create(self.spec) as sandbox:
            try:
                return await self._run_in(sandbox)
            except SandboxLost as lost:
                raise SandboxLost(f"{lost.message}: {await backend.why_ended(sandbox.id)}") from None

    async def _run_in(self, sandbox: GuestSandbox) -> int:
        if self.copy is not None:
            await sandbox.upload(await asyncio.to_thread(_tar, self.copy))
        process = await sandbox.start(
            self.command,
            cwd=self.cwd,
            env=self.env,
            user=self.user,
            timeout_s=self.timeout_s,
            stdin=self.interactive and not self.tty,
            tty=terminal.size() if self.tty else None,
            separate=not self.tty,
        )
        async with self._input(process):
            await _show(process)
        return _exit_code(await process.wait(), self.timeout_s)

    @contextlib.asynccontextmanager
    async def _input(self, process: GuestProcess) -> AsyncGenerator[None]:
        if not self.interactive:
            yield
            return
        with terminal.raw(sys.stdin) if self.tty else contextlib.nullcontext():
            if self.tty:
                terminal.follow_size(process)
            try:
                async with asyncio.TaskGroup() as tasks:
                    feeding = tasks.create_task(streams.feed(process))
                    yield
                    feeding.cancel()
            except BaseExceptionGroup as group:
                # Whichever failed first ended the other.
                raise group.exceptions[0] from None


async def _show(process: GuestProcess) -> None:
    """Bytes as they come: what is piped out of us must be what the command wrote."""
    output = streams.Output()
    async for chunk in process.output():
        await output.write(chunk.stream, chunk.data)


def _exit_code(result: ExecResult, timeout_s: float | None) -> int:
    if result.reason is Reason.EXITED:
        return result.exit_code or 0
    if result.reason is Reason.TIMED_OUT:
        streams.say(f"boatyard: killed after {timeout_s:g} s, with everything it had started")
        return TIMED_OUT
    return BY_SIGNAL + (result.signal or signal.SIGKILL)


def _spec(image: str, memory: str, cpus: float, mounts: list[str], labels: list[str]) -> SandboxSpec:
    try:
        limits = Limits.for_memory(_size(memory)).model_copy(update={"cpus": cpus})
        return SandboxSpec(
            image=image,
            limits=Limits.model_validate(limits.model_dump()),
            mounts=tuple(_mount(text) for text in mounts),
            labels=_pairs(labels),
            orphan_after_s=_ORPHAN_AFTER_S,
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise typer.BadParameter(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _size(text: str) -> int:
    number, unit = text.rstrip("kmgKMG"), text[len(text.rstrip("kmgKMG")) :].lower()
    if unit not in _UNITS or not number.isdigit():
        raise typer.BadParameter(f"{text!r} is not a size; write 512m or 2g")
    return int(number) * _UNITS[unit]


def _mount(text: str) -> Mount:
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not target or mode not in ("", "ro", "rw"):
        raise typer.BadParameter(f"{text!r} is not SOURCE:TARGET[:rw]")
    path = Path(source).absolute()
    if not path.exists():
        raise typer.BadParameter(f"{source} does not exist")
    return Mount.model_validate({"source": path, "target": target, "read_only": mode != "rw"})


def _pairs(pairs: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE")
        found[name] = value
    return found


def _tar(directory: Path) -> bytes:
    if not directory.is_dir():
        raise InvalidArgument(f"{directory} is not a directory; --copy takes one")
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        archive.add(directory, arcname=".", filter=_owned_by_nobody)
    return target.getvalue()


def _owned_by_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Pipes, sockets and devices stay here; owners mean nothing there."""
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
