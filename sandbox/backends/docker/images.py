"""Images by content: build what an image file says, once, and find it again by its hash.

An image is built in a container of its base, step by step, and committed. No Dockerfile, because a build needs this
machine's package sources and certificates for its time and must leave none of them behind (`host_config`).
"""

import contextlib
import fcntl
import os
import shlex
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

import anyio
import anyio.to_thread

from sandbox.backends.docker import host_config
from sandbox.backends.docker.engine import ContainerId, Engine, EngineImage, ImageId
from sandbox.backends.docker.image_file import DEBIAN, ImageFile, digest, find, load, recipe
from sandbox.backends.docker.rootfs import Progress, Rootfs, apt_config, make
from sandbox.errors import EngineError, EngineUnavailable, ImageBuildFailed, ImageNotFound, InvalidArgument
from sandbox.state import state_dir

LABEL = "boatyard"
# Not "1", which marks containers: whoever runs a container of such an image by hand must not lose it to a clean-up.
IMAGE_MARK = "image"
NAME_LABEL = "boatyard.image.name"
HASH_LABEL = "boatyard.image.hash"
BASE_LABEL = "boatyard.image.base"
SUITE_LABEL = "boatyard.image.debian"

_SUITE = DEBIAN.partition(":")[2]
_N_TAIL_LINES = 30
_LOCK_POLL_S = 0.2
_CLEAN_UP_S = 30.0
_STEP = f"{host_config.MOUNT}/step.sh"
_RUN_STEP = f"if command -v bash >/dev/null; then exec bash -euo pipefail {_STEP}; fi; exec sh -eu {_STEP}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """An image of ours that the engine has."""

    name: str
    digest: str
    id: ImageId
    tag: str
    size_bytes: int
    cached: bool
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """An image file with its base found and its hash known."""

    file: ImageFile
    base: "_Plan | Rootfs | EngineImage"
    digest: str

    @property
    def repository(self) -> str:
        return f"boatyard/{self.file.name}"

    @property
    def tag(self) -> str:
        return f"{self.repository}:{self.digest[:12]}"


async def build(
    engine: Engine, image_file: Path, *, progress: Callable[[str], None], rebuild: bool = False
) -> BuiltImage:
    """Build the image that `image_file` describes, unless the engine has it.

    `progress` gets a line starting with `==> ` for each step and every line the steps print. `rebuild` makes this
    image, though not its bases, anew: for newer packages.

    Raises: ImageNotFound or InvalidArgument for the file or its base; ImageBuildFailed with the step and the last
        lines it printed; EngineError.
    """
    plan = await _plan(engine, image_file, ())
    return await _build(engine, plan, progress, rebuild=rebuild)


async def ensure(engine: Engine, reference: str, *, progress: Callable[[str], None] = lambda _: None) -> ImageId:
    """The id of the image that `reference` names: a shipped image (`base`), a path to an image file, or an image of
    the engine. The first two are built if need be; the last is pulled if the engine has it not and can.

    Raises: ImageNotFound if there is no such image; what `build` raises.
    """
    path = await anyio.to_thread.run_sync(find, reference)
    if path is not None:
        return (await build(engine, path, progress=progress)).id
    return (await _engine_image(engine, reference, progress)).id


async def list_images(engine: Engine) -> list[EngineImage]:
    """The images Boatyard built, newest first. Root filesystems, which are only bases, are left out."""
    found = await engine.images(label=NAME_LABEL)
    return sorted(found, key=lambda image: image.created_at, reverse=True)


async def _plan(engine: Engine, path: Path, above: tuple[Path, ...]) -> _Plan:
    resolved = Path(await anyio.Path(path).resolve())
    if resolved in above:
        chain = " -> ".join(str(step) for step in (*above, resolved))
        raise InvalidArgument(f"{path}: its base leads back to itself ({chain})")
    file = await anyio.to_thread.run_sync(load, resolved)
    base: _Plan | Rootfs | EngineImage
    if file.base == DEBIAN:
        base = Rootfs(suite=_SUITE, packages=tuple(sorted(set(file.apt))))
        base_digest = base.digest
    elif (below := await anyio.to_thread.run_sync(lambda: find(file.base, beside=resolved))) is not None:
        base = await _plan(engine, below, (*above, resolved))
        base_digest = base.digest
    else:
        base = await _engine_image(engine, file.base, lambda _: None)
        base_digest = base.id
    return _Plan(file=file, base=base, digest=digest({"recipe": recipe(file), "base": base_digest}))


async def _engine_image(engine: Engine, reference: str, progress: Progress) -> EngineImage:
    found = await engine.image(reference)
    if found is not None:
        return found
    progress(f"==> pulling {reference}: the engine does not have it")
    try:
        await engine.pull_image(reference)
        found = await engine.image(reference)
    except EngineUnavailable:
        raise
    except EngineError as error:
        raise ImageNotFound(
            f"there is no image {reference}: it is no image file that ships with Boatyard, the engine does not have"
            f" it, and it cannot be pulled ({error.message})"
        ) from error
    if found is None:
        raise ImageNotFound(f"the engine pulled {reference} but does not have it")
    return found


async def _build(engine: Engine, plan: _Plan, progress: Progress, *, rebuild: bool) -> BuiltImage:
    started = time.monotonic()
    found = None if rebuild else await engine.image(plan.tag)
    cached = found is not None
    if found is None:
        state = state_dir(os.environ, uid=os.geteuid())
        async with _locked(state, f"image-{plan.digest[:12]}", progress):
            # Whoever held the lock may have built it.
            found = None if rebuild else await engine.image(plan.tag)
            cached = found is not None
            if found is None:
                found = await _make(engine, plan, state, progress, rebuild=rebuild)
    latest = f"{plan.repository}:latest"
    if latest not in found.tags:
        await engine.tag_image(found.id, repository=plan.repository, tag="latest")
    return BuiltImage(
        name=plan.file.name,
        digest=plan.digest,
        id=found.id,
        tag=plan.tag,
        size_bytes=found.size_bytes,
        cached=cached,
        took_s=time.monotonic() - started,
    )


async def _make(engine: Engine, plan: _Plan, state: Path, progress: Progress, *, rebuild: bool) -> EngineImage:
    match plan.base:
        case Rootfs():
            base = await _import_rootfs(engine, plan.base, state, progress, rebuild=rebuild)
        case _Plan():
            base = await engine.image((await _build(engine, plan.base, progress, rebuild=False)).id)
        case EngineImage():
            base = plan.base
    if base is None:
        raise ImageBuildFailed(f"the base of {plan.tag} was removed while it was used: build again", step="base")
    name = f"boatyard-build-{plan.file.name}-{uuid.uuid4().hex[:8]}"
    async with anyio.TemporaryDirectory(prefix="boatyard-build-", ignore_cleanup_errors=True) as scratch:
        host = await _host_config(Path(scratch), base)
        try:
            container = await engine.start_build_container(
                base.id, name=name, binds=host.binds, tmpfs={"/run": "exec,mode=755"}, labels={LABEL: "1"}
            )
            await _run_steps(engine, container, plan, host, progress)
            progress(f"==> saving {plan.tag}")
            await engine.commit(container, repository=plan.repository, tag=plan.digest[:12], config=_config(plan, base))
        finally:
            # By name, because a start that was cut off has created it without telling us its id.
            with anyio.CancelScope(shield=True), anyio.move_on_after(_CLEAN_UP_S):
                await engine.remove_container(name)
    made = await engine.image(plan.tag)
    if made is None:
        raise ImageBuildFailed(f"{plan.tag} was removed as soon as it was built: build again", step="commit")
    return made


async def _import_rootfs(
    engine: Engine, rootfs: Rootfs, state: Path, progress: Progress, *, rebuild: bool
) -> EngineImage | None:
    tag = rootfs.digest[:12]
    reference = f"boatyard/rootfs:{tag}"
    found = None if rebuild else await engine.image(reference)
    if found is not None:
        return found
    tar = await make(rootfs, state=state, progress=progress, rebuild=rebuild)
    size_bytes = (await anyio.Path(tar).stat()).st_size
    progress(f"==> handing {size_bytes >> 20} MiB to the engine")
    labels = {LABEL: IMAGE_MARK, SUITE_LABEL: rootfs.suite}
    changes = [f"LABEL {key}={value}" for key, value in labels.items()]
    await engine.import_image(tar, repository="boatyard/rootfs", tag=tag, changes=[*changes, 'CMD ["/bin/bash"]'])
    return await engine.image(reference)


async def _host_config(scratch: Path, base: EngineImage) -> host_config.HostConfig:
    suite = base.labels.get(SUITE_LABEL)
    dump = await apt_config()
    return await anyio.to_thread.run_sync(
        lambda: host_config.gather(scratch, environ=os.environ, suite=suite, apt_config_dump=dump)
    )


def steps(file: ImageFile) -> list[tuple[str, str]]:
    """What to run in the build container: (step, shell script) in order."""
    found: list[tuple[str, str]] = []
    from_packages = file.base == DEBIAN
    apt = [] if from_packages else list(file.apt)
    if apt:
        found.append(("apt", f"apt-get update -q && apt-get install -yq --no-install-recommends {shlex.join(apt)}"))
    if file.pip:
        need = "command -v python3 >/dev/null && python3 -m pip --version >/dev/null"
        found.append(("pip", f"{_need(need, 'pip', 'python3-pip')}python3 -m pip install {shlex.join(file.pip)}"))
    if file.npm:
        if not {"npm", "nodejs"} & set(file.apt):
            fetch = "apt-get update -q && apt-get install -yq --no-install-recommends nodejs npm"
            found.append(("npm (nodejs)", f"command -v npm >/dev/null || {{ {fetch}; }}"))
        found.append(("npm", f"npm install --global --no-fund --no-audit {shlex.join(file.npm)}"))
    if file.script.strip():
        found.append(("script", file.script))
    return found


def _need(test: str, program: str, package: str) -> str:
    message = f"the base has no {program}: add {package} to apt, or choose a base that has it"
    return f"if ! {{ {test}; }}; then echo {shlex.quote(message)} >&2; exit 1; fi; "


async def _run_steps(
    engine: Engine, container: ContainerId, plan: _Plan, host: host_config.HostConfig, progress: Progress
) -> None:
    before, after = _link_scripts(host.links)
    for step, script in [("prepare", before), *steps(plan.file), ("clean", after)]:
        if step not in ("prepare", "clean"):
            progress(f"==> {plan.file.name}: {step}")
        tail: deque[str] = deque(maxlen=_N_TAIL_LINES)

        def keep(line: str, tail: deque[str] = tail) -> None:
            tail.append(line)
            progress(line)

        await anyio.Path(host.directory / "step.sh").write_text(script)
        env = {**host.env, **plan.file.env}
        code = await engine.run_build_step(container, ["/bin/sh", "-c", _RUN_STEP], env=env, on_line=keep)
        if code != 0:
            raise ImageBuildFailed(
                f"{plan.file.name}: step {step} failed with exit code {code}:\n" + "\n".join(tail),
                step=step,
                exit_code=code,
            )


def _link_scripts(links: Mapping[str, str]) -> tuple[str, str]:
    """Make pip's local directories appear at their own paths, and take them and other leftovers away again."""
    before = [f"mkdir -p {host_config.CACHE}/apt/archives/partial {host_config.CACHE}/lists/partial"]
    after = [
        "rm -rf /root/.cache /root/.npm /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb",
        "find /var/log -type f -delete 2>/dev/null || true",
        "rm -rf /var/cache/ldconfig /var/cache/debconf/*-old /var/lib/dpkg/*-old",
    ]
    for path, target in links.items():
        here, parent = shlex.quote(path), shlex.quote(str(Path(path).parent))
        before.append(f"[ -e {here} ] || {{ mkdir -p {parent}; ln -s {target} {here}; }}")
        after.append(f"[ ! -L {here} ] || rm -f {here}")
    return "\n".join(before), "\n".join(after)


