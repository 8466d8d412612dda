"""The system-call filter of every sandbox: where `images/seccomp.json` is, and its text for the engine.

What it allows, and why not more, is in `images/seccomp.md`.
"""

import json
from functools import cache
from pathlib import Path

from sandbox.backends.docker.image_file import shipped_dir
from sandbox.errors import CannotCreate


def path() -> Path:
    return shipped_dir() / "seccomp.json"


@cache
def profile() -> str:
    """The shipped one, on one line. Reads the file once; raises as `load`."""
    return load(path())


def load(file: Path) -> str:
    """Raises: CannotCreate if it cannot be read: without one the engine would take its own, which allows more."""
    try:
        return json.dumps(json.loads(file.read_bytes()), separators=(",", ":"))
    except (OSError, ValueError) as error:
        raise CannotCreate(f"the seccomp profile {file} cannot be read ({error}); install Boatyard again") from error
