"""Turning a request into a process, cheaply: the guest takes on the user's ids, spawns, and takes its own back.

`posix_spawn` shares our memory until the new program is in place, so it costs a third of a fork of this interpreter and
reports a failure at once. It cannot change ids itself, so for that moment (0.2 ms) our real and effective ids are the
user's, and the saved ones stay root. What a command could do to us then: nothing by signals (we are PID 1 of
its namespace: SIGKILL and SIGSTOP from inside are ignored, and we handle only SIGCHLD), nothing by ptrace or /proc (we
are not dumpable). It can stop the child that we wait for; the warden frees us then. The new program starts without
capabilities, and with no saved root id: exec overwrites it.
"""

import contextlib
import errno
import os
import signal
from typing import Any, Dict, Generator, List, NamedTuple, Optional, Tuple

from sandbox.guest.accounts import Account
from sandbox.guest.refusal import Refusal, from_os_error
from sandbox.guest.warden import Warden

_OOM_SCORE = b"800"
"""Commands are killed for memory before the guest is."""
_TO_DEFAULT = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT]
"""Ignored in the guest; what is ignored stays so in a new program unless reset."""


class Order(NamedTuple):
    """A command, checked and complete."""

    argv: List[str]
    env: Dict[str, str]
    cwd: str
    account: Account
    mark: int


class Streams(NamedTuple):
    """What becomes its standard streams: descriptors of ours, or the path of a terminal for all three."""

    stdin: int = -1
    stdout: int = -1
    stderr: int = -1
    terminal: Optional[str] = None


class Spawner:
    def __init__(self, warden: Warden) -> None:
        self._warden = warden
        self._root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._oom = -1
        with contextlib.suppress(OSError):
            self._oom = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)

    def spawn(self, order: Order, streams: Streams) -> int:
        """The new process's id, leader of a session of its own.

        Raises: Refusal (not_found or not_directory for the cwd, command_not_found, command_not_executable,
        cannot_start, invalid_argument), OSError where there is no room for a process.
        """
        with self._as_user(order):
            try:
                os.chdir(order.cwd)
            except OSError as error:
                refusal = from_os_error(error, order.cwd)
                advice = "make the directory first or name another `cwd`"
                raise Refusal(refusal.code, f"cannot run in {refusal.message}; {advice}") from None
            program = find_program(order.argv[0], order.env.get("PATH", ""))
            try:
                return os.posix_spawn(
                    program,
                    order.argv,
                    order.env,
                    file_actions=self._file_actions(streams),
                    setsid=True,
                    setsigdef=_TO_DEFAULT,
                )
            except OSError as error:
                raise _refusal(program, error) from None

    def _file_actions(self, streams: Streams) -> List[Tuple[Any, ...]]:
        if streams.terminal is not None:
            # Opened by the leader of a session that has none, so it becomes the controlling terminal.
            opened = (os.POSIX_SPAWN_OPEN, 0, streams.terminal, os.O_RDWR, 0)
            return [opened, (os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]
        stdin = streams.stdin if streams.stdin >= 0 else self._null
        stderr = streams.stderr if streams.stderr >= 0 else streams.stdout
        return [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate((stdin, streams.stdout, stderr))]

    @contextlib.contextmanager
    def _as_user(self, order: Order) -> "Generator[None, None, None]":
        account = order.account
        if os.getuid() != 0:
            yield
            return
        self._warden.begin(order.mark)
        self._set_oom_score(_OOM_SCORE)
        os.setgroups([*account.groups, order.mark])
        os.setresgid(account.gid, account.gid, 0)
        os.setresuid(account.uid, account.uid, 0)
        try:
            yield
        finally:
            os.setresuid(0, 0, 0)
            os.setresgid(0, 0, 0)
            os.setgroups([])
            os.fchdir(self._root)
            self._set_oom_score(b"0")
            self._warden.end()

    def _set_oom_score(self, score: bytes) -> None:
        if self._oom >= 0:
            with contextlib.suppress(OSError):
                os.pwrite(self._oom, score, 0)


def find_program(name: str, search: str) -> str:
    """The path to execute, looked up with the rights of whoever we are now. Raises: Refusal."""
    if "/" in name:
        return name
    denied = ""
    for directory in search.split(":"):
        path = os.path.join(directory or ".", name)
        if os.path.isfile(path):
            if os.access(path, os.X_OK, effective_ids=True):
                return path
            denied = denied or path
    if denied:
        raise Refusal("command_not_executable", f"{denied}: permission denied; make it executable with chmod +x")
    raise Refusal("command_not_found", f"{name}: command not found; look at PATH or give the full path")


def _refusal(program: str, error: OSError) -> Refusal:
    number = error.errno or errno.EIO
    if number in (errno.ENOENT, errno.ENOTDIR):
        return Refusal("command_not_found", f"{program}: command not found, or its #! line names no program")
    if number in (errno.EACCES, errno.ENOEXEC, errno.EPERM, errno.EISDIR):
        reason = os.strerror(number)
        return Refusal("command_not_executable", f"{program}: {reason}; is it executable, with a #! line?")
    if number == errno.E2BIG:
        advice = "pass them by a file or standard input"
        return Refusal("invalid_argument", f"{program}: its arguments and environment are too long; {advice}")
    return Refusal("cannot_start", f"{program}: {os.strerror(number)}; kill something first")
