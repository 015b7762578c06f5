/* SPDX-License-Identifier: MIT
 *
 * drain.c - the verb drain: ends jobs gently, and waits until their workers have ended.
 */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

#include "client/fccctl/control.h"
#include "client/fccctl/fccctl.h"
#include "client/fccctl/field.h"
#include "proto/base/error.h"
#include "proto/base/fd.h"

#define LATE_MS 2000 /* after the time that the daemon names a worker kills itself */

/* Waits for the end of a process, within the time that is left. False: it runs on. */
static bool ended_within(int process, int *left_ms)
{
    struct pollfd p = {.fd = process, .events = POLLIN};
    int ms = 0;

    while (poll(&p, 1, *left_ms > 50 ? 50 : *left_ms) == 0 && *left_ms > 0) {
        *left_ms -= *left_ms > 50 ? 50 : *left_ms;
        ms += 50;
    }
    return p.revents != 0;
}

/* Adds "ended" to each job of the answer. A worker that this process cannot see (in another container) counts as ended. Returns how many have not. */
static int workers_await(struct json_object *answer)
{
    size_t n = field_count(answer, "jobs");
    int *processes = calloc(n + 1, sizeof(*processes)), left_ms = (int)field_int(answer, "limit_ms", 0) + LATE_MS, left = 0;

    if (!processes)
        return 0;
    for (size_t i = 0; i < n; i++)
        processes[i] = pidfd_open((pid_t)field_int(field_at(answer, "jobs", i), "pid", 0), 0);
    for (size_t i = 0; i < n; i++) {
        bool ended = processes[i] < 0 || ended_within(processes[i], &left_ms);
        left += !ended;
        JSON_ADD(field_at(answer, "jobs", i), {"ended", json_object_new_boolean(ended)});
        fd_close(&processes[i]);
    }
    free(processes);
    return left;
}

static void drain_print(struct json_object *answer)
{
    if (!field_count(answer, "jobs"))
        printf("there are no jobs\n");
    for (size_t i = 0; i < field_count(answer, "jobs"); i++) {
        struct json_object *job = field_at(answer, "jobs", i);
        print_clean("job \"%s\" of uid %" PRId64 ": worker %" PRId64 " %s\n", field_text(job, "job"), field_int(job, "uid", 0),
                    field_int(job, "pid", 0), field_bool(job, "ended") ? "has ended" : "HAS NOT ENDED");
    }
}

int verb_drain(struct call *call)
{
    int64_t uid = -1;
    const struct arg args[] = {
        {"uid", 0, ARG_INT, &uid, 0, UINT32_MAX - 1, NULL, "UID", "whose jobs [all that are yours, and for root everybody's]"},
    };
    struct fcc_query query = {.what = FCC_QUERY_DRAIN};
    struct json_object *answer = NULL;
    struct error e;

    if (!args_parse(call, args, sizeof(args) / sizeof(args[0]), 1))
        return call->exit;
    const char *job = call->noperands ? call->operands[0] : "";
    if (call->noperands && !*job) /* a script's variable that is not set: it does not mean all of them */
        return verb_error(call, EXIT_USAGE, "JOB: must not be empty");
    if (strlen(job) >= FCC_JOB_MAX)
        return verb_error(call, EXIT_USAGE, "JOB: \"%s\": longer than %d characters", job, FCC_JOB_MAX - 1);
    query.comm = uid < 0 ? UINT32_MAX : (uint32_t)uid;
    (void)snprintf(query.text, sizeof(query.text), "%s", job);
    if (control_ask(call->socket, 0, "", &query, CONTROL_LIMIT_MS, &answer, &e))
        return control_fail(call, &e);
    int left = workers_await(answer);
    return control_show(call, answer, left == 0, drain_print);
}
