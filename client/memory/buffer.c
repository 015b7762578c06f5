/* SPDX-License-Identifier: MIT
 *
 * buffer.c - memory that the daemon allocates and the client maps: buffers, other ranks' parts of symmetric ones.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/core/call.h"
#include "client/core/request.h"
#include "client/memory/buffer.h"
#include "proto/base/huge.h"

#define ZEROED_BYTES_MS (128 << 10) /* bytes per ms that the worker zeroes and maps at least: 128 MiB/s */
#define ZEROING_LONGEST_MS 3600000  /* an hour */

int shared_map(int fd, size_t bytes, const char *what, void **out)
{
    int seals = fcntl(fd, F_GET_SEALS), status = 0;
    void *data = MAP_FAILED;
    struct stat st;

    if (fstat(fd, &st) || st.st_size < 0 || (uint64_t)st.st_size < bytes)
        status = last_error_set(-EPROTO, "%s: the worker sent a descriptor of less than %zu bytes", what, bytes);
    else if (seals < 0 || !(seals & F_SEAL_SHRINK))
        status = last_error_set(-EPROTO, "%s: the worker sent a descriptor that is not sealed against shrinking", what);
    else
        data = huge_map(bytes, MAP_SHARED, fd);
    if (!status && data == MAP_FAILED)
        status = last_error_set(errno == ENOMEM ? -ENOMEM : -EPROTO, "%s: mapping %zu bytes: %s", what, bytes, strerror(errno));
    (void)close(fd);
    if (!status)
        *out = data;
    return status;
}

/* Maps and closes a descriptor of the buffer's memory or of another rank's part. The caller sets m->bytes. */
static int buffer_map(const struct fcc_buffer *b, int fd, uint32_t memory, struct mapping *m)
{
    const struct accelerator *a = b->comm->accelerator;
    int status;

    if (a) {
        status = accelerator_map(a, fd, memory, m->bytes, &m->gpu);
        m->data = status ? NULL : (void *)(uintptr_t)m->gpu.address;
        return status;
    }
    if (memory != FCC_MEMORY_HOST) {
        (void)close(fd);
        return last_error_set(-EPROTO, "buffer: the worker sent memory of kind %u to a rank on the cpu: allowed is %d", memory,
                              FCC_MEMORY_HOST);
    }
    return shared_map(fd, m->bytes, "buffer", &m->data);
}

static void mapping_end(const struct fcc_comm *comm, const struct mapping *m)
{
    if (m->data && comm->accelerator)
        accelerator_unmap(comm->accelerator, &m->gpu);
    else if (m->data)
        (void)munmap(m->data, m->bytes);
}

/* Graphs that have captured a use of the buffer keep it. */
static void mapping_leave(const struct fcc_buffer *b, const struct mapping *m)
{
    if (m->data && !b->stays && !graphs_hold_memory(b->graphs, &m->gpu))
        mapping_end(b->comm, m);
}

static void peers_unmap(struct fcc_buffer *b)
{
    for (int r = 0; b->peers && r < b->comm->nranks; r++)
        mapping_leave(b, &b->peers[r]);
    free(b->peers);
    b->peers = NULL;
}

void buffers_move(struct fcc_comm *from, struct fcc_comm *to)
{
    struct fcc_context *c = from->context;
    struct fcc_buffer *b;

    (void)pthread_mutex_lock(&c->lock);
    LIST_FOREACH(b, &c->buffers, link) {
        if (b->comm != from)
            continue;
        peers_unmap(b); /* by the old ranks */
        b->comm = to;
    }
    (void)pthread_mutex_unlock(&c->lock);
}

void buffer_unmap(struct fcc_buffer *b)
{
    peers_unmap(b);
    mapping_leave(b, &b->map);
    graphs_put(b->graphs);
    b->graphs = NULL;
}

void buffer_capture(struct fcc_context *c, const fcc_buffer *buffer, struct graphs *graphs)
{
    struct fcc_buffer *b;

    (void)pthread_mutex_lock(&c->lock);
    LIST_FOREACH(b, &c->buffers, link)
        if (b == buffer && b->graphs != graphs) {
            b->stays = b->stays || b->graphs;
            graphs_share(graphs);
            graphs_put(b->graphs);
            b->graphs = graphs;
        }
    (void)pthread_mutex_unlock(&c->lock);
}

/* On failure the end of the connection has the same effect. Keeps the last error. */
static void buffer_release(struct fcc_context *c, uint32_t handle)
{
    struct fcc_buffer_free_msg msg = {.buffer = handle};
    struct fcc_reply reply;

    context_tell(c, CALL_OF(BUFFER_FREE, &msg, &reply));
}

/* Refuses an allocation. A symmetric one has a place in the rank's order of operators, so other ranks must hear of it. */
static int alloc_refuse(fcc_comm *comm, enum fcc_buffer_kind kind, int status, const char *text)
{
    return kind == FCC_BUFFER_SYMMETRIC ? comm_refuse(comm, FCC_OP_COUNT, status, text, true)
                                        : last_error_set(status, "%s", text);
}

