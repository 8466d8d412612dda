"""`boatyard demo`: what a sandbox does, on this machine, in half a minute. It is what `make run` shows."""

import asyncio
import statistics
import time
from collections.abc import Awaitable

from rich.console import Console
from rich.table import Table

from sandbox.backends.docker import DockerBackend
from sandbox.backends.docker.container import name_of
from sandbox.client.sandbox import GuestSandbox
from sandbox.output import LiveText, render
from sandbox.types import SandboxSpec

_PROGRAM = b"""\
import os, platform, time
print("hello from", platform.node(), "as uid", os.getuid(), "with python", platform.python_version(), flush=True)
for n in range(1, 6):
    print("  step", n, "of 5", flush=True)
    time.sleep(0.2)
"""
_MAZE = "setsid sleep 1000 & nohup sleep 1000 >/dev/null 2>&1 & (sleep 1000 &) & sleep 1000"
_N_TIMINGS = 60
_TURN = 5
_ORPHAN_AFTER_S = 30.0
_SETTLE_S = 0.02
"""The engine is still tidying up when its exec call returns; that is not our time."""


def demo_command() -> None:
    """Show a sandbox at work: live output, a timeout, an over-large output, and timings against docker exec."""
    asyncio.run(_demo(Console(highlight=False)))


async def _demo(console: Console) -> None:
    async with DockerBackend.open() as backend:
        began = time.perf_counter()
        async with await backend.create(SandboxSpec(orphan_after_s=_ORPHAN_AFTER_S)) as sandbox:
            took_ms = (time.perf_counter() - began) * 1000
            _title(console, f"A sandbox: sealed container {name_of(sandbox.id)}, ready in {took_ms:.0f} ms")
            console.print(
                "no network, read-only root, no capabilities for commands, 2 GiB each of memory and disk, 1 CPU"
            )
            await _streaming(console, sandbox)
            await _timeout(console, sandbox)
            await _large_output(console, sandbox)
            await _timings(console, backend, sandbox)
        _title(console, "The sandbox is gone; nothing is left of it")
        console.print("Try it yourself:  .venv/bin/boatyard exec --help")


def _title(console: Console, text: str) -> None:
    console.print(f"\n[bold]{text}[/bold]", soft_wrap=True)


async def _streaming(console: Console, sandbox: GuestSandbox) -> None:
    _title(console, "A small program, its output as it comes")
    await sandbox.write("hello.py", _PROGRAM)
    process = await sandbox.start(["python3", "hello.py"])
    text = LiveText()
    async for chunk in process.output():
        console.print(text.feed(chunk.data, skipped_bytes=chunk.skipped_bytes), end="", markup=False)
    result = await process.wait()
    console.print(f"exit code {result.exit_code} after {result.duration_s:.1f} s")


async def _timeout(console: Console, sandbox: GuestSandbox) -> None:
    _title(console, "A command that hangs, with children that hide (setsid, nohup, double fork), given one second")
    began = time.perf_counter()
    result = await sandbox.execute(_MAZE, timeout_s=1)
    took_s = time.perf_counter() - began
    left = await sandbox.execute("pgrep -c sleep")
    console.print(
        f"{result.reason} after {took_s:.2f} s; processes of it that survived: {left.stdout.head.decode().strip()}"
    )


async def _large_output(console: Console, sandbox: GuestSandbox) -> None:
    _title(console, "A command that prints 102 MB: only its beginning and end come back")
    result = await sandbox.execute("yes 'a line of output' | head -c 102000000", head_bytes=51, tail_bytes=51)
    console.print(render(result.stdout).rstrip("\n"), markup=False, soft_wrap=True)
    console.print(f"{result.stdout.total_bytes} bytes in {result.duration_s:.2f} s")


async def _timings(console: Console, backend: DockerBackend, sandbox: GuestSandbox) -> None:
    _title(console, f"Timings, {_N_TIMINGS} times each, in turns of {_TURN} (median)")
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(_N_TIMINGS // _TURN):
        await asyncio.sleep(_SETTLE_S)
        ours += [await _timed_ms(sandbox.execute(["true"])) for _ in range(_TURN)]
        theirs += [await _timed_ms(backend.engine.exec_run(name_of(sandbox.id), ["true"])) for _ in range(_TURN)]
    mine, docker = statistics.median(ours), statistics.median(theirs)
    table = Table("run `true`", "ms", box=None)
    table.add_row("boatyard", f"{mine:.2f}")
    table.add_row("docker exec, by the Docker SDK", f"{docker:.2f}")
    table.add_row("faster by", f"{docker / mine:.0f}x")
    console.print(table)


async def _timed_ms(awaitable: Awaitable[object]) -> float:
    began = time.perf_counter()
    await awaitable
    return (time.perf_counter() - began) * 1000
