"""What a check is, where it runs, and what may come of it."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import cast

from sandbox.errors import NotSupported, SandboxError
from sandbox.protocol import FileSystem, Sandbox, SupportsEdit, SupportsSearch, SupportsStreams, SupportsWatch


class Ability(StrEnum):
    FILES = "files"
    EDIT = "edit"
    SEARCH = "search"
    STREAMS = "streams"
    WATCH = "watch"
    PROCESSES = "processes"


PROTOCOLS: dict[Ability, type] = {
    Ability.FILES: FileSystem,
    Ability.EDIT: SupportsEdit,
    Ability.SEARCH: SupportsSearch,
    Ability.STREAMS: SupportsStreams,
    Ability.WATCH: SupportsWatch,
    Ability.PROCESSES: Sandbox,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A directory of its own, for one check, in what is being checked."""

    files: FileSystem
    directory: PurePosixPath

    def path(self, *names: str) -> PurePosixPath:
        return self.directory.joinpath(*names)

    async def names(self, *below: str) -> list[str]:
        return [info.path.name for info in await self.files.ls(self.path(*below))]

    @property
    def editor(self) -> SupportsEdit:
        return cast(SupportsEdit, self.files)

    @property
    def searcher(self) -> SupportsSearch:
        return cast(SupportsSearch, self.files)

    @property
    def streams(self) -> SupportsStreams:
        return cast(SupportsStreams, self.files)

    @property
    def watcher(self) -> SupportsWatch:
        return cast(SupportsWatch, self.files)

    @property
    def sandbox(self) -> Sandbox:
        return cast(Sandbox, self.files)


Run = Callable[[Place], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`run` raises AssertionError with a sentence where the promise is not kept."""

    name: str
    needs: Ability
    run: Run


class Checks(list[Check]):
    """The checks of a module, in the order they are written."""

    def needs(self, ability: Ability) -> Callable[[Run], Run]:
        def add(run: Run) -> Run:
            self.append(Check(name=getattr(run, "__name__", "").strip("_"), needs=ability, run=run))
            return run

        return add


class Verdict(StrEnum):
    HOLDS = "holds"
    CANNOT = "cannot here"
    FAILS = "fails"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    check: str
    verdict: Verdict
    reason: str = ""


def expect(condition: bool, sentence: str) -> None:
    """Not `assert`, which `python -O` would leave out."""
    if not condition:
        raise AssertionError(sentence)


def expect_equal(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise AssertionError(f"{what}: {_short(found)}, not {_short(wanted)}")


@contextmanager
def refused(what: str, *kinds: type[SandboxError]) -> Generator[None]:
    """The block must raise one of `kinds`, exactly, with a sentence in it. NotSupported passes through."""
    wanted = " or ".join(kind.__name__ for kind in kinds)
    try:
        yield
    except SandboxError as error:
        if isinstance(error, NotSupported) and NotSupported not in kinds:
            raise
        expect(type(error) in kinds, f"{what}: {type(error).__name__} ({error}), not {wanted}")
        expect(bool(error.message.strip()), f"{what}: {wanted} came without a message")
        return
    raise AssertionError(f"{what}: was not refused; {wanted} was due")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:200]}… ({len(text)} characters)"
