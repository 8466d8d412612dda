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
    """`better`: so many times better than the peer, or more. `at_most`: so many times the peer's figure, or less.

    `below`: ours alone, in the row's unit.
    """

    kind: Literal["better", "at_most", "below"]
    bound: float

    def __str__(self) -> str:
        sign = {"better": "≥", "at_most": "≤", "below": "<"}[self.kind]
        return f"{sign} {self.bound:g}" + ("" if self.kind == "below" else "×")


def better(times: float) -> Goal:
    return Goal(kind="better", bound=times)


def at_most(times: float) -> Goal:
    return Goal(kind="at_most", bound=times)


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
    def ratio(self) -> float | None:
        """As the goal words it; without a goal, how many times better we are."""
        if self.figures is None or self.figures.peer is None:
            return None
        ours, peer = self.figures.ours, self.figures.peer
        goal = self.row.goal
        upwards = (goal is not None and goal.kind == "at_most") or self.row.unit in MORE_IS_BETTER
        above, under = (ours, peer) if upwards else (peer, ours)
        return above / under if under else None

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
        return ratio >= goal.bound if goal.kind == "better" else ratio <= goal.bound


ROWS: list[Row] = []


def row(*, area: str, name: str, unit: Unit, goal: Goal | None = None) -> Callable[[Measure], Measure]:
    """Puts a function in the table."""

    def register(measure: Measure) -> Measure:
        ROWS.append(Row(area=area, name=name, unit=unit, goal=goal, measure=measure))
        return measure

    return register
