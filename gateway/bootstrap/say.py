"""What a person sees of the set-up: one line a step, and the seconds that a long one takes."""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_TTY_TICK_S = 0.5
_LOG_TICK_S = 15.0


def line(step: str, what: str) -> None:
    """Say that `step` does or found `what`."""
    print(f"[{step}] {what}", flush=True)


def tail(text: str, n_lines: int = 20) -> str:
    """The last lines of `text`, which is where tools say what went wrong."""
    return "\n".join(text.rstrip().splitlines()[-n_lines:])


class Clock:
    """Shows that something long is still going on: in place on a terminal, as a line now and then elsewhere."""

    def __init__(self, step: str) -> None:
        self._step = step
        self._started = time.monotonic()
        self._tty = sys.stdout.isatty()
        self._next = self._started + (_TTY_TICK_S if self._tty else _LOG_TICK_S)
        self._drawn = False

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def tick(self) -> None:
        """Call often; prints only when it is time to."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + (_TTY_TICK_S if self._tty else _LOG_TICK_S)
        if self._tty:
            print(f"\r[{self._step}] … {self.elapsed_s:.0f} s", end="", flush=True)
            self._drawn = True
        else:
            line(self._step, f"… {self.elapsed_s:.0f} s")

    def done(self) -> None:
        """Take the running line away again."""
        if self._drawn:
            print("\r\x1b[2K", end="", flush=True)


def run_quietly(
    step: str, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> tuple[int, str]:
    """Run a tool with its output in `log` and the seconds shown.

    Returns: its exit code (127 where there is no such tool) and what it printed.
    """
    clock = Clock(step)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w+", errors="replace") as out:
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env, cwd=cwd
            )
        except OSError as error:
            return 127, str(error)
        try:
            while process.poll() is None:
                clock.tick()
                time.sleep(0.05)
        finally:
            clock.done()
            if process.poll() is None:
                process.terminate()
                process.wait()
    return process.returncode, log.read_text(errors="replace")
