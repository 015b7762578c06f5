/* SPDX-License-Identifier: MIT
 *
 * group.c - groups of consecutive operators: their streams wait for them only when the group ends.
 *
 * Outside of a group an operator is two operations on its stream (stream.c): a store, by which the worker's GPU learns that the
 * stream has arrived, and a wait for the operator's end. In a group all stores come first and all waits come when the group ends.
 * So the stream stores an operator's number while the operator before still runs, and the worker's GPUs go from one operator to
 * the next without waiting for the stream. The operators keep their order. Each has its own words and its own wait, so an operator
 * that fails early ends its own wait only.
 *
 * Only waits for stream words in GPU memory are deferred. A stream waits at once, as without a group, where it waits by a host
 * function or where the numbers of a slot may start again at 1 (stream_number()).
 */
#include <errno.h>

#include "client/stream/stream.h"
#include "proto/session.h"

struct group_wait {
    struct fcc_context *context;
    const struct accelerator *accelerator; /* the context's */
    void *stream;
    uint64_t word;
    uint32_t value;
};

/* A slot has one operator at a time, so at most FCC_SLOTS waits can be for operators that still run. */
#define GROUP_WAITS FCC_SLOTS

static _Thread_local struct group {
    unsigned depth; /* fcc_group_begin() calls that have not been ended: groups can be nested. 0: no group is open */
    unsigned n;
    struct group_wait waits[GROUP_WAITS];
} group;

/* Enqueue the first wait and those that directly follow it on the same stream, in one call of the driver; *n: their number. The
 * stream waits for the last operator first. That one mostly ends last, so the other waits find their values there. A stream that
 * resumed and waited again after each operator would slow the operators down (daemon/worker/device/gpu/lanes.h). */
static int waits_enqueue(const struct group_wait *first, const struct group_wait *end, unsigned *n)
{
    struct driver_operation operations[GROUP_WAITS];
    const struct group_wait *w = first;
    int before = 0, status;

    while (w < end && w->accelerator == first->accelerator && w->stream == first->stream)
        w++;
    *n = (unsigned)(w - first);
    for (unsigned i = 0; i < *n; i++) {
        w--;
        operations[i] = (struct driver_operation){
            .operation = DRIVER_BATCH_WAIT, .address = w->word, .value = w->value, .flags = DRIVER_WAIT_REACHED};
    }
    status = accelerator_enter(first->accelerator, &before);
    if (status)
        return status;
    status = ACCELERATOR_CALL(first->accelerator, stream_batch, first->stream, *n, operations, 0);
    accelerator_leave(first->accelerator, before);
    return status;
}

/* Enqueue all waits, even if some fail. Returns the first error, and sets the last error. */
static int group_flush(void)
{
    const struct group_wait *w = group.waits, *end = w + group.n;
    struct error why = {0};

    if (group.n && !context_is_ours(w->context)) { /* a fork copied the group: the streams are the parent's */
        group.n = 0;
        return context_check(w->context);
    }
    while (w < end) {
        unsigned n;
        int status = waits_enqueue(w, end, &n);
        if (status && !why.status)
            (void)error_set(&why, status, "%s", fcc_last_error());
        w += n;
    }
    group.n = 0;
    return why.status ? last_error_set(why.status, "%.300s (operators of the group run, but a stream does not wait for them)",
                                       why.text)
                      : 0;
}

bool group_is_open(void)
{
    return group.depth != 0;
}

int group_add(const struct fcc_request *r, const struct accelerator *a, void *stream, uint64_t word)
{
    int status = group.n == GROUP_WAITS ? group_flush() : 0;

    group.waits[group.n++] =
        (struct group_wait){.context = r->context, .accelerator = a, .stream = stream, .word = word, .value = r->stream};
    return status;
}

void group_forget(const struct fcc_context *c)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < group.n; i++)
        if (group.waits[i].context != c)
            group.waits[kept++] = group.waits[i];
    group.n = kept;
}

void fcc_group_begin(void)
{
    group.depth++;
}

int fcc_group_end(void)
{
    if (!group.depth)
        return last_error_set(-EINVAL, "fcc_group_end: no group has begun in this thread");
    return --group.depth ? 0 : group_flush();
}
