"""Files on the real engine, where size, kernel and permissions matter. What every backend must do is in conformance."""

import asyncio
import hashlib
import io
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import PurePosixPath

import pytest

from sandbox.client.sandbox import GuestSandbox
from sandbox.errors import (
    AlreadyExists,
    InvalidArgument,
    NotFound,
    NotRegularFile,
    OperationTimedOut,
    PathEscapes,
    PermissionDenied,
    TooLarge,
)
from sandbox.types import MIB, FileKind, GrepMode

pytestmark = pytest.mark.docker


async def run(sandbox: GuestSandbox, script: str) -> str:
    result = await sandbox.execute(script, timeout_s=60)
    assert result.exit_code == 0, result.stdout
    return result.stdout.head.decode()


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def test_a_hundred_thousand_entries_are_listed_while_others_work(shared_sandbox: GuestSandbox) -> None:
    script = "import os\nos.mkdir('many')\nfor n in range(100000): open(f'many/{n:06}', 'w').close()"
    await run(shared_sandbox, f'python3 -c "{script}"')
    listing = asyncio.create_task(shared_sandbox.ls("many"))
    n_meanwhile = 0
    while not listing.done():
        assert (await shared_sandbox.execute(["true"])).ok
        n_meanwhile += 1
    found = await listing
    assert [info.path.name for info in found] == [f"{n:06}" for n in range(100_000)]
    assert n_meanwhile > 3
    limited = await shared_sandbox.glob("many/*", limit=10)
    assert (len(limited.paths), limited.truncated) == (10, True)
    await shared_sandbox.delete("many", recursive=True)
    with pytest.raises(NotFound):
        await shared_sandbox.stat("many")


async def test_a_large_file_goes_in_and_out_intact(shared_sandbox: GuestSandbox) -> None:
    data = os.urandom(MIB) * 64
    info = await shared_sandbox.write("large", pieces(data, 300_001))
    assert info.size_bytes == len(data)
    assert (await run(shared_sandbox, "sha256sum large")).split()[0] == hashlib.sha256(data).hexdigest()
    assert await shared_sandbox.read("large") == data
    assert await shared_sandbox.read("large", offset=MIB - 3, limit=7) == data[MIB - 3 : MIB + 4]
    assert await shared_sandbox.read("large", offset=len(data) + 5) == b""
    await shared_sandbox.delete("large")


async def test_a_reader_that_stops_half_way_holds_nothing_up(shared_sandbox: GuestSandbox) -> None:
    await run(shared_sandbox, "head -c 30000000 /dev/zero > zeros")
    stream = shared_sandbox.read_stream("zeros")
    first = await anext(stream)
    assert first
    assert await shared_sandbox.read("zeros", limit=4) == bytes(4)
    await stream.aclose()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  a generator, really
    assert await shared_sandbox.read("zeros", limit=4) == bytes(4)


async def test_an_upload_that_fails_half_way_leaves_nothing(shared_sandbox: GuestSandbox) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * MIB
        raise RuntimeError("the source broke")

    await shared_sandbox.mkdir("half")
    with pytest.raises(RuntimeError):
        await shared_sandbox.write("half/file", broken())
    assert await shared_sandbox.ls("half") == []


async def test_a_pipe_or_a_device_is_not_read(shared_sandbox: GuestSandbox) -> None:
    await run(shared_sandbox, "mkfifo pipe")
    for path in ("pipe", "/dev/zero", "/dev/tty"):
        with pytest.raises(NotRegularFile):
            await shared_sandbox.read(path)
    with pytest.raises(NotRegularFile):
        await shared_sandbox.write("pipe", b"x")
    assert (await shared_sandbox.stat("pipe")).kind is FileKind.OTHER


