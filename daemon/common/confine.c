/* SPDX-License-Identifier: MIT */
#include "daemon/common/confine.h"

#include <errno.h>
#include <sched.h>
#include <seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

/* Names that the installed libseccomp or this machine does not know are passed over. */
static const char *const everybody[] = {
    /* files and devices, within the process's rights: a GPU's and an adapter's driver speaks by ioctl and mmap */
    "access",
    "chdir",
    "chmod",
    "close",
    "close_range",
    "copy_file_range",
    "creat",
    "dup",
    "dup2",
    "dup3",
    "faccessat",
    "faccessat2",
    "fadvise64",
    "fallocate",
    "fchdir",
    "fchmod",
    "fchmodat",
    "fcntl",
    "fdatasync",
    "fgetxattr",
    "flistxattr",
    "flock",
    "fstat",
    "fstatfs",
    "fsync",
    "ftruncate",
    "getcwd",
    "getdents",
    "getdents64",
    "getxattr",
    "ioctl",
    "lgetxattr",
    "link",
    "linkat",
    "listxattr",
    "llistxattr",
    "lseek",
    "lstat",
    "mkdir",
    "mkdirat",
    "newfstatat",
    "open",
    "openat",
    "openat2",
    "pipe",
    "pipe2",
    "pread64",
    "preadv",
    "preadv2",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "read",
    "readlink",
    "readlinkat",
    "readv",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "sendfile",
    "splice",
    "stat",
    "statfs",
    "statx",
    "symlink",
    "symlinkat",
    "sync_file_range",
    "tee",
    "truncate",
    "umask",
    "unlink",
    "unlinkat",
    "utimensat",
    "vmsplice",
    "write",
    "writev",
    /* waiting */
    "epoll_create",
    "epoll_create1",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "eventfd",
    "eventfd2",
    "inotify_add_watch",
    "inotify_init",
    "inotify_init1",
    "inotify_rm_watch",
    "poll",
    "ppoll",
    "pselect6",
    "select",
    "signalfd",
    "signalfd4",
    "timerfd_create",
    "timerfd_gettime",
    "timerfd_settime",
    /* memory; the runtimes of GPUs place and pin pages, and share some by System V's means */
    "brk",
    "get_mempolicy",
    "madvise",
    "mbind",
    "membarrier",
    "memfd_create",
    "mincore",
    "mlock",
    "mlock2",
    "mlockall",
    "mmap",
    "move_pages",
    "mprotect",
    "mremap",
    "msync",
    "munlock",
    "munlockall",
    "munmap",
    "pkey_alloc",
    "pkey_free",
    "pkey_mprotect",
    "semctl",
    "semget",
    "semop",
    "semtimedop",
    "set_mempolicy",
    "set_mempolicy_home_node",
    "shmat",
    "shmctl",
    "shmdt",
    "shmget",
    /* threads, signals and time. clone() is below; clone3(), whose flags a filter cannot see, is left out, and the C library takes clone() */
    "alarm",
    "arch_prctl",
    "capget",
    "clock_getres",
    "clock_gettime",
    "clock_nanosleep",
    "exit",
    "exit_group",
    "fork",
    "futex",
    "futex_waitv",
    "get_robust_list",
    "getcpu",
    "getegid",
    "geteuid",
    "getgid",
    "getgroups",
    "getitimer",
    "getpgid",
    "getpgrp",
    "getpid",
    "getppid",
    "getpriority",
    "getrandom",
    "getresgid",
    "getresuid",
    "getrlimit",
    "getrusage",
    "getsid",
    "gettid",
    "gettimeofday",
    "getuid",
    "kill",
    "nanosleep",
    "pause",
    "pidfd_open",
    "pidfd_send_signal",
    "prctl",
    "prlimit64",
    "restart_syscall",
    "rseq",
    "rt_sigaction",
    "rt_sigpending",
    "rt_sigprocmask",
    "rt_sigqueueinfo",
    "rt_sigreturn",
    "rt_sigsuspend",
    "rt_sigtimedwait",
    "rt_tgsigqueueinfo",
    "sched_get_priority_max",
    "sched_get_priority_min",
    "sched_getaffinity",
    "sched_getattr",
    "sched_getparam",
    "sched_getscheduler",
    "sched_rr_get_interval",
    "sched_setaffinity",
    "sched_setattr",
    "sched_setparam",
    "sched_setscheduler",
    "sched_yield",
    "seccomp",
    "set_robust_list",
    "set_tid_address",
    "setitimer",
    "setpriority",
    "setrlimit",
    "sigaltstack",
    "sysinfo",
    "tgkill",
    "time",
    "timer_create",
    "timer_delete",
    "timer_getoverrun",
    "timer_gettime",
    "timer_settime",
    "times",
    "tkill",
    "uname",
    "vfork",
    "wait4",
    "waitid",
    /* sockets; socket() is below */
    "accept",
    "accept4",
    "bind",
    "connect",
    "getpeername",
    "getsockname",
    "getsockopt",
    "listen",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "setsockopt",
    "shutdown",
    "socketpair",
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    /* a sanitizer's runtime executes the program anew at an address of its choice, and looks for leaks from a process beside it */
    "personality",
    "ptrace",
    "execve",
#endif
};

