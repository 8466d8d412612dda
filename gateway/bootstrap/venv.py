"""The virtual environment: uv, the pinned dependencies, and Boatyard itself in editable form."""

import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from gateway.bootstrap import say
from gateway.bootstrap.failure import Exit, SetupFailed
from gateway.bootstrap.state import locked

MIN_PYTHON = (3, 11)
_UV_PIN = Path(__file__).parent / "uv.txt"
_STAMP = ".boatyard-stamp"


def stamp(files: Iterable[Path], *facts: str) -> str:
    """What an environment was made from; two that differ in any file or fact differ in this."""
    digest = hashlib.sha256()
    for fact in facts:
        digest.update(f"{len(fact)}:{fact}".encode())
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.name}:{len(content)}:".encode() + content)
    return digest.hexdigest()


def uv_environment(environ: Mapping[str, str], pip_config: str) -> dict[str, str]:
    """uv's environment. uv does not read pip's configuration, so an index that pip was given is handed on to it."""
    env = {key: value for key, value in environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")}
    env.setdefault("UV_PYTHON_DOWNLOADS", "never")
    env.setdefault("UV_SYSTEM_CERTS", "true")
    index = ""
    for row in pip_config.splitlines():
        key, _, value = row.partition("=")
        if key.strip().endswith(".index-url"):
            index = value.strip().strip("'\"")
    if index and not any(name in env for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL")):
        env["UV_DEFAULT_INDEX"] = index
    return env


def ensure_python(version: tuple[int, int]) -> None:
    """Raises: SetupFailed if this Python is too old."""
    if version < MIN_PYTHON:
        wanted = ".".join(map(str, MIN_PYTHON))
        raise SetupFailed(
            Exit.PYTHON_UNSUITABLE,
            f"Python {wanted} or newer is needed, this is {version[0]}.{version[1]}: install it and run"
            f" `make PYTHON=python{wanted} …`",
        )


def up(root: Path, state: Path) -> None:
    """Make `.venv` in `root` hold exactly the pinned dependencies and Boatyard.

    Raises: SetupFailed if a package cannot be had.
    """
    ensure_python(sys.version_info[:2])
    venv = root / ".venv"
    pins = root / "requirements-dev.txt"
    wanted = _wanted(root)
    if _is_current(venv, wanted):
        return
    with locked(state, "venv"):
        if _is_current(venv, wanted):
            return
        uv = _uv(state)
        say.line("venv", f"installing the pinned dependencies into {venv}, because it is missing or out of date")
        env = uv_environment(os.environ, _pip_config())
        python = str(venv / "bin/python")
        if not (venv / "bin/python").exists():
            _uv_run([uv, "venv", "--no-config", "--allow-existing", "--python", sys.executable, str(venv)], env, state)
        _uv_run([uv, "pip", "sync", "--no-config", "--require-hashes", "--python", python, str(pins)], env, state)
        # The build backend is one of the pins, so that nothing unpinned is fetched to build ourselves.
        editable = ["--no-build-isolation", "--no-deps", "--editable", str(root)]
        _uv_run([uv, "pip", "install", "--no-config", "--python", python, *editable], env, state)
        (venv / _STAMP).write_text(wanted)


def needs_ensurepip(root: Path, state: Path) -> bool:
    """Whether `up` will make an environment with this Python's own means, and they are not installed."""
    if importlib.util.find_spec("ensurepip") is not None or _is_current(root / ".venv", _wanted(root)):
        return False
    return not _is_current(state / "uv", stamp([_UV_PIN], sys.version))


def _wanted(root: Path) -> str:
    return stamp([root / "requirements-dev.txt", root / "pyproject.toml"], sys.version, str(root))


def _is_current(venv: Path, wanted: str) -> bool:
    try:
        return (venv / _STAMP).read_text() == wanted and (venv / "bin/python").exists()
    except OSError:
        return False


def _uv(state: Path) -> str:
    """The pinned uv, in an environment of its own below the state directory."""
    home = state / "uv"
    uv = home / "bin/uv"
    wanted = stamp([_UV_PIN], sys.version)
    if _is_current(home, wanted) and uv.exists():
        return str(uv)
    with locked(state, "uv"):
        if _is_current(home, wanted) and uv.exists():
            return str(uv)
        say.line("uv", f"installing uv into {home}, to install the dependencies by their hashes")
        make = [sys.executable, "-m", "venv", "--clear", str(home)]
        code, output = say.run_quietly("uv", make, log=state / "uv.log")
        if code != 0:
            raise SetupFailed(
                Exit.PYTHON_UNSUITABLE,
                "this Python cannot make virtual environments: run `apt-get install python3-venv`, then this again",
                detail=say.tail(output),
            )
        install = [str(home / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check"]
        code, output = say.run_quietly("uv", [*install, "--require-hashes", "-r", str(_UV_PIN)], log=state / "uv.log")
        if code != 0:
            raise SetupFailed(
                Exit.DOWNLOAD_FAILED,
                "pip could not install uv; check the network and pip's configuration, then run this again",
                detail=say.tail(output),
            )
        (home / _STAMP).write_text(wanted)
    return str(uv)


def _pip_config() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout


def _uv_run(argv: list[str], env: dict[str, str], state: Path) -> None:
    code, output = say.run_quietly("venv", argv, log=state / "venv.log", env=env)
    if code != 0:
        raise SetupFailed(
            Exit.DOWNLOAD_FAILED,
            f"`uv {' '.join(argv[1:3])}` failed; check the network and the package index, then run this again",
            detail=say.tail(output),
        )
