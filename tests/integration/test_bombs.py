"""Commands that take all they can get. The sandbox says what it ran out of and goes on; a neighbour notices nothing."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import pytest

from sandbox.backends.docker import DockerBackend
from sandbox.client.sandbox import GuestSandbox
from sandbox.types import MIB, ExecResult, Exhausted, Limits, Reason, SandboxSpec

pytestmark = pytest.mark.docker
MakeSpec = Callable[..., SandboxSpec]

LIMITS = Limits(
    memory_bytes=256 * MIB, disk_bytes=24 * MIB, tmp_bytes=16 * MIB, output_bytes=8 * MIB, n_processes=128, cpus=0.5
)
ENDLESS_S = 2.0
LIMIT_S = 40.0


@dataclass(frozen=True, kw_only=True)
class Bomb:
    name: str
    command: str
    reasons: tuple[Reason, ...] = (Reason.EXITED,)
    exhausted: Exhausted | None = None
    clean_up: str = "true"
    """What a user would do after it."""


def python(code: str) -> str:
    return f"python3 -c '{code}'"


_MANY_FILES = 'import itertools\nfor n in itertools.count(): open(str(n), "w").close()'
_FILL = "cat /dev/zero > {0}/fill; dd if=/dev/zero of={0}/rest bs=1k; exit 5"
_ENDLESS = (Reason.TIMED_OUT,)

BOMBS = [
    Bomb(
        name="forks",
        command="bomb() { bomb | bomb & }; bomb; sleep 60",
        reasons=_ENDLESS,
        exhausted=Exhausted.PROCESSES,
    ),
    Bomb(
        name="forks in Python",
        command=python("import os\nwhile True:\n try: os.fork()\n except OSError: pass"),
        reasons=_ENDLESS,
        exhausted=Exhausted.PROCESSES,
    ),
    Bomb(
        name="memory",
        command=python("x = []\nwhile True: x.append(bytearray(1 << 20))"),
        reasons=(Reason.OOM_KILLED,),
        exhausted=Exhausted.MEMORY,
    ),
    Bomb(
        name="memory, many small",
        command="for i in $(seq 40); do python3 -c 'x = bytearray(20 << 20); import time; time.sleep(8)' & done; wait",
        reasons=(Reason.EXITED, Reason.OOM_KILLED),
        exhausted=Exhausted.MEMORY,
    ),
    Bomb(
        name="workspace",
        command=_FILL.format("."),
        exhausted=Exhausted.DISK,
        clean_up="rm -f /workspace/fill /workspace/rest",
    ),
    Bomb(name="home", command=_FILL.format("~"), exhausted=Exhausted.DISK, clean_up="rm -f ~/fill ~/rest"),
    Bomb(name="tmp", command=_FILL.format("/tmp"), exhausted=Exhausted.DISK, clean_up="rm -f /tmp/fill /tmp/rest"),
    Bomb(
        name="shared memory",
        command=_FILL.format("/dev/shm"),
        exhausted=Exhausted.DISK,
        clean_up="rm -f /dev/shm/fill /dev/shm/rest",
    ),
    Bomb(
        name="inodes",
        command=f"mkdir many && cd many && {python(_MANY_FILES)}",
        exhausted=Exhausted.DISK,
        clean_up="rm -rf /workspace/many",
    ),
    Bomb(
        name="inodes in /tmp",
        command=f"mkdir /tmp/many && cd /tmp/many && {python(_MANY_FILES)}",
        exhausted=Exhausted.DISK,
        clean_up="rm -rf /tmp/many",
    ),
    Bomb(name="a sparse file", command="truncate -s 1T sparse", reasons=(Reason.EXITED, Reason.SIGNALED)),
    Bomb(name="open files", command=python("import os\nwhile True: os.dup(0)")),
    Bomb(name="output", command="yes", reasons=_ENDLESS),
    Bomb(name="a long line", command="cat /dev/zero", reasons=_ENDLESS),
    Bomb(
        name="deep directories",
        command=python('import os\nfor n in range(3000): os.mkdir("d"); os.chdir("d")'),
        clean_up="rm -rf /workspace/d",
    ),
    Bomb(
        name="every core",
        command="for i in $(seq 16); do (while :; do :; done) & done; wait",
        reasons=_ENDLESS,
    ),
    Bomb(
        name="zombies",
        command=python("import os, time\nfor n in range(100):\n if not os.fork(): os._exit(0)\ntime.sleep(60)"),
        reasons=_ENDLESS,
    ),
    Bomb(
        name="orphans",
        command=python(
            "import os\nfor n in range(999):\n if not os.fork():\n  os.fork() or os._exit(0)\n  os._exit(0)\n os.wait()"
        ),
        reasons=(Reason.EXITED, Reason.TIMED_OUT),
    ),
    Bomb(
        name="signals to everything",
        command="for i in $(seq 64); do kill -$i -1; kill -$i 1; done",
        reasons=(Reason.EXITED, Reason.SIGNALED, Reason.TIMED_OUT),
    ),
    Bomb(name="pipes", command=python("import os\nwhile True: os.pipe()")),
    Bomb(name="sockets", command=python("import socket\nk = []\nwhile True: k.append(socket.socketpair())")),
    Bomb(
        name="threads",
        command=python("import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()"),
        reasons=(Reason.EXITED, Reason.TIMED_OUT),
        exhausted=Exhausted.PROCESSES,
    ),
]


@pytest.fixture(scope="module")
async def neighbour(docker_backend: DockerBackend, spec: MakeSpec) -> AsyncGenerator[GuestSandbox]:
    async with await docker_backend.create(spec()) as sandbox:
        yield sandbox


async def works(sandbox: GuestSandbox) -> bool:
    async with asyncio.timeout(30):
        await sandbox.write("/workspace/after", b"well")
        return (await sandbox.execute("cat /workspace/after; echo")).stdout.head == b"well\n"


async def keep_asking(neighbour: GuestSandbox) -> None:
    while True:
        assert await works(neighbour)


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.name.replace(" ", "-"))
async def test_a_bomb_hurts_only_its_own_command(
    docker_backend: DockerBackend, spec: MakeSpec, neighbour: GuestSandbox, bomb: Bomb
) -> None:
    async with await docker_backend.create(spec(limits=LIMITS)) as sandbox:
        asking = asyncio.create_task(keep_asking(neighbour))
        try:
            timeout_s = ENDLESS_S if Reason.TIMED_OUT in bomb.reasons else LIMIT_S
            result = await asyncio.wait_for(sandbox.execute(bomb.command, timeout_s=timeout_s), LIMIT_S * 2)
        finally:
            asking.cancel()
            await asyncio.wait([asking])
        assert asking.cancelled(), "the neighbour failed"
        check(bomb, result)
        await sandbox.execute(bomb.clean_up, timeout_s=30)
        assert await works(sandbox)
        assert [info for info in await sandbox.processes() if info.n_alive] == []


def check(bomb: Bomb, result: ExecResult) -> None:
    assert result.reason in bomb.reasons, result
    if bomb.exhausted is not None:
        assert bomb.exhausted in result.exhausted, result
