"""Backends by name. Each is imported when somebody asks for it, so that nobody needs what only another one uses."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import cast

from sandbox.errors import InvalidArgument
from sandbox.protocol import SandboxBackend

_OPENERS = {
    "docker": ("sandbox.backends.docker", "DockerBackend"),
}

Opener = Callable[[], AbstractAsyncContextManager[SandboxBackend]]


def names() -> list[str]:
    return sorted(_OPENERS)


def opener(name: str) -> Opener:
    """`async with opener("docker")() as backend`. Raises: InvalidArgument (the message has the names there are)."""
    if name not in _OPENERS:
        raise InvalidArgument(f"there is no backend {name!r:.60}: take one of {', '.join(names())}")
    module, cls = _OPENERS[name]
    return cast(Opener, getattr(import_module(module), cls).open)
