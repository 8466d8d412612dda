"""The person's terminal: its size, its keys, passed on to a command in a sandbox."""

import asyncio
import contextlib
import shutil
import signal
import termios
import tty
from collections.abc import Generator
from typing import TextIO

from sandbox.client.processes import GuestProcess
from sandbox.errors import SandboxError
from sandbox.types import TerminalSize


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
