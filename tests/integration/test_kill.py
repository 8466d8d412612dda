"""Kill means kill: what is left of a command after a timeout, a cancel and a kill, seen from the host."""

import asyncio
import itertools
import subprocess
from collections.abc import Awaitable, Callable
from signal import SIGKILL, SIGSEGV, SIGTERM

import pytest

from sandbox.backends.docker import DockerBackend, container
from sandbox.client.sandbox import GuestSandbox
from sandbox.errors import ProcessEnded, SandboxLost
from sandbox.types import ExecResult, ProcessId, Reason, SandboxSpec
from tests.integration.peers import within

pytestmark = pytest.mark.docker

HIDERS = r"""
trap '' TERM INT HUP
setsid sleep 1000 &
nohup sleep 1000 >/dev/null 2>&1 &
(setsid sh -c 'trap "" TERM HUP; sleep 1000 & sleep 1000' >/dev/null 2>&1 &)
python3 -c '
import os, signal
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.chdir("/")
os.closerange(0, 64)
signal.pause()
' &
wait $!
echo ready
echo ready > ready
sleep 1000
"""
"""Six processes: setsid, nohup, a detached pair, a daemon made by a double fork with every stream closed, and this."""

FORKERS = r"""
import os, time

def fork():
    while True:
        try:
            return os.fork()
        except BlockingIOError:  # the process limit
            time.sleep(0.001)

def hop():
    # A session of its own each time, and never the same pid for longer than a moment.
    while not fork():
        os.setsid()
    os._exit(0)

def grow(depth):
    # A tree whose every branch makes up for what is cut off.
    while True:
        if not fork():
            if depth:
                grow(depth - 1)
            time.sleep(0.05)
            os._exit(0)
        time.sleep(0.01)
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)

for branch in [hop] * 4 + [lambda: grow(2)] * 4:
    if not fork():
        branch()
print("ready", flush=True)
with open("ready", "w") as file:
    file.write("ready")
time.sleep(1000)
"""

SCRIPTS = {"hiders": ["bash", "-c", HIDERS], "forkers": ["python3", "-c", FORKERS]}


async def users_processes(sandbox: GuestSandbox) -> list[str]:
    """Every process of the sandbox that is not root's, as the host sees it."""
    rows = await top(sandbox, "uid,stat,args")
    return [row for row in rows if row.split()[0] != "0"]


