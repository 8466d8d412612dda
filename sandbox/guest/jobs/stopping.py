"""SIGTERM as an exception, for jobs that have something to remove before they go."""

import signal

from sandbox.guest.refusal import Refusal


def on_sigterm(message: str) -> None:
    def stop(signum: int, frame: object) -> None:
        raise Refusal("operation_timed_out", message)

    signal.signal(signal.SIGTERM, stop)


def ignore_sigterm() -> None:
    """One that came before raises here at the latest; when this has returned, none does any more."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
