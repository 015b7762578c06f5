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

#endif
