"""Finding and killing what a command started, whatever it did to hide. Forks nothing, so it works in a fork bomb."""

import contextlib
import os
import signal
from typing import Dict, Iterable, List, NamedTuple, Set

from sandbox.guest.accounts import MARK_BASE, MARK_END

_N_RESERVED = 2
_BOMB = 64
_MAX_STOPS = 20


class Seen(NamedTuple):
    pid: int
    parent: int
    mark: int
    """The command's mark; 0 where there is none."""
    is_stopped: bool


_reserve: List[int] = []
"""Descriptors kept back, so that a scan can be made when a command's files have used up all others."""


def reserve() -> None:
    """Keeps descriptors back. To be called before any command can use them up."""
    with contextlib.suppress(OSError):
        while len(_reserve) < _N_RESERVED:
            _reserve.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))


def scan() -> List[Seen]:
    """Every live process but us. The dead that wait to be reaped are left out: they run nothing."""
    while _reserve:
        with contextlib.suppress(OSError):  # a child of ours that closed everything has but copies of the numbers
            os.close(_reserve.pop())
    try:
        return _scan()
    finally:
        reserve()


def _scan() -> List[Seen]:
    own = os.getpid()
    found: List[Seen] = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != own:
            try:
                with open("/proc/" + name + "/status", "rb", buffering=0) as file:
                    status = file.read(4096)
            except (FileNotFoundError, ProcessLookupError):
                continue
            if not _is_dead(status):
                stopped = _state(status) == b"T"
                found.append(Seen(int(name), _number(status, b"\nPPid:"), _mark(status), stopped))
    return found


def _is_dead(status: bytes) -> bool:
    """A zombie with threads left is not: its first thread ended, the others run on."""
    return _state(status) in (b"Z", b"X") and _number(status, b"\nThreads:") <= 1


def _state(status: bytes) -> bytes:
    # The last one: a program's name comes first, and is what the program likes it to be.
    at = status.rfind(b"\nState:\t")
    return status[at + 8 : at + 9]


def _number(status: bytes, field: bytes) -> int:
    at = status.rfind(field)
    return int(status[at + len(field) : status.find(b"\n", at + 1)]) if at >= 0 else 0


def _mark(status: bytes) -> int:
    at = status.rfind(b"\nGroups:")
    if at < 0:
        return 0
    for group in status[at + 8 : status.find(b"\n", at + 1)].split():
        if MARK_BASE <= int(group) < MARK_END:
            return int(group)
    return 0


def alive(marks: Iterable[int]) -> Dict[int, int]:
    """How many processes carry each of these marks."""
    counts = dict.fromkeys(marks, 0)
    for seen in scan():
        if seen.mark in counts:
            counts[seen.mark] += 1
    return counts


def stopped(mark: int) -> List[int]:
    """The pids of what carries this mark and was stopped by a signal."""
    return [seen.pid for seen in scan() if seen.mark == mark and seen.is_stopped]


def kill_pass(marks: Set[int], spare: Set[int]) -> Dict[int, Set[int]]:
    """One scan; SIGKILL to what carries one of the marks, and to what carries none though it descends from us.

    Returns the pids by mark, 0 for none. `spare` are our own waiting children. A process that an administrator put
    here with `docker exec` descends from nobody in this namespace and is left alone.
    """
    victims = _victims(marks, spare)
    if len(victims) > _BOMB:
        # Killed one by one they would fork into the room their dead make; stopped, they keep it.
        for _ in range(_MAX_STOPS):
            _signal(victims, signal.SIGSTOP)
            again = _victims(marks, spare)
            if {seen.pid for seen in again} <= {seen.pid for seen in victims}:
                break
            victims = again
    _signal(victims, signal.SIGKILL)
    killed: Dict[int, Set[int]] = {}
    for seen in victims:
        killed.setdefault(seen.mark, set()).add(seen.pid)
    return killed


def _victims(marks: Set[int], spare: Set[int]) -> List[Seen]:
    processes = scan()
    parents = {seen.pid: seen.parent for seen in processes}
    return [
        seen
        for seen in processes
        if seen.mark in marks or (not seen.mark and seen.pid not in spare and _is_ours(seen.pid, parents))
    ]


def _signal(victims: List[Seen], signum: int) -> None:
    for seen in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(seen.pid, signum)


def _is_ours(pid: int, parents: Dict[int, int]) -> bool:
    own = os.getpid()
    for _ in range(len(parents) + 1):
        pid = parents.get(pid, 0)
        if pid == own:
            return True
        if pid == 0:
            return False
    return False
