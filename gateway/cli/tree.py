"""A directory of this machine as a tar, made as fast as it is taken: it may be larger than our memory."""

import asyncio
import contextlib
import os
import tarfile
from collections.abc import AsyncGenerator
from pathlib import Path

from sandbox.errors import InvalidArgument

_PIECE = 256 << 10


async def packed(directory: Path) -> AsyncGenerator[bytes]:
    """Raises: InvalidArgument (it is no directory, or something in it cannot be read)."""
    ours, theirs = os.pipe()
    packing = asyncio.create_task(asyncio.to_thread(_pack, directory, theirs))
    with os.fdopen(ours, "rb", buffering=0) as pipe:
        while piece := await asyncio.to_thread(pipe.read, _PIECE):
            yield piece
    await packing


def _pack(directory: Path, fd: int) -> None:
    # Whoever reads it stops early if the sandbox refuses it, and says why; there is nothing to add then.
    with contextlib.suppress(BrokenPipeError), os.fdopen(fd, "wb") as pipe:
        if not directory.is_dir():
            raise InvalidArgument(f"{directory} is not a directory")
        try:
            with tarfile.open(fileobj=pipe, mode="w|", bufsize=_PIECE) as archive:
                archive.add(directory, arcname=".", filter=_owned_by_nobody)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise InvalidArgument(f"cannot copy {error.filename or directory}: {error.strerror or error}") from None


def _owned_by_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Pipes, sockets and devices stay here; owners mean nothing there."""
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
