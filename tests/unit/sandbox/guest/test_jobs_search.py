"""glob and grep, the latter with both engines."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.sandbox.guest.job_process import PYTHON, ROOT, Done, Refused, run_job

RIPGREP = shutil.which("rg")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "one.py").write_text("alpha\nneedle one\nbeta\ngamma\nneedle two\ndelta\n")
    (tmp_path / "src" / "deep" / "two.py").write_text("needle\n")
    (tmp_path / "src.txt").write_bytes(b"Needle\r\nother\r\n")
    (tmp_path / ".hidden").write_text("needle hidden\n")
    (tmp_path / "binary").write_bytes(b"\0\1\2needle\n")
    (tmp_path / "late").write_bytes(b"x\n" * 5000 + b"needle\0late\n")
    (tmp_path / "new\nline -- 'q'").write_text("needle\n")
    (tmp_path / os.fsdecode(b"latin\xe9")).write_bytes(b"needle \xe9\n")
    (tmp_path / "link").symlink_to("src")
    (tmp_path / "file_link").symlink_to("src/one.py")
    return tmp_path


def glob(tree: Path, pattern: str, limit: int = 1000) -> list[str]:
    return [line["path"] for line in run_job("glob", path=str(tree), pattern=pattern, limit=limit).lines]


def test_glob_without_slash_stays_in_the_directory(tree: Path) -> None:
    assert glob(tree, "*.py") == []
    assert glob(tree, "*.txt") == ["src.txt"]


def test_glob_stars_match_at_any_depth_and_do_not_enter_links(tree: Path) -> None:
    assert glob(tree, "**/*.py") == ["src/deep/two.py", "src/one.py"]


def test_glob_is_sorted_by_component_and_includes_dotfiles_directories_and_odd_names(tree: Path) -> None:
    found = glob(tree, "**")
    assert found == sorted(found, key=lambda path: [os.fsencode(part) for part in path.split("/")])
    assert {".hidden", "src", "src/deep", "new\nline -- 'q'", "latin\udce9", "link"} <= set(found)


def test_glob_says_when_the_limit_cut_the_list(tree: Path) -> None:
    cut = run_job("glob", path=str(tree), pattern="**/*.py", limit=1)
    whole = run_job("glob", path=str(tree), pattern="**/*.py", limit=2)
    assert (cut.result, len(cut.lines)) == ({"truncated": True}, 1)
    assert (whole.result, len(whole.lines)) == ({"truncated": False}, 2)


def test_glob_of_nothing_and_of_a_file_are_refused(tree: Path) -> None:
    with pytest.raises(Refused, match="not_found"):
        glob(tree / "missing", "*")
    with pytest.raises(Refused, match="not_directory"):
        glob(tree / "src.txt", "*")
    with pytest.raises(Refused, match="invalid_argument"):
        glob(tree, "../*")


ENGINE_PROGRAM = """
import json, os, sys
from sandbox.guest.jobs.grep import grep
from sandbox.guest.jobs.grep_sink import Query
from sandbox.guest.refusal import Refusal
try:
    outcome = {"ok": grep(Query.of(json.loads(sys.argv[1])), json.loads(sys.argv[2]))}
except Refusal as error:
    outcome = {"error": [error.code, error.message]}
