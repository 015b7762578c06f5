/* SPDX-License-Identifier: MIT
 *
 * device_gpu.c - GPUs, through a plug-in (kernels/gpu.h): memory that all of them can address, and operators as one kernel
 * per GPU.
 *
 * Stream order. An operator that has its place on clients' streams begins on no GPU before all its ranks' streams have come
 * to it. Usually the GPU itself waits for that (stream memory operations): the operator is enqueued at once and costs no
 * round trip through the CPU. But one GPU's queue has one order, so an operator in front of it that waits for a client's
 * stream holds back the next one, and that stream may be waiting for the next one's result, if that is another
 * communicator's. So with several communicators (and where GPUs cannot wait) the operator is held back here, gated: the
 * watching thread looks at the streams' words, and the engine enqueues the operator when all have come. With one communicator
 * an operator that was enqueued never depends on a later one: each rank submits its operators in the order of its streams.
 * Kernels of all parts are enqueued together, by this thread and its helpers (gpu_start.h), and one operator's before the next
 * one's, so all GPUs have the same order of operators.
 *
 * Ahead. While operator n of a communicator is in the GPUs' queues, n + 1 may be put behind it (up to AHEAD of them), so that
 * when n has ended the client's stream is all that is left to wait for. n + 1 must not begin on one GPU before n has ended on
 * all of them, and the streams alone do not see to that: a rank may have used another one for n. So on each GPU n + 1 waits
 * for the done words of n, too: those of the other GPUs, because its own has one order. The last workgroup writes its word
 * (release, system scope) after everything that n has read or written there, so what follows is as if n + 1 had been enqueued
 * when n was over:
 *   - staging memory, flags, the ranks' results: not touched by two operators at a time. Flags are epochs, and only grow.
 *   - what a plug-in keeps for a launch (plans, counters, times, where staging lies) belongs to one struct launch, and one that
 *     runs is not in the cache: of one problem that runs twice at a time there are two.
 *   - what kernels tell the engine is written into struct gpu_told: one for each launch that runs.
 *   - staging memory does not move while anything runs (launch.c).
 * An operator that fails by its data tells all ranks its own epoch, and n + 1 does not mind that. One that could not be
 * enqueued on every GPU is made to leave when n is over, and nothing is put behind it. The end of a communicator is the newest
 * epoch. What a stream waits for never stands behind what waits for that stream, but for a program whose streams come to its
 * communicator's operators in another order than it has submitted them: those would have waited for ever before, too.
 *
 * What kernels and the engine share lies in host memory that the GPUs see: struct gpu_shared for a communicator, and the
 * clients' session memory. Neither is unmapped while any kernel that might touch it is in flight.
 *
 * Contexts that are lost stay lost: the worker then says so to its clients and ends; the next connection gets a fresh one.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "gpu_call.h"
#include "gpu_node.h"
#include "log.h"

#define AHEAD 4u /* launches of a communicator that are in the GPUs' queues at most; a power of two */

/* What kernels tell of one launch; valid with `done`. */
struct gpu_told {
    uint64_t span[GPU_MAX_GPUS][2];             /* each GPU's clock at the kernel's begin and end */
    struct gpu_failure failures[FCC_MAX_RANKS]; /* kind 0 when the launch begins */
};

struct gpu_shared {
    struct comm_shared common;           /* the engine's and the watching thread's */
    uint64_t address;                    /* where the GPUs see all this; the engine's */
    _Atomic uint64_t done[GPU_MAX_GPUS]; /* of each GPU's part: the epoch, by the last workgroup to leave */
    struct gpu_told told[AHEAD];         /* of launch n in [n % AHEAD] */
};

static struct gpu_shared *shared_of(const struct comm *c)
{
    return (struct gpu_shared *)c->shared;
}

static struct gpu_told *told_of(const struct launch *l)
{
    return &shared_of(l->comm)->told[l->epoch % AHEAD];
}

static int gpu_open(struct device *d, struct error *e)
{
    struct gpus *g = d->worker->gpus;
    bool ipc = !strcmp(d->worker->config.gpu_sharing, "ipc");
    int status = g->plugin->open(1u << d->index, ipc, e);

    if (status)
        return status;
    g->open |= 1u << d->index;
    d->state = g;
    return 0;
}

static void gpu_close(struct device *d)
{
    (void)d; /* the plug-in closes them together: gpus_close() */
}

/* ---- memory ---- */

static int gpu_memory_alloc(struct device *d, uint64_t bytes, struct device_memory *out, int *fd, struct error *e)
{
    struct gpu_memory m;
    int status = ((struct gpus *)d->state)->plugin->memory_alloc(d->index, bytes, &m, fd, e);

    if (status) {
        gpu_watch_suspect(d->worker->gpus->watch, 1u << d->index);
        return status;
    }
    *out = (struct device_memory){
        .data = (unsigned char *)(uintptr_t)m.address, .bytes = m.bytes, .kind = (enum fcc_memory_kind)m.kind, .gpu = m};
    return 0;
}

