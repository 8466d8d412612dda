"""A process known by more than its number: pids are reused, and a pid file outlives its process and its boot."""

import os
import select
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process, for all time: its number, when the kernel started it, and in which boot."""

    pid: int
    started_ticks: int
    boot_id: str

    def to_json(self) -> dict[str, str | int]:
        return asdict(self)


def identify(pid: int, proc: Path = PROC) -> ProcessIdentity | None:
    """The identity of the process that has `pid` now; None if none has it or it is a zombie."""
    try:
        stat = (proc / str(pid) / "stat").read_text()
        boot_id = (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    # The name is in parentheses and may hold spaces and parentheses itself; the fields after it do not.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        return None
    return ProcessIdentity(pid=pid, started_ticks=int(fields[19]), boot_id=boot_id)


def is_alive(identity: ProcessIdentity, proc: Path = PROC) -> bool:
    """Whether this very process still runs; false for another one with its number."""
    return identify(identity.pid, proc) == identity


def program_of(pid: int, proc: Path = PROC) -> str:
    """The name of what `pid` runs, "" if it does not."""
    try:
        return (proc / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def stop(identity: ProcessIdentity, *, grace_s: float) -> bool:
    """End this very process: SIGTERM, and SIGKILL after `grace_s`.

    Returns: False if it had to be killed. A process that is gone already counts as ended.
    """
    try:
        fd = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return True
    try:
        # Identity is checked after the descriptor is held: from here on the number cannot be given to another.
        if not is_alive(identity):
            return True
        signal.pidfd_send_signal(fd, signal.SIGTERM)
        if select.select([fd], [], [], grace_s)[0]:
            return True
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        select.select([fd], [], [], grace_s)
        return False
    finally:
        os.close(fd)
