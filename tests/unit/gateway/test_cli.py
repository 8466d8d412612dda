"""The command line, as far as it needs no engine."""

import subprocess
import sys


def test_nothing_slow_is_loaded_before_ctrl_c_is_minded() -> None:
    script = "import sys, gateway.cli; print({'docker', 'pydantic', 'typer', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "set()\n"
