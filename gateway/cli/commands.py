"""The commands as one program. Turns what goes wrong into one line and an exit code."""

import sys

import typer

from gateway.cli import streams
from gateway.cli.complaint import complaint
from gateway.cli.demo import demo_command
from gateway.cli.exec import exec_command
from gateway.cli.images import images
from sandbox.errors import SandboxError

# Plain text: in a log, a frame of line-drawing characters only folds the sentence inside it.
_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
# What follows the command's name is its own, `--` or not, as with docker, ssh and env.
_app.command("exec", context_settings={"allow_interspersed_args": False})(exec_command)
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
        streams.say(complaint(error))
        sys.exit(1)
