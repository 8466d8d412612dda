import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.edit import BadEdit, NotFoundInText, NotUnique, replace


def test_one_occurrence_is_replaced() -> None:
    assert replace(b"a b c", "b", "x", False) == (b"a x c", 1)


def test_replace_all_counts() -> None:
    assert replace(b"a a a", "a", "bb", True) == (b"bb bb bb", 3)


def test_text_that_does_not_occur() -> None:
    with pytest.raises(NotFoundInText):
        replace(b"abc", "x", "y", False)


@pytest.mark.parametrize(("content", "count"), [(b"a a", 2), (b"a a a", 3)])
def test_more_than_one_occurrence_is_refused_with_the_count(content: bytes, count: int) -> None:
    with pytest.raises(NotUnique) as caught:
        replace(content, "a", "b", False)
    assert caught.value.count == count


def test_overlapping_occurrences_are_not_unique() -> None:
    with pytest.raises(NotUnique):
        replace(b"x\n\n\ny", "\n\n", "\n", False)
    assert replace(b"aaa", "aa", "b", True) == (b"ba", 1)


@pytest.mark.parametrize(("old", "new"), [("", "x"), ("same", "same"), ("\ud800", "x"), ("x", "\ud800")])
def test_edits_that_mean_nothing(old: str, new: str) -> None:
    with pytest.raises(BadEdit):
        replace(b"same x", old, new, False)


@pytest.mark.parametrize(
    ("content", "old", "new", "result"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", b"x\r\ny\r\nz\r\nc\r\n"),
        (b"a\r\nb\r\n", "b", "x\ny", b"a\r\nx\r\ny\r\n"),
        (b"a\r\nfoo\r\n", "\nfoo", "X\nbar", b"aX\r\nbar\r\n"),
        (b"a\r\nb\r\n", "a\r\nb", "x\r\ny", b"x\r\ny\r\n"),
        (b"a\r\nb\r\n", "a\r\n", "a\n", b"a\nb\r\n"),
        (b"a\r\nb\nc\n", "a\nb", "x\ny", b"x\r\ny\nc\n"),
        (b"a\r\nb\r\nc\nd\n", "c\nd", "x\ny", b"a\r\nb\r\nx\ny\n"),
        (b"a\nb\n", "b", "x\ny", b"a\nx\ny\n"),
    ],
)
def test_line_ends_are_kept(content: bytes, old: str, new: str, result: bytes) -> None:
    assert replace(content, old, new, False) == (result, 1)


def test_content_that_is_not_utf8_is_kept() -> None:
    assert replace(b"\xff a \xfe", "a", "ü", False) == (b"\xff \xc3\xbc \xfe", 1)
    assert replace(b"x\xffy", "\udcff", "z", False) == (b"xzy", 1)


@given(st.binary(), st.text(min_size=1, max_size=5), st.text(max_size=5))
def test_without_line_ends_it_is_what_bytes_do(content: bytes, old: str, new: str) -> None:
    if "\n" in old + new or "\r" in old + new or old == new:
        return
    raw_old, raw_new = (text.encode("utf-8", "replace") for text in (old, new))
    content += raw_old + content
    result, count = replace(content, raw_old.decode(), raw_new.decode(), True) if raw_old != raw_new else (content, 0)
    assert result == (content.replace(raw_old, raw_new) if raw_old != raw_new else content)
    assert count == (content.count(raw_old) if raw_old != raw_new else 0)
