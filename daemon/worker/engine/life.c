/* SPDX-License-Identifier: MIT */
#include "daemon/worker/engine/life.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WATCHED_MAX (FUTEX_WAITV_MAX - 1) /* sessions; the others' ends are heard by their connections */

struct lives {
    struct worker *worker;
    pthread_t thread;
    pthread_mutex_t lock; /* the list, stop */
    TAILQ_HEAD(watched_sessions_head, session) sessions;
    bool stop;
    _Atomic uint32_t changes;  /* futex: incremented when the list or `stop` has changed */
    _Atomic uint32_t somebody; /* a session's life_over was set */
};

/* Locked. Set FUTEX_WAITERS in the word, and return its value for futex_waitv. False: the holder has died. */
static bool word_expect(_Atomic uint32_t *word, uint32_t *value)
{
    uint32_t v = atomic_load_explicit(word, memory_order_relaxed);

    while (v && !(v & (FUTEX_OWNER_DIED | FUTEX_WAITERS)))
        if (atomic_compare_exchange_weak_explicit(word, &v, v | FUTEX_WAITERS, memory_order_relaxed, memory_order_relaxed))
            v |= FUTEX_WAITERS;
    *value = v;
    return !(v & FUTEX_OWNER_DIED);
}

/* Locked. Fill in the words to wait for. Marks the sessions whose clients have died, and wakes the engine. */
static unsigned waits_make(struct lives *l, struct futex_waitv waits[])
{
    static const uint64_t one = 1;
    unsigned n = 0;
    bool any = false;
    struct session *s;

    waits[n++] = (struct futex_waitv){.val = atomic_load_explicit(&l->changes, memory_order_relaxed),
                                      .uaddr = (uint64_t)(uintptr_t)&l->changes,
                                      .flags = FUTEX_32 | FUTEX_PRIVATE_FLAG};
    TAILQ_FOREACH(s, &l->sessions, life_link) {
        uint32_t value;
        if (atomic_load_explicit(&s->life_over, memory_order_relaxed))
            continue;
        if (!word_expect(&s->memory->life, &value)) {
            atomic_store_explicit(&s->life_over, true, memory_order_relaxed);
            any = true;
        } else if (n <= WATCHED_MAX) {
            waits[n++] = (struct futex_waitv){.val = value, .uaddr = (uint64_t)(uintptr_t)&s->memory->life, .flags = FUTEX_32};
        }
    }
    if (any) {
        atomic_store_explicit(&l->somebody, 1, memory_order_release);
        ssize_t ignored = write(l->worker->wake_fd, &one, sizeof(one)); /* fails only if it is awake */
        (void)ignored;
    }
    return n;
}

static void *lives_main(void *arg)
{
    struct futex_waitv waits[FUTEX_WAITV_MAX];
    struct lives *l = arg;

    (void)pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        unsigned n = waits_make(l, waits);
        (void)pthread_mutex_unlock(&l->lock);
        /* A word that has changed meanwhile is EAGAIN. A session that is removed meanwhile may be unmapped: its word cannot
         * be read (EFAULT), but the list has changed then, so the next round is without it. */
        long status = syscall(SYS_futex_waitv, waits, n, 0, NULL, CLOCK_MONOTONIC);
        (void)pthread_mutex_lock(&l->lock);
        if (status < 0 && errno == ENOSYS)
            break;
    }
    (void)pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Locked. */
static void lives_changed(struct lives *l)
{
    (void)atomic_fetch_add_explicit(&l->changes, 1, memory_order_relaxed);
    (void)syscall(SYS_futex, &l->changes, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

int lives_start(struct worker *w, struct lives **out, struct error *e)
{
    struct lives *l = calloc(1, sizeof(*l));

    if (!l)
        return error_set(e, -ENOMEM, "no memory to watch clients");
    l->worker = w;
    TAILQ_INIT(&l->sessions);
    (void)pthread_mutex_init(&l->lock, NULL);
    int status = pthread_create(&l->thread, NULL, lives_main, l);
    if (status) {
        (void)pthread_mutex_destroy(&l->lock);
        free(l);
        return error_set(e, -status, "cannot start the thread that watches clients: %s", strerror(status));
    }
    *out = l;
    return 0;
}

void lives_stop(struct lives *l)
{
    (void)pthread_mutex_lock(&l->lock);
    l->stop = true;
    lives_changed(l);
    (void)pthread_mutex_unlock(&l->lock);
    (void)pthread_join(l->thread, NULL);
    (void)pthread_mutex_destroy(&l->lock);
    free(l);
}

void lives_add(struct lives *l, struct session *s)
{
    (void)pthread_mutex_lock(&l->lock);
    TAILQ_INSERT_TAIL(&l->sessions, s, life_link);
    lives_changed(l);
    (void)pthread_mutex_unlock(&l->lock);
}

void lives_remove(struct lives *l, struct session *s)
{
    (void)pthread_mutex_lock(&l->lock);
    TAILQ_REMOVE(&l->sessions, s, life_link);
    lives_changed(l);
    (void)pthread_mutex_unlock(&l->lock);
}

void lives_sweep(struct lives *l)
{
    struct session *s;

    if (!atomic_load_explicit(&l->somebody, memory_order_relaxed) ||
        !atomic_exchange_explicit(&l->somebody, 0, memory_order_acquire))
        return;
    (void)pthread_mutex_lock(&l->lock);
    TAILQ_FOREACH(s, &l->sessions, life_link)
        if (atomic_load_explicit(&s->life_over, memory_order_relaxed))
            session_break(s, "its process has ended");
    (void)pthread_mutex_unlock(&l->lock);
}
