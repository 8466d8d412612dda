"""What a command, or a caller's slip, could do to the guest or to us. Each was found by attacking it."""

import asyncio
import contextlib
import secrets
import signal
from collections.abc import Callable

import pytest

from sandbox.backends.docker import DockerBackend
from sandbox.client.sandbox import GuestSandbox
from sandbox.errors import (
    CommandNotFound,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ProcessEnded,
    RequestConflict,
    TooLarge,
    UnknownUser,
)
from sandbox.types import Limits, ProcessId, Reason, RequestId, SandboxSpec, Stream, TerminalSize

pytestmark = pytest.mark.docker
MakeSpec = Callable[..., SandboxSpec]

_ZOMBIE_LEADER = """
import ctypes, threading, time
threading.Thread(target=lambda: time.sleep(1000)).start()
ctypes.CDLL(None).syscall(60, 0)
"""
_FICKLE = """
import ctypes, os
libc = ctypes.CDLL(None)
print(os.getpid(), flush=True)
while True:
    libc.prctl(4, 0); libc.prctl(4, 1)
"""


async def works(sandbox: GuestSandbox) -> bool:
    async with asyncio.timeout(20):
        return (await sandbox.execute("echo well")).stdout.head == b"well\n"


def new_id() -> RequestId:
    return RequestId(secrets.token_hex(8))


async def test_absurd_numbers_and_names_are_refused_and_harm_nothing(shared_sandbox: GuestSandbox) -> None:
    await shared_sandbox.write("f", b"x")
    for number in (2**62, 2**63, 2**64, 2**200):
        with pytest.raises(InvalidArgument):
            await shared_sandbox.read("f", offset=number)
    with pytest.raises(CommandNotFound) as caught:
        await shared_sandbox.execute(["a" * 70_000])
    assert len(str(caught.value)) < 2000
    with pytest.raises(UnknownUser):
        await shared_sandbox.execute("true", user="u" * 70_000)
    for command in (["x", "\ud800"], "echo \ud800"):
        with pytest.raises(InvalidArgument):
            await shared_sandbox.execute(command)
    with pytest.raises(InvalidArgument):
        await shared_sandbox.execute("true", env={"A": "\ud800"})
    assert await works(shared_sandbox)


async def test_a_request_too_long_to_send_loses_nothing(shared_sandbox: GuestSandbox) -> None:
    for _ in range(600):
        await shared_sandbox.execute(["true"])
        with pytest.raises(InvalidArgument):
            await shared_sandbox.execute("x" * 2_000_000)
    assert await works(shared_sandbox)


async def test_an_edit_that_would_explode_is_refused(shared_sandbox: GuestSandbox) -> None:
    await shared_sandbox.write("many", b"a" * 12_000_000)
    with pytest.raises(TooLarge):
        await shared_sandbox.edit("many", "a", "b" * 300, replace_all=True)
    await shared_sandbox.delete("many")
    assert await works(shared_sandbox)


async def test_a_process_whose_first_thread_is_gone_is_killed_all_the_same(sandbox: GuestSandbox) -> None:
    async with asyncio.timeout(20):
        result = await sandbox.execute(["python3", "-c", _ZOMBIE_LEADER], timeout_s=1)
        assert result.reason is Reason.TIMED_OUT
        await sandbox.write("zombie.py", _ZOMBIE_LEADER.encode())
        result = await sandbox.execute("python3 zombie.py & sleep 1000", timeout_s=2)
    assert result.reason is Reason.TIMED_OUT
    assert await sandbox.processes() == []


async def test_a_directory_that_changes_its_mind_does_no_harm(sandbox: GuestSandbox) -> None:
    process = await sandbox.start(["python3", "-c", _FICKLE])
    pid = int((await anext(process.output())).data)
    for _ in range(50):
        with contextlib.suppress(PermissionDenied, NotFound):
            await sandbox.ls(f"/proc/{pid}/map_files")
    await process.kill()
    assert await works(sandbox)


