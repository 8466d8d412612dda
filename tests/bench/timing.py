"""Side by side: ours and the peer's take turns, so that whatever else the machine does falls on both."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.bench.row import Figures

Call = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two: a call, and how often it is made in a turn.

    More than once a turn where the other side leaves work behind: an exec of the engine cleans up after it answered.
    """

    call: Call
    n_a_turn: int = 1


async def timed(call: Call) -> float:
    begun = time.perf_counter()
    await call()
    return time.perf_counter() - begun


async def take_turns(ours: Side, peer: Side, *, n_turns: int, n_warm: int = 1) -> tuple[list[float], list[float]]:
    """Seconds of every call of each side, after `n_warm` unmeasured turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(n_warm + n_turns):
        for side, taken in zip((ours, peer), times, strict=True):
            for _ in range(side.n_a_turn):
                seconds = await timed(side.call)
                if turn >= n_warm:
                    taken.append(seconds)
    return times


async def median_ms(ours: Side, peer: Side, *, n_turns: int, note: str = "") -> Figures:
    a, b = await take_turns(ours, peer, n_turns=n_turns)
    return Figures(ours=statistics.median(a) * 1e3, peer=statistics.median(b) * 1e3, note=note)


async def median_rate(ours: Side, peer: Side, *, amount: float, n_turns: int, note: str = "") -> Figures:
    """`amount` a second, where each call does that much."""
    a, b = await take_turns(ours, peer, n_turns=n_turns)
    return Figures(ours=amount / statistics.median(a), peer=amount / statistics.median(b), note=note)


async def alone(call: Call, *, n_times: int, n_warm: int = 3) -> list[float]:
    """Sorted seconds of one call that has no peer."""
    for _ in range(n_warm):
        await call()
    return sorted([await timed(call) for _ in range(n_times)])


async def at_once(call: Call, *, n_workers: int, n_each: int) -> list[float]:
    """Sorted seconds of `n_workers * n_each` calls, `n_workers` at any time."""
    taken: list[float] = []

    async def work() -> None:
        for _ in range(n_each):
            taken.append(await timed(call))

    async with asyncio.TaskGroup() as group:
        for _ in range(n_workers):
            group.create_task(work())
    return sorted(taken)


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
