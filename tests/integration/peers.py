"""Other processes that hold a sandbox: how a test starts one, and what each does. Run as `python -m` this module.

A peer prints one JSON line when it is where the test wants it, then waits to be killed or stopped.
"""

import asyncio
import contextlib
import functools
import itertools
import json
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, ParamSpec

from sandbox import wire
from sandbox.backends.docker import DockerBackend, container
from sandbox.backends.docker.attach import AttachStream
from sandbox.client.link import Link, Receiver
from sandbox.client.processes import GuestProcess
from sandbox.client.sandbox import GuestSandbox
from sandbox.protocol import OutputChunk
from sandbox.types import MIB, RequestId, SandboxId, SandboxSpec
from sandbox.watchdog import Watchdog

P = ParamSpec("P")
Test = Callable[P, Coroutine[Any, Any, None]]

LEASE_S = 3.0
READY_TIMEOUT_S = 20.0
ROOT = Path(__file__).parents[2]

BLOCKS = """
import os, sys
if sys.argv[2] == "wait":
    sys.stdin.readline()
for number in range(int(sys.argv[1])):
    block = (b"%015d\\n" % number).ljust(1 << 20, b".")
    while block:
        block = block[os.write(1, block):]
"""
"""Writes so many blocks of 1 MiB; each begins with its number."""


def blocks(n_blocks: int, *, wait: bool = False) -> list[str]:
    return ["python3", "-c", BLOCKS, str(n_blocks), "wait" if wait else ""]


async def start_blocks(sandbox: GuestSandbox, n_blocks: int) -> tuple[GuestProcess, AsyncIterator[OutputChunk]]:
    """Blocks with a reader who is there from the first byte on: nobody waits for one who comes later."""
    process = await sandbox.start(blocks(n_blocks, wait=True), stdin=True)
    output = process.output()

    async def first() -> OutputChunk:
        return await anext(output)

    reading = asyncio.create_task(first())
    await asyncio.sleep(0)  # its first step asks for output, before we let the command begin
    await process.write_stdin(b"\n")

    async def everything() -> AsyncIterator[OutputChunk]:
        yield await reading
        async for chunk in output:
            yield chunk

    return process, everything()


def block(number: int) -> bytes:
    return (b"%015d\n" % number).ljust(MIB, b".")


def within(seconds: float) -> Callable[[Test[P]], Test[P]]:
    """A test that takes longer fails. (The signal of pytest-timeout would leave the shared event loop in disorder.)"""

    def decorate(test: Test[P]) -> Test[P]:
        @functools.wraps(test)
        async def bounded(*args: P.args, **kwargs: P.kwargs) -> None:
            async with asyncio.timeout(seconds):
                await test(*args, **kwargs)

        return bounded

    return decorate


class Peer:
    """A child process that holds a sandbox, and what it said when it was ready."""

    def __init__(self, process: asyncio.subprocess.Process, said: dict[str, Any]) -> None:
        self.said = said
        self._process = process

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


@contextlib.asynccontextmanager
async def peer(role: str, *args: str) -> AsyncGenerator[Peer]:
    """Starts a peer, waits until it is ready, and makes sure that it is gone afterwards."""
    command = [sys.executable, "-m", __name__, role, *args]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, limit=MIB, cwd=ROOT)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            line = await process.stdout.readline()
        assert line, f"the peer {role!r} died before it was ready"
        yield Peer(process, json.loads(line))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


MEET = "BOATYARD_TEST_MEET"
"""In the environment of a test and its peers: 0 keeps their sessions on the attach stream."""


def open_backend() -> contextlib.AbstractAsyncContextManager[DockerBackend]:
    return DockerBackend.open(lease_s=LEASE_S, meet=os.environ.get(MEET) != "0")


# What peers do


def say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def for_ever() -> None:
    await asyncio.Event().wait()


async def reader(spec: str, script: str, n_bytes: str) -> None:
    """Creates a sandbox, starts `script` as the request `job`, reads so much of it at least, and goes on living."""
    async with open_backend() as backend:
        sandbox = await backend.create(SandboxSpec.model_validate_json(spec))
        process = await sandbox.start(["python3", "-c", script], request_id=RequestId("job"))
        got = b""
        async for chunk in process.output():
            got += chunk.data
            if len(got) >= int(n_bytes):
                break
        say(sandbox=sandbox.id, text=got.decode(), epoch=sandbox.welcome.epoch)
        await for_ever()


async def idler(spec: str) -> None:
    """Creates a sandbox and does nothing with it."""
    async with open_backend() as backend:
        sandbox = await backend.create(SandboxSpec.model_validate_json(spec))
        say(sandbox=sandbox.id)
        await for_ever()


