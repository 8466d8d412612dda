"""Bounded disks, on this machine's real loop devices."""

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from sandbox.errors import CannotCreate
from sandbox.types import KIB, MIB
from sandbox.volumes import Volumes

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root may mount")
SIZE = 24 * MIB


@pytest.fixture
def volumes(tmp_path: Path) -> Generator[Volumes]:
    made = Volumes(tmp_path / "boatyard-test-volumes")
    yield made
    for name in made.names():
        made.remove(name)


def fill(path: Path, n_bytes: int) -> int:
    """How much could be written."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.tell() < n_bytes:
            file.write(bytes(64 * KIB))
    return path.stat().st_size


def touch(directory: Path, n_files: int) -> None:
    for number in range(n_files):
        (directory / str(number)).touch()


def test_it_holds_what_was_asked_for_and_no_more(volumes: Volumes) -> None:
    path = volumes.make("one", SIZE, {"workspace": 1000})
    assert SIZE <= fill(path / "workspace/all", 2 * SIZE) < SIZE * 1.15


def test_its_room_on_the_host_is_reserved(volumes: Volumes, tmp_path: Path) -> None:
    volumes.make("one", SIZE, {})
    assert (tmp_path / "boatyard-test-volumes/one.img").stat().st_blocks * 512 >= SIZE


def test_inodes_are_bounded(volumes: Volumes) -> None:
    path = volumes.make("one", 8 * MIB, {"workspace": 1000})
    with pytest.raises(OSError, match="No space left"):
        touch(path / "workspace", 8 * KIB)


def test_directories_belong_to_their_user_and_nothing_else_is_there(volumes: Volumes) -> None:
    path = volumes.make("one", SIZE, {"workspace": 1000, "home": 1001})
    found = {entry.name: (entry.stat().st_uid, entry.stat().st_mode & 0o777) for entry in path.iterdir()}
    assert found == {"workspace": (1000, 0o755), "home": (1001, 0o755)}


def test_it_keeps_its_content_when_it_is_mounted_again(volumes: Volumes) -> None:
    path = volumes.make("one", SIZE, {"home": 1000})
    (path / "home/kept").write_text("yes")
    volumes.unmount("one")
    assert not path.is_mount()
    assert (volumes.mount("one") / "home/kept").read_text() == "yes"


def test_remove_leaves_nothing_even_while_it_is_in_use(volumes: Volumes, tmp_path: Path) -> None:
    path = volumes.make("one", SIZE, {"home": 1000})
    with (path / "home/open").open("w") as still_open:
        volumes.remove("one")
        still_open.write("x")
    volumes.remove("one")
    assert list((tmp_path / "boatyard-test-volumes").iterdir()) == []


def test_only_what_is_old_and_nobodys_is_removed(volumes: Volumes, tmp_path: Path) -> None:
    for name in ("alive", "dead", "young"):
        volumes.make(name, 8 * MIB, {})
        if name != "young":
            os.utime(tmp_path / f"boatyard-test-volumes/{name}.img", (1, 1))
    volumes.remove_all_but(["alive"], older_than=1000)
    assert volumes.names() == ["alive", "young"]


def test_one_that_does_not_fit_on_the_host_is_refused_and_leaves_nothing(volumes: Volumes, tmp_path: Path) -> None:
    with pytest.raises(CannotCreate, match="disk_in_memory"):
        volumes.make("huge", 1 << 50, {})
    assert volumes.names() == []
    assert list((tmp_path / "boatyard-test-volumes").iterdir()) == []
