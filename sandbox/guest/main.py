"""The guest's beginning and end: make ourselves unreadable, serve whoever says hello."""

import gc
import os
from typing import Any, Dict

from sandbox.guest.files import Files
from sandbox.guest.loop import Loop
from sandbox.guest.peer import Peer
from sandbox.guest.pressure import Pressure
from sandbox.guest.recorder import OutputStore
from sandbox.guest.service import Config, Service
from sandbox.guest.supervisor import Supervisor

OUTPUT_DIRECTORY = "/run/boatyard/output"
PRIVATE_DIRECTORY = "/run/boatyard/private"
"""What the host shares with the guest alone is mounted below it."""
_FIRST_HELLO_S = 60.0
_DISKS = ["/workspace", "/home/user", "/tmp", "/dev/shm"]


def run(guest_hash: str) -> None:
    _become_undumpable()
    config = Config()
    loop = Loop()
    os.makedirs(OUTPUT_DIRECTORY, mode=0o755, exist_ok=True)
    os.makedirs(PRIVATE_DIRECTORY, exist_ok=True)
    os.chmod(PRIVATE_DIRECTORY, 0o700)
    store = OutputStore(OUTPUT_DIRECTORY, config.output_bytes)
    supervisor = Supervisor(loop, store, Pressure(_DISKS))
    service = Service(supervisor, Files(["/workspace", "/home", "/tmp"]), config)
    boot_id = os.urandom(8).hex()

    def welcome(hello: Dict[str, Any]) -> Dict[str, Any]:
        config.update(hello.get("config") or {})
        store.budget = config.output_bytes
        disks = {path: _size_of(path) for path in config.disks}
        return {"guest_hash": guest_hash, "boot_id": boot_id, "features": service.features, "disks": disks}

    peer = Peer(loop, 0, 1, welcome)
    peer.opener = service.open
    peer.on_ack = service.acknowledge
    peer.on_superseded = service.abandon
    loop.handle_signals()
    gc.collect()
    gc.freeze()
    _watch_for_orphanhood(loop, peer, config)
    loop.run()
    supervisor.close()


def _watch_for_orphanhood(loop: Loop, peer: Peer, config: Config) -> None:
    """Ends the guest when nobody has said anything for as long as its owner allowed, or no owner ever came."""
    allowed_s = config.orphan_after_s if peer.epoch else _FIRST_HELLO_S
    if allowed_s is not None and loop.now - peer.last_heard > allowed_s:
        loop.stop()
        return
    loop.call_later(1.0, lambda: _watch_for_orphanhood(loop, peer, config))


def _size_of(path: str) -> int:
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return found.f_blocks * found.f_frsize


def _become_undumpable() -> None:
    """A change of effective ids makes the kernel guard /proc/self as for a setuid program; no prctl, so no ctypes."""
    if os.getuid() == 0:
        os.setegid(65534)
        os.setegid(0)
