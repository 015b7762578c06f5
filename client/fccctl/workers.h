/* SPDX-License-Identifier: MIT
 *
 * workers.h - sends one query to the workers of all jobs.
 */
#ifndef FCC_CLIENT_FCCCTL_WORKERS_H
#define FCC_CLIENT_FCCCTL_WORKERS_H

#include <stdint.h>

#include "proto/base/error.h"
#include "proto/proto.h"

struct json_object;

#define WORKER_LIMIT_MS 5000 /* time limit for a worker's answer; all workers are asked at the same time */

/* Sends COMMS or NODES to every worker that the caller may ask and whose job matches uid (-1: any) and job (NULL: any). The
 * caller releases
 * *out with json_object_put(). It is {"workers": [each worker's answer], "silent": [{"uid", "job", "error"} of each worker that
 * did not answer]}, in the broker's order of jobs. */
int workers_collect(const char *socket, enum fcc_query_kind what, int64_t uid, const char *job, struct json_object **out,
                    struct error *e);

/* Prints a line for each worker that did not answer. */
void workers_silent_print(struct json_object *answer);

#endif