async def test_permissions_are_the_users(shared_sandbox: GuestSandbox) -> None:
    await run(shared_sandbox, "mkdir shut; touch shut/f locked; chmod 000 shut locked")
    for attempt in (
        shared_sandbox.read("locked"),
        shared_sandbox.write("locked", b"x"),
        shared_sandbox.ls("shut"),
        shared_sandbox.stat("shut/f"),
        shared_sandbox.write("/etc/passwd", b"x"),
        shared_sandbox.read("/etc/shadow"),
        shared_sandbox.delete("/usr/bin/env"),
        shared_sandbox.mkdir("/etc/new"),
        shared_sandbox.move("/etc/hostname", "mine"),
    ):
        with pytest.raises(PermissionDenied):
            await attempt
    await run(shared_sandbox, "chmod 755 shut locked")


async def test_symlinks_are_followed_by_reads_and_inside_the_tree_by_writes(shared_sandbox: GuestSandbox) -> None:
    await run(
        shared_sandbox, "mkdir -p l/d; echo in > l/d/f; ln -s d/f l/in; ln -s /etc/hostname l/out; ln -s / l/root"
    )
    assert await shared_sandbox.read("l/in") == b"in\n"
    assert await shared_sandbox.read("l/out") == b"sandbox\n"
    assert (await shared_sandbox.stat("l/out", follow=False)).target == "/etc/hostname"
    await shared_sandbox.write("l/in", b"new")
    assert await run(shared_sandbox, "readlink l/in; cat l/d/f") == "d/f\nnew"
    for path in ("l/out", "l/root/tmp/x", "l/root/workspace/../tmp/x"):
        with pytest.raises(PathEscapes):
            await shared_sandbox.write(path, b"x")
    await shared_sandbox.delete("l/root")
    assert (await shared_sandbox.stat("/tmp")).kind is FileKind.DIRECTORY


async def test_an_atomic_write_keeps_mode_and_is_never_seen_half(shared_sandbox: GuestSandbox) -> None:
    await run(shared_sandbox, "printf old > script; chmod 751 script")
    old, new = b"a" * 200_000, b"b" * 200_000
    await shared_sandbox.write("script", old)
    watching = asyncio.create_task(
        run(
            shared_sandbox,
            "for i in $(seq 300); do head -c1 script; tail -c1 script; wc -c <script; done | sort | uniq -c",
        )
    )
    for n in range(60):
        await shared_sandbox.write("script", new if n % 2 else old)
    seen = {line.split()[-1] for line in (await watching).splitlines()}
    assert seen <= {"aa200000", "bb200000", "ab200000", "ba200000"}
    assert (await shared_sandbox.stat("script")).mode == 0o751


async def test_moving_across_file_systems_copies_the_tree(shared_sandbox: GuestSandbox) -> None:
    await run(shared_sandbox, "mkdir -p tree/sub; echo x > tree/sub/f; chmod 640 tree/sub/f; ln -s sub/f tree/l")
    await shared_sandbox.move("tree", "/tmp/tree")
    assert await run(shared_sandbox, "cat /tmp/tree/l; stat -c %a /tmp/tree/sub/f; ls") != ""
    with pytest.raises(NotFound):
        await shared_sandbox.stat("tree")
    with pytest.raises(AlreadyExists):
        await shared_sandbox.move("/tmp/tree", "/workspace")


async def test_an_edit_of_a_huge_file_is_refused(shared_sandbox: GuestSandbox) -> None:
    await run(shared_sandbox, "head -c 20000000 /dev/zero > huge")
    with pytest.raises(TooLarge):
        await shared_sandbox.edit("huge", "a", "b")
    await shared_sandbox.delete("huge")


async def test_odd_time_stamps_do_no_harm(shared_sandbox: GuestSandbox) -> None:
    await run(shared_sandbox, "touch -d '1901-12-14' old; touch -d '2445-01-01' future")
    assert [info.path.name for info in await shared_sandbox.ls() if info.path.name in ("old", "future")] == [
        "future",
        "old",
    ]


