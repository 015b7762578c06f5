/* SPDX-License-Identifier: MIT */
#include "proto/variables.h"

#include <string.h>
#include <unistd.h>

#define NAME_MAX_BYTES 64 /* bytes of a name with its NUL; of a longer name only the beginning is compared */

static const char *const known[] = {
    /* the library */
    "FCCD_SOCKET",
    "FCCD_JOB",
    "FCC_MEETING",
    "FCC_RANK",
    "FCC_SIZE",
    "FCC_LOCAL_RANK",
    "FCC_FUSED",
    "FCC_PLUGIN_DIR",
    /* fccctl */
    "FCCD_BINARY",
    /* the Python package */
    "FCC_LIBRARY",
    "FCC_HEAP_BYTES",
    /* the daemon: its configuration's keys, as in daemon/common/config.h (tests/proto/test_variables.c compares them) */
    "FCCD_CPU_DEVICES",
    "FCCD_CPU_WORKGROUPS",
    "FCCD_TIME_LIMIT_MS",
    "FCCD_MEMORY_PER_USER_MB",
    "FCCD_MEMORY_PER_JOB_MB",
    "FCCD_GPU_MEMORY_PER_USER_MB",
    "FCCD_GPU_MEMORY_PER_JOB_MB",
    "FCCD_COMMS_PER_USER",
    "FCCD_COMMS_PER_JOB",
    "FCCD_OPERATORS_PER_USER",
    "FCCD_OPERATORS_PER_JOB",
    "FCCD_STREAMS_PER_USER",
    "FCCD_STREAMS_PER_JOB",
    "FCCD_USER_WEIGHTS",
    "FCCD_JOBS_PER_USER",
    "FCCD_CONNECTIONS_PER_JOB",
    "FCCD_CONNECTIONS_PER_USER",
    "FCCD_SPIN_US",
    "FCCD_WORKER_IDLE_MS",
    "FCCD_SILENCE_MS",
    "FCCD_DRAIN_MS",
    "FCCD_ADOPT_SECONDS",
    "FCCD_SOCKET_GROUP",
    "FCCD_GPUS",
    "FCCD_GPU_SHARING",
    "FCCD_GPU_BEGIN",
    "FCCD_GPU_BIND",
    "FCCD_GPU_TURNS",
    "FCCD_GPU_COMPILER",
    "FCCD_CODE_CACHE",
    "FCCD_PLUGIN_DIR",
    "FCCD_NODE_LISTEN",
    "FCCD_NODE_ADDRESS",
    "FCCD_NODES",
    "FCCD_TRANSPORT",
    "FCCD_RAILS",
    "FCCD_RAIL_NETWORKS",
    "FCCD_CLUSTER_KEY",
    "FCCD_LOG_LEVEL",
    "FCCD_LOG_FORMAT",
    "FCCD_LOG_FILE",
    "FCCD_PID_FILE",
    "FCCD_SECCOMP",
    "FCCD_METRICS_LISTEN",
    "FCCD_HOLD_FILE",
};
#define KNOWN (sizeof(known) / sizeof(known[0]))

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Weights of the edits that turn `name` into a known name. Missing characters are the likeliest mistake ("FCCD_MEMORY_MB"),
 * surplus characters the least likely one. */
enum { SWAP = 1, INSERT = 1, REPLACE = 2, DELETE = 3 };

/* The Damerau-Levenshtein distance with these weights, in its restricted form (no part is edited twice). Three rows of its
 * table suffice. */
static unsigned distance(const char *name, const char *to)
{
    unsigned rows[3][NAME_MAX_BYTES] = {{0}};
    size_t n = strnlen(name, NAME_MAX_BYTES - 1), m = strnlen(to, NAME_MAX_BYTES - 1);

    for (unsigned j = 0; j <= m; j++)
        rows[0][j] = j * INSERT;
    for (size_t i = 1; i <= n; i++) {
        unsigned *row = rows[i % 3];
        const unsigned *before = rows[(i + 2) % 3], *two_before = rows[(i + 1) % 3];
        row[0] = (unsigned)i * DELETE;
        for (size_t j = 1; j <= m; j++) {
            row[j] = least(before[j] + DELETE, row[j - 1] + INSERT);
            row[j] = least(row[j], before[j - 1] + (name[i - 1] == to[j - 1] ? 0 : REPLACE));
            if (i > 1 && j > 1 && name[i - 1] == to[j - 2] && name[i - 2] == to[j - 1])
                row[j] = least(row[j], two_before[j - 2] + SWAP);
        }
    }
    return rows[n % 3][m];
}

const char *name_nearest(const char *name, const char *const names[], size_t n)
{
    const char *nearest = NULL;
    unsigned fewest = ~0u;

    for (size_t i = 0; i < n; i++) {
        unsigned d = distance(name, names[i]);
        if (d < fewest) {
            fewest = d;
            nearest = names[i];
        }
    }
    return nearest;
}

const char *const *variables_known(size_t *n)
{
    *n = KNOWN;
    return known;
}

static int is_known(const char *name)
{
    for (size_t i = 0; i < KNOWN; i++)
        if (!strcmp(name, known[i]))
            return 1;
    return !strncmp(name, "FCC_TEST_", strlen("FCC_TEST_"));
}

void variables_check(void (*found)(const char *name, const char *nearest))
{
    char name[NAME_MAX_BYTES];

    for (char **e = environ; e && *e; e++) {
        size_t length = strcspn(*e, "=");
        if (strncmp(*e, "FCC_", 4) != 0 && strncmp(*e, "FCCD_", 5) != 0)
            continue;
        if (length >= sizeof(name))
            length = sizeof(name) - 1;
        memcpy(name, *e, length);
        name[length] = '\0';
        if (!is_known(name))
            found(name, name_nearest(name, known, KNOWN));
    }
}
