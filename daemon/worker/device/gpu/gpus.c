/* SPDX-License-Identifier: MIT
 *
 * gpus.c - the GPUs of the node, found through a plug-in when a client first asks for one; and the sessions whose memory they access.
 */
#include "daemon/worker/device/gpu/gpus.h"
#include "daemon/worker/device/gpu/code/code.h"
#include "daemon/worker/device/gpu/host_memory.h"
#include "daemon/worker/device/gpu/stream.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/common/plugin.h"
#include "daemon/worker/device/gpu/leave.h"
#include "daemon/worker/device/gpu/reader.h"
#include "daemon/worker/device/gpu/steps.h"
#include "daemon/worker/engine/life.h"
#include "daemon/worker/engine/meter.h"
#include "proto/base/log.h"

/* The memory of a session that has ended, kept mapped while kernels run. */
struct retired {
    LIST_ENTRY(retired) link;
    void *memory;
    size_t bytes;
    struct gpu_words *words;
};

size_t gpu_page_round(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* ---- finding ---- */

/* Whether there is an MPS server where this process looks for one: the runtime is its client then. */
static bool mps_serves(void)
{
    const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[PATH_MAX];
    int n = snprintf(path, sizeof(path), "%s/control", pipe && *pipe ? pipe : "/tmp/nvidia-mps");

    return n > 0 && n < (int)sizeof(path) && !access(path, F_OK);
}

static int gpus_load(struct worker *w, const char *kind, enum fcc_device_kind number, struct error *e)
{
    const struct gpu_plugin *plugin = plugin_load(kind, w->config.plugin_dir, e);
    struct gpus *g;
    int count, status;

    if (!plugin)
        return e->status;
    count = plugin->count(e);
    if (count < 0)
        return count;
    g = calloc(1, sizeof(*g));
    if (!g)
        return error_set(e, -ENOMEM, "no memory for GPUs");
    g->worker = w;
    g->plugin = plugin;
    g->count = count;
    g->ops = gpu_device_ops;
    g->ops.kind = plugin->kind;
    g->ops.number = number;
    g->all_wait = true;
    LIST_INIT(&g->retired);
    LIST_INIT(&g->retired_host);
    LIST_INIT(&g->receive_bounces);
    TAILQ_INIT(&g->leaving);
    for (int i = 0; i < count; i++) {
        status = plugin->describe(i, &g->descriptions[i], e);
        if (status) {
            free(g);
            return status;
        }
        g->all_wait &= g->descriptions[i].stream_memory_operations != 0;
        g->devices[i] = (struct device){.ops = &g->ops, .worker = w, .index = i};
    }
    /* The engine, the clients and the helpers may all spin. */
    status = helpers_open(count - 1, w->cores > 3 * count ? w->config.spin_us : 0, &g->helpers, e);
    if (!status && (status = gpu_watch_start(w, plugin, &g->watch, e)))
        helpers_close(g->helpers);
    if (!status && (status = lives_start(w, &g->lives, e))) {
        gpu_watch_stop(g->watch);
        helpers_close(g->helpers);
    }
    if (!status && (status = gpu_leave_open(g, e))) {
        lives_stop(g->lives);
        gpu_watch_stop(g->watch);
        helpers_close(g->helpers);
    }
    if (status) {
        free(g);
        return status;
    }
    w->gpus = g;
    if (w->meters) {
        meter_set(&w->meters->gpus, (uint64_t)count);
        meter_set(&w->meters->mps, mps_serves());
    }
    log_info("%d %s GPUs", count, kind);
    return 0;
}

/* Set the environment of the GPUs' runtime, before the runtime is loaded. */
static void environment_prepare(const struct worker *w)
{
    if (w->mps_pipe[0]) /* the MPS server of the first client: hand-overs are fast within one server */
        (void)setenv("CUDA_MPS_PIPE_DIRECTORY", w->mps_pipe, 1);
    (void)setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1); /* the numbers that fccctl shows */
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 1);    /* no kernel is loaded while another one waits */
}