async def test_a_pattern_that_would_never_end_ends(shared_sandbox: GuestSandbox) -> None:
    """ripgrep knows no catastrophic patterns; what only Python's `re` can do runs in a process that can be killed."""
    await shared_sandbox.write("evil/a.txt", b"a" * 5000 + b"!\n")
    found = await shared_sandbox.grep("(a+)+$", "evil", mode=GrepMode.COUNT)
    assert found.counts == {}
    hopeless = asyncio.create_task(shared_sandbox.grep(r"(?=(a+)+$)(a+)+\1$", "evil"))
    await asyncio.sleep(0.2)
    assert (await shared_sandbox.execute(["true"])).ok
    hopeless.cancel()
    with pytest.raises((asyncio.CancelledError, InvalidArgument, OperationTimedOut)):
        await hopeless
    await run(shared_sandbox, "while ps -u user -o args | grep -q '[g]uest.pyz'; do sleep 0.1; done")


async def test_a_tree_goes_out_and_in_again(shared_sandbox: GuestSandbox) -> None:
    names = ["a b", "new\nline", "-dash", "ünïcode", "quote'\"", b"bad\xff".decode("utf-8", "surrogateescape")]
    for name in names:
        await shared_sandbox.write(PurePosixPath("out") / "deep" / name, os.fsencode(name))
    await run(shared_sandbox, "ln -s deep out/link; chmod 700 out/deep")
    tar = b"".join([piece async for piece in shared_sandbox.download("out")])
    with tarfile.open(fileobj=io.BytesIO(tar), errors="surrogateescape") as archive:
        assert {member.name for member in archive} >= {f"deep/{name}" for name in names} | {"link"}
    assert await shared_sandbox.upload(pieces(tar, 10_007), "again") >= len(names) + 2
    for name in names:
        assert await shared_sandbox.read(PurePosixPath("again/link") / name) == os.fsencode(name)
    assert (await shared_sandbox.stat("again/deep")).mode == 0o700


async def test_a_watch_sees_what_commands_and_writes_do(shared_sandbox: GuestSandbox) -> None:
    await shared_sandbox.mkdir("watched/sub")
    seen: list[tuple[str, str]] = []
    ready = asyncio.Event()

    async def collect() -> None:
        async for change in shared_sandbox.watch("watched"):
            seen.append((change.kind, change.path.name))
            ready.set()

    async def until(*wanted: tuple[str, str]) -> None:
        async with asyncio.timeout(20):
            while not set(wanted) <= set(seen):
                ready.clear()
                await ready.wait()

    watching = asyncio.create_task(collect())
    async with asyncio.timeout(20):
        while not seen:
            await shared_sandbox.write("watched/start", b"x", atomic=False)
            await asyncio.sleep(0.05)
    await run(
        shared_sandbox, "cd watched; echo x > sub/new; mv sub/new sub/moved; rm sub/moved; mkdir later; touch later/f"
    )
    await until(("created", "new"), ("moved_to", "moved"), ("deleted", "moved"), ("created", "f"))
    await shared_sandbox.write("watched/atomic", b"x")
    await until(("moved_to", "atomic"))
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching


async def test_a_watch_goes_on_for_longer_than_its_credit(shared_sandbox: GuestSandbox) -> None:
    await shared_sandbox.mkdir("busy")
    created: set[str] = set()
    watching = asyncio.Event()

    async def collect() -> None:
        async for change in shared_sandbox.watch("busy"):
            watching.set()
            created.update([change.path.name] if change.kind == "created" else [])
            if "file-5999" in created:
                return

    collecting = asyncio.create_task(collect())
    async with asyncio.timeout(60):
        while not watching.is_set():
            await shared_sandbox.write("busy/start", b"x", atomic=False)
            await asyncio.sleep(0.05)
        for first in range(0, 6000, 1000):
            await run(shared_sandbox, f"cd busy; for n in $(seq {first} {first + 999}); do : > file-$n; done")
        await collecting
    assert created >= {f"file-{n}" for n in range(6000)}


async def test_many_uploads_and_reads_at_once_are_not_mixed_up(shared_sandbox: GuestSandbox) -> None:
    async def one(n: int) -> None:
        data = n.to_bytes(4, "big") * (30_000 + n)
        await shared_sandbox.write(f"at-once/{n}", data)
        assert await shared_sandbox.read(f"at-once/{n}") == data

    async with asyncio.TaskGroup() as tasks:
        for n in range(100):
            tasks.create_task(one(n))
