"""What every test may use. Sandboxes of a run carry its label, and none may be left when it is over."""

import os
import subprocess
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from pathlib import Path

import pytest

from sandbox.backends.docker import DockerBackend
from sandbox.client.sandbox import GuestSandbox
from sandbox.types import SandboxSpec
from sandbox.volumes import Volumes

RUN_LABEL = "test-run"
RUN = f"{os.getpid()}-{os.urandom(3).hex()}"
DISK_BYTES = 512 << 20
"""Less than the default: runs side by side would need all of a small machine's."""
ORPHAN_AFTER_S = 60.0
"""A run that is killed with SIGKILL leaves sandboxes behind; they end themselves after so long."""


_disks: list[Path] = []
"""Made by this process; another run's are its own business."""


@pytest.fixture(scope="session", autouse=True)
def remember_disks() -> Generator[None]:
    make = Volumes.make

    def remembering(volumes: Volumes, name: str, n_bytes: int, directories: Mapping[str, int]) -> Path:
        _disks.append(volumes.path(name))
        return make(volumes, name, n_bytes, directories)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Volumes, "make", remembering)
        yield


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
async def docker_backend() -> AsyncGenerator[DockerBackend]:
    async with DockerBackend.open() as backend:
        yield backend
        for info in await backend.list({RUN_LABEL: RUN}):
            await backend.destroy(info.id)


@pytest.fixture(scope="session")
def spec() -> Callable[..., SandboxSpec]:
    """A spec with this run's label; keyword arguments as for `SandboxSpec`."""

    def make(**fields: object) -> SandboxSpec:
        ours = {"labels": {RUN_LABEL: RUN}, "orphan_after_s": ORPHAN_AFTER_S, "limits": {"disk_bytes": DISK_BYTES}}
        return SandboxSpec.model_validate({**ours, **fields})

    return make


@pytest.fixture(scope="module")
async def shared_sandbox(
    docker_backend: DockerBackend, spec: Callable[..., SandboxSpec]
) -> AsyncGenerator[GuestSandbox]:
    """One sandbox for a module's tests that do not mind each other."""
    async with await docker_backend.create(spec()) as sandbox:
        yield sandbox
    await docker_backend.destroy(sandbox.id)


@pytest.fixture
async def sandbox(docker_backend: DockerBackend, spec: Callable[..., SandboxSpec]) -> AsyncGenerator[GuestSandbox]:
    """A fresh sandbox. Whoever a test lets take it over, in the end it goes."""
    async with await docker_backend.create(spec()) as sandbox:
        yield sandbox
    await docker_backend.destroy(sandbox.id)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run that left something of its own behind, however it ended."""
    label = f"label=boatyard.user.{RUN_LABEL}={RUN}"
    left = {
        "containers": _said("docker", "ps", "-aq", "--filter", label),
        "volumes": _said("docker", "volume", "ls", "-q", "--filter", "label=boatyard"),
        "processes": _said("pgrep", "-P", str(os.getpid()), "-f", "watchdog_helper"),
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if "boatyard-test" in line],
        "disks": [str(path) for path in _disks if path.exists()],
    }
    if any(left.values()):
        session.exitstatus = 1
        raise pytest.UsageError(f"the run left something behind: {left}")


def _said(*argv: str) -> list[str]:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        return []
    return done.stdout.split() if done.returncode == 0 else []
