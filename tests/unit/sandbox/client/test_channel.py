"""What comes in on a channel, cut into any pieces: all of it, in order, for the credit it was sent under."""

import asyncio
import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox import wire
from sandbox.client.channel import Channel, Item

CREDIT = 1 << 18


class Granted:
    """A link that only counts the credit that a channel sends."""

    def __init__(self) -> None:
        self.n_bytes = 0

    def send(self, channel: int, kind: int, payload: bytes = b"", flags: int = 0) -> None:
        assert kind == wire.CREDIT
        self.n_bytes += wire.unpack_credit(payload)

    async def drain(self) -> None: ...


def make(credit: int = CREDIT) -> tuple[Channel, Granted]:
    granted = Granted()
    return Channel(granted, 2, credit=credit, refill=True, on_item=None), granted


def put(channel: Channel, item: Item) -> int:
    if isinstance(item, tuple):
        channel.receive(*item)
        return len(item[1])
    payload = json.dumps(item).encode()
    channel.receive_event(item, payload)
    return len(payload)


def runs(items: list[Item]) -> list[Item]:
    """With neighbours of one stream joined: how they were cut does not matter, their order does."""
    joined: list[Item] = []
    for item in items:
        last = joined[-1] if joined else None
        if isinstance(item, tuple) and isinstance(last, tuple) and last[0] == item[0]:
            joined[-1] = (item[0], last[1] + item[1])
        else:
            joined.append(item)
    return joined


def data(stream: int, n_bytes: int, fill: int) -> Item:
    return stream, bytes([fill]) * n_bytes


def gap(start: int) -> Item:
    return {"gap": [1, start, start + 1]}


SIZES = st.one_of(st.integers(1, 3), st.sampled_from([4095, 4096, 4097, 65536, 70_000]))
DATA = st.builds(data, st.integers(0, 3), SIZES, st.integers(0, 255))
EVENTS = st.builds(gap, st.integers(0, 1000))
STEPS = st.lists(st.one_of(DATA, EVENTS, st.none()), max_size=40)
"""Something that comes, or None: something is taken."""


@settings(deadline=None)
@given(STEPS)
def test_everything_is_taken_in_the_order_in_which_it_came(steps: list[Item | None]) -> None:
    async def run() -> None:
        channel, _ = make(credit=wire.MAX_CREDIT)
        came: list[Item] = []
        taken: list[Item] = []
        for step in steps:
            if step is not None:
                put(channel, step)
                came.append(step)
            elif runs(taken) != runs(came):
                item = await channel.take()
                assert item is not None
                taken.append(item)
        channel.finish({})
        while (item := await channel.take()) is not None:
            taken.append(item)
        assert runs(taken) == runs(came)

    asyncio.run(run())


@settings(deadline=None)
@given(st.lists(st.one_of(DATA, EVENTS), min_size=1, max_size=40))
def test_what_is_taken_is_granted_again(items: list[Item]) -> None:
    """However much comes over time: a receiver that keeps up never makes the guest wait."""

    async def run() -> None:
        channel, granted = make(credit=100_000)
        sent = 0
        for item in items:
            sent += put(channel, item)
            while sent - granted.n_bytes > 25_000:
                await channel.take()

    asyncio.run(run())


async def test_a_paused_reader_of_two_streams_gets_every_byte_and_holds_little() -> None:
    """A command that writes to both by turns, a byte at a time, up to the last of its credit."""
    channel, granted = make()
    tracemalloc.start()
    for _ in range(CREDIT // 2):
        channel.receive(1, b"a")
        channel.receive(2, b"b")
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 8 * CREDIT
    with pytest.raises(wire.Violation):
        channel.receive(1, b"a")
    for _ in range(CREDIT // 2):
        assert await channel.take() == (1, b"a")
        assert await channel.take() == (2, b"b")
    assert granted.n_bytes == CREDIT


async def test_events_are_granted_again_when_they_are_taken() -> None:
    channel, granted = make(credit=1000)
    event = gap(0)
    sent = 0
    for _ in range(1000):
        sent += put(channel, event)
        assert await channel.take() == event
    assert sent > 10 * 1000
    assert sent - granted.n_bytes <= 250
