/* SPDX-License-Identifier: MIT
 *
 * gpu_data.c - data between nodes, for ranks on GPUs.
 *
 * Sending. Send bounce buffers are pinned host memory. Kernels store into them over the bus, as into a peer's memory, and the proxy sends from
 * there. Each GPU has a FIFO of triggers: slots and tail in pinned host memory, the producers' head in the GPU's (kernels/gpu/device/triggers.h).
 *
 *   kernel                      proxy                            other node's proxy
 *     slice into the bounce buffer
 *     trigger into the FIFO ---> net_write() ----rows----------> into the receive bounce buffer, copy_in() to the GPU
 *     flag's trigger ----------> net_flag() -----flag----------> device_rank.arrived, behind the copies
 *
 * Receiving. A region in a GPU's memory has a receive bounce buffer: pinned host memory of its size. The proxy receives into it, or
 * other nodes' adapters write into it (RDMA; a notice to the proxy follows each area, daemon/net/verbs/verbs.h). A complete area is copied into
 * the GPU's memory by a copy engine (copy_in()): the copy waits for no kernel, and the proxy does not wait for the copy. Flags that other
 * nodes raise are stored in host memory (device_rank.arrived) after the copies of earlier areas have been enqueued.
 *
 * Direct RDMA. An adapter may write into the GPU's memory itself, if the GPU's driver exports it as a dma-buf and the adapter's driver imports
 * that; then there is no bounce buffer and no copy. The rows are in that memory before the flag's receive completes
 * (daemon/net/verbs/verbs.h). Kernels launched after a flush see them, and the flush precedes the store of the flag in `arrived`
 * (gpu_data_flag_raise()). So kernels of a step see these writes, as they see copies. Direct RDMA has not run on any machine yet.
 */
#include "daemon/worker/nodes/gpu_data.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/net/proxy.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/device/gpu/gpus.h"
#include "daemon/worker/device/gpu/host_memory.h"
#include "daemon/worker/nodes/nodes.h"
#include "proto/base/log.h"

static_assert(sizeof(struct fifo_slot) == 2 * sizeof(uint64_t), "what kernels take a slot for");

/* The receive bounce buffer of a region. The list is the engine's; other fields do not change while the proxy knows the region. */
struct receive_bounce {
    LIST_ENTRY(receive_bounce) link;
    struct gpus *gpus;
    const struct gpu_plugin *plugin;
    uint64_t comm;
    int rank;
    uint32_t region;
    int gpu;
    uint64_t address; /* of the region in the GPU's memory */
    struct device_memory memory;
    struct net_direct direct; /* the GPU's memory for adapters. fd -1: adapters cannot write there, why_not says why */
    struct error why_not;
};

/* The proxy's thread. */
static int received(void *ctx, uint64_t offset, const struct net_area *area, struct error *e)
{
    const struct receive_bounce *b = ctx;

    return b->plugin->copy_in(b->gpu, b->address + offset, b->memory.data + offset, area->row_bytes, area->stride, area->rows,
                              e);
}

/* The proxy's thread: an adapter serves the region, directly or not. Logged once per GPU for each of the two cases. */
static void given(void *ctx, const char *adapter, bool is_direct, const struct error *why)
{
    const struct receive_bounce *b = ctx;
    struct gpu_receiving *r = &b->gpus->receiving[b->gpu];
    const char *kind = b->plugin->kind;

    r->is_direct |= is_direct;
    if (r->told >> is_direct & 1u)
        return;
    r->told |= 1u << is_direct;
    if (is_direct)
        log_info("%s GPU %d: %s writes into its memory what comes from other nodes (dma-buf)", kind, b->gpu, adapter);
    else
        log_info("%s GPU %d: what comes from other nodes over %s lands in host memory: %s", kind, b->gpu, adapter,
                 why ? why->text : b->why_not.text);
}

void gpu_data_flag_raise(const struct device *d, _Atomic uint64_t *flag, uint64_t epoch)
{
    const struct gpus *g = d->worker->gpus;
    struct error e;

    /* On failure the context is lost, and no kernel runs any more; the watching thread tells the ranks. */
    if (g->receiving[d->index].is_direct && g->plugin->writes_flush(d->index, &e))
        log_warning("what has come from other nodes: %s", e.text);
    atomic_store_explicit(flag, epoch, memory_order_release);
}

void gpu_data_flush(const struct device *d)
{
    const struct gpus *g = d->worker->gpus;
    struct error e;

    for (int i = 0; i < g->count; i++)
        if (g->receiving[i].is_direct && g->plugin->writes_flush(i, &e))
            log_warning("what has come from other nodes: %s", e.text);
}

/* Export the GPU's memory for adapters. It is no error if that is not possible; why_not says why. */
static void direct_make(struct receive_bounce *b, const struct config *config, uint64_t bytes)
{
    b->direct = (struct net_direct){.fd = -1, .address = b->address};
    if (!strcmp(config->transport, "tcp"))
        return; /* nobody would take it */
    if (b->plugin->memory_export(b->gpu, b->address, gpu_page_round(bytes), &b->direct.fd, &b->direct.fd_offset, &b->why_not))
        b->direct.fd = -1;
}