async def blocked(spec: str) -> None:
    """As `idler`, but its event loop stands still."""
    async with open_backend() as backend:
        sandbox = await backend.create(SandboxSpec.model_validate_json(spec))
        say(sandbox=sandbox.id)
        time.sleep(3600)


class Spied:
    """A byte stream that remembers its first write, and with it the session's tag."""

    def __init__(self, stream: AttachStream) -> None:
        self.stream = stream
        self.tag = 0
        self.receiver: Receiver = stream.receiver
        stream.receiver = self

    def received(self, data: bytes) -> None:
        self.receiver.received(data)

    def lost(self, reason: str) -> None:
        self.receiver.lost(reason)

    def write(self, data: bytes) -> None:
        if not self.tag:
            self.tag = wire.HEADER.unpack_from(data, wire.MARKER_BYTES)[0]
        self.stream.write(data)

    async def drain(self) -> None:
        await self.stream.drain()

    def close(self) -> None:
        self.stream.close()


async def half_uploader(sandbox_id: str, path: str) -> None:
    """Sends the beginning of a file and half a frame more, the worst moment to die."""
    async with open_backend() as backend:
        name = container.name_of(SandboxId(sandbox_id))
        key = bytes.fromhex((await backend.engine.inspect_container(name))["Config"]["Labels"][container.KEY])
        watchdog = Watchdog()
        stream = Spied(await AttachStream.open(backend.engine.host, name, watchdog=watchdog, lease_s=LEASE_S))
        link = await Link.connect(stream, key=key, lease_s=LEASE_S)
        async with link.open("write", {"path": path, "id": "half", "atomic": True, "large": True}) as channel:
            await channel.send(b"x" * wire.HOST_CREDIT)
            frame = wire.frame(stream.tag, channel.number, wire.DATA, b"y" * 1000)
            stream.write(frame[: len(frame) // 2])
            await stream.drain()
            # A ping's answer would never come back through half a frame: nothing else may be sent.
            say(sandbox=sandbox_id)
            await for_ever()


async def uploader(sandbox_id: str, path: str) -> None:
    """Sends the beginning of a file and no more."""

    async def content() -> AsyncIterator[bytes]:
        yield b"z" * MIB
        say(sandbox=sandbox_id)
        await for_ever()

    async with open_backend() as backend:
        sandbox = await backend.connect(SandboxId(sandbox_id))
        await sandbox.write(path, content())


async def flooder(sandbox_id: str, path: str) -> None:
    """Sends a file without end, as fast as it is taken."""

    async def content() -> AsyncIterator[bytes]:
        for number in itertools.count():
            yield b"z" * MIB
            if number == 8:
                say(sandbox=sandbox_id)

    async with open_backend() as backend:
        sandbox = await backend.connect(SandboxId(sandbox_id))
        await sandbox.write(path, content())


async def meter(spec: str, n_blocks: str) -> None:
    """Runs a command with so many MiB of output, whole and then streamed, and says how much we grew."""
    async with DockerBackend.open() as backend, await backend.create(SandboxSpec.model_validate_json(spec)) as sandbox:
        for _ in range(20):
            await sandbox.execute(blocks(1))
        before = peak_bytes()
        result = await sandbox.execute(blocks(int(n_blocks)))
        executed = peak_bytes()
        n_bytes, intact = await _stream(sandbox, int(n_blocks))
        say(
            head=result.stdout.head.decode(),
            tail=result.stdout.tail.decode(),
            total_bytes=result.stdout.total_bytes,
            exit_code=result.exit_code,
            streamed_bytes=n_bytes,
            intact=intact,
            grown_executing=executed - before,
            grown_streaming=peak_bytes() - before,
        )


async def _stream(sandbox: GuestSandbox, n_blocks: int) -> tuple[int, bool]:
    process, output = await start_blocks(sandbox, n_blocks)
    n_bytes, intact, pending = 0, True, b""
    async for chunk in output:
        intact = intact and chunk.offset == n_bytes and not chunk.skipped_bytes
        n_bytes += len(chunk.data)
        pending += chunk.data
        while len(pending) >= MIB:
            intact = intact and pending[:MIB] == block(n_bytes // MIB - len(pending) // MIB)
            pending = pending[MIB:]
    await process.detach()
    return n_bytes, intact and not pending


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


ROLES = {role.__name__: role for role in (reader, idler, blocked, half_uploader, uploader, flooder, meter)}

if __name__ == "__main__":
    asyncio.run(ROLES[sys.argv[1]](*sys.argv[2:]))
