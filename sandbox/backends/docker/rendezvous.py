"""A shorter way to a guest on this machine: a socket of ours that it connects to, offered in the hello.

The engine's attach stream always works and is how every session begins, but each byte of it passes through two other
programs, and it is a broadcast. Each container sees a directory of its own, read-only, below one that only root may
enter. For the moment of a hello there is a socket in it. If the guest can reach it (not under gVisor, not on another
machine) the session moves there and the attach stream is closed; if not, the session stays on the attach stream.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from sandbox.backends.docker.attach import AttachStream, Nobody
from sandbox.client.link import Receiver
from sandbox.types import SandboxId

INSIDE = "/run/boatyard/private/host"
"""The guest keeps the directory above to itself: whose this one is depends on who we are on the host."""
_STALE_S = 120.0
"""A socket that is older belongs to a hello that is long over, and to a process that was killed in it."""
_WRITE_BUFFER = 1 << 20
_LAST_WORDS = 4 << 20


class Directories:
    """One directory a sandbox, below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def of(self, sandbox_id: SandboxId) -> Path:
        return self._root / sandbox_id

    def make(self, sandbox_id: SandboxId) -> Path:
        path = self.of(sandbox_id)
        path.mkdir(mode=0o700, parents=True)
        return path

    def remove(self, sandbox_id: SandboxId) -> None:
        shutil.rmtree(self.of(sandbox_id), ignore_errors=True)

    def remove_all_but(self, alive: Iterable[str], *, older_than: float) -> None:
        """Those of sandboxes that are gone; a younger one's container may not be there yet."""
        if not self._root.is_dir():
            return
        keep = set(alive)
        for path in self._root.iterdir():
            with contextlib.suppress(OSError):
                if path.name not in keep and path.stat().st_mtime < older_than:
                    shutil.rmtree(path, ignore_errors=True)


class MeetingStream:
    """`ByteStream` that begins on the attach stream and moves to a socket if the guest comes to it."""

    def __init__(self, attach: AttachStream, directory: Path | None) -> None:
        self.receiver: Receiver = Nobody()
        self.offer: str | None = None
        """The path inside, for the hello; None where there is nothing to offer."""
        self._attach = attach
        # A name of its own: two processes may say hello at once, and each must get its own answer.
        self._path = directory / secrets.token_hex(4) if directory is not None else None
        self._server: asyncio.Server | None = None
        self._met: _Met | None = None
        self._asked = False
        self._closed = False
        attach.receiver = self

    async def listen(self) -> None:
        """Makes the socket to offer, where a guest may be able to reach it."""
        if self._path is None or not self._path.parent.is_dir():
            return
        with contextlib.suppress(OSError):
            _remove_stale(self._path.parent)
            loop = asyncio.get_running_loop()
            # Started apart: cancelled while it starts by itself, it would be nobody's to close.
            self._server = await loop.create_unix_server(
                lambda: _Met(self), sock=_bound(self._path), backlog=1, start_serving=False
            )
            await self._server.start_serving()
            self.offer = f"{INSIDE}/{self._path.name}"

    def stop_listening(self) -> None:
        """After the hello, however it went. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            if self._path is not None:
                self._path.unlink(missing_ok=True)

    @property
    def stderr(self) -> bytes:
        return self._attach.stderr

    # ByteStream

    def write(self, data: bytes) -> None:
        self._asked = True
        (self._met or self._attach).write(data)

    async def drain(self) -> None:
        await (self._met or self._attach).drain()

    def close(self) -> None:
        self._closed = True
        self.stop_listening()
        self._attach.close()
        if self._met is not None:
            self._met.close()

    # What comes from either

    def received(self, data: bytes) -> None:
        self.receiver.received(data)

    def lost(self, reason: str) -> None:
        if self._met is None:
            self.receiver.lost(reason)

    def met(self, met: "_Met") -> bool:
        """The guest came. Whoever comes after it is turned away, and so is one who came unasked."""
        if self._met is not None or self._closed or not self._asked:
            return False
        self._met = met
        self._attach.close()
        return True


class _Met(asyncio.Protocol):
    """Our end of the socket."""

    def __init__(self, stream: MeetingStream) -> None:
        self._stream = stream
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._received: Callable[[bytes], None] = lambda data: None

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    async def drain(self) -> None:
        if not self._writable.is_set():
            await self._writable.wait()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if not self._stream.met(self):
            transport.abort()
            return
        sock = transport.get_extra_info("socket")
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _WRITE_BUFFER)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        self._transport = transport
        self._received = self._stream.receiver.received

    def data_received(self, data: bytes) -> None:
        self._received(data)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        transport, self._transport = self._transport, None
        if transport is not None:
            if exc is not None:
                self._hear_last_words(transport.get_extra_info("socket").fileno())
            self._stream.receiver.lost(str(exc) if exc is not None else "the stream was closed")

    def _hear_last_words(self, fd: int) -> None:
        """A write that fails ends a transport before it has read what the guest said at the end: why it left us."""
        with contextlib.suppress(OSError):
            n_left = _LAST_WORDS
            while n_left > 0 and (data := os.read(fd, _WRITE_BUFFER)):
                n_left -= len(data)
                self._received(data)


def _bound(path: Path) -> socket.socket:
    """By way of its directory's descriptor: a name of any length will do, and the sandbox does not learn it."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(f"/proc/self/fd/{directory}/{path.name}")
    except BaseException:
        made.close()
        raise
    finally:
        os.close(directory)
    return made


def _remove_stale(directory: Path) -> None:
    for path in directory.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - _STALE_S:
                path.unlink()
