"""The Docker engine, asynchronously. The one file that imports the Docker SDK.

Owns the SDK's clients and the threads that its blocking calls run in, the time limit of every call, and the
translation of what the SDK raises into `sandbox.errors`. Knows nothing of sandboxes: `images.py` and the backend say
what to create.
"""

# types-docker leaves half of the low-level API without annotations; what comes back is cast to what the API documents.
# pyright: reportUnknownMemberType=false

import contextlib
import os
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NewType, TypeVar, cast
from urllib.parse import urlsplit

import anyio
import anyio.from_thread
import anyio.to_thread
import docker
import docker.errors
import docker.types
from docker import DockerClient

from sandbox.cancellation import to_its_end
from sandbox.errors import EngineError, EngineUnavailable, ImageNotFound, SandboxError, SandboxNotFound

T = TypeVar("T")
ImageId = NewType("ImageId", str)
ContainerId = NewType("ContainerId", str)

CALL_TIMEOUT_S = 60.0
# Importing a root filesystem, committing a layer, a build step that prints nothing for a while.
SLOW_CALL_TIMEOUT_S = 1800.0
MAX_CONCURRENT_CALLS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineImage:
    """An image as the engine has it."""

    id: ImageId
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    created_at: datetime
    size_bytes: int
    env: tuple[str, ...]
    user: str
    workdir: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A host path that a container sees."""

    source: Path
    target: str
    read_only: bool = True


class Engine:
    """A connection to a Docker engine. Made by `Engine.connect`, which closes it."""

    def __init__(self, host: str, *, max_concurrent_calls: int = MAX_CONCURRENT_CALLS) -> None:
        self.host = host
        self._n_calls = max_concurrent_calls
        self._limiter = anyio.CapacityLimiter(max_concurrent_calls)
        self._clients: dict[float, DockerClient] = {}
        self._clients_lock = threading.Lock()

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(
        cls, host: str | None = None, *, max_concurrent_calls: int = MAX_CONCURRENT_CALLS
    ) -> AsyncGenerator["Engine"]:
        """Connect to the engine at `host`, by default `DOCKER_HOST` or the machine's own socket.

        Raises: EngineUnavailable if none answers.
        """
        address = host or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        engine = cls(address, max_concurrent_calls=max_concurrent_calls)
        try:
            await engine.call(lambda client: client.ping(), doing="reach the engine", timeout_s=15.0)
            yield engine
        finally:
            await engine.close()

    async def close(self) -> None:
        """Close the connections. Calls that still run in threads fail."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(5.0):
            await anyio.to_thread.run_sync(self._close_clients, abandon_on_cancel=True)

    async def call(self, fn: Callable[[DockerClient], T], *, doing: str, timeout_s: float = CALL_TIMEOUT_S) -> T:
        """Run one blocking SDK call in a thread.

        `doing` completes the sentence "cannot …". A caller that is cancelled does not wait for the thread, so the
        call may still take effect, later than whatever is done about it: see `to_its_end`.

        Raises: EngineUnavailable if the engine cannot be reached or takes longer than `timeout_s`; ImageNotFound,
            SandboxNotFound or EngineError for what it refused.
        """

        def work() -> T:
            with translated(doing):
                return fn(self._client(timeout_s))

        try:
            with anyio.fail_after(timeout_s):
                return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)
        except TimeoutError:
            raise EngineUnavailable(
                f"cannot {doing}: the engine at {self.host} did not answer within {timeout_s:.0f} s"
            ) from None

    def _client(self, timeout_s: float) -> DockerClient:
        # The SDK's time limit is the client's, not the call's: one client for ordinary calls and one for slow ones.
        limit_s = CALL_TIMEOUT_S if timeout_s <= CALL_TIMEOUT_S else SLOW_CALL_TIMEOUT_S
        with self._clients_lock:
            if limit_s not in self._clients:
                _probe(self.host)
                environment = {**os.environ, "DOCKER_HOST": self.host}
                self._clients[limit_s] = docker.from_env(
                    timeout=int(limit_s), max_pool_size=self._n_calls, environment=environment
                )
            return self._clients[limit_s]

    def _close_clients(self) -> None:
        with self._clients_lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()

    async def data_directory(self) -> Path:
        """Where the engine keeps images and containers, on its own machine."""

        def get(client: DockerClient) -> Path:
            return Path(str(client.info()["DockerRootDir"]))

        return await self.call(get, doing="ask the engine where its data is")

    # Images

    async def image(self, reference: str) -> EngineImage | None:
        """The image with this tag or id, or None. Never pulls."""

        def get(client: DockerClient) -> EngineImage:
            return _image(cast("dict[str, Any]", client.api.inspect_image(reference)))

        try:
            return await self.call(get, doing=f"look up image {reference}")
        except ImageNotFound:
            return None

    async def images(self, *, label: str) -> list[EngineImage]:
        """The images that carry `label` (`name` or `name=value`)."""

        def get(client: DockerClient) -> list[EngineImage]:
            rows = cast("list[dict[str, Any]]", client.api.images(filters={"label": label}))
            return [_image(cast("dict[str, Any]", client.api.inspect_image(str(row["Id"])))) for row in rows]

        return await self.call(get, doing="list images")

    async def import_image(self, tar: Path, *, repository: str, tag: str, changes: Sequence[str]) -> None:
        """Make a one-layer image of a root filesystem; `changes` are Dockerfile instructions."""

        def do(client: DockerClient) -> None:
            client.api.import_image(src=str(tar), repository=repository, tag=tag, changes=list(changes))

        await self.call(do, doing=f"import {tar}", timeout_s=SLOW_CALL_TIMEOUT_S)

    async def pull_image(self, reference: str) -> None:
        """Fetch an image from its registry. Raises: EngineError if there is none or it cannot be reached."""

        def do(client: DockerClient) -> None:
            client.images.pull(reference)

        await self.call(do, doing=f"pull {reference}", timeout_s=SLOW_CALL_TIMEOUT_S)

    async def tag_image(self, image: str, *, repository: str, tag: str) -> None:
        """Give `image` one more name."""
        await self.call(lambda client: client.api.tag(image, repository, tag, force=True), doing=f"tag {image}")

    async def remove_image(self, reference: str) -> None:
        """Take a name away, and the image with its last name. One that is not there is fine."""
        with contextlib.suppress(ImageNotFound):
            await self.call(
                lambda client: client.images.remove(reference, force=True), doing=f"remove image {reference}"
            )

    # A container in which an image is built

    async def start_build_container(
        self, image: str, *, name: str, binds: Sequence[Bind], tmpfs: Mapping[str, str], labels: Mapping[str, str]
    ) -> ContainerId:
        """Start a container that waits for `run_build_step`: root, the host's network, no environment of ours."""
        mounts = [
            docker.types.Mount(bind.target, str(bind.source), type="bind", read_only=bind.read_only) for bind in binds
        ]

        def do(client: DockerClient) -> ContainerId:
            container = client.containers.create(
                image,
                ["/bin/sh", "-c", "while :; do sleep 3600; done"],
                entrypoint=[],
                name=name,
                user="0:0",
                working_dir="/",
                network_mode="host",
                labels=dict(labels),
                mounts=mounts,
                tmpfs=dict(tmpfs),
                use_config_proxy=False,
            )
            container.start()
            return ContainerId(str(container.id))

        return await self.call(do, doing=f"start a build container from {image}")

    async def run_build_step(
        self, container: ContainerId, argv: Sequence[str], *, env: Mapping[str, str], on_line: Callable[[str], None]
    ) -> int:
        """Run a command in a build container, handing over its output line by line. Returns its exit code."""

        def do(client: DockerClient) -> int:
            created = client.api.exec_create(container, list(argv), environment=dict(env), user="0:0", workdir="/")
            stream = client.api.exec_start(created["Id"], stream=True)
            try:
                for line in _lines(cast("Iterator[bytes]", stream)):
                    anyio.from_thread.run_sync(on_line, line)
            finally:
                # The stream's own close() leaves the descriptor to the garbage collector.
                cast("Any", stream)._response.close()
            done = client.api.exec_inspect(created["Id"])
            return int(done["ExitCode"])

        return await self.call(do, doing="run a build step", timeout_s=SLOW_CALL_TIMEOUT_S)

    async def commit(
        self, container: ContainerId, *, repository: str, tag: str, config: Mapping[str, object]
    ) -> ImageId:
        """Make an image of a container's root filesystem with `config` in the engine's own form."""

        def do(client: DockerClient) -> ImageId:
            answer = cast(
                "dict[str, Any]", client.api.commit(container, repository=repository, tag=tag, conf=dict(config))
            )
            return ImageId(str(answer["Id"]))

        return await self.call(do, doing=f"commit {repository}:{tag}", timeout_s=SLOW_CALL_TIMEOUT_S)

    # Any container

    async def create_container(self, body: Mapping[str, Any], *, name: str) -> None:
        """`body` is the engine's own form of a container. When this is over, cancelled or not, so is the call."""

        def do(client: DockerClient) -> None:
            client.api.create_container_from_config(dict(body), name)

        await to_its_end(self.call(do, doing=f"create container {name}"))

    async def start_container(self, name: str) -> None:
        """When this is over, cancelled or not, so is the call."""
        await to_its_end(self.call(lambda client: client.api.start(name), doing=f"start container {name}"))

    async def inspect_container(self, name: str) -> dict[str, Any]:
        """What the engine knows of it, in the engine's own form. Raises: SandboxNotFound."""

        def do(client: DockerClient) -> dict[str, Any]:
            return cast("dict[str, Any]", client.api.inspect_container(name))

        return await self.call(do, doing=f"inspect container {name}")

    async def containers(self, *, labels: Sequence[str]) -> list[dict[str, Any]]:
        """Every container with these labels (`name=value`), in every state, in the engine's own form."""

        def do(client: DockerClient) -> list[dict[str, Any]]:
            return cast("list[dict[str, Any]]", client.api.containers(all=True, filters={"label": list(labels)}))

        return await self.call(do, doing="list containers")

    async def wait_for_end(self, name: str, *, within_s: int) -> None:
        """Returns when it does not run, or after `within_s`. Raises: SandboxNotFound."""
        with contextlib.suppress(EngineUnavailable):
            await self.call(
                lambda client: client.api.wait(name, timeout=within_s, condition="not-running"),
                doing=f"wait for the end of {name}",
            )

    async def last_words(self, name: str, *, since: datetime, until: datetime) -> Mapping[str, str]:
        """What the engine remembers of the latest end of a container, also of one that is removed: `exitCode` and
        more. Empty if it remembers nothing; it keeps a few hundred events of all containers."""

        def do(client: DockerClient) -> Mapping[str, str]:
            # As text: the SDK would cut a time to whole seconds, and `until` the next one waits for it.
            period = {"since": f"{since.timestamp():.6f}", "until": f"{until.timestamp():.6f}"}
            asked = {"container": [name], "event": ["die"]}
            events = client.api.events(**cast("Any", period), decode=True, filters=asked)
            found = list(events)
            return dict(found[-1]["Actor"]["Attributes"]) if found else {}

        return await self.call(do, doing=f"read the events of {name}")

    async def exec_run(self, name: str, argv: Sequence[str]) -> int:
        """Runs a command by the engine's own exec, as root, and returns its exit code.

        No sandbox runs anything this way: it is what `boatyard demo` measures sandboxes against.
        """

        def do(client: DockerClient) -> int:
            created = client.api.exec_create(name, list(argv))
            client.api.exec_start(created["Id"])
            return int(client.api.exec_inspect(created["Id"])["ExitCode"])

        return await self.call(do, doing=f"exec in container {name}")

    async def remove_container(self, container: str) -> None:
        """Remove a container by id or name, running or not, with its anonymous volumes. One that is gone is fine."""
        with contextlib.suppress(SandboxNotFound):
            try:
                await self.call(
                    lambda client: client.api.remove_container(container, v=True, force=True),
                    doing=f"remove container {container}",
                )
            except EngineError as error:
                # A container that removes itself when it ends may be at it just now.
                if error.context.get("status") != 409 or "already in progress" not in error.message:
                    raise
                await self._removed(container)

    async def _removed(self, container: str) -> None:
        """Returns when somebody else's removal of it is done. Raises: SandboxNotFound, which says the same."""
        await self.call(
            lambda client: client.api.wait(container, condition="removed"), doing=f"wait for the end of {container}"
        )


