"""`python -m tests.bench [--only NAME] [--quick]`. Exit code 0 unless something broke: timing is no failure."""

import argparse
import asyncio
import contextlib
import importlib
import signal
import sys
import traceback
from collections.abc import Sequence

from sandbox.errors import SandboxError
from tests.bench import report
from tests.bench.bench import Bench
from tests.bench.row import ROWS, NotMeasured, Outcome, Row

AREAS = ("exec", "files", "lifecycle")
_ROW_TIMEOUT_S = 180.0


async def _measure(bench: Bench, row: Row) -> tuple[Outcome, bool]:
    """The row's outcome, and whether it broke."""
    try:
        async with asyncio.timeout(_ROW_TIMEOUT_S):
            figures = await row.measure(bench)
    except NotMeasured as reason:
        return Outcome(row=row, figures=None, note=str(reason)), False
    except Exception as error:  # noqa: BLE001  one row that breaks must not hide the others
        traceback.print_exc()
        return Outcome(row=row, figures=None, note=f"broke: {type(error).__name__}: {error}"), True
    return Outcome(row=row, figures=figures, note=figures.note), False


async def _run(rows: Sequence[Row], *, quick: bool) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    outcomes: list[Outcome] = []
    n_broken = 0
    async with Bench.open(quick=quick) as bench:
        for number, row in enumerate(rows, 1):
            bench.say(f"{number}/{len(rows)} {row.area}: {row.name}")
            outcome, broke = await _measure(bench, row)
            outcomes.append(outcome)
            n_broken += broke
    report.write(outcomes, quick=quick)
    report.show(outcomes)
    print(f"written to {report.RESULTS}")
    return 1 if n_broken else 0


def main() -> int:
    for area in AREAS:
        importlib.import_module(f"tests.bench.{area}")
    names = "\n".join(f"  {row.area:10} {row.measure.__name__:16} {row.name}" for row in ROWS)
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measures Boatyard beside the Docker SDK, `docker run`, the host and SWE-ReX, in turns.",
        epilog=f"rows:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="rows with this in their area or name; repeat")
    parser.add_argument("--quick", action="store_true", help="a quarter of the rounds: rough figures in a minute")
    chosen = parser.parse_args()
    wanted: list[str] = chosen.only or [""]
    rows = [row for row in ROWS if any(word.lower() in row.key.lower() for word in wanted)]
    if not rows:
        parser.error(f"no row has {' or '.join(map(repr, wanted))} in its name; --help lists them")
    try:
        return asyncio.run(_run(rows, quick=bool(chosen.quick)))
    except SandboxError as error:
        print(f"the bench cannot run: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        with contextlib.suppress(BrokenPipeError):
            print("stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
