"""remove and transfer."""

import os
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.unit.sandbox.guest.job_process import Refused, give, plain_users_directory, run_job


def test_remove_deletes_a_tree_and_not_what_its_links_lead_to(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "f").write_text("x")
    (tree / "a" / "b" / os.fsdecode(b"\xff\n")).write_text("x")
    (tree / "link").symlink_to(outside)
    assert run_job("remove", path=str(tree)).result == {"n_removed": 6}
    assert not tree.exists()
    assert (outside / "precious").exists()


def test_remove_of_a_link_deletes_the_link(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to("d")
    assert run_job("remove", path=str(tmp_path / "link")).result == {"n_removed": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_remove_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not_found"):
        run_job("remove", path=str(tmp_path / "missing"))


def test_remove_opens_own_directories_that_lack_the_bits() -> None:
    with plain_users_directory() as (root, uid):
        for mode in (0o000, 0o500, 0o400, 0o100):
            directory = root / "tree" / f"{mode:o}"
            (directory / "sub").mkdir(parents=True)
            (directory / "f").write_text("x")
            directory.chmod(mode)
        give(root, uid)
        run_job("remove", path=str(root / "tree"), uid=uid)
        assert list(root.iterdir()) == []


def test_remove_of_what_others_own_is_refused_by_name() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to make somebody else's file")
    with plain_users_directory() as (root, uid):
        (root / "tree" / "theirs").mkdir(parents=True)
        (root / "tree" / "theirs" / "f").write_text("x")
        os.chown(root / "tree", uid, -1)
        with pytest.raises(Refused, match=r"permission_denied: .*f: permission denied"):
            run_job("remove", path=str(root / "tree"), uid=uid)


def test_remove_takes_trees_deeper_than_descriptors_and_paths_allow(tmp_path: Path) -> None:
    depth = 1500
    fd = os.open(tmp_path, os.O_RDONLY)
    for name in ("tree", *("d" * 10 for _ in range(depth))):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    try:
        assert run_job("remove", path=str(tmp_path / "tree")).result == {"n_removed": depth + 1}
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path / "tree")], check=True)  # pytest's own cleaning cannot


def test_remove_takes_many_entries(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    for n in range(20_000):
        os.close(os.open(tmp_path / "tree" / str(n), os.O_CREAT))
    assert run_job("remove", path=str(tmp_path / "tree")).result == {"n_removed": 20_001}


def test_transfer_moves_a_tree_to_another_file_system(tmp_path: Path) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one file system only")
    with tempfile.TemporaryDirectory(dir=shm) as other:
        source = tmp_path / "source"
        (source / "d").mkdir(parents=True)
        (source / "d" / "f").write_text("content")
        (source / "d" / "f").chmod(0o640)
        os.utime(source / "d" / "f", ns=(10**18 + 7, 10**18 + 7))
        (source / "link").symlink_to("/nowhere")
        (source / "d").chmod(0o555)
        target = Path(other) / "target"
        run_job("transfer", source=str(source), target=str(target))
        found = (target / "d" / "f").stat()
        assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns) == (0o640, 10**18 + 7)
        assert (target / "d" / "f").read_text() == "content"
        assert stat.S_IMODE((target / "d").stat().st_mode) == 0o555
        assert (target / "link").readlink() == Path("/nowhere")
        assert not source.exists()
        assert [path.name for path in Path(other).iterdir()] == ["target"]
        (target / "d").chmod(0o755)


def test_transfer_that_fails_leaves_the_source_and_no_copy(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "f").write_text("x")
    (target / "full").mkdir(parents=True)
    with pytest.raises(Refused, match="directory_not_empty"):
        run_job("transfer", source=str(source), target=str(target))
    with pytest.raises(Refused, match="not_found"):
        run_job("transfer", source=str(tmp_path / "missing"), target=str(target))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]
    assert (source / "f").exists()
