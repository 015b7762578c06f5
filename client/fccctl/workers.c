/* SPDX-License-Identifier: MIT
 *
 * workers.c - sends one query to the workers of all jobs. Each worker is asked by a thread of its own, so that one that hangs
 * does not delay the others' answers.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/fccctl/control.h"
#include "client/fccctl/field.h"
#include "client/fccctl/print.h"

#define WORKER_LIMIT_MS 5000 /* how long a worker's answer may take */

/* The query to one job's worker. Its thread writes answer and error, which are read after the thread has ended. */
struct asked {
    pthread_t thread;
    const char *socket;
    enum fcc_query_kind what;
    struct json_object *job;
    struct json_object *answer; /* NULL: the error has the reason */
    struct error error;
};

static void *worker_ask(void *arg)
{
    struct asked *a = arg;
    struct fcc_query query = {.what = a->what};

    if (control_ask(a->socket, (uint32_t)field_int(a->job, "uid", 0), field_text(a->job, "job"), &query, WORKER_LIMIT_MS,
                    &a->answer, &a->error))
        a->answer = NULL;
    return NULL;
}

/* Adds a worker's answer to `workers`, or its error to `silent`. Leaves out jobs that the caller may not ask, and jobs that
 * have ended meanwhile. */
static void answer_add(struct asked *a, struct json_object *workers, struct json_object *silent)
{
    char text[128];

    if (a->answer) {
        if (*field_text(a->job, "user"))
            JSON_ADD(a->answer, {"user", json_text(field_text(a->job, "user"))});
        (void)json_object_array_add(workers, a->answer);
        return;
    }
    if (a->error.status == -EPERM || a->error.status == -ENOENT)
        return;
    (void)snprintf(text, sizeof(text), "its worker (pid %" PRId64 ") does not answer: it was stopped, or it hangs",
                   field_int(a->job, "pid", 0));
    (void)json_object_array_add(
        silent, JSON_OBJECT({"uid", json_int(field_int(a->job, "uid", 0))}, {"job", json_text(field_text(a->job, "job"))},
                            {"pid", json_int(field_int(a->job, "pid", 0))},
                            {"error", json_text(a->error.status == -EHOSTDOWN ? text : a->error.text)}));
}

/* Starts the queries to all jobs that match: asked[0 .. return value). Each has a running thread; if no thread could be
 * started, it has its answer already, and `thread` is the caller's own. */
static size_t asked_start(struct asked *asked, const char *socket, enum fcc_query_kind what, int64_t uid, const char *job,
                          struct json_object *status)
{
    size_t n = 0;

    for (size_t i = 0; i < field_count(status, "jobs"); i++) {
        struct json_object *j = field_at(status, "jobs", i);
        if ((uid >= 0 && field_int(j, "uid", -1) != uid) || (job && strcmp(field_text(j, "job"), job) != 0))
            continue;
        struct asked *a = &asked[n++];
        *a = (struct asked){.socket = socket, .what = what, .job = j};
        if (pthread_create(&a->thread, NULL, worker_ask, a)) {
            a->thread = pthread_self();
            (void)worker_ask(a);
        }
    }
    return n;
}

int workers_collect(const char *socket, enum fcc_query_kind what, int64_t uid, const char *job, struct json_object **out,
                    struct error *e)
{
    struct json_object *answer, *workers, *silent;
    struct asked *asked;
    size_t n;
    int status = control_ask_broker(socket, FCC_QUERY_STATUS, &answer, e);

    if (status)
        return status;
    asked = calloc(field_count(answer, "jobs") + 1, sizeof(*asked));
    if (!asked) {
        (void)json_object_put(answer);
        return error_set(e, -ENOMEM, "out of memory");
    }
    workers = json_object_new_array();
    silent = json_object_new_array();
    n = asked_start(asked, socket, what, uid, job, answer);
    for (size_t i = 0; i < n; i++) {
        if (!pthread_equal(asked[i].thread, pthread_self()))
            (void)pthread_join(asked[i].thread, NULL);
        answer_add(&asked[i], workers, silent);
    }
    free(asked);
    if (n == 0 && (job || uid >= 0))
        status = control_job_missing(answer, uid, job, e);
    (void)json_object_put(answer);
    if (status) {
        (void)json_object_put(workers);
        (void)json_object_put(silent);
        return status;
    }
    *out = JSON_OBJECT({"workers", workers}, {"silent", silent});
    return 0;
}

void workers_silent_print(struct json_object *answer)
{
    for (size_t i = 0; i < field_count(answer, "silent"); i++) {
        struct json_object *s = field_at(answer, "silent", i);
        print_clean("SILENT: job \"%s\" of uid %" PRId64 ": %s\n", field_text(s, "job"), field_int(s, "uid", -1),
                    field_text(s, "error"));
    }
}
