"""Bad input: a typed error with a code and a sentence, and nothing done."""

from typing import Any, cast

from sandbox.conformance.check import Ability, Checks, Place, expect_equal, refused
from sandbox.errors import InvalidArgument, InvalidPath, PathEscapes

checks = Checks()


@checks.needs(Ability.FILES)
async def paths_that_escape_are_refused(place: Place) -> None:
    for path in ("..", "../x", "a/../../x", "/..", "/a/../../x", "./../workspace/x"):
        with refused(f"reading {path!r}", PathEscapes):
            await place.files.read(path)
        with refused(f"writing {path!r}", PathEscapes):
            await place.files.write(path, b"x")
        with refused(f"moving to {path!r}", PathEscapes):
            await place.files.move(place.directory, path)


@checks.needs(Ability.FILES)
async def impossible_paths_are_refused(place: Place) -> None:
    for path in ("", "a\0b", "n" * 256, "d/" * 2100 + "f"):
        with refused(f"reading {path[:20]!r}", InvalidPath):
            await place.files.read(path)
        with refused(f"writing {path[:20]!r}", InvalidPath):
            await place.files.write(path, b"x")
        with refused(f"deleting {path[:20]!r}", InvalidPath):
            await place.files.delete(path, missing_ok=True)


@checks.needs(Ability.FILES)
async def paths_of_another_type_are_refused(place: Place) -> None:
    for path in (None, 3, b"bytes", ["a"]):
        with refused(f"a path {path!r}", InvalidArgument):
            await place.files.stat(cast(Any, path))


@checks.needs(Ability.FILES)
async def numbers_out_of_range_are_refused(place: Place) -> None:
    await place.files.write(place.path("f"), b"x")
    for bad in (-1, "1", 1.5, True):
        with refused(f"offset={bad!r}", InvalidArgument):
            await place.files.read(place.path("f"), offset=cast(Any, bad))
        with refused(f"limit={bad!r}", InvalidArgument):
            await place.files.read(place.path("f"), limit=cast(Any, bad))
    for bad in (-1, 0o10000, "644"):
        with refused(f"mode={bad!r}", InvalidArgument):
            await place.files.write(place.path("f"), b"y", mode=cast(Any, bad))
    expect_equal(await place.files.read(place.path("f")), b"x", "the file after the refusals")


@checks.needs(Ability.FILES)
async def content_of_another_type_is_refused(place: Place) -> None:
    for bad in ("text", None, 3, ["a"]):
        with refused(f"writing {bad!r}", InvalidArgument):
            await place.files.write(place.path("f"), cast(Any, bad))
    expect_equal(await place.names(), [], "what is there after the refusals")
