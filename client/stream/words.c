/* SPDX-License-Identifier: MIT
 *
 * words.c - the client's side of the words of streams in GPU memory (struct fcc_stream_words in session.h). The worker
 * allocates that memory; it is imported as buffers are, and stays valid while it is imported, also if the worker has died.
 *
 * A CPU cannot store into that memory. When the context has died, the numbers that streams wait for are copied there on the
 * GPU's side stream, which is ordered with no other stream. The watch thread (or fcc_disconnect()) does this, because the
 * thread that finds the context's end holds locks, and a driver call may block.
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "client/core/call.h"
#include "client/stream/stream.h"
#include "proto/session.h"

#define CALL ACCELERATOR_CALL

uint64_t words_finished_at(const struct accelerator *a, uint32_t slot)
{
    return a->words[a->number].address + offsetof(struct fcc_stream_words, finished) + slot * sizeof(struct fcc_stream_word);
}

/* Maps the words in one GPU's memory. -EIO: this process cannot map them. */
static int words_import(struct fcc_comm *comm, struct accelerator *a, unsigned gpu)
{
    struct fcc_stream_words_msg msg = {.comm = comm->handle, .gpu = gpu};
    struct fcc_stream_words_reply reply = {.memory = 0};
    int fd = -1, status;

    status = context_call(comm->context, CALL_OF(STREAM_WORDS, &msg, &reply, .fds = &fd));
    if (status)
        return status;
    if (reply.memory != FCC_MEMORY_GPU_FD || reply.map_bytes < sizeof(struct fcc_stream_words) || reply.map_bytes > SIZE_MAX) {
        (void)close(fd);
        return last_error_set(
            -EPROTO, "stream words: the worker sent memory of kind %u and %llu bytes: expected are %d and %zu", reply.memory,
            (unsigned long long)reply.map_bytes, FCC_MEMORY_GPU_FD, sizeof(struct fcc_stream_words));
    }
    status = accelerator_map(a, fd, reply.memory, (size_t)reply.map_bytes, &a->words[gpu]);
    if (!status)
        a->words_gpus |= 1u << gpu;
    return status;
}

/* Registers the accelerator's words, so that they are written when the context dies. */
static int words_register(struct fcc_context *c, const struct accelerator *a)
{
    unsigned n = 0;
    int status;

    (void)pthread_mutex_lock(&c->lock);
    status = context_dead(c, "fcc_comm_init");
    while (n < c->nstream_words && c->stream_words[n].accelerator != a)
        n++;
    if (!status && n == FCC_MAX_GPUS)
        status = last_error_set(-EPROTO, "stream words: the worker has put ranks on more than %d GPUs", FCC_MAX_GPUS);
    if (!status && n == c->nstream_words)
        c->stream_words[c->nstream_words++] = (struct stream_words){.accelerator = a, .finished = words_finished_at(a, 0)};
    (void)pthread_mutex_unlock(&c->lock);
    return status;
}

int words_open(struct fcc_comm *comm, struct accelerator *a, uint32_t gpus)
{
    int status = 0;

    /* Drivers without stream_batch or cyclic waits use the words in the slots; fccd has no words in the memory of their
     * GPUs. */
    if (!gpus || !a->stream_words || comm->context->no_stream_words || !a->driver->stream_batch || !a->driver->waits_cyclically)
        return 0;
    if (gpus >> FCC_MAX_GPUS || !(gpus >> a->number & 1u))
        return last_error_set(-EPROTO, "stream words: the worker names GPUs 0x%x for a rank on GPU %d", gpus, a->number);
    for (unsigned gpu = 0; gpu < FCC_MAX_GPUS && !status; gpu++)
        if (gpus & ~a->words_gpus & 1u << gpu)
            status = words_import(comm, a, gpu);
    if (status == -EIO || status == -EOPNOTSUPP)
        return 0; /* such as a GPU that this process may not use. The worker's log reports it */
    if (!status)
        status = words_register(comm->context, a);
    if (!status)
        comm->words_gpus = gpus;
    return status;
}

int words_finished(const struct fcc_comm *comm, uint32_t out[FCC_SLOTS])
{
    struct fcc_stream_word finished[FCC_SLOTS];
    int status = accelerator_copy_out(comm->accelerator, finished, words_finished_at(comm->accelerator, 0), sizeof(finished));

    for (unsigned s = 0; s < FCC_SLOTS && !status; s++)
        out[s] = atomic_load_explicit(&finished[s].value, memory_order_relaxed);
    return status;
}

void words_release(struct fcc_context *c)
{
    struct stream_words words[FCC_MAX_GPUS];
    struct fcc_stream_word finished[FCC_SLOTS] = {{.zero = 0}};
    unsigned n;

    (void)pthread_mutex_lock(&c->lock);
    n = c->nstream_words;
    memcpy(words, c->stream_words, sizeof(words));
    for (unsigned s = 0; s < FCC_SLOTS; s++)
        atomic_init(&finished[s].value, c->stream_count[s]);
    (void)pthread_mutex_unlock(&c->lock);
    for (unsigned i = 0; i < n; i++)
        (void)accelerator_copy_in(words[i].accelerator, words[i].finished, finished, sizeof(finished));
}

int words_begin(const struct fcc_request *r, const struct accelerator *a, uint64_t started, void *stream)
{
    struct driver_operation operations[FCC_MAX_GPUS + 1];
    unsigned n = 0;

    for (unsigned i = 0; i < FCC_MAX_GPUS; i++) { /* beginning with the rank's own GPU, which is the nearest */
        unsigned gpu = ((unsigned)a->number + i) % FCC_MAX_GPUS;
        uint64_t word =
            a->words[gpu].address + offsetof(struct fcc_stream_words, started) + r->slot * sizeof(struct fcc_stream_word);
        if (r->comm->words_gpus >> gpu & 1u)
            operations[n++] = (struct driver_operation){.operation = DRIVER_BATCH_WRITE, .address = word, .value = r->stream};
    }
    operations[n++] = (struct driver_operation){.operation = DRIVER_BATCH_WRITE, .address = started, .value = r->stream};
    return CALL(a, stream_batch, stream, n, operations, 0);
}

int words_end(const struct fcc_request *r, const struct accelerator *a, void *stream)
{
    if (group_is_open())
        return group_add(r, a, stream, words_finished_at(a, r->slot));
    return CALL(a, stream_wait, stream, words_finished_at(a, r->slot), r->stream, DRIVER_WAIT_REACHED);
}
