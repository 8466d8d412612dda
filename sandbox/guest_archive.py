"""The guest as one file: `guest.pyz`, a zip that any Python 3.8+ runs.

Carries the sources, and beside them the byte code of the Python that built it: a sandbox with the same Python skips the
compiler (25 ms and 3 MB of a fresh guest), any other one uses the sources.
"""

import hashlib
import importlib.util
import io
import marshal
import zipfile
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

SHARED = ("wire.py", "edit.py", "search.py")
"""Modules of `sandbox` that run at both ends."""

_EPOCH = (2020, 1, 1, 0, 0, 0)

_MAIN = """\
import sys
if sys.version_info < (3, 8):
    sys.stderr.write("boatyard: Python %d.%d is too old, 3.8 is needed\\n" % sys.version_info[:2])
    sys.exit(78)
from sandbox.guest.main import run
run({hash!r})
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestArchive:
    hash: str
    """Of the sources, so the same whichever Python built it."""
    content: bytes

    def write_to(self, directory: Path) -> Path:
        """Puts it there under its hash, atomically; what is there already is left alone."""
        path = directory / f"guest-{self.hash}-{hashlib.sha256(self.content).hexdigest()[:8]}.pyz"
        if not path.exists():
            directory.mkdir(parents=True, exist_ok=True)
            partial = directory / f".{path.name}.{id(self):x}.tmp"
            partial.write_bytes(self.content)
            partial.chmod(0o444)
            partial.rename(path)
        return path


@cache
def build() -> GuestArchive:
    sources = _sources()
    digest = hashlib.sha256()
    for name, source in sources.items():
        digest.update(f"{name}\0{len(source)}\0".encode() + source)
    guest_hash = digest.hexdigest()[:16]
    # Byte code is for the package only: what the interpreter runs first must be readable by every version.
    files = {"__main__.py": _MAIN.format(hash=guest_hash).encode()}
    for name, source in sources.items():
        files[name] = source
        files[name + "c"] = _byte_code(name, source)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), files[name])
    return GuestArchive(hash=guest_hash, content=target.getvalue())


def _sources() -> dict[str, bytes]:
    package = resources.files("sandbox")
    found = {f"sandbox/{name}": (package / name).read_bytes() for name in SHARED}
    found["sandbox/__init__.py"] = b""
    found.update(_tree(package / "guest", "sandbox/guest"))
    return dict(sorted(found.items()))


def _tree(directory: Traversable, prefix: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in directory.iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            found.update(_tree(entry, f"{prefix}/{entry.name}"))
        elif entry.name.endswith(".py"):
            found[f"{prefix}/{entry.name}"] = entry.read_bytes()
    return found


def _byte_code(name: str, source: bytes) -> bytes:
    """An unchecked hash-based .pyc: nothing about time in it, so the archive is the same every time it is built."""
    code = compile(source, f"guest.pyz/{name}", "exec", dont_inherit=True, optimize=0)
    return (
        importlib.util.MAGIC_NUMBER
        + (0b01).to_bytes(4, "little")
        + importlib.util.source_hash(source)
        + marshal.dumps(code)
    )
