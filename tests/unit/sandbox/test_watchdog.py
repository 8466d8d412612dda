"""Sockets are shut when their owner goes quiet or dies, and not before."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator

import pytest

from sandbox.watchdog import Watchdog


@pytest.fixture
async def watchdog() -> AsyncGenerator[Watchdog]:
    dog = Watchdog()
    yield dog
    await dog.close()


async def ends(sock: socket.socket, within_s: float) -> bool:
    sock.setblocking(False)
    try:
        async with asyncio.timeout(within_s):
            return await asyncio.get_running_loop().sock_recv(sock, 1) == b""
    except TimeoutError:
        return False


async def test_a_quiet_owner_loses_its_socket(watchdog: Watchdog) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        await watchdog.guard(ours, 0.2)
        assert await ends(theirs, 10)


async def test_an_owner_that_beats_keeps_it(watchdog: Watchdog) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        await watchdog.guard(ours, 2.0)
        for _ in range(30):
            watchdog.beat()
            assert not await ends(theirs, 0.1)


async def test_a_released_socket_is_left_alone(watchdog: Watchdog) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watchdog.release(await watchdog.guard(ours, 0.2))
        other, far = socket.socketpair()
        with other, far:
            await watchdog.guard(other, 0.2)
            assert await ends(far, 10)
        ours.send(b"x")
        assert theirs.recv(1) == b"x"


async def test_the_socket_of_a_killed_owner_is_shut(watchdog: Watchdog) -> None:
    """A copy of the socket in another process would keep it open; the helper shuts it all the same."""
    ours, theirs = socket.socketpair()
    script = (
        "import asyncio, socket, sys\n"
        "from sandbox.watchdog import Watchdog\n"
        "async def main():\n"
        "    dog = Watchdog()\n"
        "    await dog.guard(socket.socket(fileno=int(sys.argv[1])), 60)\n"
        "    print('ready', flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with ours, theirs:
        argv = [sys.executable, "-c", script, str(ours.fileno())]
        with subprocess.Popen(argv, pass_fds=[ours.fileno()], stdout=subprocess.PIPE) as owner:
            assert owner.stdout is not None
            assert await asyncio.to_thread(owner.stdout.readline) == b"ready\n"
            owner.kill()
            owner.wait()
            assert await ends(theirs, 10)
