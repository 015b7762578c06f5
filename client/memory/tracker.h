/* SPDX-License-Identifier: MIT */
#ifndef FCC_CLIENT_MEMORY_TRACKER_H
#define FCC_CLIENT_MEMORY_TRACKER_H

#include "client/core/context.h"
#include "kernels/gpu/bound.h"

/* The communicator's end, or the connection's: frees what this process has of its tracker, without a word to the worker. The thread that
 * calls the program's functions has ended when this returns. */
void tracker_end(struct fcc_comm *comm);

/* A stream of the program is to count for a rule, or to wait for it: *out gets the addresses of the rule's words on the rank's GPU, which stay
 * valid until the tracker is freed, or the graphs of *comm that have been captured are gone. From now on the worker looks at the rule's
 * count by itself. `called`: the call, for errors. -EINVAL, -EOPNOTSUPP: the rank is on a cpu device. */
int tracker_rule_words(struct fcc_tracker *t, uint32_t rule, const char *called, struct fcc_comm **comm,
                       struct gpu_rule_words *out);

/* The same for a stream that is to work off runs of the rule itself; *work is what a run does. -ENOENT: a buffer of it has been freed. */
int tracker_rule_work(struct fcc_tracker *t, uint32_t rule, const char *called, struct fcc_comm **comm,
                      struct gpu_rule_words *out, struct gpu_rule_work *work);
/* A run of the rule has been captured into a graph, which uses its buffers from now on. */
void tracker_rule_capture(struct fcc_tracker *t, uint32_t rule, struct graphs *graphs);

#endif
