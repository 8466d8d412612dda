"""Work goes to its end though its caller is cancelled, and the caller learns of both."""

import asyncio

import anyio
import anyio.lowlevel
import pytest

from sandbox.cancellation import to_its_end


async def test_work_goes_to_its_end_however_often_it_is_cancelled() -> None:
    may_end = asyncio.Event()
    ended: list[bool] = []

    async def work() -> None:
        await may_end.wait()
        ended.append(True)

    waiting = asyncio.create_task(to_its_end(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended


async def test_the_cancellation_of_a_scope_waits_too() -> None:
    ended: list[bool] = []

    async def work() -> None:
        await asyncio.sleep(0.05)
        ended.append(True)

    with anyio.move_on_after(0.001) as scope:
        await to_its_end(work())
        await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert ended


async def test_its_result_and_its_error_come_back() -> None:
    async def value() -> int:
        return 5

    async def failing() -> None:
        raise ValueError("no")

    assert await to_its_end(value()) == 5
    with pytest.raises(ValueError, match="no"):
        await to_its_end(failing())
