"""A second process that frees the guest from a start that somebody stopped.

Until a new program is in place, `posix_spawn` keeps the guest waiting, and the child that it waits for already has the
user's ids: any command may stop it with SIGSTOP, over and over, and the guest would wait for ever. This process is root
throughout, so no command can touch it. It kills a child that is stopped on its way into a program; the guest goes on.
"""

import contextlib
import mmap
import os
import select
import signal
import struct
import time
from typing import Callable, NoReturn

from sandbox.guest import sweep

_LOOK_EVERY_S = 0.05
_LOOK_FOR_S = 3.0
"""After the last word from the guest; then it sleeps until the next."""
_SPEAK_EVERY_S = 1.0
_MARK = struct.Struct("=I")


class Warden:
    """The guest's side. A start is announced in a page that both share, which costs nothing."""

    def __init__(self, adopt: Callable[[int, Callable[[int], None]], None]) -> None:
        self._adopt = adopt
        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        self._pipe = -1
        self._spoke_at = 0.0

    def begin(self, mark: int) -> None:
        """Before a start, while we are root. Raises: OSError."""
        if self._pipe < 0:
            self._fork()
        _MARK.pack_into(self._page, 0, mark)
        now = time.monotonic()
        if now - self._spoke_at > _SPEAK_EVERY_S:
            self._spoke_at = now
            with contextlib.suppress(OSError):  # gone: then `_gone` is about to be called
                os.write(self._pipe, b".")

    def end(self) -> None:
        _MARK.pack_into(self._page, 0, 0)

    def _fork(self) -> None:
        theirs, ours = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(ours)
            os.close(theirs)
            raise
        if pid == 0:
            _child(theirs, self._page)
        os.close(theirs)
        os.set_blocking(ours, False)
        self._pipe = ours
        self._spoke_at = 0.0
        self._adopt(pid, self._gone)

    def _gone(self, status: int) -> None:
        """Killed for memory, perhaps. The next start makes another."""
        os.close(self._pipe)
        self._pipe = -1


def _child(pipe: int, page: mmap.mmap) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        # Nothing of the guest's stays open: a copy of a command's stdin here would keep it from ever seeing its end.
        os.dup2(pipe, 0, inheritable=False)
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd != 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
        _watch(0, page)
    finally:
        os._exit(0)


def _watch(pipe: int, page: mmap.mmap) -> None:
    """Returns when the guest is gone. A start is over in a moment: one that is seen twice may be stuck."""
    before = 0
    until = 0.0
    while True:
        is_idle = not before and time.monotonic() > until
        if select.select([pipe], [], [], None if is_idle else _LOOK_EVERY_S)[0]:
            if not os.read(pipe, 4096):
                return
            until = time.monotonic() + _LOOK_FOR_S
        mark: int = _MARK.unpack_from(page, 0)[0]
        if mark and mark == before:
            free(mark)
        before = mark


def free(mark: int) -> None:
    """Kills the stopped child that is to become the command with this mark. One that is merely slow is left alone."""
    with contextlib.suppress(OSError):
        for pid in sweep.stopped(mark):
            os.kill(pid, signal.SIGKILL)
