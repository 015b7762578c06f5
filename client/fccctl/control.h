/* SPDX-License-Identifier: MIT
 *
 * control.h - sends queries to the broker and to jobs' workers, and receives the answers as JSON.
 */
#ifndef FCC_CLIENT_FCCCTL_CONTROL_H
#define FCC_CLIENT_FCCCTL_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/fccctl/field.h"
#include "proto/base/error.h"
#include "proto/proto.h"

struct json_object;
struct call;
struct control;
struct flight;

#define CONTROL_LIMIT_MS 10000 /* how long an answer may take */

/* Connects to the broker (job "") or to the worker of uid's job, and greets it, within limit_ms. *out belongs to the caller until
 * control_close(). Errors:
 *   -ECONNREFUSED  no fccd listens at the socket
 *   -EACCES        the caller may not open the socket
 *   -EHOSTDOWN     there is a socket, but nobody answers in time
 * and the daemon's errors, such as -ENOENT (no such job) and -EPERM. */
int control_open(const char *socket, uint32_t uid, const char *job, int limit_ms, struct control **out, struct error *e);
void control_close(struct control *control);

/* Sends `query`, whose msg it fills in, and waits for the answer, at most limit_ms. On success sets *out, which the caller
 * releases with json_object_put(). */
int control_query(struct control *control, struct fcc_query *query, int limit_ms, struct json_object **out, struct error *e);

/* control_open(), one control_query() and control_close(), all within limit_ms. */
int control_ask(const char *socket, uint32_t uid, const char *job, struct fcc_query *query, int limit_ms,
                struct json_object **out, struct error *e);

/* Queries the broker for STATUS (with each job's user name, or ""), DEVICES or NODES. */
int control_ask_broker(const char *socket, enum fcc_query_kind what, struct json_object **out, struct error *e);

/* Asks the broker for the flight recorder of that number. The caller frees *out, whose contents are not to be trusted. */
int control_ask_flight(const char *socket, uint32_t number, struct flight **out, struct error *e);

/* Sets and returns the error -ENOENT: no job matches uid (-1: any) and job (NULL: any). Its text lists the jobs of `answer`,
 * the answer to STATUS. */
int control_job_missing(struct json_object *answer, int64_t uid, const char *job, struct error *e);

/* Finds the one job that matches uid (-1: any) and job (NULL: any). If several match, it is the only one of the caller's own.
 * Otherwise
 * -ENOENT or -EINVAL, with the existing jobs in the text. */
int control_find_job(const char *socket, int64_t uid, const char *job, uint32_t *uid_out, char job_out[FCC_JOB_MAX],
                     struct error *e);

/* Prints the answer, as JSON or with print(), and releases it. Returns EXIT_WELL or EXIT_UNWELL. */
int control_show(const struct call *call, struct json_object *answer, bool well, void (*print)(struct json_object *answer));

/* Prints the error of a query. Returns its exit code: EXIT_UNREACHABLE or EXIT_UNWELL. */
int control_fail(const struct call *call, const struct error *e);

/* ---- answers that several verbs use ---- */

/* Sends COMMS or NODES to every worker that the caller may ask and whose job matches uid (-1: any) and job (NULL: any), to all at
 * the same time. The caller releases *out with json_object_put(). It is {"workers": [each worker's answer], "silent": [{"uid",
 * "job", "error"} of each worker that did not answer]}, in the broker's order of jobs. */
int workers_collect(const char *socket, enum fcc_query_kind what, int64_t uid, const char *job, struct json_object **out,
                    struct error *e);
/* Prints a line for each worker that did not answer. */
void workers_silent_print(struct json_object *answer);

#define COMMS_STUCK_AFTER_S 10.0
/* workers_collect() of COMMS, and "unwell": [{"uid", "job", "comm", "ended", "reason", "awaited"} of each communicator that is aborted, or has
 * waited for ranks for longer than stuck_after_s]. "ended": it is aborted. "awaited": the ranks that have not come to its operator or, of one that has ended, not left it, [{"rank", "pid", "node",
 * "process": what the process does, where it is on this node}]. */
int comms_collect(const char *socket, int64_t uid, const char *job, double stuck_after_s, struct json_object **out,
                  struct error *e);

/* The reasons in the answer to DEVICES why there are no GPUs of that kind (NULL: of any kind): "cuda: ...; hip: ...". "" if it has
 * none. */
struct words devices_why_none(struct json_object *answer, const char *kind);

#endif
