"""Why set-up stopped, as a sentence for a person and an exit code for a script."""

from enum import IntEnum


class Exit(IntEnum):
    """The exit codes of `python3 -m gateway.bootstrap`. Documented in its --help; 1 and 2 keep their usual meaning."""

    NEEDS_ROOT = 10
    UNSUPPORTED_SYSTEM = 11
    DOWNLOAD_FAILED = 12
    ENGINE_FAILED = 13
    PYTHON_UNSUITABLE = 14
    IMAGE_FAILED = 15


class SetupFailed(Exception):
    """Set-up cannot go on. The message says what to install or do; `detail` is what a failing tool printed last."""

    def __init__(self, exit_code: Exit, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.message = message
        self.detail = detail
