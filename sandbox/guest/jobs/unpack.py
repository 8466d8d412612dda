"""A tar on fd 0, unpacked below a directory whole or not at all: `{path}` -> `{n_entries}`.

It is extracted into a staging directory inside the target, compared with what is there, and only then renamed into
place; where a rename fails, those before it are undone. The staging directory, `STAGING % pid`, goes away also when
fd 0 ends early (a caller that vanished) or SIGTERM comes.
"""

import contextlib
import os
from typing import Any, Dict, List

from sandbox.guest.jobs import placing, stopping
from sandbox.guest.jobs.remove import remove
from sandbox.guest.jobs.staging import Staging
from sandbox.guest.jobs.tape import Tape
from sandbox.guest.refusal import from_os_error

STAGING = ".boatyard-unpack-%d"


def run(request: Dict[str, Any]) -> Dict[str, Any]:
    target: str = request["path"]
    stopping.on_sigterm("the upload was stopped")
    made: List[str] = []
    staged = os.path.join(target, STAGING % os.getpid())
    try:
        _make_directories(target, made)
        os.mkdir(staged, 0o700)
        n_entries = _unpack(staged, target)
    except BaseException as error:
        stopping.ignore_sigterm()
        _discard(staged, made)
        if isinstance(error, OSError):
            raise from_os_error(error, target) from None
        raise
    _discard(staged, [])
    return {"n_entries": n_entries}


def _unpack(staged: str, target: str) -> int:
    new = os.path.join(staged, "new")
    staging = Staging(new, target, os.path.basename(staged))
    tape = Tape()
    for info in tape.entries():
        staging.add(info, tape)
    merged = placing.place(new, target, os.path.join(staged, "old"))
    staging.finish(merged)
    return staging.n_entries


def _make_directories(path: str, made: List[str]) -> None:
    missing: List[str] = []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for path in reversed(missing):
        os.mkdir(path)
        made.append(path)


def _discard(staged: str, made: List[str]) -> None:
    with contextlib.suppress(OSError):
        remove(staged)
    with contextlib.suppress(OSError):
        for path in reversed(made):
            os.rmdir(path)
