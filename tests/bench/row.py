"""A row of the table: what is measured, what is hoped for, and the list that every row is in."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tests.bench.bench import Bench

Unit = Literal["ms", "s", "MiB", "MB/s", "1/s"]
MORE_IS_BETTER: frozenset[Unit] = frozenset({"MB/s", "1/s"})


class NotMeasured(Exception):
    """The row cannot be measured here. The message says why; it is no failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a row measured, in its unit."""

    ours: float
    peer: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """`as_fast`: so many times as fast as the peer, or more. `time`: so many times the peer's time, or less.

    `below`: ours alone, in the row's unit.
    """

    kind: Literal["as_fast", "time", "below"]
    bound: float

    def __str__(self) -> str:
        sign = {"as_fast": "≥", "time": "≤", "below": "<"}[self.kind]
        return f"{sign} {self.bound:g}" + ("" if self.kind == "below" else "×")


def as_fast(times: float) -> Goal:
    return Goal(kind="as_fast", bound=times)


def at_most(times: float) -> Goal:
    return Goal(kind="time", bound=times)


def below(bound: float) -> Goal:
    return Goal(kind="below", bound=bound)


Measure = Callable[["Bench"], Awaitable[Figures]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    area: str
    name: str
    unit: Unit
    goal: Goal | None
    measure: Measure

    @property
    def key(self) -> str:
        """What `--only` looks in."""
        return f"{self.area} {self.measure.__name__} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A row after its measurement; `figures` is None where there was none, and `note` says why."""

    row: Row
    figures: Figures | None
    note: str = ""

    @property
    def is_of_time(self) -> bool:
        """Whether the ratio is of our time to the peer's, as its goal words it; otherwise it is of speed."""
        return self.row.goal is not None and self.row.goal.kind == "time"

    @property
    def ratio(self) -> float | None:
        if self.figures is None or self.figures.peer is None:
            return None
        ours, peer = self.figures.ours, self.figures.peer
        above, under = (ours, peer) if self.is_of_time or self.row.unit in MORE_IS_BETTER else (peer, ours)
        return above / under if under else None

    @property
    def ratio_in_words(self) -> str:
        """With its direction, which differs from row to row."""
        if self.ratio is None:
            return ""
        return f"{self.ratio:.2f}× {'its time' if self.is_of_time else 'as fast'}"

    @property
    def holds(self) -> bool | None:
        goal = self.row.goal
        if goal is None or self.figures is None:
            return None
        if goal.kind == "below":
            return self.figures.ours < goal.bound
        ratio = self.ratio
        if ratio is None:
            return None
        return ratio >= goal.bound if goal.kind == "as_fast" else ratio <= goal.bound


ROWS: list[Row] = []


def row(*, area: str, name: str, unit: Unit, goal: Goal | None = None) -> Callable[[Measure], Measure]:
    """Puts a function in the table."""

    def register(measure: Measure) -> Measure:
        ROWS.append(Row(area=area, name=name, unit=unit, goal=goal, measure=measure))
        return measure

    return register