static void gpu_memory_free(struct device *d, struct device_memory *m)
{
    d->worker->gpus->plugin->memory_free(&m->gpu);
}

static int gpu_comm_open(struct device *d, struct comm *c, struct error *e)
{
    size_t bytes = gpu_page_round(sizeof(struct gpu_shared));
    struct gpu_shared *s = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

    if (s == MAP_FAILED)
        return error_set(e, -ENOMEM, "no memory for a communicator");
    int status = d->worker->gpus->plugin->host_register(s, bytes, &s->address, e);
    if (status) {
        (void)munmap(s, bytes);
        return status;
    }
    c->shared = &s->common;
    return 0;
}

static void gpu_comm_close(struct device *d, struct comm *c)
{
    struct gpu_shared *s = shared_of(c);

    d->worker->gpus->plugin->host_unregister(s);
    (void)munmap(s, gpu_page_round(sizeof(*s)));
    c->shared = NULL;
}

/* ---- launching ---- */

/* Which words the streams of the ranks set. Returns how many ranks have a stream. */
static int streams_note(struct launch *l)
{
    int n = 0;

    for (int r = 0; r < l->nranks; r++) {
        const struct submission *sub = l->submissions[r];
        struct session *s = sub->session;
        l->streams[r] = (struct launch_stream){.value = 0};
        if (!sub->stream || !s)
            continue;
        uint64_t slot = s->gpu_address + offsetof(struct fcc_session_memory, slot) + sub->slot * sizeof(struct fcc_slot);
        l->streams[r] = (struct launch_stream){.started = &s->memory->slot[sub->slot].stream_started,
                                               .started_address = slot + offsetof(struct fcc_slot, stream_started),
                                               .finished_address = slot + offsetof(struct fcc_slot, stream_finished),
                                               .value = sub->stream};
        n++;
    }
    return n;
}

static bool is_only_comm(const struct comm *mine)
{
    const struct comm *c;

    LIST_FOREACH(c, &mine->worker->comms, link)
        if (c != mine && c->ops == mine->ops)
            return false;
    return true;
}

static int part_make(struct launch *l, struct launch_part *p, struct error *e)
{
    struct gpus *g = p->device->state;
    struct gpu_run runs[GPU_MAX_RUNS];
    uint64_t flags[FCC_MAX_RANKS];
    struct gpu_shape shape;
    int status = 0;

    if (p->gpu)
        return 0;
    for (int r = 0; r < l->nranks; r++)
        flags[r] = (uint64_t)(uintptr_t)l->comm->members[r].flags.data;
    for (int i = 0; i < p->nruns && status == 0; i++)
        status = gpu_run_make(l->runs[p->ranks[i]].plan, &runs[i], e);
    if (status)
        return status;
    gpu_shape_make(l->problem, l->runs[0].plan, &shape);
    return g->plugin->launch_make(p->device->index, &shape, flags, runs, p->nruns, &p->gpu, e);
}

/* The calls' argument: where everything is now. */
static int part_fill(struct launch *l, struct launch_part *p, struct gpu_call *call, struct error *e)
{
    uint64_t shared = shared_of(l->comm)->address;
    uint64_t told = shared + offsetof(struct gpu_shared, told) + l->epoch % AHEAD * sizeof(struct gpu_told);
    int ranks[GPU_MAX_RUNS];

    *call = (struct gpu_call){
        .epoch = l->epoch,
        .stamp = l->stamp,
        .slots_at = l->stamp % 2 * l->comm->slots_bytes,
        .done = shared + offsetof(struct gpu_shared, done) + (uint64_t)p->device->index * sizeof(uint64_t),
        .span = told + offsetof(struct gpu_told, span) + (uint64_t)p->device->index * 2 * sizeof(uint64_t),
    };
    for (int i = 0; i < p->nruns; i++) {
        int r = ranks[i] = p->ranks[i];
        call->in[i].failure = told + offsetof(struct gpu_told, failures) + (uint64_t)r * sizeof(struct gpu_failure);
        call->in[i].stream_word = l->streams[r].value ? l->streams[r].finished_address : 0;
        call->in[i].stream_value = l->streams[r].value;
    }
    return gpu_call_fill(((struct gpus *)p->device->state)->plugin, p->gpu, l->args, l->nranks, ranks, p->nruns, call, e);
}

/* What a part waits for. First the other GPUs' parts of the launch before, if it may still be running: that is over before the
 * ranks' streams can have seen its end, so it costs no time. Then the streams. */
