"""What is recorded can be read back by offset; what is not, is known not to be."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sandbox.guest.recorder import IN_MEMORY, RING, OutputStore, Recorder


def whole(recorder: Recorder) -> list[tuple[int, bytes]]:
    pieces: list[tuple[int, bytes]] = []
    offset = 0
    while offset < recorder.total:
        where, data = recorder.read(offset, 10_000)
        assert where >= offset
        assert data
        pieces.append((where, data))
        offset = where + len(data)
    return pieces


def test_a_little_output_touches_no_file(tmp_path: Path) -> None:
    recorder = Recorder(OutputStore(str(tmp_path), 1 << 20), "a")
    recorder.append(b"hello")
    assert whole(recorder) == [(0, b"hello")]
    assert recorder.path is None
    assert not list(tmp_path.iterdir())


def test_more_goes_to_a_file_from_its_first_byte_on(tmp_path: Path) -> None:
    recorder = Recorder(OutputStore(str(tmp_path), 1 << 20), "a")
    said = bytes(range(256)) * 200
    for at in range(0, len(said), 1000):
        recorder.append(said[at : at + 1000])
    assert b"".join(data for _, data in whole(recorder)) == said
    assert (tmp_path / "a").read_bytes() == said
    assert not recorder.file_truncated


def test_past_the_cap_the_last_bytes_stay(tmp_path: Path) -> None:
    store = OutputStore(str(tmp_path), 200_000)
    recorder = Recorder(store, "a")
    said = b"".join(b"%09d\n" % n for n in range(100_000))
    for at in range(0, len(said), 5000):
        recorder.append(said[at : at + 5000])
    assert recorder.file_truncated
    assert (tmp_path / "a").read_bytes() == said[: store.file_cap]
    where, data = recorder.read(len(said) - RING, RING)
    assert (where, data) == (len(said) - RING, said[-RING:])
    assert recorder.read(store.file_cap, 10)[0] > store.file_cap


def test_the_oldest_file_of_an_ended_command_goes_first(tmp_path: Path) -> None:
    store = OutputStore(str(tmp_path), 100_000)
    recorders = [Recorder(store, f"r{n}") for n in range(4)]
    for recorder in recorders:
        recorder.append(b"x" * 40_000)
        recorder.ended = True
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r2", "r3"]
    assert recorders[0].file_truncated
    assert recorders[0].path is None
    assert not recorders[3].file_truncated


def test_a_running_command_keeps_its_file_and_the_newcomer_is_cut(tmp_path: Path) -> None:
    store = OutputStore(str(tmp_path), 100_000)
    first, second, third = (Recorder(store, name) for name in "abc")
    first.append(b"x" * 50_000)
    second.append(b"x" * 50_000)
    third.append(b"y" * 50_000)
    assert not first.file_truncated
    assert third.file_truncated
    assert third.total == 50_000
    assert third.read(0, 10) == (0, b"y" * 10)


def test_what_was_released_is_recorded_nowhere_but_its_file_stays_and_counts(tmp_path: Path) -> None:
    store = OutputStore(str(tmp_path), 100_000)
    released, other = Recorder(store, "released"), Recorder(store, "other")
    released.append(b"x" * 50_000)
    released.release()
    assert released.read(0, 10) == (50_000, b"")
    assert (tmp_path / "released").stat().st_size == 50_000
    other.append(b"y" * 50_000)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


@given(st.lists(st.integers(1, 3 * IN_MEMORY), max_size=12))
def test_everything_is_there_while_it_fits(sizes: list[int]) -> None:
    store = OutputStore("/nonexistent", 1 << 30)
    recorder = Recorder(store, "a")
    n = 0
    for size in sizes:
        recorder.append(bytes((n + k) % 251 for k in range(size)))
        n += size
    assert recorder.total == n
    if n <= RING:
        assert b"".join(data for _, data in whole(recorder)) == bytes(k % 251 for k in range(n))
