/* SPDX-License-Identifier: MIT */
#include "daemon/worker/device/gpu/host_memory.h"

#include <stdlib.h>

#include "daemon/worker/device/gpu/gpus.h"
#include "daemon/worker/engine/account.h"

/* Pinned memory that is not used any more. Unpinning might wait for the kernels that run, so it is kept until none does. */
struct gpu_retired_host {
    LIST_ENTRY(gpu_retired_host) link;
    void *memory;
    uint64_t bytes;
};

int gpus_host_alloc(struct worker *w, uint64_t bytes, struct device_memory *out, struct error *e)
{
    uint64_t whole = gpu_page_round(bytes);
    void *there = NULL;
    int status = worker_memory_charge(w, whole, e);

    if (status)
        return status;
    status = w->gpus->plugin->host_alloc(whole, &there, e);
    if (status) {
        worker_memory_release(w, whole);
        return status;
    }
    *out = (struct device_memory){.data = there, .bytes = whole, .kind = FCC_MEMORY_HOST, .gpus = w->gpus};
    return 0;
}

static void host_free(struct gpus *g, void *memory, uint64_t bytes)
{
    g->plugin->host_free(memory, bytes);
    worker_memory_release(g->worker, bytes);
}

void gpus_host_free(struct device_memory *m)
{
    struct gpus *g = m->gpus;
    struct gpu_retired_host *r = g->in_flight ? malloc(sizeof(*r)) : NULL;

    if (!g->in_flight) {
        host_free(g, m->data, m->bytes);
    } else if (r) { /* without memory for the list element it stays pinned until the process ends */
        *r = (struct gpu_retired_host){.memory = m->data, .bytes = m->bytes};
        LIST_INSERT_HEAD(&g->retired_host, r, link);
    }
    *m = (struct device_memory){.data = NULL};
}

void gpus_host_retired_free(struct gpus *g)
{
    struct gpu_retired_host *r;

    while ((r = LIST_FIRST(&g->retired_host))) {
        LIST_REMOVE(r, link);
        host_free(g, r->memory, r->bytes);
        free(r);
    }
}