/* To start workers and the lister (daemon/broker/spawn.c), which then become their users; and to give the socket to its group. */
static const char *const broker_only[] = {"capset",    "chown",    "execve",    "execveat", "fchown",   "fchownat",
                                          "lchown",    "setgid",   "setgroups", "setpgid",  "setregid", "setresgid",
                                          "setresuid", "setreuid", "setsid",    "setuid"};

static const int families[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK};

#define NAMESPACES (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET)

static int names_allow(scmp_filter_ctx filter, const char *const *names, size_t n)
{
    int status = 0;

    for (size_t i = 0; i < n && !status; i++) {
        int number = seccomp_syscall_resolve_name(names[i]);
        if (number != __NR_SCMP_ERROR)
            status = seccomp_rule_add(filter, SCMP_ACT_ALLOW, number, 0);
    }
    return status;
}

static int list_make(scmp_filter_ctx filter, enum confine_who who)
{
    int status = names_allow(filter, everybody, sizeof(everybody) / sizeof(everybody[0]));

    if (!status && who == CONFINE_BROKER)
        status = names_allow(filter, broker_only, sizeof(broker_only) / sizeof(broker_only[0]));
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]) && !status; i++)
        status =
            seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)families[i], 0));
    if (!status)
        status = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1, SCMP_A0(SCMP_CMP_MASKED_EQ, NAMESPACES, 0));
    return status;
}

int confine(enum confine_who who, const char *mode, struct error *e)
{
    uint32_t other = !strcmp(mode, "log") ? SCMP_ACT_LOG : SCMP_ACT_ERRNO(ENOSYS);

    if (!strcmp(mode, "off"))
        return 0;
    scmp_filter_ctx filter = seccomp_init(other);
    int status = filter ? 0 : -ENOMEM;
    if (!status)
        status = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO(ENOSYS));
    /* Calls in a tree, not one after the other; and the processor's speculation stays as it is elsewhere: slower stores are no protection for
     * a process that runs no foreign code. Either may be unknown to an older kernel or library, and is then as it is there. */
    if (!status) {
        (void)seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2);
        (void)seccomp_attr_set(filter, SCMP_FLTATR_CTL_SSB, 1);
        status = list_make(filter, who);
    }
    if (!status)
        status = seccomp_load(filter);
    if (filter)
        seccomp_release(filter);
    if (status)
        return error_set(
            e, status,
            "system calls cannot be confined: %s: SECCOMP=off starts fccd without that, where the kernel has no seccomp "
            "filters or its surroundings forbid them",
            strerror(-status));
    return 0;
}
