"""What a sandbox's container is made of: the engine's configuration for a spec, and back from its labels."""

import os
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from sandbox.backends.docker.rendezvous import INSIDE
from sandbox.errors import CannotCreate
from sandbox.types import (
    HOME,
    KIB,
    MIB,
    SHM_BYTES,
    WORKSPACE,
    Limits,
    Mount,
    SandboxId,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
    Weakness,
)

MARK = "boatyard"
"""On every container of ours, with the value 1. Clean-up goes by it."""
ID, KEY, IMAGE, DIGEST, GUEST, WEAKER = (
    f"{MARK}.{name}" for name in ("id", "key", "image", "image.digest", "guest", "weaker")
)
USER_PREFIX = f"{MARK}.user."
"""Before a caller's own labels, so that they cannot be mistaken for ours."""

GUEST_PATH = "/usr/local/lib/boatyard/guest.pyz"
CAPABILITIES = ("SETUID", "SETGID", "KILL", "CHOWN", "DAC_OVERRIDE", "FOWNER")
"""The guest's. Commands have none."""

UID = 1000
"""Of commands, and of what they may write to."""
DISK = {str(WORKSPACE): "workspace", str(HOME): "home"}
"""What lies on the sandbox's disk: the path inside, and the directory of the disk."""
_DISK_SLACK_BYTES = 64 * MIB
_KERNELS = tuple(map(PurePosixPath, ("/proc", "/sys", "/dev")))
_OURS = (PurePosixPath(GUEST_PATH).parent, PurePosixPath(INSIDE).parent.parent)
ENGINE_SOCKET = "whoever reaches the engine has this machine"
ENGINE_DATA = "the engine keeps every container's files and keys there"
_SECRETS: Mapping[Path, str] = {
    **{Path(run, "docker.sock"): ENGINE_SOCKET for run in ("/run", "/var/run")},
    **{Path(run, name): ENGINE_DATA for run in ("/run", "/var/run", "/var/lib") for name in ("docker", "containerd")},
    Path("/proc"): "through it every file of this machine can be reached",
}
"""What no sandbox may see of an engine in its usual places, and why."""
_STATES = {
    "created": SandboxState.CREATED,
    "running": SandboxState.RUNNING,
    "restarting": SandboxState.RUNNING,
    "paused": SandboxState.PAUSED,
}


def name_of(sandbox_id: SandboxId) -> str:
    return f"boatyard-{sandbox_id}"


def labels(
    sandbox_id: SandboxId, spec: SandboxSpec, *, key: bytes, digest: str, guest_hash: str, weaker: Iterable[Weakness]
) -> dict[str, str]:
    ours = {MARK: "1", ID: sandbox_id, KEY: key.hex(), IMAGE: spec.image, DIGEST: digest, GUEST: guest_hash}
    ours[WEAKER] = ",".join(sorted(weaker))
    return {**{USER_PREFIX + name: value for name, value in spec.labels.items()}, **ours}


def label_filter(wanted: Mapping[str, str]) -> list[str]:
    return [f"{MARK}=1", *(f"{USER_PREFIX}{name}={value}" for name, value in wanted.items())]


def checked_mounts(mounts: Sequence[Mount], *, hidden: Mapping[Path, str], is_local: bool) -> tuple[Mount, ...]:
    """The mounts by the real path of their sources, so that what was checked is what the engine is told to mount.

    `hidden` is what no sandbox may see besides an engine in its usual places, and why. Asks the file system where
    symlinks lead, unless the engine is on another machine: there a path is judged as it is spelled.

    Raises: CannotCreate for one that would hide the guest, change what the kernel shows, show what is hidden, or
        whose source cannot be followed.
    """
    secrets = {**_SECRETS, **hidden}
    if is_local:
        secrets.update({Path(os.path.realpath(path)): why for path, why in secrets.items()})
    return tuple(_checked(mount, secrets, is_local=is_local) for mount in mounts)


def _checked(mount: Mount, secrets: Mapping[Path, str], *, is_local: bool) -> Mount:
    target = _real(mount.target)
    if any(target.is_relative_to(path) for path in _KERNELS):
        raise CannotCreate(f"nothing can be mounted on {mount.target}: it belongs to the kernel")
    if any(target.is_relative_to(path) or path.is_relative_to(target) for path in _OURS):
        raise CannotCreate(f"a mount on {mount.target} would hide what the sandbox itself needs; choose another path")
    try:
        # Strictly: what we may not look into could be a link, and the engine would follow it.
        source = Path(os.path.realpath(mount.source, strict=True) if is_local else os.path.normpath(mount.source))
    except OSError as error:
        raise CannotCreate(f"{mount.source} cannot be mounted: {error.strerror}") from error
    for path, why in secrets.items():
        if source.is_relative_to(path) or path.is_relative_to(source):
            raise CannotCreate(f"{mount.source} cannot be mounted: it would show {path} to the sandbox, and {why}")
    return mount.model_copy(update={"source": source})


def _real(target: PurePosixPath) -> PurePosixPath:
    """Without a second slash in front, and without the one symlink that every distribution has on the way to us."""
    path = PurePosixPath("/", *target.parts[1:])
    return PurePosixPath("/", *path.parts[2:]) if path.is_relative_to("/var/run") else path


