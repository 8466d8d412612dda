"""The command line, `boatyard …`. Turns what goes wrong into one line and an exit code; each command has its file."""

import sys

import typer

from gateway.cli import streams
from gateway.cli.demo import demo_command
from gateway.cli.exec import exec_command
from gateway.cli.images import images
from sandbox.errors import SandboxError

__all__ = ["app", "main"]

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
app.command("exec")(exec_command)
app.command("demo")(demo_command)
app.add_typer(images, name="images")


@app.callback()
def boatyard() -> None:
    """Sealed containers for coding agents."""


def main() -> None:
    """The entry point of the `boatyard` script."""
    streams.fill_closed()
    try:
        app()
    except SandboxError as error:
        streams.say(f"boatyard: {error.message} [{error.code}]")
        sys.exit(1)
