"""Files: small ones one by one, a large one in and out."""

import asyncio
import functools
from collections.abc import AsyncIterator

from sandbox.client.sandbox import GuestSandbox
from sandbox.types import KIB, MIB
from tests.bench.bench import Bench, in_thread
from tests.bench.peers.sdk import tar_of
from tests.bench.row import Figures, as_fast, row
from tests.bench.timing import Side, alone, median_ms, median_rate, percentile

SMALL = bytes(range(256)) * 16
LARGE_BYTES = 256 * MIB
_PIECE = bytes(range(256)) * (4 * KIB)


@row(area="files", name="read 4 KiB, p50, against the SDK's get_archive", unit="ms", goal=as_fast(20))
async def read_small(bench: Bench) -> Figures:
    sandbox, plain = await bench.sandbox(), await bench.plain()
    await sandbox.write("small", SMALL)
    await asyncio.to_thread(plain.put, tar_of("small", SMALL))
    ours = Side(call=lambda: sandbox.read("small"), n_a_turn=10)
    peer = Side(call=in_thread(functools.partial(plain.get, "small")), n_a_turn=2)
    return await median_ms(ours, peer, n_turns=bench.n(30))


@row(area="files", name="write 4 KiB, p50, against the SDK's put_archive", unit="ms", goal=as_fast(20))
async def write_small(bench: Bench) -> Figures:
    sandbox, plain = await bench.sandbox(), await bench.plain()
    ours = Side(call=lambda: sandbox.write("small", SMALL), n_a_turn=10)
    # The caller of put_archive has content, not a tar: making one is part of the call.
    peer = Side(call=in_thread(lambda: plain.put(tar_of("small", SMALL))), n_a_turn=2)
    return await median_ms(ours, peer, n_turns=bench.n(30))


@row(area="files", name="256 MiB in, against the SDK's put_archive", unit="MB/s", goal=as_fast(1))
async def write_large(bench: Bench) -> Figures:
    plain = await bench.plain()
    tar = await asyncio.to_thread(tar_of, "large", _PIECE * (LARGE_BYTES // len(_PIECE)))
    async with await bench.fresh_sandbox() as sandbox:
        ours = Side(call=functools.partial(_write_large, sandbox))
        peer = Side(call=in_thread(functools.partial(plain.put, tar)))
        return await median_rate(ours, peer, amount=LARGE_BYTES / 1e6, n_turns=bench.n(5))


@row(area="files", name="256 MiB out, against the SDK's get_archive", unit="MB/s", goal=as_fast(1))
async def read_large(bench: Bench) -> Figures:
    plain = await bench.plain()
    tar = await asyncio.to_thread(tar_of, "large", _PIECE * (LARGE_BYTES // len(_PIECE)))
    await asyncio.to_thread(plain.put, tar)
    del tar
    async with await bench.fresh_sandbox() as sandbox:
        await _write_large(sandbox)
        ours = Side(call=functools.partial(_read_large, sandbox))
        peer = Side(call=in_thread(functools.partial(plain.drain, "large")))
        return await median_rate(ours, peer, amount=LARGE_BYTES / 1e6, n_turns=bench.n(5))


@row(area="files", name="stat of `/`, p50: the way there and back", unit="ms")
async def stat_root(bench: Bench) -> Figures:
    sandbox = await bench.sandbox()
    return Figures(ours=percentile(await alone(lambda: sandbox.stat("/"), n_times=bench.n(1000)), 0.5) * 1e3)


@row(area="files", name="ls of 1000 entries, p50", unit="ms")
async def ls_thousand(bench: Bench) -> Figures:
    sandbox = await bench.sandbox()
    await sandbox.execute("mkdir -p many && cd many && touch $(seq 1000)")
    times = await alone(lambda: sandbox.ls("many"), n_times=bench.n(60))
    return Figures(ours=percentile(times, 0.5) * 1e3)


async def _write_large(sandbox: GuestSandbox) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(LARGE_BYTES // len(_PIECE)):
            yield _PIECE

    # In place: two of them do not fit into the workspace, and put_archive is not atomic either.
    info = await sandbox.write("large", pieces(), atomic=False)
    if info.size_bytes != LARGE_BYTES:
        raise RuntimeError(f"{info.size_bytes} bytes of {LARGE_BYTES} arrived")


async def _read_large(sandbox: GuestSandbox) -> None:
    came = 0
    async for piece in sandbox.read_stream("large"):
        came += len(piece)
    if came != LARGE_BYTES:
        raise RuntimeError(f"{came} bytes of {LARGE_BYTES} came")
