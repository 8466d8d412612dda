"""The byte stream of a container's PID 1, over the engine's attach call.

Spoken by hand: the SDK reads ahead into a buffer of its own, and a lost byte would shift every frame after it.
"""

import asyncio
import contextlib
import socket
import struct
from urllib.parse import urlsplit

from sandbox.client.link import Receiver
from sandbox.errors import EngineError, EngineUnavailable, NotSupported, SandboxNotFound
from sandbox.watchdog import Watchdog

_CONNECT_TIMEOUT_S = 10.0
_PIECE = struct.Struct("!BxxxI")
"""The engine's own frame round each piece of output: 1 stdout, 2 stderr."""
_STDERR = 2
_MAX_HEADERS = 64 << 10
_MAX_STDERR = 4096


class Nobody:
    """The receiver of a stream that has none yet."""

    def received(self, data: bytes) -> None: ...
    def lost(self, reason: str) -> None: ...


class AttachStream(asyncio.Protocol):
    """`ByteStream` for a container. What the guest writes to stderr is kept for the error message.

    It begins with the first write: by then its owner has set `receiver`, which so misses neither a byte nor the end.
    """

    def __init__(self) -> None:
        self.receiver: Receiver = Nobody()
        self._begun = False
        self._early: list[bytes] = []
        self._ended_early: str | None = None
        self.stderr: bytes = b""
        self._transport: asyncio.Transport | None = None
        self._upgraded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._buffer = b""
        self._left = 0
        self._kind = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = False
        self._guard: tuple[Watchdog, int] | None = None

    @classmethod
    async def open(cls, host: str, container: str, *, watchdog: Watchdog, lease_s: float) -> "AttachStream":
        """Raises: EngineUnavailable, SandboxNotFound, EngineError, NotSupported (a kind of host we cannot reach)."""
        loop = asyncio.get_running_loop()
        stream = cls()
        address = urlsplit(host)
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                if address.scheme == "unix":
                    await loop.create_unix_connection(lambda: stream, address.path)
                elif address.scheme in ("tcp", "http") and address.hostname:
                    await loop.create_connection(lambda: stream, address.hostname, address.port or 2375)
                else:
                    raise NotSupported(f"cannot attach over {address.scheme or 'that'}; use a unix:// or tcp:// engine")
                await stream._upgrade(container)
                await stream._put_under(watchdog, lease_s)
        except TimeoutError:
            stream.close()
            raise EngineUnavailable(f"the engine at {host} did not answer within {_CONNECT_TIMEOUT_S:.0f} s") from None
        except OSError as error:
            stream.close()
            raise EngineUnavailable(f"no Docker engine answers at {host} ({error.strerror or error})") from None
        except BaseException:
            stream.close()
            raise
        return stream

    async def _upgrade(self, container: str) -> None:
        self._raw_write(
            f"POST /containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1 HTTP/1.1\r\n"
            "Host: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n".encode()
        )
        await self._upgraded

    async def _put_under(self, watchdog: Watchdog, lease_s: float) -> None:
        if self._transport is None:
            return
        try:
            number = await watchdog.guard(self._transport.get_extra_info("socket"), lease_s)
        except OSError as error:
            raise EngineError(
                f"the process that watches over the connection cannot be started ({error.strerror or error}); free"
                " processes, memory or file descriptors on this machine, then try again"
            ) from error
        self._guard = (watchdog, number)
        if self._closed:  # meanwhile, and it could not be released
            self._release()

    def _release(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            guard[0].release(guard[1])

    # ByteStream

    def write(self, data: bytes) -> None:
        if not self._begun:
            self._begin()
        if not self._closed:
            self._raw_write(data)

    def _begin(self) -> None:
        self._begun = True
        early, self._early = self._early, []
        for piece in early:
            self.receiver.received(piece)
        if self._ended_early is not None:
            self.receiver.lost(self._ended_early)
        elif self._transport is not None and not self._closed:
            self._transport.resume_reading()

    async def drain(self) -> None:
        if not self._writable.is_set():
            await self._writable.wait()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._writable.set()
        self._release()
        if not self._upgraded.cancel() and not self._upgraded.cancelled():
            self._upgraded.exception()  # whoever opened it may have left before it could be told
        if self._transport is not None:
            # A plain close leaves the engine's end attached while another descriptor of the socket is open.
            sock = self._transport.get_extra_info("socket")
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            self._transport.abort()

    def _raw_write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=1 << 20)
        self._transport = transport
        if self._closed:
            transport.abort()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        if not self._upgraded.done():
            self._upgraded.set_exception(ConnectionResetError("the engine closed the connection"))
        self._closed = True
        self._release()
        reason = str(exc) if exc is not None else "the stream was closed"
        if self._begun:
            self.receiver.lost(reason)
        else:
            self._ended_early = reason

    def data_received(self, data: bytes) -> None:
        if not self._upgraded.done():
            rest = self._headers(data)
            if not rest:
                return
            data = rest
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        at, end = 0, len(data)
        while at < end:
            if not self._left:
                if end - at < _PIECE.size:
                    self._buffer = data[at:]
                    return
                self._kind, self._left = _PIECE.unpack_from(data, at)
                at += _PIECE.size
                continue
            stop = min(end, at + self._left)
            piece = data[at:stop]
            self._left -= stop - at
            at = stop
            if self._kind == _STDERR:
                self.stderr = (self.stderr + piece)[-_MAX_STDERR:]
            elif self._begun:
                self.receiver.received(piece)
            else:
                self._early.append(piece)

    def _headers(self, data: bytes) -> bytes:
        self._buffer += data
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            if len(self._buffer) > _MAX_HEADERS:
                self._upgraded.set_exception(EngineError("the engine's answer to attach makes no sense"))
            return b""
        words = head.split(b"\r\n", 1)[0].split(b" ")
        status = words[1] if len(words) > 1 else b""
        if status in (b"101", b"200"):
            self._buffer = b""
            self._upgraded.set_result(None)
            if self._transport is not None:
                self._transport.pause_reading()
            return rest
        if status == b"404":
            self._upgraded.set_exception(SandboxNotFound("the sandbox's container is gone; create a new one"))
        else:
            self._upgraded.set_exception(
                EngineError(f"the engine refused to attach (HTTP {status.decode(errors='replace')})")
            )
        return b""
