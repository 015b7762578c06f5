/* SPDX-License-Identifier: MIT
 *
 * symmetric.c - addresses for a program's own kernels: other ranks' parts of symmetric buffers, and the communicator's status
 * word.
 *
 * The status word is in the session memory, which all GPUs of the context have mapped. The worker writes it. If the worker
 * has died, the first thread of this process that notices writes it, at the latest the watch thread (watch.c).
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/core/call.h"
#include "client/memory/buffer.h"
#include "proto/session.h"

/* ---- other ranks' parts of a symmetric buffer ---- */

static int peer_ask(const struct fcc_buffer *b, int rank, struct mapping *out)
{
    struct fcc_buffer_peer_msg msg = {.buffer = b->handle, .rank = rank};
    struct fcc_buffer_alloc_reply reply = {.map_bytes = 0};
    int fd = -1;
    int status = context_call(b->comm->context, CALL_OF(BUFFER_PEER, &msg, &reply, .fds = &fd));

    if (status)
        return status;
    if (reply.buffer != b->handle || !reply.map_bytes || reply.map_bytes < b->bytes || reply.map_bytes > SIZE_MAX) {
        (void)close(fd);
        return last_error_set(-EPROTO, "rank %d: the worker sent %llu bytes of buffer %u where buffer %u has %zu", rank,
                              (unsigned long long)reply.map_bytes, reply.buffer, b->handle, b->bytes);
    }
    out->bytes = (size_t)reply.map_bytes;
    return buffer_map(b, fd, reply.memory, out);
}

/* Locked. The address at which a rank's part is mapped; NULL: not mapped. */
static void *peer_known(const struct fcc_buffer *b, int rank)
{
    if (rank == b->comm->rank)
        return b->map.data;
    return b->peers ? b->peers[rank].data : NULL;
}

int fcc_buffer_peer(fcc_buffer *buffer, int rank, void **out)
{
    struct mapping m = {.data = NULL};
    struct fcc_context *c;
    void *known;
    int status;

    status = buffer_check(buffer);
    if (status)
        return status;
    if (!out)
        return last_error_set(-EINVAL, "out: NULL: not allowed");
    c = buffer->comm->context;
    if (rank < 0 || rank >= buffer->comm->nranks)
        return last_error_set(-EINVAL, "rank: %d: allowed are 0 to %d", rank, buffer->comm->nranks - 1);
    if (buffer->kind != FCC_BUFFER_SYMMETRIC)
        return last_error_set(
            -EINVAL, "rank %d: fcc_buffer_peer: buffer: kind %d (%s): it is not symmetric: allowed is kind %d (symmetric)",
            buffer->comm->rank, buffer->kind, buffer->kind == FCC_BUFFER_LOCAL ? "local" : "result", FCC_BUFFER_SYMMETRIC);
    (void)pthread_mutex_lock(&c->lock);
    known = peer_known(buffer, rank);
    (void)pthread_mutex_unlock(&c->lock);
    status = known ? 0 : peer_ask(buffer, rank, &m);
    if (status)
        return status;
    (void)pthread_mutex_lock(&c->lock);
    if (!known)
        known = peer_known(buffer, rank); /* another thread may have mapped it meanwhile */
    if (!known && !buffer->peers)
        buffer->peers = calloc((size_t)buffer->comm->nranks, sizeof(buffer->peers[0]));
    if (!known && buffer->peers) {
        buffer->peers[rank] = m;
        known = m.data;
        m.data = NULL;
    }
    (void)pthread_mutex_unlock(&c->lock);
    mapping_end(buffer->comm, &m);
    if (!known)
        return last_error_set(-ENOMEM, "rank %d: out of memory", rank);
    *out = known;
    return 0;
}

/* ---- status ---- */

int fcc_comm_status(fcc_comm *comm, const int32_t **out)
{
    struct fcc_context *c;
    size_t at;
    int status;

    status = comm_check(comm);
    if (status)
        return status;
    if (!out)
        return last_error_set(-EINVAL, "out: NULL: not allowed");
    c = comm->context;
    if (comm->status_word >= FCC_STATUS_WORDS)
        return last_error_set(-ENOMEM, "rank %d: this context has more than %u communicators: this one has no status word",
                              comm->rank, FCC_STATUS_WORDS);
    (void)pthread_mutex_lock(&c->accelerator_lock);
    status = watch_start(c); /* the program may never call the library again */
    (void)pthread_mutex_unlock(&c->accelerator_lock);
    if (status)
        return status;
    (void)pthread_mutex_lock(&c->lock);
    c->waits_unseen = true;
    if (c->dead.status) /* the context may have died before the communicator was made */
        statuses_raise(c, c->dead.status);
    (void)pthread_mutex_unlock(&c->lock);
    at = offsetof(struct fcc_session_memory, status) + comm->status_word * sizeof(c->memory->status[0]);
    *out = comm->accelerator ? (const int32_t *)(uintptr_t)(comm->accelerator->memory + at)
                             : (const int32_t *)(const void *)((const char *)c->memory + at);
    return 0;
}