async def top(sandbox: GuestSandbox, columns: str) -> list[str]:
    done = await asyncio.to_thread(
        subprocess.run,
        ["docker", "top", container.name_of(sandbox.id), "-eo", f"pid,{columns}"],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    return [row.split(maxsplit=1)[1] for row in done.stdout.splitlines()[1:]]


async def by_timeout(sandbox: GuestSandbox, argv: list[str]) -> None:
    result = await sandbox.execute(argv, timeout_s=2.0)
    assert result.stdout.head == b"ready\n"
    assert (result.reason, result.exit_code) == (Reason.TIMED_OUT, None)


async def by_cancel(sandbox: GuestSandbox, argv: list[str]) -> None:
    running = asyncio.create_task(sandbox.execute(argv))
    await ready(sandbox)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def by_kill(sandbox: GuestSandbox, argv: list[str]) -> None:
    process = await sandbox.start(argv)
    await ready(sandbox)
    assert await process.kill() > 1
    result = await process.wait()
    assert (result.reason, result.exit_code) == (Reason.KILLED, None)
    await process.detach()


async def ready(sandbox: GuestSandbox) -> None:
    """Returns once the command has written into the pipe `ready`."""
    assert (await sandbox.execute("cat ready", timeout_s=15)).stdout.head.strip() == b"ready"


ENDS: dict[str, Callable[[GuestSandbox, list[str]], Awaitable[None]]] = {
    "timeout": by_timeout,
    "cancel": by_cancel,
    "kill": by_kill,
}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("end", ENDS)
@within(30)
async def test_end_leaves_no_survivor(shared_sandbox: GuestSandbox, end: str, script: str) -> None:
    await shared_sandbox.execute("rm -f ready; " + ("touch ready" if end == "timeout" else "mkfifo ready"))
    await ENDS[end](shared_sandbox, SCRIPTS[script])
    assert await users_processes(shared_sandbox) == []
    assert [info for info in await shared_sandbox.processes() if info.n_alive] == []
    assert (await shared_sandbox.execute("echo well")).stdout.head == b"well\n"


@within(30)
async def test_cancel_at_any_moment_of_a_start_leaves_nothing(shared_sandbox: GuestSandbox) -> None:
    """Also before the command is a process, and while it becomes one."""
    for n_turns in range(80):
        running = asyncio.create_task(shared_sandbox.execute(["sleep", "1000"]))
        for _ in range(n_turns):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert await users_processes(shared_sandbox) == []


@within(30)
async def test_shortest_timeouts_leave_nothing(shared_sandbox: GuestSandbox) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(shared_sandbox.execute(["sleep", "1000"], timeout_s=timeout_s))
            for timeout_s in (1e-9, 1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
            for _ in range(4)
        ]
    assert {task.result().reason for task in tasks} == {Reason.TIMED_OUT}
    assert await users_processes(shared_sandbox) == []


@within(30)
async def test_no_zombies_after_a_thousand_commands(sandbox: GuestSandbox) -> None:
    commands = itertools.cycle(["true", "(true &)", "setsid true & (sleep 0 & sleep 0 &)", "exit 3"])
    for _ in range(20):
        async with asyncio.TaskGroup() as group:
            for command, _ in zip(commands, range(50), strict=False):
                group.create_task(sandbox.execute(command))
    # Whoever was orphaned a moment ago is reaped when it ends: nothing is awaited but the end of `true`.
    async with asyncio.timeout(5):
        while await users_processes(sandbox):
            pass
    rows = await top(sandbox, "stat,args")
    assert [row for row in rows if row.startswith("Z")] == []
    assert len(rows) < 10


@within(30)
async def test_children_of_a_command_that_ended_live_on_and_can_be_killed(sandbox: GuestSandbox) -> None:
    result = await sandbox.execute("setsid sleep 1000 & sleep 1000 & echo $!")
    assert (result.reason, result.exit_code) == (Reason.EXITED, 0)
    await sandbox.execute("true")  # carries the acknowledgement: even a forgotten command is found by what it left

    [info] = await sandbox.processes()
    assert (info.running, info.n_alive, info.exit_code, info.reason) == (False, 2, 0, Reason.EXITED)
    assert sorted(row.split()[-2:] for row in await users_processes(sandbox)) == [["sleep", "1000"]] * 2

    process = await sandbox.attach(info.id)
    assert await process.kill() == 2
    await process.detach()
    assert await users_processes(sandbox) == []
    assert await sandbox.processes() == []


@within(30)
async def test_kill_spares_other_commands_and_their_children(sandbox: GuestSandbox) -> None:
    await sandbox.execute("setsid sleep 1111 &")
    other = await sandbox.start(["sleep", "2222"])
    victim = await sandbox.start("setsid sleep 3333 & echo ready; exec sleep 3333")
    assert (await anext(victim.output())).data == b"ready\n"
    assert await victim.kill() == 2
    left = sorted(row.split()[-1] for row in await users_processes(sandbox))
    assert left == ["1111", "2222"]
    await other.kill()


@within(30)
async def test_what_an_administrator_runs_survives(sandbox: GuestSandbox) -> None:
    name = container.name_of(sandbox.id)
    for user, seconds in (("0", "1111"), ("1000", "2222")):
        command = ["docker", "exec", "--detach", "--user", user, name, "sleep", seconds]
        await asyncio.to_thread(subprocess.run, command, check=True, timeout=20)
    process = await sandbox.start("sleep 1000")
    assert await process.kill() == 1
    rows = await top(sandbox, "uid,args")
    assert sorted(row.split()[-1] for row in rows if " sleep " in row) == ["1111", "2222"]


@within(30)
async def test_command_that_kills_everything_it_can_leaves_the_guest_alone(sandbox: GuestSandbox) -> None:
    other = await sandbox.start(["sleep", "1000"])
    suicide = await sandbox.execute("kill -9 -1; echo alone")
    assert suicide.stdout.head == b"alone\n"
    ended = await other.wait()
    assert (ended.reason, ended.signal, ended.exit_code) == (Reason.SIGNALED, SIGKILL, None)
    for _ in range(10):
        assert (await sandbox.execute("echo well")).stdout.head == b"well\n"


@pytest.mark.parametrize("code", [0, 1, 2, 126, 127, 137, 255])
@within(30)
async def test_exit_code_is_the_commands_own(shared_sandbox: GuestSandbox, code: int) -> None:
    result = await shared_sandbox.execute(f"exit {code}")
    assert (result.reason, result.exit_code, result.signal) == (Reason.EXITED, code, None)


@within(30)
async def test_death_by_signal_is_not_an_exit(shared_sandbox: GuestSandbox) -> None:
    result = await shared_sandbox.execute("kill -SEGV $$")
    assert (result.reason, result.exit_code, result.signal) == (Reason.SIGNALED, None, SIGSEGV)


@within(30)
async def test_command_that_is_over_first_is_not_timed_out(shared_sandbox: GuestSandbox) -> None:
    result = await shared_sandbox.execute("sleep 1000 & exit 4", timeout_s=30)
    assert (result.reason, result.exit_code) == (Reason.EXITED, 4)
    for info in await shared_sandbox.processes():
        await (await shared_sandbox.attach(info.id)).kill()


@within(30)
async def test_killing_after_the_end_keeps_the_reason(shared_sandbox: GuestSandbox) -> None:
    process = await shared_sandbox.start("sleep 1000 & exit 5")
    result = await process.wait()
    assert await process.kill() == 1
    assert await process.kill() == 0
    assert (result.reason, result.exit_code) == (Reason.EXITED, 5)
    assert (await process.wait()).exit_code == 5
    with pytest.raises(ProcessEnded):
        await process.signal(SIGTERM)
    await process.detach()


@within(30)
async def test_signal_reaches_the_whole_process_group(shared_sandbox: GuestSandbox) -> None:
    # The child says that it is there: one that is only just being started would miss the signal, and live on.
    await shared_sandbox.write("said", b"ready\n")
    process = await shared_sandbox.start("trap 'echo caught; exit 3' TERM; tail -f said & wait")
    output = process.output()
    assert (await anext(output)).data == b"ready\n"
    await process.signal(SIGTERM)
    assert b"".join([chunk.data async for chunk in output]) == b"caught\n"
    result = await process.wait()
    assert (result.reason, result.exit_code) == (Reason.EXITED, 3)
    async with asyncio.timeout(5):
        while await users_processes(shared_sandbox):
            pass
    await process.detach()


@within(30)
async def test_dead_sandbox_is_an_exception_and_no_result(
    docker_backend: DockerBackend, spec: Callable[..., SandboxSpec]
) -> None:
    async with await docker_backend.create(spec()) as sandbox:
        process = await sandbox.start(["sleep", "1000"])
        running = [
            asyncio.create_task(sandbox.execute(["sleep", "1000"])),
            asyncio.create_task(process.wait()),
            asyncio.create_task(_all_output(sandbox, process.id)),
        ]
        assert (await sandbox.execute("echo well")).ok
        await docker_backend.destroy(sandbox.id)
        for task in running:
            with pytest.raises(SandboxLost):
                await task
        with pytest.raises(SandboxLost):
            await sandbox.execute("true")


async def _all_output(sandbox: GuestSandbox, process_id: ProcessId) -> bytes:
    process = await sandbox.attach(process_id)
    return b"".join([chunk.data async for chunk in process.output()])


@within(30)
async def test_guest_killed_under_a_command_is_an_exception(sandbox: GuestSandbox) -> None:
    running: asyncio.Task[ExecResult] = asyncio.create_task(sandbox.execute(["sleep", "1000"]))
    assert (await sandbox.execute("echo well")).ok
    command = ["docker", "kill", container.name_of(sandbox.id)]
    await asyncio.to_thread(subprocess.run, command, check=True, timeout=20, capture_output=True)
    with pytest.raises(SandboxLost):
        await running
