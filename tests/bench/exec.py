"""Commands: how long a small one takes, and how many a second."""

import functools

from sandbox.types import MIB, Reason
from tests.bench.bench import Bench, in_thread
from tests.bench.peers import host
from tests.bench.peers.sdk import exec_once
from tests.bench.row import Figures, as_fast, at_most, row
from tests.bench.timing import Call, Side, alone, at_once, median_ms, median_rate, percentile

TRUE = ["true"]
N_AT_ONCE = 64

# Every process gets away from its parent's session; the timeout has to find them all.
_MAZE = "for i in 1 2 3 4 5 6 7 8; do setsid sh -c 'setsid sleep 60 & sleep 60' & done; sleep 60"
_MAZE_TIMEOUT_S = 0.3


async def _true(bench: Bench) -> Call:
    sandbox = await bench.sandbox()
    return lambda: sandbox.execute(TRUE)


@row(area="exec", name="`true`, p50, against the SDK's exec in the same container", unit="ms", goal=as_fast(25))
async def true_sdk(bench: Bench) -> Figures:
    container = bench.sdk.find((await bench.sandbox()).id)
    ours = Side(call=await _true(bench), n_a_turn=10)
    peer = Side(call=in_thread(functools.partial(exec_once, container, TRUE)), n_a_turn=2)
    return await median_ms(ours, peer, n_turns=bench.n(25))


@row(area="exec", name="`true`, p50, against a process on the host by asyncio", unit="ms", goal=at_most(2.5))
async def true_host(bench: Bench) -> Figures:
    ours = Side(call=await _true(bench), n_a_turn=10)
    peer = Side(call=lambda: host.spawn(*TRUE), n_a_turn=10)
    return await median_ms(ours, peer, n_turns=bench.n(40))


@row(area="exec", name="the same, the host's process without pipes", unit="ms")
async def true_host_bare(bench: Bench) -> Figures:
    ours = Side(call=await _true(bench), n_a_turn=10)
    peer = Side(call=lambda: host.spawn_bare(*TRUE), n_a_turn=10)
    return await median_ms(ours, peer, n_turns=bench.n(40))


@row(area="exec", name="64 commands at once, against the SDK's exec in 64 threads", unit="1/s", goal=as_fast(10))
async def at_once_sdk(bench: Bench) -> Figures:
    container = bench.sdk.find((await bench.sandbox()).id)
    true = await _true(bench)
    ours = Side(call=lambda: at_once(true, n_workers=N_AT_ONCE, n_each=1), n_a_turn=4)
    peer = Side(call=in_thread(lambda: bench.sdk.exec_many(container, TRUE, N_AT_ONCE)))
    return await median_rate(ours, peer, amount=N_AT_ONCE, n_turns=bench.n(5))


@row(area="exec", name="`true` by SWE-ReX's /execute (server in a container of ours), p50", unit="ms", goal=as_fast(1))
async def true_swe_rex(bench: Bench) -> Figures:
    rex = await bench.swe_rex()
    ours = Side(call=await _true(bench), n_a_turn=5)
    peer = Side(call=lambda: rex.execute(TRUE), n_a_turn=5)
    return await median_ms(ours, peer, n_turns=bench.n(40))


@row(area="exec", name="the same, 8 at any time", unit="1/s", goal=as_fast(1))
async def eight_swe_rex(bench: Bench) -> Figures:
    rex = await bench.swe_rex()
    true = await _true(bench)
    ours = Side(call=lambda: at_once(true, n_workers=8, n_each=10))
    peer = Side(call=lambda: at_once(lambda: rex.execute(TRUE), n_workers=8, n_each=10))
    return await median_rate(ours, peer, amount=80, n_turns=bench.n(15))


@row(area="exec", name="`true`, 8 at any time, p50", unit="ms")
async def eight_p50(bench: Bench) -> Figures:
    times = await at_once(await _true(bench), n_workers=8, n_each=bench.n(60))
    return Figures(ours=percentile(times, 0.5) * 1e3)


@row(area="exec", name="`true`, 8 at any time, p99", unit="ms")
async def eight_p99(bench: Bench) -> Figures:
    times = await at_once(await _true(bench), n_workers=8, n_each=bench.n(60))
    return Figures(ours=percentile(times, 0.99) * 1e3)


@row(area="exec", name="a command's output to its reader", unit="MB/s")
async def output_rate(bench: Bench) -> Figures:
    sandbox = await bench.sandbox()
    n_bytes, n_skipped = 256 * MIB, 0

    async def stream() -> None:
        nonlocal n_skipped
        process = await sandbox.start(["head", "-c", str(n_bytes), "/dev/zero"])
        came = 0
        async for chunk in process.output():
            came += len(chunk.data) + chunk.skipped_bytes
            n_skipped += chunk.skipped_bytes
        await process.wait()
        await process.detach()
        # The last gap has no chunk after it to be told with.
        n_skipped += n_bytes - came

    times = await alone(stream, n_times=bench.n(5), n_warm=0)
    share = n_skipped / (n_bytes * len(times))
    note = f"{share:.1%} of the output never reached a reader that kept reading" if n_skipped else ""
    return Figures(ours=n_bytes * (1 - share) / 1e6 / percentile(times, 0.5), note=note)


@row(area="exec", name="from the timeout to the end of 25 processes that hid by setsid", unit="ms")
async def tree_kill(bench: Bench) -> Figures:
    sandbox = await bench.sandbox()

    async def maze() -> None:
        result = await sandbox.execute(_MAZE, timeout_s=_MAZE_TIMEOUT_S)
        if result.reason is not Reason.TIMED_OUT:
            raise RuntimeError(f"the maze ended by itself: {result.reason}")

    times = await alone(maze, n_times=bench.n(15), n_warm=1)
    return Figures(ours=(percentile(times, 0.5) - _MAZE_TIMEOUT_S) * 1e3)
