"""What every known way out of a container begins with, and that it is not there. Each row is one precondition.

A probe is a piece of Python that runs inside as a command. It says `weak(...)` where the precondition holds, and what
it found. Attempts are made for real: a configuration that only looks right is no protection.
"""

from sandbox.conformance.check import Ability, Check, Place, expect

_PRELUDE = """
import ctypes, errno, os, socket, stat, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
ARM = os.uname().machine == "aarch64"

def weak(what):
    sys.exit(f"{what}"[:400])

def call(number, *args):
    ctypes.set_errno(0)
    result = libc.syscall(number[1] if ARM else number[0], *args)
    return ctypes.get_errno() if result == -1 else 0

def refused(what, code):
    if code == 0:
        weak(f"{what} is allowed")

def status(field, pid="self"):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith(field + ":"):
            return line.split(":", 1)[1].strip()
    weak(f"there is no {field}")

def unreadable(path):
    try:
        data = open(path, "rb").read(4096)
    except OSError:
        return
    if data.strip(b"\\0"):
        weak(f"{path} can be read: {data[:60]!r}")

def unwritable(path, data=b"1"):
    try:
        fd = os.open(path, os.O_WRONLY)
        os.write(fd, data)
    except OSError:
        return
    weak(f"{path} can be written")

def mounts():
    for line in open("/proc/self/mountinfo"):
        left, right = line.rstrip().split(" - ")
        fields, kind = left.split(), right.split()
        yield fields[4], fields[5].split(","), kind[0], kind[1], kind[2].split(",")

def on(path):
    return [m for m in mounts() if m[0] == path][-1:] or weak(f"nothing is mounted on {path}")

def no_socket(family, kind, protocol=0):
    try:
        socket.socket(family, kind, protocol).close()
    except OSError:
        return
    weak(f"a socket of family {family}, type {kind}, protocol {protocol} can be made")

def cannot_reach(address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        code = probe.connect_ex((address, port))
    if code in (0, errno.EAGAIN, errno.EINPROGRESS, errno.ETIMEDOUT, errno.ECONNREFUSED):
        weak(f"there is a way to {address}: {errno.errorcode.get(code, code)}")
"""

_CAPS = 'int(status("{}"), 16) and weak("{}: " + status("{}"))'


def _caps(field: str) -> str:
    return _CAPS.format(field, field, field)


_FLAGS = """
for path, options, kind, source, more in mounts():
    if path in ("/workspace", "/home/user", "/tmp", "/run", "/dev/shm") and "{0}" not in options:
        weak(f"{{path}} is mounted without {0}")
"""

