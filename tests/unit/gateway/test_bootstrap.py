"""The decisions of set-up: what to install, whose process that is, when an environment is out of date."""

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from gateway.bootstrap import docker_api, engine, packages, say, venv
from gateway.bootstrap.failure import Exit, SetupFailed
from gateway.bootstrap.process import ProcessIdentity, identify, is_alive, stop
from gateway.bootstrap.state import locked
from sandbox.state import state_dir

ROOT = Path(__file__).resolve().parents[3]


def fake_proc(
    root: Path, pid: int, *, started: int, boot: str = "boot-1", state: str = "S", comm: str = "dockerd"
) -> Path:
    """A /proc with one process in it."""
    (root / str(pid)).mkdir(parents=True, exist_ok=True)
    (root / "sys/kernel/random").mkdir(parents=True, exist_ok=True)
    (root / "sys/kernel/random/boot_id").write_text(f"{boot}\n")
    middle = " ".join(["0"] * 18)
    (root / str(pid) / "stat").write_text(f"{pid} (a (strange) name) {state} {middle} {started} 0 0")
    (root / str(pid) / "comm").write_text(f"{comm}\n")
    return root


@pytest.fixture
def sleeper() -> Generator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


class TestProcess:
    def test_a_process_with_a_strange_name_is_identified(self, tmp_path: Path) -> None:
        proc = fake_proc(tmp_path, 42, started=777)
        assert identify(42, proc) == ProcessIdentity(pid=42, started_ticks=777, boot_id="boot-1")

    def test_a_reused_pid_is_not_the_same_process(self, tmp_path: Path) -> None:
        known = identify(42, fake_proc(tmp_path, 42, started=777))
        assert known is not None
        assert is_alive(known, tmp_path)
        fake_proc(tmp_path, 42, started=778)
        assert not is_alive(known, tmp_path)

    def test_a_pid_of_an_earlier_boot_is_not_the_same_process(self, tmp_path: Path) -> None:
        known = identify(42, fake_proc(tmp_path, 42, started=777))
        assert known is not None
        fake_proc(tmp_path, 42, started=777, boot="boot-2")
        assert not is_alive(known, tmp_path)

    def test_a_zombie_is_not_alive(self, tmp_path: Path) -> None:
        assert identify(42, fake_proc(tmp_path, 42, started=777, state="Z")) is None

    def test_stop_ends_the_process_it_names(self, sleeper: "subprocess.Popen[bytes]") -> None:
        known = identify(sleeper.pid)
        assert known is not None
        assert stop(known, grace_s=5.0)
        assert sleeper.wait(5) == -15

    def test_stop_leaves_a_stranger_with_the_same_pid_alone(self, sleeper: "subprocess.Popen[bytes]") -> None:
        now = identify(sleeper.pid)
        assert now is not None
        earlier = ProcessIdentity(pid=now.pid, started_ticks=now.started_ticks - 1, boot_id=now.boot_id)
        assert stop(earlier, grace_s=5.0)
        assert sleeper.poll() is None

    def test_stop_of_a_process_that_is_gone_is_fine(self) -> None:
        assert stop(ProcessIdentity(pid=2**22 - 1, started_ticks=1, boot_id="x"), grace_s=0.1)


