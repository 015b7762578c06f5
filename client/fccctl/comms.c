/* SPDX-License-Identifier: MIT
 *
 * comms.c - the verb comms: the state of each communicator and each rank, and which ranks are missing.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/fccctl/control.h"
#include "client/fccctl/fccctl.h"
#include "client/fccctl/field.h"
#include "client/fccctl/print.h"
#include "proto/base/error.h"

/* Lists the ranks in that state ("1, 3") and returns their number. *others_since_ms: the longest time for which a rank in any
 * other state has waited. */
static int ranks_in_state(struct json_object *comm, const char *state, char *list, size_t room, double *others_since_ms)
{
    size_t used = 0;
    int n = 0;

    list[0] = '\0';
    *others_since_ms = 0;
    for (size_t i = 0; i < field_count(comm, "ranks"); i++) {
        struct json_object *r = field_at(comm, "ranks", i);
        double since = field_double(r, "since_ms", 0);
        if (strcmp(field_text(r, "state"), state) != 0) {
            *others_since_ms = since > *others_since_ms ? since : *others_since_ms;
            continue;
        }
        if (used < room)
            used += (size_t)snprintf(list + used, room - used, "%s%" PRId64, n ? ", " : "", field_int(r, "rank", -1));
        n++;
    }
    return n;
}

/* A run of a prepared operator that has waited for ranks for at least stuck_after_s; NULL: none. */
static struct json_object *run_that_waits(struct json_object *comm, double stuck_after_s)
{
    for (size_t i = 0; i < field_count(comm, "runs"); i++) {
        struct json_object *run = field_at(comm, "runs", i);
        if (field_count(run, "missing") && field_double(run, "since_ms", 0) >= stuck_after_s * 1e3)
            return run;
    }
    return NULL;
}

/* Is this communicator aborted, or waiting for ranks longer than stuck_after_s? If so, the reason in words is in text. */
static bool comm_is_unwell(struct json_object *comm, double stuck_after_s, char *text, size_t room)
{
    struct json_object *current = field_object(comm, "operator");
    const char *state = field_text(comm, "state");
    char list[256], time[FORMAT_ROOM];
    double since_ms;

    if (strcmp(state, "aborted") == 0) {
        (void)snprintf(text, room, "aborted: %s", field_text(comm, "error"));
        return true;
    }
    if (strcmp(state, "forming") == 0) {
        (void)ranks_in_state(comm, "not joined", list, sizeof(list), &since_ms);
        since_ms = field_double(comm, "since_ms", since_ms);
        if (since_ms < stuck_after_s * 1e3)
            return false;
        bool joined = field_count(comm, "missing_nodes") > 0;
        (void)snprintf(text, room, "for %s it has waited for %s: %s", format_duration(since_ms / 1e3, time),
                       joined ? "nodes to be ready" : "ranks to join",
                       joined ? field_list(comm, "missing_nodes", list, sizeof(list)) : list);
        return true;
    }
    struct json_object *run = run_that_waits(comm, stuck_after_s);
    if (run) {
        (void)snprintf(text, room, "in %s (prepared %" PRId64 ") run %" PRId64 " for %s it has waited for ranks: %s",
                       field_text(run, "op"), field_int(run, "prepared", 0), field_int(run, "run", 0),
                       format_duration(field_double(run, "since_ms", 0) / 1e3, time),
                       field_list(run, "missing", list, sizeof(list)));
        return true;
    }
    since_ms = field_double(current, "since_ms", 0);
    if (!current || field_count(current, "missing") == 0 || since_ms < stuck_after_s * 1e3)
        return false;
    (void)snprintf(text, room, "in %s #%" PRId64 " for %s it has waited for ranks: %s", field_text(current, "op"),
                   field_int(current, "number", 0), format_duration(since_ms / 1e3, time),
                   field_list(current, "missing", list, sizeof(list)));
    return true;
}

static void missing_print(struct json_object *op)
{
    size_t n = field_count(op, "missing");
    char list[256];

    if (n)
        printf(", MISSING: rank%s %s", n > 1 ? "s" : "", field_list(op, "missing", list, sizeof(list)));
}

/* Prints one line: number, size, state, operator, duration, missing ranks. */
static void comm_headline(struct json_object *comm)
{
    struct json_object *current = field_object(comm, "operator");
    char list[256], time[FORMAT_ROOM];
    const char *state = field_text(comm, "state");
    double since_ms;

    print_clean("  communicator %" PRId64 ": %" PRId64 " ranks, %s", field_int(comm, "comm", 0), field_int(comm, "nranks", 0),
                state);
    if (strcmp(state, "forming") == 0 && ranks_in_state(comm, "not joined", list, sizeof(list), &since_ms) > 0)
        printf(", NOT JOINED: %s", list);
    if (field_count(comm, "missing_nodes"))
        printf(", NODES NOT READY: %s", field_list(comm, "missing_nodes", list, sizeof(list)));
    if (*field_text(comm, "error"))
        print_clean(": %s", field_text(comm, "error"));
    if (current) {
        print_clean(", %s in %s #%" PRId64 " for %s",
                    strcmp(field_text(current, "state"), "waiting") == 0 ? "waiting" : "running", field_text(current, "op"),
                    field_int(current, "number", 0), format_duration(field_double(current, "since_ms", -1e3) / 1e3, time));
        missing_print(current);
    } else if (strcmp(state, "active") == 0) {
        printf(", in no operator");
    }
    printf("; %" PRId64 " operators so far", field_int(comm, "operators", 0));
    if (field_int(comm, "bound", 0))
        printf(", %" PRId64 " of them launched by its ranks", field_int(comm, "bound", 0));
    printf("\n");
}

