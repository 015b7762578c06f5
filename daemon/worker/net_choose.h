/* SPDX-License-Identifier: MIT */
#ifndef FCCD_NET_CHOOSE_H
#define FCCD_NET_CHOOSE_H

#include "net.h"

/* What carries a link beside this socket, by the configuration's TRANSPORT and PLUGIN_DIR. NULL with the reason. Auto is verbs
 * where its plug-in is there and the socket's address is one of an RDMA device, otherwise tcp. */
const struct net_ops *net_choose(const char *transport, const char *plugin_dir, int sock, struct error *e);

#endif
