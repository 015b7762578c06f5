/* SPDX-License-Identifier: MIT
 *
 * ring.c - the worker's side of a session's shared memory. The client may write anything there at any time. So the worker copies each message
 * out once and checks the copy, and never reads back what it has written.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/worker/comm/request/submission.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/session/session.h"
#include "proto/base/cache.h"
#include "proto/sealed.h"
#include "proto/session.h"

static_assert((FCC_RING_BYTES & (FCC_RING_BYTES - 1)) == 0, "offsets are taken modulo the size");

int ring_open(struct session *s, int *memory_fd, struct error *e)
{
    void *memory;
    int fd, status = sealed_memory_make("fccd-session", sizeof(*s->memory), &memory, &fd);

    if (!status && (s->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
        status = -errno;
        (void)munmap(memory, sizeof(*s->memory));
        (void)close(fd);
    }
    if (status)
        return error_set(e, status, "session memory: %s", strerror(-status));
    s->memory = memory;
    atomic_store_explicit(&s->memory->time_limit_ms, s->worker->config.time_limit_ms, memory_order_relaxed);
    atomic_store_explicit(&s->memory->worker_sleeps, FCC_WORKER_SLEEPS, memory_order_seq_cst);
    *memory_fd = fd;
    return 0;
}

void ring_close(struct session *s)
{
    if (!s->memory)
        return;
    if (!s->gpu_address || !gpus_session_close(s))
        (void)munmap(s->memory, sizeof(*s->memory));
    (void)close(s->doorbell);
    s->memory = NULL;
    s->doorbell = -1;
}

/* Copy n bytes at this offset of the byte stream that passes through the ring. */
static void ring_copy(const struct session *s, uint64_t offset, void *to, size_t n)
{
    size_t at = (size_t)(offset & (FCC_RING_BYTES - 1));
    size_t first = n < FCC_RING_BYTES - at ? n : FCC_RING_BYTES - at;

    memcpy(to, s->memory->data + at, first);
    memcpy((unsigned char *)to + first, s->memory->data, n - first);
}

static uint64_t record_room(uint64_t length)
{
    return (length + FCC_RECORD_ALIGN - 1) / FCC_RECORD_ALIGN * FCC_RECORD_ALIGN;
}

bool ring_look(const struct session *s)
{
    uint64_t head = atomic_load_explicit(&s->memory->head, memory_order_relaxed), n = head - s->tail;

    for (uint64_t at = 0; at < n && at < CACHE_FETCH_MOST; at += CACHE_LINE)
        cache_fetch(s->memory->data + (s->tail + at) % FCC_RING_BYTES);
    return n != 0;
}

bool ring_poll(struct session *s)
{
    static _Alignas(16) unsigned char copy[FCC_MSG_MAX]; /* the engine is one thread */
    const struct fcc_submit *m = (const struct fcc_submit *)copy;
    uint64_t head = atomic_load_explicit(&s->memory->head, memory_order_acquire);
    struct fcc_msg msg;
    bool any = false;

    while (head != s->tail && !s->broken) {
        uint64_t n = head - s->tail;
        if (n > FCC_RING_BYTES || n < sizeof(*m)) {
            session_break(s, "its ring's head is not where a record could end");
            return true;
        }
        ring_copy(s, s->tail, &msg, sizeof(msg));
        if (msg.length < sizeof(*m) || msg.length > FCC_MSG_MAX || record_room(msg.length) > n || msg.type != FCC_MSG_SUBMIT) {
            session_break(s, "its ring holds a record that is none");
            return true;
        }
        ring_copy(s, s->tail, copy, msg.length);
        memcpy(copy, &msg, sizeof(msg)); /* the header that was checked */
        s->tail += record_room(msg.length);
        atomic_store_explicit(&s->memory->tail, s->tail, memory_order_release);
        any = true;
        if (m->slot >= FCC_SLOTS)
            session_break(s, "its ring names a slot that there is not");
        else
            submission_accept(s, m, msg.length);
    }
    return any;
}

void ring_set_sleeping(struct session *s, enum fcc_worker_sleeps sleeping)
{
    atomic_store_explicit(&s->memory->worker_sleeps, sleeping, memory_order_seq_cst);
}

bool ring_has_more(const struct session *s)
{
    return atomic_load_explicit(&s->memory->head, memory_order_seq_cst) != s->tail;
}
