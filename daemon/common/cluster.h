/* SPDX-License-Identifier: MIT
 *
 * cluster.h - a node's configuration of the cluster: addresses of nodes, their list, and the key that all of them hold.
 */
#ifndef FCC_DAEMON_COMMON_CLUSTER_H
#define FCC_DAEMON_COMMON_CLUSTER_H

#include <stdbool.h>

#include "daemon/common/config.h"

#define NODES_MAX 4096     /* nodes in NODES */
#define CLUSTER_KEY_MIN 32 /* bytes of the key's file */
#define CLUSTER_KEY_MAX 4096

/* The allowed form of an address, for error texts. */
#define ADDRESS_ALLOWED "host:port, with an IPv6 address as [address]:port, of at most 63 characters"

struct cluster_key {
    size_t length;
    unsigned char bytes[CLUSTER_KEY_MAX];
};

typedef char node_address[FCC_NODE_MAX];

/* Splits an address into host and port; either output may be NULL. Returns 0, or -EINVAL with the outputs not set. */
int address_split(const char *address, char host[FCC_NODE_MAX], char port[6]);

/* Reads NODES into a list without duplicates and without this node. The caller frees *out, which has *n entries; it
 * is NULL if there are none. -EINVAL with the reason, and with file and line if NODES is a file. */
int cluster_nodes_read(const struct config *config, node_address **out, size_t *n, struct error *e);

/* Reads the file CLUSTER_KEY. It must be a regular file of 32 to 4096 bytes that only the daemon's user can read; else -EINVAL
 * with the reason. */
int cluster_key_read(const struct config *config, struct cluster_key *out, struct error *e);

/* Checks settings that depend on each other: what NODE_LISTEN needs, and whether the files can be used. Sets an empty
 * NODE_ADDRESS to NODE_LISTEN. */
int cluster_check(struct config *config, struct error *e);

#endif
