"""Sandboxes on a Docker engine: one container each, the guest as its PID 1, its attach stream as the wire."""

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sandbox import guest_archive
from sandbox.backends.docker import container, images, seccomp
from sandbox.backends.docker.attach import AttachStream
from sandbox.backends.docker.engine import Engine, ImageId
from sandbox.backends.docker.rendezvous import Directories, MeetingStream
from sandbox.cancellation import to_its_end
from sandbox.client.link import HELLO_TIMEOUT_S, LEASE_S, Link
from sandbox.client.sandbox import GuestSandbox
from sandbox.errors import (
    CannotCreate,
    EngineError,
    ImageUnsuitable,
    SandboxError,
    SandboxLost,
    SandboxNotFound,
)
from sandbox.state import state_dir
from sandbox.types import Mount, SandboxId, SandboxInfo, SandboxSpec, Weakness
from sandbox.volumes import Volumes
from sandbox.watchdog import Watchdog

_START_TIMEOUT_S = 60.0
_NO_DISK_ELSEWHERE = "a bounded disk cannot be made: the engine is on another machine; accept `disk_in_memory`"
_CLEAN_UP_S = 30.0
_IMAGE_CACHE_S = 30.0
_TOO_OLD = 78
_KILLED = 128 + signal.SIGKILL
_WHY_S = 4.0
_WRITTEN_DOWN_S = 1
_REMEMBERED = timedelta(hours=1)
_TIDY_EVERY_S = 60.0
_TIDY_AFTER_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guest:
    """The archive on this machine's disk, for containers to mount."""

    path: str
    hash: str


