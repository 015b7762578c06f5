/* SPDX-License-Identifier: MIT
 *
 * ring.c - a session's shared memory, from the worker's side. The client may write anything there at any time: what is read is
 * copied out once and judged by the copy; what is written is never read back.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/worker/device/device.h"
#include "proto/base/cache.h"

static_assert((FCC_RING_BYTES & (FCC_RING_BYTES - 1)) == 0, "offsets are taken modulo the size");

int ring_open(struct session *s, int *memory_fd, struct error *e)
{
    int fd = memfd_create("fccd-session", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *memory = MAP_FAILED;
    int status = 0;

    if (fd < 0 || ftruncate(fd, sizeof(*s->memory)) || fallocate(fd, 0, 0, sizeof(*s->memory)) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        status = -errno;
    if (!status) {
        memory = mmap(NULL, sizeof(*s->memory), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
        s->doorbell = memory == MAP_FAILED ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        status = s->doorbell < 0 ? -errno : 0;
    }
    if (status) {
        if (memory != MAP_FAILED)
            (void)munmap(memory, sizeof(*s->memory));
        if (fd >= 0)
            (void)close(fd);
        return error_set(e, status, "session memory: %s", strerror(-status));
    }
    s->memory = memory;
    atomic_store_explicit(&s->memory->time_limit_ms, s->worker->config.time_limit_ms, memory_order_relaxed);
    atomic_store_explicit(&s->memory->worker_sleeps, 1, memory_order_seq_cst);
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

/* `n` bytes at `offset` of the endless stream that passes through the ring. */
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
        memcpy(copy, &msg, sizeof(msg)); /* the header that was judged */
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

void ring_set_sleeping(struct session *s, bool sleeping)
{
    atomic_store_explicit(&s->memory->worker_sleeps, sleeping, memory_order_seq_cst);
}

bool ring_has_more(const struct session *s)
{
    return atomic_load_explicit(&s->memory->head, memory_order_seq_cst) != s->tail;
}

void slot_running(struct session *s, uint32_t slot)
{
    uint32_t pending = FCC_SLOT_PENDING; /* WAITING: it sleeps already. Anything else is the client's own affair */

    (void)atomic_compare_exchange_strong_explicit(&s->memory->slot[slot].state, &pending, FCC_SLOT_RUNNING,
                                                  memory_order_relaxed, memory_order_relaxed);
}

/* The engine's core, where clients that spin have to share cores with each other or with the engine. Better with each other. */
static void engine_core_tell(struct session *s)
{
    const struct worker *w = s->worker;
    uint32_t core = (int)w->nclients >= w->cores ? (uint32_t)sched_getcpu() + 1 : 0;

    if (core != s->engine_core)
        atomic_store_explicit(&s->memory->engine_core, core, memory_order_relaxed);
    s->engine_core = core;
}

static void slot_finish(const struct session *s, uint32_t slot, uint64_t id, int status, const char *text,
                        const int64_t *values, int nvalues)
{
    struct fcc_slot *t = &s->memory->slot[slot];

    t->id = id;
    t->status = status;
    t->nvalues = (uint32_t)nvalues;
    if (nvalues)
        memcpy(t->values, values, (size_t)nvalues * sizeof(values[0]));
    t->text[0] = '\0';
    if (status)
        text_copy(t->text, sizeof(t->text), text);
    /* Release: the client that sees DONE (acquire) sees the rest. The exchange tells whether it may be asleep. */
    if (atomic_exchange_explicit(&t->state, FCC_SLOT_DONE, memory_order_acq_rel) == FCC_SLOT_WAITING)
        (void)syscall(SYS_futex, &t->state, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void slot_complete(struct session *s, uint32_t slot, uint64_t id, int status, const char *text, const int64_t *values,
                   int nvalues)
{
    engine_core_tell(s);
    slot_finish(s, slot, id, status, text, values, nvalues);
}

void slot_succeed(const struct session *s, uint32_t slot, uint64_t id, const int64_t *values, int nvalues)
{
    slot_finish(s, slot, id, 0, "", values, nvalues);
}

uint32_t status_word_take(struct session *s)
{
    for (uint32_t i = 0; i < FCC_STATUS_WORDS; i++) {
        if (s->status_words[i / 64] >> i % 64 & 1u)
            continue;
        s->status_words[i / 64] |= UINT64_C(1) << i % 64;
        atomic_store_explicit(&s->memory->status[i], 0, memory_order_relaxed);
        return i;
    }
    return FCC_NO_STATUS_WORD;
}

void status_word_give(struct session *s, uint32_t word)
{
    if (word != FCC_NO_STATUS_WORD)
        s->status_words[word / 64] &= ~(UINT64_C(1) << word % 64);
}

void status_word_raise(struct session *s, uint32_t word, int status)
{
    int32_t none = 0;

    /* Release: the engine has heard of what a rank did last before it tells its end to others (proto.h). */
    if (word != FCC_NO_STATUS_WORD)
        (void)atomic_compare_exchange_strong_explicit(&s->memory->status[word], &none, status, memory_order_release,
                                                      memory_order_relaxed);
}

void slot_stream_finish(struct session *s, uint32_t slot, uint32_t value)
{
    /* Release: what the engine wrote for this operator comes before. The stream looks by itself; nobody is to be woken. */
    atomic_store_explicit(&s->memory->slot[slot].stream_finished, value, memory_order_release);
}
