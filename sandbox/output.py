"""Bytes a command wrote, as text a person or a model reads. Pure; what is left out is always named.

Bytes that are not UTF-8 become U+FFFD. A cut never goes through a character: its bytes count as omitted instead.
"""

import codecs

from sandbox.types import Captured

_REPLACE = "replace"


def decode_head(data: bytes) -> tuple[str, int]:
    """The text of bytes that go on elsewhere, and how many at their end belong to an unfinished character."""
    decoder = codecs.getincrementaldecoder("utf-8")(_REPLACE)
    text = decoder.decode(data)
    unfinished, _ = decoder.getstate()
    return text, len(unfinished)


def decode_tail(data: bytes) -> tuple[str, int]:
    """The text of bytes that began elsewhere, and how many at their start belong to a character begun there."""
    n_orphans = _n_orphans(data)
    return data[n_orphans:].decode("utf-8", _REPLACE), n_orphans


def render(captured: Captured) -> str:
    """Head and tail, with one line between them that says how much is missing and where it is."""
    if not captured.truncated:
        return (captured.head + captured.tail).decode("utf-8", _REPLACE)
    head, n_unfinished = decode_head(captured.head)
    tail, n_orphans = decode_tail(captured.tail)
    notice = omission(captured, captured.omitted_bytes + n_unfinished + n_orphans)
    return f"{_ended(head)}{notice}\n{tail}"


def omission(captured: Captured, n_bytes: int) -> str:
    """The one line that stands for `n_bytes` left out of `captured`."""
    if captured.file is None:
        where = "they were not recorded"
    elif captured.file_truncated:
        where = f"{captured.file} holds a part of the output"
    else:
        where = f"the whole output is in {captured.file}"
    return f"[{_count(n_bytes)} of {captured.total_bytes} omitted; {where}]"


class LiveText:
    """Decodes one stream as it arrives: a character split between two pieces comes out whole, with the second."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(_REPLACE)
        self._at_line_start = True

    def feed(self, data: bytes, *, skipped_bytes: int = 0) -> str:
        """The text of the next piece; `skipped_bytes` before it were lost, which the text says."""
        text = ""
        if skipped_bytes:
            text = self._decoder.decode(b"", final=True)
            n_orphans = _n_orphans(data)
            line_break = "" if self._at_line_start and not text else "\n"
            text += f"{line_break}[{_count(skipped_bytes + n_orphans)} omitted]\n"
            data = data[n_orphans:]
        text += self._decoder.decode(data)
        if text:
            self._at_line_start = text.endswith("\n")
        return text

    def finish(self) -> str:
        """What is left of a character that never got its end."""
        return self._decoder.decode(b"", final=True)


def _n_orphans(data: bytes) -> int:
    """The continuation bytes at the start; no character has more than three."""
    n = 0
    while n < min(3, len(data)) and data[n] & 0xC0 == 0x80:
        n += 1
    return n


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _count(n_bytes: int) -> str:
    return f"{n_bytes} byte" if n_bytes == 1 else f"{n_bytes} bytes"
