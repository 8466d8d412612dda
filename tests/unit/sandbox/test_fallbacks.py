"""The generic ways, on a file system that has nothing but the core."""

import io
import tarfile
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandbox import fallbacks
from sandbox.backends.memory import MemoryFiles
from sandbox.conformance.tar_bytes import END, tar_file
from sandbox.errors import (
    EditNotFound,
    EditNotUnique,
    InvalidArgument,
    IsDirectory,
    NotDirectory,
    NotFound,
    PathEscapes,
)
from sandbox.protocol import FileSystem, SupportsEdit, SupportsSearch, SupportsStreams
from sandbox.types import GrepMode


class CoreOnly:
    """A file system without further abilities."""

    def __init__(self) -> None:
        files = MemoryFiles()
        self.ls, self.stat, self.read, self.write = files.ls, files.stat, files.read, files.write
        self.mkdir, self.move, self.delete = files.mkdir, files.move, files.delete


@pytest.fixture
async def files() -> CoreOnly:
    made = CoreOnly()
    await made.write("src/one.py", b"alpha\nneedle\nbeta\nneedle\n")
    await made.write("src/deep/two.py", b"needle\n")
    await made.write("binary", b"\0needle")
    await made.write(".hidden", b"needle\n")
    return made


def test_it_has_the_core_and_nothing_else() -> None:
    made = CoreOnly()
    assert isinstance(made, FileSystem)
    assert not isinstance(made, SupportsEdit | SupportsSearch | SupportsStreams)


async def test_edit(files: CoreOnly) -> None:
    assert (await fallbacks.edit(files, "src/one.py", "alpha\n", "omega\n")).n_replaced == 1
    assert (await files.read("src/one.py")).startswith(b"omega\n")
    with pytest.raises(EditNotUnique):
        await fallbacks.edit(files, "src/one.py", "needle", "x")
    with pytest.raises(EditNotFound):
        await fallbacks.edit(files, "src/one.py", "nothing", "x")
    with pytest.raises(InvalidArgument):
        await fallbacks.edit(files, "src/one.py", "", "x")


async def test_glob(files: CoreOnly) -> None:
    result = await fallbacks.glob(files, "**/*.py")
    assert [str(path) for path in result.paths] == ["/workspace/src/deep/two.py", "/workspace/src/one.py"]
    assert (await fallbacks.glob(files, "**", limit=1)).truncated
    with pytest.raises(NotDirectory):
        await fallbacks.glob(files, "*", "binary")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mode": GrepMode.FILES}, 3),
        ({"mode": GrepMode.CONTENT}, 4),
        ({"mode": GrepMode.COUNT, "glob": "*.py"}, 2),
        ({"mode": GrepMode.CONTENT, "path": "src/one.py", "context": 1}, 4),
        ({"mode": GrepMode.FILES, "path": "src/one.py"}, 1),
    ],
)
async def test_grep(files: CoreOnly, options: dict[str, Any], expected: int) -> None:
    result = await fallbacks.grep(files, "needle", **options)
    assert len(result.files) + len(result.lines) + len(result.counts) == expected
    assert not result.truncated
    assert result.n_skipped_binary == (1 if "path" not in options and "glob" not in options else 0)


async def test_grep_stops_at_the_limit(files: CoreOnly) -> None:
    result = await fallbacks.grep(files, "needle", mode=GrepMode.CONTENT, limit=2)
    assert (len(result.lines), result.truncated) == (2, True)
    with pytest.raises(NotFound):
        await fallbacks.grep(files, "needle", "missing")


async def gathered(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


async def test_download_is_a_tar_that_upload_takes(files: CoreOnly) -> None:
    tar = await gathered(fallbacks.download(files, "src"))
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        assert archive.getnames() == ["deep", "deep/two.py", "one.py"]
    assert await fallbacks.upload(files, tar, "copy") == 3
    assert await files.read("copy/deep/two.py") == b"needle\n"


@pytest.mark.parametrize(
    ("tar", "error"),
    [
        (b"", InvalidArgument),
        (b"garbage" * 100, InvalidArgument),
        (tar_file("a", b"x"), InvalidArgument),
        (tar_file("a", b"x" * 1000)[:900], InvalidArgument),
        (tar_file("ok", b"x") + tar_file("../up") + END, PathEscapes),
        (tar_file("ok", b"x") + tar_file("/abs") + END, PathEscapes),
        (tar_file("ok", b"x") + tar_file("src", b"x") + END, IsDirectory),
    ],
)
async def test_a_bad_tar_changes_nothing(files: CoreOnly, tar: bytes, error: type[Exception]) -> None:
    before = [info.path for info in await files.ls()]
    with pytest.raises(error):
        await fallbacks.upload(files, tar)
    assert [info.path for info in await files.ls()] == before
