"""Kills come to an end, whatever goes wrong on the way.

In a process of its own: a sweep kills whatever descends from who makes it, and these tests are somebody's children.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]

BEGIN = """
import os, resource, subprocess
from sandbox.guest.accounts import DEFAULT
from sandbox.guest.loop import Loop
from sandbox.guest.pressure import Pressure
from sandbox.guest.process import Process
from sandbox.guest.recorder import OutputStore
from sandbox.guest.spawn import Order
from sandbox.guest.supervisor import Supervisor

loop = Loop()
supervisor = Supervisor(loop, OutputStore("/nonexistent", 0), Pressure([]))
done = []

def kill(mark, name):
    supervisor.kill_mark(mark, lambda n_killed, n_left: done.append((name, n_killed, n_left)))

def turn_until(n_done):
    while len(done) < n_done:
        loop.turn()

def no_more_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
"""

CASES = {
    "a kill works when every descriptor is in use": """
child = subprocess.Popen(["sleep", "60"])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    while True:
        os.open("/dev/null", os.O_RDONLY)
except OSError:
    pass
kill(5, "it")
turn_until(1)
assert done == [("it", 1, 0)], done
""",
    "one that cannot look is over after a while, and does not claim that nothing is left": """
no_more_files()
kill(5, "one")
kill(6, "two")
loop.turn()
assert done == []
loop.now += 60
turn_until(2)
assert done == [("one", 0, 1), ("two", 0, 1)], done
""",
    "whoever fails on hearing of its end keeps it from nobody else": """
def fail(n_killed, n_left):
    raise ZeroDivisionError

supervisor.kill_mark(5, fail)
kill(6, "second")
turn_until(1)
supervisor.kill_mark(5, fail)
loop.turn()
kill(7, "third")
turn_until(2)
assert done == [("second", 0, 0), ("third", 0, 0)], done
""",
    "commands are forgotten though nobody can look what is left of them": """
no_more_files()
for number in range(300):
    order = Order(argv=["x"], env={}, cwd="/", account=DEFAULT, mark=number)
    process = Process(loop, supervisor.store, Pressure([]), str(number), order, stdin=False, separate=False, size=None)
    process.ended = True
    supervisor.processes[process.id] = process
    supervisor.acknowledge(process.id)
assert not supervisor.processes
assert supervisor.find("299").mark == 299
""",
}


@pytest.mark.parametrize("case", CASES)
def test_in_a_process_of_its_own(case: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + CASES[case]], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
