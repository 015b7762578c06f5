/* SPDX-License-Identifier: MIT
 *
 * local.h - a private fccd, in a directory of its own, for as long as the caller wants it.
 */
#ifndef FCC_CLIENT_FCCCTL_BENCH_LOCAL_H
#define FCC_CLIENT_FCCCTL_BENCH_LOCAL_H

#include <sched.h>
#include <stdbool.h>
#include <sys/types.h>

#include "proto/base/error.h"
#include "proto/proto.h"

#define LOCAL_LIMIT_MS 10000 /* how long it may take to start, and to end */

struct local_options {
    int devices;           /* cpu devices, 1 or more */
    const char *gpus;      /* fccd.conf's GPUS; NULL: "none" */
    const char *binary;    /* fccd; NULL: local_find_daemon() */
    const char *log_level; /* NULL: "warning" */
    const char *listen;    /* fccd.conf's NODE_LISTEN, and CLUSTER_KEY; NULL: it speaks to no other node */
    const char *key;
    const cpu_set_t *cores; /* NULL: all that the caller may use */
};

struct local_daemon {
    pid_t pid;
    char directory[96]; /* mode 0700 */
    char socket[112];
    bool terminated; /* has got its SIGTERM */
};

/* Start fccd and wait until it takes connections. On success *out is to be stopped with local_daemon_stop(); on failure nothing
 * is left. The daemon is in a process group of its own, and ends if the caller does. The directory lies in $TMPDIR or /tmp. */
int local_daemon_start(const struct local_options *options, struct local_daemon *out, struct error *e);

/* SIGTERM, then SIGKILL after LOCAL_LIMIT_MS, and remove the directory. 0, or -ETIMEDOUT if it had to be killed, or -EIO if it
 * ended badly; in words in e. */
int local_daemon_stop(struct local_daemon *daemon, struct error *e);

/* Only the SIGTERM: for several that are to end at the same time. */
void local_daemon_terminate(struct local_daemon *daemon);

/* A directory of mode 0700 in $TMPDIR or /tmp; to be removed, with the files in it. */
int local_directory_make(char out[96], struct error *e);
void local_directory_remove(const char *path); /* "": there is none */

/* Where fccd is: $FCCD_BINARY, or beside this program, or in $PATH. 0, or -ENOENT. */
int local_find_daemon(char *out, size_t room, struct error *e);

/* Several private fccds on this machine, each for itself a node, that reach each other over tcp. */
struct local_nodes {
    int n;
    char directory[96]; /* of the cluster's key; "" for a single node, which has none */
    struct local_daemon daemons[FCC_MAX_RANKS];
    char addresses[FCC_MAX_RANKS][FCC_NODE_MAX]; /* "": a single node's */
};

/* Start n daemons, the i-th with options[i], whose `listen`, `key`, `cores` and (unless set) `log_level` are set here. A key is made for them, and the cores
 * of the caller are shared out among them if there are enough for one each. On success *out is to be stopped with
 * local_nodes_stop(); on failure nothing is left. */
int local_nodes_start(struct local_options options[], int n, struct local_nodes *out, struct error *e);

/* As local_daemon_stop(), all of them; the first error. */
int local_nodes_stop(struct local_nodes *nodes, struct error *e);

/* The cores of node `index` of n: a share of this process's own, or all of them if there are fewer than n. 0 or a negative errno. */
int local_cores(int index, int n, cpu_set_t *out);

#endif
