/* SPDX-License-Identifier: MIT
 *
 * steps.c - communicators over several nodes whose ranks are on GPUs.
 *
 * Sending. Shadows are pinned host memory, into which kernels store over the bus as into a peer's memory; from there the proxy sends. Each
 * GPU has a FIFO for its triggers: the slots and the tail in pinned host memory, the producers' head in the GPU's (kernels/gpu/device/triggers.h).
 *
 *   kernel                      proxy                            other node's proxy
 *     slice into the shadow
 *     trigger into the FIFO ---> net_write() ----rows----------> into the landing place, copy_in() to the GPU
 *     flag's trigger ----------> net_flag() -----flag----------> member.arrived, behind the copies
 *
 * Receiving. A region in a GPU's memory has a landing place: pinned host memory of its size, where the proxy receives, or other nodes'
 * adapters write (RDMA: then the proxy is told of each area behind it, daemon/net/verbs/verbs.h). When an area has come whole it is copied into the GPU's memory (copy_in(): a copy engine's work, which waits for no kernel and is not waited for
 * here). Flags that other nodes raise are noted in host memory (member.arrived), behind the areas that came before them.
 *
 * Steps. A kernel of such an operator waits for no other node; for GPUs here it may, as on one node. The operator is up to three
 * kernels on each GPU, one after the other:
 *   send     all slices that wait for nothing, or for slices of ranks here: they compute and put, and add up what a node's ranks put
 *   reduce   ... that wait for other nodes' slices (and for those of ranks here) and add them up
 *   wait     the last: results are there, are handed on to other ranks here, streams are told
 * (Adding up a node's, and handing on, is what hierarchical plans do: kernels/plan/exchange/reduce_nodes.c.) A step begins when the one before
 * has ended on all GPUs here, and when the flags that other nodes raise for its slices have arrived. That is so of the first
 * one, too: where no rank here has anything to send it is no send (gpu_launch()). Its kernel stands behind all copies that
 * were enqueued before (launch_start()). So its slices need not look at flags, but for those that GPUs here raise in the same
 * step.
 *
 * Why that is right. A flag that a step's slices wait for is raised by a rank here, by a slice of an earlier step, whose
 * kernel has ended (`done`, with release, was seen with acquire, and the next kernel is started after that); or by a rank
 * elsewhere: then the proxy has enqueued the copies of what came before it, then stored the flag in `arrived` (release), which
 * gpus_step_may_begin() has seen (acquire): so the kernel is enqueued after those copies, and stands behind them. Slices that
 * wait for what their own step does, which is for ranks here only, look at flags themselves (gpu_slice_looks()): all of the
 * first step that wait, and of the last those that wait for what another rank hands on. What a rank hands on it reads from its
 * own y, into which its own GPU's copies have stored it.
 *
 * Why nothing deadlocks. A kernel waits for slices of its own step's kernels, which all GPUs here have been given together,
 * each in the same order with all others, as on one node; or for room in its FIFO; and that for the proxy and the links, which
 * wait for no kernel: what comes is received into landing places whatever the GPUs do. So each kernel that runs ends, however
 * operators of several communicators follow each other on a GPU, here and elsewhere: nodes need no common order.
 *
 * Directly. Over RDMA an adapter may write into the GPU's memory by itself, where the driver gives out a dma-buf of it and the adapter's
 * driver takes that: then nothing lands and nothing is copied. The rows are in that memory before the flag's receive completes
 * (daemon/net/verbs/verbs.h), and the GPU sees them in all kernels that are launched after a flush, which comes before the flag is stored in
 * `arrived` (gpus_flag_raise()). So what was said of copies holds of these writes: the kernel of the step is launched behind them. This way
 * has run on no machine yet.
 *
 * What is late. Nothing of an earlier turn comes after its DONE (nodes/nodes.c); of an operator that failed there may still be copies on their
 * way, for which no kernel has waited. The next turn's kernels stand behind the copies to their own GPU, but they also store into the memory of
 * the other GPUs here, perhaps where such a copy is about to come. So after a failure the next turn's first kernels are launched when
 * all copies to these GPUs are done (late_await()); and what adapters have written is flushed at DONE. What comes to the same landing
 * place before may get into such a copy; its own copy follows it.
 *
 * The proxy cannot be woken by a GPU. It stays awake while such kernels run (proxy_stay_awake()), and they do not wait for other nodes.
 */
