"""Everything that can go wrong in `sandbox`, by who must act.

SandboxError                     code, retryable, context
├── BadRequest                   the caller's mistake; nothing was done
│   ├── InvalidArgument          invalid_argument   a value of the wrong type or out of range
│   ├── InvalidPath              invalid_path       empty, NUL, too long
│   ├── PathEscapes              path_escapes       `..` or a symlink leads out of the tree
│   ├── UnknownUser              unknown_user
│   ├── UserNotAllowed           user_not_allowed
│   ├── TooManyUnacknowledged    too_many_unacknowledged
│   └── NotSupported             not_supported      this backend, image or peer cannot do it
├── FileError                    a file operation the sandbox refused; the message names the path
│   ├── NotFound                 not_found
│   ├── AlreadyExists            already_exists
│   ├── IsDirectory              is_directory
│   ├── NotDirectory             not_directory
│   ├── NotRegularFile           not_regular_file   a pipe, a device, a socket
│   ├── DirectoryNotEmpty        directory_not_empty
│   ├── PermissionDenied         permission_denied
│   ├── NoSpace                  no_space
│   ├── TooLarge                 too_large
│   ├── TooManyLinks             too_many_links
│   ├── EditNotFound             edit_not_found     the text to replace does not occur
│   ├── EditNotUnique            edit_not_unique    it occurs more than once
│   └── IoFailed                 io_failed          anything else the kernel said
├── ProcessError                 a command that could not be started or found
│   ├── CommandNotFound          command_not_found
│   ├── CommandNotExecutable     command_not_executable
│   ├── CannotStart              cannot_start       no memory, no process left
│   ├── CannotKill               cannot_kill        the kernel does not let it die
│   ├── ProcessNotFound          process_not_found
│   └── ProcessEnded             process_ended      it has no stdin, terminal or life to act on
├── RequestConflict              request_conflict   the request id was used for something else
├── OperationTimedOut            operation_timed_out
├── Unavailable                  the sandbox itself; never command output
│   ├── SandboxNotFound          sandbox_not_found
│   ├── SandboxLost              lost               it ended, or its stream did
│   ├── SandboxBroken            broken             it violated the protocol and is not to be used again
│   └── LeaseLost                lease_lost         a newer epoch took the sandbox over
└── EngineError                  engine_error       the container engine refused or failed
    ├── EngineUnavailable        engine_unavailable
    ├── CannotCreate             cannot_create      a protection or a limit asked for cannot be had
    ├── ImageNotFound            image_not_found
    ├── ImageUnsuitable          image_unsuitable   no Python 3.8+ in it
    └── ImageBuildFailed         image_build_failed

A command's non-zero exit is a result, not an error. Codes are API: the guest sends a code, never a class, and a
code that this table does not know becomes `IoFailed`.
"""

from typing import ClassVar


class SandboxError(Exception):
    """The root. `str(error)` is one sentence that says what to do; `context` holds the facts it was made from."""

    code: ClassVar[str] = "sandbox_error"
    retryable: ClassVar[bool | None] = False

    def __init__(self, message: str, **context: str | int | float | bool | None) -> None:
        super().__init__(message)
        self.message = message
        self.context = context


class BadRequest(SandboxError):
    code = "bad_request"


class InvalidArgument(BadRequest):
    code = "invalid_argument"


class InvalidPath(BadRequest):
    code = "invalid_path"


class PathEscapes(BadRequest):
    code = "path_escapes"


class UnknownUser(BadRequest):
    code = "unknown_user"


class UserNotAllowed(BadRequest):
    code = "user_not_allowed"


class TooManyUnacknowledged(BadRequest):
    code = "too_many_unacknowledged"


class NotSupported(BadRequest):
    code = "not_supported"


class FileError(SandboxError):
    code = "file_error"


class NotFound(FileError):
    code = "not_found"


class AlreadyExists(FileError):
    code = "already_exists"


class IsDirectory(FileError):
    code = "is_directory"


class NotDirectory(FileError):
    code = "not_directory"


class NotRegularFile(FileError):
    code = "not_regular_file"


class DirectoryNotEmpty(FileError):
    code = "directory_not_empty"


class PermissionDenied(FileError):
    code = "permission_denied"


class NoSpace(FileError):
    code = "no_space"


class TooLarge(FileError):
    code = "too_large"


class TooManyLinks(FileError):
    code = "too_many_links"


class EditNotFound(FileError):
    code = "edit_not_found"


class EditNotUnique(FileError):
    code = "edit_not_unique"


class IoFailed(FileError):
    code = "io_failed"
    retryable = None


class ProcessError(SandboxError):
    code = "process_error"


class CommandNotFound(ProcessError):
    code = "command_not_found"


class CommandNotExecutable(ProcessError):
    code = "command_not_executable"


class CannotStart(ProcessError):
    code = "cannot_start"
    retryable = True


class CannotKill(ProcessError):
    code = "cannot_kill"


class ProcessNotFound(ProcessError):
    code = "process_not_found"


class ProcessEnded(ProcessError):
    code = "process_ended"


class RequestConflict(SandboxError):
    code = "request_conflict"


class OperationTimedOut(SandboxError):
    code = "operation_timed_out"
    retryable = None


class Unavailable(SandboxError):
    code = "unavailable"


class SandboxNotFound(Unavailable):
    code = "sandbox_not_found"


class SandboxLost(Unavailable):
    code = "lost"
    retryable = None


class SandboxBroken(Unavailable):
    code = "broken"


class LeaseLost(Unavailable):
    code = "lease_lost"


class EngineError(SandboxError):
    code = "engine_error"
    retryable = None


class EngineUnavailable(EngineError):
    code = "engine_unavailable"
    retryable = True


class CannotCreate(EngineError):
    code = "cannot_create"
    retryable = False


class ImageNotFound(EngineError):
    code = "image_not_found"
    retryable = False


class ImageUnsuitable(EngineError):
    code = "image_unsuitable"
    retryable = False


class ImageBuildFailed(EngineError):
    code = "image_build_failed"
    retryable = False


def _leaves(cls: type[SandboxError]) -> list[type[SandboxError]]:
    return [cls, *(leaf for sub in cls.__subclasses__() for leaf in _leaves(sub))]


BY_CODE: dict[str, type[SandboxError]] = {cls.code: cls for cls in _leaves(SandboxError)}

# What a guest may say. It is hostile until proven otherwise, so it cannot choose an engine error or a lost sandbox.
FROM_GUEST: frozenset[str] = frozenset(
    cls.code
    for root in (BadRequest, FileError, ProcessError, RequestConflict, OperationTimedOut)
    for cls in _leaves(root)
)


def from_guest(code: str, message: str) -> SandboxError:
    """The error for what a guest reported; an unknown code is `IoFailed`."""
    cls = BY_CODE[code] if code in FROM_GUEST else IoFailed
    return cls(message)
