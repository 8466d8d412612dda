"""What is typed into a command reaches it once, whoever sends it again and however slowly it reads."""

import contextlib
import os
import pty
import time
import tty
from collections.abc import Generator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox import wire
from sandbox.guest.channel import Channel
from sandbox.guest.loop import Loop
from sandbox.guest.stdin import Feeder, Stdin, WholeFeeder

CONTENT = b"".join(b"%09d\n" % number for number in range(60_000))
PIPE_BYTES = 64 << 10
END = b"\x04"
LIMIT_S = 60.0


class Sender(Channel):
    """Sends `CONTENT` from its first byte on, never more than it has credit for."""

    def __init__(self, stdin: Stdin, kind: type[Feeder] = WholeFeeder) -> None:
        self.open = True
        self.credit = wire.HOST_CREDIT
        self._at = 0
        self._stdin = stdin
        self._feeder = kind(self, stdin)
        stdin.feeders.add(self._feeder)

    @property
    def is_done(self) -> bool:
        return self._at == len(CONTENT)

    def grant(self, n_bytes: int) -> None:
        self.credit += n_bytes

    def send_some(self, n_bytes: int) -> None:
        piece = CONTENT[self._at : self._at + min(n_bytes, self.credit)]
        self._at += len(piece)
        self.credit -= len(piece)
        self._feeder.feed(piece, self.is_done)

    def cut(self) -> None:
        self.open = False
        self._stdin.feeders.discard(self._feeder)


class Command:
    """The far end of a pipe, read when a test says so."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._fd, write = os.pipe()
        for fd in (self._fd, write):
            os.set_blocking(fd, False)
        self.stdin = Stdin(loop, write, is_terminal=False)
        self.got = bytearray()
        self.ended = False

    def read(self, n_bytes: int) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._fd, n_bytes)
            self.got += data
            self.ended = not data
        turn(self._loop)

    @property
    def n_held(self) -> int:
        return self.stdin.n_bytes - len(self.got)

    def close(self) -> None:
        self.stdin.close()
        os.close(self._fd)


def turn(loop: Loop) -> None:
    loop.call_soon(lambda: None)  # so that there is nothing to wait for
    loop.turn()


@pytest.fixture(scope="module")
def loop() -> Loop:
    return Loop()


@pytest.fixture
def command(loop: Loop) -> Generator[Command]:
    made = Command(loop)
    yield made
    made.close()


AMOUNTS = st.sampled_from([1, 999, 40_000, 100_000, 600_000])
STEPS = st.lists(st.tuples(st.sampled_from(["send", "other sends", "read", "cut"]), AMOUNTS), max_size=40)


@settings(deadline=None)
@given(STEPS)
def test_input_that_is_sent_again_arrives_once(loop: Loop, steps: list[tuple[str, int]]) -> None:
    """Cut anywhere, begun again, sent by two at once: the command gets each byte once, in order, and one end."""
    command = Command(loop)
    stdin = command.stdin
    senders = [Sender(stdin), Sender(stdin)]
    for step, n_bytes in steps:
        if step == "read":
            command.read(n_bytes)
        elif step == "cut":
            senders.pop(0).cut()
            senders.append(Sender(stdin))
        else:
            senders[step == "send"].send_some(n_bytes)
        assert command.n_held <= len(senders) * wire.HOST_CREDIT + PIPE_BYTES
    deadline = time.monotonic() + LIMIT_S
    while not command.ended:
        assert time.monotonic() < deadline
        if not senders[0].is_done:
            senders[0].send_some(len(CONTENT))
        command.read(PIPE_BYTES)
    assert bytes(command.got) == CONTENT
    command.close()


def test_begun_again_and_again_it_fills_no_memory(command: Command) -> None:
    """While the command reads nothing, each attempt is let further only as far as the one before it was."""
    for _ in range(20):
        sender = Sender(command.stdin)
        for _ in range(10):
            sender.send_some(len(CONTENT))
        sender.cut()
    assert command.n_held <= wire.HOST_CREDIT + PIPE_BYTES


def test_what_a_handle_writes_is_always_new(command: Command) -> None:
    """And what belongs to the request is complete, whatever was written in between."""
    writer, sender = Sender(command.stdin, Feeder), Sender(command.stdin)
    writer.send_some(10)
    sender.send_some(20)
    Sender(command.stdin, Feeder).send_some(10)
    Sender(command.stdin).send_some(30)
    command.read(PIPE_BYTES)
    assert bytes(command.got) == CONTENT[:10] + CONTENT[:20] + CONTENT[:10] + CONTENT[20:30]


def fill(terminal: int) -> int:
    """Types until nothing more is taken, also not after the kernel has had time to pass it on."""
    n_typed, n_before = 0, -1
    while n_typed != n_before:
        n_before = n_typed
        with contextlib.suppress(BlockingIOError):
            while True:
                n_typed += os.write(terminal, b"x" * 4096)
        time.sleep(0.1)
    return n_typed


@pytest.mark.parametrize(
    ("line", "typed"),
    [
        pytest.param(b"", END, id="nothing else"),
        pytest.param(b"line\n", END, id="behind a line"),
        pytest.param(b"unfinished", END * 2, id="behind an unfinished line"),
    ],
)
def test_end_typed_into_a_full_terminal_is_not_lost(loop: Loop, line: bytes, typed: bytes) -> None:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    os.set_blocking(ours, False)
    os.set_blocking(theirs, False)
    stdin = Stdin(loop, ours, is_terminal=True)
    n_filled = fill(ours)
    stdin.feed(line, True)
    got = bytearray()
    deadline = time.monotonic() + LIMIT_S
    while len(got) < n_filled + len(line + typed):
        assert time.monotonic() < deadline
        with contextlib.suppress(BlockingIOError):
            got += os.read(theirs, 65536)
        turn(loop)
    assert got.lstrip(b"x") == line + typed
    stdin.close()
    os.close(ours)
    os.close(theirs)


def test_each_end_typed_into_a_terminal_is_one(loop: Loop) -> None:
    """Behind an unfinished line it takes two; the line is finished then."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    stdin = Stdin(loop, ours, is_terminal=True)
    stdin.feed(b"unfinished", True)
    stdin.feed(b"", True)
    stdin.feed(b"line\n", True)
    expected = b"unfinished" + END * 3 + b"line\n" + END
    got = b""
    while len(got) < len(expected):
        got += os.read(theirs, 65536)
    assert got == expected
    stdin.close()
    os.close(ours)
    os.close(theirs)
