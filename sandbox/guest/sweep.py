"""Finding and killing what a command started, whatever it did to hide. Forks nothing, so it works in a fork bomb."""

import os
import signal
from typing import Dict, Iterable, List, NamedTuple, Set

from sandbox.guest.accounts import MARK_BASE, MARK_END


class Seen(NamedTuple):
    pid: int
    parent: int
    mark: int
    """The command's mark; 0 where there is none."""


def scan() -> List[Seen]:
    """Every live process but us. Zombies are left out: they run nothing, and reaping is the loop's."""
    own = os.getpid()
    found: List[Seen] = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != own:
            try:
                with open("/proc/" + name + "/status", "rb", buffering=0) as file:
                    status = file.read(4096)
            except OSError:
                continue
            if b"\nState:\tZ" not in status and b"\nState:\tX" not in status:
                found.append(Seen(int(name), _number(status, b"\nPPid:"), _mark(status)))
    return found


def _number(status: bytes, field: bytes) -> int:
    at = status.find(field)
    return int(status[at + len(field) : status.find(b"\n", at + 1)]) if at >= 0 else 0


def _mark(status: bytes) -> int:
    at = status.find(b"\nGroups:")
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


def kill_pass(marks: Set[int], spare: Set[int]) -> Dict[int, Set[int]]:
    """One scan; SIGKILL to what carries one of the marks, and to what carries none though it descends from us.

    Returns the pids by mark, 0 for none. `spare` are our own waiting children. A process that an administrator put
    here with `docker exec` descends from nobody in this namespace and is left alone.
    """
    processes = scan()
    parents = {seen.pid: seen.parent for seen in processes}
    killed: Dict[int, Set[int]] = {}
    for seen in processes:
        if seen.mark in marks or (not seen.mark and seen.pid not in spare and _is_ours(seen.pid, parents)):
            try:
                os.kill(seen.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed.setdefault(seen.mark, set()).add(seen.pid)
    return killed


def _is_ours(pid: int, parents: Dict[int, int]) -> bool:
    own = os.getpid()
    for _ in range(len(parents) + 1):
        pid = parents.get(pid, 0)
        if pid == own:
            return True
        if pid == 0:
            return False
    return False
