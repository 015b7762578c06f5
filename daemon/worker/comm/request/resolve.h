/* SPDX-License-Identifier: MIT
 *
 * resolve.h - the tensors of a copied request are resolved to buffers, and the request is checked.
 *
 * A client names its memory by handles of buffers and offsets. Here each tensor gets its address in this process, and a reference to its
 * buffer. Every element of a resolved tensor lies in that buffer. A tensor of a rank on another node gets an address in the rank's bounce
 * buffer (bounce.h).
 */
#ifndef FCC_DAEMON_WORKER_COMM_REQUEST_RESOLVE_H
#define FCC_DAEMON_WORKER_COMM_REQUEST_RESOLVE_H

#include "daemon/worker/comm/comm.h"

/* Fill in sub->args and sub->buffers from *m, whose length has been checked. remote: what another node's worker says of the buffers of its
 * rank; NULL: the rank is on this node. 0, or a negative errno value with the reason: the submission must not run then. It holds the buffers
 * found so far, and submission_free() releases them. */
int submission_resolve(struct submission *sub, const struct member *member, const struct fcc_submit *m,
                       const struct remote_request *remote, struct error *e);

#endif
