"""The few engine calls that set-up needs, over plain HTTP: the Docker SDK is not installed yet when they are made."""

import http.client
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlsplit

DEFAULT_HOST = "unix:///var/run/docker.sock"
LABEL = "boatyard=1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """What an engine says of itself."""

    engine: str
    api: str


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path
        self._timeout_s = timeout_s

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._timeout_s)
        self.sock.connect(str(self._path))


def socket_path(host: str) -> Path | None:
    """The socket file of a `unix://` address; None for any other kind."""
    parts = urlsplit(host)
    return Path(parts.path) if parts.scheme == "unix" else None


def _request(host: str, method: str, path: str, timeout_s: float) -> tuple[int, bytes]:
    unix = socket_path(host)
    if unix is not None:
        connection: http.client.HTTPConnection = _UnixConnection(unix, timeout_s)
    else:
        parts = urlsplit(host)
        connection = http.client.HTTPConnection(parts.hostname or "localhost", parts.port or 2375, timeout=timeout_s)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def version(host: str, *, timeout_s: float = 10.0) -> Version | None:
    """What the engine at `host` says of itself; None if none answers."""
    try:
        status, body = _request(host, "GET", "/version", timeout_s)
        if status != http.HTTPStatus.OK:
            return None
        answer = cast("dict[str, Any]", json.loads(body))
        return Version(engine=str(answer["Version"]), api=str(answer["ApiVersion"]))
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return None


def our_containers(host: str, *, all_states: bool = True) -> list[str]:
    """The ids of the containers that carry Boatyard's label."""
    filters = quote(json.dumps({"label": [LABEL]}))
    _, body = _request(host, "GET", f"/containers/json?all={int(all_states)}&filters={filters}", 30.0)
    return [str(container["Id"]) for container in cast("list[dict[str, Any]]", json.loads(body))]


def has_image(host: str, repository: str) -> bool:
    """Whether the engine has an image of that name, with whatever tag."""
    filters = quote(json.dumps({"reference": [repository]}))
    _, body = _request(host, "GET", f"/images/json?filters={filters}", 30.0)
    return bool(json.loads(body))


def n_running(host: str) -> int:
    """How many containers of anybody run."""
    _, body = _request(host, "GET", "/containers/json", 30.0)
    return len(cast("list[object]", json.loads(body)))


def remove_our_containers(host: str) -> int:
    """Remove every container that carries Boatyard's label, running or not. Returns how many there were."""
    ids = our_containers(host)
    for container in ids:
        _request(host, "DELETE", f"/containers/{container}?force=1&v=1", 60.0)
    return len(ids)
