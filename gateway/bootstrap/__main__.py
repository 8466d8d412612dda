"""`python3 -m gateway.bootstrap [venv|engine|image|all|down|status]`."""

import argparse
import subprocess
import sys
from pathlib import Path

from gateway.bootstrap import engine, needs, say, venv
from gateway.bootstrap.failure import Exit, SetupFailed
from gateway.bootstrap.state import state_path, writable_state_dir

ROOT = Path(__file__).resolve().parents[2]
STEPS = ("venv", "engine", "image", "all", "down", "status")


def _image(root: Path) -> None:
    boatyard = root / ".venv/bin/boatyard"
    done = subprocess.run([str(boatyard), "images", "build", "base", "--quiet"], check=False)
    if done.returncode != 0:
        raise SetupFailed(Exit.IMAGE_FAILED, "the base image could not be built; what failed is said above")


def _run(step: str) -> None:
    if step == "down":
        engine.down(state_path())
        return
    if step == "status":
        say.line("status", engine.status(state_path()))
        return
    state = writable_state_dir()
    needs.ensure(step, root=ROOT, state=state)
    if step in needs.VENV_STEPS:
        venv.up(ROOT, state)
    if step in needs.ENGINE_STEPS:
        engine.up(state)
    if step in needs.IMAGE_STEPS:
        _image(ROOT)


def main() -> int:
    """Returns: 0, or one of `failure.Exit`."""
    codes = ", ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in Exit)
    parser = argparse.ArgumentParser(
        prog="python3 -m gateway.bootstrap",
        description="Set this machine up for Boatyard. Does only what is not already done.",
        epilog=f"Exit codes: 0 done, {codes}.",
    )
    parser.add_argument("step", nargs="?", default="all", choices=STEPS)
    step: str = parser.parse_args().step
    try:
        _run(step)
    except SetupFailed as failure:
        sys.stdout.flush()
        if failure.detail:
            print(failure.detail, file=sys.stderr)
        print(f"set-up stopped: {failure.message}", file=sys.stderr)
        return failure.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
