"""The state directory, and the lock that keeps two set-ups from doing the same thing at once."""

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path

from gateway.bootstrap import say
from gateway.bootstrap.failure import Exit, SetupFailed
from sandbox.state import state_dir


def state_path() -> Path:
    """The state directory of this process, whether it is there or not."""
    return state_dir(os.environ, uid=os.geteuid())


def writable_state_dir() -> Path:
    """The state directory of this process, made if it is not there.

    Raises: SetupFailed if it cannot be made or written.
    """
    path = state_path()
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o755)
        writable = os.access(path, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise SetupFailed(
            Exit.NEEDS_ROOT,
            f"{path} cannot be written: set BOATYARD_STATE_DIR to a directory that can, or run as root",
        )
    return path


@contextlib.contextmanager
def locked(directory: Path, name: str) -> Generator[None]:
    """Hold the lock `name`; another set-up that has it is waited for, and that is said."""
    with (directory / f"{name}.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say.line(name, "waiting for another set-up on this machine to finish the same step")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
