"""What a request means: the table of operations, and each one done at most once per request id."""

import os
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional

from sandbox import wire
from sandbox.guest import accounts, jobs
from sandbox.guest.accounts import Account, acting_as
from sandbox.guest.channel import Channel
from sandbox.guest.files import Files, ListChannel, ReadChannel, WriteChannel
from sandbox.guest.job import JobChannel
from sandbox.guest.refusal import Refusal, from_os_error
from sandbox.guest.spawn import Order
from sandbox.guest.supervisor import Supervisor
from sandbox.guest.view import View

if TYPE_CHECKING:
    from sandbox.guest.peer import Peer

MAX_OUTCOMES = 4096
_PASSING = frozenset(("ack", "credit", "notify", "paused", "hold", "head", "tail", "offset", "stderr_offset"))
"""Fields that say how to answer, not what to do: the same request may be repeated with others."""

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Handler = Callable[["Peer", int, Dict[str, Any]], Optional[Channel]]


class Kept(NamedTuple):
    fingerprint: str
    outcome: Dict[str, Any]


class Config:
    """What a hello may set: it belongs to whoever leased the sandbox, not to the container."""

    def __init__(self) -> None:
        self.user = "user"
        self.workspace = "/workspace"
        self.env: Dict[str, str] = {}
        self.allow_root = False
        self.output_bytes = 64 << 20
        self.orphan_after_s: Optional[float] = None

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
        self._kept: "OrderedDict[str, Kept]" = OrderedDict()
        self._fingerprints: Dict[str, str] = {}
        self._handlers: Dict[str, Handler] = {
            "start": self._start,
            "attach": self._attach,
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
        request_id = request.get("id")
        if request_id in (self._kept if request["op"] == "start" else self._fingerprints):
            raise _conflict(str(request_id))
        if request_id is not None and request["op"] != "start":
            kept = self._kept.get(request_id)
            if kept is not None:
                self._replay(Channel(peer, number, request), kept, request)
                return None
            if len(self._kept) >= MAX_OUTCOMES:
                raise Refusal("too_many_unacknowledged", "acknowledge the results of earlier requests first")
        try:
            return handler(peer, number, request)
        except OSError as error:
            raise from_os_error(error, _path_of(error, request)) from None

    def acknowledge(self, request_ids: List[Any]) -> None:
        for request_id in request_ids:
            self._kept.pop(request_id, None)
            self._fingerprints.pop(request_id, None)
            self.supervisor.acknowledge(request_id)

    def abandon(self, prefix: str) -> None:
        """Acknowledges what a peer asked for under ids of its own making: it is gone, and nobody else knows them."""
        self.acknowledge([i for i in [*self._kept, *self._fingerprints] if i.startswith(prefix)])

    # Once only

    def _replay(self, channel: Channel, kept: Kept, request: Dict[str, Any]) -> None:
        if kept.fingerprint != _fingerprint(request):
            raise _conflict(request["id"])
        if "ok" in kept.outcome:
            channel.finish(kept.outcome["ok"])
        else:
            channel.fail(Refusal(kept.outcome["error"]["code"], kept.outcome["error"]["message"]))

    def _keeper(self, request: Dict[str, Any]) -> Callable[[Dict[str, Any]], None]:
        request_id = request.get("id")
        if request_id is None:
            return lambda outcome: None
        fingerprint = _fingerprint(request)

        def keep(outcome: Dict[str, Any]) -> None:
            self._kept[request_id] = Kept(fingerprint, outcome)

        return keep

    def _plain(self, operation: Callable[[Dict[str, Any]], Dict[str, Any]]) -> Handler:
        def handle(peer: "Peer", number: int, request: Dict[str, Any]) -> None:
            keep = self._keeper(request)
            try:
                with acting_as(self._account()):
                    result = operation(request)
            except OSError as error:
                refusal = from_os_error(error, _path_of(error, request))
                keep({"error": {"code": refusal.code, "message": refusal.message}})
                raise refusal from None
            except Refusal as refusal:
                keep({"error": {"code": refusal.code, "message": refusal.message}})
                raise
            keep({"ok": result})
            Channel(peer, number, request).finish(result)

        return handle

    # Files

    def _account(self) -> Account:
        return accounts.find(self.config.user)

    def _read(self, peer: "Peer", number: int, request: Dict[str, Any]) -> Channel:
        return ReadChannel(peer, number, request, self._account())

    def _write(self, peer: "Peer", number: int, request: Dict[str, Any]) -> Channel:
        return WriteChannel(peer, number, request, self.files, self._account(), self._keeper(request))

    def _list(self, peer: "Peer", number: int, request: Dict[str, Any]) -> Channel:
        return ListChannel(peer, number, request, self._account())

    def _delete(self, peer: "Peer", number: int, request: Dict[str, Any]) -> Optional[Channel]:
        if request.get("recursive") and os.path.isdir(request["path"]) and not os.path.islink(request["path"]):
            return self._job(peer, number, request, op="remove")
        return self._plain(self.files.delete)(peer, number, request)

    def _move(self, peer: "Peer", number: int, request: Dict[str, Any]) -> Optional[Channel]:
        try:
            return self._plain(self.files.move)(peer, number, request)
        except Refusal as refusal:
            if refusal.code != "cross_device":
                raise
            self._kept.pop(request.get("id", ""), None)
            return self._job(peer, number, request, op="transfer")

    def _job(self, peer: "Peer", number: int, request: Dict[str, Any], *, op: Optional[str] = None) -> Channel:
        order = {**request, "op": op or request["op"]}
        return JobChannel(peer, number, order, self.supervisor, self._account(), self._keeper(request))

    # Processes

    def _start(self, peer: "Peer", number: int, request: Dict[str, Any]) -> Channel:
        process_id: str = request["id"]
        fingerprint = _fingerprint(request)
        process = self.supervisor.processes.get(process_id)
        if process is not None:
            if self._fingerprints.get(process_id) != fingerprint:
                raise _conflict(process_id)
            return View(peer, number, request, process, self.supervisor)
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
        process = self.supervisor.start(
            process_id,
            order,
            stdin=bool(request.get("stdin")),
            separate=bool(request.get("separate")),
            size=None if tty is None else (int(tty[0]), int(tty[1])),
            timeout_s=request.get("timeout_s"),
        )
        self._fingerprints[process_id] = fingerprint
        return View(peer, number, request, process, self.supervisor)

    def _attach(self, peer: "Peer", number: int, request: Dict[str, Any]) -> Channel:
        if request["process"] not in self.supervisor.processes:
            self.supervisor.prune()  # what is over, acknowledged and left nothing alive cannot be had any more
        return View(peer, number, request, self.supervisor.find(request["process"]), self.supervisor)

    def _signal(self, peer: "Peer", number: int, request: Dict[str, Any]) -> None:
        self.supervisor.find(request["process"]).signal(int(request["signum"]))
        Channel(peer, number, request).finish()

    def _resize(self, peer: "Peer", number: int, request: Dict[str, Any]) -> None:
        self.supervisor.find(request["process"]).resize(int(request["rows"]), int(request["cols"]))
        Channel(peer, number, request).finish()

    def _kill(self, peer: "Peer", number: int, request: Dict[str, Any]) -> Channel:
        channel = Channel(peer, number, request)
        process = self.supervisor.find(request["process"])
        self.supervisor.end(process, "killed", lambda n_killed: channel.finish({"n_killed": n_killed}))
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


def _fingerprint(request: Dict[str, Any]) -> str:
    """What was asked for. An option that is off is the same as none: `start` may be repeated as `execute`."""
    return repr(sorted((k, v) for k, v in request.items() if k not in _PASSING and v is not None and v is not False))


def _conflict(request_id: str) -> Refusal:
    return Refusal("request_conflict", f"the request id {request_id!r} was used for another request; choose a new one")


def _path_of(error: OSError, request: Dict[str, Any]) -> str:
    if error.filename2 is not None:
        return os.fsdecode(error.filename2)
    if isinstance(error.filename, (str, bytes)):
        return os.fsdecode(error.filename)
    return str(request.get("path") or request.get("source") or "")
