"""Bulk: tars in and out, long reads, and watching."""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator

from sandbox.conformance.check import Ability, Checks, Place, expect, expect_equal, refused
from sandbox.conformance.tar_bytes import END, tar_device, tar_file, tar_link
from sandbox.errors import InvalidArgument, IsDirectory, NotDirectory, NotFound, PathEscapes
from sandbox.types import FileChange, FileKind, RequestId

checks = Checks()


async def _gather(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


@checks.needs(Ability.STREAMS)
async def a_stream_is_what_read_returns(place: Place) -> None:
    content = bytes(range(251)) * 12_000
    await place.files.write(place.path("f"), content)
    expect(await _gather(place.streams.read_stream(place.path("f"))) == content, "the pieces are not the file")
    part = await _gather(place.streams.read_stream(place.path("f"), offset=5, limit=2_000_000))
    expect(part == content[5:2_000_005], "the pieces are not the part asked for")
    with refused("streaming what is not there", NotFound):
        await _gather(place.streams.read_stream(place.path("missing")))


@checks.needs(Ability.STREAMS)
async def a_download_can_be_uploaded(place: Place) -> None:
    names = ["a b", "new\nline", "-dash", "ünïcode", b"bad\xff".decode("utf-8", "surrogateescape")]
    for name in names:
        await place.files.write(place.path("source", "sub", name), name.encode("utf-8", "surrogateescape") * 1000)
    await place.files.write(place.path("source", "run"), b"#!/bin/sh\n", mode=0o755)
    await place.files.mkdir(place.path("source", "empty"))
    tar = await _gather(place.streams.download(place.path("source")))
    with tarfile.open(fileobj=io.BytesIO(tar), errors="surrogateescape") as archive:
        expect_equal(sorted(archive.getnames()), sorted(["empty", "run", "sub", *(f"sub/{n}" for n in names)]), "names")

    async def pieces() -> AsyncIterator[bytes]:
        for begin in range(0, len(tar), 1000):
            yield tar[begin : begin + 1000]

    expect_equal(await place.streams.upload(pieces(), place.path("new", "target")), 3 + len(names), "entries")
    for name in names:
        found = await place.files.read(place.path("new", "target", "sub", name))
        expect_equal(found, name.encode("utf-8", "surrogateescape") * 1000, f"the content of {name!r}")
    expect_equal((await place.files.stat(place.path("new", "target", "run"))).mode, 0o755, "the mode")


@checks.needs(Ability.STREAMS)
async def a_download_of_one_file_has_its_name(place: Place) -> None:
    await place.files.write(place.path("f"), b"x")
    tar = await _gather(place.streams.download(place.path("f")))
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        expect_equal(archive.getnames(), ["f"], "the names")
    with refused("downloading what is not there", NotFound):
        await _gather(place.streams.download(place.path("missing")))


@checks.needs(Ability.STREAMS)
async def an_upload_merges_and_replaces(place: Place) -> None:
    await place.files.write(place.path("d", "old"), b"old")
    await place.files.write(place.path("d", "both"), b"old")
    request = RequestId(f"upload-{place.directory.name}")
    tar = tar_file("./d/both", b"new") + tar_file("e/f", b"deep") + END
    expect_equal(await place.streams.upload(tar, place.directory, request_id=request), 2, "entries")
    expect_equal(await place.names("d"), ["both", "old"], "the merged directory")
    expect_equal(await place.files.read(place.path("d", "both")), b"new", "the replaced file")
    await place.files.delete(place.path("e"), recursive=True)
    expect_equal(await place.streams.upload(tar, place.directory, request_id=request), 2, "the repetition's outcome")
    expect_equal(await place.names(), ["d"], "what is there: the repetition did nothing")


@checks.needs(Ability.STREAMS)
async def a_bad_upload_changes_nothing(place: Place) -> None:
    await place.files.write(place.path("good"), b"before")
    await place.files.mkdir(place.path("directory"))
    good = tar_file("good", b"after")
    for what, tar, error in [
        ("an absolute name", good + tar_file("/abs") + END, PathEscapes),
        ("a name with ..", good + tar_file("a/../../up") + END, PathEscapes),
        ("a device", good + tar_device("dev") + END, InvalidArgument),
        ("nothing", b"", InvalidArgument),
        ("garbage", b"garbage " * 300, InvalidArgument),
        ("a tar that is cut off", (good + tar_file("big", bytes(5000)))[:3000], InvalidArgument),
        ("a tar without its end", good, InvalidArgument),
        ("a file where a directory is", good + tar_file("directory", b"x") + END, IsDirectory),
        ("a directory where a file is", tar_file("new", b"x") + tar_file("good/below", b"x") + END, NotDirectory),
    ]:
        with refused(what, error):
            await place.streams.upload(tar, place.directory)
        expect_equal(await place.names(), ["directory", "good"], f"what is there after {what}")
        expect_equal(await place.files.read(place.path("good")), b"before", f"the file after {what}")


@checks.needs(Ability.STREAMS)
async def symlinks_in_an_upload_are_kept_and_not_followed(place: Place) -> None:
    tar = tar_file("d/f", b"x") + tar_link("l", "d/f") + tar_link("d/up", "../l") + tar_link("h", "d/f", hard=True)
    await place.streams.upload(tar + END, place.directory)
    expect_equal((await place.files.stat(place.path("l"), follow=False)).target, "d/f", "the link's target")
    expect_equal(await place.files.read(place.path("d", "up")), b"x", "what is read through two links")
    expect_equal((await place.files.stat(place.path("h"), follow=False)).kind, FileKind.FILE, "the hard link")
    await place.streams.upload(tar_link("d/out", "/etc/passwd") + END, place.directory)
    expect_equal((await place.files.stat(place.path("d", "out"), follow=False)).target, "/etc/passwd", "a link out")
    for what, bad in {
        "a file through a link out": tar_link("y", "/tmp") + tar_file("y/g", b"x"),
        "a file through a link upwards": tar_link("y", "..") + tar_file("y/g", b"x"),
        "a hard link out": tar_link("x", "../f", hard=True),
        "a file through a link": tar_link("y", "d") + tar_file("y/g", b"x"),
    }.items():
        with refused(what, PathEscapes):
            await place.streams.upload(tar_file("new", b"x") + bad + END, place.directory)
        expect_equal(await place.names(), ["d", "h", "l"], f"what is there after {what}")


@checks.needs(Ability.WATCH)
async def a_watch_tells_what_changes(place: Place) -> None:
    await place.files.mkdir(place.path("sub"))
    seen: list[FileChange] = []
    news = asyncio.Event()

    async def collect() -> None:
        async for change in place.watcher.watch(place.directory):
            seen.append(change)
            news.set()

    async def until(kind: str, *names: str) -> None:
        while not any(change.kind == kind and change.path == place.path(*names) for change in seen):
            news.clear()
            await news.wait()

    async def touch_until_seen() -> None:
        """Nobody says when a watch has begun, so something happens until it is told."""
        while not seen:
            await place.files.write(place.path("begin"), b"x", atomic=False)
            await asyncio.sleep(0.05)

    async with asyncio.timeout(20):
        collecting = asyncio.create_task(collect())
        try:
            await touch_until_seen()
            await place.files.write(place.path("sub", "f"), b"x", atomic=False)
            await until("created", "sub", "f")
            await place.files.mkdir(place.path("new", "deep"))
            await place.files.write(place.path("new", "deep", "f"), b"x", atomic=False)
            await until("created", "new", "deep", "f")
            await place.files.move(place.path("sub", "f"), place.path("g"))
            await until("moved_to", "g")
            await place.files.delete(place.path("g"))
            await until("deleted", "g")
        finally:
            collecting.cancel()
            await asyncio.wait([collecting])
    with refused("watching what is not there", NotFound):
        async for _ in place.watcher.watch(place.path("missing")):
            pass