_PROBES: dict[str, str] = {
    # Rights
    "no_effective_capabilities": _caps("CapEff"),
    "no_permitted_capabilities": _caps("CapPrm"),
    "no_inheritable_capabilities": _caps("CapInh"),
    "no_ambient_capabilities": _caps("CapAmb"),
    "no_capability_to_gain_but_the_guests": """
guests = sum(1 << n for n in (0, 1, 3, 5, 6, 7))  # CHOWN DAC_OVERRIDE FOWNER KILL SETGID SETUID
more = int(status("CapBnd"), 16) & ~guests
more and weak(f"bounding set has {more:x}")
""",
    "no_new_privileges": 'status("NoNewPrivs") == "1" or weak("no_new_privs is off")',
    "system_calls_are_filtered": 'status("Seccomp") == "2" or weak("seccomp is off")',
    "commands_are_not_root": """
ids = {*os.getresuid(), *os.getresgid()}
0 in ids and weak(f"ids {ids}")
""",
    "root_cannot_be_taken_back": """
for attempt in (lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgid(0), lambda: os.setgroups([0])):
    try:
        attempt()
    except OSError:
        continue
    weak(f"now {os.getresuid()} {os.getresgid()} {os.getgroups()}")
""",
    "no_group_of_the_host": """
foreign = [g for g in os.getgroups() if g < 1000 and g != os.getgid()]
foreign and weak(f"groups {foreign}")
""",
    "setuid_programs_give_nothing": """
import subprocess
for program in ("/usr/bin/su", "/bin/su", "/usr/bin/mount", "/usr/bin/newgrp", "/usr/bin/passwd"):
    if os.path.exists(program) and os.stat(program).st_mode & stat.S_ISUID:
        child = os.posix_spawn("/bin/sh", ["sh", "-c", f"exec {program} </dev/null >/dev/null 2>&1"], {})
        os.waitpid(child, 0)
    if status("NoNewPrivs") != "1":
        weak(f"{program} is setuid and would be obeyed")
""",
    "a_higher_priority_is_refused": """
try:
    os.setpriority(os.PRIO_PROCESS, 0, -5)
except OSError:
    sys.exit(0)
weak("niceness -5 was granted")
""",
    "real_time_scheduling_is_refused": """
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
except OSError:
    sys.exit(0)
weak("SCHED_FIFO was granted")
""",
    "hard_limits_cannot_be_raised": """
import resource
for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
    soft, hard = resource.getrlimit(limit)
    if hard == resource.RLIM_INFINITY:
        weak(f"limit {limit} is infinite")
    try:
        resource.setrlimit(limit, (soft, hard + 1))
    except (OSError, ValueError):
        continue
    weak(f"limit {limit} was raised above {hard}")
""",
    "no_core_dumps": "import resource\nresource.getrlimit(resource.RLIMIT_CORE)[1] and weak('cores are dumped')",
    # Mounts
    "root_is_read_only": """
"ro" in on("/")[0][1] or weak("/ is writable")
try:
    open("/probe", "w")
except OSError:
    sys.exit(0)
weak("/probe was written")
""",
    "nothing_of_the_system_can_be_written": """
for top in ("/", "/bin", "/boot", "/etc", "/lib", "/opt", "/root", "/sbin", "/srv", "/usr", "/var"):
    for path, directories, files in os.walk(top) if top != "/" else [("/", [], [])]:
        directories[:] = directories[:200] if path.count("/") < 4 else []
        for name in [".", *files[:200]]:
            found = os.path.join(path, name)
            if os.path.islink(found) or stat.S_ISCHR(os.lstat(found).st_mode):
                continue
            if os.access(found, os.W_OK):
                weak(f"{found} can be written")
""",
    "writable_places_are_nosuid": _FLAGS.format("nosuid"),
    "writable_places_are_nodev": _FLAGS.format("nodev"),
    "writable_places_are_bounded": """
for path in ("/workspace", "/home/user", "/tmp", "/dev/shm", "/run"):
    if os.path.isdir(path):
        found = os.statvfs(path)
        found.f_blocks * found.f_frsize > 64 << 30 and weak(f"{path} has {found.f_blocks * found.f_frsize} bytes")
        "ro" not in on(path)[0][1] or weak(f"{path} is read-only")
""",
    "no_other_place_can_be_written": """
known = ("/workspace", "/home/user", "/tmp", "/run", "/dev", "/proc")
for path, options, kind, source, more in mounts():
    if os.access(path, os.W_OK) and not any(path == k or path.startswith(k + "/") for k in known):
        weak(f"{path} ({kind}) can be written")
""",
    "no_directory_of_the_host_but_its_own": """
known = ("/workspace", "/home/user", "/usr/local/lib/boatyard", "/run/boatyard", "/etc/", "/dev", "/proc", "/sys")
for path, options, kind, source, more in mounts():
    if source.startswith("/dev/") and path != "/" and not path.startswith(known):
        weak(f"{path} comes from {source}")
""",
    "what_the_guest_shares_with_the_host_is_closed": """
for path in ("/run/boatyard/private", "/run/boatyard/private/host"):
    try:
        weak(f"{path}: {os.listdir(path)}")
    except PermissionError:
        pass
    except FileNotFoundError:
        pass
""",
    "the_guest_cannot_be_replaced": """
path = "/usr/local/lib/boatyard/guest.pyz"
if os.path.exists(path):
    unwritable(path)
    os.access(os.path.dirname(path), os.W_OK) and weak("its directory can be written")
""",
    "no_mount": 'refused("mount", call((165, 40), b"none", b"/tmp", b"tmpfs", 0, None))',
    "no_bind_mount": 'refused("bind", call((165, 40), b"/proc", b"/tmp", None, 4096, None))',
    "no_unmount": 'refused("umount", call((166, 39), b"/proc", 2))',
    "no_remount": 'refused("remount", call((165, 40), None, b"/", None, 32 | 4096, None))',
    "no_pivot_root": 'refused("pivot_root", call((155, 41), b"/tmp", b"/tmp"))',
    "no_chroot": 'refused("chroot", call((161, 51), b"/tmp"))',
    "no_new_mount_api": """
refused("fsopen", call((430, 430), b"tmpfs", 0))
refused("open_tree", call((428, 428), -100, b"/", 1))
refused("move_mount", call((429, 429), -100, b"/tmp", -100, b"/tmp", 0))
""",
    "no_file_handles": """
handle = ctypes.create_string_buffer(struct.pack("Ii", 8, 1) + bytes(8), 16)
refused("open_by_handle_at", call((304, 265), -100, handle, 0))
""",
    # /proc and /sys
    "kernel_settings_are_read_only": """
for name in ("kernel/hostname", "kernel/randomize_va_space", "vm/overcommit_memory", "fs/file-max"):
    unwritable("/proc/sys/" + name)
""",
    "core_pattern_cannot_be_set": 'unwritable("/proc/sys/kernel/core_pattern", b"|/tmp/x")',
    "modprobe_cannot_be_set": 'unwritable("/proc/sys/kernel/modprobe", b"/tmp/x")',
    "uevent_helper_cannot_be_set": 'unwritable("/sys/kernel/uevent_helper", b"/tmp/x")',
    "binfmt_cannot_be_registered": 'unwritable("/proc/sys/fs/binfmt_misc/register", b":x:M::x::/tmp/x:")',
    "sysrq_cannot_be_pressed": 'unwritable("/proc/sysrq-trigger", b"h")',
    "kernel_memory_is_hidden": 'unreadable("/proc/kcore"); unreadable("/dev/mem"); unreadable("/dev/kmem")',
    "kernel_addresses_are_hidden": """
try:
    line = open("/proc/kallsyms").readline()
except OSError:
    sys.exit(0)
line and int(line.split()[0], 16) and weak(line)
""",
    "kernel_keys_are_hidden": 'unreadable("/proc/keys")',
    "kernel_timers_are_hidden": 'unreadable("/proc/timer_list"); unreadable("/proc/sched_debug")',
    "kernel_log_is_hidden": """
unreadable("/dev/kmsg")
unreadable("/proc/kmsg")
refused("syslog", call((103, 116), 3, ctypes.create_string_buffer(100), 100))
""",
    "hardware_is_hidden": """
for path in ("/sys/firmware", "/proc/acpi", "/proc/scsi", "/sys/devices/virtual/powercap"):
    if os.path.isdir(path) and os.listdir(path):
        weak(f"{path}: {os.listdir(path)[:5]}")
""",
    "interrupts_and_buses_are_read_only": """
for path in ("/proc/irq/default_smp_affinity", "/proc/bus", "/proc/fs"):
    os.access(path, os.W_OK) and weak(f"{path} can be written")
""",
    "nothing_of_sys_can_be_written": """
for path, directories, files in os.walk("/sys"):
    directories[:] = directories if path.count("/") < 4 else []
    for name in files:
        found = os.path.join(path, name)
        if os.access(found, os.W_OK):
            unwritable(found, b"")
            weak(f"{found} can be written")
""",
    "debug_and_trace_file_systems_are_absent": """
for path in ("/sys/kernel/debug", "/sys/kernel/tracing", "/sys/fs/bpf", "/sys/kernel/security"):
    try:
        names = os.listdir(path)
    except OSError:
        continue
    names and weak(f"{path}: {names[:5]}")
""",
    # Control groups
    "control_groups_are_read_only": """
for path, directories, files in os.walk("/sys/fs/cgroup"):
    for name in files:
        os.access(os.path.join(path, name), os.W_OK) and weak(f"{path}/{name} can be written")
    try:
        os.mkdir(path + "/probe")
    except OSError:
        continue
    weak(f"a group can be made in {path}")
""",
    "release_agent_cannot_be_set": """
for path, directories, files in os.walk("/sys/fs/cgroup"):
    for name in ("release_agent", "notify_on_release", "cgroup.procs", "devices.allow"):
        name in files and unwritable(f"{path}/{name}")
""",
    "control_groups_have_no_name_of_the_host": """
for line in open("/proc/self/cgroup"):
    path = line.rstrip().split(":", 2)[2]
    path in ("/", "") or weak(f"in {path}")
""",
    # The guest
    "the_guests_environment_is_hidden": 'unreadable("/proc/1/environ")',
    "the_guests_memory_is_hidden": """
unreadable("/proc/1/maps")
unreadable("/proc/1/mem")
local = (ctypes.c_char * 8)()
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
mine, theirs = Piece(ctypes.addressof(local), 8), Piece(0x400000, 8)
refused("process_vm_readv", call((310, 270), 1, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0))
""",
    "the_guests_files_are_hidden": """
for name in ("fd", "root", "cwd", "exe", "map_files"):
    try:
        found = os.listdir(f"/proc/1/{name}") if name in ("fd", "map_files") else os.readlink(f"/proc/1/{name}")
    except OSError:
        continue
    weak(f"/proc/1/{name}: {found}")
""",
    "the_guests_root_is_no_way_in": """
try:
    weak(os.listdir("/proc/1/root"))
except OSError:
    pass
""",
    "the_guest_cannot_be_traced": """
refused("PTRACE_ATTACH", call((101, 117), 16, 1, 0, 0))
refused("PTRACE_SEIZE", call((101, 117), 0x4206, 1, 0, 0))
""",
    "the_guest_cannot_be_killed": """
for number in (9, 19, 15, 6, 11):
    try:
        os.kill(1, number)
    except OSError:
        pass
os.path.exists("/proc/1/status") and status("State", 1)[0] in "SRD" or weak(status("State", 1))
""",
    "the_guests_limits_cannot_be_changed": """
import resource
try:
    resource.prlimit(1, resource.RLIMIT_NOFILE, (16, 16))
except OSError:
    sys.exit(0)
weak("the guest's limit of files was lowered")
""",
    "the_environment_holds_no_secret": """
names = [n for n in os.environ if any(word in n.upper() for word in ("TOKEN", "SECRET", "KEY", "PASSWORD", "BOATYARD"))]
names and weak(names)
""",
    # Namespaces and processes
    "no_user_namespace": 'refused("unshare(NEWUSER)", call((272, 97), 0x10000000))',
    "no_other_namespace": """
for name, flag in (("mnt", 0x20000), ("cgroup", 0x2000000), ("uts", 0x4000000), ("ipc", 0x8000000),
                   ("pid", 0x20000000), ("net", 0x40000000), ("time", 0x80)):
    refused(f"unshare({name})", call((272, 97), flag))
""",
    "no_namespace_by_clone": """
pid = libc.syscall(220 if ARM else 56, 0x10000000 | 17, 0, 0, 0, 0)
if pid == 0:
    os._exit(0)
if pid > 0:
    os.waitpid(pid, 0)
    weak("clone(NEWUSER) is allowed")
""",
    "no_namespace_is_entered": """
for name in ("mnt", "net", "pid", "user"):
    try:
        fd = os.open(f"/proc/1/ns/{name}", os.O_RDONLY)
    except OSError:
        continue
    refused(f"setns({name})", call((308, 268), fd, 0))
""",
    "no_process_of_the_host": """
pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
pids[0] == 1 or weak("there is no PID 1")
for pid in pids:
    try:
        name, parent = status("Name", pid), status("PPid", pid)
    except OSError:
        continue
    if name in ("kthreadd", "systemd", "init", "dockerd") or (parent == "0" and pid != 1):
        weak(f"{pid} is {name}, a child of {parent}")
""",
    "a_host_name_of_its_own": """
socket.gethostname() == "sandbox" or weak(socket.gethostname())
refused("sethostname", call((170, 161), b"x", 1))
refused("setdomainname", call((171, 162), b"x", 1))
""",
    "shared_memory_of_its_own": """
os.listdir("/dev/shm") and weak(os.listdir("/dev/shm"))
for name in ("shm", "sem", "msg"):
    try:
        lines = open(f"/proc/sysvipc/{name}").readlines()
    except OSError:
        continue
    len(lines) > 1 and weak(lines[1])
""",
    # Network
    "only_loopback": """
names = [name for _, name in socket.if_nameindex()]
names == ["lo"] or weak(names)
""",
    "no_route": """
for path in ("/proc/net/route", "/proc/net/ipv6_route"):
    try:
        lines = open(path).read().splitlines()
    except OSError:
        continue
    ways = [line for line in lines if not line.startswith("Iface") and not line.endswith(" lo")]
    ways and weak(ways[0])
""",
    "no_way_to_the_internet": 'cannot_reach("1.1.1.1", 53); cannot_reach("2606:4700:4700::1111", 53)',
    "no_way_to_cloud_metadata": 'cannot_reach("169.254.169.254", 80); cannot_reach("fd00:ec2::254", 80)',
    "no_way_to_the_hosts_bridge": 'cannot_reach("172.17.0.1", 2375); cannot_reach("172.17.0.1", 22)',
    "no_raw_socket": """
for family in (socket.AF_INET, socket.AF_INET6):
    no_socket(family, socket.SOCK_RAW, 1)
""",
    "no_packet_socket": "no_socket(17, socket.SOCK_RAW, 0x0300); no_socket(17, socket.SOCK_DGRAM)",
    "no_socket_to_the_hypervisor": "no_socket(40, socket.SOCK_STREAM)",
    "no_kernel_crypto_socket": "no_socket(38, socket.SOCK_SEQPACKET)",
    "no_netlink_but_for_addresses": """
for protocol in (2, 4, 9, 12, 15, 16):
    no_socket(16, socket.SOCK_RAW, protocol)
""",
    "no_low_port": """
with socket.socket() as probe:
    try:
        probe.bind(("127.0.0.1", 80))
    except PermissionError:
        sys.exit(0)
weak("port 80 can be bound")
""",
    "no_engine_socket": """
for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock",
             "/run/crio/crio.sock", "/run/systemd/private", "/run/dbus/system_bus_socket"):
    os.path.exists(path) and weak(path)
""",
    "no_socket_of_somebody_else": """
for line in open("/proc/net/unix").readlines()[1:]:
    path = line.split()[7:]
    path and not path[0].startswith(("/run/boatyard", "/proc/self/fd/")) and weak(path[0])
""",
    # System calls
    "no_keyring": """
refused("keyctl", call((250, 219), 0, -3, 1))
refused("add_key", call((248, 217), b"user", b"x", b"y", 1, -3))
refused("request_key", call((249, 218), b"user", b"x", None, -3))
""",
    "no_bpf": 'refused("bpf", call((321, 280), 0, ctypes.create_string_buffer(128), 128))',
    "no_performance_events": """
refused("perf_event_open", call((298, 241), ctypes.create_string_buffer(128), 0, -1, -1, 0))
""",
    "no_userfaultfd": 'refused("userfaultfd", call((323, 282), 0))',
    "no_io_uring": 'refused("io_uring_setup", call((425, 425), 1, ctypes.create_string_buffer(120)))',
    "no_kernel_module": """
refused("init_module", call((175, 105), b"x", 1, b""))
refused("finit_module", call((313, 273), 0, b"", 0))
refused("delete_module", call((176, 106), b"x", 0))
""",
    "no_other_kernel": 'refused("kexec_load", call((246, 104), 0, 0, None, 0))',
    "no_reboot": 'refused("reboot", call((169, 142), 0xfee1dead, 672274793, 0, None))',
    "no_swap_no_quota_no_accounting": """
refused("swapon", call((167, 224), b"/tmp/x", 0))
refused("quotactl", call((179, 60), 0, None, 0, None))
refused("acct", call((163, 89), b"/tmp/x"))
""",
    "the_clock_cannot_be_set": """
spec = struct.pack("qq", 1, 0)
refused("settimeofday", call((164, 170), spec, None))
refused("clock_settime", call((227, 112), 0, spec))
refused("adjtimex", call((159, 171), ctypes.create_string_buffer(struct.pack("I", 2) + bytes(300))))
""",
    "no_input_and_output_ports": """
if not ARM:
    refused("iopl", call((172, 0), 3))
    refused("ioperm", call((173, 0), 0x80, 1, 1))
""",
    # Devices
    "no_device_but_the_usual": """
usual = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "mqueue", "fd", "stdin", "stdout",
         "stderr", "console", "core", "ptmx", "net"}
more = set(os.listdir("/dev")) - usual
more and weak(sorted(more))
""",
    "no_device_can_be_made": """
for mode, device in ((stat.S_IFCHR, os.makedev(1, 1)), (stat.S_IFBLK, os.makedev(8, 0))):
    try:
        os.mknod("/tmp/probe", mode | 0o600, device)
    except OSError:
        continue
    weak("a device was made")
""",
    "no_disk_of_the_host": """
for path, directories, files in os.walk("/dev"):
    for name in files:
        stat.S_ISBLK(os.lstat(os.path.join(path, name)).st_mode) and weak(f"{path}/{name}")
for path, options, kind, source, more in mounts():
    if kind in ("ext4", "xfs", "btrfs") and "rw" in options and path not in ("/workspace", "/home/user"):
        path.startswith("/etc/") or weak(f"{path} is {source}")
""",
    "no_typing_into_terminals": """
import fcntl, pty
master, slave = pty.openpty()
try:
    fcntl.ioctl(slave, 0x5412, b"x")
except OSError:
    sys.exit(0)
weak("TIOCSTI is allowed")
""",
}


def _check(name: str, probe: str) -> Check:
    async def run(place: Place) -> None:
        result = await place.sandbox.execute(["python3", "-c", _PRELUDE + probe], timeout_s=30)
        said = result.stdout.head.decode(errors="replace").strip()
        expect(result.ok, said.splitlines()[-1] if said else f"the probe ended by {result.reason} {result.signal}")

    return Check(name=name, needs=Ability.PROCESSES, run=run)


checks: list[Check] = [_check(name, probe) for name, probe in _PROBES.items()]
