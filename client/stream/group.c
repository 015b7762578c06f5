/* SPDX-License-Identifier: MIT
 *
 * group.c - groups of consecutive operators: their streams wait for them only when the group ends.
 *
 * An operator on a stream consists of a word that the stream writes (it has come) and a word that it waits for (stream.c). In a
 * group the waits of all operators come after the writes of all. So an operator's start word is written while the operator before
 * still runs, and the worker's GPUs go from one to the next without the stream. Operators keep their order, and each has its own
 * words and its own wait: one that fails early lets the stream pass that operator only.
 *
 * Only waits for words in GPU memory are put off. Where a stream waits by a function on the CPU, or its numbers may restart
 * (stream_number()), it waits at once, as without a group.
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

/* A slot has one operator at a time, so more waits than these are never of operators that run. */
#define GROUP_WAITS FCC_SLOTS

static _Thread_local struct group {
    unsigned depth; /* of fcc_group_begin() in each other */
    unsigned n;
    struct group_wait waits[GROUP_WAITS];
} group;

/* Put all consecutive waits of the first one's stream onto it in one call; *n is their number. The stream waits for the last
 * one first, which mostly ends last: a stream that resumes and waits again with every end disturbs the operators
 * (daemon/worker/device/gpu/lanes.h). */
static int waits_put(const struct group_wait *first, const struct group_wait *end, unsigned *n)
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

/* Put all waits onto their streams, even if one fails. Returns the first error, and sets the last error. */
static int group_flush(void)
{
    const struct group_wait *w = group.waits, *end = w + group.n;
    struct error why = {0};

    if (group.n && !context_is_ours(w->context)) { /* the group of the thread that forked: its streams are the parent's */
        group.n = 0;
        return context_check(w->context);
    }
    while (w < end) {
        unsigned n;
        int status = waits_put(w, end, &n);
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
