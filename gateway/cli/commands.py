"""The commands as one program. Turns what goes wrong into one line and an exit code."""

import sys

import typer

from gateway.cli import streams
from gateway.cli.demo import demo_command
from gateway.cli.exec import exec_command
from gateway.cli.images import images
from sandbox.errors import SandboxError

_app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
_app.command("exec")(exec_command)
_app.command("demo")(demo_command)
_app.add_typer(images, name="images")


@_app.callback()
def boatyard() -> None:
    """Sealed containers for coding agents."""


def run() -> None:
    streams.fill_closed()
    try:
        _app()
    except SandboxError as error:
        streams.say(f"boatyard: {error.message} [{error.code}]")
        sys.exit(1)
