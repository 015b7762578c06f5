/* SPDX-License-Identifier: MIT
 *
 * query.c - answers queries for status and devices with JSON in a sealed memfd, and drains jobs for fccctl.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/broker/broker.h"
#include "daemon/broker/metrics/flights.h"
#include "daemon/broker/metrics/metrics.h"
#include "daemon/broker/store.h"
#include "proto/base/json_fd.h"
#include "proto/base/log.h"
#include "proto/version.h"

/* Whether the next broker can take its worker over. */
static bool job_is_kept(const struct job *j)
{
    return j->slot >= 0 && j->control >= 0;
}

/* For how long its operators were held back for its share of GPUs. The worker may have written anything. */
static double job_held_s(const struct job *j)
{
    const struct meters *m = job_meters(j);
    uint64_t ns = m ? meter_get(&m->counters.held_ns) : 0;

    return ns > INT64_MAX ? 0 : (double)ns / 1e9;
}

static struct json_object *job_describe(const struct job *j)
{
    return JSON_OBJECT(
        {"uid", json_int(j->uid)}, {"job", json_text(j->name)}, {"pid", json_int(j->pid)},
        {"age_s", json_double((double)(clock_ns() - j->started_ns) / 1e9)}, {"connections", json_int(j->sessions)},
        {"memory_bytes", json_int(job_used(j, ACCOUNT_MEMORY))},
        {"gpu_memory_bytes", json_int(job_used(j, ACCOUNT_GPU_MEMORY))},
        {"communicators", json_int(job_used(j, ACCOUNT_COMMS))}, {"operators", json_int(job_used(j, ACCOUNT_OPERATORS))},
        {"stream_operators", json_int(job_used(j, ACCOUNT_STREAMS))}, {"gpu_share_wait_s", json_double(job_held_s(j))},
        {"restart", json_text(job_is_kept(j) ? "goes on" : "ends")});
}

/* What a restart of this fccd would do. */
static struct json_object *restart_describe(const struct broker *b)
{
    uint32_t kept = 0, jobs = 0;
    const struct job *j;
    bool managed;
    const char *why = store_why_not(b, &managed);

    LIST_FOREACH(j, &b->jobs, link)
        if (!j->retired) {
            jobs++;
            kept += job_is_kept(j);
        }
    return JSON_OBJECT({"keeps_jobs", json_object_new_boolean(store_keeps(b))}, {"why_not", json_text(why)},
                       {"service_manager", json_object_new_boolean(managed)}, {"room_for_jobs", json_int(store_room(b))},
                       {"jobs", json_int(jobs)}, {"jobs_kept", json_int(kept)}, {"adopted", json_int(b->workers_adopted)},
                       {"adopt_seconds", json_int(b->config.adopt_seconds)});
}

/* The limits by their keys, in bytes or numbers. null: there is none. */
static struct json_object *limits_describe(const struct broker *b)
{
    struct json_object *o = JSON_OBJECT({"JOBS_PER_USER", json_int(b->config.jobs_per_user)},
                                        {"CONNECTIONS_PER_USER", json_int(b->config.connections_per_user)},
                                        {"CONNECTIONS_PER_JOB", json_int(b->config.connections_per_job)});
    const struct account_limits limits = config_limits(&b->config);

    for (int kind = 0; kind < ACCOUNT_COUNT; kind++)
        for (int whose = 0; whose < ACCOUNT_WHOSE; whose++) {
            uint64_t limit = limits.of[whose][kind];
            (void)json_object_object_add(o, account_key((enum account_whose)whose, (enum account_kind)kind),
                                         limit == INT64_MAX ? NULL : json_int(limit));
        }
    return o;
}

static struct json_object *gpus_part(const struct broker *b, const char *name)
{
    struct json_object *part = NULL;

    (void)json_object_object_get_ex(b->probe.gpus, name, &part);
    return json_object_get(part);
}

uint32_t devices_count(const struct broker *b)
{
    struct json_object *gpus = gpus_part(b, "gpus");
    uint32_t n = b->config.cpu_devices + (uint32_t)json_object_array_length(gpus);

    (void)json_object_put(gpus);
    return n;
}

static struct json_object *status_describe(const struct broker *b, uid_t asks)
{
    struct json_object *jobs = json_object_new_array();
    const struct job *j;

    LIST_FOREACH(j, &b->jobs, link)
        if (!j->retired && (j->uid == asks || asks == 0 || asks == geteuid()))
            json_object_array_add(jobs, job_describe(j));
    return JSON_OBJECT(
        {"version", json_text(VERSION_TEXT)}, {"pid", json_int(getpid())},
        {"uptime_s", json_double((double)(clock_ns() - b->started_ns) / 1e9)}, {"socket", json_text(b->config.socket)},
        {"memory_per_user", json_int(config_memory_per_user(&b->config))}, {"limits", limits_describe(b)},
        {"time_limit_ms", json_int(b->config.time_limit_ms)}, {"devices", json_int(devices_count(b))},
        {"plugins", gpus_part(b, "plugins")}, {"connections", json_int(b->connections)}, {"refused", json_int(b->refused)},
        {"workers_started", json_int(b->workers_started)}, {"workers_died", json_int(b->workers_died)},
        {"draining", json_object_new_boolean(b->draining)}, {"restart", restart_describe(b)}, {"jobs", jobs});
}

