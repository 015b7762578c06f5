/* SPDX-License-Identifier: MIT
 *
 * cgroup.h - the memory limits of a process's control groups (versions 1 and 2), and how much is left. If a group exceeds
 * its limit, the kernel kills one of its processes. So fccd checks before it takes memory.
 */
#ifndef FCC_PROTO_BASE_CGROUP_H
#define FCC_PROTO_BASE_CGROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/base/error.h"

#define CGROUP_LEVELS 16 /* nested groups, from the process's own up to the outermost that is visible */
#define CGROUP_PATH 512

struct cgroup {
    int version; /* of the memory controller: 1 or 2; 0: there is none */
    int levels;  /* number of groups in path: this process's group first, then each one's parent */
    char path[CGROUP_LEVELS][CGROUP_PATH];
    uint64_t unlooked; /* bytes that cgroup_check() has allowed since it last read the groups' files */
};

/* Finds the groups of process `pid`; 0: of this process. `root` is prepended to /proc and the mount points; "" outside of tests. */
void cgroup_find(struct cgroup *g, const char *root, pid_t pid);
/* The smallest limit of all groups in bytes; UINT64_MAX: no limit. */
uint64_t cgroup_limit(const struct cgroup *g);
/* May that many bytes be taken now? The file cache counts as free. Returns 0, or -ENOMEM with the group, its usage and its
 * limit. Sets *limited to whether any group has a limit; leaves it unchanged if the files were not read. */
int cgroup_check(struct cgroup *g, uint64_t bytes, bool *limited, struct error *e);

#endif
