"""Closes our streams when we cannot: a helper process that shuts sockets down once their owner has gone quiet.

An engine broadcasts a container's output to everybody attached, so a peer that neither reads nor closes stalls
whoever takes its sandbox over. A thread would not do: a stopped process stops its threads. The helper gets a copy of
each socket and a heartbeat from the event loop; without one for a lease, or when we die, it shuts them down.
"""

import asyncio
import contextlib
import itertools
import socket
import struct
import subprocess
import sys
from pathlib import Path

MESSAGE = struct.Struct("!cII")
"""Kind (`+` guard, `-` release, `.` heartbeat), the guard's number, its lease in milliseconds."""

_HELPER = Path(__file__).with_name("watchdog_helper.py")


class Watchdog:
    """One per process and event loop; started with the first socket, gone with the process."""

    def __init__(self) -> None:
        self._pipe: socket.socket | None = None
        self._helper: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self._guarded: dict[int, tuple[socket.socket, float]] = {}
        self._starting = asyncio.Lock()

    async def guard(self, sock: socket.socket, lease_s: float) -> int:
        """Shuts `sock` down unless `beat` is called at least once a lease. Returns a number for `release`."""
        await self._ensure_helper()
        number = next(self._numbers)
        copy = sock.dup()
        self._guarded[number] = (copy, lease_s)
        self._send(b"+", number, lease_s, copy)
        return number

    def release(self, number: int) -> None:
        entry = self._guarded.pop(number, None)
        if entry is not None:
            entry[0].close()
            self._send(b"-", number)

    def beat(self) -> None:
        self._send(b".", 0)

    async def close(self) -> None:
        """Lets the helper go, and with it whatever it still guards."""
        for number in list(self._guarded):
            self.release(number)
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        helper, self._helper = self._helper, None
        if helper is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(helper.wait, 5)

    def _send(self, kind: bytes, number: int, lease_s: float = 0, sock: socket.socket | None = None) -> None:
        if self._pipe is None:
            return
        message = MESSAGE.pack(kind, number, int(lease_s * 1000))
        fds = [sock.fileno()] if sock is not None else []
        try:
            socket.send_fds(self._pipe, [message], fds)
        except BlockingIOError:
            pass  # the helper is behind; the next heartbeat will do
        except OSError:
            # Somebody killed the helper. The next guard starts another one, which gets everything again.
            self._pipe.close()
            self._pipe = None

    async def _ensure_helper(self) -> None:
        async with self._starting:
            if self._pipe is not None:
                return
            self._pipe, self._helper = await asyncio.to_thread(_start_helper)
            for number, (sock, lease_s) in self._guarded.items():
                self._send(b"+", number, lease_s, sock)


def _start_helper() -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        ours.setblocking(False)
        helper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_HELPER), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    return ours, helper
