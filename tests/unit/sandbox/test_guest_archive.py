"""The guest in one file: the same every time, and with nothing but the standard library inside."""

import ast
import io
import sys
import zipfile
from pathlib import Path

from sandbox import guest_archive


def test_it_is_the_same_every_time() -> None:
    first = guest_archive.build()
    guest_archive.build.cache_clear()
    assert guest_archive.build() == first


def test_it_imports_only_the_standard_library_and_itself() -> None:
    archive = zipfile.ZipFile(io.BytesIO(guest_archive.build().content))
    inside = {name.removesuffix(".py").replace("/", ".") for name in archive.namelist() if name.endswith(".py")}
    for name in archive.namelist():
        if not name.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(archive.read(name), feature_version=(3, 8))):
            wanted = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wanted += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in wanted:
                package = module.partition(".")[0]
                assert package in sys.stdlib_module_names or f"{module}.__init__" in inside or module in inside, name


def test_writing_it_twice_leaves_one_file(tmp_path: Path) -> None:
    archive = guest_archive.build()
    assert archive.write_to(tmp_path) == archive.write_to(tmp_path)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [archive.content]
