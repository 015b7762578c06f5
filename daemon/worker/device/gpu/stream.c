/* SPDX-License-Identifier: MIT
 *
 * The CPU cannot store into words in the memory of a GPU. The GPU's side stream does (word_store()): nothing blocks it, but the store takes
 * effect later. Three stores must not be late:
 *
 *   started = fcc_stream_passed(n), for an operator that is to leave. Late, it would let the slot's next operator begin before its stream has
 *   come. So when the operator has left, n is stored behind it on the side stream, and that is awaited before the client hears that the
 *   operator is over and may use the slot again. The client's stream may store the same n meanwhile.
 *
 *   finished = n, for an operator that no kernel has finished. Late, it would overwrite what the kernel of the slot's next operator stores. So
 *   before an operator is launched on a GPU, earlier gpus_word_store()s to it are awaited (stores_settle()).
 *
 *
 *   the failure epoch of a bound operator that is recalled. Late, it would not be seen by a kernel of the operator that is launched behind
 *   the recall (comm/bound/launcher.h). It is awaited in the same way.
 *
 * All this is rare. Memory of a GPU is freed only after all stores to that GPU are complete, because its owner may free it at once.
 */
#include "daemon/worker/device/gpu/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/engine/endpoint.h"
#include "proto/base/log.h"
#include "proto/session.h"

static_assert(GPU_MAX_GPUS <= FCC_MAX_GPUS, "masks have a bit for each");

/* A session's words in the memory of GPUs. */
struct gpu_words {
    struct device_memory memory[GPU_MAX_GPUS]; /* by GPU: struct fcc_stream_words. None: the client has not asked */
    int fds[GPU_MAX_GPUS];                     /* by GPU: the descriptor of that memory, for the client */
};

static uint64_t started_at(const struct gpu_words *words, int gpu, uint32_t slot)
{
    return (uint64_t)(uintptr_t)words->memory[gpu].data + offsetof(struct fcc_stream_words, started) +
           slot * sizeof(struct fcc_stream_word);
}

static uint64_t finished_at(const struct gpu_words *words, int gpu, uint32_t slot)
{
    return (uint64_t)(uintptr_t)words->memory[gpu].data + offsetof(struct fcc_stream_words, finished) +
           slot * sizeof(struct fcc_stream_word);
}

/* ---- sessions ---- */

uint32_t gpus_words_of(const struct device_comm *c)
{
    const struct gpus *g = c->worker->gpus;
    uint32_t mask = 0;

    if (c->ops->number == FCC_DEVICE_CPU || !strcmp(c->worker->config.gpu_sharing, "ipc"))
        return 0; /* memory shared by IPC handles ends with the process that has made it */
    if (c->over_nodes)
        return 0; /* over nodes this CPU begins operators, when their streams and other nodes are ready */
    for (int r = 0; r < c->nranks; r++) {
        const struct device *d = c->ranks[r].device;
        if (!g->descriptions[d->index].words_in_memory)
            return 0;
        mask |= 1u << d->index;
    }
    return mask;
}

static int words_make(struct gpus *g, struct gpu_words *words, uint32_t gpu, struct error *e)
{
    struct device_memory *m = &words->memory[gpu];
    struct error why = {0};

    if (device_memory_alloc(&g->devices[gpu], sizeof(struct fcc_stream_words), m, &words->fds[gpu], &why))
        return error_set(e, why.status, "stream words: %s", why.text);
    if (m->kind == FCC_MEMORY_GPU_FD)
        return 0;
    (void)close(words->fds[gpu]);
    device_memory_free(&g->devices[gpu], m);
    return error_set(e, -EOPNOTSUPP, "stream words: the driver has no memory that is shared by file descriptors");
}

int gpus_stream_words(struct session *s, const struct device_comm *c, uint32_t gpu, struct device_memory *out, int *fd,
                      struct error *e)
{
    int status = 0;

    if (gpu >= GPU_MAX_GPUS || !(c->words_gpus >> gpu & 1u))
        return error_set(e, -EINVAL, "stream words: gpu: %u: allowed are those that the communicator was said to have", gpu);
    if (!s->words)
        s->words = calloc(1, sizeof(*s->words));
    if (!s->words)
        return error_set(e, -ENOMEM, "stream words: out of memory");
    if (!(s->words_gpus >> gpu & 1u))
        status = words_make(c->worker->gpus, s->words, gpu, e);
    if (status)
        return status;
    s->words_gpus |= 1u << gpu;
    *out = s->words->memory[gpu];
    *fd = s->words->fds[gpu];
    return 0;
}

void gpu_words_free(struct gpus *g, struct gpu_words *words)
{
    for (int i = 0; words && i < GPU_MAX_GPUS; i++) {
        if (!words->memory[i].data)
            continue;
        (void)close(words->fds[i]);
        device_memory_free(&g->devices[i], &words->memory[i]);
    }
    free(words);
}

/* ---- stores in passing ---- */

void gpus_word_store(struct gpus *g, int gpu, uint64_t at, uint64_t value)
{
    struct error e = {0};

    if (g->plugin->word_store(gpu, at, value, &e))
        log_error("%s", e.text); /* the context is lost, which ends whatever waits for the word */
    g->stored_at[gpu] = at;
    g->stored |= 1u << gpu;
}

