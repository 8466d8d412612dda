"""Glob and grep."""

from typing import Any, cast

from sandbox.conformance.check import Ability, Checks, Place, expect, expect_equal, refused
from sandbox.errors import InvalidArgument, NotDirectory, NotFound
from sandbox.types import GrepMode, GrepResult

checks = Checks()


async def _tree(place: Place) -> None:
    for name, content in {
        "src/one.py": b"alpha\nneedle one\nbeta\ngamma\nneedle two\ndelta\n",
        "src/deep/two.py": b"Needle\r\nother\r\n",
        "src.txt": b"nothing\n",
        ".hidden": b"needle\n",
        "bin/data": b"\0\1needle\n",
        "odd name\n'": b"needle \xff\n",
    }.items():
        await place.files.write(place.path(name), content)


async def _glob(place: Place, pattern: str, *below: str) -> list[str]:
    found = await place.searcher.glob(pattern, place.path(*below))
    return [str(path.relative_to(place.directory)) for path in found.paths]


def _files(place: Place, result: GrepResult) -> list[str]:
    return [str(path.relative_to(place.directory)) for path in result.files]


@checks.needs(Ability.SEARCH)
async def glob_follows_its_rules(place: Place) -> None:
    await _tree(place)
    for pattern, wanted in {
        "*.py": [],
        "**/*.py": ["src/deep/two.py", "src/one.py"],
        "src/*.py": ["src/one.py"],
        "src/**": ["src/deep", "src/deep/two.py", "src/one.py"],
        "*.{txt,md}": ["src.txt"],
        "s[qr]c*": ["src", "src.txt"],
        "src/d??p": ["src/deep"],
        ".h*": [".hidden"],
        "*": [".hidden", "bin", "odd name\n'", "src", "src.txt"],
        "**/two.py": ["src/deep/two.py"],
        "nothing*": [],
    }.items():
        expect_equal(await _glob(place, pattern), wanted, f"the matches of {pattern!r}")
    expect_equal(await _glob(place, "*.py", "src"), ["src/one.py"], "the matches below a directory")


@checks.needs(Ability.SEARCH)
async def glob_says_when_there_is_more(place: Place) -> None:
    for n in range(5):
        await place.files.write(place.path(str(n)), b"")
    for limit, truncated in ((0, True), (4, True), (5, False), (100, False)):
        found = await place.searcher.glob("*", place.directory, limit=limit)
        expect_equal((len(found.paths), found.truncated), (min(limit, 5), truncated), f"a limit of {limit}")


@checks.needs(Ability.SEARCH)
async def glob_refuses_what_means_nothing(place: Place) -> None:
    await place.files.write(place.path("f"), b"")
    with refused("a directory that is not there", NotFound):
        await place.searcher.glob("*", place.path("missing"))
    with refused("a file", NotDirectory):
        await place.searcher.glob("*", place.path("f"))
    for pattern in ("", "/etc/*", "../*", "a\0", cast(Any, None)):
        with refused(f"the pattern {pattern!r}", InvalidArgument):
            await place.searcher.glob(pattern, place.directory)
    for limit in (-1, "3"):
        with refused(f"limit={limit!r}", InvalidArgument):
            await place.searcher.glob("*", place.directory, limit=cast(Any, limit))


@checks.needs(Ability.SEARCH)
async def grep_lists_files_and_skips_binary_ones(place: Place) -> None:
    await _tree(place)
    found = await place.searcher.grep("needle", place.directory)
    expect_equal(_files(place, found), [".hidden", "odd name\n'", "src/one.py"], "the files")
    expect_equal((found.truncated, found.n_skipped_binary), (False, 1), "truncated, and binary files skipped")
    expect(not found.lines and not found.counts, "there are lines or counts where files were asked for")


@checks.needs(Ability.SEARCH)
async def grep_counts_lines(place: Place) -> None:
    await _tree(place)
    found = await place.searcher.grep("needle", place.path("src"), mode=GrepMode.COUNT, ignore_case=True)
    wanted = {place.path("src/deep/two.py"): 1, place.path("src/one.py"): 2}
    expect_equal(dict(found.counts), wanted, "the counts")


