"""What Docker 20.10 allows by default to a container without added capabilities, on amd64 and arm64.

Facts to compare ours with, from the OCI configuration that Debian's 20.10.24 hands to runc, in an order of our own.
"""

ARCHITECTURES = {"SCMP_ARCH_X86_64": ("SCMP_ARCH_X86", "SCMP_ARCH_X32"), "SCMP_ARCH_AARCH64": ("SCMP_ARCH_ARM",)}

_DATA = """
close close_range copy_file_range creat dup dup2 dup3 fadvise64 fallocate fcntl fdatasync flock fsync ftruncate ioctl
lseek open openat openat2 pipe pipe2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead readv sendfile
splice sync sync_file_range syncfs tee truncate vmsplice write writev io_cancel io_destroy io_getevents io_pgetevents
io_setup io_submit io_uring_enter io_uring_register io_uring_setup
"""
_TREE = """
access chdir chmod chown faccessat faccessat2 fchdir fchmod fchmodat fchown fchownat fstat fstatfs futimesat getcwd
getdents getdents64 lchown link linkat lstat mkdir mkdirat mknod mknodat newfstatat readlink readlinkat rename
renameat renameat2 rmdir stat statfs statx symlink symlinkat umask unlink unlinkat utime utimensat utimes fgetxattr
flistxattr fremovexattr fsetxattr getxattr lgetxattr listxattr llistxattr lremovexattr lsetxattr removexattr setxattr
fanotify_mark inotify_add_watch inotify_init inotify_init1 inotify_rm_watch
"""
_MEMORY = """
brk madvise membarrier memfd_create memfd_secret mincore mlock mlock2 mlockall mmap modify_ldt mprotect mremap msync
munlock munlockall munmap process_mrelease remap_file_pages
"""
_PROCESSES = """
arch_prctl execve execveat exit exit_group fork futex futex_waitv get_robust_list getpgid getpgrp getpid getppid
getsid gettid pidfd_open prctl ptrace rseq set_robust_list set_tid_address setpgid setsid vfork wait4 waitid kill
pause pidfd_send_signal restart_syscall rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sigaltstack signalfd signalfd4 tgkill tkill
"""
_IDENTITY = """
capget capset getegid geteuid getgid getgroups getresgid getresuid getuid setfsgid setfsuid setgid setgroups setregid
setresgid setresuid setreuid setuid landlock_add_rule landlock_create_ruleset landlock_restrict_self seccomp
"""
_MACHINE = """
getcpu getpriority getrandom getrlimit getrusage ioprio_get ioprio_set prlimit64 sched_get_priority_max
sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield setpriority setrlimit sysinfo times
uname adjtimex alarm clock_adjtime clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep
setitimer time timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime
timerfd_settime
"""
_TALK = """
epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2
poll ppoll pselect6 select accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg
recvmsg sendmmsg sendmsg sendto setsockopt shutdown socket socketpair mq_getsetattr mq_notify mq_open mq_timedreceive
mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmdt shmget
"""
WHATEVER_THE_ARGUMENTS = frozenset((_DATA + _TREE + _MEMORY + _PROCESSES + _IDENTITY + _MACHINE + _TALK).split())

_OLD_ABIS = """
_llseek _newselect chown32 fadvise64_64 fchown32 fcntl64 fstat64 fstatat64 fstatfs64 ftruncate64 getegid32 geteuid32
getgid32 getgroups32 getresgid32 getresuid32 getuid32 ipc lchown32 lstat64 mmap2 recv send sendfile64 setfsgid32
setfsuid32 setgid32 setgroups32 setregid32 setresgid32 setresuid32 setreuid32 setuid32 sigprocmask sigreturn
socketcall stat64 statfs64 truncate64 ugetrlimit waitpid clock_adjtime64 clock_getres_time64 clock_gettime64
clock_nanosleep_time64 futex_time64 io_pgetevents_time64 mq_timedreceive_time64 mq_timedsend_time64 ppoll_time64
pselect6_time64 recvmmsg_time64 rt_sigtimedwait_time64 sched_rr_get_interval_time64 semtimedop_time64 timer_gettime64
timer_settime64 timerfd_gettime64 timerfd_settime64 utimensat_time64 get_thread_area set_thread_area arm_fadvise64_64
arm_sync_file_range breakpoint cacheflush set_tls sync_file_range2
"""
ONLY_32_BIT = frozenset(_OLD_ABIS.split())
"""Names that neither 64-bit kernel implements."""

NAMESPACES = 0x7E020000
"""Of `clone`'s flags; a call with any of them is refused."""
PERSONAS = frozenset({0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF})
"""What `personality` may be asked for."""
