"""The table for people and the file for programs."""

import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.bench.row import Outcome

RESULTS = Path(__file__).resolve().parents[2] / "bench-results" / "latest.json"
_LOG_WIDTH = 140


def fields(outcome: Outcome) -> dict[str, Any]:
    row, figures = outcome.row, outcome.figures
    return {
        "area": row.area,
        "name": row.name,
        "ours": None if figures is None else round(figures.ours, 4),
        "peer": None if figures is None or figures.peer is None else round(figures.peer, 4),
        "unit": row.unit,
        "ratio": None if outcome.ratio is None else round(outcome.ratio, 3),
        "ratio_in_words": outcome.ratio_in_words,
        "goal": None if row.goal is None else str(row.goal),
        "holds": outcome.holds,
        "note": outcome.note,
    }


def write(outcomes: Sequence[Outcome], *, quick: bool, path: Path = RESULTS) -> None:
    path.parent.mkdir(exist_ok=True)
    document = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"kernel": platform.release(), "n_cpus": os.cpu_count(), "python": platform.python_version()},
        "quick": quick,
        "rows": [fields(outcome) for outcome in outcomes],
    }
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    partial.rename(path)


def show(outcomes: Sequence[Outcome]) -> None:
    # A log has no width; 80 columns would fold every name into six lines.
    console = Console() if sys.stdout.isatty() else Console(width=_LOG_WIDTH)
    table = Table(title="ours beside the peer, medians of one run", title_justify="left")
    table.add_column("area")
    table.add_column("what", overflow="fold")
    for name in ("ours", "peer", "unit", "beside the peer", "goal", "holds"):
        table.add_column(name, justify="right", no_wrap=True)
    area = ""
    for outcome in outcomes:
        if area and outcome.row.area != area:
            table.add_section()
        area = outcome.row.area
        table.add_row(*_cells(outcome))
    console.print(table)


def _cells(outcome: Outcome) -> list[str | Text]:
    row, figures = outcome.row, outcome.figures
    name = Text(row.name)
    if outcome.note:
        name.append(f"\n{outcome.note}", style="dim")
    return [
        row.area,
        name,
        "n/a" if figures is None else _number(figures.ours),
        "" if figures is None or figures.peer is None else _number(figures.peer),
        row.unit,
        outcome.ratio_in_words,
        "" if row.goal is None else str(row.goal),
        {True: Text("yes", "green"), False: Text("no", "red"), None: Text("")}[outcome.holds],
    ]


def _number(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"
