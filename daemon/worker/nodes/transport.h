/* SPDX-License-Identifier: MIT */
#ifndef FCC_DAEMON_WORKER_NODES_TRANSPORT_H
#define FCC_DAEMON_WORKER_NODES_TRANSPORT_H

#include "daemon/net/net.h"

/* What carries a link beside this socket, by the configuration's TRANSPORT and PLUGIN_DIR. NULL with the reason. Auto is verbs
 * where its plug-in is there and the socket's address is one of an RDMA device, otherwise tcp. */
const struct net_ops *net_choose(const char *transport, const char *plugin_dir, int sock, struct error *e);

#endif
