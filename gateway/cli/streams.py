"""Our own standard streams, as the shell gave them to us: maybe closed, full, or with nobody at the other end."""

import asyncio
import contextlib
import errno
import os
import queue
import select
import sys
import threading

from sandbox.client.processes import GuestProcess
from sandbox.errors import ProcessEnded
from sandbox.types import Stream

_PIECE = 64 << 10


class StreamFailed(Exception):
    """`reader_is_gone`: nobody is left to tell, as after `| head`."""

    def __init__(self, doing: str, error: OSError) -> None:
        super().__init__(f"cannot {doing}: {error.strerror or error}")
        self.reader_is_gone = isinstance(error, BrokenPipeError)


def fill_closed() -> None:
    """Puts /dev/null where a standard descriptor is closed, lest the next file we open becomes somebody's output."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def say(text: str) -> None:
    """A line for the person, if there is a way to them."""
    if is_open(Stream.STDERR):
        # Not by `print`: what Python could not write it keeps, and fails again when it ends, with a code of its own.
        with contextlib.suppress(OSError):
            _write(2, f"{text}\n".encode(errors="backslashreplace"))


def is_open(stream: Stream) -> bool:
    """Python knows a descriptor that was closed when it started, whatever is there now."""
    file = sys.stderr if stream is Stream.STDERR else sys.stdout
    return file is not None


class Output:
    """Writes in a thread of its own, which nobody waits for at the end: a pipe's reader may never read again."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[tuple[int, bytes, asyncio.Future[None]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="output", daemon=True).start()

    async def write(self, stream: Stream, data: bytes) -> None:
        """Raises: StreamFailed."""
        name, fd = ("standard error", 2) if stream is Stream.STDERR else ("standard output", 1)
        try:
            if not is_open(stream):
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            done: asyncio.Future[None] = self._loop.create_future()
            self._work.put((fd, data, done))
            await done
        except OSError as error:
            raise StreamFailed(f"write to {name}", error) from None

    def _run(self) -> None:
        while True:
            fd, data, done = self._work.get()
            error: OSError | None = None
            try:
                _write(fd, data)
            except OSError as caught:
                error = caught
            with contextlib.suppress(RuntimeError):  # the loop is over
                self._loop.call_soon_threadsafe(_finish, done, error)


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:  # somebody who shares it with us made it so
            select.select([], [fd], [])


def _finish(done: "asyncio.Future[None]", error: OSError | None) -> None:
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(None)


async def feed(process: GuestProcess) -> None:
    """Passes standard input on until it ends or the command does; a closed one has ended. Raises: StreamFailed."""
    with contextlib.suppress(ProcessEnded):
        if sys.stdin is not None:
            while data := await _input(sys.stdin.fileno()):
                await process.write_stdin(data)
        await process.close_stdin()


async def _input(fd: int) -> bytes:
    try:
        return await _read(fd)
    except OSError as error:
        raise StreamFailed("read standard input", error) from None


async def _read(fd: int) -> bytes:
    """Waits for one readiness and reads once: the descriptor is shared with our parent, so it stays blocking."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    try:
        loop.add_reader(fd, lambda: ready.done() or ready.set_result(None))
    except PermissionError:
        return await asyncio.to_thread(os.read, fd, _PIECE)  # a regular file cannot be polled, and need not be
    try:
        await ready
    finally:
        loop.remove_reader(fd)
    return os.read(fd, _PIECE)
