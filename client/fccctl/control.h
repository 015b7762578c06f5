/* SPDX-License-Identifier: MIT
 *
 * control.h - ask the broker, or the worker of a job, a question and get its answer as JSON.
 */
#ifndef FCC_CLIENT_FCCCTL_CONTROL_H
#define FCC_CLIENT_FCCCTL_CONTROL_H

#include <stdint.h>

#include "proto/base/error.h"
#include "proto/proto.h"

struct json_object;
struct control;

#define CONTROL_LIMIT_MS 10000 /* how long an answer may take */

/* Connect to the broker (job "") or to the worker of uid's job. *out belongs to the caller until control_close(). Errors:
 *   -ECONNREFUSED  no fccd listens at the socket
 *   -EACCES        the caller may not open the socket
 *   -EHOSTDOWN     the socket is there, but nobody answers in CONTROL_LIMIT_MS
 * and whatever the daemon answers, among it -ENOENT (no such job) and -EPERM. */
int control_open(const char *socket, uint32_t uid, const char *job, struct control **out, struct error *e);
void control_close(struct control *control);

/* Ask `query`, whose msg is filled in here, and wait at most limit_ms. *out (to be put by the caller) is set on success. */
int control_query(struct control *control, struct fcc_query *query, int limit_ms, struct json_object **out, struct error *e);

/* control_open(), one query, control_close(): all within limit_ms. */
int control_ask(const char *socket, uint32_t uid, const char *job, struct fcc_query *query, int limit_ms,
                struct json_object **out, struct error *e);

/* STATUS (each job with its user's name, or ""), DEVICES or NODES from the broker. */
int control_ask_broker(const char *socket, enum fcc_query_kind what, struct json_object **out, struct error *e);

/* -ENOENT with what was asked for (uid -1, job NULL: any), and the jobs that there are, as STATUS has answered. */
int control_job_missing(struct json_object *answer, int64_t uid, const char *job, struct error *e);

/* The job that the caller means: uid -1 and job NULL mean any. One that matches, or the only one of the caller's own among
 * several; else -ENOENT or -EINVAL with the jobs that there are. */
int control_find_job(const char *socket, int64_t uid, const char *job, uint32_t *uid_out, char job_out[FCC_JOB_MAX],
                     struct error *e);

/* The exit code for an error: EXIT_UNREACHABLE or EXIT_UNWELL. */
int control_exit(const struct error *e);

#endif
