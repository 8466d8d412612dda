"""The guest under other Pythons than the base image's, and in images that are not ours."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.backends.docker import DockerBackend
from sandbox.conformance import CHECKS, Verdict, expectations, run_one
from sandbox.errors import ImageUnsuitable
from sandbox.types import SandboxSpec

pytestmark = pytest.mark.docker
MakeSpec = Callable[..., SandboxSpec]


def pythons() -> dict[str, Path]:
    """Those that pyenv keeps on this machine, by their minor version."""
    found = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3"))
    return {".".join(path.parts[-3].split(".")[:2]): path.parents[1] for path in found}


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True, timeout=120, check=True).stdout.strip()


@pytest.fixture
def image_with(request: pytest.FixtureRequest) -> Iterator[str]:
    """The base image with another Python first on its PATH and without our user."""
    version: str = request.param
    home = pythons().get(version)
    if home is None:
        pytest.skip(f"no Python {version} on this machine")
    container = docker("create", "--label=boatyard=1", "boatyard/base:latest")
    tag = f"boatyard-test-python:{version}"
    try:
        libraries = [f"lib/{path.name}" for path in home.glob(f"lib/libpython{version}*.so.1.0")]
        for name in (f"lib/python{version}", f"bin/python{version}", *libraries):
            subprocess.run(
                f"tar c -C {home} --exclude=test --exclude=site-packages --exclude=config-* --exclude=__pycache__ "
                f"--transform 's,^,opt/python/,' {name} | docker cp - {container}:/",
                shell=True,
                check=True,
                timeout=120,
            )
        docker("commit", container, tag)
    finally:
        docker("rm", "-f", container)
    finishing = docker(
        *("run", "-d", "--user=0", "--label=boatyard=1", "--network=none", tag, "sh", "-c"),
        "echo /opt/python/lib > /etc/ld.so.conf.d/python.conf; ldconfig; userdel user; rm -rf /home/user /workspace; "
        f"ln -sf /opt/python/bin/python{version} /usr/local/bin/python3",
    )
    try:
        docker("wait", finishing)
        docker("commit", finishing, tag)
    finally:
        docker("rm", "-f", finishing)
    yield tag
    docker("rmi", "-f", tag)


@pytest.mark.parametrize("image_with", ["3.8", "3.13"], indirect=True)
async def test_the_guest_runs_on_it_and_needs_no_user_of_ours(
    image_with: str, docker_backend: DockerBackend, spec: MakeSpec
) -> None:
    async with await docker_backend.create(spec(image=image_with)) as sandbox:
        assert sandbox.welcome.python[:2] == tuple(map(int, image_with.rpartition(":")[2].split(".")))
        assert (await sandbox.execute("id -u; pwd; echo $HOME")).stdout.head == b"1000\n/workspace\n/home/user\n"
        for check in CHECKS:
            outcome = await run_one(check, sandbox, expectations.DOCKER.get(check.name))
            assert outcome.verdict is Verdict.HOLDS, f"{check.name}: {outcome.reason}"


@pytest.mark.parametrize("image_with", ["3.7"], indirect=True)
async def test_an_older_one_is_named(image_with: str, docker_backend: DockerBackend, spec: MakeSpec) -> None:
    with pytest.raises(ImageUnsuitable, match=r"3\.7 is too old"):
        await docker_backend.create(spec(image=image_with))
