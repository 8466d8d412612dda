"""Debian packages: which are missing, and how to get them without letting them start services."""

import contextlib
import os
import shutil
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from gateway.bootstrap import say
from gateway.bootstrap.failure import Exit, SetupFailed

# What must be on PATH, and the Debian package that brings it.
ENGINE_PROGRAMS = {
    "dockerd": "docker.io",
    "containerd": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "mkfs.ext4": "e2fsprogs",
}
IMAGE_PROGRAMS = {"mmdebstrap": "mmdebstrap"}

_POLICY = Path("/usr/sbin/policy-rc.d")
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


def search_path() -> str:
    """PATH with the sbin directories, which a plain user's and some CI's PATH lack."""
    return f"{os.environ.get('PATH', '/usr/bin:/bin')}:{_SBIN}"


def find_program(name: str) -> str | None:
    """Where the program `name` is, or None."""
    return shutil.which(name, path=search_path())


def missing_packages(programs: dict[str, str], find: Callable[[str], str | None]) -> list[str]:
    """The Debian packages to install so that every one of `programs` is there."""
    return [package for program, package in programs.items() if find(program) is None]


def ensure_can_install(packages: Sequence[str], why: str, *, uid: int, apt_get: str | None) -> None:
    """Say what a person has to do where we cannot install.

    Raises: SetupFailed without root, or without apt.
    """
    names = " ".join(packages)
    if apt_get is None:
        raise SetupFailed(
            Exit.UNSUPPORTED_SYSTEM,
            f"{names} (Debian's names) must be installed, because {why}, and there is no apt-get here: install with"
            " this system's own package manager, then run this again",
        )
    if uid != 0:
        raise SetupFailed(
            Exit.NEEDS_ROOT,
            f"{names} must be installed, because {why}: run `sudo apt-get install --no-install-recommends {names}`, or"
            " run this as root",
        )


def apt_install(step: str, packages: Sequence[str], why: str, *, logs: Path) -> None:
    """Install `packages` with no recommended ones and with no service started.

    Raises: SetupFailed without root or apt, or if apt fails (no network, most often).
    """
    apt_get = find_program("apt-get")
    ensure_can_install(packages, why, uid=os.geteuid(), apt_get=apt_get)
    assert apt_get is not None
    names = " ".join(packages)
    say.line(step, f"installing {names} with apt: {why}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "PATH": search_path(), "LC_ALL": "C.UTF-8"}
    lock = ["-o", "DPkg::Lock::Timeout=300"]
    install = [apt_get, *lock, "install", "-y", "--no-install-recommends", *packages]
    with _no_services():
        # The lists may be missing or old; a first try without an update saves a minute where they are good.
        code, _ = say.run_quietly(step, install, log=logs / "apt.log", env=env)
        if code != 0:
            say.run_quietly(step, [apt_get, *lock, "update"], log=logs / "apt-update.log", env=env)
            code, output = say.run_quietly(step, install, log=logs / "apt.log", env=env)
            if code != 0:
                raise SetupFailed(
                    Exit.DOWNLOAD_FAILED,
                    f"apt could not install {names}; check the network and the package sources, then run this again",
                    detail=say.tail(output),
                )


@contextlib.contextmanager
def _no_services() -> Generator[None]:
    """Deny package scripts the start of services, so that apt does not start an engine of its own."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)
