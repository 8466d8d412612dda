"""The Docker SDK, used as its documentation shows: what one would write without Boatyard."""

# types-docker leaves half of the SDK without annotations; what comes back is cast to what the SDK documents.
# pyright: reportUnknownMemberType=false

import contextlib
import io
import tarfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import docker
import docker.errors
from docker import DockerClient
from docker.models.containers import Container

from sandbox.backends.docker import container as ours

N_THREADS = 64
LIFETIME_S = 900
"""A plain container ends itself after so long, should the bench be killed."""


class Sdk:
    """Blocking; call it in threads."""

    def __init__(self, host: str, *, label: str) -> None:
        self.label = label
        self._client: DockerClient = docker.DockerClient(base_url=host, max_pool_size=N_THREADS, timeout=120)
        self._pool = ThreadPoolExecutor(N_THREADS, thread_name_prefix="sdk")

    @property
    def labels(self) -> dict[str, str]:
        return {ours.MARK: "1", f"{ours.USER_PREFIX}bench": self.label}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def image_of(self, sandbox_id: str) -> str:
        return str(self.find(sandbox_id).attrs["Image"])

    def find(self, sandbox_id: str) -> Container:
        return self._client.containers.list(filters={"label": f"{ours.ID}={sandbox_id}"})[0]

    def pid_of(self, sandbox_id: str) -> int:
        """PID 1 of a sandbox as the engine's host numbers it."""
        found = self.find(sandbox_id)
        found.reload()
        return int(found.attrs["State"]["Pid"])

    def exec_many(self, container: Container, command: list[str], n_times: int) -> None:
        """All at once, each in a thread of its own."""
        for done in [self._pool.submit(exec_once, container, command) for _ in range(n_times)]:
            done.result()

    def plain(self, image: str) -> "PlainContainer":
        return PlainContainer(self.run(image, ["sleep", str(LIFETIME_S)]))

    def run(self, image: str, command: list[str], **options: Any) -> Container:
        """A container that runs in the background and is removed with `remove_all`."""
        return self._client.containers.run(
            image, command, detach=True, remove=True, labels=self.labels, entrypoint=[], **options
        )

    def remove_all(self) -> None:
        """Whatever carries this run's label, plain or ours."""
        label = f"{ours.USER_PREFIX}bench={self.label}"
        for container in self._client.containers.list(all=True, filters={"label": label}, ignore_removed=True):
            with contextlib.suppress(docker.errors.APIError):
                container.remove(force=True)


def exec_once(container: Container, command: list[str]) -> None:
    code = container.exec_run(command).exit_code
    if code != 0:
        raise RuntimeError(f"{command} in the peer's container: exit code {code}")


class PlainContainer:
    """Files by way of the archive calls."""

    def __init__(self, container: Container) -> None:
        self.container = container

    def put(self, tar: bytes) -> None:
        if not self.container.put_archive("/workspace", tar):
            raise RuntimeError("put_archive refused the tar")

    def get(self, name: str) -> int:
        """Reads it whole, as the SDK's callers must: a tar with one file in it. Returns its size."""
        pieces, stat = self.container.get_archive(f"/workspace/{name}")
        data = b"".join(cast("Iterable[bytes]", pieces))
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            content = tar.extractfile(name)
            if content is None or len(content.read()) != int(cast("dict[str, Any]", stat)["size"]):
                raise RuntimeError("get_archive gave half a file")
        return len(data)

    def drain(self, name: str) -> int:
        """Reads a large one and keeps nothing. Returns how much came."""
        pieces, _ = self.container.get_archive(f"/workspace/{name}")
        return sum(len(piece) for piece in cast("Iterable[bytes]", pieces))


def tar_of(name: str, content: bytes) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        info.uid = info.gid = 1000
        tar.addfile(info, io.BytesIO(content))
    return target.getvalue()
