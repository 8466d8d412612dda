"""The command line, `boatyard …`: `commands` puts it together, and each command has its file."""

import signal

__all__ = ["main"]


def main() -> None:
    """The entry point of the `boatyard` script.

    Loading the rest takes half a second. It happens here and not above, so that Ctrl-C in it shows no traceback.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gateway.cli.commands import run

    signal.signal(signal.SIGINT, before)
    run()