def _config(plan: _Plan, base: EngineImage) -> dict[str, object]:
    """The image's configuration. The engine fills what is left out from the build container, so all is given."""
    env = {name: value for name, _, value in (entry.partition("=") for entry in base.env)}
    env.setdefault("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    env.update(plan.file.env)
    return {
        "Env": [f"{key}={value}" for key, value in env.items()],
        "User": plan.file.user or base.user or "root",
        "WorkingDir": plan.file.workdir or base.workdir or "/",
        "Entrypoint": list(base.entrypoint) or None,
        "Cmd": list(base.command) or ["/bin/sh"],
        "Labels": {
            **base.labels,
            LABEL: IMAGE_MARK,
            NAME_LABEL: plan.file.name,
            HASH_LABEL: plan.digest,
            BASE_LABEL: base.id,
        },
    }


@contextlib.asynccontextmanager
async def _locked(state: Path, name: str, progress: Progress) -> AsyncGenerator[None]:
    """Hold a lock that other processes see. Polled, so that a cancelled waiter leaves."""
    directory = anyio.Path(state / "locks")
    await directory.mkdir(parents=True, exist_ok=True)
    path = Path(directory) / f"{name}.lock"

    def take(file: TextIOWrapper) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    file = await anyio.to_thread.run_sync(lambda: path.open("a"))
    try:
        said = False
        while not await anyio.to_thread.run_sync(take, file):
            if not said:
                progress("==> waiting for another build of the same image")
                said = True
            await anyio.sleep(_LOCK_POLL_S)
        yield
    finally:
        file.close()
