"""The mounts that an engine leaves behind: they would keep its directory from being removed."""

import re
import subprocess
from pathlib import Path

_MOUNTINFO = Path("/proc/self/mountinfo")
_MAX_STACKED = 16


def remove_leftovers(directory: Path) -> None:
    """Unmounts what the engine of `directory` mounted for itself. What is in use, by containers that run on, stays."""
    for path in (directory / "run/netns/default", directory / "data"):
        for _ in range(_MAX_STACKED):
            if not is_leftover(path, _MOUNTINFO.read_text()):
                break
            done = subprocess.run(["umount", str(path)], capture_output=True, timeout=30, check=False)
            if done.returncode != 0:
                break


def is_leftover(path: Path, mountinfo: str) -> bool:
    """Whether an engine mounted something there: the name of its network namespace, or a directory onto itself.

    An engine that was killed once forgets that the latter is its own doing. Another disk, or another directory, is
    what a person mounted there.
    """
    rows = [line.split(" ") for line in mountinfo.splitlines()]
    mounted = {row[0]: (row[2], _unescaped(row[3]), _unescaped(row[4])) for row in rows}
    parents = {row[0]: row[1] for row in rows}
    for number, (device, root, where) in reversed(mounted.items()):
        if where == str(path):
            if root.startswith("net:["):
                return True
            above = mounted.get(parents[number])
            if above is None or above[0] != device:
                return False
            return Path(root) == Path(above[1]) / path.relative_to(above[2])
    return False


def _unescaped(field: str) -> str:
    """The kernel writes spaces and the like as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
