"""Disks of a fixed size: one file each, with a file system in it, mounted by a loop device.

Whoever fills one gets ENOSPC and nobody else notices: the room on the host is reserved when it is made, not promised.
Needs root. Everything here blocks, for some 20 ms; call it in a thread.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from sandbox.errors import CannotCreate

_TIMEOUT_S = 60.0
_BUSY_TRIES = 20
_BUSY_PAUSE_S = 0.05
_INODE_EVERY_BYTES = 4096
_OPTIONS = "loop,nosuid,nodev,noatime,discard"
_PATH = f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"


class Volumes:
    """Those below `root`: `<name>.img` is the disk, the directory `<name>` where it is mounted."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, name: str) -> Path:
        return self._root / name

    def make(self, name: str, n_bytes: int, directories: Mapping[str, int]) -> Path:
        """A mounted disk with these directories in it, each with its owner's uid. Raises: CannotCreate; nothing stays.

        The file system's own needs are on top of `n_bytes`, as near as can be told before.
        """
        image = self._image(name)
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            _reserve(image, n_bytes + _overhead(n_bytes))
            _run("mkfs.ext4", "-q", "-F", "-m0", "-i", str(_INODE_EVERY_BYTES), *_FEATURES, str(image))
            path = self.mount(name)
            for directory, uid in directories.items():
                (path / directory).mkdir(mode=0o755)
                os.chown(path / directory, uid, uid)
            (path / "lost+found").rmdir()
        except BaseException as error:
            self.remove(name)
            if isinstance(error, OSError | subprocess.SubprocessError):
                raise _cannot(error, n_bytes) from error
            raise
        return path

    def mount(self, name: str) -> Path:
        """Where it is. Idempotent."""
        path = self.path(name)
        path.mkdir(mode=0o700, exist_ok=True)
        if not path.is_mount():
            _run("mount", "-o", _OPTIONS, str(self._image(name)), str(path))
        return path

    def unmount(self, name: str) -> None:
        """Idempotent. What still uses it keeps it alive until it is gone; nobody else can see it."""
        path = self.path(name)
        for _ in range(_BUSY_TRIES):
            if not path.is_mount():
                return
            with contextlib.suppress(subprocess.CalledProcessError):
                _run("umount", str(path))
                continue
            time.sleep(_BUSY_PAUSE_S)
        with contextlib.suppress(subprocess.CalledProcessError):
            _run("umount", "--lazy", str(path))

    def remove(self, name: str) -> None:
        """Idempotent."""
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            self.unmount(name)
        with contextlib.suppress(OSError):
            self.path(name).rmdir()
        self._image(name).unlink(missing_ok=True)

    def remove_all_but(self, alive: Iterable[str], *, older_than: float) -> None:
        """Those whose sandboxes are gone; a younger one's may not be there yet."""
        keep = set(alive)
        for name in self.names():
            with contextlib.suppress(OSError):
                if name not in keep and self._image(name).stat().st_mtime < older_than:
                    self.remove(name)

    def names(self) -> list[str]:
        return sorted(path.stem for path in self._root.glob("*.img")) if self._root.is_dir() else []

    def _image(self, name: str) -> Path:
        return self._root / f"{name}.img"


_FEATURES = ("-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard")
"""A journal takes 64 MiB and guards what nobody needs after a crash of the host: the sandbox is gone then too."""


def _overhead(n_bytes: int) -> int:
    """Inode tables (256 bytes each), bitmaps, and what ext4 keeps back for itself (a fiftieth, 16 MiB at most)."""
    return n_bytes // _INODE_EVERY_BYTES * 256 + n_bytes // 128 + min(n_bytes // 50, 16 << 20) + (2 << 20)


def _reserve(image: Path, n_bytes: int) -> None:
    descriptor = os.open(image, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, n_bytes)
    finally:
        os.close(descriptor)


def _run(program: str, *args: str) -> None:
    found = shutil.which(program, path=_PATH)
    if found is None:
        raise FileNotFoundError(f"there is no {program} on this machine")
    subprocess.run([found, *args], check=True, capture_output=True, timeout=_TIMEOUT_S)


def _cannot(error: OSError | subprocess.SubprocessError, n_bytes: int) -> CannotCreate:
    said = getattr(error, "stderr", None)
    reason = said.decode(errors="replace").strip().splitlines()[-1] if said else str(error)
    advice = "run as root on the engine's machine, ask for a smaller disk_bytes, or accept `disk_in_memory`"
    return CannotCreate(f"a disk of {n_bytes} bytes cannot be made ({reason}); {advice}")
