"""Bytes in and out of one pair of descriptors, without ever blocking."""

import os
from collections import deque
from typing import Callable, Deque, List, Union

from sandbox.guest.loop import READ, WRITE, Loop

CLOGGED = 2 << 20
_READ_SIZE = 256 << 10
_MAX_BATCH = 64
Piece = Union[bytes, memoryview]


class Conduit:
    def __init__(
        self,
        loop: Loop,
        fd_in: int,
        fd_out: int,
        *,
        on_bytes: Callable[[bytes], None],
        on_end: Callable[[], None],
        on_room: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._in = fd_in
        self._out = fd_out
        self._on_bytes: Callable[[bytes], None] = on_bytes
        self._on_end: Callable[[], None] = on_end
        self._on_room: Callable[[], None] = on_room
        # One buffer for good: a fresh one of this size is mapped and unmapped by the allocator for every read.
        self._buffer = bytearray(_READ_SIZE)
        self._view = memoryview(self._buffer)
        self._outbox: Deque[List[Piece]] = deque()
        """What each `send` said, whole: a part of it must not be followed by anything else."""
        self._begun = False
        self._outbox_bytes = 0
        self._flushing = False
        self._open = True
        self._leaving = False
        for fd in (fd_in, fd_out):
            os.set_blocking(fd, False)
        loop.watch(fd_in, READ, self._ready)

    @property
    def clogged(self) -> bool:
        return self._outbox_bytes > CLOGGED

    def send(self, *pieces: bytes) -> None:
        self._outbox.append([piece for piece in pieces if piece])
        self._outbox_bytes += sum(map(len, pieces))
        if not self._flushing and self._open:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def forget_unsent(self) -> None:
        """All but the rest of what was begun: whoever still reads must meet the next thing where it can begin."""
        kept = self._outbox[0] if self._begun and self._outbox else []
        self._outbox.clear()
        self._outbox_bytes = sum(map(len, kept))
        if kept:
            self._outbox.append(kept)

    def dismiss(self, last_word: bytes, within_s: float) -> None:
        """Ends what was begun, says one more thing and closes; nothing is listened to any more."""
        self._on_bytes = lambda data: None
        self._on_end = self.close
        self._on_room = lambda: None
        self._leaving = True
        self.forget_unsent()
        self._outbox.append([last_word])
        self._outbox_bytes += len(last_word)
        self._loop.call_later(within_s, self.close)
        self.flush()

    def close(self) -> None:
        """Lets go of both descriptors. Idempotent."""
        if self._open:
            self._open = False
            for fd in {self._in, self._out}:
                self._loop.unwatch(fd)
                os.close(fd)
            self._outbox.clear()
            self._outbox_bytes = 0

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self.flush()
        if events & ~WRITE and self._open:
            self._read()

    def _read(self) -> None:
        try:
            n_read = os.readv(self._in, [self._buffer])
        except BlockingIOError:
            return
        except OSError:
            n_read = 0
        if n_read:
            self._on_bytes(bytes(self._view[:n_read]))
        else:
            self._on_end()

    def flush(self) -> None:
        """Sends what can be sent without waiting; the rest follows by itself."""
        self._flushing = False
        if not self._open:
            return
        while self._outbox:
            try:
                written = os.writev(self._out, self._batch())
            except BlockingIOError:
                self._wait_for_room()
                return
            except OSError:
                self._outbox.clear()  # nobody reads any more; the end is seen on the other side
                self._outbox_bytes = 0
                self._begun = False
                break
            self._take(written)
        if self._leaving:
            self.close()
            return
        self._stop_waiting()
        self._on_room()

    def _batch(self) -> List[Piece]:
        batch: List[Piece] = []
        for pieces in self._outbox:
            batch += pieces
            if len(batch) >= _MAX_BATCH:
                break
        return batch

    def _take(self, written: int) -> None:
        self._outbox_bytes -= written
        while self._outbox:
            pieces = self._outbox[0]
            while pieces and written >= len(pieces[0]):
                written -= len(pieces.pop(0))
                self._begun = True
            if pieces:
                if written:
                    pieces[0] = memoryview(pieces[0])[written:]
                    self._begun = True
                return
            self._outbox.popleft()
            self._begun = False

    def _wait_for_room(self) -> None:
        self._flushing = True
        if self._in == self._out:
            self._loop.rewatch(self._out, READ | WRITE)
        elif not self._loop.is_watched(self._out):
            self._loop.watch(self._out, WRITE, self._ready)

    def _stop_waiting(self) -> None:
        if self._in == self._out:
            self._loop.rewatch(self._out, READ)
        else:
            self._loop.unwatch(self._out)
