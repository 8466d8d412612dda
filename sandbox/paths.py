"""What a path may look like, decided by its letters alone: no file system is asked, no symlink is known here.

Names that are not UTF-8 travel as surrogate escapes (PEP 383) and come out as they went in.
"""

from pathlib import PurePosixPath

from sandbox.errors import InvalidArgument, InvalidPath, PathEscapes
from sandbox.protocol import PathLike
from sandbox.types import WORKSPACE

MAX_PATH_BYTES = 4095
MAX_NAME_BYTES = 255


def resolve(path: PathLike, *, base: PurePosixPath = WORKSPACE) -> PurePosixPath:
    """The absolute, normalised form of `path`; a relative one starts at `base`, which is absolute.

    Raises: InvalidArgument (not a str or PurePosixPath), InvalidPath (empty, NUL, not encodable, too long),
    PathEscapes (`..` leads out of `base`, or above `/`, at any point of the way).
    """
    text = _text(path)
    kept: list[str] = []
    for part in text.split("/"):
        if part in ("", "."):
            continue
        if part != "..":
            kept.append(part)
        elif kept:
            kept.pop()
        else:
            raise PathEscapes(f"{text!r} leads out of {'/' if text.startswith('/') else base}: leave out the `..`")
    start = [] if text.startswith("/") else list(base.parts[1:])
    resolved = PurePosixPath("/", *start, *kept)
    _check_lengths(resolved)
    return resolved


def _text(path: object) -> str:
    if isinstance(path, PurePosixPath):
        return str(path)
    if not isinstance(path, str):
        raise InvalidArgument(f"a path is a str or a PurePosixPath, not {type(path).__name__}")
    if not path:
        raise InvalidPath("the path is empty: use '.' for the workspace")
    return path


def _check_lengths(path: PurePosixPath) -> None:
    try:
        encoded = str(path).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidPath(f"{str(path)!r} cannot be encoded: it holds a lone surrogate") from None
    if b"\0" in encoded:
        raise InvalidPath(f"{str(path)!r} holds a NUL character")
    if len(encoded) > MAX_PATH_BYTES:
        raise InvalidPath(f"the path has {len(encoded)} bytes; at most {MAX_PATH_BYTES} are allowed")
    longest = max(len(name) for name in encoded.split(b"/"))
    if longest > MAX_NAME_BYTES:
        raise InvalidPath(f"a name in the path has {longest} bytes; at most {MAX_NAME_BYTES} are allowed")