#include "daemon/worker/device/gpu/steps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/net/proxy.h"
#include "daemon/worker/device/gpu/gpus.h"
#include "daemon/worker/engine/account.h"
#include "daemon/worker/nodes/nodes.h"
#include "proto/base/log.h"

static_assert(sizeof(struct fifo_slot) == 2 * sizeof(uint64_t), "what kernels take a slot for");
static_assert(FCC_MAX_RANKS <= 64, "a bit each in gpu_nodes.remote");

/* Where an area lands, on its way to a GPU. The list is the engine's; the rest does not change while a receiver may know the region. */
struct landing {
    LIST_ENTRY(landing) link;
    struct gpus *gpus;
    const struct gpu_plugin *plugin;
    uint64_t comm;
    int rank;
    uint32_t region;
    int gpu;
    uint64_t address; /* the GPU's */
    struct device_memory memory;
    struct net_direct direct; /* .fd -1: none, and why_not says why */
    struct error why_not;
};

/* Pinned memory that is not used any more, but kernels run, and to unpin it might wait for them. */
struct gpu_retired_host {
    LIST_ENTRY(gpu_retired_host) link;
    void *memory;
    uint64_t bytes;
};

/* ---- memory ---- */

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
    } else if (r) { /* otherwise it stays for the process's life */
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

/* The proxy's thread. */
static int landed(void *ctx, uint64_t offset, const struct net_area *area, struct error *e)
{
    const struct landing *l = ctx;

    return l->plugin->copy_in(l->gpu, l->address + offset, l->memory.data + offset, area->row_bytes, area->stride, area->rows,
                              e);
}

/* The proxy's thread, as landed(): an adapter has the region. Said once for each GPU and way: it is the same for all its regions, mostly. */
static void given(void *ctx, const char *adapter, bool is_direct, const struct error *why)
{
    const struct landing *l = ctx;
    struct gpu_receiving *r = &l->gpus->receiving[l->gpu];
    const char *kind = l->plugin->kind;

    r->is_direct |= is_direct;
    if (r->told >> is_direct & 1u)
        return;
    r->told |= 1u << is_direct;
    if (is_direct)
        log_info("%s GPU %d: %s writes into its memory what comes from other nodes (dma-buf)", kind, l->gpu, adapter);
    else
        log_info("%s GPU %d: what comes from other nodes over %s lands in host memory: %s", kind, l->gpu, adapter,
                 why ? why->text : l->why_not.text);
}

void gpus_flag_raise(const struct device *d, _Atomic uint64_t *flag, uint64_t epoch)
{
    const struct gpus *g = d->worker->gpus;
    struct error e;

    /* If that fails the context is lost, and no kernel looks any more; the watching thread tells the ranks. */
    if (g->receiving[d->index].is_direct && g->plugin->writes_flush(d->index, &e))
        log_warning("what has come from other nodes: %s", e.text);
    atomic_store_explicit(flag, epoch, memory_order_release);
}

void gpus_done_flush(const struct device *d)
{
    const struct gpus *g = d->worker->gpus;
    struct error e;

    for (int i = 0; i < g->count; i++)
        if (g->receiving[i].is_direct && g->plugin->writes_flush(i, &e))
            log_warning("what has come from other nodes: %s", e.text);
}

/* The GPU's memory as an adapter could write it. None, with the reason, is no error. */
static void direct_make(struct landing *l, const struct config *config, uint64_t bytes)
{
    l->direct = (struct net_direct){.fd = -1, .address = l->address};
    if (!strcmp(config->transport, "tcp"))
        return; /* nobody would take it */
    if (l->plugin->memory_export(l->gpu, l->address, gpu_page_round(bytes), &l->direct.fd, &l->direct.fd_offset, &l->why_not))
        l->direct.fd = -1;
}

static void landing_free(struct landing *l)
{
    if (l->direct.fd >= 0)
        (void)close(l->direct.fd);
    gpus_host_free(&l->memory);
    free(l);
}

int gpus_landing_add(const struct comm *c, int rank, uint32_t region, const struct device_memory *m, uint64_t bytes,
                     void **base, struct net_landing *out, struct error *e)
{
    struct gpus *g = c->worker->gpus;
    struct landing *l = calloc(1, sizeof(*l));
    struct error why = {.text = "out of memory"};

    if (!l || gpus_host_alloc(c->worker, bytes, &l->memory, &why)) {
        free(l);
        return error_set(e, -ENOMEM, "no memory for %llu bytes to come from other nodes: %s", (unsigned long long)bytes,
                         why.text);
    }
    l->gpus = g;
    l->plugin = g->plugin;
    l->comm = nodes_memory_here(c);
    l->rank = rank;
    l->region = region;
    l->gpu = c->members[rank].device->index;
    l->address = (uint64_t)(uintptr_t)m->data;
    LIST_INSERT_HEAD(&g->landings, l, link);
    *base = l->memory.data;
    direct_make(l, &c->worker->config, bytes);
    *out = (struct net_landing){.landed = landed, .ctx = l, .direct = l->direct.fd >= 0 ? &l->direct : NULL, .given = given};
    return 0;
}

void gpus_landings_remove(struct worker *w, uint64_t number, int rank, uint32_t region)
{
    struct gpus *g = w->gpus;
    uint32_t awaited = 0;
    struct landing *l, *next;

    for (l = g ? LIST_FIRST(&g->landings) : NULL; l; l = next) {
        struct error e = {0};
        next = LIST_NEXT(l, link);
        if (l->comm != number || (rank >= 0 && (l->rank != rank || l->region != region)))
            continue;
        /* Of copies only, so soon. A context that is lost copies nothing. */
        if (!(awaited & 1u << l->gpu) && g->plugin->copies_await(l->gpu, &e))
            log_warning("copies from other nodes: %s", e.text);
        awaited |= 1u << l->gpu;
        LIST_REMOVE(l, link);
        landing_free(l);
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

int gpus_nodes_open(struct member *m, struct proxy *proxy, struct error *e)
{
    m->arrived = calloc(PLAN_MAX_FLAGS, sizeof(m->arrived[0]));
    if (!m->arrived)
        return error_set(e, -ENOMEM, "rank %d: no memory for flags", m->rank);
    return fifo_make(m->device, proxy, e);
}

void gpus_nodes_close(struct gpus *g)
{
    for (int i = 0; i < g->count; i++) {
        struct gpu_sending *s = &g->sending[i];
        if (!s->host.data)
            continue;
        device_memory_free(&g->devices[i], &s->head);
        gpus_host_free(&s->host);
    }
    gpus_host_retired_free(g);
}

/* ---- steps ---- */

static enum gpu_step step_of(const struct slice *s)
{
    if (s->kind == SLICE_WAIT || s->kind == SLICE_FORWARD)
        return GPU_STEP_WAIT;
    return s->kind == SLICE_REDUCE ? GPU_STEP_REDUCE : GPU_STEP_SEND;
}

/* Mark the flags that ranks elsewhere raise at a rank. */
static void remote_flags_mark(const struct launch *l, int rank, bool marks[])
{
    for (int r = 0; r < l->nranks; r++) {
        const struct plan *plan = l->runs[r].plan;
        for (uint32_t g = 0; !l->runs[r].device && g < plan->ngroups; g++)
            if (plan_reaches(plan, plan->groups[g].dst, rank))
                marks[plan->groups[g].flag] = true;
    }
}

/* Those of them that the slices of a step wait for; each once, in the first step that does. */
static int awaited_make(struct launch_run *run, enum gpu_step step, bool marks[], struct error *e)
{
    struct awaited_flags *a = &run->awaited[step];

    a->flags = calloc(PLAN_MAX_FLAGS, sizeof(a->flags[0]));
    if (!a->flags)
        return error_set(e, -ENOMEM, "no memory for a launch");
    for (uint32_t i = 0; i < run->plan->nslices; i++) {
        const struct slice *s = &run->plan->slices[i];
        for (uint32_t k = 0; step_of(s) == step && k < s->wait_count; k++) {
            uint32_t flag = s->wait_first + k * s->wait_stride;
            if (marks[flag])
                a->flags[a->n++] = flag;
            marks[flag] = false;
        }
    }
    uint32_t *fit = realloc(a->flags, (a->n + 1) * sizeof(a->flags[0]));
    a->flags = fit ? fit : a->flags;
    return 0;
}

int gpus_steps_make(struct launch *l, struct error *e)
{
    bool *marks = calloc(PLAN_MAX_FLAGS, sizeof(marks[0]));
    int status = 0;

    if (!marks)
        return error_set(e, -ENOMEM, "no memory for a launch");
    l->steps = 1u << GPU_STEP_WAIT;
    for (int r = 0; !status && r < l->nranks; r++) {
        struct launch_run *run = &l->runs[r];
        if (!run->device)
            continue;
        for (uint32_t i = 0; i < run->plan->nslices; i++)
            l->steps |= 1u << step_of(&run->plan->slices[i]);
        memset(marks, 0, PLAN_MAX_FLAGS * sizeof(marks[0]));
        remote_flags_mark(l, r, marks);
        for (enum gpu_step step = GPU_STEP_SEND; !status && step < GPU_STEPS; step++)
            status = awaited_make(run, step, marks, e);
    }
    free(marks);
    return status;
}

static enum gpu_step step_from(const struct launch *l, enum gpu_step step)
{
    while (step < GPU_STEPS && !(l->steps & 1u << step))
        step++;
    return step;
}

/* Of copies only, so soon. Those of its last turn have all been enqueued: their DONE has come, or this turn would not begin. */
static void late_await(const struct launch *l)
{
    for (int i = 0; i < l->nparts; i++) {
        const struct device *d = l->parts[i].device;
        struct error e;
        if (d->worker->gpus->plugin->copies_await(d->index, &e)) /* its context is lost: it copies nothing */
            log_warning("copies from other nodes: %s", e.text);
    }
    l->comm->nodes->is_late = false;
}

void gpus_steps_begin(struct launch *l)
{
    if (l->comm->nodes->is_late)
        late_await(l);
    for (int r = 0; r < l->nranks; r++)
        for (int step = 0; step < GPU_STEPS; step++)
            atomic_store_explicit(&l->runs[r].awaited[step].come, 0, memory_order_relaxed);
    l->step = step_from(l, GPU_STEP_SEND);
}

enum gpu_step gpus_step_next(const struct launch *l)
{
    return step_from(l, l->step + 1);
}

bool gpus_step_may_begin(struct launch *l, enum gpu_step step)
{
    for (int r = 0; r < l->nranks; r++) {
        struct awaited_flags *a = &l->runs[r].awaited[step];
        _Atomic uint64_t *arrived = l->comm->members[r].arrived;
        uint32_t come = atomic_load_explicit(&a->come, memory_order_acquire);
        while (come < a->n && atomic_load_explicit(&arrived[a->flags[come]], memory_order_acquire) >= l->epoch)
            come++;
        /* Either thread may be behind the other one: flags only grow, so that only costs another look. */
        atomic_store_explicit(&a->come, come, memory_order_release);
        if (come < a->n)
            return false;
    }
    return true;
}

void gpus_nodes_fill(const struct launch *l, const struct device *d, struct gpu_nodes *out)
{
    static const uint32_t first[GPU_STEPS + 1] = {GPU_PHASE_FREE, GPU_PHASE_REDUCE, GPU_PHASE_FORWARD, GPU_PHASES};

    out->fifo = d->worker->gpus->sending[d->index].fifo;
    out->remote = 0;
    for (int r = 0; r < l->nranks; r++)
        out->remote |= (uint64_t)(l->runs[r].device == NULL) << r;
    out->number = l->nodes_number;
    out->phase_first = first[l->step];
    out->phase_next = first[l->step + 1];
    out->later = !l->first_step;
}
