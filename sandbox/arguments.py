"""Checks of what a caller passes, before anything is done. Callers are models, too, whatever the types say."""

from collections.abc import AsyncIterable

from sandbox.errors import InvalidArgument
from sandbox.types import GrepMode


def count(name: str, value: object) -> int:
    """A whole number that is not negative. Raises: InvalidArgument."""
    if type(value) is not int:
        raise InvalidArgument(f"{name} must be a whole number, not {value!r:.60}")
    if value < 0:
        raise InvalidArgument(f"{name} must not be negative, not {value}")
    return value


def optional_count(name: str, value: object) -> int | None:
    return None if value is None else count(name, value)


def text(name: str, value: object) -> str:
    """Raises: InvalidArgument."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} must be text, not {type(value).__name__}")
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
        if not isinstance(piece, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]  callers are models, too
            raise InvalidArgument(f"the content must come in pieces of bytes, not {type(piece).__name__}")
        n_bytes += len(piece)
        if n_bytes > max_bytes:
            raise too_large
        pieces.append(piece)
    return b"".join(pieces)
