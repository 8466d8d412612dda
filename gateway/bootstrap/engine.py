"""A Docker engine: find one, or start one and remember that it is ours.

Owns the engine's directory in the state directory: data, runtime files, pid file, log and the record of who runs.
An engine that answered before is used as it is and never stopped.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from gateway.bootstrap import docker_api, mounts, packages, say
from gateway.bootstrap.failure import Exit, SetupFailed
from gateway.bootstrap.process import PROC, ProcessIdentity, identify, is_alive, program_of, stop
from gateway.bootstrap.state import locked
from sandbox.volumes import Volumes

_START_TIMEOUT_S = 60.0
_STOP_GRACE_S = 20.0
_SYSTEM_CONTAINERD = Path("/run/containerd/containerd.sock")

# Tried in order. The second is for kernels without the NAT tables, the third for ones without bridges: a sandbox has
# no network card anyway, and image builds use the host's network. Not first, because the engine removes docker0
# when it starts with --bridge=none, also one that another engine made.
NETWORK_FALLBACKS: tuple[tuple[str, ...], ...] = (
    (),
    ("--iptables=false", "--ip6tables=false"),
    ("--iptables=false", "--ip6tables=false", "--bridge=none"),
)


def engine_host(environ: Mapping[str, str]) -> str:
    """The address every tool will look for the engine at."""
    return environ.get("DOCKER_HOST") or docker_api.DEFAULT_HOST


def dockerd_command(directory: Path, dockerd: str, network: Sequence[str]) -> list[str]:
    """The command line of our engine. A configuration file of the system's own engine is not read."""
    return [
        dockerd,
        f"--host={docker_api.DEFAULT_HOST}",
        f"--config-file={directory / 'daemon.json'}",
        f"--data-root={directory / 'data'}",
        f"--exec-root={directory / 'run'}",
        f"--pidfile={directory / 'dockerd.pid'}",
        *network,
    ]


