"""What a request means: the table of operations, and each one done at most once per request id."""

import os
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from sandbox import wire
from sandbox.guest import accounts, jobs
from sandbox.guest.accounts import Account, acting_as
from sandbox.guest.channel import Channel
from sandbox.guest.files import Files, ListChannel, ReadChannel, WriteChannel
from sandbox.guest.job import JobChannel
from sandbox.guest.process import Process
from sandbox.guest.refusal import Refusal, from_os_error, from_outcome
from sandbox.guest.repeat import Repeat
from sandbox.guest.requests import Requests, UnderWay
from sandbox.guest.spawn import Order
from sandbox.guest.supervisor import Supervisor
from sandbox.guest.view import InputChannel, View

if TYPE_CHECKING:
    from sandbox.guest.peer import Peer

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Handler = Callable[["Peer", int, Dict[str, Any]], Optional[Channel]]


class Config:
    """What a hello may set: it belongs to whoever leased the sandbox, not to the container."""

    def __init__(self) -> None:
        self.user = "user"
        self.workspace = "/workspace"
        self.env: Dict[str, str] = {}
        self.allow_root = False
        self.output_bytes = 64 << 20
        self.orphan_after_s: Optional[float] = None
        self.disks: List[str] = []
        """Paths whose file systems' sizes go into the welcome."""

    def update(self, values: Dict[str, Any]) -> None:
        for name, value in values.items():
            if hasattr(self, name):
                setattr(self, name, value)


