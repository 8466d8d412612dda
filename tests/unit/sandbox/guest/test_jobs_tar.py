"""pack and unpack."""

import gzip
import io
import os
import signal
import stat
import tarfile
import time
from pathlib import Path

import pytest

from tests.unit.sandbox.guest.job_process import Refused, give, plain_users_directory, run_job, start_job


def entry(name: str, *, kind: bytes = tarfile.REGTYPE, data: bytes = b"", link: str = "", mode: int = 0o644) -> bytes:
    """One entry of a tar, without the end mark."""
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.mode, info.mtime = kind, len(data), link, mode, 1_600_000_000
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape") + data + bytes(-len(data) % 512)


END = bytes(1024)


def snapshot(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): _content(path) for path in root.rglob("*")}


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"-> {path.readlink()}"
    return "/" if path.is_dir() else path.read_text()


def members(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as tar:
        return {info.name: info for info in tar}


def test_pack_then_unpack_is_the_same_tree(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "sub" / "empty").mkdir(parents=True)
    names = ["a b", "new\nline", "'quote\"", "-dash", "ünïcode", os.fsdecode(b"bad\xff"), "n" * 255]
    for name in names:
        (source / "sub" / name).write_bytes(name.encode("utf-8", "surrogateescape") * 50)
    (source / "big").write_bytes(os.urandom(1_000_001))
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o4755)
    (source / "link").symlink_to("sub/a b")
    os.link(source / "big", source / "hard")
    os.utime(source / "run.sh", (1_500_000_000, 1_500_000_000))
    packed = run_job("pack", path=str(source))
    n_entries = 2 + len(names) + 4
    assert packed.result == {"n_entries": n_entries, "n_skipped": 0}
    assert run_job("unpack", packed.output, path=str(target)).result == {"n_entries": n_entries}
    for path in source.rglob("*"):
        copy = target / path.relative_to(source)
        if path.is_symlink():
            assert copy.readlink() == path.readlink()
        elif path.is_file():
            assert copy.read_bytes() == path.read_bytes()
    assert stat.S_IMODE((target / "run.sh").stat().st_mode) == 0o755
    assert (target / "run.sh").stat().st_mtime == 1_500_000_000


def test_pack_of_one_file_has_its_basename(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    assert list(members(run_job("pack", path=str(tmp_path / "f")).output)) == ["f"]


def test_pack_skips_and_counts_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "f").write_text("x")
    done = run_job("pack", path=str(tmp_path))
    assert done.result == {"n_entries": 1, "n_skipped": 1}
    assert list(members(done.output)) == ["f"]


def test_pack_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not_found"):
        run_job("pack", path=str(tmp_path / "missing"))


def test_unpack_merges_directories_and_replaces_files(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o700)
    (tmp_path / "d" / "old").write_text("old")
    (tmp_path / "d" / "both").write_text("old")
    (tmp_path / "link").symlink_to("d/old")
    tar = entry("./d/", kind=tarfile.DIRTYPE, mode=0o755) + entry("d/both", data=b"new") + entry("link", data=b"file")
    run_job("unpack", tar + entry("e/f/g", data=b"deep") + END, path=str(tmp_path))
    assert snapshot(tmp_path) == {
        "d": "/",
        "d/old": "old",
        "d/both": "new",
        "link": "file",
        "e": "/",
        "e/f": "/",
        "e/f/g": "deep",
    }
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "e").stat().st_mode) == 0o755


def test_unpack_keeps_modes_and_times_of_new_directories(tmp_path: Path) -> None:
    tar = entry("d/", kind=tarfile.DIRTYPE, mode=0o555) + entry("d/f", data=b"x", mode=0o400)
    run_job("unpack", tar + END, path=str(tmp_path))
    found = (tmp_path / "d").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_mtime) == (0o555, 1_600_000_000)
    assert stat.S_IMODE((tmp_path / "d" / "f").stat().st_mode) == 0o400


def test_unpack_takes_gzip_pax_and_sparse(tmp_path: Path) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("ü" * 120)
        info.size, info.mtime = 3, 1_600_000_000.5
        tar.addfile(info, io.BytesIO(b"abc"))
    assert run_job("unpack", gzip.compress(raw.getvalue()), path=str(tmp_path)).result == {"n_entries": 1}
    assert (tmp_path / ("ü" * 120)).read_bytes() == b"abc"


def test_unpack_hard_links_inside_the_tar(tmp_path: Path) -> None:
    run_job("unpack", entry("a", data=b"x") + entry("b", kind=tarfile.LNKTYPE, link="a") + END, path=str(tmp_path))
    assert (tmp_path / "a").samefile(tmp_path / "b")


