"""Tars on our side of the border: what may be in one that comes in, and making one from files that are read whole.

A backend with a guest does not come here: its tars are made and unpacked inside, as streams. Compressed ones are not
taken: a small one can hold more than we have.
"""

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sandbox.errors import InvalidArgument, NotSupported, PathEscapes


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file, or a directory where `data` is None."""

    names: tuple[str, ...]
    data: bytes | None
    mode: int


def entries(tar: bytes) -> Iterator[Entry]:
    """Raises: InvalidArgument (no whole tar, a device in it), PathEscapes, NotSupported (a link)."""
    if not tar:
        raise InvalidArgument("the upload is not a whole tar: it is empty")
    try:
        with tarfile.open(fileobj=io.BytesIO(tar), mode="r:", errors="surrogateescape") as archive:
            for info in archive:
                if names := _names(info.name):
                    yield Entry(names=names, data=_content(archive, info), mode=info.mode & 0o777)
            _check_end(archive, tar)
    except (tarfile.TarError, ValueError, ArithmeticError, LookupError) as error:
        raise InvalidArgument(f"the upload is not a whole tar: {error}") from None


def _names(name: str) -> tuple[str, ...]:
    names = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in names:
        raise PathEscapes(f"{name!r}: a name in the tar leads out of the directory")
    return names


def _content(archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes | None:
    if info.isdir():
        return None
    if info.issym() or info.islnk():
        raise NotSupported(f"{info.name!r}: there are no links here; pack the file that it leads to")
    if info.issparse():
        raise NotSupported(f"{info.name!r}: there are no sparse files here; pack it without --sparse")
    file = archive.extractfile(info) if info.isreg() else None
    if file is None:
        raise InvalidArgument(f"{info.name!r}: a device or pipe in a tar is not unpacked")
    data = file.read()
    if len(data) != info.size:
        raise InvalidArgument(f"the upload is not a whole tar: {info.name!r} is cut short")
    return data


def _check_end(archive: tarfile.TarFile, tar: bytes) -> None:
    """tarfile takes an archive without its end mark; a connection that broke leaves just that."""
    end = archive.offset
    if tar[end : end + tarfile.BLOCKSIZE] != bytes(tarfile.BLOCKSIZE):
        raise InvalidArgument("the upload is not a whole tar: it has no end mark")


def header(name: str, *, size: int, mode: int, modified_at: datetime, is_directory: bool = False) -> bytes:
    """What stands before an entry's content."""
    info = tarfile.TarInfo(name + "/" if is_directory else name)
    info.type = tarfile.DIRTYPE if is_directory else tarfile.REGTYPE
    info.size, info.mode, info.mtime = size, mode & 0o777, max(0, int(modified_at.timestamp()))
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def symlink_header(name: str, target: str, *, modified_at: datetime) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
    info.mtime = max(0, int(modified_at.timestamp()))
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def padding(size: int) -> bytes:
    """What stands after it."""
    return bytes(-size % tarfile.BLOCKSIZE)


END = bytes(2 * tarfile.BLOCKSIZE)