def config(
    spec: SandboxSpec,
    *,
    image: str,
    guest: str,
    seccomp: str,
    disk: Path | None,
    meeting: str | None = None,
    container_labels: Mapping[str, str],
) -> dict[str, Any]:
    """The body of the engine's create call.

    `seccomp` is the profile's text; `disk` is where the host has mounted the one that holds `DISK`, None if it is to be
    in memory; `meeting` is the host's directory for the shorter way.
    """
    taken = {str(_real(mount.target)) for mount in spec.mounts}
    ours = [_bind(guest, GUEST_PATH, read_only=True)]
    if meeting is not None:
        ours.append(_bind(meeting, INSIDE, read_only=True))
    if disk is not None:
        ours += [_bind(str(disk / name), path, read_only=False) for path, name in DISK.items() if path not in taken]
        taken.update(DISK)
    limits = spec.limits
    # Above what any file system holds, so that whoever fills one meets ENOSPC; below what makes a sparse file a trap.
    largest = 2 * max(limits.disk_bytes, limits.tmp_bytes, limits.output_bytes)
    return {
        "Image": image,
        "Entrypoint": ["python3", "-I", "-S", GUEST_PATH],
        "Cmd": [],
        "User": "0:0",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Labels": dict(container_labels),
        "OpenStdin": True,
        "StdinOnce": False,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "NetworkDisabled": True,
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
        "HostConfig": {
            "AutoRemove": spec.orphan_after_s is not None,
            "NetworkMode": "none",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "CapAdd": list(CAPABILITIES),
            "SecurityOpt": ["no-new-privileges", f"seccomp={seccomp}"],
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "Sysctls": {"net.ipv4.ip_unprivileged_port_start": "1024"},
            "ShmSize": SHM_BYTES,
            "Memory": limits.memory_bytes,
            "MemorySwap": limits.memory_bytes,
            "NanoCpus": int(limits.cpus * 1e9),
            "PidsLimit": limits.n_processes,
            "Ulimits": [
                {"Name": "nofile", "Soft": limits.n_open_files, "Hard": limits.n_open_files},
                {"Name": "core", "Soft": 0, "Hard": 0},
                {"Name": "fsize", "Soft": largest, "Hard": largest},
            ],
            "LogConfig": {"Type": "none"},
            "Tmpfs": _tmpfs(limits, without=taken),
            "Mounts": [
                *ours,
                *(_bind(str(m.source), str(m.target), read_only=m.read_only) for m in spec.mounts),
            ],
        },
    }


def _tmpfs(limits: Limits, *, without: Set[str]) -> dict[str, str]:
    def sized(n_bytes: int, mode: str, uid: int = 0) -> str:
        # An inode costs kernel memory that no byte limit sees.
        n_inodes = max(n_bytes // (4 * KIB), 1024)
        return f"rw,exec,nosuid,nodev,size={n_bytes},nr_inodes={n_inodes},mode={mode},uid={uid},gid={uid}"

    all_of_them = {
        "/tmp": sized(limits.tmp_bytes, "1777"),
        "/run": sized(limits.output_bytes + MIB, "0755"),
        str(WORKSPACE): sized(limits.disk_bytes * 2 // 3, "0755", UID),
        str(HOME): sized(limits.disk_bytes // 3, "0755", UID),
    }
    return {path: options for path, options in all_of_them.items() if path not in without}


def _bind(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": source,
        "Target": target,
        "ReadOnly": read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }


def check_disk(sizes: Mapping[str, int], spec: SandboxSpec) -> None:
    """Whether what the guest sees is what was made for it: the engine may have another view of the host's mounts.

    Raises: CannotCreate.
    """
    for path in DISK:
        if path in {str(_real(mount.target)) for mount in spec.mounts}:
            continue
        size = sizes.get(path, 0)
        if not 0 < size <= spec.limits.disk_bytes * 1.05 + _DISK_SLACK_BYTES:
            raise CannotCreate(
                f"{path} has {size} bytes inside the sandbox, not the {spec.limits.disk_bytes} of its disk: the engine"
                " does not see the mounts of this process; run both on one machine and in one mount namespace, or"
                " accept `disk_in_memory`"
            )


def guest_config(spec: SandboxSpec) -> dict[str, Any]:
    """What the guest is told in the first hello."""
    return {
        "env": dict(spec.env),
        "output_bytes": spec.limits.output_bytes,
        "orphan_after_s": spec.orphan_after_s,
        "disks": list(DISK),
    }


def info(row: Mapping[str, Any]) -> SandboxInfo:
    """From a row of the engine's container list."""
    all_labels: Mapping[str, str] = row.get("Labels") or {}
    return SandboxInfo(
        id=SandboxId(all_labels.get(ID, "")),
        state=_STATES.get(str(row.get("State")), SandboxState.ENDED),
        image=all_labels.get(IMAGE, ""),
        image_digest=all_labels.get(DIGEST, ""),
        labels={k.removeprefix(USER_PREFIX): v for k, v in all_labels.items() if k.startswith(USER_PREFIX)},
        created_at=datetime.fromtimestamp(int(row.get("Created", 0)), UTC),
        weaker=frozenset(Weakness(name) for name in all_labels.get(WEAKER, "").split(",") if name),
    )
