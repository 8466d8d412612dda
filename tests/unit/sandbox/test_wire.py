"""Frames survive any cut, a takeover at any byte is found, and nonsense is a violation and nothing else."""

import secrets
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox import wire

TAG = 0x01020304
OLD = 0x0A0B0C0D
frames = st.lists(
    st.builds(
        wire.Frame,
        channel=st.integers(0, 1 << 31),
        kind=st.sampled_from(sorted(wire.KINDS)),
        flags=st.integers(0, 255),
        payload=st.binary(max_size=300),
    ),
    max_size=20,
)


def encode(found: list[wire.Frame], tag: int = TAG) -> bytes:
    return b"".join(wire.frame(tag, f.channel, f.kind, f.payload, f.flags) for f in found)


def cut(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = 0
    for size in [*sizes, len(data)]:
        yield data[at : at + size]
        at += size


@given(frames, st.lists(st.integers(1, 64), max_size=50))
def test_frames_survive_any_cut(sent: list[wire.Frame], sizes: list[int]) -> None:
    decoder = wire.FrameDecoder(TAG)
    assert [frame for piece in cut(encode(sent), sizes) for frame in decoder.feed(piece)] == sent


@given(st.binary(max_size=4000), st.lists(st.integers(1, 64), max_size=50))
def test_noise_is_a_violation_or_nothing(noise: bytes, sizes: list[int]) -> None:
    decoder = wire.FrameDecoder(TAG)
    try:
        for piece in cut(noise, sizes):
            list(decoder.feed(piece))
    except (wire.Violation, wire.Superseded):
        pass


def test_an_oversize_frame_is_refused_before_its_payload_comes() -> None:
    decoder = wire.FrameDecoder(TAG)
    with pytest.raises(wire.Violation):
        list(decoder.feed(wire.HEADER.pack(TAG, wire.MAX_PAYLOAD + 1, 2, wire.DATA, 0, 0)))


def test_a_marker_in_place_of_a_header_means_superseded() -> None:
    decoder = wire.FrameDecoder(TAG)
    with pytest.raises(wire.Superseded):
        list(decoder.feed(encode([wire.Frame(2, wire.DATA, 0, b"x")]) + wire.MAGIC + b"n" * 16))


@given(st.binary(max_size=500), st.lists(st.integers(1, 40), max_size=50))
def test_the_host_finds_its_marker_after_anything(noise: bytes, sizes: list[int]) -> None:
    marker = wire.MAGIC + secrets.token_bytes(wire.NONCE_BYTES)
    scanner = wire.MarkerScanner(marker)
    rest: bytes | None = None
    for piece in cut(noise + marker + b"after", sizes):
        if rest is None:
            rest = scanner.feed(piece)
        else:
            rest += piece
    assert rest == b"after"


@given(frames, st.integers(0, 400), frames, st.lists(st.integers(1, 64), max_size=60))
def test_the_guest_hears_a_new_peer_inside_a_half_frame(
    before: list[wire.Frame], n_lost: int, after: list[wire.Frame], sizes: list[int]
) -> None:
    """The old peer dies inside a frame; whatever was cut off, every frame of the new one arrives."""
    key = bytes(range(16))
    old = encode(before, OLD) + wire.frame(OLD, 2, wire.DATA, b"x" * 500)
    stream = wire.MAGIC + key + old[: max(len(old) - n_lost, 0)] + wire.MAGIC + key + encode(after)
    decoder = wire.SessionDecoder()
    heard = [frame for piece in cut(stream, sizes) for frame in decoder.feed(piece)]
    assert heard[len(heard) - len(after) :] == after


def test_a_payload_that_quotes_the_magic_without_the_key_is_only_data() -> None:
    key = secrets.token_bytes(16)
    quoted = wire.Frame(2, wire.DATA, 0, wire.MAGIC + b"\0" * 16 + b"boo")
    decoder = wire.SessionDecoder()
    assert list(decoder.feed(wire.MAGIC + key + encode([quoted]))) == [quoted]


def test_frames_of_an_accepted_predecessor_are_skipped() -> None:
    key = secrets.token_bytes(16)
    hello = wire.Frame(0, wire.HELLO, 0, b"{}")
    mine, stale = wire.Frame(2, wire.OPEN, 0, b"{}"), wire.Frame(4, wire.OPEN, 0, b"{}")
    decoder = wire.SessionDecoder()
    for tag in (OLD, TAG):
        assert list(decoder.feed(wire.MAGIC + key + encode([hello], tag))) == [hello]
        decoder.settle(accepted=True)
    assert list(decoder.feed(encode([stale], OLD) + encode([mine], TAG))) == [mine]


def test_a_refused_newcomer_leaves_the_holder_in_place() -> None:
    key = secrets.token_bytes(16)
    hello = wire.Frame(0, wire.HELLO, 0, b"{}")
    mine, refused = wire.Frame(2, wire.OPEN, 0, b"{}"), wire.Frame(4, wire.OPEN, 0, b"{}")
    decoder = wire.SessionDecoder()
    list(decoder.feed(wire.MAGIC + key + encode([hello], TAG)))
    decoder.settle(accepted=True)
    list(decoder.feed(wire.MAGIC + key + encode([hello], OLD)))
    decoder.settle(accepted=False)
    assert list(decoder.feed(encode([refused], OLD) + encode([mine], TAG))) == [mine]


@pytest.mark.parametrize("n_read", [0, 4, 8, 15, 16, 20, 23])
@pytest.mark.parametrize("cut", [0, 5, 16, 500, 1000, 1016, 1020, 1033])
def test_a_refused_newcomer_may_come_in_the_middle_of_the_holders_frame(cut: int, n_read: int) -> None:
    """And its marker in two reads: `n_read` bytes of it end the first."""
    key = secrets.token_bytes(16)
    hello = wire.Frame(0, wire.HELLO, 0, b"{}")
    sent = [wire.Frame(2, wire.DATA, 0, b"x" * 1000), wire.Frame(2, wire.DATA, wire.END, b"y")]
    decoder = wire.SessionDecoder()
    list(decoder.feed(wire.MAGIC + key + encode([hello], TAG)))
    decoder.settle(accepted=True)
    stream = encode(sent, TAG)
    heard: list[wire.Frame] = []
    received = stream[:cut] + wire.MAGIC + key + encode([hello], OLD) + stream[cut:]
    for read in (received[: cut + n_read], received[cut + n_read :]):
        for frame in decoder.feed(read):
            if frame == hello:
                decoder.settle(accepted=False)
            else:
                heard.append(frame)
    assert heard == sent


def test_a_lost_boundary_is_said_once_and_ends_with_the_next_hello() -> None:
    key = secrets.token_bytes(16)
    after = wire.Frame(2, wire.OPEN, 0, b"{}")
    decoder = wire.SessionDecoder()
    heard = list(decoder.feed(wire.MAGIC + key + encode([after]) + b"\xff" * 64))
    heard += list(decoder.feed(b"\xff" * 64))
    assert heard == [after, wire.SessionDecoder.DESYNC_SEEN]
    assert list(decoder.feed(wire.MAGIC + key + encode([after]))) == [after]


@pytest.mark.parametrize("payload", [b"", b"[1]", b"nul", b"\xff", b"{" * 100_000, b"[" * 100_000])
def test_json_that_is_no_object_is_a_violation(payload: bytes) -> None:
    with pytest.raises(wire.Violation):
        wire.unpack_json(payload)


def test_names_that_are_not_utf8_pass_through_json() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert wire.unpack_json(wire.pack_json({"path": name}))["path"] == name


def test_what_cannot_be_understood_is_not_kept() -> None:
    decoder = wire.SessionDecoder()
    list(decoder.feed(wire.MAGIC + bytes(16) + b"\xff" * 64))
    tracemalloc.start()
    try:
        for _ in range(100):
            list(decoder.feed(b"\xff" * 100_000))
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