async def test_with_no_descriptor_left_a_timeout_still_kills(docker_backend: DockerBackend, spec: MakeSpec) -> None:
    async with await docker_backend.create(spec(limits=Limits(n_open_files=256))) as sandbox:
        await sandbox.execute("head -c 10000000 /dev/zero > zeros")
        victim = await sandbox.start("setsid sleep 1000 & sleep 1000", timeout_s=3)
        streams = [sandbox.read_stream("zeros") for _ in range(200)]
        opened = await asyncio.gather(*(anext(stream) for stream in streams), return_exceptions=True)
        assert any(isinstance(piece, bytes) for piece in opened)
        async with asyncio.timeout(30):
            assert (await victim.wait()).reason is Reason.TIMED_OUT
        for stream in streams:
            await stream.aclose()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  a generator
        assert await sandbox.processes() == []
        assert await works(sandbox)


async def test_stopped_jobs_do_not_keep_a_kill_from_getting_through(sandbox: GuestSandbox) -> None:
    """A command may stop what runs with its own rights, and so our jobs; not what we do about it."""
    await sandbox.execute("for i in $(seq 40); do mkdir -p t$i/a/b/c; done")
    stopper = await sandbox.start("while :; do pkill -STOP -f guest.pyz; done")
    deletes = [asyncio.create_task(sandbox.delete(f"t{n}", recursive=True)) for n in range(1, 41)]
    await asyncio.sleep(0.3)
    async with asyncio.timeout(15):
        assert await stopper.kill() >= 1
        assert (await stopper.wait()).reason is Reason.KILLED
    assert await works(sandbox)
    await sandbox.execute("pkill -CONT -f guest.pyz")
    async with asyncio.timeout(30):
        await asyncio.gather(*deletes)


async def test_a_cancelled_start_leaves_nothing_running(sandbox: GuestSandbox) -> None:
    for n_turns in range(20):
        starting = asyncio.create_task(sandbox.start(["sleep", "1000"]))
        for _ in range(n_turns):
            await asyncio.sleep(0)
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await starting).kill()
    assert [info for info in await sandbox.processes() if info.n_alive] == []


async def test_hundreds_of_handles_cost_nothing(sandbox: GuestSandbox) -> None:
    async with asyncio.timeout(60):
        handles = [await sandbox.start(["true"]) for _ in range(400)]
        results = [await handle.wait() for handle in handles]
    assert all(result.ok for result in results)


async def test_a_reader_that_breaks_off_holds_nobody(sandbox: GuestSandbox) -> None:
    process = await sandbox.start("head -c 200000000 /dev/zero")
    async for _ in process.output():
        break
    async with asyncio.timeout(30):
        result = await process.wait()
    assert (result.exit_code, result.stdout.total_bytes) == (0, 200_000_000)


async def test_input_for_a_command_that_closed_its_own_does_not_hold_it(sandbox: GuestSandbox) -> None:
    process = await sandbox.start("exec <&-; echo closed; head -c 100000000 /dev/zero; echo done", stdin=True)
    for _ in range(200):
        with contextlib.suppress(ProcessEnded):
            await process.write_stdin(b"x")
    async with asyncio.timeout(30):
        assert (await process.wait()).exit_code == 0


async def test_the_end_of_a_gap_is_told(docker_backend: DockerBackend, spec: MakeSpec) -> None:
    limits = Limits.for_memory(512 << 20)
    async with await docker_backend.create(spec(limits=limits)) as sandbox:
        first = RequestId("first")
        process = await sandbox.start("head -c 5000000 /dev/zero", request_id=first)
        assert (await process.wait()).ok
        for _ in range(6):
            await sandbox.execute(f"head -c {limits.output_bytes // 2} /dev/zero")
        again = await sandbox.attach(ProcessId(first))
        chunks = [chunk async for chunk in again.output()]
        assert sum(len(chunk.data) + chunk.skipped_bytes for chunk in chunks) == 5_000_000
        assert {chunk.stream for chunk in chunks} == {Stream.OUTPUT}
        assert sum(chunk.skipped_bytes for chunk in chunks) > 0


