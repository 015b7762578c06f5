/* SPDX-License-Identifier: MIT
 *
 * local_nodes.h - several private fccds on this machine, each for itself a node, that reach each other over tcp.
 */
#ifndef FCC_CLIENT_FCCCTL_BENCH_LOCAL_NODES_H
#define FCC_CLIENT_FCCCTL_BENCH_LOCAL_NODES_H

#include "client/fccctl/bench/local.h"

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
