"""The person's terminal: its size, its keys, passed on to a command in a sandbox."""

import asyncio
import contextlib
import os
import shutil
import signal
import termios
import tty
from collections.abc import Generator
from typing import TextIO

from sandbox.client.processes import GuestProcess
from sandbox.errors import ProcessEnded, SandboxError
from sandbox.types import TerminalSize

_PIECE = 64 << 10


def size() -> TerminalSize:
    found = shutil.get_terminal_size()
    return TerminalSize(rows=max(found.lines, 1), cols=max(found.columns, 1))


@contextlib.contextmanager
def raw(stdin: TextIO) -> Generator[None]:
    """Every key goes through, Ctrl-C too; the terminal is put back whatever happens."""
    before = termios.tcgetattr(stdin.fileno())
    try:
        tty.setraw(stdin.fileno())
        yield
    finally:
        termios.tcsetattr(stdin.fileno(), termios.TCSADRAIN, before)


def follow_size(process: GuestProcess) -> None:
    loop = asyncio.get_running_loop()
    pending: set[asyncio.Task[None]] = set()

    async def resize() -> None:
        with contextlib.suppress(SandboxError):
            await process.resize(size())

    def changed() -> None:
        task = asyncio.create_task(resize())
        pending.add(task)
        task.add_done_callback(pending.discard)

    loop.add_signal_handler(signal.SIGWINCH, changed)


async def feed(process: GuestProcess, stdin: TextIO) -> None:
    """Passes standard input on until it ends or the command does."""
    fd = stdin.fileno()
    with contextlib.suppress(ProcessEnded):
        while data := await _read(fd):
            await process.write_stdin(data)
        await process.close_stdin()


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
