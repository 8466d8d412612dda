"""A sandbox outlives whoever made it: reattach after a crash, exactly-once requests, leases and takeovers."""

import asyncio
import hashlib
import io
import os
import signal
import tarfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any

import anyio
import pytest

from sandbox.backends.docker import DockerBackend
from sandbox.backends.docker.container import name_of
from sandbox.client.sandbox import GuestSandbox
from sandbox.errors import (
    CommandNotFound,
    LeaseLost,
    NoSpace,
    NotFound,
    PermissionDenied,
    ProcessNotFound,
    RequestConflict,
    SandboxLost,
    SandboxNotFound,
    Unavailable,
)
from sandbox.types import MIB, ExecResult, Limits, ProcessId, Reason, RequestId, SandboxId, SandboxSpec
from tests.integration.peers import LEASE_S, MEET, block, open_backend, peer, start_blocks, within

pytestmark = pytest.mark.docker

SLACK_S = 4.0

COUNTED = """
import os, sys
def count(start, stop):
    for number in range(start, stop):
        sys.stdout.write("line %d\\n" % number)
    sys.stdout.flush()
with open("runs", "a") as file:
    file.write("x")
os.mkfifo("go")
count(0, 10000)
open("go").read()
count(10000, 30000)
sys.exit(7)
"""
"""Counts its runs in a file, says ten thousand lines, waits until somebody opens the pipe `go`, says the rest."""


def lines(start: int, stop: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(start, stop))


