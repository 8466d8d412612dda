"""Images on the real engine: what is built, what is cached, what a failure leaves, and what must not be inside."""

import re
import subprocess
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import pytest
from blockbuster import blockbuster_ctx

from sandbox.backends.docker import host_config, images
from sandbox.backends.docker.engine import Engine, EngineImage
from sandbox.backends.docker.image_file import shipped_dir
from sandbox.errors import EngineUnavailable, ImageBuildFailed, ImageNotFound, InvalidArgument

pytestmark = pytest.mark.docker

BASE = shipped_dir() / "base.toml"


@pytest.fixture(autouse=True)
def no_blocking_calls() -> Iterator[None]:
    """Fails a test that blocks the event loop."""
    with blockbuster_ctx(["sandbox", "docker"]):
        yield


@pytest.fixture
async def engine() -> AsyncGenerator[Engine]:
    async with Engine.connect() as connected:
        yield connected


@pytest.fixture
async def no_trace(engine: Engine) -> AsyncGenerator[None]:
    """Removes the images a test built, and checks that it left no build container."""
    yield
    for image in await engine.images(label=images.NAME_LABEL):
        if image.labels[images.NAME_LABEL].startswith("test-"):
            for tag in image.tags:
                await engine.remove_image(tag)
    left = await anyio.run_process(["docker", "ps", "-aq", "--filter", "name=boatyard-build-test-"])
    assert left.stdout == b""


def image_file(directory: Path, name: str, rest: str, *, base: str = "base") -> Path:
    path = directory / f"{name}.toml"
    path.write_text(f'name = "test-{name}"\nbase = "{base}"\n{rest}\n')
    return path


