/* SPDX-License-Identifier: MIT
 *
 * query.c - answers queries for status and devices with JSON in a sealed memfd.
 */
#include <errno.h>
#include <json-c/json.h>
#include <string.h>
#include <unistd.h>

#include "daemon/broker/broker.h"
#include "proto/base/json_fd.h"
#include "proto/version.h"

static struct json_object *job_describe(const struct job *j)
{
    struct json_object *o = json_object_new_object();

    json_object_object_add(o, "uid", json_object_new_int64(j->uid));
    json_object_object_add(o, "job", json_object_new_string(j->name));
    json_object_object_add(o, "pid", json_object_new_int(j->pid));
    json_object_object_add(o, "age_s", json_object_new_double((double)(clock_ns() - j->started_ns) / 1e9));
    json_object_object_add(o, "connections", json_object_new_int64(j->sessions));
    json_object_object_add(o, "memory_bytes", json_object_new_int64((int64_t)job_memory(j)));
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
    struct json_object *o = json_object_new_object(), *jobs = json_object_new_array();
    const struct job *j;

    json_object_object_add(o, "version", json_object_new_string(VERSION_TEXT));
    json_object_object_add(o, "pid", json_object_new_int(getpid()));
    json_object_object_add(o, "uptime_s", json_object_new_double((double)(clock_ns() - b->started_ns) / 1e9));
    json_object_object_add(o, "socket", json_object_new_string(b->config.socket));
    json_object_object_add(o, "memory_per_user", json_object_new_int64((int64_t)config_memory_per_user(&b->config)));
    json_object_object_add(o, "time_limit_ms", json_object_new_int64(b->config.time_limit_ms));
    json_object_object_add(o, "devices", json_object_new_int64(devices_count(b)));
    json_object_object_add(o, "plugins", gpus_part(b, "plugins"));
    json_object_object_add(o, "connections", json_object_new_int64((int64_t)b->connections));
    json_object_object_add(o, "refused", json_object_new_int64((int64_t)b->refused));
    json_object_object_add(o, "workers_started", json_object_new_int64((int64_t)b->workers_started));
    json_object_object_add(o, "workers_died", json_object_new_int64((int64_t)b->workers_died));
    json_object_object_add(o, "draining", json_object_new_boolean(b->draining));
    json_object_object_add(o, "jobs", jobs);
    LIST_FOREACH(j, &b->jobs, link)
        if (!j->retired && (j->uid == asks || asks == 0 || asks == geteuid()))
            json_object_array_add(jobs, job_describe(j));
    return o;
}

static void cpu_devices_add(const struct broker *b, struct json_object *devices)
{
    int64_t memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);

    for (uint32_t i = 0; i < b->config.cpu_devices; i++) {
        struct json_object *d = json_object_new_object(), *peers = json_object_new_array();
        json_object_object_add(d, "device", json_object_new_int64(i));
        json_object_object_add(d, "kind", json_object_new_string("cpu"));
        json_object_object_add(d, "workgroups", json_object_new_int64(config_cpu_workgroups(&b->config)));
        json_object_object_add(d, "memory_bytes", json_object_new_int64(memory));
        json_object_object_add(d, "numa_node", json_object_new_int(-1));
        json_object_object_add(d, "link", json_object_new_string("shared memory"));
        for (uint32_t p = 0; p < b->config.cpu_devices; p++)
            if (p != i)
                json_object_array_add(peers, json_object_new_int64(p));
        json_object_object_add(d, "peers", peers);
        json_object_array_add(devices, d);
    }
}

/* The devices that workers will offer. The broker opens no device itself. */
static struct json_object *devices_describe(const struct broker *b)
{
    struct json_object *o = json_object_new_object(), *devices = json_object_new_array(), *gpus = gpus_part(b, "gpus");

    json_object_object_add(o, "devices", devices);
    json_object_object_add(o, "plugins", gpus_part(b, "plugins"));
    cpu_devices_add(b, devices);
    for (size_t i = 0; i < json_object_array_length(gpus); i++)
        json_object_array_add(devices, json_object_get(json_object_array_get_idx(gpus, i)));
    (void)json_object_put(gpus);
    return o;
}

int query_answer(const struct broker *b, enum fcc_query_kind what, uid_t asks, struct error *e)
{
    switch (what) {
    case FCC_QUERY_STATUS:
        return json_to_fd(status_describe(b, asks), e);
    case FCC_QUERY_DEVICES:
        return json_to_fd(devices_describe(b), e);
    case FCC_QUERY_NODES:
        return json_to_fd(nodes_describe(b), e);
    case FCC_QUERY_PING: /* is not answered at once: hello.c */
    case FCC_QUERY_COMMS:
    case FCC_QUERY_TRACE:
    case FCC_QUERY_ABORT:
        return error_set(e, -EINVAL, "query: %d: a job's worker answers this; name the job in the HELLO", what);
    case FCC_QUERY_COUNT:
        break;
    }
    return error_set(e, -EINVAL, "query: %u: allowed are 0 to %d", (unsigned)what, FCC_QUERY_COUNT - 1);
}
