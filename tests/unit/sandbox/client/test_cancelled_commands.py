"""A command that is cancelled is killed before its caller goes on, however often it is cancelled."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable

import anyio
import pytest

from sandbox import wire
from sandbox.client.link import Link
from sandbox.client.processes import execute
from sandbox.types import ExecResult
from tests.unit.sandbox.client.test_link import KEY, FakeGuest


class Guest(FakeGuest):
    """Starts what it is asked to, and kills when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.started = asyncio.Event()
        self.asked_to_kill = asyncio.Event()
        self.n_kills = 0
        self._kill_on = 0
        self.on_open = self._opened

    def _opened(self, frame: wire.Frame) -> None:
        if json.loads(frame.payload)["op"] == "kill":
            self._kill_on = frame.channel
            self.n_kills += 1
            self.asked_to_kill.set()
        else:
            self.started.set()

    def kill(self) -> None:
        self.say(self._kill_on, wire.RESULT, b'{"ok":{"n_killed":1}}')

    def refuse(self) -> None:
        self.say(self._kill_on, wire.RESULT, b'{"error":{"code":"cannot_kill","message":"it does not die"}}')

    def vanish(self) -> None:
        self.receiver.lost("it is gone")


@pytest.fixture
def guest() -> Guest:
    return Guest()


@pytest.fixture
async def link(guest: Guest) -> AsyncGenerator[Link]:
    connected = await Link.connect(guest, key=KEY)
    yield connected
    connected.close()


async def run(link: Link) -> ExecResult:
    return await execute(link, {"shell": "x"}, stdin=None, head_bytes=1, tail_bytes=1, request_id=None)


@pytest.mark.parametrize("end", [Guest.kill, Guest.refuse, Guest.vanish])
async def test_however_often_it_is_cancelled_it_waits_for_the_kill(
    guest: Guest, link: Link, end: Callable[[Guest], None]
) -> None:
    running = asyncio.create_task(run(link))
    async with asyncio.timeout(10):
        await guest.started.wait()
        running.cancel()
        await guest.asked_to_kill.wait()
        for _ in range(3):
            running.cancel()
            await asyncio.sleep(0)
            assert not running.done()
        end(guest)
        with pytest.raises(asyncio.CancelledError):
            await running
    assert guest.n_kills == 1


async def test_a_scope_that_is_cancelled_waits_for_the_kill_and_lets_others_work(guest: Guest, link: Link) -> None:
    """A cancelled scope cancels again and again whoever does not leave it."""
    ended: list[bool] = []

    async def cancel_and_end(scope: anyio.CancelScope) -> None:
        await guest.started.wait()
        scope.cancel()
        await guest.asked_to_kill.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        ended.append(True)
        guest.kill()

    scope = anyio.CancelScope()
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(cancel_and_end(scope))
        with scope:
            await run(link)
        assert ended
    assert scope.cancelled_caught