static int part_words(const struct launch *l, const struct launch_part *p, uint64_t words[], uint32_t values[])
{
    uint64_t done = shared_of(l->comm)->address + offsetof(struct gpu_shared, done);
    int n = 0;

    for (int i = 0; l->comm->current != l && i < l->nparts; i++) {
        if (&l->parts[i] == p)
            continue;
        words[n] = done + l->parts[i].gpu_index * sizeof(uint64_t); /* little-endian: its lower half */
        values[n++] = (uint32_t)(l->epoch - 1);
    }
    for (int r = 0; r < l->nranks; r++) {
        if (!l->streams[r].value)
            continue;
        words[n] = l->streams[r].started_address;
        values[n++] = l->streams[r].value;
    }
    return n;
}

/* A launch on its way into the GPUs' queues. Each part's thread writes its own error. */
struct start {
    struct launch *launch;
    bool waits;
    struct error errors[GPU_MAX_GPUS];
};

static void part_start(void *argument, int i)
{
    struct start *start = argument;
    struct launch *l = start->launch;
    struct launch_part *p = &l->parts[i];
    const struct gpu_plugin *plugin = ((struct gpus *)p->device->state)->plugin;
    uint64_t staging[FCC_MAX_RANKS], slots[FCC_MAX_RANKS], words[GPU_MAX_WORDS];
    uint32_t values[GPU_MAX_WORDS];
    struct error *e = &start->errors[i];
    struct gpu_call call;

    if (e->status || part_fill(l, p, &call, e))
        return;
    for (int r = 0; r < l->nranks; r++) {
        staging[r] = (uint64_t)(uintptr_t)l->staging[r];
        slots[r] = (uint64_t)(uintptr_t)l->comm->members[r].slots.data;
    }
    (void)plugin->launch_start(p->gpu, &call, staging, slots, words, values, start->waits ? part_words(l, p, words, values) : 0,
                               e);
}

/* Enqueue all parts. Those of a launch of which one cannot be are to leave: now, or when it has become the current one
 * (launch_finish()). */
static void parts_start(struct launch *l, bool waits)
{
    struct gpu_told *told = told_of(l);
    struct start start;
    bool failed = false;

    start.launch = l;
    start.waits = waits;

    for (int r = 0; r < l->nranks; r++)
        told->failures[r].kind = GPU_FAILURE_NONE;
    for (int i = 0; i < l->nparts; i++) {
        start.errors[i].status = 0;
        (void)part_make(l, &l->parts[i], &start.errors[i]);
    }
    gpu_start_each(l->worker->gpus->starters, l->nparts, part_start, &start);
    for (int i = 0; i < l->nparts; i++) {
        struct launch_part *p = &l->parts[i];
        p->absent = start.errors[i].status != 0;
        if (!p->absent)
            continue;
        failed = true;
        launch_fail(l, p->ranks[0], &start.errors[i]);
        gpu_watch_suspect(l->worker->gpus->watch, 1u << p->device->index);
    }
    if (failed && l == l->comm->current)
        gpus_launch_abort(l);
}

/* Not behind one that is held back here, or that a GPU has not taken: its part would not say that it is done. Nor while
 * somebody waits to see an operator's times: the next one's would write over them. Nor where the epochs' lower halves, which
 * are what GPUs compare, come to their end. */
static bool gpu_launch_follows(const struct comm *c)
{
    const struct launch *l = c->newest;

    return c->running < AHEAD && l->worker->gpus->all_wait && is_only_comm(c) && !l->gated &&
           !atomic_load_explicit(&l->failed, memory_order_relaxed) && LIST_EMPTY(&c->trace_waiters) &&
           (l->epoch < AHEAD || (uint32_t)(l->epoch + AHEAD) >= 2 * AHEAD);
}

static void gpu_launch(struct device *d, struct launch *l)
{
    struct gpus *g = d->state;
    int streams = streams_note(l);

    for (int i = 0; i < l->nparts; i++)
        l->parts[i].gpu_index = (unsigned)l->parts[i].device->index;
    g->in_flight++;
    l->gated = streams && (!g->all_wait || !is_only_comm(l->comm));
    if (!l->gated)
        parts_start(l, true);
    gpu_watch_add(g->watch, l);
}

static bool stream_has_come(const struct launch_stream *s)
{
    return !s->value || (int32_t)(atomic_load_explicit(s->started, memory_order_acquire) - s->value) >= 0;
}

int gpus_launch_missing(const struct launch *l, char *text, size_t room)
{
    size_t n = 0;
    int count = 0;

    for (int r = 0; r < l->nranks && n < room; r++)
        if (!stream_has_come(&l->streams[r]))
            n += (size_t)snprintf(text + n, room - n, "%srank %d", count++ ? ", " : "", r);
    return count;
}

