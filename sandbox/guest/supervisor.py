"""All commands of this sandbox: children by pid, sweeps, and what is remembered of the dead."""

import os
from typing import Callable, Dict, List, Optional, Set, Tuple

from sandbox.guest import accounts, sweep
from sandbox.guest.loop import Loop
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
    """A sweep for one mark: over after two clean scans in a row."""

    def __init__(self, mark: int, begun: float, done: Callable[[int, int], None]) -> None:
        self.mark = mark
        self.begun = begun
        self.done = done
        self.n_clean = 0
        self.killed: Set[int] = set()
        self.left: Set[int] = set()


class Supervisor:
    def __init__(self, loop: Loop, store: OutputStore) -> None:
        self.loop = loop
        self.store = store
        self.processes: Dict[str, Process] = {}
        """Running, or over and not acknowledged."""
        self.forgotten: Dict[int, Process] = {}
        """Over and acknowledged, by mark: kept while something of them may be alive."""
        self._spawner = Spawner(Warden(self.adopt))
        self._children: Dict[int, Callable[[int], None]] = {}
        self._kills: List[_Kill] = []
        self._next_mark = accounts.MARK_BASE
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
        process = Process(self.loop, self.store, process_id, order, stdin=stdin, separate=separate, size=size)
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
            self.prune()

    def prune(self) -> Dict[int, int]:
        """Drops what left nothing alive; returns how much of everything else is."""
        running = [p.mark for p in self.processes.values()]
        counts = sweep.alive([*self.forgotten, *running])
        for mark in [mark for mark in self.forgotten if not counts[mark]]:
            self.forgotten.pop(mark).forget()
        return counts

    def find(self, process_id: str) -> Process:
        process = self.processes.get(process_id)
        if process is None:
            self.prune()
            process = next((p for p in self.forgotten.values() if p.id == process_id), None)
        if process is None:
            raise Refusal("process_not_found", f"there is no process {process_id!r}, or its result was acknowledged")
        return process

    # Killing

    def kill_mark(self, mark: int, done: Callable[[int, int], None]) -> None:
        self._kills.append(_Kill(mark, self.loop.now, done))
        if len(self._kills) == 1:
            self._sweep()

    def _sweep(self) -> None:
        try:
            killed = sweep.kill_pass({kill.mark for kill in self._kills}, spare=set(self._children))
        except OSError:
            self.loop.call_later(_SWEEP_RETRY_S, self._sweep)  # not even /proc could be read: that is no clean scan
            return
        self.loop.reap()
        unmarked = killed.get(0, set())
        over: List[_Kill] = []
        for kill in self._kills:
            pids = killed.get(kill.mark, set()) | unmarked
            kill.killed |= pids
            kill.left = pids
            kill.n_clean = 0 if pids else kill.n_clean + 1
            if kill.n_clean >= 2 or self.loop.now - kill.begun > _SWEEP_LIMIT_S:
                over.append(kill)
        self._kills = [kill for kill in self._kills if kill not in over]
        for kill in over:
            kill.done(len(kill.killed), len(kill.left))
        if self._kills:
            pause = 0.0 if all(kill.n_clean for kill in self._kills) else _SWEEP_PAUSE_S
            self.loop.call_later(pause, self._sweep)

    def close(self) -> None:
        """The end of the sandbox: as PID 1 everything goes with us; as a plain child, kill what we started."""
        if os.getpid() != 1:
            marks = {p.mark for p in self.processes.values()} | set(self.forgotten)
            for _ in range(100):
                if not sweep.kill_pass(marks, spare=set()):
                    break
