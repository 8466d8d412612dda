"""Channels whose work runs in a process of its own, with the user's rights: searching, tar, watching, big deletes."""

import json
import os
import signal
from typing import TYPE_CHECKING, Any, Dict, Optional

from sandbox.guest.accounts import Account
from sandbox.guest.channel import CHUNK, Channel
from sandbox.guest.forked import Forked, fork
from sandbox.guest.loop import READ, WRITE, Timer
from sandbox.guest.refusal import Refusal, from_outcome
from sandbox.guest.requests import Requests

if TYPE_CHECKING:
    from sandbox.guest.peer import Peer
    from sandbox.guest.supervisor import Supervisor

_INPUT_WINDOW = 2 << 20
_GRACE_S = 2.0


class JobChannel(Channel):
    """Pipes DATA to and from a job; its pipe is read only while there is credit, so a slow peer slows the job."""

    def __init__(
        self,
        peer: "Peer",
        number: int,
        request: Dict[str, Any],
        supervisor: "Supervisor",
        account: Account,
        requests: Requests,
    ) -> None:
        super().__init__(peer, number, request)
        self._supervisor = supervisor
        self._loop = supervisor.loop
        self._requests = requests
        self._id = request.get("id")
        self._mark = supervisor.new_mark()
        self._answer: Optional[Dict[str, Any]] = None
        self._exited = False
        self._input = bytearray()
        self._input_ended = False
        self._timeout: Optional[Timer] = None
        forked = fork(request["op"], request, account, self._mark)
        self._forked: Optional[Forked] = forked
        supervisor.adopt(forked.pid, self._on_exit)
        self._loop.watch(forked.control.fileno(), READ, lambda _: self._answered())
        timeout_s = request.get("timeout_s")
        if timeout_s is not None:
            self._timeout = self._loop.call_later(float(timeout_s), self._timed_out)
        self.grant(_INPUT_WINDOW)

    def pump(self) -> None:
        forked = self._forked
        if forked is None or forked.stdout < 0 or self._loop.is_watched(forked.stdout) or self.room <= 0:
            return
        self._loop.watch(forked.stdout, READ, lambda _: self._readable())

    def _readable(self) -> None:
        forked = self._forked
        room = self.room
        if forked is None:
            return
        if room <= 0:
            self._loop.unwatch(forked.stdout)
            return
        try:
            data = os.read(forked.stdout, min(room, CHUNK))
        except BlockingIOError:
            return
        if data:
            self.send(data)
            return
        self._close("stdout")
        self._settle()

    def _close(self, name: str) -> None:
        fd: int = getattr(self._forked, name)
        if fd >= 0:
            self._loop.unwatch(fd)
            os.close(fd)
            setattr(self._forked, name, -1)

    def on_data(self, stream: int, data: bytes, end: bool) -> None:
        self._input += data
        self._input_ended = self._input_ended or end
        self._write_input()

    def _write_input(self) -> None:
        forked = self._forked
        if forked is None or forked.stdin < 0:
            self._input.clear()
            return
        taken = 0
        try:
            while self._input:
                n = os.write(forked.stdin, self._input)
                del self._input[:n]
                taken += n
        except BlockingIOError:
            if not self._loop.is_watched(forked.stdin):
                self._loop.watch(forked.stdin, WRITE, lambda _: self._write_input())
        except OSError:
            self._input.clear()
            self._input_ended = True
        if taken and self.open:
            self.grant(taken)
        if not self._input:
            self._loop.unwatch(forked.stdin)
            if self._input_ended:
                self._close("stdin")

    def _answered(self) -> None:
        forked = self._forked
        if forked is None:
            return
        try:
            answer = forked.control.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            answer = b""
        self._loop.unwatch(forked.control.fileno())
        if answer:
            try:
                self._answer = json.loads(answer)
            except ValueError:
                self._answer = None
        self._settle()

    def _on_exit(self, status: int) -> None:
        self._exited = True
        if self._forked is not None and self._answer is None and self._loop.is_watched(self._forked.control.fileno()):
            self._answered()
        self._settle()

    def _settle(self) -> None:
        forked = self._forked
        if not self._exited or forked is None:
            return
        if self._answer is not None and "ok" in self._answer and forked.stdout >= 0 and self.open:
            return  # its output is still on the way
        self._release()
        answer = self._answer or Refusal("io_failed", "the operation's process was killed").outcome()
        if "ok" in answer:
            self._requests.keep(self._id, answer)
            self.finish(answer["ok"])
            return
        refusal = from_outcome(answer)
        if refusal.took_effect:
            self._requests.keep(self._id, answer)
        else:
            self._requests.drop(self._id)
        self.fail(refusal)

    def _timed_out(self) -> None:
        self._answer = {
            "error": {"code": "operation_timed_out", "message": "the operation took too long and was ended"}
        }
        self.on_close()

    def on_close(self) -> None:
        """Asks the job to clean up and leave, then makes sure."""
        forked = self._forked
        if forked is None:
            return
        self._close("stdin")
        self._close("stdout")
        if not self._exited:
            os.kill(forked.pid, signal.SIGTERM)
            self._loop.call_later(_GRACE_S, self._make_sure)
        self._settle()

    def _make_sure(self) -> None:
        if not self._exited:
            self._supervisor.kill_mark(self._mark, lambda n_killed, n_left: None)

    def _release(self) -> None:
        forked, self._forked = self._forked, None
        if forked is not None:
            for fd in (forked.control.fileno(), forked.stdin, forked.stdout):
                self._loop.unwatch(fd)
            forked.close()
        if self._timeout is not None:
            self._timeout.cancel()