@pytest.mark.parametrize("target", ["/usr/bin/python3", "../x", "../../x", "x/../../..", "missing"])
def test_unpack_keeps_symlinks_as_they_are(tmp_path: Path, target: str) -> None:
    run_job("unpack", entry("d/l", kind=tarfile.SYMTYPE, link=target) + END, path=str(tmp_path))
    assert (tmp_path / "d" / "l").readlink() == Path(target)


GOOD = entry("good", data=b"x")
SYM, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.mark.parametrize(
    ("tar", "code"),
    [
        (GOOD + entry("/absolute") + END, "path_escapes"),
        (GOOD + entry("../up") + END, "path_escapes"),
        (GOOD + entry("a/../../up") + END, "path_escapes"),
        (GOOD + entry("l", kind=SYM, link="/tmp") + entry("l/f", data=b"x") + END, "path_escapes"),
        (GOOD + entry("l", kind=SYM, link="..") + entry("l/f", data=b"x") + END, "path_escapes"),
        (GOOD + entry("l", kind=SYM, link="") + END, "invalid_argument"),
        (GOOD + entry("l", kind=SYM, link=".") + entry("l/f", data=b"x") + END, "path_escapes"),
        (GOOD + entry("h", kind=HARD, link="../x") + END, "path_escapes"),
        (GOOD + entry("h", kind=HARD, link="/etc/passwd") + END, "path_escapes"),
        (GOOD + entry("h", kind=HARD, link="missing") + END, "invalid_argument"),
        (GOOD + entry("dev", kind=tarfile.CHRTYPE) + END, "invalid_argument"),
        (GOOD + entry("pipe", kind=tarfile.FIFOTYPE) + END, "invalid_argument"),
        (b"", "invalid_argument"),
        (b"no tar at all" * 100, "invalid_argument"),
        (b"\x1f\x8b garbage", "invalid_argument"),
        (gzip.compress(GOOD + END)[:-10], "invalid_argument"),
        (entry("big", data=b"x" * 5000)[:2000], "invalid_argument"),
        (entry("f", data=b"x"), "invalid_argument"),
        (entry("f", data=b"x") + b"junk" * 256, "invalid_argument"),
        (GOOD + entry("full", data=b"x") + END, "is_directory"),
        (GOOD + entry("file/below", data=b"x") + END, "not_directory"),
        (GOOD + entry("out/below", data=b"x") + END, "path_escapes"),
    ],
)
def test_unpack_refuses_and_leaves_everything_as_it_was(tmp_path: Path, tar: bytes, code: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "f").write_text("f")
    (tmp_path / "file").write_text("file")
    (tmp_path / "good").write_text("before")
    (tmp_path / "out").symlink_to("/tmp")
    before = snapshot(tmp_path)
    with pytest.raises(Refused) as caught:
        run_job("unpack", tar, path=str(tmp_path))
    assert caught.value.code == code
    assert snapshot(tmp_path) == before


def test_unpack_that_fails_removes_the_directories_it_made(tmp_path: Path) -> None:
    with pytest.raises(Refused):
        run_job("unpack", b"garbage" * 100, path=str(tmp_path / "new" / "deep"))
    assert list(tmp_path.iterdir()) == []


def test_unpack_undoes_renames_where_a_later_one_fails() -> None:
    with plain_users_directory() as (root, uid):
        (root / "a").write_text("before")
        (root / "locked").mkdir(mode=0o555)
        give(root, uid)
        tar = entry("a", data=b"new") + entry("locked/b", data=b"x") + entry("c", data=b"x") + END
        with pytest.raises(Refused, match="permission_denied"):
            run_job("unpack", tar, path=str(root), uid=uid)
        assert snapshot(root) == {"a": "before", "locked": "/"}


def test_unpack_stopped_by_sigterm_leaves_nothing(tmp_path: Path) -> None:
    with start_job("unpack", path=str(tmp_path)) as job:
        assert job.process.stdin is not None
        job.process.stdin.write(GOOD + entry("big", data=bytes(1 << 20))[: 1 << 19])
        job.process.stdin.flush()
        deadline = time.monotonic() + 30
        while not list(tmp_path.glob(".boatyard-unpack-*/new/good")):
            assert time.monotonic() < deadline
        job.process.send_signal(signal.SIGTERM)
        job.process.stdin.close()
        assert job.process.wait(timeout=30) == 0
    assert list(tmp_path.iterdir()) == []
