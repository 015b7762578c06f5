/* SPDX-License-Identifier: MIT
 *
 * peer.h - connections to the job's workers on other nodes.
 */
#ifndef FCCD_PEER_H
#define FCCD_PEER_H

#include "control.h"

struct worker;

/* The broker handed over a connection that another node's worker asked for. Takes the socket. */
void peer_arrived(struct worker *w, const struct control_peer *m, int sock);
/* The broker's answer to a CONNECT: if its status is 0 with the socket, which is taken; otherwise sock is -1. */
void peer_connected(struct worker *w, const struct control_connected *m, int sock);

#endif
