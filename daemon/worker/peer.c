/* SPDX-License-Identifier: MIT
 *
 * peer.c - PLACEHOLDER, to be replaced by the worker's side of connections between nodes: it takes none.
 */
#include "peer.h"

#include <unistd.h>

#include "log.h"

void peer_arrived(struct worker *w, const struct control_peer *m, int sock)
{
    (void)w;
    log_warning("node %s: a connection for purpose %u is closed: this worker takes none", m->address, m->purpose);
    (void)close(sock);
}

void peer_connected(struct worker *w, const struct control_connected *m, int sock)
{
    (void)w;
    log_warning("a connection that was not asked for, of status %d, is closed", m->status);
    if (sock >= 0)
        (void)close(sock);
}
