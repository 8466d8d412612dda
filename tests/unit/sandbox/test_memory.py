"""What `sandbox/conformance.py` does not ask of every backend."""

from datetime import UTC, datetime, timedelta

import pytest

from sandbox.backends.memory import ENTRY_BYTES, MemoryFiles
from sandbox.conformance.tar_bytes import END, tar_file, tar_link
from sandbox.errors import NoSpace, NotSupported, PermissionDenied, RequestConflict
from sandbox.types import KIB, RequestId

EMPTY_BYTES = 4 * ENTRY_BYTES
"""The directories every tree has: /workspace, /home, /home/user, /tmp."""


async def test_bytes_in_all_are_bounded_and_come_back() -> None:
    files = MemoryFiles(max_bytes=EMPTY_BYTES + ENTRY_BYTES + KIB)
    await files.write("a", bytes(KIB))
    with pytest.raises(NoSpace):
        await files.write("a", bytes(KIB + 1))
    assert await files.read("a") == bytes(KIB)
    with pytest.raises(NoSpace):
        await files.write("b", b"")
    await files.delete("a")
    await files.write("b", bytes(KIB))
    await files.move("b", "c")
    with pytest.raises(NoSpace):
        await files.mkdir("d")


async def test_a_stream_is_stopped_where_it_no_longer_fits() -> None:
    n_taken = 0

    async def endless():
        nonlocal n_taken
        while True:
            n_taken += 1
            yield bytes(KIB)

    files = MemoryFiles(max_bytes=64 * KIB)
    with pytest.raises(NoSpace):
        await files.write("a", endless())
    assert n_taken == 65


async def test_an_upload_that_does_not_fit_changes_nothing() -> None:
    files = MemoryFiles(max_bytes=EMPTY_BYTES + 8 * KIB)
    await files.write("a", b"before")
    with pytest.raises(NoSpace):
        await files.upload(tar_file("a", b"after") + tar_file("b", bytes(9 * KIB)) + END)
    assert await files.read("a") == b"before"
    assert [info.path.name for info in await files.ls()] == ["a"]
    await files.write("c", bytes(4 * KIB))


async def test_links_and_the_root_are_refused() -> None:
    files = MemoryFiles()
    with pytest.raises(NotSupported):
        await files.upload(tar_link("l", "a") + END)
    with pytest.raises(PermissionDenied):
        await files.delete("/", recursive=True)


async def test_the_clock_is_given() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    files = MemoryFiles(clock=lambda: moment)
    assert (await files.write("a", b"")).modified_at == moment
    moment += timedelta(days=1)
    assert (await files.write("a", b"x")).modified_at == moment


async def test_a_request_without_room_may_be_made_again_when_there_is_some() -> None:
    files = MemoryFiles(max_bytes=100_000)
    request = RequestId("r")
    await files.write("filler", bytes(90_000))
    with pytest.raises(NoSpace):
        await files.write("f", bytes(50_000), request_id=request)
    await files.delete("filler")
    await files.write("f", bytes(50_000), request_id=request)
    with pytest.raises(RequestConflict):
        await files.write("f", b"", request_id=request)


async def test_trees_as_deep_as_a_path_can_be() -> None:
    files = MemoryFiles()
    await files.write("d/" * 2000 + "f", b"x")
    await files.upload(tar_file("a", b"x") + END)
    await files.delete("d", recursive=True)
    assert [info.path.name for info in await files.ls()] == ["a"]
