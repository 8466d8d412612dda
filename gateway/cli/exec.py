"""`boatyard exec -- CMD…`: one command in a sandbox of its own."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console

from gateway.cli import streams, terminal, tree
from gateway.cli.complaint import complaint
from gateway.cli.images import Reporter
from sandbox.backends.docker import DockerBackend
from sandbox.backends.docker.images import ensure
from sandbox.client.processes import GuestProcess
from sandbox.client.sandbox import GuestSandbox
from sandbox.errors import CommandNotExecutable, CommandNotFound, NoSpace, SandboxError, SandboxLost
from sandbox.types import MIB, ExecResult, Exhausted, Limits, Mount, Reason, SandboxSpec, Weakness

TIMED_OUT, OUR_FAULT, NOT_EXECUTABLE, NOT_FOUND, BY_SIGNAL = 124, 125, 126, 127, 128
_RAN_OUT = {
    Exhausted.MEMORY: "the sandbox reached its memory limit, and the kernel killed something in it; raise --memory",
    Exhausted.PROCESSES: "the sandbox reached its limit of processes",
    Exhausted.DISK: "a disk of the sandbox is full; raise --disk, or --memory for /tmp",
}
"""Exit codes for what is not the command's own, as `timeout`, `docker` and the shells have them."""

_ORPHAN_AFTER_S = 30.0
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class Misuse(typer.BadParameter):
    """Of more than one option, or found later than their values are parsed: so it says itself which it is about."""

    def format_message(self) -> str:
        return self.message


