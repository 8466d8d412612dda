"""A sandbox's beginning, and what it weighs while it idles."""

import asyncio
import statistics
import time
from pathlib import Path

from sandbox.backends.docker.container import GUEST_PATH
from sandbox.types import KIB
from tests.bench.bench import Bench
from tests.bench.peers import docker_cli
from tests.bench.row import Figures, NotMeasured, at_most, below, row
from tests.bench.timing import Side, median_ms

N_COMMANDS_BEFORE = 50
_BARE = ["python3", "-I", "-S", "-c", "pass"]
_IMPORT = ["python3", "-I", "-S", "-c", f"import sys; sys.path.insert(0, {GUEST_PATH!r}); import sandbox.guest.main"]


@row(area="lifecycle", name="create to first output, against `docker run`", unit="ms", goal=at_most(1.2))
async def create(bench: Bench) -> Figures:
    image = await bench.image()
    ours: list[float] = []
    peer: list[float] = []
    for turn in range(bench.n(12) + 1):
        begun = time.perf_counter()
        sandbox = await bench.fresh_sandbox()
        async with sandbox:
            await sandbox.execute(["echo", "hi"])
            ours.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        process = await docker_cli.first_output(bench.spec(), image, bench.sdk.labels)
        peer.append(time.perf_counter() - begun)
        await process.wait()
        if turn == 0:
            ours.clear()
            peer.clear()
    return Figures(ours=statistics.median(ours) * 1e3, peer=statistics.median(peer) * 1e3)


@row(area="lifecycle", name="a Python with the guest's modules, against a Python with nothing", unit="ms")
async def imports(bench: Bench) -> Figures:
    sandbox = await bench.sandbox()
    if not (await sandbox.execute(_IMPORT)).ok:
        raise RuntimeError("the guest cannot be imported")
    ours = Side(call=lambda: sandbox.execute(_IMPORT))
    peer = Side(call=lambda: sandbox.execute(_BARE))
    return await median_ms(ours, peer, n_turns=bench.n(30))


@row(area="memory", name="the guest, all its processes, idle after 50 commands", unit="MiB", goal=below(16))
async def guest_memory(bench: Bench) -> Figures:
    """PSS as if no other sandbox ran: the pages of the interpreter's files count once, and count whole.

    Plain PSS shares them with every other container of the image, so it falls as the machine fills up.
    """
    pids = await _idle_guest(bench)
    own = sum(_rollup(pid, "Pss_Anon:") + _rollup(pid, "Pss_Shmem:") for pid in pids)
    files = max(_rollup(pid, "Rss:") - _rollup(pid, "Anonymous:") for pid in pids)
    pss = sum(_rollup(pid, "Pss:") for pid in pids)
    return Figures(ours=(own + files) / KIB, note=f"{len(pids)} processes; plain PSS now: {pss / KIB:.1f} MiB")


@row(area="memory", name="PID 1 alone (RSS)", unit="MiB")
async def guest_rss(bench: Bench) -> Figures:
    pids = await _idle_guest(bench)
    return Figures(ours=_rollup(pids[0], "Rss:") / KIB)


async def _idle_guest(bench: Bench) -> list[int]:
    """The guest's processes, PID 1 first. Raises: NotMeasured where the engine's processes are not ours to see."""
    sandbox = await bench.sandbox()
    for _ in range(N_COMMANDS_BEFORE):
        await sandbox.execute(["true"])
    first = await asyncio.to_thread(bench.sdk.pid_of, sandbox.id)
    await _settled(first)
    pids = [first, *_children(first)]
    try:
        for pid in pids:
            _rollup(pid, "Pss:")
    except OSError as error:
        raise NotMeasured(f"the guest's memory cannot be seen from here: {error}") from None
    return pids


async def _settled(first: int) -> None:
    """Until the guest has the same children as a moment before: none that is on its way out."""
    before: list[int] | None = None
    async with asyncio.timeout(10):
        while before is None or before != _children(first):
            before = _children(first)
            await asyncio.sleep(0.1)


def _children(pid: int) -> list[int]:
    try:
        direct = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [*direct, *(below for child in direct for below in _children(child))]


def _rollup(pid: int, field: str) -> int:
    """KiB, by the kernel's own sum over the mappings."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise NotMeasured(f"the kernel's smaps_rollup has no {field}")