async def test_a_terminal_nobody_holds_costs_no_time(sandbox: GuestSandbox) -> None:
    quiet = "exec </dev/null >/dev/null 2>&1; sleep 1000"
    processes = [await sandbox.start(quiet, tty=TerminalSize()) for _ in range(3)]
    readers = [asyncio.create_task(anext(process.output(), None)) for process in processes]

    async def ticks() -> int:
        stat = (await sandbox.execute("cat /proc/1/stat")).stdout.head.decode()
        return sum(int(field) for field in stat.rpartition(")")[2].split()[11:13])

    await asyncio.sleep(0.3)
    before = await ticks()
    await asyncio.sleep(1)
    assert await ticks() - before < 30
    for process in processes:
        await process.kill()
    await asyncio.gather(*readers)


async def test_the_end_of_input_on_a_terminal_comes_behind_an_unfinished_line_too(sandbox: GuestSandbox) -> None:
    process = await sandbox.start(["cat"], tty=TerminalSize())
    await process.write_stdin(b"unfinished")
    await process.close_stdin()
    async with asyncio.timeout(10):
        assert (await process.wait()).exit_code == 0


async def test_one_id_means_one_content(shared_sandbox: GuestSandbox) -> None:
    write, run = new_id(), new_id()
    await shared_sandbox.write("once", b"one", request_id=write)
    await shared_sandbox.write("once", b"one", request_id=write)
    with pytest.raises(RequestConflict):
        await shared_sandbox.write("once", b"two", request_id=write)
    assert await shared_sandbox.read("once") == b"one"
    first = await shared_sandbox.execute("cat; echo $A", stdin=b"x", env={"A": "1", "B": "2"}, request_id=run)
    again = await shared_sandbox.execute("cat; echo $A", stdin=b"x", env={"B": "2", "A": "1"}, request_id=run)
    assert first == again
    with pytest.raises(RequestConflict):
        await shared_sandbox.execute("cat; echo $A", stdin=b"y", env={"A": "1", "B": "2"}, request_id=run)
    await shared_sandbox.acknowledge(write, run)


async def test_one_id_under_way_is_not_begun_again(shared_sandbox: GuestSandbox) -> None:
    """Whoever asks for it meanwhile waits, and is told how it ended."""
    identity = new_id()
    data = b"z" * 5_000_000
    first, *others = await asyncio.gather(*(shared_sandbox.write("twice", data, request_id=identity) for _ in range(3)))
    assert others == [first, first]
    assert await shared_sandbox.stat("twice") == first
    await shared_sandbox.acknowledge(identity)


async def test_signals_to_everything_hurt_only_their_sender(sandbox: GuestSandbox) -> None:
    numbers = [n for n in range(1, 65) if n not in (signal.SIGCHLD, 32, 33)]
    for _ in range(3):
        await sandbox.execute("; ".join(f"kill -{n} 1" for n in numbers) + "; kill -9 -1")
    assert await works(sandbox)


_STOPPER = """
import os
print("up", flush=True)
while True:
    try:
        os.kill(-1, 19)
    except OSError:
        pass
"""


async def test_a_command_that_stops_every_other_cannot_stop_the_guest(sandbox: GuestSandbox) -> None:
    stopper = await sandbox.start(["python3", "-c", _STOPPER])
    async for _ in stopper.output():
        break
    for _ in range(20):
        result = await asyncio.wait_for(sandbox.execute(["true"], timeout_s=0.2), 30)
        assert result.reason in (Reason.EXITED, Reason.TIMED_OUT, Reason.SIGNALED)
    await stopper.kill()
    assert await works(sandbox)


async def test_the_warden_is_replaced(sandbox: GuestSandbox) -> None:
    """The process that frees the guest from a stopped start is the only other one that root runs in here."""
    for _ in range(3):
        async with asyncio.timeout(60):
            assert await works(sandbox)
            # A command may be on its way before the guest has heard of the death; the next one finds out.
            while await _as_root(sandbox, "pkill -KILL -U 0 -P 1") != 0:
                assert await works(sandbox)
    assert await works(sandbox)


async def _as_root(sandbox: GuestSandbox, command: str) -> int:
    docker = await asyncio.create_subprocess_exec(
        "docker", "exec", "--user", "0", f"boatyard-{sandbox.id}", "sh", "-c", command
    )
    return await asyncio.wait_for(docker.wait(), 30)
