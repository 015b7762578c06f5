/* SPDX-License-Identifier: MIT
 *
 * probe.c - finds out which GPUs there are: a child process (gpus.h) lists them and ends. The broker serves meanwhile; only
 * queries for the devices wait for the list. If a GPU's runtime crashes or hangs, only the list is missing.
 */
#include <errno.h>
#include <event2/buffer.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/broker/broker.h"
#include "daemon/common/gpus.h"
#include "proto/base/log.h"

#define PROBE_LIMIT_S 20
#define PROBE_SAYS_MAX (1u << 20) /* bytes of the longest list */
#define KILLED_LIMIT_MS 1000      /* how long a broker that ends waits for the child that it has killed */

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
static struct json_object *list_parse(struct probe *p)
{
    struct json_tokener *tokener = json_tokener_new();
    size_t length = evbuffer_get_length(p->said);
    const char *text = (const char *)evbuffer_pullup(p->said, -1);
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

static void output_close(struct probe *p)
{
    event_drop(&p->event);
    fd_close(&p->fd);
}

/* Ends the probe with the list that the child printed or, if `failure` is not NULL, with a list that says so. */
static void probe_end(struct broker *b, const char *failure)
{
    struct probe *p = &b->probe;
    struct json_object *list = failure ? NULL : list_parse(p);

    output_close(p);
    if (p->limit)
        (void)event_del(p->limit);
    if (!list)
        list = gpus_list(&b->config, "failed", failure ? failure : "the process that lists the GPUs said no list");
    (void)json_object_put(p->gpus);
    p->gpus = list;
    p->ended = true;
    list_log(list);
    visitors_answer(b);
}

/* If the child's output is complete and it was reaped, ends the probe. */
static void probe_look(struct broker *b)
{
    const struct probe *p = &b->probe;
    char failure[128];

    if (p->ended || p->pid || p->fd >= 0)
        return;
    if (WIFSIGNALED(p->wait_status))
        (void)snprintf(failure, sizeof(failure), "the process that lists the GPUs died: %s",
                       strsignal(WTERMSIG(p->wait_status)));
    else
        (void)snprintf(failure, sizeof(failure), "the process that lists the GPUs failed with status %d",
                       WEXITSTATUS(p->wait_status));
    probe_end(b, p->wait_status ? failure : NULL);
}

static void probe_read(evutil_socket_t fd, short what, void *arg)
{
    struct broker *b = arg;
    struct probe *p = &b->probe;
    int n = evbuffer_read(p->said, fd, -1);

    (void)what;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (evbuffer_get_length(p->said) > PROBE_SAYS_MAX) {
        (void)kill(p->pid, SIGKILL);
        probe_end(b, "the process that lists the GPUs said too much");
        return;
    }
    if (n > 0)
        return;
    output_close(p);
    probe_look(b);
}

static void probe_over(evutil_socket_t fd, short what, void *arg)
{
    struct broker *b = arg;
    char failure[128];

    (void)fd, (void)what;
    if (b->probe.pid)
        (void)kill(b->probe.pid, SIGKILL);
    (void)snprintf(failure, sizeof(failure), "the process that lists the GPUs did not end within %d s", PROBE_LIMIT_S);
    probe_end(b, failure);
}

void probe_reap(struct broker *b)
{
    struct probe *p = &b->probe;

    if (!p->pid || waitpid(p->pid, &p->wait_status, WNOHANG) != p->pid)
        return;
    p->pid = 0;
    probe_look(b);
}

static int probe_open(struct broker *b, struct error *e)
{
    struct probe *p = &b->probe;
    int ends[2];

    if (pipe2(ends, O_CLOEXEC))
        return error_set(e, -errno, "cannot list the GPUs: pipe: %s", strerror(errno));
    p->fd = ends[0];
    (void)evutil_make_socket_nonblocking(p->fd);
    p->said = evbuffer_new();
    p->event = event_new(b->base, p->fd, EV_READ | EV_PERSIST, probe_read, b);
    p->limit = evtimer_new(b->base, probe_over, b);
    int status = 0;
    if (!p->said || !p->event || !p->limit || event_add(p->event, NULL) || event_add_ms(p->limit, PROBE_LIMIT_S * 1000))
        status = error_set(e, -ENOMEM, "cannot list the GPUs: out of memory");
    pid_t pid = status ? status : lister_spawn(b->exe, &b->config, ends[1], e);
    (void)close(ends[1]);
    if (pid > 0)
        p->pid = pid;
    return pid > 0 ? 0 : (int)pid;
}

void probe_start(struct broker *b)
{
    struct error e = {0};

    if (!gpus_need_plugins(&b->config)) {
        b->probe.gpus = gpus_list(&b->config, NULL, NULL);
        b->probe.ended = true;
        list_log(b->probe.gpus);
        return;
    }
    b->probe.gpus = gpus_list(&b->config, "listing", "its GPUs are being listed");
    if (probe_open(b, &e))
        probe_end(b, e.text);
}

void probe_close(struct broker *b)
{
    const struct timespec step = {.tv_nsec = 1000000L};
    struct probe *p = &b->probe;

    output_close(p);
    event_drop(&p->limit);
    if (p->said)
        evbuffer_free(p->said);
    (void)json_object_put(p->gpus);
    if (!p->pid)
        return;
    (void)kill(p->pid, SIGKILL);
    for (int ms = 0; ms < KILLED_LIMIT_MS && waitpid(p->pid, NULL, WNOHANG) == 0; ms++)
        (void)nanosleep(&step, NULL); /* a child that a driver holds in the kernel may outlive the broker */
}
