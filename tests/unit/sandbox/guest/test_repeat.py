"""A request made again while its first attempt is under way."""

import json
import os
from collections.abc import Generator
from typing import Any

import pytest

from sandbox import wire
from sandbox.guest.channel import Channel
from sandbox.guest.loop import Loop
from sandbox.guest.peer import Peer
from sandbox.guest.refusal import Refusal
from sandbox.guest.repeat import Repeat
from sandbox.guest.requests import UnderWay

NUMBER = 2


class Session:
    """A peer over pipes, and what it was sent."""

    def __init__(self) -> None:
        self.loop = Loop()
        guest_in, self._to_guest = os.pipe()
        self._from_guest, guest_out = os.pipe()
        os.set_blocking(self._from_guest, False)
        self.peer = Peer(self.loop, guest_in, guest_out, lambda hello: {})
        self.reopened = 0

    def repeat(self, becomes: Channel | Refusal | None) -> Repeat:
        def reopen() -> Channel | None:
            self.reopened += 1
            if isinstance(becomes, Refusal):
                raise becomes
            return becomes

        made = Repeat(self.peer, NUMBER, {}, UnderWay("a"), reopen)
        self.peer.register(made)
        return made

    def results(self) -> list[Any]:
        self.loop.call_soon(lambda: None)  # so that there is nothing to wait for
        self.loop.turn()
        self.loop.call_soon(lambda: None)
        self.loop.turn()
        try:
            data = os.read(self._from_guest, 65536)
        except BlockingIOError:
            return []
        return [json.loads(frame.payload) for frame in wire.FrameDecoder(0).feed(data) if frame.kind == wire.RESULT]

    def close(self) -> None:
        for fd in (self._to_guest, self._from_guest):
            os.close(fd)


class Echo(Channel):
    """Answers with all it was sent, at its end."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer, NUMBER, {})
        self.got = ""

    def on_data(self, stream: int, data: bytes, end: bool) -> None:
        self.got += data.decode()
        if end:
            self.finish({"got": self.got})


@pytest.fixture
def session() -> Generator[Session]:
    made = Session()
    yield made
    made.close()


def test_it_goes_on_with_what_was_sent_meanwhile(session: Session) -> None:
    repeat = session.repeat(becomes=Echo(session.peer))
    repeat.on_data(0, b"one ", False)
    repeat.on_data(0, b"two", True)
    assert (session.results(), session.reopened) == ([], 0)
    repeat.first_is_over()
    assert (session.results(), session.reopened) == ([{"ok": {"got": "one two"}}], 1)


def test_what_it_is_refused_with_is_its_answer(session: Session) -> None:
    session.repeat(becomes=Refusal("no_space", "full")).first_is_over()
    assert session.results() == [{"error": {"code": "no_space", "message": "full"}}]


def test_one_that_nobody_waits_for_any_more_is_not_begun(session: Session) -> None:
    repeat = session.repeat(becomes=Echo(session.peer))
    repeat.open = False
    repeat.on_close()
    repeat.first_is_over()
    assert (session.results(), session.reopened) == ([], 0)


def test_it_does_not_wait_for_ever(session: Session) -> None:
    repeat = session.repeat(becomes=Echo(session.peer))
    session.loop.now += 10
    assert session.results() == []
    session.loop.now += 10
    [answer] = session.results()
    assert answer["error"]["code"] == "request_conflict"
    repeat.first_is_over()
    assert (session.results(), session.reopened) == ([], 0)
