/* SPDX-License-Identifier: MIT
 *
 * cluster.h - what a node is told of the cluster: addresses of nodes, the list of them, the key that all of them have.
 */
#ifndef FCC_DAEMON_COMMON_CLUSTER_H
#define FCC_DAEMON_COMMON_CLUSTER_H

#include <stdbool.h>

#include "daemon/common/config.h"

#define NODES_MAX 4096     /* nodes in NODES */
#define CLUSTER_KEY_MIN 32 /* bytes of the key's file */
#define CLUSTER_KEY_MAX 4096

/* What an address must look like, for error texts. */
#define ADDRESS_ALLOWED "host:port, with an IPv6 address as [address]:port, of at most 63 characters"

struct cluster_key {
    size_t length;
    unsigned char bytes[CLUSTER_KEY_MAX];
};

typedef char node_address[FCC_NODE_MAX];

/* The two parts of an address. -EINVAL if it is none; the parts are then not set. Either may be NULL. */
int address_split(const char *address, char host[FCC_NODE_MAX], char port[6]);
/* Is it an address to listen at that nobody can connect to, as 0.0.0.0:port is? */
bool address_is_any(const char *address);

/* NODES, as a list without duplicates and without this node itself: *out, of *n, to be freed by the caller. -EINVAL with the
 * reason, and with the place in the file if there is one. */
int cluster_nodes_read(const struct config *config, node_address **out, size_t *n, struct error *e);

/* The file CLUSTER_KEY. -EINVAL with the reason: it must be a regular file of 32 to 4096 bytes that only the daemon's user can
 * read. */
int cluster_key_read(const struct config *config, struct cluster_key *out, struct error *e);

/* All that one key alone does not show: what NODE_LISTEN needs, and whether the files can be used. Sets NODE_ADDRESS to what
 * it stands for. */
int cluster_check(struct config *config, struct error *e);

#endif