async def run_in(image: EngineImage | images.BuiltImage, *argv: str, user: str = "0") -> str:
    command = ["docker", "run", "--rm", "--network=none", "--label=boatyard=1", f"--user={user}", image.id, *argv]
    done = await anyio.run_process(command, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


async def test_base_has_what_an_agent_expects(engine: Engine) -> None:
    built = await images.build(engine, BASE, progress=print)
    programs = "bash cat git python python3 pip rg curl ps"
    await run_in(built, "bash", "-c", f"for p in {programs}; do command -v $p || exit 1; done", user="user")
    version = "python -c 'import sys; print(sys.version_info >= (3, 11))'"
    facts = f"id -u; id -g; echo $HOME; echo $SHELL; stat -c %U /workspace; {version}"
    said = await run_in(built, "bash", "-lc", facts, user="user")
    assert said.split() == ["1000", "1000", "/home/user", "/bin/bash", "user", "True"]
    await run_in(built, "bash", "-c", "python -m venv /tmp/v && /tmp/v/bin/pip --version", user="user")
    image = await engine.image(built.tag)
    assert image is not None
    assert (image.user, image.workdir) == ("user", "/workspace")
    assert image.labels[images.HASH_LABEL] == built.digest
    assert {"LANG=C.UTF-8"} <= set(image.env)


async def test_a_second_build_is_instant_and_does_nothing(engine: Engine) -> None:
    await images.build(engine, BASE, progress=print)
    lines: list[str] = []
    again = await images.build(engine, BASE, progress=lines.append)
    assert again.cached
    assert again.took_s < 1.0
    assert lines == []
    assert await images.ensure(engine, "base") == again.id
    assert await images.ensure(engine, again.tag) == again.id


@pytest.mark.usefixtures("no_trace")
async def test_a_custom_image_has_its_apt_pip_script_and_env(engine: Engine, tmp_path: Path) -> None:
    script = 'script = """\necho from-script > /etc/made\ninstall -o user -d /workspace/x\n"""'
    rest = f'apt = ["tree"]\npip = ["iniconfig"]\nenv = {{ GREETING = "hello world" }}\n{script}'
    lines: list[str] = []
    built = await images.build(engine, image_file(tmp_path, "custom", rest), progress=lines.append)
    assert [line for line in lines if line.startswith("==> ")][:3] == [
        "==> test-custom: apt",
        "==> test-custom: pip",
        "==> test-custom: script",
    ]
    assert any("tree" in line for line in lines)
    check = "tree --version && python -c 'import iniconfig' && cat /etc/made && echo $GREETING && id -un"
    said = await run_in(built, "bash", "-c", check, user="user")
    assert said.splitlines()[-3:] == ["from-script", "hello world", "user"]
    emptied = "/run /var/lib/apt/lists /var/cache/apt /tmp /opt /etc/apt/sources.list.d /var/log/apt /root/.cache"
    leftovers = f"find {emptied} ! -type d ! -name lock; find / -xdev -lname '/run/boatyard*'; find /opt -mindepth 1"
    assert await run_in(built, "bash", "-c", f"{{ {leftovers}; }} 2>/dev/null || true") == ""
    image = await engine.image(built.id)
    assert image is not None
    assert image.labels["boatyard"] != "1"
    assert not [entry for entry in image.env if entry.startswith(("PIP_", "APT_", "SSL_", "NPM_", "HTTP"))]


@pytest.mark.usefixtures("no_trace")
async def test_a_failing_step_is_named_with_its_last_lines(engine: Engine, tmp_path: Path) -> None:
    path = image_file(tmp_path, "failing", 'script = """\necho before\necho the reason >&2\nfalse\necho after\n"""')
    with pytest.raises(ImageBuildFailed, match="step script failed with exit code 1") as failure:
        await images.build(engine, path, progress=lambda _: None)
    assert "the reason" in failure.value.message
    assert "after" not in failure.value.message
    assert failure.value.context["step"] == "script"
    assert not [image for image in await images.list_images(engine) if "failing" in str(image.tags)]


@pytest.mark.usefixtures("no_trace")
async def test_a_package_that_does_not_exist_is_said(engine: Engine, tmp_path: Path) -> None:
    path = image_file(tmp_path, "nopackage", 'apt = ["no-such-package-at-all"]')
    with pytest.raises(ImageBuildFailed, match="no-such-package-at-all"):
        await images.build(engine, path, progress=lambda _: None)


@pytest.mark.usefixtures("no_trace")
async def test_a_cancelled_build_leaves_no_container(engine: Engine, tmp_path: Path) -> None:
    path = image_file(tmp_path, "cancelled", 'script = "echo started; sleep 600"')
    async with anyio.create_task_group() as group:

        def cancel_once_started(line: str) -> None:
            if line == "started":
                group.cancel_scope.cancel()

        async def run() -> None:
            await images.build(engine, path, progress=cancel_once_started)

        group.start_soon(run)


@pytest.mark.usefixtures("no_trace")
async def test_concurrent_builds_of_the_same_file_build_once(engine: Engine, tmp_path: Path) -> None:
    path = image_file(tmp_path, "once", 'script = "date +%s%N > /etc/when; sleep 1"')
    built: list[images.BuiltImage] = []

    async def run() -> None:
        built.append(await images.build(engine, path, progress=lambda _: None))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(run)
    assert len({image.id for image in built}) == 1
    assert sorted(image.cached for image in built) == [False, True, True]


@pytest.mark.usefixtures("no_trace")
async def test_a_file_can_stand_on_another_and_follows_its_changes(engine: Engine, tmp_path: Path) -> None:
    image_file(tmp_path, "below", 'script = "echo 1 > /etc/below"')
    above = image_file(tmp_path, "above", 'script = "cat /etc/below > /etc/above"', base="./below.toml")
    first = await images.build(engine, above, progress=lambda _: None)
    image_file(tmp_path, "below", 'script = "echo 2 > /etc/below"')
    second = await images.build(engine, above, progress=lambda _: None)
    assert first.digest != second.digest
    assert await run_in(first, "cat", "/etc/above") == "1\n"
    assert await run_in(second, "cat", "/etc/above") == "2\n"


async def test_a_base_that_leads_back_to_itself_is_refused(engine: Engine, tmp_path: Path) -> None:
    image_file(tmp_path, "a", "", base="b.toml")
    path = image_file(tmp_path, "b", "", base="a.toml")
    with pytest.raises(InvalidArgument, match="leads back to itself"):
        await images.build(engine, path, progress=lambda _: None)


async def test_an_image_nobody_has_is_not_found(engine: Engine) -> None:
    with pytest.raises(ImageNotFound, match=r"there is no image boatyard\.invalid/none:1"):
        await images.ensure(engine, "boatyard.invalid/none:1")


async def test_no_engine_is_said_as_such(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="no Docker engine answers"):
        async with Engine.connect(f"unix://{tmp_path}/none.sock"):
            pass


def _exported(image: str, unpacked: Path) -> None:
    """The files of an image, on the host."""
    unpacked.mkdir()
    created = subprocess.run(
        ["docker", "create", "--label=boatyard=1", image, "true"], check=True, capture_output=True, text=True
    ).stdout.strip()
    try:
        with subprocess.Popen(["docker", "export", created], stdout=subprocess.PIPE) as export:
            subprocess.run(["tar", "-x", "-C", str(unpacked), "--exclude=dev"], stdin=export.stdout, check=True)
    finally:
        subprocess.run(["docker", "rm", "-f", created], check=True, capture_output=True)


def _hosts() -> set[str]:
    """The host names in this machine's package settings."""
    texts = [host_config.render_sources(host_config.read_sources("bookworm"))]
    home = Path.home()
    for file in (Path("/etc/pip.conf"), home / ".pip/pip.conf", home / ".config/pip/pip.conf", home / ".npmrc"):
        texts += [file.read_text()] if file.is_file() else []
    urls: list[str] = re.findall(r"https?://[^\s'\"]+", "\n".join(texts))
    return {host for url in urls if (host := urlsplit(url).hostname)}


def _files_that_hold(patterns: set[str], root: Path) -> set[str]:
    """The files below `root` that contain one of `patterns`, as paths of the image."""
    file = root.with_suffix(".patterns")
    file.write_text("\n".join(patterns))
    found = subprocess.run(["grep", "-rlaF", "-f", file, root], capture_output=True, text=True, check=False).stdout
    return {f"/{Path(line).relative_to(root)}" for line in found.splitlines()}


def _from_packages(root: Path) -> set[str]:
    """The files that came as they are in Debian's packages: some mention public hosts on their own."""
    lists = (root / "var/lib/dpkg/info").glob("*.list")
    return {line for file in lists for line in file.read_text().splitlines()}


def _private_certificates() -> Iterator[str]:
    """A line from the middle of each certificate that an administrator added to this machine."""
    for file in Path("/usr/local/share/ca-certificates").glob("**/*.crt"):
        lines = [line for line in file.read_text().splitlines() if len(line) == 64]
        if lines:
            yield lines[len(lines) // 2]


@pytest.mark.usefixtures("no_trace")
async def test_nothing_of_the_hosts_package_settings_is_in_an_image(engine: Engine, tmp_path: Path) -> None:
    built = await images.build(
        engine, image_file(tmp_path, "leaks", 'apt = ["tree"]\npip = ["iniconfig"]'), progress=print
    )
    await anyio.to_thread.run_sync(_exported, built.id, tmp_path / "files")
    files = tmp_path / "files"
    secrets = {*_private_certificates(), "/run/boatyard"}
    assert await anyio.to_thread.run_sync(_files_that_hold, secrets, files) == set()
    hosts = await anyio.to_thread.run_sync(_hosts)
    holders = await anyio.to_thread.run_sync(_files_that_hold, hosts, files)
    packaged = await anyio.to_thread.run_sync(_from_packages, files)
    ours = {path for path in holders - packaged if "__pycache__" not in path}
    assert not {path for path in ours if not path.startswith("/var/lib/dpkg/")}
    assert not list((files / "etc/apt/sources.list.d").iterdir())
    history = await anyio.run_process(["docker", "history", "--no-trunc", built.id])
    inspected = await anyio.run_process(["docker", "inspect", built.id])
    said = history.stdout + inspected.stdout
    assert not [text for text in secrets | hosts if text.encode() in said]


@pytest.mark.slow
@pytest.mark.usefixtures("no_trace")
async def test_npm_packages_bring_nodejs_with_them(engine: Engine, tmp_path: Path) -> None:
    built = await images.build(engine, image_file(tmp_path, "npm", 'npm = ["is-odd@3.0.1"]'), progress=print)
    said = await run_in(built, "bash", "-c", "NODE_PATH=$(npm root -g) node -p 'require(\"is-odd\")(3)'", user="user")
    assert said == "true\n"
