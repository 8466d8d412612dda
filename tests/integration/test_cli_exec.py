"""`boatyard exec` as a person uses it: a real process, a real engine, real signals, a real terminal."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.docker

BOATYARD = str(Path(sys.executable).with_name("boatyard"))
LIMIT_S = 60
LABEL = f"cli-test={os.getpid()}"


@pytest.fixture(autouse=True)
def buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a person's shell has it: what Python keeps back, it writes when it ends, and fails then."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


def boatyard(*words: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [BOATYARD, "exec", "--label", LABEL, *words], input=stdin, capture_output=True, timeout=LIMIT_S, check=False
    )


def containers_left() -> list[str]:
    """Of this test: it runs beside others."""
    argv = ["docker", "ps", "-aq", "--filter", f"label=boatyard.user.{LABEL}"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout.split()


def test_output_and_exit_code_are_the_commands_own() -> None:
    done = boatyard("-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")


def test_bytes_come_through_a_pipe_as_they_are() -> None:
    done = boatyard("--", "python3", "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 40000)")
    assert done.stdout == bytes(range(256)) * 40000


def test_words_meet_no_shell() -> None:
    assert boatyard("--", "printf", "%s|", "a b", "$HOME", "*").stdout == b"a b|$HOME|*|"


def test_options_of_the_command_are_its_own() -> None:
    assert boatyard("--", "echo", "--timeout", "-c", "x").stdout == b"--timeout -c x\n"
    assert boatyard("echo", "--timeout", "-c", "--", "x").stdout == b"--timeout -c -- x\n"


def test_a_timeout_is_124_and_says_so() -> None:
    done = boatyard("--timeout", "0.5", "--", "sleep", "60")
    assert done.returncode == 124
    assert b"killed after 0.5 s" in done.stderr


def test_a_missing_command_is_127_and_a_signal_128_and_its_number() -> None:
    assert boatyard("--", "no-such-program").returncode == 127
    assert boatyard("--", "/etc/passwd").returncode == 126
    assert boatyard("-c", "kill -TERM $$").returncode == 128 + signal.SIGTERM


def test_a_death_by_sigkill_hints_at_the_memory_limit() -> None:
    done = boatyard("--memory", "128m", "--", "python3", "-c", "bytearray(1 << 30)")
    assert (done.returncode, done.stdout) == (128 + signal.SIGKILL, b"")
    assert b"--memory" in done.stderr


def test_environment_directory_input_and_files_go_in(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "odd name\n").write_text("inside")
    done = boatyard(
        "-i", "--copy", str(tmp_path), "--cwd", "data", "-e", "A=b c", "-c", 'echo "$A"; cat; cat odd*', stdin=b"in\n"
    )
    assert done.stdout == b"b c\nin\ninside"


def test_memory_is_limited() -> None:
    done = boatyard("--memory", "256m", "--", "cat", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
    assert done.stdout == b"%d\n" % (256 << 20)


def test_the_disk_is_limited() -> None:
    done = boatyard(
        "--disk", "64m", "--memory", "64m", "-c", "head -c 50M /dev/zero > fits; head -c 50M /dev/zero > not"
    )
    assert done.returncode == 1
    assert b"No space left on device" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), b"Give a command"),
        (("-c", "true", "--", "true"), b"not both"),
        (("--memory", "lots", "--", "true"), b"--memory lots: not a size"),
        (("--memory", "1m", "--", "true"), b"64m at least"),
        (("--disk", "1m", "--", "true"), b"8m at least"),
        (("--allow-weaker", "everything", "--", "true"), b"disk_in_memory"),
        (("--allow-weaker", "disk_in_memory", "--", "true"), b"lower disk_bytes"),
        (("-e", "novalue", "--", "true"), b"NAME=VALUE"),
        (("--mount", "/etc", "--", "true"), b"SOURCE:TARGET"),
        (("--mount", "/nonexistent:/x", "--", "true"), b"does not exist"),
        (("-t", "--", "true"), b"--interactive"),
        (("--no-such-option", "--", "true"), b"no-such-option"),
    ],
)
def test_bad_options_are_refused_with_a_sentence(words: tuple[str, ...], says: bytes) -> None:
    done = boatyard(*words)
    assert done.returncode == 2
    assert done.stderr.startswith(b"Usage: boatyard exec [OPTIONS] [CMD]...\n")
    assert says in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--image", "no-such-image-anywhere", "--", "true"), b"[image_not_found]"),
        (("--user", "nobody-here", "--", "true"), b"[unknown_user]"),
        (("--cwd", "/no/such", "--", "true"), b"[not_found]"),
        (("--copy", "/etc/passwd", "--", "true"), b"[invalid_argument]"),
        (("--timeout", "-1", "--", "true"), b"[invalid_argument]"),
        (("--disk", "8m", "--copy", "/usr/bin", "--", "true"), b"raise --disk [no_space]"),
    ],
)
def test_what_cannot_be_had_is_125_with_a_sentence_and_a_code(words: tuple[str, ...], says: bytes) -> None:
    done = boatyard(*words)
    assert done.returncode == 125
    assert says in done.stderr
    assert b"Traceback" not in done.stderr
    assert containers_left() == []


def test_an_image_that_has_to_be_built_first_says_so_beside_the_output(tmp_path: Path) -> None:
    name = f"cli-{os.getpid()}"
    file = tmp_path / "image.toml"
    file.write_text(f'name = "{name}"\nbase = "base"\nscript = "echo made > /etc/made"\n')
    try:
        first, again = (boatyard("--image", str(file), "--", "cat", "/etc/made") for _ in range(2))
    finally:
        argv = ["docker", "images", "-q", "--filter", f"reference=boatyard/{name}"]
        built = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout.split()
        subprocess.run(["docker", "rmi", "-f", *built], capture_output=True, timeout=30, check=True)
    assert first.stdout == again.stdout == b"made\n"
    assert f"[image] {name}: script".encode() in first.stderr
    assert again.stderr == b""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_the_sandbox(signum: signal.Signals) -> None:
    with subprocess.Popen(
        [BOATYARD, "exec", "--label", LABEL, "-c", "echo ready; sleep 60"], stdout=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        running.send_signal(signum)
        assert running.wait(LIMIT_S) == 128 + signum
    assert containers_left() == []


def test_signals_after_the_first_do_not_break_off_the_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="boatyard-") as state:
        monkeypatch.setenv("BOATYARD_STATE_DIR", state)
        argv = [BOATYARD, "exec", "--label", LABEL, "-c", "echo ready; sleep 60"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == b"ready\n"
            while running.poll() is None:
                running.send_signal(signal.SIGINT)
                time.sleep(0.005)
            # Python gives signals their default meaning back just before it is gone; for a shell the two are the same.
            assert running.returncode in (128 + signal.SIGINT, -signal.SIGINT)
            assert running.stderr is not None
            assert running.stderr.read() == b""
        assert containers_left() == []
        assert list((Path(state) / "meet").iterdir()) == []


def test_a_signal_that_the_caller_ignores_is_ignored() -> None:
    argv = ["nohup", BOATYARD, "exec", "--label", LABEL, "-i", "-c", "echo ready; cat"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        running.send_signal(signal.SIGHUP)
        out, _ = running.communicate(b"still here", timeout=LIMIT_S)
    assert (running.returncode, out) == (0, b"still here")


def test_no_engine_is_said_with_the_one_that_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    done = boatyard("--", "true")
    assert done.returncode == 125
    assert b"DOCKER_HOST is unix:///nowhere/docker.sock [engine_unavailable]" in done.stderr


def test_a_reader_that_goes_away_ends_the_command() -> None:
    with subprocess.Popen(
        [BOATYARD, "exec", "--label", LABEL, "--", "yes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stdout.read(4) == b"y\ny\n"
        running.stdout.close()
        assert running.wait(LIMIT_S) != 0
        assert running.stderr is not None
        assert b"Traceback" not in running.stderr.read()
    assert containers_left() == []


def in_a_shell(line: str) -> "subprocess.CompletedProcess[str]":
    """`BOATYARD` in it stands for `boatyard exec` with our label."""
    script = line.replace("BOATYARD", f"{BOATYARD} exec --label {LABEL}")
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.parametrize(
    ("line", "code", "out", "err"),
    [
        ("BOATYARD -i -- cat <&-", 0, "", ""),
        ("BOATYARD -i -- cat </dev/null", 0, "", ""),
        ("BOATYARD -i -- cat 0>/dev/null", 125, "", "cannot read standard input: Bad file descriptor"),
        ("BOATYARD -- echo hi >&-", 125, "", "cannot write to standard output: Bad file descriptor"),
        ("BOATYARD -- true >&- 2>&- <&-", 0, "", ""),
        ("BOATYARD -c 'echo out; sleep 60' >/dev/full", 125, "", "cannot write to standard output: No space left"),
        ("BOATYARD -c 'echo no >&2; sleep 60' 2>&-", 125, "", ""),
        ("BOATYARD -c 'echo no >&2; sleep 60' 2>/dev/full", 125, "", ""),
        ("BOATYARD -- no-such-program 2>&-", 127, "", ""),
        ("BOATYARD --image no-such-image-anywhere -- true 2>&-", 125, "", ""),
        ("BOATYARD -- yes | head -1; exit ${PIPESTATUS[0]}", 128 + signal.SIGPIPE, "y\n", ""),
    ],
)
def test_streams_that_are_closed_full_or_gone_are_no_surprise(line: str, code: int, out: str, err: str) -> None:
    done = in_a_shell(line)
    assert (done.returncode, done.stdout) == (code, out), done.stderr
    assert done.stderr.startswith(f"boatyard: {err}") if err else done.stderr == ""
    assert len(done.stderr.splitlines()) <= 1
    assert containers_left() == []


def test_a_signal_ends_us_also_when_nobody_reads_our_output() -> None:
    with subprocess.Popen([BOATYARD, "exec", "--label", LABEL, "--", "yes"], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.read(4) == b"y\ny\n"
        pipe_is_full(running.stdout.fileno())
        running.send_signal(signal.SIGTERM)
        assert running.wait(LIMIT_S) == 128 + signal.SIGTERM
    assert containers_left() == []


def pipe_is_full(fd: int) -> None:
    """Returns when the writer has nothing more to put in: twice the same number of bytes waits in it."""
    before, now = -1, 0
    while now != before or not now:
        time.sleep(0.2)
        before, now = now, struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]


class Terminal:
    """A program on a terminal of ours, typed into and read from."""

    def __init__(self, *words: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execv(words[0], words)
        self.shown = b""

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def wait_for(self, text: bytes) -> None:
        deadline = time.monotonic() + LIMIT_S
        while text not in self.shown:
            assert select.select([self._fd], [], [], max(deadline - time.monotonic(), 0))[0], self.shown
            self.shown += os.read(self._fd, 65536)
        self.shown = self.shown.partition(text)[2]

    def exit_code(self) -> int:
        while True:
            try:
                if not os.read(self._fd, 65536):
                    break
            except OSError:
                break
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_shell_on_a_terminal() -> None:
    terminal = Terminal(BOATYARD, "exec", "-it", "--", "bash", "--norc")
    terminal.wait_for(b"$ ")
    terminal.type(b"echo $((6*7))-$(tty | cut -c-9)\r")
    terminal.wait_for(b"42-/dev/pts/")
    terminal.wait_for(b"$ ")
    # The quotes keep the echo of what is typed from looking like what it prints. Whoever says it must be who is to be
    # interrupted: `sh -c 'echo running; sleep 60'` sleeps on if Ctrl-C comes while the shell starts its `sleep`.
    terminal.type(b'echo run""ning >said; tail -f said\r')
    terminal.wait_for(b"running")
    terminal.type(b"\x03")
    terminal.wait_for(b"$ ")
    terminal.type(b"echo code=$?\r")
    terminal.wait_for(b"code=130")
    terminal.wait_for(b"$ ")
    terminal.type(b"exit 5\r")
    assert terminal.exit_code() == 5


def test_a_sandbox_that_is_lost_is_125_and_says_why() -> None:
    with subprocess.Popen(
        [BOATYARD, "exec", "--label", LABEL, "-c", "echo ready; sleep 60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        subprocess.run(["docker", "kill", *containers_left()], check=True, capture_output=True, timeout=30)
        assert running.wait(LIMIT_S) == 125
        assert running.stderr is not None
        said = running.stderr.read()
    assert b"killed" in said
    assert b"[lost]" in said
    assert b"Traceback" not in said