class TestEngine:
    def test_the_record_survives_a_round_trip(self, tmp_path: Path) -> None:
        known = ProcessIdentity(pid=7, started_ticks=8, boot_id="b")
        engine.save_record(tmp_path / "engine.json", known)
        assert engine.load_record(tmp_path / "engine.json") == known

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": "x", "started_ticks": 1, "boot_id": ""}'])
    def test_a_torn_record_counts_as_none(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "engine.json").write_text(text)
        assert engine.load_record(tmp_path / "engine.json") is None

    def test_pid_files_that_name_another_program_are_removed(self, tmp_path: Path) -> None:
        (tmp_path / "run/containerd").mkdir(parents=True)
        (tmp_path / "dockerd.pid").write_text(str(os.getpid()))
        (tmp_path / "run/containerd/containerd.pid").write_text("garbage")
        engine.forget_dead(tmp_path)
        assert not (tmp_path / "dockerd.pid").exists()
        assert not (tmp_path / "run/containerd/containerd.pid").exists()

    def test_a_pid_file_of_a_live_engine_stays(self, tmp_path: Path) -> None:
        (tmp_path / "engine").mkdir()
        (tmp_path / "engine/dockerd.pid").write_text("42")
        engine.forget_dead(tmp_path / "engine", fake_proc(tmp_path / "proc", 42, started=1))
        assert (tmp_path / "engine/dockerd.pid").exists()

    def test_everything_of_our_engine_but_its_socket_is_in_the_state_directory(self, tmp_path: Path) -> None:
        command = engine.dockerd_command(tmp_path, "/usr/sbin/dockerd", ("--bridge=none",))
        for option in ("config-file", "data-root", "exec-root", "pidfile"):
            assert any(part.startswith(f"--{option}={tmp_path}/") for part in command)
        assert f"--host={docker_api.DEFAULT_HOST}" in command
        assert "--bridge=none" in command

    def test_the_default_network_is_tried_before_any_without_a_bridge(self) -> None:
        assert engine.NETWORK_FALLBACKS[0] == ()
        assert "--bridge=none" in engine.NETWORK_FALLBACKS[-1]

    def test_docker_host_decides_where_the_engine_is(self) -> None:
        assert engine.engine_host({}) == docker_api.DEFAULT_HOST
        assert engine.engine_host({"DOCKER_HOST": ""}) == docker_api.DEFAULT_HOST
        assert engine.engine_host({"DOCKER_HOST": "tcp://127.0.0.1:1"}) == "tcp://127.0.0.1:1"

    def test_a_socket_nobody_listens_on_is_no_engine(self, tmp_path: Path) -> None:
        assert docker_api.version(f"unix://{tmp_path}/none.sock") is None
        assert docker_api.version("tcp://127.0.0.1:1", timeout_s=1.0) is None


class TestPackages:
    def test_only_the_packages_of_missing_programs_are_installed(self) -> None:
        have = {"containerd": "/usr/bin/containerd", "runc": "/usr/sbin/runc"}
        assert packages.missing_packages(packages.ENGINE_PROGRAMS, have.get) == ["docker.io", "iptables"]
        assert packages.missing_packages(packages.ENGINE_PROGRAMS, lambda name: f"/usr/bin/{name}") == []

    def test_without_root_the_message_is_the_command_to_run(self) -> None:
        with pytest.raises(SetupFailed, match=r"run `sudo apt-get install .* docker\.io iptables`") as failure:
            packages.ensure_can_install(["docker.io", "iptables"], "the engine", uid=1000, apt_get="/usr/bin/apt-get")
        assert failure.value.exit_code is Exit.NEEDS_ROOT

    def test_without_apt_the_message_names_the_packages(self) -> None:
        with pytest.raises(SetupFailed, match=r"docker\.io .*no apt-get") as failure:
            packages.ensure_can_install(["docker.io"], "the engine", uid=0, apt_get=None)
        assert failure.value.exit_code is Exit.UNSUPPORTED_SYSTEM


