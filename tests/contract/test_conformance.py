"""Every backend, every check."""

import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest
from blockbuster import blockbuster_ctx

from sandbox.backends.docker import DockerBackend
from sandbox.backends.memory import MemoryFiles
from sandbox.backends.scripted import Rule, ScriptedSandbox
from sandbox.client.sandbox import GuestSandbox
from sandbox.conformance import CHECKS, Ability, Check, Outcome, Place, Verdict, expectations, run_all, run_one
from sandbox.errors import NotFound, NotSupported
from sandbox.protocol import FileSystem
from sandbox.types import SandboxSpec

every_check = pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])


async def judge(check: Check, subject: FileSystem, table: Mapping[str, str]) -> None:
    outcome = await run_one(check, subject, table.get(check.name))
    if outcome.verdict is Verdict.CANNOT:
        pytest.skip(f"cannot here: {table[check.name]}")
    assert outcome.verdict is Verdict.HOLDS, outcome.reason


@every_check
async def test_memory(check: Check) -> None:
    await judge(check, MemoryFiles(), expectations.MEMORY)


@every_check
async def test_scripted(check: Check) -> None:
    answer = NotSupported("its commands are scripted")
    async with ScriptedSandbox([Rule(re.compile(""), answer)]) as sandbox:
        await judge(check, sandbox, expectations.SCRIPTED)


@pytest.mark.docker
@every_check
async def test_docker(check: Check, shared_sandbox: GuestSandbox) -> None:
    with blockbuster_ctx("sandbox"):  # nothing of ours may block the event loop
        await judge(check, shared_sandbox, expectations.DOCKER)


@pytest.mark.docker
@every_check
async def test_docker_over_attach(check: Check, attached_sandbox: GuestSandbox) -> None:
    """Where the guest cannot reach our socket, all goes over the engine's attach stream."""
    await judge(check, attached_sandbox, expectations.DOCKER)


@pytest.fixture(scope="module")
async def attached_sandbox(spec: Callable[..., SandboxSpec]) -> AsyncGenerator[GuestSandbox]:
    async with DockerBackend.open(meet=False) as backend, await backend.create(spec()) as sandbox:
        yield sandbox


def test_check_names_are_unique() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)


async def outcome_of(error: Exception | None, cannot: str | None) -> Outcome:
    async def run(place: Place) -> None:
        if error is not None:
            raise error

    return await run_one(Check(name="made_up", needs=Ability.FILES, run=run), MemoryFiles(), cannot)


@pytest.mark.parametrize(
    ("error", "cannot", "verdict"),
    [
        (None, None, Verdict.HOLDS),
        (None, "stale", Verdict.FAILS),
        (NotSupported("not here"), "known", Verdict.CANNOT),
        (NotSupported("not here"), None, Verdict.FAILS),
        (AssertionError("a sentence"), None, Verdict.FAILS),
        (AssertionError("a sentence"), "known", Verdict.FAILS),
        (NotFound("gone"), None, Verdict.FAILS),
    ],
)
async def test_an_outcome_is_held_against_the_table(
    error: Exception | None, cannot: str | None, verdict: Verdict
) -> None:
    outcome = await outcome_of(error, cannot)
    assert outcome.verdict is verdict
    assert bool(outcome.reason) is (verdict is not Verdict.HOLDS)


async def test_a_missing_ability_is_a_cannot() -> None:
    check = next(check for check in CHECKS if check.needs is Ability.PROCESSES)
    assert (await run_one(check, MemoryFiles(), "known")).verdict is Verdict.CANNOT


async def test_run_all_tells_of_every_check_and_of_names_that_are_none() -> None:
    @asynccontextmanager
    async def make() -> AsyncGenerator[FileSystem]:
        yield MemoryFiles()

    outcomes = await run_all(make, {**expectations.MEMORY, "no_such_check": "x"})
    assert [outcome.check for outcome in outcomes] == ["no_such_check", *(check.name for check in CHECKS)]
    assert [outcome.check for outcome in outcomes if outcome.verdict is Verdict.FAILS] == ["no_such_check"]