static void cpu_devices_add(const struct broker *b, struct json_object *devices)
{
    int64_t memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);

    for (uint32_t i = 0; i < b->config.cpu_devices; i++) {
        struct json_object *peers = json_object_new_array();
        for (uint32_t p = 0; p < b->config.cpu_devices; p++)
            if (p != i)
                json_object_array_add(peers, json_int(p));
        json_object_array_add(devices, JSON_OBJECT({"device", json_int(i)}, {"kind", json_text("cpu")},
                                                   {"workgroups", json_int(config_cpu_workgroups(&b->config))},
                                                   {"memory_bytes", json_int(memory)}, {"numa_node", json_int(-1)},
                                                   {"link", json_text("shared memory")}, {"peers", peers}));
    }
}

/* The devices that workers will offer. The broker opens no device itself. */
static struct json_object *devices_describe(const struct broker *b)
{
    struct json_object *devices = json_object_new_array(), *gpus = gpus_part(b, "gpus");

    cpu_devices_add(b, devices);
    for (size_t i = 0; i < json_object_array_length(gpus); i++)
        json_object_array_add(devices, json_object_get(json_object_array_get_idx(gpus, i)));
    (void)json_object_put(gpus);
    return JSON_OBJECT({"devices", devices}, {"plugins", gpus_part(b, "plugins")});
}

/* The metrics' text, as JSON. */
static int metrics_answer(const struct broker *b, uid_t asks, struct error *e)
{
    size_t length = 0;
    char *text = metrics_text(b, asks, &length);

    if (!text)
        return error_set(e, -ENOMEM, "no memory for the metrics");
    struct json_object *o = JSON_OBJECT({"text", json_object_new_string_len(text, (int)length)});
    free(text);
    return json_to_fd(o, e);
}

int query_answer(const struct broker *b, const struct fcc_query *q, uid_t asks, struct error *e)
{
    const uint32_t what = q->what;

    switch ((enum fcc_query_kind)what) {
    case FCC_QUERY_METRICS:
        return metrics_answer(b, asks, e);
    case FCC_QUERY_FLIGHTS:
        return json_to_fd(flights_describe(b, asks), e);
    case FCC_QUERY_FLIGHT:
        return flight_copy(b, q->comm, asks, e);
    case FCC_QUERY_CONFIG:
        return json_to_fd(config_describe(&b->config), e);
    case FCC_QUERY_STATUS:
        return json_to_fd(status_describe(b, asks), e);
    case FCC_QUERY_DEVICES:
        return json_to_fd(devices_describe(b), e);
    case FCC_QUERY_NODES:
        return json_to_fd(nodes_describe(b), e);
    case FCC_QUERY_PING:  /* is not answered at once: hello.c */
    case FCC_QUERY_DRAIN: /* is no question: hello.c */
    case FCC_QUERY_COMMS:
    case FCC_QUERY_TRACE:
    case FCC_QUERY_ABORT:
    case FCC_QUERY_TRACK:
    case FCC_QUERY_RULES:
        return error_set(e, -EINVAL, "query: %d: a job's worker answers this; name the job in the HELLO", (int)what);
    case FCC_QUERY_COUNT:
        break;
    }
    return error_set(e, -EINVAL, "query: %u: allowed are 0 to %d", what, FCC_QUERY_COUNT - 1);
}

/* ---- fccctl drain ---- */

/* A worker that has been told by this message kills itself if it has not ended CONTROL_LEAVE_MS after DRAIN_MS. */
static int job_drain(struct job *j, const char *who)
{
    struct control_drain m = {.msg = {.type = CONTROL_DRAIN}};

    text_copy(m.text, sizeof(m.text), who);
    int status = channel_send(j, &m.msg, sizeof(m), -1);
    if (!status)
        j->leaves = j->retired = true; /* the job's next connection gets another worker */
    return status;
}

static bool job_is_asked(const struct job *j, const struct fcc_query *q, uid_t asks)
{
    bool may = j->uid == asks || asks == 0 || asks == geteuid();

    return may && !j->retired && j->control >= 0 && (q->comm == UINT32_MAX || q->comm == j->uid) &&
           (!q->text[0] || !strcmp(q->text, j->name));
}

int jobs_drain_asked(struct broker *b, const struct fcc_query *q, const struct visitor *v, struct error *e)
{
    struct json_object *jobs = json_object_new_array();
    char who[sizeof(((struct control_drain *)0)->text)];
    struct job *j;

    (void)snprintf(who, sizeof(who), "uid %u (pid %d) has drained this job (fccctl drain)", v->uid, v->pid);
    LIST_FOREACH(j, &b->jobs, link) {
        if (!memchr(q->text, 0, sizeof(q->text)) || !job_is_asked(j, q, v->uid))
            continue;
        int status = job_drain(j, who);
        if (status) {
            (void)json_object_put(jobs);
            return error_set(e, status, "job %u/%s: its worker (pid %d) cannot be told: %s", j->uid, j->name, j->pid,
                             strerror(-status));
        }
        job_log(LOG_LEVEL_INFO, j, "worker %d drains: %s", j->pid, who);
        json_object_array_add(jobs,
                              JSON_OBJECT({"uid", json_int(j->uid)}, {"job", json_text(j->name)}, {"pid", json_int(j->pid)}));
    }
    if (!json_object_array_length(jobs) && q->text[0]) {
        (void)json_object_put(jobs);
        return error_set(e, -ENOENT, "job %.63s: there is none of that name that is yours to drain", q->text);
    }
    return json_to_fd(JSON_OBJECT({"jobs", jobs}, {"limit_ms", json_int(b->config.drain_ms + CONTROL_LEAVE_MS)}), e);
}