def exec_command(
    command: Annotated[list[str] | None, typer.Argument(metavar="CMD", hidden=True)] = None,
    *,
    shell: Annotated[
        str | None, typer.Option("--shell", "-c", metavar="LINE", help="A line for the shell instead of CMD.")
    ] = None,
    image: Annotated[
        str, typer.Option(metavar="IMAGE", help="A shipped image, an image file, or any image the engine has.")
    ] = "base",
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="How long until it is killed (exit code 124).")
    ] = None,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory limit, as in 512m or 2g; /tmp counts.")] = "2g",
    disk: Annotated[str, typer.Option(metavar="SIZE", help="Room for /workspace and the home directory.")] = "2g",
    cpus: Annotated[float, typer.Option(metavar="N", help="CPU limit.")] = 1.0,
    cwd: Annotated[str | None, typer.Option(metavar="DIR", help="Directory to run in; /workspace otherwise.")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", metavar="NAME=VALUE", help="Can be repeated.")] = None,
    user: Annotated[str | None, typer.Option(metavar="USER", help="A user of the image to run as.")] = None,
    copy: Annotated[Path | None, typer.Option(metavar="DIR", help="Copy this directory to /workspace first.")] = None,
    mount: Annotated[
        list[str] | None,
        typer.Option(metavar="SOURCE:TARGET[:rw]", help="Show it inside, read-only unless :rw; can be repeated."),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="To find the sandbox by; can be repeated.")
    ] = None,
    allow_weaker: Annotated[
        list[Weakness] | None,
        typer.Option(metavar="NAME", help=f"What may be missing if it cannot be had here: {', '.join(Weakness)}."),
    ] = None,
    interactive: Annotated[bool, typer.Option("--interactive", "-i", help="Pass standard input on.")] = False,
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Give it a terminal, with -i.")] = False,
) -> None:
    """Run CMD in a fresh sandbox, with its output live and its own exit code.

    124: timed out. 125: Boatyard failed. 126, 127: not executable, not found. 128+N: ended by signal N.
    """
    words = [] if command is None else list(command)
    if not words and shell is None:
        raise Misuse("what shall it run? Give a command, as in `boatyard exec ls -l`, or a line with --shell")
    if words and shell is not None:
        raise Misuse("give either a command or a line with --shell, not both")
    if tty and not (interactive and os.isatty(0)):
        raise Misuse("--tty needs --interactive and a terminal on standard input")
    run = _Run(
        spec=_spec(
            image=image,
            memory_bytes=_size("--memory", memory, at_least=64 * MIB),
            disk_bytes=_size("--disk", disk, at_least=8 * MIB),
            cpus=cpus,
            mounts=mount or [],
            labels=label or [],
            weaker=allow_weaker or [],
        ),
        command=words if shell is None else shell,
        timeout_s=timeout,
        cwd=cwd,
        env=_pairs("--env", env or []),
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
            streams.say(complaint(error))
            return OUR_FAULT
        except streams.StreamFailed as error:
            if error.reader_is_gone:
                return BY_SIGNAL + signal.SIGPIPE
            streams.say(f"boatyard: {error}")
            return OUR_FAULT

    async def _run(self) -> int:
        async with DockerBackend.open() as backend:
            await self._image(backend)
            async with await backend.create(self.spec) as sandbox:
                try:
                    return await self._run_in(sandbox)
                except SandboxLost as lost:
                    raise SandboxLost(f"{lost.message}: {await backend.why_ended(sandbox.id)}") from None

    async def _image(self, backend: DockerBackend) -> None:
        """Made or fetched first, with its steps shown: it may take minutes."""
        reporter = Reporter(Console(stderr=True), verbose=False)
        try:
            await ensure(backend.engine, self.spec.image, progress=reporter)
        finally:
            reporter.close()

    async def _run_in(self, sandbox: GuestSandbox) -> int:
        if self.copy is not None:
            await self._upload(sandbox, self.copy)
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

    async def _upload(self, sandbox: GuestSandbox, directory: Path) -> None:
        try:
            async with contextlib.aclosing(tree.packed(directory)) as tar:
                await sandbox.upload(tar)
        except NoSpace:
            room = f"/workspace, which has {self.spec.limits.disk_bytes // MIB} MiB with the home directory"
            raise NoSpace(f"{directory} does not fit into {room}; copy less, or raise --disk") from None

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
    if result.reason is Reason.TIMED_OUT:
        streams.say(f"boatyard: killed after {timeout_s:g} s, with everything it had started")
        return TIMED_OUT
    if not result.ok:
        for name in result.exhausted:
            streams.say(f"boatyard: {_RAN_OUT[name]}")
    if result.reason is Reason.EXITED:
        return result.exit_code or 0
    return BY_SIGNAL + (result.signal or signal.SIGKILL)


def _spec(
    *,
    image: str,
    memory_bytes: int,
    disk_bytes: int,
    cpus: float,
    mounts: list[str],
    labels: list[str],
    weaker: list[Weakness],
) -> SandboxSpec:
    try:
        limits = Limits.for_memory(memory_bytes).model_copy(update={"cpus": cpus, "disk_bytes": disk_bytes})
        return SandboxSpec(
            image=image,
            limits=Limits.model_validate(limits.model_dump()),
            mounts=tuple(_mount(text) for text in mounts),
            labels=_pairs("--label", labels),
            orphan_after_s=_ORPHAN_AFTER_S,
            allow_weaker=frozenset(weaker),
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise Misuse(where + first["msg"].removeprefix("Value error, ")) from None


def _size(option: str, text: str, *, at_least: int) -> int:
    number, unit = text.rstrip("kmgKMG"), text[len(text.rstrip("kmgKMG")) :].lower()
    if unit not in _UNITS or not number.isdigit():
        raise Misuse(f"{option} {text}: not a size; write 512m or 2g")
    size = int(number) * _UNITS[unit]
    if size < at_least:
        raise Misuse(f"{option} {text}: too little; a sandbox needs {at_least // MIB}m at least")
    return size


def _mount(text: str) -> Mount:
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not target or mode not in ("", "ro", "rw"):
        raise Misuse(f"--mount {text}: not SOURCE:TARGET[:rw]")
    path = Path(source).absolute()
    if not path.exists():
        raise Misuse(f"--mount {text}: {source} does not exist")
    return Mount.model_validate({"source": path, "target": target, "read_only": mode != "rw"})


def _pairs(option: str, pairs: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise Misuse(f"{option} {pair}: not NAME=VALUE")
        found[name] = value
    return found
