"""Whose a sandbox is: taken over, lost, let go of. Nobody destroys what somebody else holds."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.backends.docker import DockerBackend
from sandbox.client.sandbox import GuestSandbox
from sandbox.errors import LeaseLost, SandboxError, SandboxLost, SandboxNotFound
from sandbox.state import state_dir
from sandbox.types import SandboxId, SandboxSpec

pytestmark = pytest.mark.docker
MakeSpec = Callable[..., SandboxSpec]
ROOT = Path(__file__).parents[2]

_TAKE_OVER = """
import asyncio, sys
from sandbox.backends.docker import DockerBackend

async def main():
    async with DockerBackend.open() as backend:
        await (await backend.connect(sys.argv[1])).detach()

asyncio.run(main())
"""


async def works(sandbox: GuestSandbox) -> bool:
    async with asyncio.timeout(20):
        return (await sandbox.execute("echo well")).stdout.head == b"well\n"


def cut(sandbox: GuestSandbox) -> None:
    """As if its socket had failed."""
    sandbox._link.lost("cut by the test")  # pyright: ignore[reportPrivateUsage]


async def exists(backend: DockerBackend, sandbox_id: SandboxId) -> bool:
    return sandbox_id in [info.id for info in await backend.list()]


async def test_a_former_holder_is_told_and_destroys_nothing(docker_backend: DockerBackend, spec: MakeSpec) -> None:
    async with await docker_backend.create(spec()) as first:
        second = await docker_backend.connect(first.id)
        with pytest.raises(LeaseLost):
            await first.execute("sleep 20")
    assert await works(second)
    await second.destroy()


async def test_a_former_holder_that_speaks_before_it_listens_is_told_too(
    docker_backend: DockerBackend, spec: MakeSpec
) -> None:
    """Its event loop hung during the takeover, and the first thing it does is to write."""
    async with await docker_backend.create(spec()) as first:
        assert await works(first)
        taken = subprocess.run([sys.executable, "-c", _TAKE_OVER, first.id], cwd=ROOT, check=False, timeout=60)
        assert taken.returncode == 0
        with pytest.raises(LeaseLost):
            await first.execute("true")
    assert await exists(docker_backend, first.id)
    await docker_backend.destroy(first.id)


async def test_a_former_holder_with_a_full_socket_is_told_where_a_frame_ends(
    docker_backend: DockerBackend, spec: MakeSpec
) -> None:
    async with await docker_backend.create(spec()) as first:
        process = await first.start("yes | head -c 64M; sleep 20")
        taken = subprocess.run([sys.executable, "-c", _TAKE_OVER, first.id], cwd=ROOT, check=False, timeout=60)
        assert taken.returncode == 0
        with pytest.raises(LeaseLost):
            await process.wait()
    assert await exists(docker_backend, first.id)
    await docker_backend.destroy(first.id)


async def test_a_creator_that_lost_touch_leaves_alone_what_was_taken_over(
    docker_backend: DockerBackend, spec: MakeSpec
) -> None:
    async with await docker_backend.create(spec()) as first:
        cut(first)
        second = await docker_backend.connect(first.id)
        with pytest.raises(SandboxLost):
            await first.execute("true")
    assert await works(second)
    await second.destroy()


async def test_a_creator_that_lost_touch_destroys_what_is_still_its_own(
    docker_backend: DockerBackend, spec: MakeSpec
) -> None:
    async with await docker_backend.create(spec()) as sandbox:
        cut(sandbox)
    assert not await exists(docker_backend, sandbox.id)


async def test_what_is_left_of_a_dead_sandbox_is_removed(docker_backend: DockerBackend, spec: MakeSpec) -> None:
    async with await docker_backend.create(spec()) as sandbox:
        await docker_backend.engine.remove_container(f"boatyard-{sandbox.id}")
        with pytest.raises(SandboxLost):
            await sandbox.execute("true")
    assert not (state_dir(os.environ, uid=os.getuid()) / "meet" / sandbox.id).exists()


async def test_a_sandbox_that_was_let_go_of_outlives_its_block(docker_backend: DockerBackend, spec: MakeSpec) -> None:
    async with await docker_backend.create(spec()) as first:
        await first.detach()
    second = await docker_backend.connect(first.id)
    assert await works(second)
    await second.destroy()
    with pytest.raises(SandboxNotFound):
        await docker_backend.connect(first.id)


@pytest.mark.parametrize("meet", [True, False], ids=["socket", "attach"])
async def test_of_many_who_connect_at_once_each_works_until_the_next_one_comes(spec: MakeSpec, meet: bool) -> None:
    async with DockerBackend.open(meet=meet) as backend:
        created = await backend.create(spec())
        try:
            for _ in range(5):
                connecting = (backend.connect(created.id) for _ in range(4))
                met = await asyncio.gather(*connecting, return_exceptions=True)
                # Who was replaced while it was still being greeted is told so, and nothing else happens to it.
                assert all(isinstance(one, GuestSandbox | LeaseLost) for one in met), met
                sandboxes = [one for one in met if isinstance(one, GuestSandbox)]
                last = max(sandboxes, key=lambda sandbox: sandbox.welcome.epoch)
                assert await works(last)
                for sandbox in sandboxes:
                    if sandbox is not last:
                        with pytest.raises(SandboxError):
                            await sandbox.execute("true")
        finally:
            await backend.destroy(created.id)


async def test_a_command_cannot_come_to_the_meeting(sandbox: GuestSandbox) -> None:
    """Also if the directory is its user's on the host, as when the host's process runs under the same uid."""
    directory = state_dir(os.environ, uid=os.getuid()) / "meet" / sandbox.id
    os.chown(directory, 1000, 1000)
    directory.chmod(0o777)
    seen = await sandbox.execute("ls /run/boatyard/private || ls /run/boatyard/private/host", separate=True)
    assert seen.exit_code != 0
    assert seen.stdout.head == b""
    assert seen.stderr.head.count(b"Permission denied") == 2
