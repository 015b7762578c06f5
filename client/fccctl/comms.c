/* SPDX-License-Identifier: MIT
 *
 * comms.c - queries to the workers of all jobs, and the verb comms: the state of each communicator and each rank, which ranks
 * are missing, and what their processes do meanwhile. Each worker is asked by a thread of its own, so that one that hangs does not delay the others' answers.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/fccctl/control.h"
#include "client/fccctl/fccctl.h"
#include "client/fccctl/field.h"
#include "proto/base/error.h"

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

/* ---- communicators ---- */

/* The ranks that have not joined ("1, 3"). *others_since_ms: the longest time for which another rank has waited. */
static struct words ranks_missing(struct json_object *comm, double *others_since_ms)
{
    struct words list = {""};

    *others_since_ms = 0;
    for (size_t i = 0; i < field_count(comm, "ranks"); i++) {
        struct json_object *r = field_at(comm, "ranks", i);
        double since = field_double(r, "since_ms", 0);
        if (strcmp(field_text(r, "state"), "not joined") == 0)
            words_add(&list, "%s%" PRId64, *list.text ? ", " : "", field_int(r, "rank", -1));
        else
            *others_since_ms = since > *others_since_ms ? since : *others_since_ms;
    }
    return list;
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

/* What the kernel says that a user's process on this node does. "": nothing can be said: it is gone, or the number is another process's in the
 * namespace from which fccctl looks. */
static const char *process_state(int64_t pid, int64_t uid)
{
    struct words path = words("/proc/%" PRId64, pid);
    char line[512] = "";
    struct stat st;
    FILE *file;

    if (stat(path.text, &st) || (int64_t)st.st_uid != uid || !(file = fopen(words("%s/stat", path.text).text, "re")))
        return "";
    if (!fgets(line, sizeof(line), file))
        *line = '\0';
    (void)fclose(file);
    const char *behind = strrchr(line, ')'); /* of the program's name, which may contain anything */
    switch (behind && behind[1] ? behind[2] : '\0') {
    case 'T':
    case 't':
        return "stopped";
    case 'D':
        return "waiting for a disk or a file system";
    case 'Z':
    case 'X':
        return "dead";
    case 'R':
        return "computing";
    case 'S':
        return "asleep";
    default:
        return "";
    }
}

/* Adds a rank as {"rank", "pid", "node", "process"}. The last two are empty where all ranks are on this node, and where the rank is on another. */
static void rank_add(struct json_object *list, struct json_object *worker, struct json_object *r, int64_t rank)
{
    int64_t pid = field_int(r, "pid", 0);
    bool is_here = field_int(r, "device", -1) >= 0; /* a worker knows the devices of its own node's ranks */

    (void)json_object_array_add(
        list, JSON_OBJECT({"rank", json_int(rank)}, {"pid", json_int(pid)}, {"node", json_text(field_text(r, "node"))},
                          {"process", json_text(is_here ? process_state(pid, field_int(worker, "uid", -1)) : "")}));
}

/* The ranks for which the communicator waits: those that have not come to `op`, its operator or a run (NULL: none), or, once it is aborted, those
 * that have not left it. */
static struct json_object *ranks_awaited(struct json_object *worker, struct json_object *comm, struct json_object *op)
{
    struct json_object *list = json_object_new_array();

    if (strcmp(field_text(comm, "state"), "aborted") == 0) {
        for (size_t i = 0; i < field_count(comm, "ranks"); i++) {
            struct json_object *r = field_at(comm, "ranks", i);
            if (field_int(r, "pid", 0) && strcmp(field_text(r, "state"), "left") != 0)
                rank_add(list, worker, r, field_int(r, "rank", -1));
        }
        return list;
    }
    for (size_t i = 0; i < field_count(op, "missing"); i++) {
        int64_t rank = json_object_get_int64(field_at(op, "missing", i));
        rank_add(list, worker, rank < 0 ? NULL : field_at(comm, "ranks", (size_t)rank), rank);
    }
    return list;
}

/* "1 (pid 4711, stopped), 3 (pid 4713 on 192.0.2.7:7700)" */
static struct words awaited_words(struct json_object *awaited)
{
    struct words list = {""};

    for (size_t i = 0; i < json_object_array_length(awaited); i++) {
        struct json_object *r = json_object_array_get_idx(awaited, i);
        words_add(&list, "%s%" PRId64, i ? ", " : "", field_int(r, "rank", -1));
        if (field_int(r, "pid", 0))
            words_add(&list, " (pid %" PRId64 "%s%s%s%s)", field_int(r, "pid", 0), *field_text(r, "node") ? " on " : "",
                      field_text(r, "node"), *field_text(r, "process") ? ", " : "", field_text(r, "process"));
    }
    return list;
}

/* What the communicator waits for for longest: a run, or its operator. NULL: nothing for stuck_after_s. */
static struct json_object *what_waits(struct json_object *comm, double stuck_after_s)
{
    struct json_object *current = field_object(comm, "operator"), *run = run_that_waits(comm, stuck_after_s);

    if (run)
        return run;
    return field_count(current, "missing") && field_double(current, "since_ms", 0) >= stuck_after_s * 1e3 ? current : NULL;
}

/* Why the communicator is in trouble: it is aborted, or has waited for ranks (`awaited`, ranks_awaited()) for longer than stuck_after_s. "": it is well. */
static struct words comm_trouble(struct json_object *comm, struct json_object *awaited, double stuck_after_s)
{
    struct json_object *op = what_waits(comm, stuck_after_s);
    const char *state = field_text(comm, "state");
    double since_ms;

