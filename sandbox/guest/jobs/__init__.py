"""Work that may take long, each piece a function in a process of its own that has dropped to the sandbox's user.

A job `run(request)` reads fd 0, writes fd 1, returns a small dict and raises `Refusal` or OSError. It can be killed
at any time; what it must not leave behind it removes when its fd 0 ends early or SIGTERM comes. Nothing is imported
here: the supervisor loads a job in the child that runs it.
"""

from typing import Any, Callable, Dict, FrozenSet, cast

Job = Callable[[Dict[str, Any]], Dict[str, Any]]

NAMES: FrozenSet[str] = frozenset(("glob", "grep", "pack", "remove", "transfer", "unpack", "watch"))


def load(name: str) -> Job:
    """Raises: KeyError."""
    if name not in NAMES:
        raise KeyError(name)
    import importlib

    return cast(Job, importlib.import_module("sandbox.guest.jobs." + name).run)