int fcc_buffer_alloc(fcc_comm *comm, enum fcc_buffer_kind kind, size_t bytes, fcc_buffer **out)
{
    struct fcc_buffer_alloc_reply reply = {.buffer = 0};
    struct fcc_context *c;
    struct fcc_buffer *b;
    int status, fd = -1;

    status = comm_check(comm);
    if (status)
        return status;
    if (!out)
        return alloc_refuse(comm, kind, -EINVAL, "out: NULL: not allowed");
    c = comm->context;
    b = calloc(1, sizeof(*b));
    if (!b)
        return alloc_refuse(comm, kind, -ENOMEM, "buffer: out of memory");

    struct fcc_buffer_alloc_msg msg = {.comm = comm->handle, .kind = (uint32_t)kind, .bytes = bytes};
    /* Any `bytes` is allowed here: the worker refuses sizes that are too large. */
    const size_t ms = bytes / ZEROED_BYTES_MS, zeroing_ms = ms < ZEROING_LONGEST_MS ? ms : ZEROING_LONGEST_MS;
    status = context_call(c, CALL_OF(BUFFER_ALLOC, &msg, &reply, .fds = &fd, .more_ms = (int64_t)zeroing_ms, .behind = comm));
    if (status == -EMFILE && reply.buffer) /* the worker has allocated it, but this process had no room for the descriptor */
        buffer_release(c, reply.buffer);
    if (status)
        goto out_free;
    *b = (struct fcc_buffer){
        .comm = comm, .handle = reply.buffer, .kind = kind, .bytes = bytes, .map.bytes = (size_t)reply.map_bytes};
    if (reply.map_bytes < bytes || reply.map_bytes > SIZE_MAX || !reply.buffer) {
        status = last_error_set(-EPROTO, "buffer %u: the worker sent %llu bytes where %zu were asked for", reply.buffer,
                                (unsigned long long)reply.map_bytes, bytes);
        (void)close(fd);
        goto out_free;
    }
    status = buffer_map(b, fd, reply.memory, &b->map);
    if (status) {
        buffer_release(c, b->handle);
        goto out_free;
    }
    (void)pthread_mutex_lock(&c->lock);
    LIST_INSERT_HEAD(&c->buffers, b, link);
    (void)pthread_mutex_unlock(&c->lock);
    *out = b;
    return 0;
out_free:
    free(b);
    return status;
}

void fcc_buffer_free(fcc_buffer *buffer)
{
    struct fcc_context *c;

    if (!buffer || buffer_check(buffer))
        return;
    c = buffer->comm->context;
    (void)pthread_mutex_lock(&c->lock);
    LIST_REMOVE(buffer, link);
    (void)pthread_mutex_unlock(&c->lock);
    if (buffer->comm->buffer_forget)
        buffer->comm->buffer_forget(buffer->comm, buffer->handle);
    bool captured = buffer->graphs != NULL;
    buffer_unmap(buffer);
    if (captured)
        graphs_look();
    buffer_release(c, buffer->handle);
    free(buffer);
}

uint32_t buffer_handle(const struct fcc_context *c, const struct fcc_buffer *buffer, struct tensor_place *at)
{
    const struct fcc_buffer *b;

    LIST_FOREACH(b, &c->buffers, link)
        if (b == buffer) {
            if (at)
                *at = (struct tensor_place){.comm = b->comm, .address = b->map.gpu.address, .room = b->bytes};
            return b->handle;
        }
    return 0;
}

void *fcc_buffer_data(const fcc_buffer *buffer)
{
    return buffer_check(buffer) ? NULL : buffer->map.data;
}

size_t fcc_buffer_size(const fcc_buffer *buffer)
{
    return buffer_check(buffer) ? 0 : buffer->bytes;
}

fcc_buffer *fcc_buffer_find(const fcc_context *context, const void *address)
{
    struct fcc_context *c = (struct fcc_context *)(uintptr_t)context; /* not const, for its lock */
    struct fcc_buffer *b;

    if (context_check(context))
        return NULL;
    (void)pthread_mutex_lock(&c->lock);
    LIST_FOREACH(b, &c->buffers, link)
        if ((uintptr_t)address - (uintptr_t)b->map.data < b->bytes)
            break;
    (void)pthread_mutex_unlock(&c->lock);
    return b;
}

/* Checks that the range lies in the buffer. */
static int range_check(const struct fcc_buffer *b, uint64_t offset, const char *name, const void *host, size_t bytes)
{
    int status = buffer_check(b);

    if (status)
        return status;
    if (!host && bytes)
        return last_error_set(-EINVAL, "%s: NULL: not allowed", name);
    if (offset > b->bytes || bytes > b->bytes - offset)
        return last_error_set(-EINVAL, "rank %d: offset %llu and %zu bytes: the buffer has %zu bytes", b->comm->rank,
                              (unsigned long long)offset, bytes, b->bytes);
    return 0;
}

int fcc_buffer_write(fcc_buffer *buffer, uint64_t offset, const void *from, size_t bytes)
{
    int status = range_check(buffer, offset, "from", from, bytes);

    if (status || !bytes)
        return status;
    if (buffer->comm->accelerator)
        return accelerator_copy_in(buffer->comm->accelerator, buffer->map.gpu.address + offset, from, bytes);
    memcpy((unsigned char *)buffer->map.data + offset, from, bytes);
    return 0;
}

int fcc_buffer_read(const fcc_buffer *buffer, uint64_t offset, void *to, size_t bytes)
{
    int status = range_check(buffer, offset, "to", to, bytes);

    if (status || !bytes)
        return status;
    if (buffer->comm->accelerator)
        return accelerator_copy_out(buffer->comm->accelerator, to, buffer->map.gpu.address + offset, bytes);
    memcpy(to, (const unsigned char *)buffer->map.data + offset, bytes);
    return 0;
}

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

/* ---- the communicator's status word, for a program's own kernels ----
 *
 * It is in the session memory, which all GPUs of the context have mapped. The worker writes it. If the worker has died, the first
 * thread of this process that notices writes it, at the latest the watch thread (watch.c). */

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