    if (strcmp(state, "aborted") == 0)
        return words("aborted: %s%s%s", field_text(comm, "error"),
                     json_object_array_length(awaited) ? "; not left by ranks: " : "", awaited_words(awaited).text);
    if (strcmp(state, "forming") == 0) {
        struct words ranks = ranks_missing(comm, &since_ms), nodes = field_list(comm, "missing_nodes");
        since_ms = field_double(comm, "since_ms", since_ms);
        if (since_ms < stuck_after_s * 1e3)
            return (struct words){""};
        return words("for %s it has waited for %s: %s", format_duration(since_ms / 1e3).text,
                     *nodes.text ? "nodes to be ready" : "ranks to join", *nodes.text ? nodes.text : ranks.text);
    }
    if (!op)
        return (struct words){""};
    since_ms = field_double(op, "since_ms", 0);
    if (field_int(op, "prepared", -1) >= 0)
        return words("in %s (prepared %" PRId64 ") run %" PRId64 " for %s it has waited for ranks: %s", field_text(op, "op"),
                     field_int(op, "prepared", 0), field_int(op, "run", 0), format_duration(since_ms / 1e3).text,
                     awaited_words(awaited).text);
    return words("in %s #%" PRId64 " for %s it has waited for ranks: %s", field_text(op, "op"), field_int(op, "number", 0),
                 format_duration(since_ms / 1e3).text, awaited_words(awaited).text);
}

static void missing_print(struct json_object *op)
{
    size_t n = field_count(op, "missing");

    if (n)
        printf(", MISSING: rank%s %s", n > 1 ? "s" : "", field_list(op, "missing").text);
}

/* Prints one line: number, size, state, operator, duration, missing ranks. */
static void comm_headline(struct json_object *comm)
{
    struct json_object *current = field_object(comm, "operator");
    const char *state = field_text(comm, "state");
    double since_ms;

    print_clean("  communicator %" PRId64 ": %" PRId64 " ranks, %s", field_int(comm, "comm", 0), field_int(comm, "nranks", 0),
                state);
    struct words missing = ranks_missing(comm, &since_ms);
    if (strcmp(state, "forming") == 0 && *missing.text)
        printf(", NOT JOINED: %s", missing.text);
    if (field_count(comm, "missing_nodes"))
        printf(", NODES NOT READY: %s", field_list(comm, "missing_nodes").text);
    if (*field_text(comm, "error"))
        print_clean(": %s", field_text(comm, "error"));
    if (current) {
        print_clean(", %s in %s #%" PRId64 " for %s",
                    strcmp(field_text(current, "state"), "waiting") == 0 ? "waiting" : "running", field_text(current, "op"),
                    field_int(current, "number", 0), format_duration(field_double(current, "since_ms", -1e3) / 1e3).text);
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

    for (size_t i = 0; i < field_count(comm, "runs"); i++) {
        struct json_object *run = field_at(comm, "runs", i);
        print_clean("    prepared %" PRId64 ": %s, run %" PRId64 " for %s", field_int(run, "prepared", 0),
                    field_text(run, "op"), field_int(run, "run", 0),
                    format_duration(field_double(run, "since_ms", 0) / 1e3).text);
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

#define RANK_COLUMNS ">PID=pid|>DEVICE=device|STATE=state|OPERATOR=op #number|>SINCE=since_ms|>QUEUED=queued"

static void worker_print(struct json_object *worker)
{
    struct words uid = words("uid %" PRId64, field_int(worker, "uid", -1));

    print_clean("job \"%s\" of %s, worker %" PRId64 "%s\n", field_text(worker, "job"),
                *field_text(worker, "user") ? field_text(worker, "user") : uid.text, field_int(worker, "pid", 0),
                field_count(worker, "comms") ? "" : ": no communicators");
    for (size_t i = 0; i < field_count(worker, "comms"); i++) {
        struct json_object *comm = field_at(worker, "comms", i);
        comm_headline(comm);
        runs_print(comm);
        table_of(comm, "ranks", over_nodes(comm) ? ">RANK=rank|NODE=node|" RANK_COLUMNS : ">RANK=rank|" RANK_COLUMNS, "    ");
    }
}

/* The communicators in trouble, as JSON. */
static struct json_object *troubles(struct json_object *all, double stuck_after_s)
{
    struct json_object *list = json_object_new_array();

    for (size_t w = 0; w < field_count(all, "workers"); w++) {
        struct json_object *worker = field_at(all, "workers", w);
        for (size_t i = 0; i < field_count(worker, "comms"); i++) {
            struct json_object *comm = field_at(worker, "comms", i);
            struct json_object *awaited = ranks_awaited(worker, comm, what_waits(comm, stuck_after_s));
            struct words trouble = comm_trouble(comm, awaited, stuck_after_s);
            if (*trouble.text)
                (void)json_object_array_add(
                    list,
                    JSON_OBJECT({"uid", json_int(field_int(worker, "uid", -1))}, {"job", json_text(field_text(worker, "job"))},
                                {"comm", json_int(field_int(comm, "comm", 0))},
                                {"ended", json_object_new_boolean(strcmp(field_text(comm, "state"), "aborted") == 0)},
                                {"reason", json_text(trouble.text)}, {"awaited", awaited}));
            else
                (void)json_object_put(awaited);
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
