"""All commands of this sandbox: children by pid, sweeps, and what is remembered of the dead."""

import contextlib
import os
from typing import Callable, Dict, List, Optional, Set, Tuple

from sandbox.guest import accounts, sweep
from sandbox.guest.loop import Loop
from sandbox.guest.pressure import Pressure
from sandbox.guest.process import Process
from sandbox.guest.recorder import OutputStore
from sandbox.guest.refusal import Refusal
from sandbox.guest.spawn import Order, Spawner
from sandbox.guest.warden import Warden

MAX_UNACKNOWLEDGED = 512
_MANY_FORGOTTEN = 128
_SWEEP_PAUSE_S = 0.001
_SWEEP_LIMIT_S = 10.0
_SWEEP_RETRY_S = 0.05


class _Kill:
    """A sweep for one mark: over after two clean scans in a row, or when it has taken too long."""

    def __init__(self, mark: int, begun: float, done: Callable[[int, int], None]) -> None:
        self.mark = mark
        self.n_clean = 0
        self._begun = begun
        self._done = done
        self._killed: Set[int] = set()
        self._n_left = 1
        """Until a scan finds nothing, something may be alive."""

    def scanned(self, pids: Set[int]) -> None:
        self._killed |= pids
        self._n_left = len(pids)
        self.n_clean = 0 if pids else self.n_clean + 1

    def is_over(self, now: float) -> bool:
        return self.n_clean >= 2 or now - self._begun > _SWEEP_LIMIT_S

    def report(self) -> None:
        self._done(len(self._killed), self._n_left)


class Supervisor:
    def __init__(self, loop: Loop, store: OutputStore, pressure: Pressure) -> None:
        self.loop = loop
        self.store = store
        self._pressure = pressure
        self.processes: Dict[str, Process] = {}
        """Running, or over and not acknowledged."""
        self.forgotten: Dict[int, Process] = {}
        """Over and acknowledged, by mark: kept while something of them may be alive."""
        self._spawner = Spawner(Warden(self.adopt))
        self._children: Dict[int, Callable[[int], None]] = {}
        self._kills: List[_Kill] = []
        self._next_mark = accounts.MARK_BASE
        sweep.reserve()
        loop.on_child_exit = self._child_exited

    # Children

    def adopt(self, pid: int, on_exit: Callable[[int], None]) -> None:
        self._children[pid] = on_exit

    def new_mark(self) -> int:
        self._next_mark += 1
        return self._next_mark

    def _child_exited(self, pid: int, status: int) -> None:
        on_exit = self._children.pop(pid, None)
        if on_exit is not None:
            on_exit(status)

    # Commands

    def start(
        self,
        process_id: str,
        order: Order,
        *,
        stdin: bool,
        separate: bool,
        size: Optional[Tuple[int, int]],
        timeout_s: Optional[float],
    ) -> Process:
        if sum(1 for p in self.processes.values() if p.ended) >= MAX_UNACKNOWLEDGED:
            raise Refusal("too_many_unacknowledged", "acknowledge the results of earlier commands first")
        process = Process(
            self.loop, self.store, self._pressure, process_id, order, stdin=stdin, separate=separate, size=size
        )
        process.start(self._spawner)
        self.adopt(process.pid, process.exited)
        self.processes[process_id] = process
        if timeout_s is not None:
            process.timeout = self.loop.call_later(timeout_s, lambda: self.end(process, "timed_out"))
        return process

    def end(self, process: Process, verdict: str, done: Callable[[int, int], None] = lambda n, left: None) -> None:
        """Kills a command and everything that carries its mark; also what a command that is over left behind.

        `done` gets how many were killed, and how many would not die.
        """
        if process.exit_status is None and process.verdict is None:
            process.verdict = verdict
        process.sweeping = True

        def swept(n_killed: int, n_left: int) -> None:
            process.sweeping = False
            process.settle()
            done(n_killed, n_left)

        self.kill_mark(process.mark, swept)

    def acknowledge(self, process_id: str) -> None:
        process = self.processes.get(process_id)
        if process is None:
            return
        process.acknowledged = True
        self.retire(process)

    def retire(self, process: Process) -> None:
        """Forgets a command that is over, acknowledged and unwatched, but for its mark."""
        if not process.ended or not process.acknowledged or process.is_watched:
            return
        if self.processes.pop(process.id, None) is None:
            return
        self.forgotten[process.mark] = process
        if not process.listening:
            process.forget()
        if len(self.forgotten) >= _MANY_FORGOTTEN:
            with contextlib.suppress(OSError):
                self.prune()

    def prune(self) -> Dict[int, int]:
        """Drops what left nothing alive and is not being read; returns how much of everything else is.

        Raises: OSError if nobody can look just now; all is as before then.
        """
        running = [p.mark for p in self.processes.values()]
        counts = sweep.alive([*self.forgotten, *running])
        for mark, process in list(self.forgotten.items()):
            if not counts[mark] and not process.is_watched:
                del self.forgotten[mark]
                process.forget()
        return counts

    def find(self, process_id: str) -> Process:
        process = self.processes.get(process_id)
        if process is None:
            with contextlib.suppress(OSError):
                self.prune()
            process = next((p for p in self.forgotten.values() if p.id == process_id), None)
        if process is None:
            raise Refusal("process_not_found", f"there is no process {process_id!r}, or its result was acknowledged")
        return process

    # Killing

    def kill_mark(self, mark: int, done: Callable[[int, int], None]) -> None:
        self._kills.append(_Kill(mark, self.loop.now, done))
        if len(self._kills) == 1:
            self.loop.call_soon(self._sweep)

    def _sweep(self) -> None:
        """One scan for all kills. Whatever goes wrong, another one follows while there are any."""
        kills = list(self._kills)
        pause_s = _SWEEP_RETRY_S
        try:
            # A scan that failed is no clean one: not even /proc could be read.
            with contextlib.suppress(OSError):
                killed = sweep.kill_pass({kill.mark for kill in kills}, spare=set(self._children))
                for kill in kills:
                    kill.scanned(killed.get(kill.mark, set()) | killed.get(0, set()))
                pause_s = 0.0 if all(kill.n_clean for kill in kills) else _SWEEP_PAUSE_S
                self.loop.reap()
        finally:
            over = [kill for kill in self._kills if kill.is_over(self.loop.now)]
            self._kills = [kill for kill in self._kills if kill not in over]
            for kill in over:
                self.loop.call_soon(kill.report)
            if self._kills:
                self.loop.call_later(pause_s, self._sweep)

    def close(self) -> None:
        """The end of the sandbox: as PID 1 everything goes with us; as a plain child, kill what we started."""
        if os.getpid() != 1:
            marks = {p.mark for p in self.processes.values()} | set(self.forgotten)
            for _ in range(100):
                if not sweep.kill_pass(marks, spare=set()):
                    break
