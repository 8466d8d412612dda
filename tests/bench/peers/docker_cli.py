"""`docker run`, with the flags that make its container as closed as one of ours."""

import asyncio
import shutil

from sandbox.backends.docker import container as ours
from sandbox.backends.docker import seccomp
from sandbox.types import SHM_BYTES, SandboxSpec
from tests.bench.row import NotMeasured


def flags(spec: SandboxSpec, image: str) -> list[str]:
    """From the same configuration that our backend sends to the engine."""
    host = ours.config(spec, image=image, guest="/nowhere", seccomp="", disk=None, container_labels={})["HostConfig"]
    tmpfs = [f"--tmpfs={target}:{options}" for target, options in host["Tmpfs"].items()]
    limits = spec.limits
    return [
        "--network=none",
        "--read-only",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        f"--security-opt=seccomp={seccomp.path()}",
        "--user=1000:1000",
        "--ipc=private",
        f"--shm-size={SHM_BYTES}",
        f"--memory={limits.memory_bytes}",
        f"--memory-swap={limits.memory_bytes}",
        f"--cpus={limits.cpus}",
        f"--pids-limit={limits.n_processes}",
        f"--ulimit=nofile={limits.n_open_files}",
        "--log-driver=none",
        *tmpfs,
    ]


async def first_output(spec: SandboxSpec, image: str, labels: dict[str, str]) -> "asyncio.subprocess.Process":
    """Starts it and returns when its first line is here. The caller waits for its end."""
    docker = shutil.which("docker")
    if docker is None:
        raise NotMeasured("there is no docker command on this machine")
    process = await asyncio.create_subprocess_exec(
        docker,
        "run",
        "--rm",
        *flags(spec, image),
        *(f"--label={name}={value}" for name, value in labels.items()),
        "--entrypoint=echo",
        image,
        "hi",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    line = await process.stdout.readline()
    if line != b"hi\n":
        await process.wait()
        raise RuntimeError(f"docker run printed {line!r}")
    return process
