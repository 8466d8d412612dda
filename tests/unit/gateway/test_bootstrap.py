"""The decisions of set-up: what to install, whose process that is, when an environment is out of date."""

import http.server
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from gateway.bootstrap import docker_api, engine, mounts, needs, packages, say, venv
from gateway.bootstrap.failure import Exit, SetupFailed
from gateway.bootstrap.process import ProcessIdentity, identify, is_alive, stop
from gateway.bootstrap.state import locked
from sandbox.state import state_dir

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534


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


class EmptyEngine(http.server.BaseHTTPRequestHandler):
    """Answers as an engine that has nothing."""

    def do_GET(self) -> None:
        body = b'{"Version":"1","ApiVersion":"1"}' if self.path == "/version" else b"[]"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def answering() -> Generator[str]:
    """The address of an engine that has nothing."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), EmptyEngine) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"tcp://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


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
        have = {name: f"/usr/bin/{name}" for name in ("containerd", "runc", "mkfs.ext4")}
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


class TestNeeds:
    def test_everything_that_is_missing_is_named_at_once(self) -> None:
        wanted = needs.missing_packages(for_venv=True, for_engine=True, for_image=True, find=lambda name: None)
        assert list(wanted) == [
            "python3-venv",
            "docker.io",
            "containerd",
            "runc",
            "iptables",
            "e2fsprogs",
            "mmdebstrap",
        ]
        assert len(set(wanted.values())) == 3

    def test_nothing_is_asked_for_that_the_step_can_do_without(self) -> None:
        assert needs.missing_packages(for_venv=False, for_engine=False, for_image=False, find=lambda name: None) == {}
        assert needs.missing_packages(for_venv=False, for_engine=True, for_image=True, find=lambda name: "/x") == {}


class TestMounts:
    ROOT = "27 1 254:0 / / rw - ext4 /dev/vda rw"

    def test_a_directory_mounted_on_itself_is_a_leftover(self) -> None:
        data = "42 27 254:0 /state/engine/data /state/engine/data rw shared:1 - ext4 /dev/vda rw"
        again = data.replace("42 27", "43 42")
        for mountinfo in (f"{self.ROOT}\n{data}", f"{self.ROOT}\n{data}\n{again}"):
            assert mounts.is_leftover(Path("/state/engine/data"), mountinfo)
        assert not mounts.is_leftover(Path("/state/engine/other"), f"{self.ROOT}\n{data}")

    def test_also_below_a_mount_and_with_a_space_in_its_name(self) -> None:
        below = "28 27 254:1 /sub /my\\040state rw - ext4 /dev/vdb rw"
        data = "42 28 254:1 /sub/engine/data /my\\040state/engine/data rw - ext4 /dev/vdb rw"
        assert mounts.is_leftover(Path("/my state/engine/data"), f"{self.ROOT}\n{below}\n{data}")

    def test_what_a_person_mounted_there_is_not(self) -> None:
        disk = "42 27 254:16 / /state/engine/data rw - ext4 /dev/vdb rw"
        directory = "42 27 254:0 /big/docker /state/engine/data rw - ext4 /dev/vda rw"
        for row in (disk, directory):
            assert not mounts.is_leftover(Path("/state/engine/data"), f"{self.ROOT}\n{row}")

    def test_the_name_of_a_network_namespace_is(self) -> None:
        row = "50 27 0:4 net:[4026531840] /state/engine/run/netns/default rw - nsfs nsfs rw"
        assert mounts.is_leftover(Path("/state/engine/run/netns/default"), f"{self.ROOT}\n{row}")

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
    def test_leftovers_are_unmounted_and_what_is_in_use_stays(self, tmp_path: Path) -> None:
        data = tmp_path / "engine/data"
        data.mkdir(parents=True)

        def is_there() -> bool:
            return mounts.is_leftover(data, Path("/proc/self/mountinfo").read_text())

        for _ in range(2):
            if subprocess.run(["mount", "--bind", str(data), str(data)], check=False).returncode:
                pytest.skip("mounting is not allowed here")
        try:
            with (data / "file").open("w"):
                mounts.remove_leftovers(tmp_path / "engine")
                assert is_there()
            mounts.remove_leftovers(tmp_path / "engine")
            assert not is_there()
        finally:
            while is_there():
                subprocess.run(["umount", "--lazy", str(data)], check=True)


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
    SCRIPT = (
        "import encodings.idna, os, sys\n"  # later, another user may not read where Python is installed
        "sys.path.insert(0, sys.argv.pop(1))\n"
        "from gateway.bootstrap.__main__ import main\n"
        "if user := int(sys.argv.pop(1)):\n"
        "    os.setgroups([]), os.setgid(user), os.setuid(user)\n"
        "sys.exit(main())\n"
    )

    def run(self, *argv: str, become: int = 0, **env: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", self.SCRIPT, str(ROOT), str(become), *argv],
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
        done = self.run("engine", BOATYARD_STATE_DIR=str(tmp_path / "file/state"))
        assert done.returncode == Exit.NEEDS_ROOT
        assert "BOATYARD_STATE_DIR" in done.stderr

    @pytest.mark.parametrize("step", ["status", "down"])
    def test_looking_and_clearing_away_need_no_state_directory_and_make_none(self, tmp_path: Path, step: str) -> None:
        (tmp_path / "file").write_text("")
        host = f"unix://{tmp_path}/none.sock"
        for state in (tmp_path / "file/state", tmp_path / "none"):
            done = self.run(step, DOCKER_HOST=host, BOATYARD_STATE_DIR=str(state))
            assert (done.returncode, done.stderr) == (0, "")
            assert "no engine" in done.stdout
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
    @pytest.mark.parametrize("step", ["all", "status", "down"])
    def test_a_user_who_may_not_use_the_engine_learns_it_first(self, step: str) -> None:
        with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as engine_socket:
            directory = Path(name)
            directory.chmod(0o755)
            (directory / "state").mkdir()
            os.chown(directory / "state", NOBODY, NOBODY)
            engine_socket.bind(str(directory / "engine.sock"))
            (directory / "engine.sock").chmod(0o600)
            host = f"unix://{directory}/engine.sock"
            done = self.run(step, become=NOBODY, DOCKER_HOST=host, BOATYARD_STATE_DIR=str(directory / "state"))
            assert "join the group docker" in done.stdout + done.stderr
            assert done.returncode == (0 if step == "status" else Exit.NEEDS_ROOT)
            assert list((directory / "state").iterdir()) == []

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
    def test_down_in_a_state_directory_of_another_user_says_what_it_cannot_do(
        self, sleeper: "subprocess.Popen[bytes]"
    ) -> None:
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            directory.chmod(0o755)
            (directory / "engine").mkdir()
            known = identify(sleeper.pid)
            assert known is not None
            engine.save_record(directory / "engine/engine.json", known)
            host = f"unix://{directory}/none.sock"
            done = self.run("down", become=NOBODY, DOCKER_HOST=host, BOATYARD_STATE_DIR=name)
            assert done.returncode == Exit.NEEDS_ROOT
            assert done.stderr.count("\n") == 1
            assert "may not stop the engine" in done.stderr
            assert sleeper.poll() is None

    def test_down_without_an_engine_says_so(self, tmp_path: Path) -> None:
        done = self.run("down", DOCKER_HOST=f"unix://{tmp_path}/none.sock", BOATYARD_STATE_DIR=str(tmp_path))
        assert (done.returncode, done.stdout) == (0, "[down] no engine runs\n")

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
    def test_down_works_for_a_user_who_cannot_even_look_into_the_state_directory(self, answering: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            (Path(name) / "volumes").mkdir()
            done = self.run("down", become=NOBODY, DOCKER_HOST=answering, BOATYARD_STATE_DIR=name)
            assert (done.returncode, done.stderr) == (0, "")
            assert "removed 0 container(s)" in done.stdout
            assert "left as it is" in done.stdout


def test_only_the_last_lines_of_a_failing_tool_are_shown() -> None:
    assert say.tail("\n".join(map(str, range(100))), 3) == "97\n98\n99"


def test_a_tool_that_is_not_there_is_exit_127(tmp_path: Path) -> None:
    code, output = say.run_quietly("x", ["/no/such/tool"], log=tmp_path / "log")
    assert code == 127
    assert "No such file" in output