def load_record(path: Path) -> ProcessIdentity | None:
    """The engine we started last, if the record can be read; a torn or foreign file is as good as none."""
    try:
        fields = cast("dict[str, Any]", json.loads(path.read_text()))
        return ProcessIdentity(
            pid=int(fields["pid"]), started_ticks=int(fields["started_ticks"]), boot_id=str(fields["boot_id"])
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def save_record(path: Path, identity: ProcessIdentity) -> None:
    """Write the record in one step, so that a crash leaves the old one or the new one."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(identity.to_json()))
    new.replace(path)


def forget_dead(directory: Path, proc: Path = PROC) -> None:
    """Remove what a killed engine left that would stop the next one from starting.

    dockerd believes any live process whose number is in its pid files: after a reboot, or a clean-up that ends all
    processes, that number may be anybody's.
    """
    for pid_file, program in (
        (directory / "dockerd.pid", "dockerd"),
        (directory / "run/containerd/containerd.pid", "containerd"),
    ):
        if not _names(pid_file, program, proc):
            pid_file.unlink(missing_ok=True)


def _names(pid_file: Path, program: str, proc: Path = PROC) -> bool:
    """Whether the file holds the pid of such a program."""
    try:
        return program_of(int(pid_file.read_text()), proc) == program
    except (OSError, ValueError):
        return False


def ensure_reachable(host: str) -> bool:
    """Whether an engine answers there.

    Raises: SetupFailed if one is there that this user may not use, or if `DOCKER_HOST` names one that is not there.
    """
    if docker_api.version(host) is not None:
        return True
    refused = why_refused(host)
    if refused is not None:
        raise SetupFailed(Exit.NEEDS_ROOT, refused)
    if host != docker_api.DEFAULT_HOST:
        raise SetupFailed(
            Exit.ENGINE_FAILED,
            f"no Docker engine answers at DOCKER_HOST={host}: start it, or unset DOCKER_HOST to let this start one",
        )
    return False


def why_refused(host: str) -> str | None:
    """The sentence for a user who may not use the engine's socket; None for one who may, or if there is none."""
    unix = docker_api.socket_path(host)
    if unix is None or os.access(unix, os.R_OK | os.W_OK):
        return None
    with contextlib.suppress(PermissionError):  # not even its directory
        if not unix.exists():
            return None
    return f"this user may not use the engine at {unix}: join the group docker, or run this as root"


def up(state: Path) -> None:
    """Make sure that an engine answers.

    Raises: SetupFailed if none does and none can be started.
    """
    host = engine_host(os.environ)
    if ensure_reachable(host):
        return
    if os.geteuid() != 0:
        raise SetupFailed(Exit.NEEDS_ROOT, only_root_can_start(host))
    with locked(state, "engine"):
        if docker_api.version(host) is not None:
            return
        directory = state / "engine"
        directory.mkdir(exist_ok=True)
        _wait_out_live(directory)
        _start(directory)


def only_root_can_start(host: str) -> str:
    return (
        f"no Docker engine answers at {host} and only root can start one: run `sudo systemctl start docker`"
        " (and be in the group docker), set DOCKER_HOST, or run this as root"
    )


def _wait_out_live(directory: Path) -> None:
    """Our own engine runs but does not answer: give it time, then end it, so that two never share the data."""
    record = load_record(directory / "engine.json")
    if record is None or not is_alive(record):
        return
    say.line("engine", f"ours (pid {record.pid}) does not answer: giving it 15 s")
    if _answers_within(record, 15.0):
        return
    say.line("engine", f"still no answer: ending pid {record.pid} to start it again")
    stop(record, grace_s=_STOP_GRACE_S)


def _start(directory: Path) -> None:
    dockerd = packages.find_program("dockerd")
    if dockerd is None:
        raise SetupFailed(Exit.ENGINE_FAILED, "docker.io is installed but there is no dockerd on PATH")
    # live-restore: containers outlive a restart of the engine.
    (directory / "daemon.json").write_text(json.dumps({"live-restore": True}))
    log = directory / "dockerd.log"
    say.line("engine", f"starting a Docker engine, because none answers at {docker_api.DEFAULT_HOST}; log: {log}")
    for network in NETWORK_FALLBACKS:
        if docker_api.version(docker_api.DEFAULT_HOST) is not None:
            return
        forget_dead(directory)
        _remove_dead_socket(_SYSTEM_CONTAINERD)
        with log.open("w") as out:
            process = subprocess.Popen(
                dockerd_command(directory, dockerd, network),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={**os.environ, "PATH": packages.search_path()},
                start_new_session=True,
            )
        identity = identify(process.pid)
        if identity is None:
            continue
        save_record(directory / "engine.json", identity)
        if _answers_within(identity, _START_TIMEOUT_S, process):
            if network:
                say.line("engine", f"the kernel lacks what the default network needs; started with {' '.join(network)}")
            return
        stop(identity, grace_s=_STOP_GRACE_S)
        process.wait()
    (directory / "engine.json").unlink(missing_ok=True)
    raise SetupFailed(
        Exit.ENGINE_FAILED,
        f"the Docker engine did not start; the whole log is {log}. Or start an engine yourself and set DOCKER_HOST",
        detail=say.tail(log.read_text(errors="replace")),
    )


def _answers_within(
    identity: ProcessIdentity, timeout_s: float, process: "subprocess.Popen[bytes] | None" = None
) -> bool:
    clock = say.Clock("engine")
    try:
        while clock.elapsed_s < timeout_s:
            if docker_api.version(docker_api.DEFAULT_HOST) is not None:
                return True
            if process is not None:
                process.poll()
            if not is_alive(identity):
                return False
            clock.tick()
            time.sleep(0.1)
        return False
    finally:
        clock.done()


def _remove_dead_socket(path: Path) -> None:
    """dockerd takes the mere presence of the system containerd's socket for a running one and then waits in vain."""
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.connect(str(path))
    except ConnectionRefusedError:
        say.line("engine", f"removing {path}: nobody listens on it any more")
        path.unlink(missing_ok=True)
    except OSError:
        pass
    finally:
        probe.close()


def down(state: Path) -> None:
    """Remove our containers, stop the engine if it is the one we started, and leave no mount of it behind.

    Writes nothing where there is nothing: a user without a state directory has containers at most.

    Raises: SetupFailed if this user may not use the engine, or may not stop it.
    """
    host = engine_host(os.environ)
    refused = why_refused(host)
    if refused is not None:
        raise SetupFailed(Exit.NEEDS_ROOT, refused)
    with locked(state, "engine") if os.access(state, os.W_OK) else contextlib.nullcontext():
        answers = docker_api.version(host) is not None
        if answers:
            n_removed = docker_api.remove_our_containers(host)
            say.line("down", f"removed {n_removed} container(s) labelled {docker_api.LABEL}")
            # One directory a sandbox, and one disk; those whose sandbox ended without us are still there.
            shutil.rmtree(state / "meet", ignore_errors=True)
            with contextlib.suppress(PermissionError):  # then they are another user's
                volumes = Volumes(state / "volumes")
                for name in volumes.names():
                    volumes.remove(name)
        _end_ours(state / "engine", host if answers else None)


def _end_ours(directory: Path, answering: str | None) -> None:
    record = load_record(directory / "engine.json")
    if record is not None and is_alive(record):
        n_left = docker_api.n_running(answering) if answering == docker_api.DEFAULT_HOST else 0
        if n_left:
            say.line("down", f"{n_left} container(s) that are not ours run on without the engine (live-restore)")
        say.line("down", f"stopping the engine that set-up started (pid {record.pid})")
        try:
            if not stop(record, grace_s=_STOP_GRACE_S):
                say.line("down", f"it did not stop within {_STOP_GRACE_S:.0f} s and was killed")
        except PermissionError:
            raise SetupFailed(
                Exit.NEEDS_ROOT, f"this user may not stop the engine (pid {record.pid}): run this as root"
            ) from None
    elif answering is not None:
        say.line("down", f"the engine at {answering} was not started by set-up: left as it is")
    else:
        say.line("down", "no engine runs")
    if not _names(directory / "dockerd.pid", "dockerd"):
        mounts.remove_leftovers(directory)
    with contextlib.suppress(OSError):
        (directory / "engine.json").unlink()


def status(state: Path) -> str:
    """One sentence on the engine."""
    host = engine_host(os.environ)
    version = docker_api.version(host)
    if version is None:
        return why_refused(host) or f"no engine answers at {host}"
    record = load_record(state / "engine/engine.json")
    whose = "started by set-up" if record is not None and is_alive(record) else "not started by set-up"
    n_ours = len(docker_api.our_containers(host))
    return f"Docker {version.engine} (API {version.api}) at {host}, {whose}; {n_ours} container(s) of ours"