/* Prints a line for each prepared operator that has an unfinished run. */
static void runs_print(struct json_object *comm)
{
    char time[FORMAT_ROOM];

    for (size_t i = 0; i < field_count(comm, "runs"); i++) {
        struct json_object *run = field_at(comm, "runs", i);
        print_clean("    prepared %" PRId64 ": %s, run %" PRId64 " for %s", field_int(run, "prepared", 0),
                    field_text(run, "op"), field_int(run, "run", 0),
                    format_duration(field_double(run, "since_ms", 0) / 1e3, time));
        missing_print(run);
        printf("\n");
    }
}

static bool over_nodes(struct json_object *comm)
{
    for (size_t i = 0; i < field_count(comm, "ranks"); i++)
        if (*field_text(field_at(comm, "ranks", i), "node"))
            return true;
    return false;
}

static void comm_print(struct json_object *comm)
{
#define RANK_COLUMNS ">PID=pid|>DEVICE=device|STATE=state|OPERATOR=op #number|>SINCE=since_ms|>QUEUED=queued"
    comm_headline(comm);
    runs_print(comm);
    table_of(comm, "ranks", over_nodes(comm) ? ">RANK=rank|NODE=node|" RANK_COLUMNS : ">RANK=rank|" RANK_COLUMNS, "    ");
}

static void worker_print(struct json_object *worker)
{
    char uid[32];

    (void)snprintf(uid, sizeof(uid), "uid %" PRId64, field_int(worker, "uid", -1));
    print_clean("job \"%s\" of %s, worker %" PRId64 "%s\n", field_text(worker, "job"),
                *field_text(worker, "user") ? field_text(worker, "user") : uid, field_int(worker, "pid", 0),
                field_count(worker, "comms") ? "" : ": no communicators");
    for (size_t i = 0; i < field_count(worker, "comms"); i++)
        comm_print(field_at(worker, "comms", i));
}

/* The communicators in trouble, as JSON. */
static struct json_object *troubles(struct json_object *all, double stuck_after_s)
{
    struct json_object *list = json_object_new_array();
    char text[FCC_TEXT_MAX + 256];

    for (size_t w = 0; w < field_count(all, "workers"); w++) {
        struct json_object *worker = field_at(all, "workers", w);
        for (size_t i = 0; i < field_count(worker, "comms"); i++) {
            struct json_object *comm = field_at(worker, "comms", i);
            if (!comm_is_unwell(comm, stuck_after_s, text, sizeof(text)))
                continue;
            (void)json_object_array_add(list, JSON_OBJECT({"uid", json_int(field_int(worker, "uid", -1))},
                                                          {"job", json_text(field_text(worker, "job"))},
                                                          {"comm", json_int(field_int(comm, "comm", 0))},
                                                          {"reason", json_text(text)}));
        }
    }
    return list;
}

static void comms_print(struct json_object *all)
{
    for (size_t i = 0; i < field_count(all, "workers"); i++)
        worker_print(field_at(all, "workers", i));
    if (!field_count(all, "workers") && !field_count(all, "silent"))
        printf("no jobs\n");
    workers_silent_print(all);
    for (size_t i = 0; i < field_count(all, "unwell"); i++) {
        struct json_object *t = field_at(all, "unwell", i);
        print_clean("UNWELL: job \"%s\" of uid %" PRId64 ", communicator %" PRId64 ": %s\n", field_text(t, "job"),
                    field_int(t, "uid", -1), field_int(t, "comm", 0), field_text(t, "reason"));
    }
}

int comms_collect(const char *socket, int64_t uid, const char *job, double stuck_after_s, struct json_object **out,
                  struct error *e)
{
    int status = workers_collect(socket, FCC_QUERY_COMMS, uid, job, out, e);

    if (!status)
        JSON_ADD(*out, {"unwell", troubles(*out, stuck_after_s)});
    return status;
}

int verb_comms(struct call *call)
{
    int64_t uid = -1;
    const char *job = NULL;
    double stuck_after = COMMS_STUCK_AFTER_S;
    const struct arg args[] = {
        {"job", 0, ARG_TEXT, &job, 0, 0, NULL, "JOB", "only this job [all that you may see]"},
        {"uid", 0, ARG_INT, &uid, 0, UINT32_MAX - 1, NULL, "UID", "only this user's jobs"},
        {"stuck-after", 0, ARG_NUMBER, &stuck_after, 0, 1000000, NULL, "SECONDS", "how long ranks may wait for others [10]"},
    };
    struct json_object *all = NULL;
    struct error e;

    if (!args_parse(call, args, sizeof(args) / sizeof(args[0]), 0))
        return call->exit;
    if (comms_collect(call->socket, uid, job, stuck_after, &all, &e))
        return control_fail(call, &e);
    return control_show(call, all, !field_count(all, "unwell") && !field_count(all, "silent"), comms_print);
}
