"""A child of the guest that runs a job (`sandbox/guest/jobs`) with the user's rights and then is gone."""

import contextlib
import fcntl
import gc
import json
import os
import signal
import socket
from typing import Any, Dict, List, NoReturn

from sandbox.guest import jobs
from sandbox.guest.accounts import Account
from sandbox.guest.refusal import Refusal, from_os_error

_CONTROL = 3
_OOM_SCORE = b"800"


class Forked:
    """Our ends of it: where it says how it ended, and the far ends of its standard streams."""

    __slots__ = ("control", "pid", "stdin", "stdout")

    def __init__(self, pid: int, control: socket.socket, stdin: int, stdout: int) -> None:
        self.pid = pid
        self.control = control
        self.stdin = stdin
        self.stdout = stdout

    def close(self) -> None:
        self.control.close()
        for fd in (self.stdin, self.stdout):
            if fd >= 0:
                os.close(fd)
        self.stdin = self.stdout = -1


def fork(name: str, request: Dict[str, Any], account: Account, mark: int) -> Forked:
    """Starts a job. Raises: Refusal(cannot_start)."""
    fds: List[int] = []
    ours, theirs = socket.socketpair()
    try:
        fds.extend(os.pipe())
        fds.extend(os.pipe())
        pid = os.fork()
    except OSError as error:
        ours.close()
        theirs.close()
        for fd in fds:
            os.close(fd)
        raise Refusal("cannot_start", f"no process can be started: {error.strerror}; kill something first") from None
    stdin_r, stdin_w, stdout_r, stdout_w = fds
    if pid == 0:
        _child(theirs.detach(), stdin_r, stdout_w, name, request, account, mark)
    theirs.close()
    os.close(stdin_r)
    os.close(stdout_w)
    for fd in (stdin_w, stdout_r):
        os.set_blocking(fd, False)
    ours.setblocking(False)
    return Forked(pid, ours, stdin_w, stdout_r)


def _child(
    control: int, stdin: int, stdout: int, name: str, request: Dict[str, Any], account: Account, mark: int
) -> NoReturn:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGXFSZ):
            signal.signal(signum, signal.SIG_DFL)
        os.setsid()
        gc.disable()
        _keep_only(control, stdin, stdout)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
            file.write(_OOM_SCORE)
        os.setgroups([*account.groups, mark])
        os.setresgid(account.gid, account.gid, account.gid)
        os.setresuid(account.uid, account.uid, account.uid)
        code = _run(name, request)
    finally:
        os._exit(code)  # whatever happened: a forked child must never return into the guest's loop


def _keep_only(control: int, stdin: int, stdout: int) -> None:
    """Nothing of the guest's stays open: a copy of a command's stdin here would keep it from ever seeing its end."""
    kept = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in (stdin, stdout, control)]
    os.dup2(kept[0], 0)
    os.dup2(kept[1], 1)
    null = os.open("/dev/null", os.O_WRONLY)
    os.dup2(null, 2)
    os.dup2(kept[2], _CONTROL, inheritable=False)
    os.closerange(_CONTROL + 1, max(*kept, null) + 1)


def _run(name: str, request: Dict[str, Any]) -> int:
    try:
        answer: Dict[str, Any] = {"ok": jobs.load(name)(request)}
    except Refusal as refusal:
        answer = refusal.outcome()
    except BrokenPipeError:
        return 1
    except OSError as error:
        path = os.fsdecode(error.filename) if error.filename else str(request.get("path", ""))
        answer = from_os_error(error, path).outcome()
    except MemoryError:
        answer = Refusal("io_failed", f"{name}: out of memory").outcome()
    os.close(0)
    os.close(1)
    os.write(_CONTROL, json.dumps(answer).encode())
    return 0
