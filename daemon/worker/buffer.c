/* SPDX-License-Identifier: MIT
 *
 * buffer.c - memory that clients use. The worker makes it and maps it, the client imports it: a client that dies never takes
 * memory with it that an operator still uses. Always fresh from the kernel, so always zero; sealed, so that no client can
 * shrink what the worker has mapped.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "worker.h"

#define BUFFER_BYTES_MAX (1ull << 46)

static uint64_t page_round(uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

static int memory_make(struct buffer *b, int *fd, struct error *e)
{
    int status = 0;
    int memory = memfd_create("fccd-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    /* fallocate: a full node is an error here and now, not a SIGBUS in a kernel later */
    if (memory < 0 || ftruncate(memory, (off_t)b->map_bytes) || fallocate(memory, 0, 0, (off_t)b->map_bytes) ||
        fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        status = errno == ENOSPC ? -ENOMEM : -errno;
    } else {
        b->data = mmap(NULL, b->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
        if (b->data == MAP_FAILED)
            status = -errno;
    }
    if (status) {
        if (memory >= 0)
            (void)close(memory);
        return error_set(e, status, "buffer: %llu bytes: %s", (unsigned long long)b->bytes, strerror(-status));
    }
    *fd = memory;
    return 0;
}

int buffer_alloc(struct session *s, struct comm *c, enum fcc_buffer_kind kind, uint64_t bytes, struct buffer **out, int *fd,
                 struct error *e)
{
    struct worker *w = s->worker;
    struct buffer *b;
    int status;

    if (bytes < 1 || bytes > BUFFER_BYTES_MAX)
        return error_set(e, -EINVAL, "buffer: %llu bytes: allowed are 1 to %llu", (unsigned long long)bytes, BUFFER_BYTES_MAX);
    b = calloc(1, sizeof(*b));
    if (!b)
        return error_set(e, -ENOMEM, "buffer: out of memory");
    *b = (struct buffer){
        .worker = w, .refs = 1, .session = s, .kind = kind, .comm = c, .bytes = bytes, .map_bytes = page_round(bytes)};
    status = worker_memory_charge(w, b->map_bytes, e);
    if (status) {
        free(b);
        return status;
    }
    status = memory_make(b, fd, e);
    if (status) {
        worker_memory_release(w, b->map_bytes);
        free(b);
        return status;
    }
    b->handle = ++s->last_handle;
    LIST_INSERT_HEAD(&s->buffers, b, link);
    *out = b;
    return 0;
}

struct buffer *buffer_find(const struct session *s, uint32_t handle)
{
    struct buffer *b;

    LIST_FOREACH(b, &s->buffers, link)
        if (b->handle == handle)
            return b;
    return NULL;
}

void buffer_unref(struct buffer *b)
{
    if (--b->refs)
        return;
    (void)munmap(b->data, b->map_bytes);
    worker_memory_release(b->worker, b->map_bytes);
    free(b);
}

void buffer_drop_handle(struct buffer *b)
{
    LIST_REMOVE(b, link);
    b->session = NULL;
    buffer_unref(b);
}

int staging_alloc(struct worker *w, uint64_t bytes, unsigned char **out, struct error *e)
{
    int status = worker_memory_charge(w, page_round(bytes), e);

    if (status)
        return status;
    void *data = mmap(NULL, page_round(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        status = -errno;
        worker_memory_release(w, page_round(bytes));
        return error_set(e, status, "staging memory: %llu bytes: %s", (unsigned long long)bytes, strerror(-status));
    }
    *out = data;
    return 0;
}

void staging_free(struct worker *w, unsigned char *data, uint64_t bytes)
{
    if (!data)
        return;
    (void)munmap(data, page_round(bytes));
    worker_memory_release(w, page_round(bytes));
}