class DockerBackend:
    """Made by `open`, which closes it. Sandboxes outlive it unless they are destroyed."""

    name = "docker"

    def __init__(self, engine: Engine, *, lease_s: float = LEASE_S, meet: bool = True) -> None:
        self.engine = engine
        self._lease_s = lease_s
        self.watchdog = Watchdog()
        self._images: dict[str, tuple[float, ImageId]] = {}
        self._preparing: asyncio.Task[_Guest] | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._state = state_dir(os.environ, uid=os.getuid())
        self._meetings = Directories(self._state / "meet")
        self._volumes = Volumes(self._state / "volumes")
        self._is_local = engine.host.startswith("unix:")
        self._meets = self._is_local and meet
        self._hidden: dict[Path, str] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, host: str | None = None, *, lease_s: float = LEASE_S, meet: bool = True
    ) -> AsyncGenerator["DockerBackend"]:
        """Connects to `host`, by default `DOCKER_HOST` or the machine's own engine.

        `meet=False` keeps sessions on the engine's attach stream, as they are with an engine on another machine.

        Raises: EngineUnavailable.
        """
        async with Engine.connect(host) as engine:
            backend = cls(engine, lease_s=lease_s, meet=meet)
            try:
                backend._prepare_guest()  # needs a while the first time, and the engine has to be asked things too
                await backend._tidy()
                backend._tidying = asyncio.create_task(backend._keep_tidy(), name="tidy")
                yield backend
            finally:
                await backend.close()

    async def create(self, spec: SandboxSpec) -> GuestSandbox:
        """Raises: EngineUnavailable, ImageNotFound, ImageUnsuitable, CannotCreate."""
        if spec.mounts:
            spec = spec.model_copy(update={"mounts": await self._checked(spec.mounts)})
        image = await self._image(spec.image)
        guest = await self._guest()
        profile = await asyncio.to_thread(seccomp.profile)
        sandbox_id = SandboxId(secrets.token_hex(8))
        key = secrets.token_bytes(16)
        try:
            disk = await self._disk(sandbox_id, spec)
            weaker = [Weakness.DISK_IN_MEMORY] if disk is None else []
            meeting = await self._meeting(sandbox_id) if self._meets else None
            labels = container.labels(sandbox_id, spec, key=key, digest=image, guest_hash=guest.hash, weaker=weaker)
            body = container.config(
                spec,
                image=image,
                guest=guest.path,
                seccomp=profile,
                disk=disk,
                meeting=meeting,
                container_labels=labels,
            )
            await self._create_container(sandbox_id, body)
            link = await self._first_link(sandbox_id, spec, key)
        except BaseException:
            await to_its_end(self._undo(sandbox_id))
            raise
        return self._sandbox(link, sandbox_id, created=True)

    async def connect(self, sandbox_id: SandboxId, *, epoch: int | None = None) -> GuestSandbox:
        """Raises: SandboxNotFound, SandboxLost, LeaseLost, EngineUnavailable."""
        found = await self._inspect(sandbox_id)
        if not found["State"].get("Running"):
            raise SandboxLost(f"the sandbox {sandbox_id} has ended ({_how_it_ended(found)}); create a new one")
        key = bytes.fromhex(found["Config"]["Labels"][container.KEY])
        stream = await self._attach(sandbox_id)
        # A former peer that hangs may clog the stream until its own lease is over.
        timeout_s = HELLO_TIMEOUT_S + self._lease_s
        link = await self._link(stream, key, epoch=epoch, timeout_s=timeout_s)
        return self._sandbox(link, sandbox_id, created=False)

    async def list(self, labels: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        rows = await self.engine.containers(labels=container.label_filter(labels or {}))
        return [container.info(row) for row in rows if container.ID in (row.get("Labels") or {})]

    async def destroy(self, sandbox_id: SandboxId) -> None:
        await self.engine.remove_container(container.name_of(sandbox_id))
        await asyncio.to_thread(self._remove_files, sandbox_id)

    async def why_ended(self, sandbox_id: SandboxId) -> str:
        """What became of a sandbox that was lost, to complete "the connection ended: …". Takes seconds at most.

        Raises nothing of the engine's: where it cannot be known, that is what it says.
        """
        try:
            async with asyncio.timeout(_WHY_S):
                return await self._why_ended(container.name_of(sandbox_id))
        except (SandboxError, TimeoutError):
            return "the engine does not say why"

    async def _why_ended(self, name: str) -> str:
        try:
            # The stream's end is seen before the engine has written down that the container ended.
            await self.engine.wait_for_end(name, within_s=_WRITTEN_DOWN_S)
            return _how_it_ended(await self.engine.inspect_container(name))
        except SandboxNotFound:
            now = datetime.now(UTC)
            ended = await self.engine.last_words(name, since=now - _REMEMBERED, until=now)
            code = ended.get("exitCode")
            return f"its container was removed{f' ({_exit(int(code))})' if code else ''}"

    async def close(self) -> None:
        if self._tidying is not None:
            self._tidying.cancel()
            await asyncio.wait([self._tidying])
        if self._preparing is not None:
            await asyncio.wait([self._preparing])
        await self.watchdog.close()

    # How a container comes to life

    async def _checked(self, mounts: Sequence[Mount]) -> tuple[Mount, ...]:
        if not self._hidden:
            hidden = {await self.engine.data_directory(): container.ENGINE_DATA}
            if self._is_local:
                hidden[Path(urlsplit(self.engine.host).path)] = container.ENGINE_SOCKET
                hidden[self._state] = "the way into every sandbox is there"
            self._hidden = hidden
        return await asyncio.to_thread(container.checked_mounts, mounts, hidden=self._hidden, is_local=self._is_local)

    async def _image(self, reference: str) -> ImageId:
        cached = self._images.get(reference)
        if cached is not None and time.monotonic() - cached[0] < _IMAGE_CACHE_S:
            return cached[1]
        image = await images.ensure(self.engine, reference)
        self._images[reference] = (time.monotonic(), image)
        return image

    def _prepare_guest(self) -> "asyncio.Task[_Guest]":
        """Once; again after a failure. A task of its own, since whoever waits for it may be cancelled."""
        task = self._preparing
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(asyncio.to_thread(_write_guest, self._state / "guest"), name="guest archive")
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._preparing = task
        return task

    async def _guest(self) -> "_Guest":
        try:
            return await asyncio.shield(self._prepare_guest())
        except OSError as error:
            raise self._unwritable("the guest's archive", error) from error

    async def _disk(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Path | None:
        """Where its disk is mounted; None if it is to be in memory."""
        directories = dict.fromkeys(container.DISK.values(), container.UID)
        try:
            if not self._is_local:
                raise CannotCreate(_NO_DISK_ELSEWHERE)
            making = asyncio.to_thread(self._volumes.make, sandbox_id, spec.limits.disk_bytes, directories)
            return await to_its_end(making)
        except CannotCreate:
            if Weakness.DISK_IN_MEMORY in spec.allow_weaker:
                return None
            raise

    async def _meeting(self, sandbox_id: SandboxId) -> str:
        try:
            # To its end: made by a thread that nobody waits for, it would come after all has been undone.
            return str(await to_its_end(asyncio.to_thread(self._meetings.make, sandbox_id)))
        except OSError as error:
            raise self._unwritable("the directory of the sandbox's socket", error) from error

    def _unwritable(self, what: str, error: OSError) -> CannotCreate:
        return CannotCreate(
            f"{what} cannot be written to {self._state} ({error.strerror or error}); set BOATYARD_STATE_DIR to a"
            " directory that this user can write to"
        )

    async def _create_container(self, sandbox_id: SandboxId, body: dict[str, Any]) -> None:
        try:
            await self.engine.create_container(body, name=container.name_of(sandbox_id))
        except EngineError as error:
            raise _why_not(error) from error

    async def _first_link(self, sandbox_id: SandboxId, spec: SandboxSpec, key: bytes) -> Link:
        """Attached before it starts, so that the hello waits for the guest and not the other way round."""
        stream = await self._attach(sandbox_id)
        config = container.guest_config(spec)
        linking = asyncio.create_task(self._link(stream, key, config=config, timeout_s=_START_TIMEOUT_S))
        linking.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            link = await self._started(sandbox_id, stream, linking)
            container.check_disk(link.welcome.disks if link.welcome else {}, spec)
            return link
        except BaseException:
            linking.cancel()
            stream.close()  # which also ends a link that is up already
            await asyncio.wait([linking])
            raise

    async def _started(self, sandbox_id: SandboxId, stream: MeetingStream, linking: "asyncio.Task[Link]") -> Link:
        try:
            await self.engine.start_container(container.name_of(sandbox_id))
            async with asyncio.timeout(HELLO_TIMEOUT_S * 2):
                return await linking
        except EngineError as error:
            raise _why_not(error) from error
        except (SandboxLost, TimeoutError) as error:
            raise await self._stillborn(sandbox_id, stream, error) from None

    async def _attach(self, sandbox_id: SandboxId) -> MeetingStream:
        attached = await AttachStream.open(
            self.engine.host, container.name_of(sandbox_id), watchdog=self.watchdog, lease_s=self._lease_s
        )
        stream = MeetingStream(attached, self._meetings.of(sandbox_id) if self._meets else None)
        try:
            await stream.listen()
        except BaseException:
            stream.close()
            raise
        return stream

    async def _link(
        self,
        stream: MeetingStream,
        key: bytes,
        *,
        epoch: int | None = None,
        config: Mapping[str, Any] | None = None,
        timeout_s: float,
    ) -> Link:
        try:
            return await Link.connect(
                stream,
                key=key,
                epoch=epoch,
                config=config,
                timeout_s=timeout_s,
                lease_s=self._lease_s,
                offer=stream.offer,
            )
        finally:
            stream.stop_listening()

    def _sandbox(self, link: Link, sandbox_id: SandboxId, *, created: bool) -> GuestSandbox:
        return GuestSandbox(
            link,
            sandbox_id,
            created=created,
            destroy=lambda: self.destroy(sandbox_id),
            is_held=lambda epoch: self._is_held(sandbox_id, epoch),
        )

    async def _is_held(self, sandbox_id: SandboxId, epoch: int) -> bool:
        """Whether nobody came after `epoch`; also if it is dead. One that does not answer may be somebody's."""
        try:
            await (await self.connect(sandbox_id, epoch=epoch)).detach()
        except SandboxNotFound:
            return True
        except SandboxError:
            with contextlib.suppress(SandboxError):
                return not (await self._inspect(sandbox_id))["State"].get("Running")
            return False
        return True

    async def _inspect(self, sandbox_id: SandboxId) -> dict[str, Any]:
        try:
            return await self.engine.inspect_container(container.name_of(sandbox_id))
        except SandboxNotFound:
            raise SandboxNotFound(f"there is no sandbox {sandbox_id}; it was destroyed or never created") from None

    async def _stillborn(self, sandbox_id: SandboxId, stream: MeetingStream, error: BaseException) -> SandboxError:
        """Why a container that started never said hello."""
        said = stream.stderr.decode(errors="replace").strip().splitlines()
        last = said[-1] if said else str(error)
        with contextlib.suppress(SandboxError):
            found = await self._inspect(sandbox_id)
            if found["State"].get("ExitCode") == _TOO_OLD:
                return ImageUnsuitable(f"the image's python3 is too old ({last}); add Python 3.8 or later to the image")
            last = f"{last}; {_how_it_ended(found)}"
        return CannotCreate(f"the sandbox did not come to life: {last}")

    async def _keep_tidy(self) -> None:
        while True:
            await asyncio.sleep(_TIDY_EVERY_S)
            with contextlib.suppress(SandboxError):  # the engine is away: there is a next time
                await self._tidy()

    async def _tidy(self) -> None:
        """Removes what sandboxes left on this machine that ended without us."""
        began = time.time()
        alive = [info.id for info in await self.list()]
        for files in (self._meetings, self._volumes):
            with contextlib.suppress(OSError):  # what cannot be looked into stays; `create` says so if it matters
                await asyncio.to_thread(files.remove_all_but, alive, older_than=began - _TIDY_AFTER_S)

    async def _undo(self, sandbox_id: SandboxId) -> None:
        with contextlib.suppress(SandboxError, TimeoutError):
            async with asyncio.timeout(_CLEAN_UP_S):
                await self.engine.remove_container(container.name_of(sandbox_id))
        await asyncio.to_thread(self._remove_files, sandbox_id)

    def _remove_files(self, sandbox_id: SandboxId) -> None:
        self._meetings.remove(sandbox_id)
        self._volumes.remove(sandbox_id)


def _write_guest(directory: Path) -> _Guest:
    archive = guest_archive.build()
    return _Guest(path=str(archive.write_to(directory)), hash=archive.hash)


def _how_it_ended(found: Mapping[str, Any]) -> str:
    state = found["State"]
    if state.get("Paused"):
        return "it is paused"
    if state.get("Running"):
        return "it is running"
    how = _exit(int(state.get("ExitCode") or 0))
    reason = f"out of memory, {how}" if state.get("OOMKilled") else how
    return f"{reason}, {state['Error']}" if state.get("Error") else reason


def _exit(code: int) -> str:
    return "it was killed, exit code 137" if code == _KILLED else f"exit code {code}"


def _why_not(error: EngineError) -> EngineError:
    text = error.message.lower()
    if "python3" in text and ("not found" in text or "no such file" in text):
        return ImageUnsuitable("the image has no python3; a sandbox needs Python 3.8 or later in its image")
    if error.retryable is True:
        return error
    return CannotCreate(error.message)
