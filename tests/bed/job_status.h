/* SPDX-License-Identifier: MIT
 *
 * job_status.h - what the broker says of a job, and connections to a job of a name.
 */
#ifndef FCC_TEST_JOB_STATUS_H
#define FCC_TEST_JOB_STATUS_H

#include <json-c/json.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/bed/raw.h"

static inline struct fcc_hello hello_job(const char *job, uint32_t role)
{
    struct fcc_hello h = hello_make();

    h.role = role;
    h.uid = role == FCC_ROLE_CONTROL ? geteuid() : UINT32_MAX;
    (void)snprintf(h.job, sizeof(h.job), "%s", job);
    return h;
}

/* A connection that has said its HELLO. */
static inline struct raw *job_connect_raw(const struct test_daemon *d, const char *job, uint32_t role)
{
    struct raw *r = raw_open(d);
    struct fcc_hello h = hello_job(job, role);

    raw_send(r, &h, sizeof(h), NULL, 0);
    return r;
}

/* ... and has been answered; *out is the answer's status. */
static inline struct raw *job_open_raw(const struct test_daemon *d, const char *job, uint32_t role, int *out)
{
    struct raw *r = job_connect_raw(d, job, role);

    *out = raw_receive(r)->status;
    return r;
}

/* A number that the broker knows of this user's job; -1: it knows of no such job. */
static inline int64_t job_number(const struct test_daemon *d, const char *job, const char *what)
{
    struct fcc_query q = {.msg = {.length = sizeof(q), .type = FCC_MSG_QUERY, .id = 2}, .what = FCC_QUERY_STATUS};
    struct json_object *jobs, *name, *number;
    char text[65536];
    int64_t found = -1;
    int status;
    struct raw *r = job_open_raw(d, "", FCC_ROLE_CONTROL, &status);

    CHECK(status == 0);
    raw_send(r, &q, sizeof(q), NULL, 0);
    CHECK(msg_recv(r->sock, r->in, sizeof(r->in), 0, r->fds, &r->nfds) == sizeof(struct fcc_reply) && r->nfds == 1);
    ssize_t n = pread(r->fds[0], text, sizeof(text) - 1, 0);
    CHECK(n > 0);
    text[n] = '\0';
    struct json_object *o = json_tokener_parse(text);
    CHECK(o && json_object_object_get_ex(o, "jobs", &jobs));
    for (size_t i = 0; i < json_object_array_length(jobs); i++) {
        struct json_object *j = json_object_array_get_idx(jobs, i);
        CHECK(json_object_object_get_ex(j, "job", &name) && json_object_object_get_ex(j, what, &number));
        if (!strcmp(json_object_get_string(name), job))
            found = json_object_get_int64(number);
    }
    (void)json_object_put(o);
    (void)close(r->fds[0]);
    raw_close(r);
    return found;
}

/* It becomes that. A job that is no more, as its last client has gone and its worker, too, has nothing. */
static inline void job_await(const struct test_daemon *d, const char *job, const char *what, int64_t wanted)
{
    int64_t is = -1;

    for (double until = await_end(); (is = job_number(d, job, what)) != wanted && (is >= 0 || wanted); (void)usleep(5000))
        if (now_ms() > until)
            check_failed(__FILE__, __LINE__, "job %s: %s: %lld: expected %lld", job, what, (long long)is, (long long)wanted);
}

#endif
