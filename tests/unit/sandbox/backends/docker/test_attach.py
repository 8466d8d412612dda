"""The attach stream and the meeting, against an engine that is this test: what comes early, late or never."""

import asyncio
import contextlib
import gc
import struct
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest

from sandbox.backends.docker.attach import AttachStream
from sandbox.backends.docker.rendezvous import MeetingStream
from sandbox.client.link import Link
from sandbox.errors import EngineError, EngineUnavailable, SandboxLost, SandboxNotFound
from sandbox.watchdog import Watchdog

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
UPGRADED = b"HTTP/1.1 101 UPGRADED\r\n\r\n"


class Ear:
    def __init__(self) -> None:
        self.heard = b""
        self.reason: str | None = None
        self.n_lost = 0
        self.ended = asyncio.Event()

    def received(self, data: bytes) -> None:
        assert self.reason is None
        self.heard += data

    def lost(self, reason: str) -> None:
        self.reason = reason
        self.n_lost += 1
        self.ended.set()


class FakeEngine:
    """Serves one connection after the other by `serve`, which gets it once the request's headers are read."""

    def __init__(self, path: Path) -> None:
        self.host = f"unix://{path}"
        self.serve: Serve = self._silent
        self.n_open = 0
        self.idle = asyncio.Event()
        self.idle.set()

    async def _silent(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_open += 1
        self.idle.clear()
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                await self.serve(reader, writer)
        finally:
            self.n_open -= 1
            if not self.n_open:
                self.idle.set()
            writer.close()


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncGenerator[FakeEngine]:
    fake = FakeEngine(tmp_path / "engine")
    server = await asyncio.start_unix_server(fake.handle, tmp_path / "engine")
    yield fake
    server.close()
    async with asyncio.timeout(10):
        await fake.idle.wait()


@pytest.fixture
async def watchdog() -> AsyncGenerator[Watchdog]:
    dog = Watchdog()
    yield dog
    await dog.close()


def piece(data: bytes, stream: int = 1) -> bytes:
    return struct.pack("!BxxxI", stream, len(data)) + data


async def attach(engine: FakeEngine, watchdog: Watchdog) -> AttachStream:
    return await AttachStream.open(engine.host, "c", watchdog=watchdog, lease_s=60)


def says_and_leaves(data: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return serve


async def test_what_came_before_the_receiver_reaches_it_and_the_end_too(engine: FakeEngine, watchdog: Watchdog) -> None:
    big = bytes(range(256)) * 256
    engine.serve = says_and_leaves(UPGRADED + piece(b"one") + piece(b"oh no\n", 2) + piece(big))
    stream = await attach(engine, watchdog)
    await settled(engine)
    ear = Ear()
    stream.receiver = ear
    stream.write(b"hello")
    async with asyncio.timeout(10):
        await ear.ended.wait()
    assert ear.heard == b"one" + big
    assert stream.stderr == b"oh no\n"
    stream.close()
    await asyncio.sleep(0)
    assert ear.n_lost == 1


@pytest.mark.parametrize("meeting", [False, True])
async def test_a_stream_that_ended_early_fails_the_hello_at_once(
    engine: FakeEngine, watchdog: Watchdog, tmp_path: Path, meeting: bool
) -> None:
    engine.serve = says_and_leaves(UPGRADED)
    attached = await attach(engine, watchdog)
    stream = MeetingStream(attached, tmp_path / "met") if meeting else attached
    await settled(engine)
    async with asyncio.timeout(2):
        with pytest.raises(SandboxLost):
            await Link.connect(stream, key=bytes(16), timeout_s=60)


async def settled(engine: FakeEngine) -> None:
    """Until the engine has hung up, and our loop has had every chance to notice."""
    async with asyncio.timeout(10):
        await engine.idle.wait()
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_stream_lost_while_it_is_put_under_guard_is_released_again(
    engine: FakeEngine, watchdog: Watchdog
) -> None:
    """Else the helper's copy of it stays open for as long as we live."""
    engine.serve = says_and_leaves(UPGRADED)
    stream = await attach(engine, watchdog)
    stream.write(b"hello")
    await settled(engine)
    assert watchdog.n_guarded == 0


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", EngineUnavailable),
        (b"HTTP/1.1 404 Not Found\r\n\r\n{}", SandboxNotFound),
        (b"HTTP/1.1 500 Oh\r\n\r\n", EngineError),
        (b"x" * 70_000, EngineError),
    ],
)
async def test_a_refused_attach_is_an_error_and_leaves_nothing(
    engine: FakeEngine, watchdog: Watchdog, answer: bytes, error: type[Exception]
) -> None:
    engine.serve = says_and_leaves(answer)
    with pytest.raises(error):
        await attach(engine, watchdog)
    await settled(engine)


async def test_a_watchdog_that_cannot_start_is_not_mistaken_for_a_missing_engine(
    engine: FakeEngine, watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(UPGRADED)
        await reader.read()

    engine.serve = serve
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(EngineError, match=r"cannot be started \(No such file") as caught:
        await attach(engine, watchdog)
    assert not isinstance(caught.value, EngineUnavailable)
    await settled(engine)


async def test_an_attach_given_up_at_any_moment_leaves_nothing_and_no_error_unasked(
    engine: FakeEngine, watchdog: Watchdog
) -> None:
    complaints: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(str(context)))
    try:
        for serve in (says_and_leaves(b""), says_and_leaves(UPGRADED), says_and_leaves(b"HTTP/1.1 404 No\r\n\r\n")):
            engine.serve = serve
            for n_turns in range(40):
                attaching = asyncio.create_task(attach(engine, watchdog))
                for _ in range(n_turns):
                    await asyncio.sleep(0)
                attaching.cancel()
                with contextlib.suppress(asyncio.CancelledError, EngineError, SandboxNotFound):
                    (await attaching).close()
        await settled(engine)
        gc.collect()
        assert complaints == []
        assert watchdog.n_guarded == 0
    finally:
        loop.set_exception_handler(None)