class Service:
    def __init__(self, supervisor: Supervisor, files: Files, config: Config) -> None:
        self.supervisor = supervisor
        self.files = files
        self.config = config
        self._image_env = {k: v for k, v in os.environ.items() if not k.startswith("BOATYARD_")}
        self._requests = Requests()
        self._handlers: Dict[str, Handler] = {
            "start": self._start,
            "find": self._find,
            "attach": self._attach,
            "input": self._input,
            "signal": self._signal,
            "resize": self._resize,
            "kill": self._kill,
            "processes": self._processes,
            "read": self._read,
            "write": self._write,
            "list": self._list,
            "delete": self._delete,
            "move": self._move,
            "stat": self._plain(files.stat),
            "mkdir": self._plain(files.mkdir),
            "edit": self._plain(files.edit),
        }
        for name in jobs.NAMES:
            self._handlers.setdefault(name, self._job)

    @property
    def features(self) -> List[str]:
        return sorted(self._handlers)

    def open(self, peer: "Peer", number: int, request: Dict[str, Any]) -> Optional[Channel]:
        handler = self._handlers.get(request["op"])
        if handler is None:
            raise Refusal("not_supported", f"this guest knows no operation {request['op']!r}")
        if request.get("id") is not None:
            try:
                outcome = self._requests.begin(request)
            except UnderWay as under_way:
                return self._wait(peer, number, request, under_way)
            if outcome is not None:
                _tell(Channel(peer, number, request), outcome)
                return None
        try:
            return handler(peer, number, request)
        except OSError as error:
            self._requests.drop(request.get("id"))
            raise from_os_error(error, _path_of(error, request)) from None
        except BaseException:
            self._requests.drop(request.get("id"))
            raise

    def _wait(self, peer: "Peer", number: int, request: Dict[str, Any], under_way: UnderWay) -> Channel:
        """For the first attempt at a request, perhaps of a peer that is gone: then it is dying, and takes a moment."""
        repeat = Repeat(peer, number, request, under_way, lambda: self.open(peer, number, request))
        self._requests.when_over(request["id"], lambda: peer.loop.call_soon(repeat.first_is_over))
        return repeat

    def acknowledge(self, request_ids: List[str]) -> None:
        for request_id in request_ids:
            self._requests.acknowledge(request_id)
            self.supervisor.acknowledge(request_id)

    def abandon(self, prefix: str) -> None:
        """Acknowledges what a peer asked for under ids of its own making: it is gone, and nobody else knows them."""
        self.acknowledge(self._requests.beginning_with(prefix))

    # Files

    def _plain(self, operation: Callable[[Dict[str, Any]], Dict[str, Any]]) -> Handler:
        def handle(peer: "Peer", number: int, request: Dict[str, Any]) -> None:
            with acting_as(self._account()):
                outcome = {"ok": operation(request)}
            self._requests.keep(request.get("id"), outcome)
            _tell(Channel(peer, number, request), outcome)

        return handle

    def _account(self) -> Account:
        return accounts.find(self.config.user)

    def _read(self, peer: "Peer", number: int, request: Dict[str, Any]) -> Channel:
        return ReadChannel(peer, number, request, self._account())

    def _write(self, peer: "Peer", number: int, request: Dict[str, Any]) -> Channel:
        return WriteChannel(peer, number, request, self.files, self._account(), self._requests)

    def _list(self, peer: "Peer", number: int, request: Dict[str, Any]) -> Channel:
        return ListChannel(peer, number, request, self._account())

    def _delete(self, peer: "Peer", number: int, request: Dict[str, Any]) -> Optional[Channel]:
        if request.get("recursive") and os.path.isdir(request["path"]) and not os.path.islink(request["path"]):
            return self._job(peer, number, request, op="remove")
        return self._plain(self.files.delete)(peer, number, request)

    def _move(self, peer: "Peer", number: int, request: Dict[str, Any]) -> Optional[Channel]:
        with acting_as(self._account()):
            crosses = self.files.crosses(request)
        if crosses:
            return self._job(peer, number, request, op="transfer")
        return self._plain(self.files.move)(peer, number, request)

    def _job(self, peer: "Peer", number: int, request: Dict[str, Any], *, op: Optional[str] = None) -> Channel:
        order = {**request, "op": op or request["op"]}
        return JobChannel(peer, number, order, self.supervisor, self._account(), self._requests)

    # Processes

    def _start(self, peer: "Peer", number: int, request: Dict[str, Any]) -> Optional[Channel]:
        process_id: str = request["id"]
        process = self.supervisor.processes.get(process_id)
        if process is None:
            process = self._new_process(process_id, request)
        if not request.get("detached"):
            return View(peer, number, request, process, self.supervisor)
        Channel(peer, number, request).finish(_handle(process))
        return None

    def _new_process(self, process_id: str, request: Dict[str, Any]) -> Process:
        account = accounts.find(request.get("user") or self.config.user)
        if account.uid == 0 and not self.config.allow_root:
            raise Refusal("user_not_allowed", "no command runs as root in this sandbox; leave `user` out")
        order = Order(
            argv=request.get("argv") or [_shell(), "-c", request["shell"]],
            env=self._env(account, request.get("env") or {}),
            cwd=request.get("cwd") or self.config.workspace,
            account=account,
            mark=self.supervisor.new_mark(),
        )
        tty = request.get("tty")
        return self.supervisor.start(
            process_id,
            order,
            stdin=bool(request.get("stdin")),
            separate=bool(request.get("separate")),
            size=None if tty is None else (int(tty[0]), int(tty[1])),
            timeout_s=request.get("timeout_s"),
        )

    def _find(self, peer: "Peer", number: int, request: Dict[str, Any]) -> None:
        Channel(peer, number, request).finish(_handle(self.supervisor.find(request["process"])))

    def _attach(self, peer: "Peer", number: int, request: Dict[str, Any]) -> Channel:
        return View(peer, number, request, self.supervisor.find(request["process"]), self.supervisor)

    def _input(self, peer: "Peer", number: int, request: Dict[str, Any]) -> Channel:
        return InputChannel(peer, number, request, self.supervisor.find(request["process"]))

    def _signal(self, peer: "Peer", number: int, request: Dict[str, Any]) -> None:
        self.supervisor.find(request["process"]).signal(int(request["signum"]))
        Channel(peer, number, request).finish()

    def _resize(self, peer: "Peer", number: int, request: Dict[str, Any]) -> None:
        self.supervisor.find(request["process"]).resize(int(request["rows"]), int(request["cols"]))
        Channel(peer, number, request).finish()

    def _kill(self, peer: "Peer", number: int, request: Dict[str, Any]) -> Channel:
        channel = Channel(peer, number, request)

        def done(n_killed: int, n_left: int) -> None:
            if n_left:
                channel.fail(Refusal("cannot_kill", f"{n_left} processes do not die; destroy the sandbox"))
            else:
                channel.finish({"n_killed": n_killed})

        self.supervisor.end(self.supervisor.find(request["process"]), "killed", done)
        return channel

    def _processes(self, peer: "Peer", number: int, request: Dict[str, Any]) -> Channel:
        return ProcessesChannel(peer, number, request, self._process_lines())

    def _process_lines(self) -> bytes:
        counts = self.supervisor.prune()
        lines: List[bytes] = []
        for process in [*self.supervisor.processes.values(), *self.supervisor.forgotten.values()]:
            outcome = process.outcome(dict.fromkeys(process.recorders, 0)) if process.ended else {}
            line = {
                "id": process.id,
                "pid": process.pid,
                "argv": process.argv,
                "running": not process.ended,
                "n_alive": counts.get(process.mark, 0),
                "started_at": process.started_at,
                "tty": process.tty,
                "exit_code": outcome.get("exit_code"),
                "reason": outcome.get("reason"),
            }
            lines.append(wire.pack_json(line) + b"\n")
        return b"".join(lines)

    def _env(self, account: Account, env: Dict[str, str]) -> Dict[str, str]:
        base = {"PATH": _DEFAULT_PATH, **self._image_env}
        base.update(HOME=account.home, USER=account.name, LOGNAME=account.name, SHELL=_shell())
        base.update(self.config.env)
        base.update(env)
        return base


class ProcessesChannel(Channel):
    def __init__(self, peer: "Peer", number: int, request: Dict[str, Any], lines: bytes) -> None:
        super().__init__(peer, number, request)
        self._lines = lines

    def pump(self) -> None:
        while self._lines:
            room = self.room
            if room <= 0:
                return
            piece, self._lines = self._lines[:room], self._lines[room:]
            self.send(piece)
        self.finish()


def _shell() -> str:
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def _handle(process: Process) -> Dict[str, Any]:
    """What a peer needs to go on with a command."""
    stdin_bytes = process.stdin.n_bytes if process.stdin is not None else 0
    return {"pid": process.pid, "separate": process.separate, "stdin_bytes": stdin_bytes}


def _tell(channel: Channel, outcome: Dict[str, Any]) -> None:
    if "ok" in outcome:
        channel.finish(outcome["ok"])
    else:
        channel.fail(from_outcome(outcome))


def _path_of(error: OSError, request: Dict[str, Any]) -> str:
    if error.filename2 is not None:
        return os.fsdecode(error.filename2)
    if isinstance(error.filename, (str, bytes)):
        return os.fsdecode(error.filename)
    return str(request.get("path") or request.get("source") or "")
