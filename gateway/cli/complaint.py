"""What went wrong, as one line for the person at the terminal."""

import os

from sandbox.errors import EngineUnavailable, SandboxError


def complaint(error: SandboxError) -> str:
    """The error's own sentence, what this program can add to it, and the code to look it up by."""
    advice = f"; {_which_engine()}" if isinstance(error, EngineUnavailable) else ""
    return f"boatyard: {error.message}{advice} [{error.code}]"


def _which_engine() -> str:
    host = os.environ.get("DOCKER_HOST")
    return f"DOCKER_HOST is {host}" if host else "`make setup` starts one, or set DOCKER_HOST"
