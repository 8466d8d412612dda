"""Runs the checks, one after the other, each in a directory of its own."""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager

from sandbox.conformance import editing, files, input_rules, isolation, processes, searching, starting, streams
from sandbox.conformance.check import PROTOCOLS, Check, Outcome, Place, Verdict
from sandbox.errors import NotSupported, SandboxError
from sandbox.protocol import FileSystem
from sandbox.types import WORKSPACE

CHECK_TIMEOUT_S = 60.0

CHECKS: tuple[Check, ...] = (
    *files.checks,
    *input_rules.checks,
    *editing.checks,
    *searching.checks,
    *streams.checks,
    *starting.checks,
    *processes.checks,
    *isolation.checks,
)

Make = Callable[[], AbstractAsyncContextManager[FileSystem]]


async def run_all(make: Make, expectations: Mapping[str, str]) -> list[Outcome]:
    """Every check on one subject. `expectations`: the checks that cannot hold here, each with the reason."""
    known = {check.name for check in CHECKS}
    outcomes = [
        Outcome(check=name, verdict=Verdict.FAILS, reason="the table expects something of a check that does not exist")
        for name in expectations
        if name not in known
    ]
    async with make() as subject:
        for check in CHECKS:
            outcomes.append(await run_one(check, subject, expectations.get(check.name)))
    return outcomes


async def run_one(check: Check, subject: FileSystem, cannot: str | None = None) -> Outcome:
    """One check. `cannot` is the reason why it is not expected to hold."""
    outcome = await _attempt(check, subject)
    if outcome.verdict is Verdict.CANNOT and cannot is None:
        reason = f"cannot here, and no table says so: {outcome.reason}"
        return Outcome(check=check.name, verdict=Verdict.FAILS, reason=reason)
    if outcome.verdict is Verdict.HOLDS and cannot is not None:
        reason = f"holds, although the table says it cannot: {cannot}"
        return Outcome(check=check.name, verdict=Verdict.FAILS, reason=reason)
    return outcome


async def _attempt(check: Check, subject: FileSystem) -> Outcome:
    def outcome(verdict: Verdict, reason: str = "") -> Outcome:
        return Outcome(check=check.name, verdict=verdict, reason=reason)

    if not isinstance(subject, PROTOCOLS[check.needs]):
        return outcome(Verdict.CANNOT, f"it has no {PROTOCOLS[check.needs].__name__}")
    place = Place(files=subject, directory=WORKSPACE / f"check-{uuid.uuid4().hex[:12]}")
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            await subject.mkdir(place.directory)
            await check.run(place)
    except NotSupported as error:
        return outcome(Verdict.CANNOT, error.message)
    except AssertionError as error:
        return outcome(Verdict.FAILS, str(error))
    except SandboxError as error:
        return outcome(Verdict.FAILS, f"{type(error).__name__}: {error}")
    except TimeoutError:
        return outcome(Verdict.FAILS, f"it did not end within {CHECK_TIMEOUT_S:.0f} s")
    finally:
        with contextlib.suppress(SandboxError):
            await subject.delete(place.directory, recursive=True, missing_ok=True)
    return outcome(Verdict.HOLDS)
