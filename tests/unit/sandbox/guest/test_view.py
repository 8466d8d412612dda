"""Which bytes of a stream are sent next, row by row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.guest.view import Bounds, next_piece

B = Bounds(head=10, tail=4)


@pytest.mark.parametrize(
    ("offset", "total", "bounds", "ended", "piece"),
    [
        pytest.param(0, 5, None, False, (0, 5), id="everything that is there"),
        pytest.param(5, 5, None, False, (5, 5), id="nothing new"),
        pytest.param(0, 7, B, False, (0, 7), id="the head as it comes"),
        pytest.param(7, 30, B, False, (7, 10), id="the rest of the head, no more"),
        pytest.param(10, 30, B, False, (10, 10), id="nothing until the end"),
        pytest.param(10, 30, B, True, (26, 30), id="then the tail, with a gap"),
        pytest.param(10, 14, B, True, (10, 14), id="a tail that follows the head has no gap"),
        pytest.param(10, 12, B, True, (10, 12), id="nor one shorter than allowed"),
        pytest.param(28, 30, B, True, (28, 30), id="the rest of the tail"),
        pytest.param(0, 30, Bounds(0, 0), True, (30, 30), id="nothing wanted"),
        pytest.param(0, 3, Bounds(0, 4), True, (0, 3), id="a tail alone"),
    ],
)
def test_next_piece(offset: int, total: int, bounds: Bounds | None, ended: bool, piece: tuple[int, int]) -> None:
    assert next_piece(offset, total, bounds, ended=ended) == piece


@given(st.integers(0, 50), st.integers(0, 20), st.integers(0, 20), st.integers(1, 7))
def test_head_and_tail_are_exactly_what_is_sent(total: int, head: int, tail: int, step: int) -> None:
    sent: list[int] = []
    offset = 0
    for ended in (False, True):
        while True:
            start, stop = next_piece(offset, total, Bounds(head, tail), ended=ended)
            if start >= stop:
                break
            stop = min(stop, start + step)
            sent += range(start, stop)
            offset = stop
    assert sent == [n for n in range(total) if n < head or n >= total - tail]
