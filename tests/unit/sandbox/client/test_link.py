"""Our end of the wire against guests that lie, flood, stall and vanish. No engine: the other end is this test."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from sandbox import wire
from sandbox.client.link import Link, Receiver, Urgency
from sandbox.errors import LeaseLost, NotFound, OperationTimedOut, SandboxBroken, SandboxError, SandboxLost

KEY = bytes(16)
WELCOME: dict[str, Any] = {"guest_hash": "h", "boot_id": "b", "epoch": 1, "features": ["stat"], "python": [3, 8, 0]}


class FakeGuest:
    """The stream's far end: decodes what we send, and sends whatever a test wants."""

    receiver: Receiver

    def __init__(self) -> None:
        self.heard: list[wire.Frame] = []
        self.closed = False
        self.tag = 0
        self.on_open: Callable[[wire.Frame], None] = lambda frame: None
        self.welcome: bytes | None = json.dumps(WELCOME).encode()
        self.before_marker = b""
        self._decoder = wire.SessionDecoder()

    def write(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            self.heard.append(frame)
            if frame.kind == wire.HELLO:
                self._decoder.settle(accepted=True)
                self._answer_hello(bytes.fromhex(json.loads(frame.payload)["nonce"]))
            elif frame.kind == wire.OPEN:
                self.on_open(frame)

    def _answer_hello(self, nonce: bytes) -> None:
        self.tag = wire.tag_of(nonce)
        if self.welcome is not None:
            self.raw(self.before_marker + wire.MAGIC + nonce)
            self.say(0, wire.WELCOME, self.welcome)

    async def drain(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    def raw(self, data: bytes) -> None:
        self.receiver.received(data)

    def say(self, channel: int, kind: int, payload: bytes = b"", flags: int = 0) -> None:
        self.raw(wire.frame(self.tag, channel, kind, payload, flags))


@pytest.fixture
def guest() -> FakeGuest:
    return FakeGuest()


@pytest.fixture
async def link(guest: FakeGuest) -> AsyncGenerator[Link]:
    connected = await Link.connect(guest, key=KEY)
    yield connected
    connected.close()


async def expect(link: Link, error: type[SandboxError]) -> None:
    with pytest.raises(error):
        await link.call("stat", {}, timeout_s=1)


async def test_a_result_comes_back(guest: FakeGuest, link: Link) -> None:
    guest.on_open = lambda frame: guest.say(frame.channel, wire.RESULT, b'{"ok":{"answer":42}}')
    assert await link.call("stat", {}) == {"answer": 42}


async def test_an_error_comes_back_as_its_type(guest: FakeGuest, link: Link) -> None:
    body = b'{"error":{"code":"not_found","message":"gone"}}'
    guest.on_open = lambda frame: guest.say(frame.channel, wire.RESULT, body)
    await expect(link, NotFound)


async def test_our_marker_is_found_behind_an_old_session(guest: FakeGuest) -> None:
    guest.before_marker = wire.frame(7, 2, wire.DATA, b"x" * 100)[:50] + wire.MAGIC + b"\0" * 16
    link = await Link.connect(guest, key=KEY)
    assert link.welcome is not None
    link.close()


async def test_a_guest_that_never_answers_is_lost(guest: FakeGuest) -> None:
    guest.welcome = None
    with pytest.raises(SandboxLost):
        await Link.connect(guest, key=KEY, timeout_s=0.05)
    assert guest.closed


@pytest.mark.parametrize("welcome", [b"{}", b'{"epoch":"x"}', b"[]", b"nonsense", b"{" * 70_000])
async def test_a_hello_that_makes_no_sense_is_broken(guest: FakeGuest, welcome: bytes) -> None:
    guest.welcome = welcome
    with pytest.raises(SandboxBroken):
        await Link.connect(guest, key=KEY, timeout_s=1)
    assert guest.closed


OPENED = 2
"""The number of the first channel a link opens."""


@pytest.mark.parametrize(
    ("kind", "channel", "payload", "flags"),
    [
        pytest.param(wire.DATA, OPENED, b"x" * 70_000, 0, id="more than the credit"),
        pytest.param(wire.EVENT, OPENED, b"not json", 0, id="an event that is not JSON"),
        pytest.param(wire.EVENT, OPENED, b"[]", 0, id="an event that is no object"),
        pytest.param(wire.RESULT, OPENED, b'{"neither":1}', 0, id="a result that is neither"),
        pytest.param(wire.RESULT, OPENED, b'{"ok":' + b" " * 70_000 + b"{}}", 0, id="a result too long"),
        pytest.param(wire.DATA, 998, b"", 0, id="a channel never opened"),
        pytest.param(wire.OPEN, 3, b"{}", 0, id="a channel the guest may not open"),
        pytest.param(wire.CREDIT, OPENED, b"\0", 0, id="a credit of the wrong size"),
        pytest.param(wire.CLOSE, OPENED, b"", 0, id="a close without a result"),
        pytest.param(wire.HELLO, 0, b"{}", 0, id="a hello from the guest"),
        pytest.param(wire.WELCOME, 0, b"{}", 0, id="a second welcome"),
        pytest.param(wire.PING, OPENED, b"", 0, id="a control frame on a channel"),
    ],
)
async def test_a_violation_breaks_the_sandbox_and_fails_what_waits(
    guest: FakeGuest, link: Link, kind: int, channel: int, payload: bytes, flags: int
) -> None:
    guest.on_open = lambda frame: guest.say(channel, kind, payload, flags)
    await expect(link, SandboxBroken)
    assert guest.closed
    await expect(link, SandboxBroken)


@pytest.mark.parametrize("noise", [b"\0" * 64, b"\xff" * 64, b"HTTP/1.1 500 Oops\r\n\r\n"])
async def test_noise_breaks_the_sandbox(guest: FakeGuest, link: Link, noise: bytes) -> None:
    guest.on_open = lambda frame: guest.raw(noise)
    await expect(link, SandboxBroken)


async def test_a_takeover_is_a_lost_lease(guest: FakeGuest, link: Link) -> None:
    guest.on_open = lambda frame: guest.raw(wire.MAGIC + b"n" * 16)
    await expect(link, LeaseLost)


async def test_the_end_of_the_stream_fails_everything_that_waits(guest: FakeGuest, link: Link) -> None:
    calls = [asyncio.create_task(link.call("stat", {})) for _ in range(5)]
    await asyncio.sleep(0)
    guest.receiver.lost("cut")
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [SandboxLost] * 5


async def test_silence_ends_in_a_timeout_and_the_channel_is_closed(guest: FakeGuest, link: Link) -> None:
    with pytest.raises(OperationTimedOut):
        await link.call("stat", {}, timeout_s=0.02)
    assert [frame.kind for frame in guest.heard][-1] == wire.CLOSE


async def test_frames_for_a_channel_we_left_are_dropped(guest: FakeGuest, link: Link) -> None:
    with pytest.raises(OperationTimedOut):
        await link.call("stat", {}, timeout_s=0.02)
    guest.say(OPENED, wire.DATA, b"late" * 50_000)
    guest.say(OPENED, wire.RESULT, b'{"ok":{}}')
    guest.on_open = lambda frame: guest.say(frame.channel, wire.RESULT, b'{"ok":{}}')
    assert await link.call("stat", {}) == {}


async def test_unread_data_is_never_more_than_the_credit(guest: FakeGuest, link: Link) -> None:
    """Nothing taken, nothing granted: the guest stands still, and only on this channel."""
    async with link.open("read", {}, credit=1000) as channel:
        guest.say(channel.number, wire.DATA, b"x" * 1000)
        assert not [frame for frame in guest.heard if frame.kind == wire.CREDIT]
        assert await channel.take() == (0, b"x" * 1000)
        granted = [wire.unpack_credit(frame.payload) for frame in guest.heard if frame.kind == wire.CREDIT]
        assert sum(granted) == 1000


async def test_we_send_no_more_than_the_guest_allows(guest: FakeGuest, link: Link) -> None:
    async with link.open("write", {}) as channel:
        sending = asyncio.create_task(channel.send(bytes(wire.HOST_CREDIT + 5), end=True))
        await asyncio.sleep(0.01)
        sent = sum(len(frame.payload) for frame in guest.heard if frame.kind == wire.DATA)
        assert sent == wire.HOST_CREDIT
        assert not sending.done()
        guest.say(channel.number, wire.CREDIT, wire.pack_credit(100))
        assert await sending
        assert sum(len(frame.payload) for frame in guest.heard if frame.kind == wire.DATA) == wire.HOST_CREDIT + 5


async def test_acknowledgements_go_out_with_the_next_request(guest: FakeGuest, link: Link) -> None:
    guest.on_open = lambda frame: guest.say(frame.channel, wire.RESULT, b'{"ok":{}}')
    link.acknowledge_later("request-1")
    await link.call("stat", {})
    assert json.loads(guest.heard[-1].payload)["ack"] == ["request-1"]


async def test_many_calls_at_once_wait_for_a_channel(guest: FakeGuest, link: Link) -> None:
    opened: list[int] = []
    guest.on_open = lambda frame: opened.append(frame.channel)
    calls = [asyncio.create_task(link.call("read", {}, urgency=Urgency.LONG)) for _ in range(400)]
    while len(opened) < 400:
        await asyncio.sleep(0)
        assert len(opened) <= wire.MAX_CHANNELS or len(opened) == 400 or any(call.done() for call in calls)
        for channel in opened[: len(opened) // 2]:
            if channel >= 0:
                guest.say(channel, wire.RESULT, b'{"ok":{}}')
                opened[opened.index(channel)] = -1
    for channel in opened:
        if channel >= 0:
            guest.say(channel, wire.RESULT, b'{"ok":{}}')
    assert all(result == {} for result in await asyncio.gather(*calls))
