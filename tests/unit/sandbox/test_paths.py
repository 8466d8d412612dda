import posixpath
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.errors import InvalidArgument, InvalidPath, PathEscapes
from sandbox.paths import MAX_NAME_BYTES, MAX_PATH_BYTES, resolve

names = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..")
)
parts = st.lists(st.one_of(names, st.sampled_from([".", "..", ""])), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        (".", "/workspace"),
        ("a/./b//c/", "/workspace/a/b/c"),
        ("a/../b", "/workspace/b"),
        ("/etc/../tmp", "/tmp"),
        ("//etc", "/etc"),
        (" ", "/workspace/ "),
        ("-rf", "/workspace/-rf"),
        ("~", "/workspace/~"),
        ("caf\udce9", "/workspace/caf\udce9"),
        (PurePosixPath("x"), "/workspace/x"),
    ],
)
def test_paths_are_normalised(path: str, resolved: str) -> None:
    assert str(resolve(path)) == resolved


@pytest.mark.parametrize("path", ["..", "a/../..", "../workspace/a", "/..", "/a/../../b", PurePosixPath("../x")])
def test_climbing_out_is_refused(path: str) -> None:
    with pytest.raises(PathEscapes):
        resolve(path)


@pytest.mark.parametrize("path", ["", "a\0b", "a" * 256, "é" * 128, "a/" * 2048, "\ud800"])
def test_impossible_paths_are_refused(path: str) -> None:
    with pytest.raises(InvalidPath):
        resolve(path)


@pytest.mark.parametrize("path", [None, 3, b"bytes", ["a"], True])
def test_other_types_are_refused(path: Any) -> None:
    with pytest.raises(InvalidArgument):
        resolve(path)


def test_lengths_count_bytes_of_the_whole_path() -> None:
    assert resolve("n" * MAX_NAME_BYTES)
    longest = "/" + "/".join(["a" * 100] * 50)
    assert resolve(longest[:MAX_PATH_BYTES].rstrip("/"))
    with pytest.raises(InvalidPath):
        resolve("a/" * 2040 + "b" * 20)


@given(parts)
def test_a_relative_path_never_leaves_its_base(pieces: list[str]) -> None:
    base = PurePosixPath("/some/base")
    path = "/".join(pieces)
    if not path or path.startswith("/"):
        return
    try:
        resolved = resolve(path, base=base)
    except PathEscapes:
        depths = [0]
        for piece in pieces:
            depths.append(depths[-1] + {"": 0, ".": 0, "..": -1}.get(piece, 1))
        assert min(depths) < 0
    else:
        assert resolved.is_relative_to(base)
        assert ".." not in resolved.parts
        assert str(resolved) == posixpath.normpath(f"{base}/{path}")


@given(st.lists(names, min_size=1, max_size=8))
def test_resolving_twice_changes_nothing(pieces: list[str]) -> None:
    once = resolve("/".join(pieces))
    assert resolve(once) == once


@given(st.binary(min_size=1, max_size=40).filter(lambda raw: not set(raw) & set(b"/\0") and raw not in (b".", b"..")))
def test_any_bytes_survive_as_a_name(raw: bytes) -> None:
    assert resolve(raw.decode("utf-8", "surrogateescape")).name.encode("utf-8", "surrogateescape") == raw