static void receive_bounce_free(struct receive_bounce *b)
{
    fd_close(&b->direct.fd);
    gpus_host_free(&b->memory);
    free(b);
}

int receive_bounce_add(const struct comm *c, int rank, uint32_t region, const struct device_memory *m, uint64_t bytes,
                       void **base, struct net_bounce *out, struct error *e)
{
    struct gpus *g = c->worker->gpus;
    struct receive_bounce *b = calloc(1, sizeof(*b));
    struct error why = {.text = "out of memory"};

    if (!b || gpus_host_alloc(c->worker, bytes, &b->memory, &why)) {
        free(b);
        return error_set(e, -ENOMEM, "no memory for %llu bytes to come from other nodes: %s", (unsigned long long)bytes,
                         why.text);
    }
    b->gpus = g;
    b->plugin = g->plugin;
    b->comm = nodes_memory_here(c);
    b->rank = rank;
    b->region = region;
    b->gpu = c->members[rank].dev->device->index;
    b->address = (uint64_t)(uintptr_t)m->data;
    LIST_INSERT_HEAD(&g->receive_bounces, b, link);
    *base = b->memory.data;
    direct_make(b, &c->worker->config, bytes);
    *out = (struct net_bounce){.received = received, .ctx = b, .direct = b->direct.fd >= 0 ? &b->direct : NULL, .given = given};
    return 0;
}

void receive_bounces_remove(struct worker *w, uint64_t number, int rank, uint32_t region)
{
    struct gpus *g = w->gpus;
    uint32_t awaited = 0;
    struct receive_bounce *b, *next;

    for (b = g ? LIST_FIRST(&g->receive_bounces) : NULL; b; b = next) {
        struct error e = {0};
        next = LIST_NEXT(b, link);
        if (b->comm != number || (rank >= 0 && (b->rank != rank || b->region != region)))
            continue;
        /* Waits for copies only, which end soon. A lost context copies nothing. */
        if (!(awaited & 1u << b->gpu) && g->plugin->copies_await(b->gpu, &e))
            log_warning("copies from other nodes: %s", e.text);
        awaited |= 1u << b->gpu;
        LIST_REMOVE(b, link);
        receive_bounce_free(b);
    }
}

/* ---- FIFOs ---- */

/* As many triggers as all producers may push at once, several times. */
static uint32_t fifo_capacity(uint32_t producers)
{
    uint32_t capacity = 8192;

    while (capacity < 4 * producers)
        capacity *= 2;
    return capacity;
}

static int fifo_make(struct device *d, struct proxy *proxy, struct error *e)
{
    enum { RESIDENT_MOST = 64 /* workgroups on a multiprocessor: more than any GPU has */ };
    struct gpus *g = d->state;
    struct gpu_sending *s = &g->sending[d->index];
    uint32_t producers = g->descriptions[d->index].multiprocessors * RESIDENT_MOST, capacity = fifo_capacity(producers);
    int status;

    if (s->host.data)
        return 0;
    status = device_memory_alloc(d, 2 * sizeof(uint64_t), &s->head, NULL, e);
    if (status)
        return status;
    status = gpus_host_alloc(d->worker, sizeof(struct fifo) + capacity * sizeof(struct fifo_slot), &s->host, e);
    if (!status) {
        struct fifo *f = (struct fifo *)(void *)s->host.data;
        struct fifo_slot *slots = (struct fifo_slot *)(void *)(s->host.data + sizeof(*f));
        (void)fifo_init(f, slots, capacity, producers, -1);
        s->fifo = (struct gpu_fifo){.head = (uint64_t)(uintptr_t)s->head.data,
                                    .tail = (uint64_t)(uintptr_t)&f->tail,
                                    .slots = (uint64_t)(uintptr_t)slots,
                                    .capacity = capacity,
                                    .room = capacity - producers};
        status = proxy_feed_add(proxy, f, e);
        if (status)
            gpus_host_free(&s->host);
    }
    if (status)
        device_memory_free(d, &s->head);
    return status;
}

int gpu_data_rank_open(struct member *m, struct proxy *proxy, struct error *e)
{
    m->dev->arrived = calloc(PLAN_MAX_FLAGS, sizeof(m->dev->arrived[0]));
    if (!m->dev->arrived)
        return error_set(e, -ENOMEM, "rank %d: no memory for flags", m->rank);
    return fifo_make(m->dev->device, proxy, e);
}

void gpu_data_close(struct worker *w)
{
    struct gpus *g = w->gpus;

    for (int i = 0; g && i < g->count; i++) {
        struct gpu_sending *s = &g->sending[i];
        if (!s->host.data)
            continue;
        device_memory_free(&g->devices[i], &s->head);
        gpus_host_free(&s->host);
    }
    if (g)
        gpus_host_retired_free(g);
}
