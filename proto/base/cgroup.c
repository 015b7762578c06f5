/* SPDX-License-Identifier: MIT */
#include "proto/base/cgroup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_EVERY (1u << 20)  /* bytes that may be taken in small pieces between two reads of the groups' files */
#define MARGIN_MAX (16u << 20) /* bytes left for the kernel and the libraries */

static const struct names {
    const char *limit, *used; /* files */
    const char *cache[2];     /* keys in memory.stat. The file cache is their sum; shared memory is not in it */
} names[] = {
    [1] = {"memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}},
    [2] = {"memory.max", "memory.current", {"inactive_file", "active_file"}},
};

/* ---- which groups ---- */

/* Finds the process's group: the line of /proc/PID/cgroup with the memory controller ("4:memory:/path"), else that of version
 * 2 ("0::/path"). Returns the version. */
static int own_path(const char *root, pid_t pid, char path[CGROUP_PATH])
{
    char file[CGROUP_PATH], line[CGROUP_PATH + 256];
    int version = 0;

    if (pid)
        (void)snprintf(file, sizeof(file), "%s/proc/%d/cgroup", root, pid);
    else
        (void)snprintf(file, sizeof(file), "%s/proc/self/cgroup", root);
    FILE *f = fopen(file, "re");
    while (f && version != 1 && fgets(line, sizeof(line), f)) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        bool two = !controllers[1], one = false;
        for (char *save, *c = strtok_r(controllers + 1, ",", &save); c; c = strtok_r(NULL, ",", &save))
            one |= !strcmp(c, "memory");
        if (!one && !two)
            continue;
        version = one ? 1 : 2;
        (void)snprintf(path, CGROUP_PATH, "%s", group);
    }
    if (f)
        (void)fclose(f);
    return version;
}

static bool option_has(const char *options, const char *wanted)
{
    size_t n = strlen(wanted);

    for (const char *p = options; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (!strncmp(p, wanted, n) && (p[n] == ',' || p[n] == '\0' || p[n] == '\n'))
            return true;
    return false;
}

/* Finds where that version's hierarchy is mounted, and which group is mounted there: in a container that is the container's
 * own. */
static bool mount_point(const char *root, int version, char where[CGROUP_PATH], char outermost[CGROUP_PATH])
{
    char file[CGROUP_PATH], line[4096], type[32], options[512];
    bool found = false;

    (void)snprintf(file, sizeof(file), "%s/proc/self/mountinfo", root);
    FILE *f = fopen(file, "re");
    while (f && !found && fgets(line, sizeof(line), f)) {
        const char *after = strstr(line, " - ");
        if (!after || sscanf(line, "%*d %*d %*s %511s %511s", outermost, where) != 2 ||
            sscanf(after, " - %31s %*s %511s", type, options) != 2)
            continue;
        found = version == 2 ? !strcmp(type, "cgroup2") : !strcmp(type, "cgroup") && option_has(options, "memory");
    }
    if (f)
        (void)fclose(f);
    return found;
}

void cgroup_find(struct cgroup *g, const char *root, pid_t pid)
{
    char own[CGROUP_PATH], where[CGROUP_PATH], outermost[CGROUP_PATH];
    const char *below = own;

    *g = (struct cgroup){.version = own_path(root, pid, own)};
    if (!g->version || !mount_point(root, g->version, where, outermost)) {
        g->version = 0;
        return;
    }
    size_t n = strlen(outermost);
    if (n > 1 && !strncmp(own, outermost, n) && (own[n] == '/' || !own[n]))
        below = own + n; /* the path of the process's group below the mounted one */
    else if (n > 1)
        below = "";
    char *end = own + strlen(own);
    while (g->levels < CGROUP_LEVELS) {
        int length = snprintf(g->path[g->levels], CGROUP_PATH, "%s%s%s", root, where,
                              end > below && strcmp(below, "/") != 0 ? below : "");
        g->levels += length < CGROUP_PATH;
        char *slash = end > below ? strrchr(below, '/') : NULL;
        if (!slash || !strcmp(below, "/"))
            break;
        *slash = '\0';
        end = slash;
    }
}

/* ---- how much ---- */

/* The number in a group's file; UINT64_MAX for "max" and if there is no such file (the root group of version 2 has no limit's
 * file). */
static uint64_t number_read(const char *path, const char *name)
{
    char file[CGROUP_PATH + 32], text[64] = "";
    unsigned long long n;

    (void)snprintf(file, sizeof(file), "%s/%s", path, name);
    FILE *f = fopen(file, "re");
    bool read = f && fgets(text, sizeof(text), f);
    if (f)
        (void)fclose(f);
    if (!read || sscanf(text, "%llu", &n) != 1)
        return UINT64_MAX;
    return n;
}

static uint64_t cache_read(const char *path, const struct names *n)
{
    char file[CGROUP_PATH + 32], line[128], key[64];
    unsigned long long value;
    uint64_t sum = 0;

    (void)snprintf(file, sizeof(file), "%s/memory.stat", path);
    FILE *f = fopen(file, "re");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "%63s %llu", key, &value) == 2 && (!strcmp(key, n->cache[0]) || !strcmp(key, n->cache[1])))
            sum += value;
    if (f)
        (void)fclose(f);
    return sum;
}

/* In version 1 "no limit" is a very large number of bytes. */
static uint64_t limit_read(const struct cgroup *g, int level)
{
    uint64_t n = number_read(g->path[level], names[g->version].limit);

    return n >= INT64_MAX / 2 ? UINT64_MAX : n;
}

uint64_t cgroup_limit(const struct cgroup *g)
{
    uint64_t smallest = UINT64_MAX;

    for (int i = 0; i < g->levels; i++) {
        uint64_t n = limit_read(g, i);
        smallest = n < smallest ? n : smallest;
    }
    return smallest;
}

static int level_check(const struct cgroup *g, int level, uint64_t bytes, uint64_t limit, struct error *e)
{
    const struct names *n = &names[g->version];
    uint64_t used = number_read(g->path[level], n->used), margin = limit / 32 < MARGIN_MAX ? limit / 32 : MARGIN_MAX;

    if (used == UINT64_MAX)
        return 0; /* usage unknown */
    if (bytes <= limit && used <= limit - bytes && margin <= limit - bytes - used)
        return 0;
    uint64_t cache = cache_read(g->path[level], n), busy = cache < used ? used - cache : 0;
    if (bytes <= limit && busy <= limit - bytes && margin <= limit - bytes - busy)
        return 0;
    return error_set(e, -ENOMEM, "memory: %llu bytes: fccd's control group has %llu of the %llu bytes allowed (%s/%s)",
                     (unsigned long long)bytes, (unsigned long long)busy, (unsigned long long)limit, g->path[level], n->limit);
}

int cgroup_check(struct cgroup *g, uint64_t bytes, bool *limited, struct error *e)
{
    int status = 0;

    g->unlooked += bytes;
    if (g->unlooked < LOOK_EVERY)
        return 0;
    *limited = false;
    for (int i = 0; i < g->levels && !status; i++) {
        uint64_t limit = limit_read(g, i);
        if (limit == UINT64_MAX)
            continue;
        *limited = true;
        status = level_check(g, i, bytes, limit, e);
    }
    g->unlooked = 0;
    return status;
}
