/* SPDX-License-Identifier: MIT
 *
 * local.h - private fccds, each in a directory of its own, for as long as the caller needs them.
 */
#ifndef FCC_CLIENT_FCCCTL_BENCH_LOCAL_H
#define FCC_CLIENT_FCCCTL_BENCH_LOCAL_H

#include <sched.h>
#include <stdbool.h>
#include <sys/types.h>

#include "proto/base/error.h"
#include "proto/proto.h"

struct local_options {
    int devices;           /* cpu devices, 1 or more */
    const char *gpus;      /* fccd.conf's GPUS; NULL: "none" */
    const char *binary;    /* fccd; NULL: local_find_daemon() */
    const char *log_level; /* NULL: "warning" */
    const char *listen;    /* fccd.conf's NODE_LISTEN and CLUSTER_KEY; NULL: fccd speaks to no other node */
    const char *key;
    const cpu_set_t *cores; /* cores that fccd may use; NULL: all of the caller's */
};

struct local_daemon {
    pid_t pid;
    char directory[96]; /* mode 0700 */
    char socket[112];
    bool terminated; /* SIGTERM was sent */
};

/* Starts fccd and waits until it takes connections. On success the caller stops *out with local_daemon_stop(); on failure
 * nothing is left. The daemon has its own process group, and ends if the caller ends. The directory is in $TMPDIR or /tmp. */
int local_daemon_start(const struct local_options *options, struct local_daemon *out, struct error *e);

/* Sends SIGTERM, and SIGKILL after ten seconds; removes the directory. Returns 0, -ETIMEDOUT (the daemon was killed) or
 * -EIO (it ended with an error), with the reason. */
int local_daemon_stop(struct local_daemon *daemon, struct error *e);

/* Finds fccd: $FCCD_BINARY, beside this program, or in $PATH. 0, or -ENOENT. */
int local_find_daemon(char *out, size_t room, struct error *e);

#define LOCAL_NODES_MAX 64 /* as many as a communicator may be on */

/* Several private fccds on this machine. Each is a node of its own; they reach each other over tcp. */
struct local_nodes {
    int n;
    char directory[96]; /* has the cluster's key; "" for a single node, which has no key */
    struct local_daemon daemons[LOCAL_NODES_MAX];
    char addresses[LOCAL_NODES_MAX][FCC_NODE_MAX]; /* "" for a single node */
};

/* Starts n daemons, daemon i with options[i]. `listen`, `key`, `cores` and (unless set) `log_level` of the options are set
 * here. Makes a key, and divides the caller's cores among the daemons if there is one for each. On success the caller stops
 * *out with local_nodes_stop(); on failure nothing is left. */
int local_nodes_start(struct local_options options[], int n, struct local_nodes *out, struct error *e);

/* Stops all daemons as local_daemon_stop() does. Returns the first error. */
int local_nodes_stop(struct local_nodes *nodes, struct error *e);

#endif
