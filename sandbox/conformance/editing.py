"""Editing: exact, once unless asked otherwise, line ends kept."""

from typing import Any, cast

from sandbox.conformance.check import Ability, Checks, Place, expect_equal, refused
from sandbox.errors import EditNotFound, EditNotUnique, InvalidArgument, IsDirectory, NotFound
from sandbox.types import RequestId

checks = Checks()


@checks.needs(Ability.EDIT)
async def an_edit_replaces_the_one_occurrence(place: Place) -> None:
    path = place.path("f")
    await place.files.write(path, b"one\ntwo\nthree\n", mode=0o755)
    result = await place.editor.edit(path, "two\n", "2\n2.5\n")
    expect_equal(result.n_replaced, 1, "the number replaced")
    expect_equal((result.info.path, result.info.mode, result.info.size_bytes), (path, 0o755, 16), "the file's facts")
    expect_equal(await place.files.read(path), b"one\n2\n2.5\nthree\n", "the content")


@checks.needs(Ability.EDIT)
async def an_edit_of_several_needs_replace_all(place: Place) -> None:
    path = place.path("f")
    await place.files.write(path, b"a b a b a")
    with refused("an edit that is not unique", EditNotUnique):
        await place.editor.edit(path, "a", "x")
    expect_equal(await place.files.read(path), b"a b a b a", "the content after the refusal")
    expect_equal((await place.editor.edit(path, "a", "xx", replace_all=True)).n_replaced, 3, "the number replaced")
    expect_equal(await place.files.read(path), b"xx b xx b xx", "the content")


@checks.needs(Ability.EDIT)
async def an_edit_takes_text_as_it_is(place: Place) -> None:
    path = place.path("f")
    await place.files.write(path, b"x = re.sub('a.*', '\\\\1')\n")
    await place.editor.edit(path, "'a.*', '\\\\1'", "'$1', r'\\g<0>'")
    expect_equal(await place.files.read(path), b"x = re.sub('$1', r'\\g<0>')\n", "the content")


@checks.needs(Ability.EDIT)
async def an_edit_keeps_line_ends_and_other_bytes(place: Place) -> None:
    path = place.path("f")
    await place.files.write(path, b"\xff\xfe\r\none\r\ntwo\r\n")
    await place.editor.edit(path, "one\ntwo", "1\n2\n3")
    expect_equal(await place.files.read(path), b"\xff\xfe\r\n1\r\n2\r\n3\r\n", "the content")
    await place.editor.edit(path, "2", "a\nb")
    expect_equal(await place.files.read(path), b"\xff\xfe\r\n1\r\na\r\nb\r\n3\r\n", "the content")


@checks.needs(Ability.EDIT)
async def edits_that_cannot_be_done_are_refused(place: Place) -> None:
    path = place.path("f")
    await place.files.write(path, b"text")
    with refused("text that does not occur", EditNotFound):
        await place.editor.edit(path, "other", "x")
    with refused("an empty text", InvalidArgument):
        await place.editor.edit(path, "", "x")
    with refused("a replacement by the same", InvalidArgument):
        await place.editor.edit(path, "text", "text")
    with refused("text of another type", InvalidArgument):
        await place.editor.edit(path, cast(Any, b"text"), "x")
    with refused("editing what is not there", NotFound):
        await place.editor.edit(place.path("missing"), "a", "b")
    with refused("editing a directory", IsDirectory):
        await place.editor.edit(place.directory, "a", "b")
    expect_equal(await place.files.read(path), b"text", "the content after the refusals")


@checks.needs(Ability.EDIT)
async def a_repeated_edit_is_done_once(place: Place) -> None:
    path, request = place.path("f"), RequestId(f"edit-{place.directory.name}")
    await place.files.write(path, b"a")
    first = await place.editor.edit(path, "a", "aa", request_id=request)
    expect_equal(await place.editor.edit(path, "a", "aa", request_id=request), first, "the repetition's outcome")
    expect_equal(await place.files.read(path), b"aa", "the content")