@checks.needs(Ability.SEARCH)
async def grep_shows_lines_with_context(place: Place) -> None:
    await _tree(place)
    path = place.path("src/one.py")
    found = await place.searcher.grep("^needle", path, mode=GrepMode.CONTENT)
    expect_equal(
        [(line.number, line.text) for line in found.lines], [(2, "needle one"), (5, "needle two")], "the lines"
    )
    expect_equal({line.path for line in found.lines}, {path}, "the path of a single file")
    found = await place.searcher.grep("needle", path, mode=GrepMode.CONTENT, context=1)
    numbers = [(line.number, line.is_match) for line in found.lines]
    wanted = [(1, False), (2, True), (3, False), (4, False), (5, True), (6, False)]
    expect_equal(numbers, wanted, "lines with context, each once")
    found = await place.searcher.grep("needle$", place.path("src/deep"), mode=GrepMode.CONTENT, ignore_case=True)
    expect_equal([line.text for line in found.lines], ["Needle"], "a line of a CRLF file")


@checks.needs(Ability.SEARCH)
async def grep_bytes_that_are_no_text_are_replaced(place: Place) -> None:
    await _tree(place)
    found = await place.searcher.grep("needle", place.path("odd name\n'"), mode=GrepMode.CONTENT)
    expect_equal([line.text for line in found.lines], ["needle �"], "the line")


@checks.needs(Ability.SEARCH)
async def grep_says_when_there_is_more(place: Place) -> None:
    await _tree(place)
    for mode, total in ((GrepMode.FILES, 3), (GrepMode.CONTENT, 4), (GrepMode.COUNT, 3)):
        for limit in (1, total - 1, total, 100):
            found = await place.searcher.grep("needle", place.directory, mode=mode, limit=limit)
            n_found = len(found.files) + len(found.lines) + len(found.counts)
            wanted = (min(limit, total), limit < total)
            expect_equal((n_found, found.truncated), wanted, f"mode {mode}, limit {limit}")


@checks.needs(Ability.SEARCH)
async def grep_takes_literals_and_globs(place: Place) -> None:
    await _tree(place)
    await place.files.write(place.path("code.c"), b"f(x[0]);\nfx0;\n")
    found = await place.searcher.grep("(x[0])", place.directory, literal=True, mode=GrepMode.CONTENT)
    expect_equal([line.number for line in found.lines], [1], "the lines with the literal")
    for glob, wanted in {
        "*.py": ["src/one.py"],
        "src/**": ["src/one.py"],
        "{.hid*,*.txt}": [".hidden"],
        "*.md": [],
    }.items():
        found = await place.searcher.grep("needle", place.directory, glob=glob)
        expect_equal(_files(place, found), wanted, f"the files of glob {glob!r}")


@checks.needs(Ability.SEARCH)
async def grep_cuts_long_lines_visibly(place: Place) -> None:
    await place.files.write(place.path("f"), b"needle" + b"x" * 100_000 + b"\n")
    found = await place.searcher.grep("needle", place.directory, mode=GrepMode.CONTENT)
    text = found.lines[0].text
    expect(text.startswith("needlexxx") and len(text) < 2100, f"the line has {len(text)} characters")
    expect("cut" in text[-40:], f"the line does not say that it was cut: it ends in {text[-40:]!r}")


@checks.needs(Ability.SEARCH)
async def grep_refuses_what_means_nothing(place: Place) -> None:
    with refused("a path that is not there", NotFound):
        await place.searcher.grep("x", place.path("missing"))
    for pattern in ("(", "[", "", "a\nb", cast(Any, 3)):
        with refused(f"the pattern {pattern!r}", InvalidArgument):
            await place.searcher.grep(pattern, place.directory)
    options: dict[str, Any]
    for options in ({"limit": -1}, {"context": -1}, {"context": "1"}, {"mode": "lines"}, {"glob": "../*"}):
        with refused(f"{options}", InvalidArgument):
            await place.searcher.grep("x", place.directory, **options)