class TestVenv:
    def test_the_stamp_changes_with_any_file_or_fact(self, tmp_path: Path) -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        one.write_text("a")
        two.write_text("b")
        stamps = {venv.stamp([one, two], "3.11"), venv.stamp([one, two], "3.12"), venv.stamp([two, one], "3.11")}
        two.write_text("c")
        stamps.add(venv.stamp([one, two], "3.11"))
        assert len(stamps) == 4

    def test_an_old_python_is_refused_with_what_to_do(self) -> None:
        venv.ensure_python((3, 11))
        with pytest.raises(SetupFailed, match=r"Python 3\.11 or newer is needed, this is 3\.9") as failure:
            venv.ensure_python((3, 9))
        assert failure.value.exit_code is Exit.PYTHON_UNSUITABLE

    def test_the_index_that_pip_was_given_is_handed_to_uv(self) -> None:
        env = venv.uv_environment({"VIRTUAL_ENV": "/x"}, "global.index-url='scheme://index/simple'\nglobal.timeout='1'")
        assert env["UV_DEFAULT_INDEX"] == "scheme://index/simple"
        assert "VIRTUAL_ENV" not in env

    def test_an_index_set_for_uv_wins(self) -> None:
        env = venv.uv_environment({"UV_DEFAULT_INDEX": "mine"}, "global.index-url='other'")
        assert env["UV_DEFAULT_INDEX"] == "mine"


class TestState:
    def test_the_directory_is_chosen_by_variable_then_by_user(self) -> None:
        assert state_dir({"BOATYARD_STATE_DIR": "/x"}, uid=0) == Path("/x")
        assert state_dir({}, uid=0) == Path("/var/lib/boatyard")
        assert state_dir({"XDG_STATE_HOME": "/s"}, uid=1000) == Path("/s/boatyard")
        assert state_dir({"HOME": "/home/a"}, uid=1000) == Path("/home/a/.local/state/boatyard")

    def test_a_second_set_up_waits_for_the_first(self, tmp_path: Path) -> None:
        script = (
            "import sys; from pathlib import Path; from gateway.bootstrap.state import locked\n"
            "with locked(Path(sys.argv[1]), 'engine'): print('in', flush=True)"
        )
        with locked(tmp_path, "engine"):
            other = subprocess.Popen(
                [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
            )
            assert other.stdout is not None
            assert "waiting" in other.stdout.readline()
            assert other.poll() is None
        with other:
            assert other.stdout.readline() == "in\n"
        assert other.returncode == 0


class TestCommand:
    def run(self, *argv: str, **env: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-I", "-S", "-c", "import runpy, sys; sys.path.insert(0, sys.argv.pop(1));"]
        command[-1] += "runpy.run_module('gateway.bootstrap', run_name='__main__', alter_sys=True)"
        return subprocess.run(
            [*command, str(ROOT), *argv],
            env={"PATH": os.environ["PATH"], **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def test_it_runs_with_the_standard_library_only_and_lists_its_exit_codes(self) -> None:
        done = self.run("--help")
        assert done.returncode == 0, done.stderr
        assert "10 needs root" in done.stdout

    def test_a_docker_host_that_does_not_answer_is_an_error_and_not_a_reason_to_start_one(self, tmp_path: Path) -> None:
        host = f"unix://{tmp_path}/none.sock"
        done = self.run("engine", DOCKER_HOST=host, BOATYARD_STATE_DIR=str(tmp_path / "state"))
        assert done.returncode == Exit.ENGINE_FAILED
        assert host in done.stderr
        assert "Traceback" not in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1

    def test_a_state_directory_that_cannot_be_made_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        done = self.run("status", BOATYARD_STATE_DIR=str(tmp_path / "file/state"))
        assert done.returncode == Exit.NEEDS_ROOT
        assert "BOATYARD_STATE_DIR" in done.stderr

    def test_down_without_an_engine_says_so(self, tmp_path: Path) -> None:
        done = self.run("down", DOCKER_HOST=f"unix://{tmp_path}/none.sock", BOATYARD_STATE_DIR=str(tmp_path))
        assert (done.returncode, done.stdout) == (0, "[down] no engine runs\n")


def test_only_the_last_lines_of_a_failing_tool_are_shown() -> None:
    assert say.tail("\n".join(map(str, range(100))), 3) == "97\n98\n99"


def test_a_tool_that_is_not_there_is_exit_127(tmp_path: Path) -> None:
    code, output = say.run_quietly("x", ["/no/such/tool"], log=tmp_path / "log")
    assert code == 127
    assert "No such file" in output
