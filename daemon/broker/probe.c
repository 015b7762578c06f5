/* SPDX-License-Identifier: MIT
 *
 * probe.c - finds out which GPUs there are: a child process (gpus.h) lists them and ends. The broker serves meanwhile; only
 * queries for the devices wait for the list. If a GPU's runtime crashes or hangs, only the list is missing.
 */
#include <json-c/json.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/broker/broker.h"
#include "daemon/common/gpus.h"
#include "proto/base/log.h"

#define PROBE_LIMIT_S 20
#define PROBE_SAYS_MAX (1u << 20) /* bytes of the longest list */

static struct json_object *array_of(struct json_object *list, const char *name)
{
    struct json_object *array = NULL;

    (void)json_object_object_get_ex(list, name, &array);
    return json_object_is_type(array, json_type_array) ? array : NULL;
}

static const char *text_of(struct json_object *o, const char *name)
{
    struct json_object *text = NULL;

    (void)json_object_object_get_ex(o, name, &text);
    return json_object_is_type(text, json_type_string) ? json_object_get_string(text) : "";
}

/* The list that the child printed, or NULL. */
static struct json_object *list_parse(const char *text, size_t length)
{
    struct json_tokener *tokener = json_tokener_new();
    struct json_object *list = tokener && text ? json_tokener_parse_ex(tokener, text, (int)length) : NULL;

    if (tokener)
        json_tokener_free(tokener);
    if (list && json_object_is_type(list, json_type_object) && array_of(list, "gpus") && array_of(list, "plugins"))
        return list;
    (void)json_object_put(list);
    return NULL;
}

/* If there are NVIDIA GPUs but no MPS control daemon, logs a warning: streams of a program and of its worker synchronize fast
 * only under MPS. It is only a hint, as clients may have an MPS server of their own. */
static void mps_warn(struct json_object *list)
{
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct json_object *gpus = array_of(list, "gpus");
    char path[PATH_MAX];
    bool any = false;

    for (size_t i = 0; i < json_object_array_length(gpus); i++)
        any |= !strcmp(text_of(json_object_array_get_idx(gpus, i), "kind"), "cuda");
    (void)snprintf(path, sizeof(path), "%s/control", directory ? directory : "/tmp/nvidia-mps");
    if (any && access(path, F_OK))
        log_warning(
            "no MPS control daemon at %s: each hand-over between a program and its worker costs about 0.3 ms instead of 3 "
            "to 4 us; 'nvidia-cuda-mps-control -d' starts one ('fccctl doctor' says more)",
            path);
}

static void list_log(struct json_object *list)
{
    struct json_object *plugins = array_of(list, "plugins");

    for (size_t i = 0; i < json_object_array_length(plugins); i++) {
        struct json_object *p = json_object_array_get_idx(plugins, i);
        bool failed = !strcmp(text_of(p, "state"), "failed");
        log_write(failed ? LOG_LEVEL_WARNING : LOG_LEVEL_INFO, "GPUs, %s: %s", text_of(p, "kind"), text_of(p, "status"));
    }
    mps_warn(list);
}

/* Ends the probe with that list or, if it is NULL, with one that says why there is none. */
static void probe_end(struct broker *b, struct json_object *list, const char *failure)
{
    struct probe *p = &b->probe;

    event_stop(&p->limit);
    if (!list)
        list = gpus_list(&b->config, "failed", failure);
    (void)json_object_put(p->gpus);
    p->gpus = list;
    p->ended = true;
    list_log(list);
    visitors_answer(b);
}

static void probe_done(void *owner, const void *bytes, size_t n, int wait_status)
{
    struct broker *b = owner;
    char failure[128] = "the process that lists the GPUs said no list";

    b->probe.child = NULL;
    if (n > PROBE_SAYS_MAX)
        (void)snprintf(failure, sizeof(failure), "the process that lists the GPUs said too much");
    else if (WIFSIGNALED(wait_status))
        (void)snprintf(failure, sizeof(failure), "the process that lists the GPUs died: %s", strsignal(WTERMSIG(wait_status)));
    else if (wait_status)
        (void)snprintf(failure, sizeof(failure), "the process that lists the GPUs failed with status %d",
                       WEXITSTATUS(wait_status));
    probe_end(b, n > PROBE_SAYS_MAX || wait_status ? NULL : list_parse(bytes, n), failure);
}

static void probe_over(evutil_socket_t fd, short what, void *arg)
{
    struct broker *b = arg;
    char failure[128];

    (void)fd, (void)what;
    child_kill(b->probe.child);
    b->probe.child = NULL;
    (void)snprintf(failure, sizeof(failure), "the process that lists the GPUs did not end within %d s", PROBE_LIMIT_S);
    probe_end(b, NULL, failure);
}

void probe_start(struct broker *b)
{
    char failure[128];

    if (!gpus_need_plugins(&b->config)) {
        probe_end(b, gpus_list(&b->config, NULL, NULL), NULL);
        return;
    }
    b->probe.gpus = gpus_list(&b->config, "listing", "its GPUs are being listed");
    (void)evtimer_assign(&b->probe.limit, b->base, probe_over, b);
    int status = child_start(b, lister_run, &b->config, PROBE_SAYS_MAX, probe_done, b, &b->probe.child);
    (void)snprintf(failure, sizeof(failure), "cannot list the GPUs: %s", strerror(-status));
    if (status)
        probe_end(b, NULL, failure);
    else
        (void)event_add_ms(&b->probe.limit, PROBE_LIMIT_S * 1000);
}

void probe_close(struct broker *b)
{
    event_stop(&b->probe.limit);
    (void)json_object_put(b->probe.gpus);
}
