/* SPDX-License-Identifier: MIT
 *
 * workers.h - one question to the workers of all jobs.
 */
#ifndef FCC_CLIENT_FCCCTL_WORKERS_H
#define FCC_CLIENT_FCCCTL_WORKERS_H

#include <stdint.h>

#include "proto/base/error.h"
#include "proto/proto.h"

struct json_object;

#define WORKER_LIMIT_MS 5000 /* how long a worker may take with its answer: all are asked at the same time */

/* Ask every worker whose job matches (uid -1 and job NULL: any) and whom the caller may ask: COMMS or NODES. *out, to be put by
 * the caller, is {"workers": [what each worker answered], "silent": [{"uid", "job", "error"} of those that did not]}, in the
 * order in which the broker lists the jobs. */
int workers_collect(const char *socket, enum fcc_query_kind what, int64_t uid, const char *job, struct json_object **out,
                    struct error *e);

#endif
