"""Replacing text in a file's content. Pure, Python 3.8, standard library only: the guest runs it too.

Content stays bytes, so a file that is not UTF-8 can be edited; `old` and `new` may hold surrogate escapes.

Line ends: a bare `\\n` in `old` stands for the line end that is there, `\\n` or `\\r\\n`, and each bare `\\n` in `new`
becomes what was there (or, where `old` has no line end, what most lines of the file have). Whoever writes `\\r\\n` in
`old` means it, and gets `new` as written.
"""

import re
from typing import Callable, Tuple

_BARE = re.compile(rb"(?<!\r)\n")


class EditError(ValueError):
    """The edit was not done."""


class BadEdit(EditError):
    """It could not be done on any file."""


class NotFoundInText(EditError):
    pass


class NotUnique(EditError):
    def __init__(self, message: str, count: int) -> None:
        super().__init__(message)
        self.count = count


def replace(content: bytes, old: str, new: str, replace_all: bool = False) -> Tuple[bytes, int]:
    """The new content, and how often `old` was replaced in it.

    Raises: BadEdit, NotFoundInText, NotUnique (more than one occurrence, also overlapping, without replace_all).
    """
    if not old:
        raise BadEdit("the text to replace is empty: give the lines to replace, or write the whole file")
    if old == new:
        raise BadEdit("the text to replace and its replacement are the same: nothing would change")
    pattern = _pattern(_encode(old))
    result, count = pattern.subn(_replacement(content, _encode(old), _encode(new)), content)
    if not count:
        raise NotFoundInText("the text to replace does not occur: read the file again and copy it exactly")
    if replace_all:
        return result, count
    if count == 1 and _overlaps(content, pattern):
        count = 2
    if count > 1:
        raise NotUnique("the text to replace occurs %d times: add lines around it, or replace all" % count, count)
    return result, count


def _encode(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise BadEdit("the text holds a lone surrogate and cannot be encoded") from None


def _pattern(old: bytes) -> "re.Pattern[bytes]":
    return re.compile(rb"\r?\n".join(re.escape(piece) for piece in _BARE.split(old)))


def _replacement(content: bytes, old: bytes, new: bytes) -> "Callable[[re.Match[bytes]], bytes]":
    with_crlf = _BARE.sub(b"\r\n", new)
    if b"\r\n" in old or with_crlf == new:
        return lambda match: new
    if _BARE.search(old):
        return lambda match: with_crlf if b"\r\n" in match.group() else new
    mostly_crlf = content.count(b"\r\n") * 2 > content.count(b"\n")
    return lambda match: with_crlf if mostly_crlf else new


def _overlaps(content: bytes, pattern: "re.Pattern[bytes]") -> bool:
    """Whether another occurrence begins inside the only one that was counted."""
    first = pattern.search(content)
    second = first and pattern.search(content, first.start() + 1)
    # One that ends with the first is the first without the CR of its CRLF.
    return first is not None and second is not None and second.end() > first.end()
