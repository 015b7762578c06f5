/* SPDX-License-Identifier: MIT */
#ifndef FCC_DAEMON_WORKER_NODES_TRANSPORT_H
#define FCC_DAEMON_WORKER_NODES_TRANSPORT_H

#include "daemon/net/net.h"

/* Choose the transport of the link that this socket belongs to, by TRANSPORT and PLUGIN_DIR of the configuration. "auto" is verbs where its
 * plug-in is installed and the socket's address is one of an RDMA device, otherwise tcp. NULL with the reason. */
const struct net_ops *net_choose(const char *transport, const char *plugin_dir, int sock, struct error *e);

#endif