os.write(2, json.dumps(outcome).encode())
"""


class Grep:
    def __init__(self, ripgrep: str | None) -> None:
        self._ripgrep = ripgrep

    def __call__(self, path: Path, pattern: str, **options: Any) -> Done:
        request = {"path": str(path), "pattern": pattern, "mode": "files", "limit": 1000, **options}
        done = subprocess.run(
            [PYTHON, "-c", ENGINE_PROGRAM, json.dumps(request), json.dumps(self._ripgrep)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            timeout=60,
            check=True,
        )
        outcome = json.loads(done.stderr)
        if "error" in outcome:
            raise Refused(*outcome["error"])
        return Done(result=outcome["ok"], output=done.stdout)


@pytest.fixture(params=["python", "ripgrep"])
def grep(request: pytest.FixtureRequest) -> Grep:
    if request.param == "python":
        return Grep(None)
    if RIPGREP is None:
        pytest.skip("no ripgrep on this host; the conformance suite runs it inside the base image")
    return Grep(RIPGREP)


def test_grep_lists_text_files_and_counts_binary_ones(grep: Grep, tree: Path) -> None:
    done = grep(tree, "needle")
    assert [line["path"] for line in done.lines] == [
        ".hidden",
        "late",
        "latin\udce9",
        "new\nline -- 'q'",
        "src/deep/two.py",
        "src/one.py",
    ]
    assert done.result == {"truncated": False, "n_skipped_binary": 1}


def test_grep_counts_matching_lines(grep: Grep, tree: Path) -> None:
    done = grep(tree / "src", "needle", mode="count")
    assert done.lines == [{"path": "deep/two.py", "count": 1}, {"path": "one.py", "count": 2}]


def test_grep_context_is_merged_and_marked(grep: Grep, tree: Path) -> None:
    done = grep(tree / "src" / "one.py", "needle", mode="content", context=1)
    assert [(line["n"], line["m"]) for line in done.lines] == [
        (1, False),
        (2, True),
        (3, False),
        (4, False),
        (5, True),
        (6, False),
    ]
    assert {line["path"] for line in done.lines} == {"."}


def test_grep_limit_counts_matches_and_keeps_their_context(grep: Grep, tree: Path) -> None:
    done = grep(tree / "src" / "one.py", "needle", mode="content", context=1, limit=1)
    assert [line["n"] for line in done.lines] == [1, 2, 3]
    assert done.result["truncated"] is True


@pytest.mark.parametrize("mode", ["files", "content", "count"])
def test_grep_that_ends_at_the_limit_is_not_truncated(grep: Grep, tree: Path, mode: str) -> None:
    assert grep(tree, "hidden", mode=mode, limit=1).result["truncated"] is False
    assert grep(tree, "needle", mode=mode, limit=1).result["truncated"] is True


def test_grep_ignores_case_and_line_end(grep: Grep, tree: Path) -> None:
    done = grep(tree / "src.txt", "^needle$", mode="content", ignore_case=True)
    assert [line["text"] for line in done.lines] == ["Needle"]


def test_grep_literal_takes_the_pattern_as_it_is(grep: Grep, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a.b(c\naxb(c\n")
    assert [line["n"] for line in grep(tmp_path, "a.b(", mode="content", literal=True).lines] == [1]


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("*.py", ["src/deep/two.py", "src/one.py"]),
        ("{*.txt,.hid*}", [".hidden"]),
        ("src/*.py", ["src/one.py"]),
        ("**/deep/*", ["src/deep/two.py"]),
    ],
)
def test_grep_glob_selects_files(grep: Grep, tree: Path, pattern: str, paths: list[str]) -> None:
    assert [line["path"] for line in grep(tree, "needle", glob=pattern).lines] == paths


def test_grep_cuts_long_lines_visibly(grep: Grep, tmp_path: Path) -> None:
    (tmp_path / "short").write_text("é" * 1999 + "n\n")
    (tmp_path / "long").write_text("é" * 2000 + "needle\n")
    (tmp_path / "longer").write_text("x" * 1_000_000 + "needle\n")
    texts = {line["path"]: line["text"] for line in grep(tmp_path, "n$|needle", mode="content").lines}
    assert len(texts["short"]) == 2000
    assert texts["long"] == "é" * 2000 + " [line cut at 2000 characters]"
    assert texts["longer"] == "x" * 2000 + " [line cut at 2000 characters]"


def test_grep_patterns_that_only_one_engine_knows_work_or_are_refused(grep: Grep, tree: Path) -> None:
    assert [line["path"] for line in grep(tree / "src", r"needle(?= two)").lines] == ["one.py"]
    for bad in ("(", "", "two\nlines"):
        with pytest.raises(Refused, match="invalid_argument"):
            grep(tree, bad)


def test_grep_of_a_pattern_like_an_option_and_of_a_missing_path(grep: Grep, tmp_path: Path) -> None:
    (tmp_path / "-f").write_text("--version\n")
    assert [line["path"] for line in grep(tmp_path, "--version").lines] == ["-f"]
    with pytest.raises(Refused, match="not_found"):
        grep(tmp_path / "missing", "x")


def test_grep_passes_over_pipes_and_unreadable_files(grep: Grep, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "f").write_text("needle\n")
    (tmp_path / "g").write_text("needle\n")
    (tmp_path / "g").chmod(0)
    paths = [line["path"] for line in grep(tmp_path, "needle").lines]
    assert paths == (["f", "g"] if os.geteuid() == 0 else ["f"])


def test_the_job_itself_finds_an_engine(tree: Path) -> None:
    done = run_job("grep", path=str(tree), pattern="two", mode="count", limit=10)
    assert done.lines == [{"path": "src/one.py", "count": 1}]


def test_jobs_are_loaded_only_where_they_run() -> None:
    code = "import sys; from sandbox.guest import jobs; sys.exit(any('jobs.' in name for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
