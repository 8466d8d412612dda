"""Sockets are shut when their owner goes quiet or dies, and not before."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path

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


OTHERS: set[int] = set()
"""Helpers of whoever else runs in this process, as the session's backend does."""


@pytest.fixture(autouse=True)
def others() -> Iterator[None]:
    OTHERS.update(helpers())
    yield
    OTHERS.clear()


def helpers() -> list[int]:
    """This test's children that run the helper, and those that ended and that nobody waited for."""
    found: list[int] = []
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            for pid in map(int, (thread / "children").read_text().split()):
                is_helper = has_ended(pid) or b"watchdog_helper" in Path(f"/proc/{pid}/cmdline").read_bytes()
                if is_helper and pid not in OTHERS:
                    found.append(pid)
    return found


def has_ended(pid: int) -> bool:
    """A zombie."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def holds(pid: int, sock: socket.socket) -> bool:
    ours = f"socket:[{os.fstat(sock.fileno()).st_ino}]"
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(entry.readlink()) == ours:
                return True
    return False


def ends_while_we_stand_still(sock: socket.socket) -> bool:
    """Waits for its end without giving our event loop a turn, as an owner that hangs."""
    sock.settimeout(10)
    return sock.recv(1) == b""


async def until(is_so: Callable[[], bool]) -> None:
    """What another process does is no event here."""
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110  see above
            await asyncio.sleep(0.02)


async def helper_besides(former: int = 0) -> int:
    """When there is another one than `former`, and only that. Just after its start it has no name yet."""
    await until(lambda: len(helpers()) == 1 and helpers() != [former])
    return helpers()[0]


async def test_a_quiet_owner_loses_its_socket(watchdog: Watchdog) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        await watchdog.guard(ours, 0.2)
        assert ends_while_we_stand_still(theirs)


async def test_an_owner_whose_loop_runs_keeps_it_for_longer_than_a_lease(watchdog: Watchdog) -> None:
    """Also where a longer lease came first, and where nothing is said to anybody meanwhile."""
    long, far = socket.socketpair()
    ours, theirs = socket.socketpair()
    with long, far, ours, theirs:
        await watchdog.guard(long, 600.0)
        await watchdog.guard(ours, 2.0)
        assert not await ends(theirs, 5.0)
        assert not await ends(far, 0)


async def test_a_released_socket_is_left_alone(watchdog: Watchdog) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watchdog.release(await watchdog.guard(ours, 0.2))
        other, far = socket.socketpair()
        with other, far:
            await watchdog.guard(other, 0.2)
            assert ends_while_we_stand_still(far)
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


async def test_a_killed_helper_is_reaped_and_another_guards_everything(watchdog: Watchdog) -> None:
    ours, theirs = socket.socketpair()
    other, far = socket.socketpair()
    with ours, theirs, other, far:
        await watchdog.guard(ours, 2.0)
        await watchdog.guard(other, 0.5)
        former = await helper_besides()
        os.kill(former, signal.SIGKILL)
        helper = await helper_besides(former)
        await until(lambda: holds(helper, ours) and holds(helper, other))
        assert ends_while_we_stand_still(far)
        assert ends_while_we_stand_still(theirs)


async def test_a_helper_that_was_killed_is_not_missed_by_the_next_guard(watchdog: Watchdog) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        released = await watchdog.guard(ours, 0.2)
        watchdog.release(released)
        former = await helper_besides()
        os.kill(former, signal.SIGKILL)
        await asyncio.to_thread(os.waitid, os.P_PID, former, os.WEXITED | os.WNOWAIT)
        await watchdog.guard(ours, 0.2)
        assert helpers() != [former]
        assert ends_while_we_stand_still(theirs)


async def test_what_a_busy_helper_could_not_be_told_it_is_told_later(watchdog: Watchdog) -> None:
    first, far = socket.socketpair()
    ours, theirs = socket.socketpair()
    kept, distant = socket.socketpair()
    with first, far, ours, theirs, kept, distant:
        released = await watchdog.guard(first, 60.0)
        helper = await helper_besides()
        os.kill(helper, signal.SIGSTOP)
        for _ in range(1000):  # more than its pipe holds
            watchdog.release(await watchdog.guard(kept, 60.0))
        await watchdog.guard(ours, 1.0)
        watchdog.release(released)
        watchdog.release(await watchdog.guard(kept, 0.5))
        os.kill(helper, signal.SIGCONT)
        await until(lambda: holds(helper, ours) and not holds(helper, first) and not holds(helper, kept))
        assert ends_while_we_stand_still(theirs)
        kept.send(b"x")
        assert distant.recv(1) == b"x"


async def test_a_busy_helper_is_told_of_the_last_release_too(watchdog: Watchdog) -> None:
    """Nothing is guarded any more then, yet it would shut a socket that is no longer its business."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        number = await watchdog.guard(ours, 5.0)
        helper = await helper_besides()
        await until(lambda: holds(helper, ours))
        os.kill(helper, signal.SIGSTOP)
        for _ in range(1000):
            watchdog.release(await watchdog.guard(ours, 60.0))
        watchdog.release(number)
        os.kill(helper, signal.SIGCONT)
        await until(lambda: not holds(helper, ours))
        ours.send(b"x")
        assert theirs.recv(1) == b"x"


async def test_a_guard_that_is_given_up_leaves_nothing(watchdog: Watchdog) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        guarding = asyncio.create_task(watchdog.guard(ours, 60.0))
        await asyncio.sleep(0)
        guarding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await guarding
        await watchdog.close()
        assert helpers() == []
        ours.close()
        assert await ends(theirs, 10)


async def test_a_helper_that_hangs_does_not_outlive_its_owner() -> None:
    watchdog = Watchdog()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        await watchdog.guard(ours, 60.0)
        os.kill(await helper_besides(), signal.SIGSTOP)
        await watchdog.close()
        assert helpers() == []