@contextlib.contextmanager
def translated(doing: str) -> Generator[None]:
    """Turn what the SDK and its HTTP library raise into our errors; `doing` completes "cannot …"."""
    try:
        yield
    except SandboxError:
        raise
    except docker.errors.NotFound as error:
        raise _not_found(doing, error) from error
    except docker.errors.APIError as error:
        raise EngineError(f"cannot {doing}: {_explanation(error)}", status=error.status_code) from error
    except (docker.errors.DockerException, OSError) as error:
        raise EngineUnavailable(f"cannot {doing}: no Docker engine answers ({error})") from error
    except Exception as error:
        # requests lets its transport's errors through while a body is streamed; naming its class would import it.
        if type(error).__module__.partition(".")[0] in ("urllib3", "http"):
            raise EngineUnavailable(f"cannot {doing}: the engine's answer broke off ({error})") from error
        raise


def _probe(host: str) -> None:
    """Raises: OSError if nobody listens there. The SDK would find out too, but leaks the socket it tried with."""
    address = urlsplit(host)
    if address.scheme == "unix":
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(10.0)
            probe.connect(address.path)


def _not_found(doing: str, error: docker.errors.NotFound) -> SandboxError:
    text = _explanation(error)
    message = f"cannot {doing}: {text}"
    if isinstance(error, docker.errors.ImageNotFound) or "no such image" in text.lower():
        return ImageNotFound(message)
    if "no such container" in text.lower():
        return SandboxNotFound(message)
    return EngineError(message, status=404)


def _explanation(error: docker.errors.APIError) -> str:
    return str(error.explanation or error)


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
        for line in whole:
            if line.strip():
                yield line.decode(errors="replace")
    if rest.strip():
        yield rest.decode(errors="replace")


def _image(answer: dict[str, Any]) -> EngineImage:
    config = cast("dict[str, Any]", answer.get("Config") or {})
    return EngineImage(
        id=ImageId(str(answer["Id"])),
        tags=tuple(answer.get("RepoTags") or ()),
        labels=dict(config.get("Labels") or {}),
        created_at=datetime.fromisoformat(str(answer["Created"])),
        size_bytes=int(answer["Size"]),
        env=tuple(config.get("Env") or ()),
        user=str(config.get("User") or ""),
        workdir=str(config.get("WorkingDir") or ""),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        command=tuple(config.get("Cmd") or ()),
    )
