/* SPDX-License-Identifier: MIT
 *
 * status.c - the verbs status, devices, abort and version.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/fccctl/control.h"
#include "client/fccctl/fccctl.h"
#include "client/fccctl/field.h"
#include "proto/base/error.h"
#include "proto/version.h"

/* "cuda 4 GPUs; hip not built: ..." */
static void plugins_line(struct json_object *answer)
{
    if (!field_count(answer, "plugins"))
        return; /* an old daemon without support for GPUs */
    printf("GPUs         ");
    for (size_t i = 0; i < field_count(answer, "plugins"); i++) {
        struct json_object *p = field_at(answer, "plugins", i);
        print_clean("%s%s: %s", i ? "; " : "", field_text(p, "kind"), field_text(p, "status"));
    }
    printf("\n");
}

/* "communicators 4096"; "" if this daemon has no such limit. */
static struct words limit_words(struct json_object *limits, const char *what, const char *key, bool bytes)
{
    struct words w = {""};
    int64_t limit = field_int(limits, key, -1);

    if (limit >= 0 && bytes)
        words_add(&w, ", %s %s", what, format_bytes((double)limit).text);
    else if (limit >= 0)
        words_add(&w, ", %s %" PRId64, what, limit);
    return w;
}

/* What the keys of fccd.conf allow a user, and a job. */
static void limits_lines(struct json_object *answer)
{
    static const struct {
        const char *what, *user, *job;
        bool bytes;
    } kinds[] = {
        {"memory", "MEMORY_PER_USER_MB", "MEMORY_PER_JOB_MB", true},
        {"GPU memory", "GPU_MEMORY_PER_USER_MB", "GPU_MEMORY_PER_JOB_MB", true},
        {"jobs", "JOBS_PER_USER", "", false},
        {"connections", "CONNECTIONS_PER_USER", "CONNECTIONS_PER_JOB", false},
        {"communicators", "COMMS_PER_USER", "COMMS_PER_JOB", false},
        {"operators in flight", "OPERATORS_PER_USER", "OPERATORS_PER_JOB", false},
        {"of these on streams", "STREAMS_PER_USER", "STREAMS_PER_JOB", false},
    };
    struct json_object *limits = field_object(answer, "limits");
    struct words user = {""}, job = {""};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        words_add(&user, "%s", limit_words(limits, kinds[i].what, kinds[i].user, kinds[i].bytes).text);
        words_add(&job, "%s", limit_words(limits, kinds[i].what, kinds[i].job, kinds[i].bytes).text);
    }
    if (*user.text)
        printf("of a user    %s\n", user.text + 2);
    if (*job.text)
        printf("of a job     %s\n", job.text + 2);
}

/* What a restart of fccd would do, and what the last one did. */
static void restart_line(struct json_object *answer)
{
    struct json_object *restart = field_object(answer, "restart");
    int64_t jobs = field_int(restart, "jobs", 0), kept = field_int(restart, "jobs_kept", 0);

    if (!restart)
        return; /* an old daemon */
    if (!field_bool(restart, "keeps_jobs"))
        print_clean("restart      ends its jobs: %s\n", field_text(restart, "why_not"));
    else if (kept < jobs)
        printf("restart      ends %" PRId64 " of %" PRId64 " jobs: there is room for the descriptors of %" PRId64 "\n",
               jobs - kept, jobs, field_int(restart, "room_for_jobs", 0));
    else
        printf("restart      ends no job: there is room for the descriptors of %" PRId64 "\n",
               field_int(restart, "room_for_jobs", 0));
}

static void status_print(struct json_object *answer)
{
    int64_t adopted = field_int(field_object(answer, "restart"), "adopted", 0);

    print_clean("fccd %s, pid %" PRId64 ", up %s%s\n", field_text(answer, "version"), field_int(answer, "pid", 0),
                format_duration(field_double(answer, "uptime_s", -1)).text,
                field_bool(answer, "draining") ? ", DRAINING: it ends when its jobs have ended" : "");
    print_clean("socket       %s\n", field_text(answer, "socket"));
    printf("devices      %" PRId64 "\n", field_int(answer, "devices", 0));
    plugins_line(answer);
    printf("limits       an operator %s, a user's memory %s\n",
           format_duration(field_double(answer, "time_limit_ms", -1) / 1e3).text,
           field_int(answer, "memory_per_user", 0) ? format_bytes(field_double(answer, "memory_per_user", 0)).text : "-");
    limits_lines(answer);
    printf("connections  %" PRId64 " taken, %" PRId64 " refused\n", field_int(answer, "connections", 0),
           field_int(answer, "refused", 0));
    printf("workers      %" PRId64 " started, %" PRId64 " taken over from an earlier fccd, %" PRId64 " died\n",
           field_int(answer, "workers_started", 0), adopted, field_int(answer, "workers_died", 0));
    restart_line(answer);
    printf("jobs         %zu\n", field_count(answer, "jobs"));
    if (field_count(answer, "jobs"))
        table_of(answer, "jobs",
                 "USER=user/uid|JOB=job|>PID=pid|>AGE=age_s|>CONNECTIONS=connections|>MEMORY=memory_bytes|"
                 ">GPU MEMORY=gpu_memory_bytes|>COMMS=communicators|>OPERATORS=operators|>ON "
                 "STREAMS=stream_operators|>GPU SHARE WAIT=gpu_share_wait_s|RESTART=restart",
                 "  ");
}

