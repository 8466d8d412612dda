"""The system calls of a sandbox, tried from inside: what must fail and how, and what agents do all day.

Bad descriptors and null pointers as arguments: the kernel, if it were asked, would mostly answer something else.
"""

import errno
import json
import signal
import socket
import termios
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox.client.sandbox import GuestSandbox

pytestmark = pytest.mark.docker

_COLUMN = {"x86_64": 0, "aarch64": 1}
NUMBERS = {
    # name: x86_64, aarch64
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "finit_module": (313, 273),
    "fsopen": (430, 430),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "memfd_secret": (447, 447),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "remap_file_pages": (216, 234),
    "request_key": (249, 218),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
NAMESPACES = {
    "time": 0x80,
    "mount": 0x20000,
    "cgroup": 0x2000000,
    "uts": 0x4000000,
    "ipc": 0x8000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "network": 0x40000000,
}
CLONE_SIGHAND = 0x800
"""Alone it is EINVAL, so none of these makes a process."""
HIGH = 1 << 32
BAD_FD = 2**64 - 1
INTERNET = [2, 10] if Path("/proc/net/if_inet6").exists() else [2]
"""What this kernel has."""

SOCKETS_REFUSED = [
    *((family, socket.SOCK_STREAM, 0, errno.EPERM) for family in (0, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15)),
    *((family, kind, 0, errno.EAFNOSUPPORT) for family in range(17, 48) for kind in (1, 2, 3, 5)),
    *((socket.AF_NETLINK, socket.SOCK_RAW, protocol, errno.EPROTONOSUPPORT) for protocol in range(1, 32)),
    *((family, kind, 0, errno.EPERM) for family in (2, 10) for kind in (0, 3, 4, 5, 6, 10)),
    *((family, 1, protocol, errno.EPROTONOSUPPORT) for family in (2, 10) for protocol in (33, 132, 262)),
    *((family, 2, protocol, errno.EPERM) for family in (2, 10) for protocol in (18, 136)),
    (socket.AF_UNIX | HIGH, socket.SOCK_STREAM, 0, errno.EAFNOSUPPORT),
    (socket.AF_VSOCK | HIGH, socket.SOCK_STREAM, 0, errno.EAFNOSUPPORT),
    (socket.AF_NETLINK, socket.SOCK_RAW, HIGH, errno.EPROTONOSUPPORT),
]
SOCKETS_ALLOWED = [
    *((socket.AF_UNIX, kind | socket.SOCK_CLOEXEC, 0) for kind in (1, 2, 5)),
    *((family, kind | socket.SOCK_NONBLOCK, 0) for family in INTERNET for kind in (1, 2)),
    *((family, 1, socket.IPPROTO_TCP) for family in INTERNET),
    *((family, 2, socket.IPPROTO_UDP) for family in INTERNET),
    (socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    call: str
    arguments: tuple[int, ...]
    errno: int
    """0: it must succeed."""

    def __str__(self) -> str:
        return f"{self.call}({', '.join(map(hex, self.arguments))})"


def attempt(number: int, call: str, *arguments: int) -> Attempt:
    return Attempt(call=call, arguments=arguments, errno=number)


ATTEMPTS = [
    *(attempt(errno.EPERM, name) for name in ("add_key", "request_key", "bpf", "perf_event_open", "kcmp")),
    attempt(errno.EPERM, "keyctl", 99),
    attempt(errno.EPERM, "userfaultfd", 0xFFFF),
    *(attempt(errno.ENOSYS, name) for name in ("io_uring_setup", "io_uring_enter", "io_uring_register", "clone3")),
    attempt(errno.ENOSYS, "memfd_secret", 0xFFFF),
    *(attempt(errno.EPERM, name) for name in ("mount", "umount2", "pivot_root", "chroot", "fsopen")),
    *(attempt(errno.EPERM, name, BAD_FD, 0, BAD_FD) for name in ("open_tree", "move_mount", "mount_setattr")),
    *(attempt(errno.EPERM, name) for name in ("kexec_load", "kexec_file_load", "init_module", "delete_module")),
    attempt(errno.EPERM, "finit_module", BAD_FD),
    *(attempt(errno.EPERM, name, BAD_FD) for name in ("name_to_handle_at", "open_by_handle_at", "pidfd_getfd")),
    *(attempt(errno.EPERM, name, 1) for name in ("process_vm_readv", "process_vm_writev")),
    *(attempt(errno.EPERM, name, BAD_FD) for name in ("process_mrelease", "fanotify_mark")),
    attempt(errno.EPERM, "fanotify_init", 0xFFFF),
    *(attempt(errno.EPERM, name) for name in ("quotactl", "swapon", "swapoff", "acct", "vhangup", "reboot")),
    *(attempt(errno.EPERM, name) for name in ("settimeofday", "adjtimex", "sethostname", "iopl", "modify_ldt")),
    *(attempt(errno.EPERM, name, 0) for name in ("clock_settime", "clock_adjtime")),
    attempt(errno.EPERM, "syslog", 10),
    attempt(errno.EPERM, "remap_file_pages", 0, 0, 0, 0, 0),
    attempt(errno.EPERM, "setns", BAD_FD),
    attempt(errno.EPERM, "unshare", 0),
    *(attempt(errno.EPERM, "unshare", flag) for flag in NAMESPACES.values()),
    *(attempt(errno.EPERM, "clone", flag | CLONE_SIGHAND) for name, flag in NAMESPACES.items() if name != "time"),
    attempt(errno.EPERM, "clone", NAMESPACES["user"] | CLONE_SIGHAND | HIGH),
    attempt(errno.EINVAL, "clone", CLONE_SIGHAND),
    *(attempt(errno.EPERM, "personality", persona) for persona in (0x8, 0x20000, 0x100000, 0x400000, 0x40008)),
    *(attempt(0, "personality", persona) for persona in (0xFFFFFFFF, 0x40000, 0)),
    *(attempt(errno.EPERM, "ioctl", BAD_FD, termios.TIOCSTI | high) for high in (0, HIGH, 0xFFFFFFFF << 32, 1 << 63)),
    *(attempt(errno.EPERM, "ioctl", BAD_FD, termios.TIOCLINUX | high) for high in (0, HIGH)),
    *(attempt(errno.EBADF, "ioctl", BAD_FD, termios.TCGETS | high) for high in (0, HIGH)),
    *(attempt(number, "socket", *arguments) for *arguments, number in SOCKETS_REFUSED),
    *(attempt(0, "socket", *arguments) for arguments in SOCKETS_ALLOWED),
    *(attempt(errno.EPERM, "socketpair", family, 1, 0) for family in (2, 16, 38, 40, socket.AF_UNIX | HIGH)),
    attempt(errno.EFAULT, "socketpair", socket.AF_UNIX, 1, 0),
]

_CALLER = """
import ctypes, errno, json, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def outcome(number, *arguments):
    padded = [ctypes.c_ulong(value) for value in (number, *arguments, 0, 0, 0, 0, 0, 0)[:7]]
    return 0 if libc.syscall(*padded) >= 0 else ctypes.get_errno()
"""


async def said(sandbox: GuestSandbox, script: str, stdin: bytes = b"") -> str:
    result = await sandbox.execute(["python3", "-c", script], stdin=stdin, timeout_s=60)
    output = result.stdout.head.decode()
    assert result.ok, (result.reason, result.exit_code, output[-2000:])
    return output


@pytest.fixture(scope="module")
async def machine(shared_sandbox: GuestSandbox) -> str:
    return (await said(shared_sandbox, "import platform; print(platform.machine())")).strip()


@pytest.fixture(scope="module")
async def outcomes(shared_sandbox: GuestSandbox, machine: str) -> dict[Attempt, int]:
    """All of them by one command; those that this machine has."""
    numbers = {name: columns[_COLUMN[machine]] for name, columns in NUMBERS.items()}
    there = [attempt for attempt in ATTEMPTS if numbers[attempt.call] is not None]
    calls = [[numbers[attempt.call], *attempt.arguments] for attempt in there]
    script = _CALLER + "print(json.dumps([outcome(*call) for call in json.load(sys.stdin)]))"
    output = await said(shared_sandbox, script, json.dumps(calls).encode())
    return dict(zip(there, json.loads(output), strict=True))


@pytest.mark.parametrize("call", sorted(NUMBERS))
async def test_attempts(call: str, outcomes: dict[Attempt, int], machine: str) -> None:
    tried = [attempt for attempt in outcomes if attempt.call == call]
    if not tried:
        pytest.skip(f"there is no {call} on {machine}")
    names = {0: "nothing", **errno.errorcode}
    assert {str(attempt): names[outcomes[attempt]] for attempt in tried} == {
        str(attempt): names[attempt.errno] for attempt in tried
    }


async def test_of_all_requests_only_the_two_that_type_into_terminals_are_refused(
    shared_sandbox: GuestSandbox, machine: str
) -> None:
    number = NUMBERS["ioctl"][_COLUMN[machine]]
    script = f"print([r for r in range(1 << 16) if outcome({number}, 2**64 - 1, r) != errno.EBADF])"
    assert json.loads(await said(shared_sandbox, _CALLER + script)) == [termios.TIOCSTI, termios.TIOCLINUX]


async def test_the_guest_and_its_commands_are_under_one_filter(shared_sandbox: GuestSandbox) -> None:
    script = "for pid in (1, 'self'): print(open(f'/proc/{pid}/status').read().split('Seccomp:')[1].split()[0])"
    assert (await said(shared_sandbox, script)).split() == ["2", "2"]


_INT_80 = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b814000000cd80c3"))  # eax = getpid by its 32-bit number; int 0x80; ret
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
"""
_X32_GETPID = "import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(0x40000000 + 39) != -1)"


async def test_there_is_no_32_bit_way_into_the_kernel(shared_sandbox: GuestSandbox, machine: str) -> None:
    if machine != "x86_64":
        pytest.skip("the ways tried here are those of x86")
    result = await shared_sandbox.execute(["python3", "-c", _INT_80])
    assert result.signal in (signal.SIGSYS, signal.SIGSEGV)  # the latter from a kernel that has no such way
    result = await shared_sandbox.execute(["python3", "-c", _X32_GETPID])
    assert result.signal == signal.SIGSYS or result.exit_code == 0


SHELL = {
    "git": """
        git init -q repository && cd repository && git config user.email a@b && git config user.name a
        echo one > file && git add file && git commit -qm one && git gc -q && cd ..
        git clone -q repository clone && git -C clone log --oneline | grep one""",
    "venv and pip": """
        mkdir -p w/hello && echo 'print("installed")' > w/hello/__main__.py && touch w/hello/__init__.py && cd w
        mkdir hello-1.dist-info && touch hello-1.dist-info/RECORD
        printf 'Metadata-Version: 2.1\\nName: hello\\nVersion: 1\\n' > hello-1.dist-info/METADATA
        printf 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n' > hello-1.dist-info/WHEEL
        python3 -m zipfile -c hello-1-py3-none-any.whl hello hello-1.dist-info
        python3 -m venv ../venv && ../venv/bin/pip install -q --no-index hello-1-py3-none-any.whl
        ../venv/bin/python -m hello | grep installed""",
    "curl from a server on loopback": """
        python3 -u -m http.server 0 --bind 127.0.0.1 > log 2>&1 & trap 'kill %1' EXIT
        until port=$(grep -o 'port [0-9]*' log); do sleep 0.05; done
        curl -fsS "http://127.0.0.1:${port#port }/log" | grep Serving""",
    "pipes, fifos, background jobs": """
        mkfifo f && (seq 100000 > f &) && test "$(wc -l < f)" = 100000
        sleep 100 & kill $! && ! wait $!
        seq 100000 | sort -r | sort -n | tail -n 1 | grep 100000""",
    "tar, find, ripgrep, timeout": """
        mkdir -p d/e && echo needle > d/e/f && tar czf d.tar.gz d && tar xzf d.tar.gz -C / --to-stdout | grep needle
        find d -newermt 2000-01-01 -name f | grep f && rg -q needle d
        timeout 0.2 sleep 100 || test $? = 124""",
    "no randomised addresses": """
        address() { setarch -R sh -c 'grep stack /proc/self/maps'; }
        test "$(address)" = "$(address)" """,
}

PYTHON = {
    "threads": """
        import threading
        found = []
        threads = [threading.Thread(target=found.append, args=(n,)) for n in range(50)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert sorted(found) == list(range(50))""",
    "processes in a pool": """
        import multiprocessing
        for method in ("fork", "spawn", "forkserver"):
            with multiprocessing.get_context(method).Pool(2) as pool:
                assert pool.map(abs, range(-9, 0)) == list(range(9, 0, -1))""",
    "shared memory": """
        from multiprocessing import Process, Value, shared_memory
        def add(value):
            with value.get_lock(): value.value += 1
        value = Value("i", 0)
        jobs = [Process(target=add, args=(value,)) for _ in range(4)]
        [job.start() for job in jobs]; [job.join() for job in jobs]
        assert value.value == 4
        memory = shared_memory.SharedMemory(create=True, size=4096); memory.close(); memory.unlink()""",
    "asyncio with a server and a subprocess": """
        import asyncio
        async def main():
            async def echo(reader, writer): writer.write(await reader.readline()); writer.close()
            for start in (asyncio.start_server(echo, "127.0.0.1", 0), asyncio.start_unix_server(echo, "s")):
                server = await start
                where = server.sockets[0].getsockname()
                connect = asyncio.open_unix_connection(where) if where == "s" else asyncio.open_connection(*where)
                reader, writer = await connect
                writer.write(b"line\\n")
                assert await reader.read() == b"line\\n"
            process = await asyncio.create_subprocess_exec("echo", "hi", stdout=-1)
            assert (await process.communicate())[0] == b"hi\\n"
        asyncio.run(main())""",
    "a pidfd": """
        import os, select, signal
        pid = os.fork()
        if not pid: signal.pause()
        fd = os.pidfd_open(pid)
        signal.pidfd_send_signal(fd, signal.SIGTERM)
        select.select([fd], [], [])
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM""",
    "sqlite": """
        import sqlite3
        with sqlite3.connect("base.db") as base:
            base.execute("pragma journal_mode=wal"); base.execute("create table t (n)")
            base.executemany("insert into t values (?)", [(n,) for n in range(1000)])
        assert sqlite3.connect("base.db").execute("select sum(n) from t").fetchone() == (499500,)""",
    "epoll, eventfd, timerfd, signalfd": """
        import ctypes, os, select
        libc = ctypes.CDLL(None, use_errno=True)
        poll, event = select.epoll(), os.eventfd(0)
        timer, signals = libc.timerfd_create(1, 0), libc.signalfd(-1, ctypes.byref((ctypes.c_ulong * 16)()), 0)
        assert timer > 0 and signals > 0
        [poll.register(fd, select.EPOLLIN) for fd in (event, timer, signals)]
        os.eventfd_write(event, 1)
        assert poll.poll(10) == [(event, select.EPOLLIN)]""",
    "inotify": """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.inotify_init1(0)
        assert libc.inotify_add_watch(fd, b".", 0x100) > 0
        open("made", "w").close()
        assert b"made" in os.read(fd, 4096)""",
    "a file in memory that runs": """
        import os, shutil
        fd = os.memfd_create("program", 0)
        shutil.copyfileobj(open("/bin/true", "rb"), open(fd, "wb", closefd=False))
        assert os.spawnv(os.P_WAIT, f"/proc/self/fd/{fd}", ["true"]) == 0""",
    "a debugger on its own child": """
        import ctypes, os, signal
        libc = ctypes.CDLL(None, use_errno=True)
        TRACEME, CONT = 0, 7
        pid = os.fork()
        if not pid:
            libc.ptrace(TRACEME, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP); os._exit(5)
        assert os.WSTOPSIG(os.waitpid(pid, 0)[1]) == signal.SIGSTOP
        assert libc.ptrace(CONT, pid, 0, 0) == 0
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5""",
    "names, addresses, interfaces": """
        import ctypes, socket
        found = socket.getaddrinfo("127.0.0.1", 80, flags=socket.AI_ADDRCONFIG)  # asks which kinds there are
        assert {entry[4] for entry in found} == {("127.0.0.1", 80)}
        assert socket.if_nametoindex("lo") and "lo" in dict(socket.if_nameindex()).values()
        assert ctypes.CDLL(None).getifaddrs(ctypes.byref(ctypes.c_void_p())) == 0""",
    "sockets between processes": """
        import array, os, socket
        one, two = socket.socketpair()
        socket.send_fds(one, [b"x"], [os.open("/etc/hostname", os.O_RDONLY)])
        assert os.read(socket.recv_fds(two, 9, 1)[1][0], 100) == b"sandbox\\n" """,
    "a terminal": """
        import fcntl, os, pty, struct, termios
        pid, master = pty.fork()
        if not pid: os.execvp("stty", ["stty", "size"])
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        assert os.read(master, 100).split()[0].isdigit()
        assert os.waitpid(pid, 0)[1] == 0""",
    "locks, attributes, copies by the kernel": """
        import fcntl, os
        with open("a", "wb+") as a, open("b", "wb") as b:
            a.write(b"x" * 100000); a.flush(); fcntl.flock(a, fcntl.LOCK_EX); fcntl.lockf(b, fcntl.LOCK_EX)
            assert os.copy_file_range(a.fileno(), b.fileno(), 1000, 0) == 1000
            assert os.sendfile(b.fileno(), a.fileno(), 0, 100000) > 0
            os.posix_fallocate(a.fileno(), 0, 200000); os.truncate("a", 5)
        os.listxattr("a"); os.utime("a", (1, 1)); os.chmod("a", 0o600); os.link("a", "c"); os.rename("c", "d")""",
    "a filter of one's own": """
        import ctypes, os
        class Filter(ctypes.Structure): _fields_ = [("n", ctypes.c_ushort), ("code", ctypes.c_void_p)]
        allow = ctypes.create_string_buffer(bytes.fromhex("060000000000ff7f"))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.prctl(22, 2, ctypes.byref(Filter(1, ctypes.addressof(allow)))) == 0
        assert os.system("true") == 0""",
}


@pytest.mark.parametrize("name", SHELL)
async def test_works_in_a_shell(shared_sandbox: GuestSandbox, name: str) -> None:
    command = "set -euo pipefail; cd $(mktemp -d)\n" + SHELL[name]
    result = await shared_sandbox.execute(["bash", "-c", command], timeout_s=120)
    assert result.ok, result.stdout.head.decode()


@pytest.mark.parametrize("name", PYTHON)
async def test_works_in_python(shared_sandbox: GuestSandbox, name: str) -> None:
    script = "import os, tempfile; os.chdir(tempfile.mkdtemp())\n" + textwrap.dedent(PYTHON[name])
    await said(shared_sandbox, script)
