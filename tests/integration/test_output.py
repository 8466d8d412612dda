"""What a command says: every byte of it, in order, whoever reads and however slowly, within bounds of memory."""

import asyncio
import hashlib
import os
import statistics
import time
from collections.abc import Callable

import pytest

from sandbox.backends.docker import DockerBackend
from sandbox.client.sandbox import GuestSandbox
from sandbox.protocol import Process
from sandbox.types import KIB, MIB, Captured, Limits, RequestId, SandboxSpec, Stream
from tests.integration.peers import block, blocks, peer, start_blocks, within

pytestmark = pytest.mark.docker

HEAD_BYTES = TAIL_BYTES = 32 * KIB
FILE_CAP_BYTES = Limits().output_bytes // 2


def expected(n_blocks: int) -> bytes:
    return b"".join(block(number) for number in range(n_blocks))


# Bounds


@within(60)
async def test_256_mib_of_output_grow_our_process_by_less_than_32(spec: Callable[..., SandboxSpec]) -> None:
    async with peer("meter", spec().model_dump_json(), "256") as metered:
        said = metered.said
    assert said["exit_code"] == 0
    assert said["total_bytes"] == said["streamed_bytes"] == 256 * MIB
    assert said["head"].encode() == block(0)[:HEAD_BYTES]
    assert said["tail"].encode() == block(255)[-TAIL_BYTES:]
    assert said["intact"]
    assert said["grown_executing"] < 32 * MIB
    assert said["grown_streaming"] < 32 * MIB


