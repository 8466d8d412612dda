"""What a sandbox ran out of, as the kernel counts it for our cgroups; nothing where they cannot be seen from inside."""

import os
from typing import Dict, List, NamedTuple, Tuple

_FULL_BYTES = 256 << 10
"""Less room than a single write of most programs."""

_OOM_KILLS = (
    ("/sys/fs/cgroup/memory/memory.oom_control", b"oom_kill "),
    ("/sys/fs/cgroup/memory.events", b"oom_kill "),
)
_FORKS_REFUSED = (("/sys/fs/cgroup/pids/pids.events", b"max "), ("/sys/fs/cgroup/pids.events", b"max "))


class Counts(NamedTuple):
    oom_kills: int
    forks_refused: int


class _Counter:
    """One line of a file that stays open: a command must not wait for a path to be walked."""

    def __init__(self, places: Tuple[Tuple[str, bytes], ...]) -> None:
        self._fd = -1
        self._field = b""
        for path, field in places:
            try:
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            self._field = field
            break

    def read(self) -> int:
        if self._fd < 0:
            return 0
        try:
            for line in os.pread(self._fd, 4096, 0).splitlines():
                if line.startswith(self._field):
                    return int(line[len(self._field) :])
        except (OSError, ValueError):
            pass
        return 0


class Pressure:
    """Counts are of the whole sandbox: what two commands did at the same time is told of both."""

    def __init__(self, disks: List[str]) -> None:
        self._disks = disks
        self._oom_kills = _Counter(_OOM_KILLS)
        self._forks_refused = _Counter(_FORKS_REFUSED)

    def counts(self) -> Counts:
        return Counts(self._oom_kills.read(), self._forks_refused.read())

    def since(self, before: Counts) -> Dict[str, bool]:
        """What ran out since `before`, and whether a disk is full now."""
        now = self.counts()
        return {
            "memory": now.oom_kills > before.oom_kills,
            "processes": now.forks_refused > before.forks_refused,
            "disk": any(_is_full(path) for path in self._disks),
        }


def _is_full(path: str) -> bool:
    try:
        found = os.statvfs(path)
    except OSError:
        return False
    return found.f_blocks > 0 and (
        found.f_bavail * found.f_frsize < _FULL_BYTES or (found.f_files > 0 and not found.f_favail)
    )
