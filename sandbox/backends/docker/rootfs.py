"""A Debian root filesystem made from Debian's packages by mmdebstrap, so that no container registry is needed.

Owns the cache of finished ones in the state directory. Uses this machine's own package sources at run time.
"""

import os
import platform
import shutil
from collections import deque
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream

from sandbox.backends.docker import host_config
from sandbox.backends.docker.image_file import digest
from sandbox.errors import ImageBuildFailed

Progress = Callable[[str], None]

_TIMEOUT_S = 1800.0
_N_TAIL_LINES = 30
_N_KEPT = 3

# Kept small: no manuals, no translations, and documentation only where the licence asks for it.
_DPKG_OPTIONS = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
)
# What mmdebstrap copies from this machine or writes for its own use, and what differs from run to run.
_FORGET = (
    'rm -f "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/* "$1"/etc/apt/apt.conf.d/99mmdebstrap',
    'rm -f "$1"/etc/hostname && : > "$1"/etc/resolv.conf && : > "$1"/etc/machine-id',
    'find "$1"/var/log -type f -delete',
    'rm -rf "$1"/var/cache/ldconfig "$1"/var/cache/debconf/*-old "$1"/var/lib/dpkg/*-old',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rootfs:
    """A root filesystem to be: which Debian, which packages."""

    suite: str
    packages: tuple[str, ...]

    @property
    def digest(self) -> str:
        content = {"suite": self.suite, "packages": sorted(self.packages), "machine": platform.machine()}
        return digest({"rootfs": content})


async def make(rootfs: Rootfs, *, state: Path, progress: Progress, rebuild: bool = False) -> Path:
    """The tar file of this root filesystem, made if it is not in the cache.

    Raises: ImageBuildFailed without root, without mmdebstrap and apt, or if mmdebstrap fails.
    """
    directory = anyio.Path(state / "rootfs")
    await directory.mkdir(parents=True, exist_ok=True)
    tar = directory / f"{rootfs.digest[:12]}.tar"
    if not rebuild and await tar.exists():
        progress(f"==> root filesystem of {len(rootfs.packages)} packages: from {tar}")
        return Path(tar)
    if os.geteuid() != 0:
        raise ImageBuildFailed(
            "a Debian root filesystem can only be made by root: run this as root, or name an image the engine has"
            " as `base`",
            step="rootfs",
        )
    await _ensure_mmdebstrap(progress)
    progress(f"==> making a Debian root filesystem from {len(rootfs.packages)} packages and what they need")
    unfinished = directory / f"{rootfs.digest[:12]}.{os.getpid()}.new.tar"
    try:
        async with anyio.TemporaryDirectory(prefix="boatyard-rootfs-") as scratch:
            sources = await _sources(rootfs.suite, Path(scratch))
            argv = mmdebstrap_command(rootfs, Path(unfinished), sources, await apt_config())
            await run_step("rootfs", argv, progress=progress, env={**os.environ, "LC_ALL": "C.UTF-8"})
        await unfinished.rename(tar)
    finally:
        await unfinished.unlink(missing_ok=True)
    await anyio.to_thread.run_sync(_forget_old, Path(directory))
    return Path(tar)


def mmdebstrap_command(rootfs: Rootfs, tar: Path, sources: Path | None, apt_config_dump: str) -> list[str]:
    """The command line that makes `rootfs` into `tar`; without `sources` mmdebstrap uses its own mirror."""
    argv = ["mmdebstrap", "--mode=root", "--variant=apt", "--format=tar", f"--include={','.join(rootfs.packages)}"]
    argv += [f"--aptopt={option.rstrip(';')}" for option in host_config.apt_options(apt_config_dump)]
    argv += ['--aptopt=APT::Install-Recommends "false"']
    argv += [f"--dpkgopt={option}" for option in _DPKG_OPTIONS]
    argv += [f"--customize-hook={command}" for command in _FORGET]
    return [*argv, rootfs.suite, str(tar), *([str(sources)] if sources is not None else [])]


async def apt_config() -> str:
    """What `apt-config dump` says here; empty on a machine without apt."""
    if await anyio.to_thread.run_sync(shutil.which, "apt-config") is None:
        return ""
    with anyio.fail_after(30.0):
        done = await anyio.run_process(["apt-config", "dump"], check=False)
    return done.stdout.decode(errors="replace")


async def run_step(step: str, argv: Sequence[str], *, progress: Progress, env: Mapping[str, str]) -> None:
    """Run a tool of this machine, handing over what it prints.

    Raises: ImageBuildFailed with the last lines if it fails or takes half an hour.
    """
    tail: deque[str] = deque(maxlen=_N_TAIL_LINES)

    def keep(line: str) -> None:
        tail.append(line)
        progress(line)

    with anyio.move_on_after(_TIMEOUT_S) as scope:
        async with await anyio.open_process(argv, stdin=None, stderr=-2, env=env) as process:
            assert process.stdout is not None
            async for line in _lines(process.stdout):
                keep(line)
            code = await process.wait()
        if code == 0:
            return
        raise ImageBuildFailed(f"step {step} failed with exit code {code}:\n" + "\n".join(tail), step=step)
    if scope.cancelled_caught:
        raise ImageBuildFailed(f"step {step} took longer than {_TIMEOUT_S:.0f} s:\n" + "\n".join(tail), step=step)


async def _lines(stream: ByteReceiveStream) -> AsyncIterable[str]:
    rest = b""
    async for chunk in stream:
        *whole, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
        for line in whole:
            if line.strip():
                yield line.decode(errors="replace")
    if rest.strip():
        yield rest.decode(errors="replace")


async def _sources(suite: str, scratch: Path) -> Path | None:
    stanzas = await anyio.to_thread.run_sync(host_config.read_sources, suite)
    if not stanzas:
        return None
    file = anyio.Path(scratch / "host.sources")
    await file.write_text(host_config.render_sources(stanzas))
    return Path(file)


async def _ensure_mmdebstrap(progress: Progress) -> None:
    if await anyio.to_thread.run_sync(shutil.which, "mmdebstrap") is not None:
        return
    if await anyio.to_thread.run_sync(shutil.which, "apt-get") is None:
        raise ImageBuildFailed(
            "mmdebstrap is needed to make a Debian root filesystem and there is no apt-get here to install it with:"
            " install mmdebstrap, or name an image the engine has as `base`",
            step="rootfs",
        )
    progress("==> installing mmdebstrap with apt: it makes the root filesystem from Debian's packages")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends", "mmdebstrap"]
    try:
        await run_step("mmdebstrap", install, progress=progress, env=env)
    except ImageBuildFailed:
        await run_step("mmdebstrap", ["apt-get", "update"], progress=progress, env=env)
        await run_step("mmdebstrap", install, progress=progress, env=env)


def _forget_old(directory: Path) -> None:
    """Each is some 200 MB: the newest few are enough to fill a new engine quickly."""
    by_age = sorted(directory.glob("????????????.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in by_age[_N_KEPT:]:
        path.unlink(missing_ok=True)