@within(30)
async def test_rest_is_in_the_capped_file(sandbox: GuestSandbox) -> None:
    n_blocks = FILE_CAP_BYTES // MIB + 8
    result = await sandbox.execute(blocks(n_blocks))
    said = result.stdout
    assert (len(said.head), len(said.tail), said.total_bytes) == (HEAD_BYTES, TAIL_BYTES, n_blocks * MIB)
    assert said.truncated
    assert said.file_truncated
    assert said.file is not None
    assert not said.file.is_relative_to("/workspace")
    digest = hashlib.sha256()
    n_bytes = 0
    async for piece in sandbox.read_stream(said.file):
        digest.update(piece)
        n_bytes += len(piece)
    assert n_bytes == FILE_CAP_BYTES
    assert digest.digest() == hashlib.sha256(expected(FILE_CAP_BYTES // MIB)).digest()


@within(30)
async def test_recorded_file_outlives_later_commands_and_is_readable_by_them(sandbox: GuestSandbox) -> None:
    """The caller is told the path of the file, so it must be there when the caller looks."""
    result = await sandbox.execute(blocks(2))
    file = result.stdout.file
    assert file is not None
    assert not result.stdout.file_truncated
    for _ in range(200):
        await sandbox.execute("true")
    assert await sandbox.read(file) == expected(2)
    assert (await sandbox.execute(f"wc -c < {file}")).stdout.head == b"%d\n" % (2 * MIB)
    assert (await sandbox.execute(f"echo > {file}")).exit_code == 1, "a command may not change the record"


@within(30)
async def test_oldest_file_goes_first_and_it_is_said(
    docker_backend: DockerBackend, spec: Callable[..., SandboxSpec]
) -> None:
    limits = Limits(output_bytes=4 * MIB)
    async with await docker_backend.create(spec(limits=limits)) as sandbox:
        argv = ["python3", "-c", "import os, sys; os.write(1, sys.argv[1].encode() * 1500000)"]
        for name in "abcd":
            await sandbox.execute([*argv, name], request_id=RequestId(name))

        async def recorded(name: str) -> Captured:
            return (await sandbox.execute([*argv, name], request_id=RequestId(name))).stdout

        for name in "ab":
            gone = await recorded(name)
            assert (gone.file, gone.file_truncated, gone.total_bytes) == (None, True, 1500000)
        for name in "cd":
            kept = await recorded(name)
            assert kept.file is not None
            assert not kept.file_truncated
            assert await sandbox.read(kept.file) == name.encode() * 1500000
        names = [info.path.name for info in await sandbox.ls("/run/boatyard/output")]
        assert len(names) == 2


@within(30)
async def test_many_recorded_files_stay_within_the_budget(
    docker_backend: DockerBackend, spec: Callable[..., SandboxSpec]
) -> None:
    async with await docker_backend.create(spec(limits=Limits(output_bytes=MIB))) as sandbox:
        argv = ["head", "-c", "100000", "/dev/zero"]
        files = [(await sandbox.execute(argv)).stdout.file for _ in range(40)]
        last = files[-1]
        assert last is not None
        assert len(await sandbox.read(last)) == 100000
        infos = await sandbox.ls("/run/boatyard/output")
        assert sum(info.size_bytes for info in infos) <= MIB


@pytest.mark.parametrize("n_bytes", [0, 1, 16 * KIB, 16 * KIB + 1, 64 * KIB, 64 * KIB + 1, 65 * KIB, MIB])
@within(30)
async def test_whole_or_head_and_tail_at_every_size(shared_sandbox: GuestSandbox, n_bytes: int) -> None:
    content = expected(1)[:n_bytes]
    await shared_sandbox.write("content", content)
    said = (await shared_sandbox.execute("cat content")).stdout
    if n_bytes <= HEAD_BYTES + TAIL_BYTES:
        assert said.head + said.tail == content
        assert not said.truncated
    else:
        assert (said.head, said.tail) == (content[:HEAD_BYTES], content[-TAIL_BYTES:])
        assert said.omitted_bytes == n_bytes - HEAD_BYTES - TAIL_BYTES
    assert said.total_bytes == n_bytes


@pytest.mark.parametrize(("head", "tail"), [(0, 0), (0, 10), (10, 0), (1, 1), (MIB, MIB)])
@within(30)
async def test_bounds_are_the_callers(shared_sandbox: GuestSandbox, head: int, tail: int) -> None:
    content = expected(1)[: 100 * KIB]
    await shared_sandbox.write("content", content)
    said = (await shared_sandbox.execute("cat content", head_bytes=head, tail_bytes=tail)).stdout
    if head + tail >= len(content):
        assert said.head + said.tail == content
    else:
        assert (said.head, said.tail) == (content[:head], content[len(content) - tail :])
    assert said.total_bytes == len(content)


# Order

ALTERNATE = """
import os
for number in range(5000):
    os.write(1, b"out %d\\n" % number)
    os.write(2, b"err %d\\n" % number)
"""


@within(30)
async def test_combined_order_is_exact(shared_sandbox: GuestSandbox) -> None:
    result = await shared_sandbox.execute(["python3", "-c", ALTERNATE], head_bytes=MIB)
    assert result.stdout.head == b"".join(b"out %d\nerr %d\n" % (number, number) for number in range(5000))
    assert result.stderr == Captured()


@within(30)
async def test_separate_streams_are_each_in_order(shared_sandbox: GuestSandbox) -> None:
    out, err = (b"".join(b"%s %d\n" % (name, number) for number in range(5000)) for name in (b"out", b"err"))
    result = await shared_sandbox.execute(["python3", "-c", ALTERNATE], head_bytes=MIB, separate=True)
    assert (result.stdout.head, result.stderr.head) == (out, err)
    assert (result.stdout.total_bytes, result.stderr.total_bytes) == (len(out), len(err))

    process = await shared_sandbox.start(["python3", "-c", ALTERNATE], separate=True)
    got = {Stream.STDOUT: b"", Stream.STDERR: b""}
    async for chunk in process.output():
        assert chunk.offset == len(got[chunk.stream])
        got[chunk.stream] += chunk.data
    assert (got[Stream.STDOUT], got[Stream.STDERR]) == (out, err)
    await process.detach()


@within(30)
async def test_output_just_before_the_end_is_never_lost(shared_sandbox: GuestSandbox) -> None:
    async def last_words(number: int) -> None:
        result = await shared_sandbox.execute(f"head -c 70000 /dev/zero; echo last words {number}")
        assert result.stdout.total_bytes == 70000 + len(f"last words {number}\n")
        assert result.stdout.tail.endswith(b"last words %d\n" % number)

    async with asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(last_words(number))


# Bytes


@within(30)
async def test_every_byte_survives(shared_sandbox: GuestSandbox) -> None:
    content = bytes(range(256)) * 16 + b"\xff\xfe\xc3\x28\xed\xa0\x80" + os.urandom(1000)
    await shared_sandbox.write("bytes", content)
    assert (await shared_sandbox.execute("cat bytes")).stdout.head == content
    split = await shared_sandbox.execute("cat bytes >&2", separate=True)
    assert (split.stdout.head, split.stderr.head) == (b"", content)


@within(30)
async def test_character_split_over_writes_survives(shared_sandbox: GuestSandbox) -> None:
    """The command writes the next byte only when the former was received: each is a piece of its own."""
    euro = "€𝄞".encode()
    script = f"import os\nfor byte in {euro!r}:\n    os.write(1, bytes([byte])); os.read(0, 1)"
    process = await shared_sandbox.start(["python3", "-c", script], stdin=True)
    pieces: list[bytes] = []
    async for chunk in process.output():
        pieces.append(chunk.data)
        await process.write_stdin(b"+")
    assert pieces == [bytes([byte]) for byte in euro]
    assert (await process.wait()).stdout.head.decode() == "€𝄞"
    await process.detach()


# Readers that stop


@within(60)
async def test_reader_that_stops_stalls_only_itself_and_loses_nothing(sandbox: GuestSandbox) -> None:
    before = await median_latency(sandbox)
    n_blocks = FILE_CAP_BYTES // MIB + 24
    stopped, output = await start_blocks(sandbox, n_blocks)
    digest, n_bytes = hashlib.sha256(), 0
    first = await anext(output)
    digest.update(first.data)
    n_bytes += len(first.data)

    other, others = await start_blocks(sandbox, 64)
    n_other = 0
    async for chunk in others:
        n_other += len(chunk.data)
    assert n_other == 64 * MIB
    during = await median_latency(sandbox)
    assert during < 5 * before + 0.01
    assert [info.running for info in await sandbox.processes() if info.id == stopped.id] == [True]

    async for chunk in output:
        assert (chunk.offset, chunk.skipped_bytes) == (n_bytes, 0)
        digest.update(chunk.data)
        n_bytes += len(chunk.data)
    assert n_bytes == n_blocks * MIB
    assert digest.digest() == hashlib.sha256(expected(n_blocks)).digest()
    assert (await stopped.wait()).exit_code == 0
    await stopped.detach()
    await other.detach()


async def median_latency(sandbox: GuestSandbox) -> float:
    times: list[float] = []
    for _ in range(40):
        begun = time.perf_counter()
        await sandbox.execute(["true"])
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


BY_TURNS = """
import os, sys, time
sys.stdin.readline()
for _ in range(6000):
    os.write(1, b"a")
    os.write(2, b"b")
    time.sleep(0.0002)
"""
"""Slowly enough for the sandbox to meet most of the bytes alone."""


@within(60)
async def test_reader_that_stops_may_have_many_small_pieces_waiting(sandbox: GuestSandbox) -> None:
    process = await sandbox.start(["python3", "-c", BY_TURNS], stdin=True, separate=True)
    output = process.output()
    reading = asyncio.create_task(anext(output))
    await asyncio.sleep(0)  # its first step asks for output, before we let the command begin
    await process.write_stdin(b"\n")
    chunks = [await reading]
    assert (await process.wait()).exit_code == 0
    chunks += [chunk async for chunk in output]
    for stream, byte in ((Stream.STDOUT, b"a"), (Stream.STDERR, b"b")):
        assert b"".join(chunk.data for chunk in chunks if chunk.stream == stream) == byte * 6000
    assert len(chunks) > 5000, "they came in large pieces, and showed nothing"
    await process.detach()


@within(60)
async def test_slow_reader_gets_every_byte(sandbox: GuestSandbox) -> None:
    """Past the capped file only a ring is left, so the command must wait for the reader again and again."""
    n_blocks = FILE_CAP_BYTES // MIB + 8
    process, output = await start_blocks(sandbox, n_blocks)
    digest, n_bytes = hashlib.sha256(), 0
    async for chunk in output:
        assert (chunk.offset, chunk.skipped_bytes) == (n_bytes, 0)
        digest.update(chunk.data)
        n_bytes += len(chunk.data)
        if n_bytes > FILE_CAP_BYTES - 2 * MIB:
            await sandbox.execute(["true"])
    assert n_bytes == n_blocks * MIB
    assert digest.digest() == hashlib.sha256(expected(n_blocks)).digest()
    await process.detach()


@within(30)
async def test_reader_that_stopped_and_left_lets_the_command_go_on(sandbox: GuestSandbox) -> None:
    n_blocks = FILE_CAP_BYTES // MIB + 24
    process = await sandbox.start(blocks(n_blocks), request_id=RequestId("left"))
    await anext(process.output())
    await process.detach()
    result = await (await sandbox.attach(process.id)).wait()
    assert (result.exit_code, result.stdout.total_bytes) == (0, n_blocks * MIB)


@within(30)
async def test_output_that_nobody_reads_stalls_nothing(sandbox: GuestSandbox) -> None:
    n_blocks = FILE_CAP_BYTES // MIB + 24
    process = await sandbox.start(blocks(n_blocks))
    result = await process.wait()
    assert (result.exit_code, result.stdout.total_bytes) == (0, n_blocks * MIB)
    assert result.stdout.tail == block(n_blocks - 1)[-TAIL_BYTES:]
    await process.detach()


@within(30)
async def test_late_reader_is_told_of_the_gap(sandbox: GuestSandbox) -> None:
    n_blocks = FILE_CAP_BYTES // MIB + 24
    process = await sandbox.start(blocks(n_blocks), request_id=RequestId("late"))
    await process.wait()
    content = expected(n_blocks)
    at, n_skipped = 0, 0
    async for chunk in process.output():
        at += chunk.skipped_bytes
        n_skipped += chunk.skipped_bytes
        assert chunk.offset == at
        assert chunk.data == content[at : at + len(chunk.data)]
        at += len(chunk.data)
    assert at == len(content)
    assert 0 < n_skipped < len(content) - FILE_CAP_BYTES
    await process.detach()


@within(30)
async def test_two_readers_of_one_command_each_get_everything(shared_sandbox: GuestSandbox) -> None:
    process = await shared_sandbox.start(blocks(4))
    again = await shared_sandbox.attach(process.id)

    async def everything(handle: Process) -> bytes:
        return b"".join([chunk.data async for chunk in handle.output()])

    async with asyncio.TaskGroup() as group:
        reading = [group.create_task(everything(handle)) for handle in (process, again)]
    assert [task.result() for task in reading] == [expected(4)] * 2
    await process.detach()
    await again.detach()


@within(30)
@pytest.mark.parametrize("n_bytes", [1000, 100_000])
async def test_attaching_to_what_was_forgotten_but_for_its_children_tells_the_end(
    sandbox: GuestSandbox, n_bytes: int
) -> None:
    """Its output may be gone from the record, and then it is named as a gap; a late reader meets no error."""
    process = await sandbox.start(f"head -c {n_bytes} /dev/zero; setsid sleep 50 >/dev/null 2>&1 </dev/null & exit 7")
    assert (await process.wait()).stdout.total_bytes == n_bytes
    again = await sandbox.attach(process.id)
    result = await again.wait()
    assert (result.exit_code, result.stdout.total_bytes) == (7, n_bytes)
    assert sum([len(chunk.data) + chunk.skipped_bytes async for chunk in again.output()]) == n_bytes
    assert await process.kill() == 1


@within(30)
async def test_reader_of_a_forgotten_command_gets_everything_though_its_last_child_dies(sandbox: GuestSandbox) -> None:
    """A child that holds the pipe keeps the record; whoever reads it by then reads it to the end."""
    process = await sandbox.start(f"head -c {3 * MIB} /dev/zero; sleep 50 &")
    await process.wait()
    output = (await sandbox.attach(process.id)).output()
    n_bytes = len((await anext(output)).data)
    assert await process.kill() == 1
    await sandbox.processes()
    async for chunk in output:
        assert not chunk.skipped_bytes
        n_bytes += len(chunk.data)
    assert n_bytes == 3 * MIB