bool gpu_launch_is_due(const struct launch *l)
{
    const struct gpu_shared *shared = shared_of(l->comm);

    if (l->gated && atomic_load_explicit(l->status, memory_order_relaxed))
        return true;
    for (int r = 0; l->gated && r < l->nranks; r++)
        if (!stream_has_come(&l->streams[r]))
            return false;
    for (int p = 0; !l->gated && p < l->nparts; p++)
        if (!l->parts[p].absent && atomic_load_explicit(&shared->done[l->parts[p].gpu_index], memory_order_acquire) < l->epoch)
            return false;
    return true;
}

bool gpus_launch_take(struct launch *l)
{
    return gpu_launch_is_due(l) && gpu_watch_take(l->worker->gpus->watch, l);
}

/* Kernels poll their ranks' failure epochs: those up to this one leave. */
static void epoch_fail(struct comm *c, uint64_t epoch)
{
    struct error e = {0};

    for (int r = 0; r < c->nranks; r++) {
        const struct member *m = &c->members[r];
        uint64_t failed = (uint64_t)(uintptr_t)m->flags.data + PLAN_MAX_FLAGS * sizeof(uint64_t);
        if (c->worker->gpus->plugin->word_store(m->device->index, failed, epoch, &e))
            log_error("comm %u: %s", c->number, e.text);
    }
}

/* A kernel that stands behind a client's stream must first come: nothing is waited for any more. */
static void streams_pass(struct launch *l)
{
    for (int r = 0; r < l->nranks; r++) {
        struct launch_stream *s = &l->streams[r];
        if (!s->value)
            continue;
        /* Not over the stream's own write, which the client waits for before it uses the slot again. */
        uint32_t seen = atomic_load_explicit(s->started, memory_order_relaxed);
        if ((int32_t)(seen - s->value) < 0)
            (void)atomic_compare_exchange_strong_explicit(s->started, &seen, fcc_stream_passed(s->value), memory_order_release,
                                                          memory_order_relaxed);
    }
}

void gpus_launch_abort(struct launch *l)
{
    if (l->gated)
        return;
    epoch_fail(l->comm, l->epoch);
    streams_pass(l);
}

void gpus_comm_abort(struct comm *c)
{
    if (c->current->gated)
        return; /* it is the only one */
    epoch_fail(c, c->newest->epoch);
    for (struct launch *l = c->current; l; l = l->following)
        streams_pass(l);
}

static bool gpu_launch_collect(struct device *d, struct launch *l)
{
    struct gpus *g = d->state;
    const struct gpu_told *told = told_of(l);
    bool begun = !l->gated;

    if (l->gated && !atomic_load_explicit(l->status, memory_order_relaxed)) {
        l->gated = false;
        parts_start(l, false);
        gpu_watch_add(g->watch, l);
        return false;
    }
    l->gated = false;
    l->busy_ns = 0;
    for (int i = 0; begun && i < l->nparts; i++) {
        const uint64_t *span = told->span[l->parts[i].device->index];
        uint64_t ns = l->parts[i].absent || span[1] < span[0] ? 0 : span[1] - span[0];
        if (ns > l->busy_ns)
            l->busy_ns = ns;
    }
    for (int r = 0; begun && r < l->nranks; r++) {
        struct error e = {0};
        if (gpu_failure_explain(&told->failures[r], &e))
            launch_fail(l, r, &e);
    }
    if (--g->in_flight == 0)
        gpus_retired_free(g);
    return true;
}

static void gpu_launch_release(struct device *d, struct launch *l)
{
    for (int p = 0; p < l->nparts; p++)
        if (l->parts[p].gpu)
            d->worker->gpus->plugin->launch_free(l->parts[p].gpu);
}

static int gpu_times_fetch(struct device *d, struct launch *l, struct error *e)
{
    const struct gpu_plugin *plugin = d->worker->gpus->plugin;
    int status = 0;

    for (int p = 0; p < l->nparts; p++)
        for (int i = 0; i < l->parts[p].nruns && status == 0 && l->parts[p].gpu; i++)
            status = plugin->launch_times(l->parts[p].gpu, i, l->runs[l->parts[p].ranks[i]].times_shown, e);
    return status;
}

const struct device_ops gpu_device_ops = {
    .kind = "gpu",
    .number = FCC_DEVICE_GPU,
    .open = gpu_open,
    .memory_alloc = gpu_memory_alloc,
    .memory_free = gpu_memory_free,
    .comm_open = gpu_comm_open,
    .comm_close = gpu_comm_close,
    .launch_follows = gpu_launch_follows,
    .launch = gpu_launch,
    .launch_collect = gpu_launch_collect,
    .launch_release = gpu_launch_release,
    .times_fetch = gpu_times_fetch,
    .close = gpu_close,
};
