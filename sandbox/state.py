"""Where Boatyard keeps what must outlive its process on this machine. Standard library only: set-up needs it too."""

from collections.abc import Mapping
from pathlib import Path


def state_dir(environ: Mapping[str, str], *, uid: int) -> Path:
    """Where uv, the engine's data, its log, locks and the image cache live.

    `BOATYARD_STATE_DIR` if set; `/var/lib/boatyard` for root; else below `XDG_STATE_HOME`.
    """
    chosen = environ.get("BOATYARD_STATE_DIR")
    if chosen:
        return Path(chosen).absolute()
    if uid == 0:
        return Path("/var/lib/boatyard")
    home = environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path(environ.get("HOME", "/")) / ".local/state") / "boatyard"
