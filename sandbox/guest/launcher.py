"""Prepared launchers: children forked in advance that wait for a command and become it.

A fork of the guest costs more than everything else about a small command, so it is done while nobody waits. A waiting
launcher is still root: no command can stop or kill it. It drops to the user, takes the command's mark and
executes in one go, or runs a job (`sandbox/guest/jobs`) in place of a program. What it answers is JSON: by then it
has touched files of the user's, and is believed accordingly.
"""

import contextlib
import errno
import fcntl
import gc
import json
import marshal
import os
import resource
import signal
import socket
import struct
import termios
from typing import Any, Dict, List, NoReturn, Optional

_LENGTH = struct.Struct("!I")
_OOM_SCORE = b"800"
_LOW_FD = 3


class Launcher:
    """Our ends of a waiting child: its control socket and the far ends of its standard streams."""

    __slots__ = ("control", "pid", "stderr", "stdin", "stdout")

    def __init__(self, pid: int, control: socket.socket, stdin: int, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.control = control
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr

    def send(self, order: Dict[str, Any]) -> None:
        """Raises OSError if the child is gone."""
        body = marshal.dumps(order)
        self.control.sendall(_LENGTH.pack(len(body)) + body)

    def close(self) -> None:
        self.control.close()
        for fd in (self.stdin, self.stdout, self.stderr):
            if fd >= 0:
                os.close(fd)
        self.stdin = self.stdout = self.stderr = -1


def prepare(n_open_files: int) -> Launcher:
    """Forks one. Raises OSError when there is no process, memory or descriptor left."""
    fds: List[int] = []
    ours, theirs = socket.socketpair()
    try:
        for _ in range(3):
            fds.extend(os.pipe())
        pid = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        for fd in fds:
            os.close(fd)
        raise
    stdin_r, stdin_w, stdout_r, stdout_w, stderr_r, stderr_w = fds
    if pid == 0:
        _child(theirs, stdin_r, stdout_w, stderr_w, n_open_files)
    theirs.close()
    for fd in (stdin_r, stdout_w, stderr_w):
        os.close(fd)
    for fd in (stdin_w, stdout_r, stderr_r):
        os.set_blocking(fd, False)
    return Launcher(pid, ours, stdin_w, stdout_r, stderr_r)


def _child(control: socket.socket, stdin: int, stdout: int, stderr: int, n_open_files: int) -> NoReturn:
    code = 127
    try:
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(signum, signal.SIG_DFL)
        os.setsid()
        gc.disable()
        channel = _keep_only(control.detach(), stdin, stdout, stderr)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
            file.write(_OOM_SCORE)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        soft = n_open_files if hard == resource.RLIM_INFINITY else min(n_open_files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = _obey(channel)
    except BaseException:  # noqa: BLE001  a forked child must never return into the guest's loop
        pass
    finally:
        os._exit(code)


def _keep_only(control: int, stdin: int, stdout: int, stderr: int) -> int:
    """Standard streams in place, the control socket at 3, everything of the guest's closed.

    A copy of another command's stdin kept here would keep that command from ever seeing its end.
    """
    kept = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in (stdin, stdout, stderr, control)]
    for target, fd in enumerate(kept[:3]):
        os.dup2(fd, target, inheritable=True)
    os.dup2(kept[3], _LOW_FD, inheritable=False)
    os.closerange(_LOW_FD + 1, max(kept) + 1)
    return _LOW_FD


def _obey(control: int) -> int:
    order = _receive(control)
    if order is None:
        return 0
    stage = "start"
    try:
        if order["mark"]:
            os.setgroups([*order["groups"], order["mark"]])
            os.setresgid(order["gid"], order["gid"], order["gid"])
            os.setresuid(order["uid"], order["uid"], order["uid"])
        os.umask(0o022)
        if order.get("job"):
            return _run_job(control, order["job"], order["request"])
        stage = "tty"
        if order["tty"]:
            _take_terminal(order["tty"])
        else:
            _take_streams(bool(order["stdin"]), bool(order["separate"]))
        stage = "cwd"
        os.chdir(order["cwd"])
        stage = "exec"
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except OSError as error:
        os.write(control, json.dumps([stage, error.errno or errno.EIO]).encode())
    return 127


def _receive(control: int) -> Optional[Dict[str, Any]]:
    head = _read_exactly(control, _LENGTH.size)
    if head is None:
        return None
    body = _read_exactly(control, _LENGTH.unpack(head)[0])
    return None if body is None else marshal.loads(body)


def _read_exactly(fd: int, n_bytes: int) -> Optional[bytes]:
    data = b""
    while len(data) < n_bytes:
        piece = os.read(fd, n_bytes - len(data))
        if not piece:
            return None
        data += piece
    return data


def _take_streams(stdin: bool, separate: bool) -> None:
    if not stdin:
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    if not separate:
        os.dup2(1, 2)


def _take_terminal(path: str) -> None:
    terminal = os.open(path, os.O_RDWR)
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for target in range(3):
        os.dup2(terminal, target)
    if terminal > 2:
        os.close(terminal)


def _run_job(control: int, name: str, request: Dict[str, Any]) -> int:
    from sandbox.guest import jobs
    from sandbox.guest.refusal import Refusal, from_os_error

    try:
        answer: Dict[str, Any] = {"ok": jobs.load(name)(request)}
    except Refusal as refusal:
        answer = {"error": {"code": refusal.code, "message": refusal.message}}
    except BrokenPipeError:
        return 1
    except OSError as error:
        refusal = from_os_error(error, os.fsdecode(error.filename) if error.filename else str(request.get("path", "")))
        answer = {"error": {"code": refusal.code, "message": refusal.message}}
    except MemoryError:
        answer = {"error": {"code": "io_failed", "message": f"{name}: out of memory"}}
    os.close(0)
    os.close(1)
    os.write(control, json.dumps(answer).encode())
    return 0
