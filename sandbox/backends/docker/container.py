"""What a sandbox's container is made of: the engine's configuration for a spec, and back from its labels."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sandbox.backends.docker.rendezvous import INSIDE
from sandbox.types import (
    HOME,
    KIB,
    MIB,
    SHM_BYTES,
    WORKSPACE,
    Limits,
    SandboxId,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
)

MARK = "boatyard"
"""On every container of ours, with the value 1. Clean-up goes by it."""
ID, KEY, IMAGE, DIGEST, GUEST = (f"{MARK}.{name}" for name in ("id", "key", "image", "image.digest", "guest"))
USER_PREFIX = f"{MARK}.user."
"""Before a caller's own labels, so that they cannot be mistaken for ours."""

GUEST_PATH = "/usr/local/lib/boatyard/guest.pyz"
CAPABILITIES = ("SETUID", "SETGID", "KILL", "CHOWN", "DAC_OVERRIDE", "FOWNER")
"""The guest's. Commands have none."""

_UID = 1000
_STATES = {
    "created": SandboxState.CREATED,
    "running": SandboxState.RUNNING,
    "restarting": SandboxState.RUNNING,
    "paused": SandboxState.PAUSED,
}


def name_of(sandbox_id: SandboxId) -> str:
    return f"boatyard-{sandbox_id}"


def labels(sandbox_id: SandboxId, spec: SandboxSpec, *, key: bytes, digest: str, guest_hash: str) -> dict[str, str]:
    ours = {MARK: "1", ID: sandbox_id, KEY: key.hex(), IMAGE: spec.image, DIGEST: digest, GUEST: guest_hash}
    return {**{USER_PREFIX + name: value for name, value in spec.labels.items()}, **ours}


def label_filter(wanted: Mapping[str, str]) -> list[str]:
    return [f"{MARK}=1", *(f"{USER_PREFIX}{name}={value}" for name, value in wanted.items())]


def config(
    spec: SandboxSpec, *, image: str, guest: str, meeting: str | None, container_labels: Mapping[str, str]
) -> dict[str, Any]:
    """The body of the engine's create call. `meeting` is the host's directory for the shorter way."""
    ours = [_bind(guest, GUEST_PATH, read_only=True)]
    if meeting is not None:
        ours.append(_bind(meeting, INSIDE, read_only=True))
    limits = spec.limits
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
            "SecurityOpt": ["no-new-privileges"],
            "IpcMode": "private",
            "ShmSize": SHM_BYTES,
            "Memory": limits.memory_bytes,
            "MemorySwap": limits.memory_bytes,
            "NanoCpus": int(limits.cpus * 1e9),
            "PidsLimit": limits.n_processes,
            "Ulimits": [
                {"Name": "nofile", "Soft": limits.n_open_files, "Hard": limits.n_open_files},
                {"Name": "core", "Soft": 0, "Hard": 0},
            ],
            "LogConfig": {"Type": "none"},
            "Tmpfs": _tmpfs(limits),
            "Mounts": [
                *ours,
                *(_bind(str(m.source), str(m.target), read_only=m.read_only) for m in spec.mounts),
            ],
        },
    }


def _tmpfs(limits: Limits) -> dict[str, str]:
    def sized(n_bytes: int, mode: str, uid: int = 0, *, inodes: bool = True) -> str:
        # An inode costs kernel memory that no byte limit sees.
        n_inodes = max(n_bytes // (4 * KIB), 1024)
        return f"rw,exec,nosuid,nodev,size={n_bytes},nr_inodes={n_inodes},mode={mode},uid={uid},gid={uid}"

    return {
        "/tmp": sized(limits.tmp_bytes, "1777"),
        "/run": sized(limits.output_bytes + MIB, "0755"),
        str(WORKSPACE): sized(limits.workspace_bytes, "0755", _UID),
        str(HOME): sized(limits.home_bytes, "0755", _UID),
    }


def _bind(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": source,
        "Target": target,
        "ReadOnly": read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }


def guest_config(spec: SandboxSpec) -> dict[str, Any]:
    """What the guest is told in the first hello."""
    return {
        "env": dict(spec.env),
        "output_bytes": spec.limits.output_bytes,
        "orphan_after_s": spec.orphan_after_s,
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
    )
