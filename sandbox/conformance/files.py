"""Files: reading, writing, listing, moving and deleting."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from sandbox.conformance.check import Ability, Checks, Place, expect, expect_equal, refused
from sandbox.conformance.tar_bytes import END, tar_link
from sandbox.errors import (
    AlreadyExists,
    DirectoryNotEmpty,
    InvalidArgument,
    IsDirectory,
    NotDirectory,
    NotFound,
    RequestConflict,
)
from sandbox.types import WORKSPACE, FileKind, RequestId

checks = Checks()

ODD_NAMES = [
    "with space",
    " leading and trailing ",
    "new\nline",
    "tab\tand\rreturn",
    "single'quote",
    'double"quote',
    "-rf",
    "--help",
    "back\\slash",
    "$HOME `id` $(id)",
    "*?[x]{a,b}",
    "~",
    "ünïcödé-日本語-😀",
    "…",
    "n" * 255,
]


@checks.needs(Ability.FILES)
async def what_is_written_can_be_read(place: Place) -> None:
    for content in (b"", b"text\n", bytes(range(256)) * 5000):
        info = await place.files.write(place.path("f"), content)
        expect_equal(info.size_bytes, len(content), "the size that write reports")
        expect_equal(info.path, place.path("f"), "the path that write reports")
        expect_equal(info.kind, FileKind.FILE, "the kind that write reports")
        expect_equal(await place.files.read(place.path("f")), content, "what was read")


@checks.needs(Ability.FILES)
async def any_name_is_possible(place: Place) -> None:
    for name in ODD_NAMES:
        await place.files.write(place.path("d", name), name.encode())
    expect_equal(await place.names("d"), sorted(ODD_NAMES), "the listed names")
    for name in ODD_NAMES:
        expect_equal(await place.files.read(place.path("d", name)), name.encode(), f"the content of {name!r}")
        await place.files.move(place.path("d", name), place.path("e", name))
        await place.files.delete(place.path("e", name))
    expect_equal(await place.names("e"), [], "what is left")


@checks.needs(Ability.FILES)
async def names_that_are_not_utf8_survive(place: Place) -> None:
    name = b"caf\xe9 \xff".decode("utf-8", "surrogateescape")
    await place.files.write(place.path(name), b"x")
    expect_equal(await place.names(), [name], "the listed names")
    expect_equal(await place.files.read(place.path(name)), b"x", "its content")


@checks.needs(Ability.FILES)
async def relative_paths_start_at_the_workspace(place: Place) -> None:
    relative = place.path("f").relative_to(WORKSPACE)
    await place.files.write(str(relative), b"x")
    expect_equal((await place.files.stat(relative)).path, place.path("f"), "the path of a relative one")
    expect_equal(await place.files.read(f"./{relative}"), b"x", "what was read")


@checks.needs(Ability.FILES)
async def a_listing_is_sorted_and_says_size_time_and_kind(place: Place) -> None:
    await place.files.write(place.path("b"), b"12345")
    await place.files.write(place.path("a.txt"), b"")
    await place.files.mkdir(place.path("a"))
    found = await place.files.ls(place.directory)
    expect_equal([info.path for info in found], [place.path(name) for name in ("a", "a.txt", "b")], "the paths")
    kinds = [FileKind.DIRECTORY, FileKind.FILE, FileKind.FILE]
    expect_equal([info.kind for info in found], kinds, "the kinds")
    expect_equal(found[2].size_bytes, 5, "the size")
    age = datetime.now(UTC) - found[2].modified_at
    expect(abs(age) < timedelta(hours=1), f"a file written now was modified {age} ago")
    with refused("listing what is not there", NotFound):
        await place.files.ls(place.path("missing"))
    with refused("listing a file", NotDirectory):
        await place.files.ls(place.path("b"))


@checks.needs(Ability.FILES)
async def offset_and_limit_select_bytes(place: Place) -> None:
    path = place.path("f")
    await place.files.write(path, b"0123456789")
    for offset, limit, wanted in [
        (0, None, b"0123456789"),
        (3, None, b"3456789"),
        (3, 4, b"3456"),
        (8, 100, b"89"),
        (10, None, b""),
        (1000, 5, b""),
        (0, 0, b""),
    ]:
        found = await place.files.read(path, offset=offset, limit=limit)
        expect_equal(found, wanted, f"offset {offset}, limit {limit}")


@checks.needs(Ability.FILES)
async def reading_what_is_no_file_is_refused(place: Place) -> None:
    await place.files.write(place.path("f"), b"x")
    with refused("reading what is not there", NotFound):
        await place.files.read(place.path("missing"))
    with refused("reading a directory", IsDirectory):
        await place.files.read(place.directory)
    with refused("reading below a file", NotDirectory):
        await place.files.read(place.path("f", "below"))
    with refused("stat of what is not there", NotFound):
        await place.files.stat(place.path("missing"))


@checks.needs(Ability.FILES)
async def writing_makes_parents_and_respects_what_is_there(place: Place) -> None:
    await place.files.write(place.path("a", "b", "f"), b"x")
    with refused("writing to a directory", IsDirectory):
        await place.files.write(place.path("a", "b"), b"y")
    with refused("writing below a file", NotDirectory):
        await place.files.write(place.path("a", "b", "f", "below"), b"y")
    with refused("overwrite=False", AlreadyExists):
        await place.files.write(place.path("a", "b", "f"), b"y", overwrite=False)
    expect_equal(await place.files.read(place.path("a", "b", "f")), b"x", "the file after the refusals")
    await place.files.write(place.path("new"), b"y", overwrite=False)
    expect_equal(await place.names(), ["a", "new"], "what is there, with no leftovers")


@checks.needs(Ability.FILES)
async def a_file_keeps_its_mode_when_it_is_written(place: Place) -> None:
    path = place.path("f")
    expect_equal((await place.files.write(path, b"1", mode=0o750)).mode, 0o750, "the mode asked for")
    for atomic in (True, False):
        expect_equal((await place.files.write(path, b"2", atomic=atomic)).mode, 0o750, f"kept with atomic={atomic}")
    expect_equal((await place.files.write(path, b"3", mode=0o600)).mode, 0o600, "a new mode")


@checks.needs(Ability.FILES)
async def content_may_come_in_pieces(place: Place) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for n in range(64):
            yield bytes([n]) * 40_000

    info = await place.files.write(place.path("f"), pieces())
    expect_equal(info.size_bytes, 64 * 40_000, "the size")
    expect_equal(await place.files.read(place.path("f"), offset=40_000 * 63 - 1, limit=2), b"\x3e\x3f", "the seam")


@checks.needs(Ability.FILES)
async def a_source_that_fails_leaves_the_old_content(place: Place) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise OSError("the source broke")

    await place.files.write(place.path("f"), b"old")
    for name in ("f", "new"):
        try:
            await place.files.write(place.path(name), broken())
        except OSError:
            continue
        raise AssertionError("the source's own error must reach the caller")
    expect_equal(await place.files.read(place.path("f")), b"old", "the old content")
    expect_equal(await place.names(), ["f"], "what is there, with no leftovers")


@checks.needs(Ability.FILES)
async def directories_are_made_as_asked(place: Place) -> None:
    await place.files.mkdir(place.path("a", "b"))
    await place.files.mkdir(place.path("a", "b"))
    with refused("exist_ok=False", AlreadyExists):
        await place.files.mkdir(place.path("a"), exist_ok=False)
    with refused("parents=False", NotFound):
        await place.files.mkdir(place.path("x", "y"), parents=False)
    await place.files.write(place.path("f"), b"")
    with refused("a directory where a file is", AlreadyExists):
        await place.files.mkdir(place.path("f"))


@checks.needs(Ability.FILES)
async def moving_renames_and_does_not_destroy(place: Place) -> None:
    await place.files.write(place.path("d", "f"), b"1")
    await place.files.move(place.path("d"), place.path("e"))
    expect_equal(await place.files.read(place.path("e", "f")), b"1", "a moved directory's file")
    await place.files.write(place.path("g"), b"2")
    with refused("moving over a file", AlreadyExists):
        await place.files.move(place.path("g"), place.path("e", "f"))
    with refused("moving over a directory", AlreadyExists):
        await place.files.move(place.path("g"), place.path("e"), overwrite=True)
    with refused("moving what is not there", NotFound):
        await place.files.move(place.path("missing"), place.path("x"))
    with refused("moving a directory into itself", InvalidArgument):
        await place.files.move(place.path("e"), place.path("e", "x"))
    await place.files.move(place.path("g"), place.path("e", "f"), overwrite=True)
    expect_equal(await place.files.read(place.path("e", "f")), b"2", "the overwritten file")
    expect_equal(await place.names(), ["e"], "what is left")


@checks.needs(Ability.FILES)
async def deleting_takes_trees_only_when_asked(place: Place) -> None:
    await place.files.write(place.path("d", "e", "f"), b"1")
    with refused("deleting a full directory", DirectoryNotEmpty):
        await place.files.delete(place.path("d"))
    await place.files.delete(place.path("d", "e", "f"))
    await place.files.delete(place.path("d", "e"))
    with refused("deleting what is not there", NotFound):
        await place.files.delete(place.path("d", "e"))
    with refused("deleting a tree that is not there", NotFound):
        await place.files.delete(place.path("d", "e"), recursive=True)
    await place.files.delete(place.path("d", "e"), missing_ok=True)
    await place.files.write(place.path("d", "g", "h"), b"1")
    await place.files.delete(place.path("d"), recursive=True)
    await place.files.delete(place.path("d"), recursive=True, missing_ok=True)
    expect_equal(await place.names(), [], "what is left")


@checks.needs(Ability.FILES)
async def a_repeated_request_is_done_once(place: Place) -> None:
    path, request = place.path("f"), RequestId(f"write-{place.directory.name}")
    first = await place.files.write(path, b"1", request_id=request)
    await place.files.write(path, b"22")
    expect_equal(await place.files.write(path, b"1", request_id=request), first, "the outcome of the repetition")
    expect_equal(await place.files.read(path), b"22", "the file, which was not written again")
    request = RequestId(f"delete-{place.directory.name}")
    await place.files.delete(path, request_id=request)
    await place.files.write(path, b"3")
    await place.files.delete(path, request_id=request)
    expect_equal(await place.files.read(path), b"3", "the file, which was not deleted again")
    with refused("the id of another request", RequestConflict):
        await place.files.delete(place.path("other"), missing_ok=True, request_id=request)


@checks.needs(Ability.FILES)
async def a_refused_request_may_be_made_again(place: Place) -> None:
    path, request = place.path("f"), RequestId(f"refused-{place.directory.name}")
    with refused("to delete what is not there", NotFound):
        await place.files.delete(path, request_id=request)
    for content in (b"1", b"2"):
        await place.files.write(path, content)
        await place.files.delete(path, request_id=request)
    expect_equal(await place.files.read(path), b"2", "the file, which was deleted once")


@checks.needs(Ability.STREAMS)
async def reading_through_a_link(place: Place) -> None:
    await place.files.write(place.path("f"), b"content")
    await place.streams.upload(tar_link("l", "f") + tar_link("loop", "loop") + END, place.directory)
    expect_equal(await place.files.read(place.path("l")), b"content", "what was read through the link")
    followed, itself = await place.files.stat(place.path("l")), await place.files.stat(place.path("l"), follow=False)
    expect_equal((followed.kind, itself.kind), (FileKind.FILE, FileKind.SYMLINK), "its kind, followed and not")
    expect_equal(itself.target, "f", "its target")
    info = await place.files.write(place.path("l"), b"through")
    expect_equal(info.size_bytes, 7, "the size of what was written through the link")
    expect_equal(await place.files.read(place.path("f")), b"through", "the file that the link leads to")
    expect_equal((await place.files.stat(place.path("l"), follow=False)).kind, FileKind.SYMLINK, "the link afterwards")


@checks.needs(Ability.STREAMS)
async def a_link_is_deleted_and_moved_not_its_target(place: Place) -> None:
    await place.files.write(place.path("d", "f"), b"content")
    await place.streams.upload(tar_link("l", "d") + tar_link("dangling", "nowhere") + END, place.directory)
    await place.files.move(place.path("l"), place.path("m"))
    await place.files.delete(place.path("m"), recursive=True)
    await place.files.delete(place.path("dangling"))
    expect_equal(await place.files.read(place.path("d", "f")), b"content", "what the link led to")
    expect_equal(await place.names(), ["d"], "what is left")
