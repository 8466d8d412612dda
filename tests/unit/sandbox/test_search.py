import fnmatch
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.search import (
    BadPattern,
    Glob,
    Hit,
    Quota,
    cut_line,
    file_filter,
    is_binary,
    line_test,
    scan,
)


def matches(pattern: str, path: str, *, is_directory: bool = False) -> bool:
    return Glob(pattern).matches(path.split("/"), is_directory)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*.py", "a.py"),
        ("*.py", ".py"),
        ("*", ".hidden"),
        ("a?c", "abc"),
        ("[ab]x", "bx"),
        ("[!ab]x", "cx"),
        ("[^ab]x", "cx"),
        ("[a-c]x", "bx"),
        ("[]]x", "]x"),
        ("[a-]", "-"),
        ("[+--]", ","),
        ("[x", "[x"),
        ("**/x", "x"),
        ("**/x", "a/b/x"),
        ("**", "a"),
        ("**", "a/b"),
        ("a/**", "a/b/c"),
        ("a/**/z", "a/z"),
        ("a/**/z", "a/b/c/z"),
        ("**/b/**/*.c", "a/b/x/b/y/z.c"),
        ("**/**/x", "x"),
        ("{a,b}.txt", "b.txt"),
        ("x{,y}", "x"),
        ("{a,{b,c}}", "c"),
        ("{src,test}/**/*.{c,h}", "test/deep/x.h"),
        ("{a}", "{a}"),
        ("a{b", "a{b"),
        (r"\*", "*"),
        (r"\{a,b}", "{a,b}"),
        ("./a", "a"),
        ("*a*b*", "xaxbx"),
        ("new\nline*", "new\nline!"),
        ("*\udce9", "caf\udce9"),
    ],
)
def test_glob_matches(pattern: str, path: str) -> None:
    assert matches(pattern, path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*.py", "a/b.py"),
        ("*", "a/b"),
        ("a?c", "a/c"),
        ("A", "a"),
        ("**/x", "x/y"),
        ("a/**", "a"),
        ("a**b", "a/b"),
        ("[!ab]x", "ax"),
        ("*ab*ab", "ab"),
        ("a*a", "a"),
        ("a/", "a"),
    ],
)
def test_glob_does_not_match(pattern: str, path: str) -> None:
    assert not matches(pattern, path)


def test_a_slash_at_the_end_asks_for_a_directory() -> None:
    assert matches("**/a/", "x/a", is_directory=True)


@pytest.mark.parametrize("pattern", ["", "/etc/*", "../x", "a/../b", "[z-a]", "{a,b}" * 9, "."])
def test_globs_that_mean_nothing(pattern: str) -> None:
    with pytest.raises(BadPattern):
        Glob(pattern)


def test_no_glob_is_slow() -> None:
    begin = time.perf_counter()
    assert not matches("*a" * 60 + "b", "a" * 255)
    assert not matches("**/" + "**/a/" * 30 + "b", "/".join("a" * 200))
    assert not matches("{a*,a*}" * 6 + "b", "a" * 255)
    assert time.perf_counter() - begin < 2


@pytest.mark.parametrize(
    ("pattern", "directory", "may"),
    [
        ("src/*.py", "src", True),
        ("src/*.py", "lib", False),
        ("src/*.py", "src/deep", False),
        ("*.py", "a", False),
        ("**/x", "a/b/c", True),
        ("{a,b/c}/d", "b/c", True),
    ],
)
def test_directories_that_cannot_hold_a_match_are_known(pattern: str, directory: str, may: bool) -> None:
    assert Glob(pattern).may_match_below(directory.split("/")) is may


@given(st.text("ab*?", min_size=1, max_size=8), st.text("ab", min_size=1, max_size=10))
def test_names_match_as_the_standard_library_says(pattern: str, name: str) -> None:
    if pattern != "**":
        assert matches(pattern, name) is fnmatch.fnmatchcase(name, pattern)


def test_the_filter_of_a_grep_looks_at_the_name_unless_there_is_a_slash() -> None:
    assert file_filter("*.py")(["a", "b", "c.py"])
    assert not file_filter("b/*.py")(["a", "b", "c.py"])
    assert file_filter("a/**")(["a", "b", "c.py"])
    assert file_filter(None)(["anything"])


def test_binary_is_a_nul_near_the_beginning() -> None:
    assert is_binary(b"x\0")
    assert not is_binary(b"x" * 8192 + b"\0")


def test_context_is_merged_and_each_line_told_once() -> None:
    lines = [b"1\n", b"hit\n", b"3\n", b"hit\r\n", b"5\n", b"6\n", b"7\n", b"hit"]
    found = list(scan(lines, line_test("^hit$"), 1))
    assert [(hit.number, hit.is_match) for hit in found] == [
        (1, False),
        (2, True),
        (3, False),
        (4, True),
        (5, False),
        (7, False),
        (8, True),
    ]


def test_quota_keeps_the_context_of_the_last_match_only() -> None:
    quota = Quota(1, 1)
    hits = [Hit(1, "", False), Hit(2, "", True), Hit(3, "", False), Hit(4, "", False), Hit(5, "", True)]
    assert [hit.number for hit in hits if quota.admits("f", hit)] == [1, 2, 3]
    assert quota.exceeded


def test_quota_that_is_used_up_is_not_exceeded() -> None:
    quota = Quota(1)
    assert quota.admits("f", Hit(1, "", True))
    assert not quota.exceeded
    assert not quota.admits("g", Hit(1, "", False))


@pytest.mark.parametrize("pattern", ["(", "[", "", "a\nb", "(?P<x>a)(?P<x>b)"])
def test_line_patterns_that_mean_nothing(pattern: str) -> None:
    with pytest.raises(BadPattern):
        line_test(pattern)


def test_literals_and_case() -> None:
    assert line_test("a.b", literal=True)("xa.b")
    assert not line_test("a.b", literal=True)("axb")
    assert line_test("A.B", literal=True, ignore_case=True)("a.b")
    assert line_test("É", ignore_case=True)("é")


def test_long_lines_are_cut_visibly() -> None:
    assert cut_line("x" * 2000) == "x" * 2000
    assert cut_line("x" * 2001).endswith("x [line cut at 2000 characters]")
