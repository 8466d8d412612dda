"""watch."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.unit.sandbox.guest.job_process import Refused, RunningJob, run_job, start_job

Change = tuple[str, str]


def next_line(job: RunningJob) -> dict[str, Any]:
    assert job.process.stdout is not None
    return json.loads(job.process.stdout.readline())


def changes(job: RunningJob, until: Change) -> list[Change]:
    """What is reported up to and with `until`; the test's time limit bounds the wait."""
    seen: list[Change] = []
    while not seen or seen[-1] != until:
        line = next_line(job)
        seen.append((line["kind"], line["path"]))
    return seen


def test_watch_reports_what_happens(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with start_job("watch", path=str(tmp_path), recursive=True) as job:
        assert next_line(job) == {"ready": True}
        (tmp_path / "sub" / "f").write_text("x")
        assert changes(job, ("modified", "sub/f")) == [("created", "sub/f"), ("modified", "sub/f")]
        (tmp_path / "sub" / "f").chmod(0o600)
        assert changes(job, ("attributes", "sub/f")) == [("attributes", "sub/f")]
        (tmp_path / "sub" / "f").rename(tmp_path / "g")
        assert changes(job, ("moved_to", "g")) == [("moved_from", "sub/f"), ("moved_to", "g")]
        (tmp_path / "g").unlink()
        assert changes(job, ("deleted", "g"))[-1] == ("deleted", "g")
        assert job.finish().result == {}


def test_watch_enters_new_directories_and_tells_their_content_once(tmp_path: Path) -> None:
    with start_job("watch", path=str(tmp_path), recursive=True) as job:
        next_line(job)
        for n in range(20):
            (tmp_path / f"d{n}" / "deep").mkdir(parents=True)
            (tmp_path / f"d{n}" / "deep" / "f").touch()
        (tmp_path / "end").touch()
        created = [path for kind, path in changes(job, ("created", "end")) if kind == "created"]
        (tmp_path / "d3" / "deep" / "end").touch()
        created += [path for kind, path in changes(job, ("created", "d3/deep/end")) if kind == "created"]
        expected = {path for n in range(20) for path in (f"d{n}", f"d{n}/deep", f"d{n}/deep/f")}
        assert expected <= set(created)
        assert len(created) == len(set(created))


def test_watch_follows_a_directory_to_its_new_name(tmp_path: Path) -> None:
    (tmp_path / "old" / "deep").mkdir(parents=True)
    with start_job("watch", path=str(tmp_path), recursive=True) as job:
        next_line(job)
        (tmp_path / "old").rename(tmp_path / "new")
        (tmp_path / "new" / "deep" / "f").touch()
        seen = changes(job, ("created", "new/deep/f"))
        assert seen[:2] == [("moved_from", "old"), ("moved_to", "new")]


def test_watch_of_one_level_does_not_look_below(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with start_job("watch", path=str(tmp_path), recursive=False) as job:
        next_line(job)
        (tmp_path / "sub" / "f").touch()
        (tmp_path / "end").touch()
        assert changes(job, ("created", "end")) == [("created", "end")]


def test_watch_ends_when_its_directory_is_deleted(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    with start_job("watch", path=str(root), recursive=True) as job:
        next_line(job)
        shutil.rmtree(root)
        assert job.process.wait(timeout=30) == 0
        done = job.finish()
        assert done.result == {}
        assert done.lines[-1] == {"kind": "deleted", "path": "sub", "dir": True}


def test_watch_reports_names_that_are_not_utf8(tmp_path: Path) -> None:
    with start_job("watch", path=str(tmp_path), recursive=True) as job:
        next_line(job)
        (tmp_path / os.fsdecode(b"\xff\n")).touch()
        assert changes(job, ("created", "\udcff\n"))


def test_watch_tells_that_events_were_lost(tmp_path: Path) -> None:
    n_queued = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if n_queued > 100_000:
        pytest.skip(f"the queue of this kernel holds {n_queued} events")
    with start_job("watch", path=str(tmp_path), recursive=True) as job:
        next_line(job)
        job.process.send_signal(signal.SIGSTOP)
        for n in range(n_queued):  # created and deleted: twice what the queue holds
            path = tmp_path / str(n)
            path.touch()
            path.unlink()
        job.process.send_signal(signal.SIGCONT)
        assert changes(job, ("overflow", "."))


def test_watch_of_a_file_and_of_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(Refused, match="not_directory"):
        run_job("watch", path=str(tmp_path / "f"), recursive=True)
    with pytest.raises(Refused, match="not_found"):
        run_job("watch", path=str(tmp_path / "missing"), recursive=True)