int verb_status(struct call *call)
{
    struct json_object *answer;
    struct error e;

    if (!args_parse(call, NULL, 0, 0))
        return call->exit;
    if (control_ask_broker(call->socket, FCC_QUERY_STATUS, &answer, &e))
        return control_fail(call, &e);
    return control_show(call, answer, !field_bool(answer, "draining"), status_print);
}

struct words devices_why_none(struct json_object *answer, const char *kind)
{
    struct words why = {""};

    for (size_t i = 0; i < field_count(answer, "plugins"); i++) {
        struct json_object *p = field_at(answer, "plugins", i);
        if (strcmp(field_text(p, "state"), "ok") != 0 && (!kind || strcmp(field_text(p, "kind"), kind) == 0))
            words_add(&why, "%s%s: %s", *why.text ? "; " : "", field_text(p, "kind"), field_text(p, "status"));
    }
    (void)text_clean(why.text);
    return why;
}

static void devices_print(struct json_object *answer)
{
    struct words why = devices_why_none(answer, NULL);

    table_of(answer, "devices",
             ">DEVICE=device|KIND=kind|NAME=name|>UNITS=multiprocessors/workgroups|>MEMORY=memory_bytes|>NUMA=numa_node|"
             "PEERS=peers|LINK=link|PCI=pci",
             "");
    if (*why.text)
        printf("no devices of these kinds: %s\n", why.text);
}

int verb_devices(struct call *call)
{
    struct json_object *answer;
    struct error e;

    if (!args_parse(call, NULL, 0, 0))
        return call->exit;
    if (control_ask_broker(call->socket, FCC_QUERY_DEVICES, &answer, &e))
        return control_fail(call, &e);
    return control_show(call, answer, field_count(answer, "devices") > 0, devices_print);
}

int verb_abort(struct call *call)
{
    int64_t comm = 0, uid = -1;
    const char *job = NULL, *reason = NULL;
    const struct arg args[] = {
        {"comm", 0, ARG_INT, &comm, 1, UINT32_MAX, NULL, "N", "the communicator's number in 'fccctl comms'"},
        {"job", 0, ARG_TEXT, &job, 0, 0, NULL, "JOB", "its job [the only one]"},
        {"uid", 0, ARG_INT, &uid, 0, UINT32_MAX - 1, NULL, "UID", "whose job [yours]"},
        {"reason", 0, ARG_TEXT, &reason, 0, 0, NULL, "TEXT", "what its ranks read in their error, at most 200 characters"},
    };
    struct fcc_query query = {.what = FCC_QUERY_ABORT};
    struct json_object *answer;
    char name[FCC_JOB_MAX];
    uint32_t owner;
    struct error e;

    if (!args_parse(call, args, sizeof(args) / sizeof(args[0]), 0))
        return call->exit;
    if (comm == 0)
        return verb_error(call, EXIT_USAGE, "--comm is missing: which communicator?");
    if (reason && strlen(reason) > 200)
        return verb_error(call, EXIT_USAGE, "--reason: %zu characters: allowed are 200", strlen(reason));
    query.comm = (uint32_t)comm;
    (void)snprintf(query.text, sizeof(query.text), "%s", reason ? reason : "");
    if (control_find_job(call->socket, uid, job, &owner, name, &e) ||
        control_ask(call->socket, owner, name, &query, CONTROL_LIMIT_MS, &answer, &e))
        return control_fail(call, &e);
    if (call->json)
        json_print(answer, true);
    else
        printf("communicator %" PRId64 " of job \"%s\" of uid %" PRIu32 " is aborted\n", field_int(answer, "comm", comm), name,
               owner);
    (void)json_object_put(answer);
    return EXIT_WELL;
}

int verb_version(struct call *call)
{
    if (!args_parse(call, NULL, 0, 0))
        return call->exit;
    if (call->json) {
        struct json_object *object =
            JSON_OBJECT({"fccctl", json_text(VERSION_TEXT)}, {"libfccclient", json_text(fcc_version())},
                        {"protocol", json_int(FCC_PROTO_VERSION)});
        json_print(object, true);
        (void)json_object_put(object);
    } else {
        printf("fccctl %s, libfccclient %s, protocol %u\n", VERSION_TEXT, fcc_version(), FCC_PROTO_VERSION);
    }
    return EXIT_WELL;
}
