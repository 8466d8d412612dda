"""Runs a job as the guest does: in a process of its own, with the stream on fd 1 and the outcome beside it."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[4]

# Any Python from 3.8 on can run the jobs: BOATYARD_GUEST_PYTHON=python3.8 pytest tests/unit/sandbox/guest
PYTHON = os.environ.get("BOATYARD_GUEST_PYTHON", sys.executable)

PROGRAM = """
import json, os, sys
from sandbox.guest import jobs
from sandbox.guest.refusal import Refusal, from_os_error
name, request, control, uid = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
try:
    run = jobs.load(name)
    if uid != os.geteuid():
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    outcome = {"ok": run(request)}
except Refusal as error:
    outcome = {"error": {"code": error.code, "message": error.message}}
except OSError as error:
    refusal = from_os_error(error, "?")
    outcome = {"error": {"code": refusal.code, "message": refusal.message}}
os.write(control, json.dumps(outcome).encode())
"""


class Refused(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True, kw_only=True)
class Done:
    result: dict[str, Any]
    output: bytes

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.splitlines()]


class RunningJob:
    """A job that has been started; `with` makes sure that it ends."""

    def __init__(self, name: str, request: dict[str, Any], uid: int) -> None:
        self._control, control = os.pipe()
        try:
            self.process = subprocess.Popen(
                [PYTHON, "-c", PROGRAM, name, json.dumps(request), str(control), str(uid)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[control],
            )
        finally:
            os.close(control)

    def finish(self, stdin: bytes = b"") -> Done:
        output, _ = self.process.communicate(stdin, timeout=60)
        with open(self._control, "rb", closefd=False) as control:
            outcome = json.loads(control.read())
        if "error" in outcome:
            raise Refused(outcome["error"]["code"], outcome["error"]["message"])
        return Done(result=outcome["ok"], output=output)

    def __enter__(self) -> "RunningJob":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        os.close(self._control)


def start_job(name: str, **request: Any) -> RunningJob:
    """`with start_job(name, …) as job`: for jobs that are watched or stopped while they run."""
    return RunningJob(name, request, os.geteuid())


def run_job(name: str, stdin: bytes = b"", *, uid: int | None = None, **request: Any) -> Done:
    """A job from start to end. Raises: Refused."""
    with RunningJob(name, request, os.geteuid() if uid is None else uid) as job:
        return job.finish(stdin)


@contextmanager
def plain_users_directory() -> Generator[tuple[Path, int]]:
    """A directory, and the uid of its owner, to whom the kernel's permissions apply as they do not to root."""
    uid = os.geteuid() or 65534
    with tempfile.TemporaryDirectory(prefix="boatyard-test-") as name:
        os.chown(name, uid, -1)
        yield Path(name), uid


def give(root: Path, uid: int) -> None:
    for path in root.rglob("*"):
        os.chown(path, uid, -1, follow_symlinks=False)