def tar_of(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture(scope="module", params=["1", "0"], ids=["socket", "attach"])
async def backend(request: pytest.FixtureRequest) -> AsyncGenerator[DockerBackend]:
    """Every test on a socket of ours, and on the engine's attach stream."""
    os.environ[MEET] = request.param
    async with open_backend() as opened:
        yield opened
    del os.environ[MEET]


# After a crash


@pytest.mark.parametrize("n_bytes", [1, 30_000, len(lines(0, 10000))])
@within(40)
async def test_new_process_goes_on_where_a_killed_one_stopped(
    backend: DockerBackend, spec: Callable[..., SandboxSpec], n_bytes: int
) -> None:
    async with peer("reader", spec().model_dump_json(), COUNTED, str(n_bytes)) as first:
        await first.kill()
        seen = first.said["text"].encode()
        sandbox_id = SandboxId(first.said["sandbox"])
        sandbox = await backend.connect(sandbox_id)
        try:
            assert sandbox.welcome.epoch == first.said["epoch"] + 1
            [info] = await sandbox.processes()
            assert (info.id, info.running, info.n_alive) == ("job", True, 1)

            process = await sandbox.attach(ProcessId("job"), offset=len(seen))
            await sandbox.execute("echo > go")
            rest: list[bytes] = []
            async for chunk in process.output():
                assert chunk.offset == len(seen) + sum(map(len, rest))
                assert not chunk.skipped_bytes
                rest.append(chunk.data)
            assert seen + b"".join(rest) == lines(0, 30000)
            result = await process.wait()
            assert (result.reason, result.exit_code) == (Reason.EXITED, 7)
            assert result.stdout.total_bytes == len(lines(0, 30000))

            again = await sandbox.execute(["python3", "-c", COUNTED], request_id=RequestId("job"))
            assert again.exit_code == 7
            assert await sandbox.read("runs") == b"x"
        finally:
            await sandbox.destroy()


@within(40)
async def test_outcome_waits_for_who_comes_after_the_end(
    backend: DockerBackend, spec: Callable[..., SandboxSpec]
) -> None:
    """The command ends while nobody is connected at all."""
    script = "import time; print('early', flush=True); time.sleep(1); print('late'); raise SystemExit(9)"
    async with peer("reader", spec().model_dump_json(), script, "6") as first:
        await first.kill()
        sandbox = await backend.connect(SandboxId(first.said["sandbox"]))
        try:
            process = await sandbox.attach(ProcessId("job"))
            result = await process.wait()
            assert (result.exit_code, result.stdout.head) == (9, b"early\nlate\n")
            await process.detach()
            await sandbox.acknowledge(RequestId("job"))
            with pytest.raises(ProcessNotFound):
                await sandbox.attach(ProcessId("job"))
        finally:
            await sandbox.destroy()


# Exactly once


@within(20)
async def test_repeated_command_runs_once(shared_sandbox: GuestSandbox) -> None:
    command, identity = "echo x >> once; cat once; exit 3", RequestId("once")
    first = await shared_sandbox.execute(command, request_id=identity)
    again = await shared_sandbox.execute(command, request_id=identity)
    assert (first.exit_code, first.stdout.head) == (3, b"x\n")
    assert again == first
    assert await shared_sandbox.read("once") == b"x\n"


@within(20)
async def test_command_repeated_while_it_runs_is_attached_to(shared_sandbox: GuestSandbox) -> None:
    command, identity = "echo x >> twice; mkfifo gate; cat gate; cat twice", RequestId("twice")
    first = await shared_sandbox.start(command, request_id=identity)
    again = await shared_sandbox.start(command, request_id=identity)
    executed = [asyncio.create_task(shared_sandbox.execute(command, request_id=identity)) for _ in range(5)]
    assert again.pid == first.pid
    opened = await shared_sandbox.execute("until [ -p gate ]; do sleep 0.01; done; echo open > gate", timeout_s=10)
    assert opened.ok
    for result in [await first.wait(), await again.wait(), *[await task for task in executed]]:
        assert (result.exit_code, result.stdout.head) == (0, b"open\nx\n")
    await first.detach()
    await again.detach()


HASH = """
import hashlib, os, sys, time
got = b""
while len(got) < 50000:
    got += os.read(0, 50000 - len(got))
open("begun-" + sys.argv[1], "w").close()
while not os.path.exists("go-" + sys.argv[1]):
    time.sleep(0.01)
got += sys.stdin.buffer.read()
print(len(got), hashlib.sha256(got).hexdigest())
"""
"""Reads a little of its input, waits until it may go on, then says what all of it was."""


@pytest.mark.parametrize("n_bytes", [60_000, 3_000_000])
@within(40)
async def test_input_of_a_command_repeated_while_it_runs_goes_on_where_it_was(
    backend: DockerBackend, sandbox: GuestSandbox, n_bytes: int
) -> None:
    content = b"".join(b"%09d\n" % number for number in range(n_bytes // 10))
    said = f"{n_bytes} {hashlib.sha256(content).hexdigest()}\n".encode()

    def run(holder: GuestSandbox) -> asyncio.Task[ExecResult]:
        command = ["python3", "-c", HASH, str(n_bytes)]
        return asyncio.create_task(holder.execute(command, stdin=content, request_id=RequestId("hash")))

    holder = sandbox
    for _ in range(3):
        running = run(holder)
        await holder.execute(f"until [ -e begun-{n_bytes} ]; do sleep 0.01; done")
        successor = await backend.connect(sandbox.id)
        with pytest.raises((LeaseLost, SandboxLost)):
            await running
        holder = successor
    both = [run(holder), run(holder)]
    await holder.write(f"go-{n_bytes}", b"")
    for running in both:
        assert (await running).stdout.head == said
    assert (await run(holder)).stdout.head == said
    await holder.detach()


@within(20)
async def test_same_id_for_another_command_is_a_conflict(shared_sandbox: GuestSandbox) -> None:
    identity = RequestId("mine")
    await shared_sandbox.execute("echo a", request_id=identity)
    with pytest.raises(RequestConflict):
        await shared_sandbox.execute("echo b", request_id=identity)
    with pytest.raises(RequestConflict):
        await shared_sandbox.execute("echo a", request_id=identity, env={"A": "1"})
    with pytest.raises(RequestConflict):
        await shared_sandbox.execute("echo a", request_id=identity, cwd="/tmp")
    assert (await shared_sandbox.execute("echo a", request_id=identity, head_bytes=100)).stdout.head == b"a\n"


@within(20)
async def test_same_id_for_another_kind_of_request_is_a_conflict(shared_sandbox: GuestSandbox) -> None:
    identity = RequestId("of-any-kind")
    await shared_sandbox.write("kind", b"1", request_id=identity)
    with pytest.raises(RequestConflict):
        await shared_sandbox.delete("kind", request_id=identity)
    with pytest.raises(RequestConflict):
        await shared_sandbox.execute("rm kind", request_id=identity)
    assert await shared_sandbox.read("kind") == b"1"


@pytest.mark.parametrize("n_bytes", [10, MIB])
@within(20)
async def test_repeated_write_does_not_write_again(shared_sandbox: GuestSandbox, n_bytes: int) -> None:
    identity = RequestId(f"write-{n_bytes}")
    first = await shared_sandbox.write("written", b"a" * n_bytes, request_id=identity)
    await shared_sandbox.write("written", b"changed since")
    assert await shared_sandbox.write("written", b"a" * n_bytes, request_id=identity) == first
    assert await shared_sandbox.read("written") == b"changed since"
    with pytest.raises(RequestConflict):
        await shared_sandbox.write("elsewhere", b"a" * n_bytes, request_id=identity)
    with pytest.raises(NotFound):
        await shared_sandbox.stat("elsewhere")


@pytest.mark.parametrize("target", ["moved", "/tmp/moved"], ids=["rename", "across-file-systems"])
@within(20)
async def test_repeated_move_does_not_move_again(shared_sandbox: GuestSandbox, target: str) -> None:
    identity = RequestId(f"move-{target}")
    await shared_sandbox.write("here/file", b"1")
    await shared_sandbox.move("here", target, request_id=identity)
    await shared_sandbox.write("here/other", b"2")
    await shared_sandbox.move("here", target, request_id=identity)
    assert await shared_sandbox.read("here/other") == b"2"
    assert await shared_sandbox.read(f"{target}/file") == b"1"
    with pytest.raises(RequestConflict):
        await shared_sandbox.move("here", "there", request_id=identity)


@pytest.mark.parametrize("recursive", [False, True])
@within(20)
async def test_repeated_delete_does_not_delete_again(shared_sandbox: GuestSandbox, *, recursive: bool) -> None:
    identity = RequestId(f"delete-{recursive}")
    path = "tree" if recursive else "tree/file"
    await shared_sandbox.write("tree/file", b"1")
    await shared_sandbox.delete(path, recursive=recursive, request_id=identity)
    await shared_sandbox.write("tree/file", b"2")
    await shared_sandbox.delete(path, recursive=recursive, request_id=identity)
    assert await shared_sandbox.read("tree/file") == b"2"
    with pytest.raises(RequestConflict):
        await shared_sandbox.delete("tree/other", recursive=recursive, request_id=identity)


@within(20)
async def test_repeated_edit_does_not_edit_again(shared_sandbox: GuestSandbox) -> None:
    identity = RequestId("edit")
    await shared_sandbox.write("edited", b"one")
    first = await shared_sandbox.edit("edited", "one", "one one", request_id=identity)
    again = await shared_sandbox.edit("edited", "one", "one one", request_id=identity)
    assert again == first
    assert await shared_sandbox.read("edited") == b"one one"
    with pytest.raises(RequestConflict):
        await shared_sandbox.edit("edited", "one", "two", replace_all=True, request_id=identity)


@within(20)
async def test_refused_request_may_be_made_again(shared_sandbox: GuestSandbox) -> None:
    """It did not happen. Once its cause is gone it does, and then once."""

    async def ask() -> None:
        await shared_sandbox.edit("refused", "echo a", "echo aa", request_id=RequestId("refused-edit"))
        await shared_sandbox.execute(["./refused"], request_id=RequestId("refused-execute"))
        await shared_sandbox.move("refused", "moved-later", request_id=RequestId("refused-move"))
        await shared_sandbox.delete("moved-later", request_id=RequestId("refused-delete"))

    with pytest.raises(NotFound):
        await shared_sandbox.edit("refused", "echo a", "echo aa", request_id=RequestId("refused-edit"))
    with pytest.raises(CommandNotFound):
        await shared_sandbox.execute(["./refused"], request_id=RequestId("refused-execute"))
    with pytest.raises(NotFound):
        await shared_sandbox.move("refused", "moved-later", request_id=RequestId("refused-move"))
    with pytest.raises(NotFound):
        await shared_sandbox.delete("moved-later", request_id=RequestId("refused-delete"))
    await shared_sandbox.write("refused", b"#!/bin/sh\necho a >> said", mode=0o755)
    await ask()
    await shared_sandbox.write("refused", b"untouched")
    await ask()
    assert await shared_sandbox.read("said") == b"aa\n"
    assert await shared_sandbox.read("refused") == b"untouched"


@within(40)
async def test_request_without_room_may_be_made_again_when_there_is_some(
    docker_backend: DockerBackend, spec: Callable[..., SandboxSpec]
) -> None:
    async with await docker_backend.create(spec(limits=Limits(disk_bytes=32 * MIB))) as sandbox:
        small, large = b"s" * 60_000, b"l" * MIB
        await sandbox.write("edited", b"e" * 60_000 + b"end")
        await sandbox.write("/tmp/moved", large)

        requests: list[Callable[[], Coroutine[Any, Any, object]]] = [
            lambda: sandbox.write("small", small, request_id=RequestId("small")),
            lambda: sandbox.write("large", large, request_id=RequestId("large")),
            lambda: sandbox.write("in-place", small, atomic=False, request_id=RequestId("in-place")),
            lambda: sandbox.edit("edited", "end", "END" * 20_000, request_id=RequestId("edit")),
            lambda: sandbox.upload(tar_of("unpacked", large), request_id=RequestId("upload")),
            lambda: sandbox.move("/tmp/moved", "moved", request_id=RequestId("move")),
        ]
        # The first leaves less than one of its large writes.
        await sandbox.execute("mkdir filler; cat /dev/zero > filler/1; dd if=/dev/zero of=filler/2 bs=1k")
        for request in requests:
            with pytest.raises(NoSpace):
                await request()
        await sandbox.delete("filler", recursive=True)
        for _ in range(2):
            for request in requests:
                await request()
        assert await sandbox.read("small") == await sandbox.read("in-place") == small
        assert await sandbox.read("large") == await sandbox.read("unpacked") == await sandbox.read("moved") == large
        assert (await sandbox.read("edited")).endswith(b"eEND" + b"END" * 19_999)


SNATCH = """
import contextlib, os
open("snatching", "w").close()
while True:
    with contextlib.suppress(FileNotFoundError):
        os.unlink("snatched")
"""


@within(40)
async def test_file_that_is_taken_away_at_once_was_written_all_the_same(sandbox: GuestSandbox) -> None:
    snatcher = await sandbox.start(["python3", "-c", SNATCH])
    await sandbox.execute("until [ -e snatching ]; do sleep 0.01; done")
    for number in range(1000):
        written = await sandbox.write("snatched", b"1234567", mode=0o640, request_id=RequestId(f"snatched-{number}"))
        assert (written.size_bytes, written.mode) == (7, 0o640)
    await snatcher.kill()
    await snatcher.detach()


@within(20)
async def test_move_that_is_half_done_is_not_begun_again(shared_sandbox: GuestSandbox) -> None:
    """What it copied is there, what it could not delete too: that is how it ended, also for who asks again."""
    identity = RequestId("half")
    await shared_sandbox.write("locked/file", b"1")
    assert (await shared_sandbox.execute("chmod a-w locked")).ok
    with pytest.raises(PermissionDenied, match="copied") as first:
        await shared_sandbox.move("locked/file", "/tmp/unlocked", request_id=identity)
    assert (await shared_sandbox.execute("chmod u+w locked; echo more >> locked/file")).ok
    with pytest.raises(PermissionDenied, match="copied") as again:
        await shared_sandbox.move("locked/file", "/tmp/unlocked", request_id=identity)
    assert again.value.message == first.value.message
    assert await shared_sandbox.read("/tmp/unlocked") == b"1"


@within(20)
async def test_repeated_upload_does_not_unpack_again(shared_sandbox: GuestSandbox) -> None:
    identity, tar = RequestId("upload"), tar_of("file", b"old")
    assert await shared_sandbox.upload(tar, "unpacked", request_id=identity) == 1
    await shared_sandbox.write("unpacked/file", b"new")
    assert await shared_sandbox.upload(tar, "unpacked", request_id=identity) == 1
    assert await shared_sandbox.read("unpacked/file") == b"new"


SIGNAL_JOB = """
import os, sys
n_signalled = 0
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) != os.getpid():
        try:
            os.kill(int(name), int(sys.argv[1]))
            n_signalled += 1
        except PermissionError:
            pass
print(n_signalled)
"""
"""Signals every other process of the user's. Where only an upload is under way, that is the one which does it."""


@pytest.mark.parametrize("goes_on", [True, False], ids=["cleans up at last", "has to be killed"])
@within(40)
async def test_upload_repeated_while_the_first_is_dying_is_done_when_that_is_dead(
    backend: DockerBackend, sandbox: GuestSandbox, *, goes_on: bool
) -> None:
    """It stands still when its peer is lost, and so is neither done nor gone when it is asked for again."""
    content = os.urandom(MIB)
    tar, identity = tar_of("file", content), RequestId("cut-upload")

    async def half() -> AsyncIterator[bytes]:
        yield tar[: MIB // 2]
        await asyncio.Event().wait()

    async def whole() -> AsyncIterator[bytes]:
        yield tar

    cut = asyncio.create_task(sandbox.upload(half(), "into", request_id=identity))
    await sandbox.execute("until [ -e into/.boatyard-unpack-*/new/file ]; do sleep 0.01; done")
    stopped = await sandbox.execute(["python3", "-c", SIGNAL_JOB, str(int(signal.SIGSTOP))])
    assert stopped.stdout.head == b"1\n"
    successor = await backend.connect(sandbox.id)
    cut.cancel()
    repeated = [asyncio.create_task(successor.upload(whole(), "into", request_id=identity)) for _ in range(3)]
    await asyncio.sleep(0)  # their first steps send the requests, before the first attempt may end
    if goes_on:
        resumed = await successor.execute(["python3", "-c", SIGNAL_JOB, str(int(signal.SIGCONT))])
        assert resumed.stdout.head == b"1\n"
    assert [await task for task in repeated] == [1, 1, 1]
    assert await successor.read("into/file") == content
    if goes_on:
        assert [info.path.name for info in await successor.ls("into")] == ["file"]
    await successor.detach()


@within(20)
async def test_outcomes_survive_a_takeover(backend: DockerBackend, sandbox: GuestSandbox) -> None:
    await sandbox.execute("echo x >> once", request_id=RequestId("run"))
    await sandbox.write("file", b"1", request_id=RequestId("write"))
    successor = await backend.connect(sandbox.id)
    await successor.write("file", b"2")
    assert (await successor.execute("echo x >> once", request_id=RequestId("run"))).ok
    await successor.write("file", b"1", request_id=RequestId("write"))
    assert await successor.read("once") == b"x\n"
    assert await successor.read("file") == b"2"
    with pytest.raises(RequestConflict):
        await successor.execute("echo y >> once", request_id=RequestId("run"))
    await successor.detach()


@within(20)
async def test_thousands_of_unnamed_requests_need_no_acknowledgement(sandbox: GuestSandbox) -> None:
    """The client chooses the ids and acknowledges: no limit of the guest's may ever be met."""
    for _ in range(13):
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(sandbox.execute(["true"]))
                group.create_task(sandbox.write(f"file-{number}", b"x"))
    assert await sandbox.processes() == []


@within(30)
async def test_unnamed_requests_of_lost_holders_use_nothing_up(backend: DockerBackend, sandbox: GuestSandbox) -> None:
    """Nobody but the holder knew their ids, so nobody else can acknowledge them."""
    holder = sandbox
    for _ in range(10):
        async with asyncio.TaskGroup() as group:
            for number in range(60):
                group.create_task(holder.execute(["true"]))
                group.create_task(holder.write(f"file-{number}", b"x"))
        holder = await backend.connect(sandbox.id)
    assert (await holder.execute("echo well")).stdout.head == b"well\n"
    assert await holder.processes() == []
    await holder.detach()


# Leases


@within(40)
async def test_a_guest_that_stands_still_for_longer_than_a_lease_is_waited_for(
    backend: DockerBackend, sandbox: GuestSandbox
) -> None:
    """Who waits for it is alive, so nobody closes the stream in its place."""
    await anyio.run_process(["docker", "kill", "--signal=STOP", name_of(sandbox.id)])
    connecting = asyncio.create_task(backend.connect(sandbox.id))
    try:
        await asyncio.wait([connecting], timeout=LEASE_S * 1.5)
    finally:
        await anyio.run_process(["docker", "kill", "--signal=CONT", name_of(sandbox.id)])
    async with await connecting as successor:
        assert (await successor.execute("echo well")).stdout.head == b"well\n"


@within(20)
async def test_stale_epoch_is_refused_and_the_holder_undisturbed(backend: DockerBackend, sandbox: GuestSandbox) -> None:
    holder = await backend.connect(sandbox.id, epoch=10)
    _, output = await start_blocks(holder, 64)
    got = [(await anext(output)).data]
    for epoch in (0, 1, 9):
        with pytest.raises(LeaseLost):
            await backend.connect(sandbox.id, epoch=epoch)
        assert (await holder.execute("echo well")).stdout.head == b"well\n"
    got += [chunk.data async for chunk in output]
    assert b"".join(got) == b"".join(block(number) for number in range(64))
    assert holder.welcome.epoch == 10
    await holder.detach()


@within(20)
async def test_stale_epoch_does_not_cut_an_upload_in_two(backend: DockerBackend, sandbox: GuestSandbox) -> None:
    holder = await backend.connect(sandbox.id, epoch=10)
    content = b"".join(block(number) for number in range(64))
    writing = asyncio.create_task(holder.write("content", content))
    for _ in range(5):
        with pytest.raises(LeaseLost):
            await backend.connect(sandbox.id, epoch=9)
    assert (await writing).size_bytes == len(content)
    assert await holder.read("content") == content
    await holder.detach()


@within(20)
async def test_same_epoch_is_the_holder_coming_back(backend: DockerBackend, sandbox: GuestSandbox) -> None:
    holder = await backend.connect(sandbox.id, epoch=10)
    process = await holder.start(["sleep", "1000"], request_id=RequestId("sleeper"))
    await holder.detach()
    back = await backend.connect(sandbox.id, epoch=10)
    assert back.welcome.epoch == 10
    assert await (await back.attach(process.id)).kill() == 1
    await back.detach()


@within(20)
async def test_takeover_ends_every_call_of_the_former_holder(backend: DockerBackend, sandbox: GuestSandbox) -> None:
    process = await sandbox.start(["sleep", "1000"], request_id=RequestId("sleeper"))
    pending = [
        asyncio.create_task(sandbox.execute(["sleep", "1000"], request_id=RequestId("other"))),
        asyncio.create_task(process.wait()),
    ]
    assert (await sandbox.execute("true")).ok
    successor = await backend.connect(sandbox.id)
    for task in pending:
        with pytest.raises((LeaseLost, SandboxLost)):
            await task
    with pytest.raises((LeaseLost, SandboxLost)):
        await sandbox.execute("true")
    with pytest.raises((LeaseLost, SandboxLost)):
        await sandbox.read("file")
    running = {info.id for info in await successor.processes() if info.running}
    assert running == {"sleeper", "other"}
    await successor.detach()


@within(30)
async def test_holders_who_take_from_each_other_never_lose_the_sandbox(
    backend: DockerBackend, sandbox: GuestSandbox
) -> None:
    process = await sandbox.start("while :; do echo tick; done", request_id=RequestId("ticker"))
    holder = sandbox
    for number in range(10):
        successor = await backend.connect(sandbox.id)
        with pytest.raises(Unavailable):
            await holder.execute("true")
        assert (await successor.execute(f"echo {number}")).stdout.head == b"%d\n" % number
        holder = successor
    assert await (await holder.attach(process.id)).kill() == 1
    await holder.detach()


@pytest.mark.parametrize("stuck", ["stopped", "blocked"])
@within(40)
async def test_stuck_holder_cannot_block_its_successor_for_longer_than_its_lease(
    backend: DockerBackend, spec: Callable[..., SandboxSpec], stuck: str
) -> None:
    role = "idler" if stuck == "stopped" else "blocked"
    async with peer(role, spec().model_dump_json()) as holder:
        if stuck == "stopped":
            holder.stop()
        begun = time.monotonic()
        sandbox = await backend.connect(SandboxId(holder.said["sandbox"]))
        try:
            process, output = await start_blocks(sandbox, 64)
            n_bytes = 0
            async for chunk in output:
                assert chunk.offset == n_bytes
                n_bytes += len(chunk.data)
            taken_s = time.monotonic() - begun
            assert n_bytes == 64 * MIB
            assert taken_s < LEASE_S + SLACK_S
            assert (await process.wait()).exit_code == 0
        finally:
            await sandbox.destroy()


@within(40)
async def test_stuck_holder_with_unread_output_cannot_block_its_successor(
    backend: DockerBackend, spec: Callable[..., SandboxSpec]
) -> None:
    """The stream is full already when the successor says hello, and the guest in the middle of a frame."""
    script = "import os\nwhile True: os.write(1, b'x' * 65536)"
    async with peer("reader", spec().model_dump_json(), script, "1") as holder:
        holder.stop()
        begun = time.monotonic()
        sandbox = await backend.connect(SandboxId(holder.said["sandbox"]))
        try:
            assert (await sandbox.execute("echo well")).stdout.head == b"well\n"
            assert time.monotonic() - begun < LEASE_S + SLACK_S
            assert await (await sandbox.attach(ProcessId("job"))).kill() == 1
        finally:
            await sandbox.destroy()


@pytest.mark.parametrize("role", ["half_uploader", "uploader", "flooder"])
@within(40)
async def test_upload_of_a_dead_holder_leaves_nothing(backend: DockerBackend, sandbox: GuestSandbox, role: str) -> None:
    await sandbox.write("directory/old", b"old")
    await sandbox.detach()
    async with peer(role, sandbox.id, "/workspace/directory/old") as holder:
        await holder.kill()
    successor = await backend.connect(sandbox.id)
    assert [info.path.name for info in await successor.ls("directory")] == ["old"]
    assert await successor.read("directory/old") == b"old"
    await successor.write("directory/old", b"new" * MIB)
    assert (await successor.stat("directory/old")).size_bytes == 3 * MIB
    await successor.detach()


@within(40)
async def test_takeover_from_a_holder_in_full_flow(backend: DockerBackend, sandbox: GuestSandbox) -> None:
    """What it had sent when it lost the sandbox is still on its way when the successor begins."""
    content = b"".join(b"%07d\n" % number for number in range(8000))
    await sandbox.detach()
    for _ in range(5):
        async with peer("flooder", sandbox.id, "/workspace/flood"):
            successor = await backend.connect(sandbox.id)
            await successor.write("file", content)
            assert await successor.read("file") == content
            assert [info.path.name for info in await successor.ls()] == ["file"]
            await successor.detach()


# Owners that vanish


@within(40)
async def test_abandoned_sandbox_ends_and_is_removed(backend: DockerBackend, spec: Callable[..., SandboxSpec]) -> None:
    async with peer("idler", spec(orphan_after_s=2.0).model_dump_json()) as owner:
        sandbox_id = SandboxId(owner.said["sandbox"])
        await owner.kill()
    async with asyncio.timeout(15):
        while sandbox_id in [info.id for info in await backend.list()]:
            pass
    with pytest.raises(SandboxNotFound):
        await backend.connect(sandbox_id)
    await backend.destroy(sandbox_id)  # its disk, which would go when a backend next tidies up


@within(40)
async def test_idle_owner_keeps_its_sandbox(backend: DockerBackend, spec: Callable[..., SandboxSpec]) -> None:
    """Nothing is asked of it for longer than an orphan would live, but somebody is there."""
    async with await backend.create(spec(orphan_after_s=1.5)) as sandbox:
        before = sandbox.welcome.boot_id
        await asyncio.sleep(4)
        assert (await sandbox.execute("echo well")).stdout.head == b"well\n"
        assert sandbox.welcome.boot_id == before
