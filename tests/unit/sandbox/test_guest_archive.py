"""The guest in one file, the same every time."""

import io
import zipfile
from pathlib import Path

from sandbox import guest_archive


def test_it_is_the_same_every_time() -> None:
    first = guest_archive.build()
    guest_archive.build.cache_clear()
    assert guest_archive.build() == first


def test_it_carries_sources_and_the_byte_code_of_this_python() -> None:
    names = zipfile.ZipFile(io.BytesIO(guest_archive.build().content)).namelist()
    sources = {name for name in names if name.endswith(".py")}
    assert "__main__.py" in sources
    assert "sandbox/guest/main.py" in sources
    assert {name + "c" for name in sources - {"__main__.py"}} == set(names) - sources


def test_writing_it_twice_leaves_one_file(tmp_path: Path) -> None:
    archive = guest_archive.build()
    assert archive.write_to(tmp_path) == archive.write_to(tmp_path)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [archive.content]
