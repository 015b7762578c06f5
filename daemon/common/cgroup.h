/* SPDX-License-Identifier: MIT
 *
 * cgroup.h - how much memory the control groups of this process allow (versions 1 and 2), and have left. Beyond that the kernel kills
 * a process of the group, so who is to take memory asks before.
 */
#ifndef FCC_DAEMON_COMMON_CGROUP_H
#define FCC_DAEMON_COMMON_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/error.h"

#define CGROUP_LEVELS 16 /* nested groups, from the process's own up to the outermost that is visible */
#define CGROUP_PATH 512

struct cgroup {
    int version; /* 1 or 2; 0: there is no such controller */
    int levels;
    char path[CGROUP_LEVELS][CGROUP_PATH];
    uint64_t unlooked; /* bytes that have been allowed since it was looked at */
};

/* Find the groups. `root` stands before /proc and the mount points: "", but in tests. */
void cgroup_find(struct cgroup *g, const char *root);
/* The smallest limit, in bytes; UINT64_MAX: there is none. */
uint64_t cgroup_limit(const struct cgroup *g);
/* May that much be taken now? What can be dropped from the file cache counts as free. 0, or -ENOMEM with the group, what it has, and what
 * it is allowed. *limited: some group has a limit; as it was, if it was not looked at. */
int cgroup_check(struct cgroup *g, uint64_t bytes, bool *limited, struct error *e);

#endif
