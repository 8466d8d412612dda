"""SWE-ReX (PyPI `swe-rex`): its server in a container of our base image, asked over a kept-alive connection.

Its own client opens a connection for every request; ours here does not, and the container shares the host's network.
Both are in its favour: what is compared is the server.
"""

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from sandbox.state import state_dir
from sandbox.types import Limits
from tests.bench.peers.sdk import LIFETIME_S, Sdk
from tests.bench.row import NotMeasured

REQUIREMENT = "swe-rex==1.4.0"
VENV = Path(__file__).resolve().parents[3] / "bench-results" / ".venv-swerex"
_INSTALL_TIMEOUT_S = 120.0
_START_TIMEOUT_S = 30.0
_INSIDE = "/opt/swe-rex"
_SERVE = "from swerex.server import main; main()"


class SweRex:
    """Made by `open`. Requests may run at once: each takes a free connection."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._head = (
            f"POST /execute HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-API-Key: {token}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        )
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, sdk: Sdk, image: str, *, python: tuple[int, ...], say: Callable[[str], None]
    ) -> AsyncGenerator["SweRex"]:
        """Raises: NotMeasured."""
        packages = await _install(python, say)
        port, token = _free_port(), secrets.token_hex(8)
        limits = Limits()
        command = ["timeout", str(LIFETIME_S), "python3", "-c", _SERVE]
        command += ["--host", "127.0.0.1", "--port", str(port), "--auth-token", token]
        await asyncio.to_thread(
            sdk.run,
            image,
            command,
            network_mode="host",
            environment={"PYTHONPATH": _INSIDE},
            volumes={str(packages): {"bind": _INSIDE, "mode": "ro"}},
            nano_cpus=int(limits.cpus * 1e9),
            mem_limit=limits.memory_bytes,
        )
        rex = cls(port, token)
        try:
            await rex._wait()
            yield rex
        finally:
            for _, writer in rex._idle:
                writer.close()

    async def execute(self, command: list[str]) -> dict[str, Any]:
        connection = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = connection
        body = json.dumps({"command": command}).encode()
        writer.write(f"{self._head}{len(body)}\r\n\r\n".encode() + body)
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode().lower().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
        answer: dict[str, Any] = json.loads(await reader.readexactly(length))
        self._idle.append(connection)
        if answer.get("exit_code") != 0:
            raise RuntimeError(f"SWE-ReX answered {answer!r:.200}")
        return answer

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                while True:
                    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                        await self.execute(["true"])
                        return
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise NotMeasured(f"its server did not answer within {_START_TIMEOUT_S:.0f} s") from None


async def _install(python: tuple[int, ...], say: Callable[[str], None]) -> Path:
    """Its packages, for the Python inside the image. Raises: NotMeasured."""
    version = ".".join(str(part) for part in python)
    stamp = VENV / "installed"
    wanted = f"{REQUIREMENT} for Python {version}"
    if not stamp.exists() or stamp.read_text() != wanted:
        uv = state_dir(os.environ, uid=os.getuid()) / "uv/bin/uv"
        if not uv.exists():
            raise NotMeasured(f"there is no uv at {uv}; run `make setup`")
        say(f"install {wanted} into {VENV.name}, to compare with")
        await _run(str(uv), "venv", "--quiet", "--clear", "--python", sys.executable, str(VENV))
        interpreter = str(VENV / "bin/python")
        await _run(
            str(uv), "pip", "install", "--quiet", "--python", interpreter, "--python-version", version, REQUIREMENT
        )
        stamp.write_text(wanted)
    return next(VENV.glob("lib/python*/site-packages"))


async def _run(*command: str) -> None:
    VENV.parent.mkdir(exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        *command, cwd=VENV.parent, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(_INSTALL_TIMEOUT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise NotMeasured(f"`uv {command[1]}` took longer than {_INSTALL_TIMEOUT_S:.0f} s") from None
    if process.returncode != 0:
        last = output.decode(errors="replace").strip().splitlines()[-1:]
        raise NotMeasured(f"its virtual environment cannot be made: {' '.join(last)}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
