"""Sandboxes on the real engine: what they are made of, how they are found again, and what is refused."""

import asyncio
import contextlib
import gc
import json
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path, PurePosixPath
from typing import Any

import anyio
import pytest
from pydantic import ValidationError

from sandbox.backends.docker import DockerBackend
from sandbox.backends.docker.container import name_of
from sandbox.backends.docker.engine import Engine
from sandbox.client.sandbox import GuestSandbox
from sandbox.errors import (
    CannotCreate,
    ImageNotFound,
    ImageUnsuitable,
    InvalidArgument,
    NoSpace,
    NotDirectory,
    NotFound,
    PermissionDenied,
    SandboxLost,
    SandboxNotFound,
    UnknownUser,
    UserNotAllowed,
)
from sandbox.state import state_dir
from sandbox.types import GIB, MIB, Limits, SandboxId, SandboxSpec, SandboxState, Weakness
from tests.conftest import RUN, RUN_LABEL

pytestmark = pytest.mark.docker
MakeSpec = Callable[..., SandboxSpec]


async def said(sandbox: GuestSandbox, command: str) -> str:
    result = await sandbox.execute(command, timeout_s=20)
    return result.stdout.head.decode().strip()


async def inspect(sandbox_id: SandboxId) -> dict[str, Any]:
    done = await anyio.run_process(["docker", "inspect", name_of(sandbox_id)])
    return json.loads(done.stdout)[0]


async def test_commands_run_as_uid_1000_with_no_capabilities_and_no_new_privileges(
    shared_sandbox: GuestSandbox,
) -> None:
    status = await said(shared_sandbox, "id -u; grep -E '^(CapInh|CapPrm|CapEff|CapAmb|NoNewPrivs)' /proc/self/status")
    uid, *lines = status.splitlines()
    assert uid == "1000"
    assert {line.split()[0]: int(line.split()[1], 16) for line in lines} == {
        "CapInh:": 0,
        "CapPrm:": 0,
        "CapEff:": 0,
        "CapAmb:": 0,
        "NoNewPrivs:": 1,
    }


async def test_a_command_cannot_become_root_again(shared_sandbox: GuestSandbox) -> None:
    script = "import os; print(os.getresuid(), os.getresgid()); os.setuid(0)"
    result = await shared_sandbox.execute(["python3", "-c", script])
    assert b"(1000, 1000, 1000) (1000, 1000, 1000)" in result.stdout.head
    assert b"PermissionError" in result.stdout.head


async def test_there_is_no_network_but_loopback(shared_sandbox: GuestSandbox) -> None:
    assert await said(shared_sandbox, "ls /sys/class/net") == "lo"
    assert await said(shared_sandbox, "tail -n +2 /proc/net/route | wc -l") == "0"


async def test_the_root_is_read_only_and_the_workspace_is_not(shared_sandbox: GuestSandbox) -> None:
    for path in ("/etc/x", "/usr/local/x", "/x", "/var/x", "/run/x", "/run/boatyard/output/x"):
        with pytest.raises(PermissionDenied):
            await shared_sandbox.write(path, b"")
    for path in ("/workspace/x", "/home/user/x", "/tmp/x"):
        await shared_sandbox.write(path, b"#!/bin/sh\necho ran", mode=0o755)
        assert (await shared_sandbox.execute([path])).stdout.head == b"ran\n"


async def test_the_guest_cannot_be_read_or_signalled_by_a_command(shared_sandbox: GuestSandbox) -> None:
    for probe in ("cat /proc/1/environ", "ls /proc/1/fd", "cat /proc/1/maps", "head -c1 /proc/1/mem"):
        result = await shared_sandbox.execute(probe)
        assert result.exit_code != 0, probe
        assert b"ermitted" in result.stdout.head or b"denied" in result.stdout.head, (probe, result.stdout.head)
    await shared_sandbox.execute("kill -9 1; kill -STOP 1")  # dropped by the kernel, whoever sends it
    assert (await shared_sandbox.execute("true")).ok


