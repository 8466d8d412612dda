"""What the guest says no with: a code of `sandbox/errors.py` and a sentence."""

import errno
import sys
from typing import Any, Dict

_MAX_MESSAGE = 1000

_CODES: Dict[int, str] = {
    errno.ENOENT: "not_found",
    errno.EEXIST: "already_exists",
    errno.EISDIR: "is_directory",
    errno.ENOTDIR: "not_directory",
    errno.ENOTEMPTY: "directory_not_empty",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EROFS: "permission_denied",
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EFBIG: "too_large",
    errno.ELOOP: "too_many_links",
    errno.ENAMETOOLONG: "invalid_path",
    errno.EINVAL: "invalid_argument",
    errno.EXDEV: "cross_device",
    errno.ENXIO: "not_regular_file",
}

_SENTENCES: Dict[str, str] = {
    "not_found": "{path}: there is no such file or directory",
    "already_exists": "{path}: already exists",
    "is_directory": "{path}: is a directory, not a file",
    "not_directory": "{path}: is not a directory",
    "directory_not_empty": "{path}: the directory is not empty; delete it recursively",
    "permission_denied": "{path}: permission denied ({reason})",
    "no_space": "{path}: no space left; delete files or ask for a larger sandbox",
    "too_large": "{path}: too large",
    "too_many_links": "{path}: too many levels of symbolic links",
    "invalid_path": "{path}: the name is too long",
    "invalid_argument": "{path}: invalid argument",
    "not_regular_file": "{path}: is a pipe, a socket or a device, not a file",
    "cross_device": "{path}: on another file system",
    "io_failed": "{path}: {reason}",
}


class Refusal(Exception):
    """`took_effect`: not all was done, but enough that a repetition must hear of it and not try again."""

    def __init__(self, code: str, message: str, *, took_effect: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.took_effect = took_effect
        # It may quote a name of any length, and an answer must stay short.
        self.message = message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 1] + "…"

    def outcome(self) -> Dict[str, Any]:
        """As it goes over the wire."""
        said: Dict[str, Any] = {"code": self.code, "message": self.message}
        if self.took_effect:
            said["took_effect"] = True
        return {"error": said}


def from_outcome(outcome: Dict[str, Any]) -> Refusal:
    said = outcome["error"]
    return Refusal(str(said["code"]), str(said["message"]), took_effect=bool(said.get("took_effect")))


def from_os_error(error: OSError, path: str) -> Refusal:
    code = _CODES.get(error.errno or 0, "io_failed")
    return Refusal(code, _SENTENCES[code].format(path=path, reason=error.strerror or type(error).__name__))


def report(error: BaseException) -> None:
    """To stderr, where the client can find it. The module `traceback` would cost half a megabyte."""
    sys.excepthook(type(error), error, error.__traceback__)
