"""Checks of what a caller passes, before anything is done. Callers are models, too, whatever the types say."""

import re
from collections.abc import AsyncIterable, Mapping, Sequence
from typing import cast

from sandbox.errors import InvalidArgument
from sandbox.types import ENV_PATTERN, GrepMode

MAX_COUNT = (1 << 62) - 1
MAX_TIMEOUT_S = 7 * 24 * 3600.0
_ENV_NAME = re.compile(ENV_PATTERN)


def count(name: str, value: object) -> int:
    """A whole number that is not negative, and that a kernel can count to. Raises: InvalidArgument."""
    if type(value) is not int:
        raise InvalidArgument(f"{name} must be a whole number, not {value!r:.60}")
    if not 0 <= value <= MAX_COUNT:
        raise InvalidArgument(f"{name} must lie between 0 and {MAX_COUNT}, not {value}")
    return value


def optional_count(name: str, value: object) -> int | None:
    return None if value is None else count(name, value)


def text(name: str, value: object) -> str:
    """Raises: InvalidArgument."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} must be text, not {type(value).__name__}")
    return value


def word(name: str, value: object) -> str:
    """Text that a program can be given: no NUL, encodable. Raises: InvalidArgument."""
    found = text(name, value)
    try:
        found.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} holds a lone surrogate and cannot be encoded") from None
    if "\0" in found:
        raise InvalidArgument(f"{name} must not hold a NUL")
    return found


def words(value: object) -> list[str]:
    """An argv. Raises: InvalidArgument."""
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise InvalidArgument(f"the command must be text or a list of words, not {type(value).__name__}")
    found = [word("a word of the command", each) for each in cast("Sequence[object]", value)]
    if not found or not found[0]:
        raise InvalidArgument("the command is empty; give at least the program's name")
    return found


def environment(value: Mapping[str, str]) -> dict[str, str]:
    """Raises: InvalidArgument."""
    for name, each in cast("Mapping[object, object]", value).items():
        if not isinstance(name, str) or not _ENV_NAME.match(name):
            raise InvalidArgument(f"{name!r:.60} is not the name of an environment variable")
        word(f"the environment variable {name:.60}", each)
    return dict(value)


def timeout_s(value: object) -> float:
    """Raises: InvalidArgument."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_TIMEOUT_S:
        raise InvalidArgument(f"timeout_s must be more than 0 and at most {MAX_TIMEOUT_S:.0f}, not {value!r:.60}")
    return value


def raw(name: str, value: object) -> bytes:
    """Raises: InvalidArgument."""
    if not isinstance(value, bytes):
        raise InvalidArgument(f"{name} takes bytes, not {type(value).__name__}")
    return value


def pattern(value: object) -> str:
    """Raises: InvalidArgument."""
    if not text("the pattern", value) or "\0" in text("the pattern", value):
        raise InvalidArgument("the pattern must not be empty or hold a NUL")
    return text("the pattern", value)


def permission_bits(value: object) -> int | None:
    """Raises: InvalidArgument."""
    mode = optional_count("mode", value)
    if mode is not None and mode > 0o777:
        raise InvalidArgument(f"mode must lie between 0 and 0o777, not {mode:#o}")
    return mode


def grep_mode(value: object) -> GrepMode:
    """Raises: InvalidArgument."""
    if value not in list(GrepMode):
        raise InvalidArgument(f"mode must be one of {', '.join(GrepMode)}, not {value!r:.60}")
    return GrepMode(str(value))


def content(value: object) -> None:
    """Raises: InvalidArgument."""
    if not isinstance(value, bytes | AsyncIterable):
        raise InvalidArgument(f"the content must be bytes or an async iterable of bytes, not {type(value).__name__}")


async def gather(data: bytes | AsyncIterable[bytes], max_bytes: int, too_large: Exception) -> bytes:
    """All of `data`. Raises: InvalidArgument, or `too_large` as soon as there is more than `max_bytes`."""
    content(data)
    if isinstance(data, bytes):
        if len(data) > max_bytes:
            raise too_large
        return data
    pieces, n_bytes = list[bytes](), 0
    async for piece in data:
        n_bytes += len(raw("the content", piece))
        if n_bytes > max_bytes:
            raise too_large
        pieces.append(piece)
    return b"".join(pieces)