async def test_limits_are_set_on_the_container(docker_backend: DockerBackend, spec: MakeSpec) -> None:
    changed = {"n_processes": 64, "n_open_files": 256, "cpus": 0.5, "disk_bytes": 64 * MIB}
    limits = Limits.for_memory(512 * MIB).model_copy(update=changed)
    async with await docker_backend.create(spec(limits=limits)) as sandbox:
        host = (await inspect(sandbox.id))["HostConfig"]
        assert (host["Memory"], host["MemorySwap"]) == (512 * MIB, 512 * MIB)
        assert (host["NanoCpus"], host["PidsLimit"]) == (500_000_000, 64)
        assert await said(sandbox, "ulimit -n") == "256"
        for path in ("/workspace", "/home/user"):
            room = int(await said(sandbox, f"df --output=avail -B1 {path} | tail -1"))
            assert limits.disk_bytes <= room < limits.disk_bytes * 1.1
        forks = await sandbox.execute("for i in $(seq 200); do sleep 5 & done; echo done", timeout_s=10)
        assert b"fork" in forks.stdout.head


async def test_a_full_workspace_is_no_space_and_leaves_nothing(docker_backend: DockerBackend, spec: MakeSpec) -> None:
    limits = Limits(disk_bytes=32 * MIB)
    async with await docker_backend.create(spec(limits=limits)) as sandbox:
        await sandbox.write("kept", b"before")
        too_much = bytes(limits.disk_bytes * 3 // 2)
        for atomic in (True, False):
            with pytest.raises(NoSpace):
                await sandbox.write("big", too_much, atomic=atomic)
        with pytest.raises(NoSpace):
            await sandbox.write("kept", too_much)
        assert await sandbox.read("kept") == b"before"
        assert [info.path.name for info in await sandbox.ls()] == ["kept"]


async def test_mounts_env_and_labels_come_from_the_spec(
    docker_backend: DockerBackend, spec: MakeSpec, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "skill.md").write_text("read me")
    fields: dict[str, Any] = {
        "mounts": [{"source": tmp_path, "target": "/skills/one"}],
        "env": {"GREETING": "hello $USER"},
        "labels": {RUN_LABEL: RUN, "team": "blue"},
    }
    async with await docker_backend.create(spec(**fields)) as sandbox:
        assert await sandbox.read("/skills/one/skill.md") == b"read me"
        assert "Read-only" in await said(sandbox, "touch /skills/one/x 2>&1")
        assert not (tmp_path / "x").exists()
        assert await said(sandbox, 'echo "$GREETING"') == "hello $USER"
        assert (await sandbox.execute('echo "$GREETING"', env={"GREETING": "no"})).stdout.head == b"no\n"
        found = await docker_backend.list({RUN_LABEL: RUN, "team": "blue"})
        assert [info.id for info in found] == [sandbox.id]
        assert found[0].state is SandboxState.RUNNING
        assert found[0].image_digest == (await inspect(sandbox.id))["Image"]
        assert await docker_backend.list({RUN_LABEL: RUN, "team": "red"}) == []


async def test_a_sandbox_is_found_and_destroyed_by_label(docker_backend: DockerBackend, spec: MakeSpec) -> None:
    labels = {RUN_LABEL: RUN, "batch": secrets.token_hex(4)}
    ids = set[SandboxId]()
    for _ in range(3):
        sandbox = await docker_backend.create(spec(labels=labels))
        ids.add(sandbox.id)
        await sandbox.detach()
    assert {info.id for info in await docker_backend.list(labels)} == ids
    for sandbox_id in ids:
        await docker_backend.destroy(sandbox_id)
        await docker_backend.destroy(sandbox_id)
    assert await docker_backend.list(labels) == []


async def test_connecting_to_nothing_says_so(docker_backend: DockerBackend) -> None:
    with pytest.raises(SandboxNotFound):
        await docker_backend.connect(SandboxId("00000000"))


async def test_a_container_removed_under_us_is_lost(docker_backend: DockerBackend, spec: MakeSpec) -> None:
    sandbox = await docker_backend.create(spec())
    running = asyncio.create_task(sandbox.execute("sleep 60"))
    await docker_backend.destroy(sandbox.id)
    with pytest.raises(SandboxLost):
        await running
    with pytest.raises(SandboxLost):
        await sandbox.stat("/")
    with pytest.raises(SandboxNotFound):
        await docker_backend.connect(sandbox.id)
    await docker_backend.destroy(sandbox.id)


async def test_an_image_without_python_says_so_and_leaves_nothing(
    docker_backend: DockerBackend, spec: MakeSpec
) -> None:
    reference = f"boatyard-test-empty:{secrets.token_hex(4)}"
    await anyio.run_process(f"tar c --files-from /dev/null | docker import - {reference}")
    try:
        with pytest.raises(ImageUnsuitable, match=r"Python 3\.8"):
            await docker_backend.create(spec(image=reference, labels={RUN_LABEL: RUN, "case": "no-python"}))
    finally:
        await anyio.run_process(["docker", "rmi", reference])
    assert await docker_backend.list({"case": "no-python", RUN_LABEL: RUN}) == []


async def test_an_unknown_image_says_so(docker_backend: DockerBackend, spec: MakeSpec) -> None:
    with pytest.raises(ImageNotFound):
        await docker_backend.create(spec(image="no-such-image-anywhere"))


async def test_a_disk_that_cannot_be_made_is_refused_or_kept_in_memory_by_name(
    docker_backend: DockerBackend, spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.volumes._PATH", "/nonexistent")
    labels = {RUN_LABEL: RUN, "case": "no-disk"}
    with pytest.raises(CannotCreate, match="disk_in_memory"):
        await docker_backend.create(spec(labels=labels))
    assert await docker_backend.list(labels) == []
    limits = Limits(disk_bytes=96 * MIB)
    weaker = {Weakness.DISK_IN_MEMORY}
    async with await docker_backend.create(spec(labels=labels, limits=limits, allow_weaker=weaker)) as sandbox:
        assert [info.weaker for info in await docker_backend.list(labels)] == [weaker]
        assert await said(sandbox, "stat -f -c %T /workspace /home/user") == "tmpfs\ntmpfs"
        with pytest.raises(NoSpace):
            await sandbox.write("big", bytes(limits.disk_bytes))


async def test_a_disk_goes_with_its_sandbox(docker_backend: DockerBackend, spec: MakeSpec) -> None:
    volumes = state_dir(os.environ, uid=os.getuid()) / "volumes"
    async with await docker_backend.create(spec()) as sandbox:
        assert (volumes / sandbox.id).is_mount()
        assert [info.weaker for info in await docker_backend.list() if info.id == sandbox.id] == [frozenset()]
    assert not list(volumes.glob(f"{sandbox.id}*"))


async def test_a_mount_that_does_not_exist_is_refused(docker_backend: DockerBackend, spec: MakeSpec) -> None:
    labels = {RUN_LABEL: RUN, "case": "bad-mount"}
    with pytest.raises(CannotCreate, match="/nonexistent"):
        await docker_backend.create(
            spec(mounts=[{"source": "/nonexistent", "target": "/x"}], labels=labels),
        )
    assert await docker_backend.list(labels) == []


@pytest.fixture
def meetings(monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """Where backends made from now on keep the directories of their sandboxes; other tests use another place."""
    with tempfile.TemporaryDirectory(prefix="boatyard-") as state:
        monkeypatch.setenv("BOATYARD_STATE_DIR", state)
        (Path(state) / "meet").mkdir()
        yield Path(state) / "meet"


async def test_a_create_given_up_at_any_moment_leaves_nothing(spec: MakeSpec, meetings: Path) -> None:
    labels = {RUN_LABEL: RUN, "case": secrets.token_hex(4)}
    complaints: list[str] = []

    async def give_up(backend: DockerBackend, after_s: float, n_times: int) -> None:
        creating = asyncio.create_task(backend.create(spec(labels=labels, orphan_after_s=None)))
        await asyncio.sleep(after_s)
        for _ in range(n_times):
            creating.cancel()
            await asyncio.sleep(0.001)
        with contextlib.suppress(asyncio.CancelledError):
            await (await creating).destroy()

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(str(context)))
    try:
        async with DockerBackend.open() as backend:
            await (await backend.create(spec())).destroy()
            for first in range(0, 120, 6):
                async with asyncio.TaskGroup() as tasks:
                    for number in range(first, first + 6):
                        tasks.create_task(give_up(backend, number * 0.002, 1 + number % 3))
            assert await backend.list(labels) == []
            assert list(meetings.iterdir()) == []
            assert backend.watchdog.n_guarded == 0
        gc.collect()
        assert complaints == []
    finally:
        loop.set_exception_handler(None)


async def test_a_create_that_fails_leaves_no_directory(spec: MakeSpec, meetings: Path) -> None:
    async with DockerBackend.open() as backend:
        with pytest.raises(CannotCreate):
            await backend.create(spec(mounts=[{"source": "/nonexistent", "target": "/x"}]))
        with pytest.raises(CannotCreate):
            await backend.create(spec(limits=Limits(cpus=256)))
    assert list(meetings.iterdir()) == []


async def test_a_state_directory_that_cannot_be_written_says_so(
    docker_backend: DockerBackend, spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await docker_backend.create(spec()) as sandbox:
        digest = (await inspect(sandbox.id))["Image"]
    (tmp_path / "file").write_text("")
    (tmp_path / "half").mkdir()
    (tmp_path / "half/meet").write_text("")
    for state in (tmp_path / "file", tmp_path / "half"):
        monkeypatch.setenv("BOATYARD_STATE_DIR", str(state))
        async with DockerBackend.open() as backend:
            with pytest.raises(CannotCreate, match=rf"{state}.*; set BOATYARD_STATE_DIR"):
                await backend.create(spec(image=digest))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("/etc", "/run/boatyard"),
        ("/etc", "/run/boatyard/private/x"),
        ("/etc", "/run"),
        ("/etc", "//run/boatyard"),
        ("/etc", "/var/run/boatyard"),
        ("/etc", "/usr/local/lib/boatyard"),
        ("/etc/hostname", "/usr/local/lib/boatyard/guest.pyz"),
        ("/etc", "/usr/local"),
        ("/etc", "/proc"),
        ("/etc", "/proc/1"),
        ("/etc", "/sys/fs"),
        ("/etc", "/dev/shm"),
    ],
)
async def test_a_mount_over_what_a_sandbox_needs_is_refused_by_name(
    docker_backend: DockerBackend, spec: MakeSpec, source: str, target: str
) -> None:
    with pytest.raises(CannotCreate, match=re.escape(str(PurePosixPath(target)))):
        await docker_backend.create(spec(mounts=[{"source": source, "target": target}]))


async def test_a_mount_that_would_show_the_engine_is_refused(
    docker_backend: DockerBackend, spec: MakeSpec, tmp_path: Path
) -> None:
    socket = Path(docker_backend.engine.host.removeprefix("unix://"))
    data = await docker_backend.engine.data_directory()
    (tmp_path / "link").symlink_to(socket.resolve())
    for source in ("/var/run/docker.sock", socket, socket.resolve().parent, tmp_path / "link", data, "/"):
        with pytest.raises(CannotCreate, match="engine"):
            await docker_backend.create(spec(mounts=[{"source": source, "target": "/x"}]))


async def test_a_mount_that_would_show_our_own_state_is_refused(
    docker_backend: DockerBackend, spec: MakeSpec, tmp_path: Path
) -> None:
    state = state_dir(os.environ, uid=os.getuid())
    (tmp_path / "link").symlink_to(state)
    for source in (state, state.parent, state / "guest", state / "meet", tmp_path / "link" / "guest"):
        with pytest.raises(CannotCreate, match=re.escape(f"{source} cannot be mounted")):
            await docker_backend.create(spec(mounts=[{"source": source, "target": "/x"}]))


async def test_what_a_link_led_to_when_it_was_checked_is_what_is_mounted(
    docker_backend: DockerBackend, spec: MakeSpec, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    async with await docker_backend.create(spec(mounts=[{"source": tmp_path / "link", "target": "/x"}])) as sandbox:
        mounts = (await inspect(sandbox.id))["HostConfig"]["Mounts"]
        assert [m["Source"] for m in mounts if m["Target"] == "/x"] == [str((tmp_path / "real").resolve())]


async def test_a_mount_can_be_the_workspace(docker_backend: DockerBackend, spec: MakeSpec, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    mounts = [{"source": tmp_path, "target": "/workspace", "read_only": False}]
    async with await docker_backend.create(spec(mounts=mounts)) as sandbox:
        await sandbox.write("made inside", b"x")
    assert (tmp_path / "made inside").read_bytes() == b"x"


async def test_why_a_sandbox_ended_is_told(docker_backend: DockerBackend, spec: MakeSpec) -> None:
    async def kill(sandbox: GuestSandbox) -> None:
        await anyio.run_process(["docker", "kill", name_of(sandbox.id)])

    removed = await docker_backend.create(spec())
    async with await docker_backend.create(spec(orphan_after_s=None)) as kept:
        assert await docker_backend.why_ended(kept.id) == "it is running"
        await anyio.run_process(["docker", "pause", name_of(kept.id)])
        assert await docker_backend.why_ended(kept.id) == "it is paused"
        await kill(kept)
        await kill(removed)
        assert await docker_backend.why_ended(kept.id) == "it was killed, exit code 137"
        async with asyncio.timeout(10):
            while (why := await docker_backend.why_ended(removed.id)) == "it was killed, exit code 137":
                pass  # it removes itself a moment later
        assert why == "its container was removed (it was killed, exit code 137)"
    await docker_backend.destroy(removed.id)
    assert await docker_backend.why_ended(SandboxId("00000000")) == "its container was removed"


async def test_why_a_sandbox_ended_is_asked_of_an_engine_that_is_gone() -> None:
    gone = DockerBackend(Engine("unix:///nonexistent"))
    assert await gone.why_ended(SandboxId("00000000")) == "the engine does not say why"
    await gone.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"imag": "base"},
        {"image": ""},
        {"limits": {"memory_bytes": 1}},
        {"limits": {"memory_bytes": GIB, "tmp_bytes": GIB}},
        {"limits": {"cpus": -1}},
        {"limits": {"disk": 5}},
        {"mounts": [{"source": "relative", "target": "/x"}]},
        {"mounts": [{"source": "/etc", "target": "/x/../.."}]},
        {"labels": {"bad label!": "x"}},
        {"env": {"1A": "x"}},
        {"env": {"A": "x\0y"}},
        {"orphan_after_s": -1},
    ],
)
def test_a_bad_spec_is_refused_before_anything_is_made(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SandboxSpec.model_validate(fields)


async def test_bad_arguments_of_commands_are_typed_errors(shared_sandbox: GuestSandbox) -> None:
    cases: list[tuple[type[Exception], dict[str, Any]]] = [
        (UnknownUser, {"command": "true", "user": "nobody-here"}),
        (UserNotAllowed, {"command": "true", "user": "root"}),
        (UserNotAllowed, {"command": "true", "user": "0"}),
        (NotFound, {"command": "true", "cwd": "/no/such"}),
        (NotDirectory, {"command": "true", "cwd": "/etc/passwd"}),
        (PermissionDenied, {"command": "true", "cwd": "/root"}),
        (InvalidArgument, {"command": ""}),
        (InvalidArgument, {"command": []}),
        (InvalidArgument, {"command": ["echo", 5]}),
        (InvalidArgument, {"command": "echo \0"}),
        (InvalidArgument, {"command": 5}),
        (InvalidArgument, {"command": "true", "timeout_s": -1}),
        (InvalidArgument, {"command": "true", "timeout_s": "5"}),
        (InvalidArgument, {"command": "true", "env": {"A=B": "x"}}),
        (InvalidArgument, {"command": "true", "head_bytes": -1}),
        (InvalidArgument, {"command": "true", "stdin": "text"}),
    ]
    for error, arguments in cases:
        with pytest.raises(error) as caught:
            await shared_sandbox.execute(**arguments)
        assert len(str(caught.value)) > 10, arguments
    with pytest.raises(TypeError):
        await shared_sandbox.execute("true", colour="blue")  # pyright: ignore[reportCallIssue]  the case under test
    assert await shared_sandbox.processes() == []


async def test_the_guest_leaves_no_temporary_files(shared_sandbox: GuestSandbox) -> None:
    await shared_sandbox.write("d/f", b"x" * 100_000)
    await shared_sandbox.edit("d/f", "x" * 100_000, "y")
    assert [info.path for info in await shared_sandbox.ls("d")] == [PurePosixPath("/workspace/d/f")]
