"""The seccomp profile against Docker's default: `images/seccomp.md` has a row for each difference, and no other row."""

import errno
import itertools
import json
import re
import socket
import termios
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from sandbox.backends.docker import seccomp
from sandbox.errors import CannotCreate
from tests.unit.sandbox.backends.docker import docker_default as docker

ALLOWED = "allowed"
HIGH = (1 << 32, 0xFFFFFFFF << 32)
"""Bits that the kernel does not look at, where an argument is 32 bits wide."""
PARAMETERS = {
    "socket": ("family", "type", "protocol"),
    "socketpair": ("family",),
    "ioctl": ("fd", "request"),
    "personality": ("persona",),
    "clone": ("flags",),
}
NAMES: dict[str, int] = {
    **{name: int(value) for name, value in {**vars(socket), **vars(termios)}.items() if isinstance(value, int)},
    "PER_LINUX32": 0x8,
    "UNAME26": 0x20000,
    "ADDR_NO_RANDOMIZE": 0x40000,
}


# The profile, and what it answers


class Argument(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    index: int
    op: Literal["SCMP_CMP_EQ", "SCMP_CMP_LE", "SCMP_CMP_GT", "SCMP_CMP_MASKED_EQ"]
    value: Annotated[int, Field(ge=0, lt=1 << 64)]
    value_two: Annotated[int, Field(alias="valueTwo")] = 0

    def matches(self, values: Sequence[int]) -> bool:
        value = values[self.index]
        match self.op:
            case "SCMP_CMP_EQ":
                return value == self.value
            case "SCMP_CMP_LE":
                return value <= self.value
            case "SCMP_CMP_GT":
                return value > self.value
            case "SCMP_CMP_MASKED_EQ":
                return value & self.value == self.value_two


class Rule(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    names: tuple[str, ...]
    action: Literal["SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"]
    errno_ret: Annotated[int, Field(alias="errnoRet")] = errno.EPERM
    args: tuple[Argument, ...] = ()
    comment: str = ""
    includes: Mapping[str, str] = {}

    @property
    def answer(self) -> str:
        return ALLOWED if self.action == "SCMP_ACT_ALLOW" else errno.errorcode[self.errno_ret]


@cache
def profile() -> tuple[Mapping[str, tuple[str, ...]], Mapping[str, tuple[Rule, ...]]]:
    """The architectures with what each brings along, and the rules of each call."""
    raw = json.loads(seccomp.profile())
    assert set(raw) == {"defaultAction", "archMap", "syscalls"}
    assert raw["defaultAction"] == "SCMP_ACT_ERRNO"
    rules: dict[str, tuple[Rule, ...]] = {}
    for rule in map(Rule.model_validate, raw["syscalls"]):
        for name in rule.names:
            rules[name] = (*rules.get(name, ()), rule)
    return {entry["architecture"]: tuple(entry["subArchitectures"]) for entry in raw["archMap"]}, rules


def of(name: str) -> tuple[Rule, ...]:
    return profile()[1].get(name, ())


def ours(name: str, values: Sequence[int] = ()) -> str:
    """Fails where rules contradict each other: the engine would choose."""
    answers = {rule.answer for rule in of(name) if all(argument.matches(values) for argument in rule.args)}
    assert len(answers) <= 1, (name, values, answers)
    return answers.pop() if answers else "EPERM"


def dockers(name: str, values: Sequence[int]) -> str:
    if name == "clone":
        return "EPERM" if values[0] & docker.NAMESPACES else ALLOWED
    if name == "personality":
        return ALLOWED if values[0] in docker.PERSONAS else "EPERM"
    return ALLOWED if name in docker.WHATEVER_THE_ARGUMENTS else "EPERM"


def calls() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Of those that one of the two filters by argument: every kind, by the low 32 bits."""
    flags = socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    types = [*range(16), socket.SOCK_STREAM | flags, socket.SOCK_DGRAM | flags, socket.SOCK_RAW | flags]
    protocols = [*range(20), 33, 57, 58, 59, 132, 136, 255, 256, 262, 0xFFFFFFFF]
    yield from (("socket", values) for values in itertools.product(range(48), types, protocols))
    yield from (("socketpair", (family,)) for family in range(48))
    yield from (("ioctl", (3, request)) for request in range(1 << 16))
    yield from (("ioctl", (3, top | 0x5400 | low)) for low in range(1 << 8) for top in (1 << 16, 1 << 31))
    bits = [0, *(1 << bit for bit in range(32)), 0xFFFFFFFF]
    yield from (("personality", (one | two,)) for one, two in itertools.product(bits, bits))
    yield from (("clone", (one | two,)) for one, two in itertools.product(bits, bits))


# The tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    names: tuple[str, ...]
    when: CodeType | None
    answer: str
    why: str

    def holds(self, name: str, values: Sequence[int]) -> bool:
        if name not in self.names or self.when is None:
            return False
        given = dict(zip(PARAMETERS[name], values, strict=True))
        return bool(eval(self.when, {"__builtins__": {}}, {**NAMES, **given}))  # noqa: S307  a page of ours, as written


def table(title: str) -> list[Row]:
    text = seccomp.path().with_suffix(".md").read_text()
    section = text.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines]


def row(names: str, when: str, *rest: str) -> Row:
    condition = compile(when.strip("`"), "seccomp.md", "eval") if when else None
    answer = rest[0] if len(rest) == 2 else ALLOWED
    return Row(names=tuple(re.findall(r"`([^`]+)`", names)), when=condition, answer=answer, why=rest[-1])


REMOVED = table("What Docker's default allows and this does not")
ADDED = table("What this allows and Docker's default does not")


def named(rows: Sequence[Row]) -> list[str]:
    return [name for row in rows if row.when is None for name in row.names]


# What must hold


def test_every_call_taken_away_has_a_row_and_every_row_takes_one_away() -> None:
    gone = {name for name in docker.WHATEVER_THE_ARGUMENTS if not any(rule.answer == ALLOWED for rule in of(name))}
    architectures = set(docker.ARCHITECTURES) | {name for names in docker.ARCHITECTURES.values() for name in names}
    ours_too = set(profile()[0]) | {name for names in profile()[0].values() for name in names}
    assert ours_too <= architectures
    assert sorted(named(REMOVED)) == sorted(gone | (architectures - ours_too))


def test_every_call_added_has_a_row_and_every_row_adds_one() -> None:
    known = docker.WHATEVER_THE_ARGUMENTS | {"clone", "personality"}
    allowed = {name for name in profile()[1] if any(rule.answer == ALLOWED for rule in of(name))}
    assert sorted(named(ADDED)) == sorted(allowed - known)


def test_a_call_taken_away_fails_as_its_row_says() -> None:
    for row in REMOVED:
        for name in row.names:
            if row.when is None and not name.startswith("SCMP_ARCH"):
                assert ours(name) == row.answer, name


def test_no_call_is_named_that_only_32_bit_programs_have() -> None:
    assert not docker.ONLY_32_BIT & set(profile()[1])


def test_every_filter_by_argument_is_looked_at() -> None:
    filtered = {name for name, rules in profile()[1].items() if any(rule.args for rule in rules)}
    assert filtered == set(PARAMETERS) == {name for name, _ in calls()}


def test_every_difference_by_argument_has_a_row_and_every_row_makes_one() -> None:
    used: set[int] = set()
    for name, values in calls():
        before, now = dockers(name, values), ours(name, values)
        rows = [row for row in (*REMOVED, *ADDED) if row.holds(name, values)]
        assert [row.answer for row in rows] == ([] if before == now else [now]), (name, values, before, now)
        used.update(map(id, rows))
    unused = [row.why for row in (*REMOVED, *ADDED) if row.when is not None and id(row) not in used]
    assert unused == []


def test_what_is_refused_stays_refused_with_bits_that_the_kernel_does_not_see() -> None:
    for name, values in calls():
        if ours(name, values) != ALLOWED:
            for index, high in itertools.product(range(len(values)), HIGH):
                changed = tuple(value | high * (place == index) for place, value in enumerate(values))
                assert ours(name, changed) != ALLOWED, (name, changed)


def test_an_ioctl_is_allowed_with_whatever_sign_a_libc_gives_it() -> None:
    for request in (termios.TCGETS, termios.TIOCGWINSZ, 0x80045430, 0xC0045878):
        assert ours("ioctl", (3, request)) == ours("ioctl", (3, request | HIGH[1])) == ALLOWED


@pytest.mark.parametrize("name", ["clone3", "io_uring_setup"])
def test_what_programs_fall_back_from_is_not_there(name: str) -> None:
    assert ours(name) == "ENOSYS"


def test_every_row_says_why_in_a_sentence() -> None:
    for row in (*REMOVED, *ADDED):
        assert row.names
        assert re.fullmatch(r"[A-Z].{10,}\.", row.why), row.why


@pytest.mark.parametrize("content", [None, b"{", b"\xff"])
def test_without_a_profile_there_is_no_sandbox(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "seccomp.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CannotCreate, match=str(file)):
        seccomp.load(file)