int gpus_find(struct worker *w, enum fcc_device_kind kind, struct device **devices, int *ndevices, struct error *e)
{
    static const enum fcc_device_kind numbers[PLUGIN_KINDS] = {FCC_DEVICE_CUDA, FCC_DEVICE_HIP};
    struct error why = {0};
    char text[FCC_TEXT_MAX / 2] = "";
    bool elsewhere = false; /* another process may succeed */
    size_t n = 0;

    if (!w->gpus) {
        environment_prepare(w);
        device_cpu_engine_release(w); /* the GPUs' runtime starts threads */
    }
    for (int i = 0; i < PLUGIN_KINDS && !w->gpus; i++) {
        if ((kind != FCC_DEVICE_GPU && kind != numbers[i]) || n >= sizeof(text))
            continue;
        if (!config_allows_gpus(&w->config, plugin_kinds[i]))
            (void)error_set(&why, -ENODEV, "not allowed by GPUS=%s", w->config.gpus);
        else if (!gpus_load(w, plugin_kinds[i], numbers[i], &why))
            break;
        elsewhere |= why.status == -EAGAIN;
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s: %s", n ? "; " : "", plugin_kinds[i], why.text);
    }
    if (!w->gpus && elsewhere) {
        if (LIST_EMPTY(&w->comms)) { /* no communicator is lost if this worker ends and the next connection gets a new one */
            (void)error_set(&w->lost, -EAGAIN, "%s; connect again", text);
            w->quit = true;
        }
        return error_set(e, -EAGAIN, "its GPUs cannot be used now (%s); connect again", text);
    }
    if (!w->gpus)
        return error_set(e, -ENODEV, "this node has no such GPU (%s)", text);
    if (kind != FCC_DEVICE_GPU && kind != w->gpus->ops.number)
        return error_set(e, -ENODEV, "this job uses %s: all its communicators on GPUs must", w->gpus->ops.kind);
    *devices = w->gpus->devices;
    *ndevices = w->gpus->count;
    return 0;
}

int gpus_check_peers(const struct device *a, int rank_a, const struct device *b, int rank_b, struct error *e)
{
    const struct gpus *g = a->worker->gpus;

    if (a == b || (g->descriptions[a->index].peers >> b->index & 1u && g->descriptions[b->index].peers >> a->index & 1u))
        return 0;
    return error_set(e, -EXDEV, "rank %d: device: %s %d and %s %d, which rank %d has, cannot address each other's memory",
                     rank_a, a->ops->kind, a->index, b->ops->kind, b->index, rank_b);
}

void gpu_device_uuid(const struct device *d, unsigned char out[16])
{
    memcpy(out, d->worker->gpus->descriptions[d->index].uuid, 16);
}

void gpus_close(struct worker *w)
{
    struct gpus *g = w->gpus;

    if (!g)
        return;
    gpu_reader_stop(g);
    gpu_leave_close(g);
    lives_stop(g->lives);
    gpu_watch_stop(g->watch);
    helpers_close(g->helpers);
    gpu_codes_free(g);
    g->plugin->close();
    w->gpus = NULL;
    free(g);
}

void gpus_sweep(struct worker *w)
{
    if (w->gpus)
        lives_sweep(w->gpus->lives);
}

bool gpus_are_lost(const struct worker *w, struct error *e)
{
    struct error why;

    if (!w->gpus || !gpu_watch_lost(w->gpus->watch, &why))
        return false;
    (void)error_set(
        e, why.status, "the GPU contexts of job '%s' are lost: %s%s; connect again", w->job, why.text,
        w->gpus->ops.number == FCC_DEVICE_CUDA
            ? " (under MPS this is what the death of a process with a running kernel does to the others of its server)"
            : "");
    return true;
}

/* ---- sessions ---- */

int gpus_session_open(struct session *s, struct error *e)
{
    if (s->gpu_address)
        return 0;
    int status = s->worker->gpus->plugin->host_register(s->memory, gpu_page_round(sizeof(*s->memory)), &s->gpu_address, e);
    if (!status)
        lives_add(s->worker->gpus->lives, s);
    return status;
}

bool gpus_session_close(struct session *s)
{
    struct gpus *g = s->worker->gpus;
    struct retired *r = g->in_flight ? malloc(sizeof(*r)) : NULL;

    gpu_watch_suspect(g->watch, g->open);
    lives_remove(g->lives, s);
    s->gpu_address = 0;
    if (!g->in_flight) {
        gpu_words_free(g, s->words);
        s->words = NULL;
        g->plugin->host_unregister(s->memory);
        return false;
    }
    if (r) { /* without memory for the list element it stays mapped until the process ends */
        *r = (struct retired){.memory = s->memory, .bytes = sizeof(*s->memory), .words = s->words};
        LIST_INSERT_HEAD(&g->retired, r, link);
    }
    s->words = NULL;
    return true;
}

void gpus_retired_free(struct gpus *g)
{
    struct retired *r;

    gpus_host_retired_free(g);
    while ((r = LIST_FIRST(&g->retired))) {
        LIST_REMOVE(r, link);
        gpu_words_free(g, r->words);
        g->plugin->host_unregister(r->memory);
        (void)munmap(r->memory, r->bytes);
        free(r);
    }
}
