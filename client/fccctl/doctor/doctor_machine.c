/* SPDX-License-Identifier: MIT
 *
 * doctor_machine.c - checks what fccd needs of the kernel, the processors and the memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "client/fccctl/doctor/doctor.h"
#include "client/fccctl/field.h"
#include "proto/base/cgroup.h"
#include "proto/base/fd.h"

#define FILES_WANTED 1024

static void check_memfd(struct doctor *d)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    int fd = memfd_create("fccctl-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || ftruncate(fd, 4096) != 0 || fcntl(fd, F_ADD_SEALS, seals) != 0)
        finding_add(d, FINDING_BAD, "memfd",
                    "fccd's memory is sealed memfds: a kernel from 3.17 on, and no sandbox that forbids them",
                    "memfd_create with seals: %s", strerror(errno));
    else if (ftruncate(fd, 8192) == 0)
        finding_add(d, FINDING_BAD, "memfd", "this kernel's or sandbox's memfd_create is not Linux's",
                    "a sealed memfd can be resized");
    else
        finding_add(d, FINDING_OK, "memfd", "", "memfd_create and seals work");
    fd_close(&fd);
}

static void check_cores(struct doctor *d)
{
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    int64_t threads = 0;
    size_t devices = 0;

    for (size_t i = 0; i < field_count(d->devices, "devices"); i++) {
        struct json_object *device = field_at(d->devices, "devices", i);
        if (strcmp(field_text(device, "kind"), "cpu") != 0)
            continue;
        devices++;
        threads += field_int(device, "workgroups", 0);
    }
    if (!d->devices)
        return;
    if (devices == 0)
        finding_add(d, FINDING_BAD, "cores", "set CPU_DEVICES in fccd.conf", "fccd has no cpu device");
    else if (threads > cores)
        finding_add(d, FINDING_WARN, "cores", "lower CPU_DEVICES or CPU_WORKGROUPS in fccd.conf; fine for trying things out",
                    "%zu cpu devices have %" PRId64 " workgroups, and there are %d cores", devices, threads, cores);
    else
        finding_add(d, FINDING_OK, "cores", "", "%zu cpu devices have %" PRId64 " workgroups on %d cores", devices, threads,
                    cores);
}

static void check_memory(struct doctor *d)
{
    int64_t allowed = field_int(d->status, "memory_per_user", 0);
    struct cgroup group;
    double physical = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);

    if (!d->status)
        return;
    cgroup_find(&group, "", (pid_t)field_int(d->status, "pid", 0));
    uint64_t limit = cgroup_limit(&group);
    if (allowed > 0 && (uint64_t)allowed > limit)
        finding_add(d, FINDING_BAD, "memory", "raise MemoryMax of the service, or lower MEMORY_PER_USER_MB in fccd.conf",
                    "a user may have %s, and the daemon's control group %s: the kernel would kill workers",
                    format_bytes((double)allowed).text, format_bytes((double)limit).text);
    else if ((double)allowed > physical)
        finding_add(d, FINDING_WARN, "memory", "lower MEMORY_PER_USER_MB in fccd.conf",
                    "a user may have %s, and the node has %s", format_bytes((double)allowed).text, format_bytes(physical).text);
    else
        finding_add(d, FINDING_OK, "memory", "", "a user may have %s, the node has %s", format_bytes((double)allowed).text,
                    format_bytes(physical).text);
}

static void check_files(struct doctor *d)
{
    struct rlimit own;
    char limits[4096];

    if (getrlimit(RLIMIT_NOFILE, &own) == 0 && own.rlim_cur < FILES_WANTED)
        finding_add(d, FINDING_WARN, "files", "'ulimit -n 1024', or nofile in /etc/security/limits.conf",
                    "your processes may open %" PRIu64 " files; each buffer takes one while it is mapped",
                    (uint64_t)own.rlim_cur);
    else
        finding_add(d, FINDING_OK, "files", "", "your processes may open enough files");
    if (!d->status)
        return;
    (void)file_read(words("/proc/%" PRId64 "/limits", field_int(d->status, "pid", 0)).text, limits, sizeof(limits));
    const char *line = strstr(limits, "Max open files");
    int64_t soft = line ? strtoll(line + 14, NULL, 10) : FILES_WANTED;
    if (soft < FILES_WANTED)
        finding_add(d, FINDING_WARN, "files", "raise LimitNOFILE of the service", "fccd may open %" PRId64 " files", soft);
}

static void check_governor(struct doctor *d)
{
    char line[64];

    if (file_read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", line, sizeof(line)) <= 0)
        return; /* no such file: a virtual machine, most likely */
    line[strcspn(line, "\n")] = '\0';
    if (strcmp(line, "performance") != 0)
        finding_add(d, FINDING_WARN, "governor", "for steady times, as root: 'cpupower frequency-set -g performance'",
                    "the processors' governor is \"%s\"", line);
    else
        finding_add(d, FINDING_OK, "governor", "", "the processors' governor is \"performance\"");
}

void doctor_machine(struct doctor *d)
{
    check_memfd(d);
    check_cores(d);
    check_memory(d);
    check_files(d);
    check_governor(d);
}
