"""`boatyard images build [FILE] | list`."""

import time
from datetime import UTC, datetime
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from sandbox.backends.docker.engine import Engine
from sandbox.backends.docker.image_file import find
from sandbox.backends.docker.images import HASH_LABEL, NAME_LABEL, BuiltImage, build, list_images
from sandbox.errors import ImageNotFound

images = typer.Typer(no_args_is_help=True, help="Build the images that sandboxes start from, and list them.")

_LOG_TICK_S = 15.0


class Reporter:
    """Shows a build's steps: on a terminal with the last line of output beside a spinner, elsewhere with the seconds
    now and then."""

    def __init__(self, console: Console, *, verbose: bool) -> None:
        self._console = console
        self._verbose = verbose
        self._started = time.monotonic()
        self._spoke = self._started
        self._status: Status | None = None

    def __call__(self, line: str) -> None:
        """Take one line of progress, as `images.build` gives them."""
        if line.startswith("==> ") or self._verbose:
            self._say(line.removeprefix("==> "))
        elif self._console.is_terminal:
            if self._status is None:
                self._status = self._console.status("")
                self._status.start()
            self._status.update(escape(line[: max(20, self._console.width - 12)]))
        elif time.monotonic() - self._spoke > _LOG_TICK_S:
            self._say(f"… {time.monotonic() - self._started:.0f} s")

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        self._console.print(f"[image] {text}", markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Take the spinner away."""
        if self._status is not None:
            self._status.stop()


@images.command("build")
def build_command(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="An image file, or the name of one that ships with Boatyard.")
    ] = "base",
    *,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Build it anew, for newer packages.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show everything the steps print.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing if the image is there already.")] = False,
) -> None:
    """Build an image, unless the engine has it already."""
    console = Console()
    built = anyio.run(_build, console, file, rebuild, verbose)
    if built.cached and quiet:
        return
    how = "already there" if built.cached else f"built in {built.took_s:.1f} s"
    size = f"{built.size_bytes / 1e6:.0f} MB"
    console.print(f"[image] {built.tag} {how}, {size}", markup=False, highlight=False, soft_wrap=True)


async def _build(console: Console, reference: str, rebuild: bool, verbose: bool) -> BuiltImage:
    path = find(reference)
    if path is None:
        raise ImageNotFound(f"{reference} is neither the path of an image file (….toml) nor a shipped image")
    reporter = Reporter(console, verbose=verbose)
    try:
        async with Engine.connect() as engine:
            return await build(engine, path, progress=reporter, rebuild=rebuild)
    finally:
        reporter.close()


@images.command("list")
def list_command() -> None:
    """List the images Boatyard built."""
    anyio.run(_list, Console())


async def _list(console: Console) -> None:
    async with Engine.connect() as engine:
        found = await list_images(engine)
    table = Table("name", "hash", "image id", "size", "built", box=None, header_style="bold")
    for image in found:
        age_s = (datetime.now(UTC) - image.created_at).total_seconds()
        table.add_row(
            image.labels[NAME_LABEL],
            image.labels.get(HASH_LABEL, "")[:12],
            image.id.removeprefix("sha256:")[:12],
            f"{image.size_bytes / 1e6:.0f} MB",
            _age(age_s),
        )
    console.print(table)


def _age(age_s: float) -> str:
    for unit, seconds in (("d", 86400), ("h", 3600), ("min", 60)):
        if age_s >= seconds:
            return f"{age_s / seconds:.0f} {unit} ago"
    return f"{max(0.0, age_s):.0f} s ago"