void gpus_stream_finish(struct session *s, uint32_t gpus, uint32_t slot, uint32_t value)
{
    for (int i = 0; i < GPU_MAX_GPUS; i++)
        if (gpus & s->words_gpus & 1u << i)
            gpus_word_store(s->worker->gpus, i, finished_at(s->words, i, slot), value);
}

int stores_settle(struct gpus *g, uint32_t mask, struct error *e)
{
    uint64_t seen;
    int status = 0;

    for (int i = 0; i < GPU_MAX_GPUS && status == 0; i++) {
        if (!(g->stored & mask & 1u << i))
            continue;
        /* The copy runs on the side stream, so earlier stores there are complete when it returns. */
        status = g->plugin->memory_copy(&seen, i, g->stored_at[i], sizeof(seen), e);
        g->stored &= ~(1u << i);
    }
    return status;
}

/* ---- launches ---- */

int streams_prepare(struct launch *l)
{
    int n = 0;

    for (int r = 0; r < l->nranks; r++) {
        struct launch_stream *s = &l->streams[r];
        n += s->value != 0;
        if (s->value && s->words)
            s->finished_address = finished_at(s->words, l->comm->ranks[r].device->index, s->slot);
    }
    l->passed = false;
    return n;
}

static bool stream_has_come(const struct launch_stream *s)
{
    return !s->value || (int32_t)(atomic_load_explicit(s->started, memory_order_acquire) - s->value) >= 0;
}

bool streams_have_come(const struct launch *l)
{
    for (int r = 0; r < l->nranks; r++)
        if (!stream_has_come(&l->streams[r]))
            return false;
    return true;
}

bool kernels_have_ended(const struct launch *l)
{
    if (atomic_load_explicit(&l->dropped, memory_order_relaxed))
        return true;
    for (int r = 0; r < l->nranks; r++)
        if (!gpu_done_reached(atomic_load_explicit(&l->streams[r].kernel->ended, memory_order_acquire), l->streams[r].run))
            return false;
    return true;
}

bool kernel_has_begun(const struct launch *l, int rank)
{
    uint64_t begun = atomic_load_explicit(&l->streams[rank].kernel->begun, memory_order_relaxed);

    return (int32_t)((uint32_t)begun - l->streams[rank].run) >= 0;
}

int gpus_launch_missing(const struct launch *l, char *text, size_t room)
{
    size_t n = 0;
    int count = 0;

    for (int r = 0; r < l->nranks && n < room; r++)
        if (l->bound ? !kernel_has_begun(l, r) : !stream_has_come(&l->streams[r]))
            n += (size_t)snprintf(text + n, room - n, "%srank %d", count++ ? ", " : "", r);
    return count;
}

/* A stream that has come, as this CPU sees, is not waited for: it wrote its word (a fence of the system before it) after all that was on it,
 * that was read with acquire, and the kernel is launched behind. In a group (fcc_group_begin()) all but the first have. */
int streams_await(const struct launch *l, const struct launch_part *p, bool own, uint64_t words[], uint32_t values[], int n)
{
    for (int r = 0; r < l->nranks; r++) {
        const struct launch_stream *s = &l->streams[r];
        if (own != (l->runs[r].device == p->device) || stream_has_come(s))
            continue;
        words[n] = s->words ? started_at(s->words, p->device->index, s->slot) : s->started_address;
        values[n++] = s->value;
    }
    return n;
}

void streams_tell(const struct launch *l, const struct launch_part *p, struct gpu_end *end)
{
    for (int i = 0; i < p->nruns; i++) {
        const struct launch_stream *s = &l->streams[p->ranks[i]];
        if (!s->value)
            continue;
        end->words[end->nwords] = s->finished_address;
        end->values[end->nwords++] = s->value;
    }
}

/* In the memory of all GPUs of the launch. */
static void started_store(struct launch *l, const struct launch_stream *s, uint32_t value)
{
    for (int p = 0; p < l->nparts; p++) {
        int gpu = l->parts[p].device->index;
        gpus_word_store(l->worker->gpus, gpu, started_at(s->words, gpu, s->slot), value);
    }
}

void streams_pass(struct launch *l)
{
    for (int r = 0; r < l->nranks; r++) {
        struct launch_stream *s = &l->streams[r];
        if (!s->value)
            continue;
        if (s->words) {
            started_store(l, s, fcc_stream_passed(s->value));
            l->passed = true;
            continue;
        }
        /* Do not overwrite the stream's own store: the client waits for it before it uses the slot again. */
        uint32_t seen = atomic_load_explicit(s->started, memory_order_relaxed);
        if (!gpu_word_reached(seen, s->value))
            (void)atomic_compare_exchange_strong_explicit(s->started, &seen, fcc_stream_passed(s->value), memory_order_release,
                                                          memory_order_relaxed);
    }
}

void streams_restore(struct launch *l)
{
    uint32_t mask = 0;
    struct error e = {0};

    if (!l->passed)
        return;
    for (int p = 0; p < l->nparts; p++)
        mask |= 1u << l->parts[p].device->index;
    for (int r = 0; r < l->nranks; r++)
        if (l->streams[r].value && l->streams[r].words)
            started_store(l, &l->streams[r], l->streams[r].value);
    if (stores_settle(l->worker->gpus, mask, &e))
        log_error("comm %u: %s", l->comm->number, e.text);
    l->passed = false;
}
