/* SPDX-License-Identifier: MIT */
#include "daemon/worker/device/gpu/watch.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/spin.h"

#define NAP_NS 20000       /* between looks, once spinning has not helped */
#define LONG_NAP_NS 200000 /* after LONG_AFTER_NS */
#define LONG_AFTER_NS 20000000u
#define TIMER_SLACK_NS 1000ul    /* the kernel's own 50000 would be most of a nap */
#define HEALTH_EVERY_NS 5000000u /* a look at the context costs a call of the driver */
#define SUSPECT_NS 2000000000u   /* a context was seen to go 230 ms after a process of its MPS server was killed */

struct gpu_watch {
    struct worker *worker;
    const struct gpu_plugin *plugin;
    pthread_t thread;
    pthread_mutex_t lock; /* everything below */
    pthread_cond_t changed;
    TAILQ_HEAD(watched_head, launch) launches;
    uint32_t in_flight; /* a bit for each GPU with launches in flight */
    uint64_t suspect_until_ns;
    uint32_t suspects;
    bool stop;
    struct error lost;
    _Atomic uint32_t is_lost; /* `lost` is valid: set with release */
};

/* Locked. Whether l is its communicator's oldest launch here. Launches are handed back in order, and words may change while they are polled. */
static bool is_first(const struct gpu_watch *watch, const struct launch *l)
{
    const struct launch *first = TAILQ_FIRST(&watch->launches);

    while (first->comm != l->comm)
        first = TAILQ_NEXT(first, watched);
    return first == l;
}

/* Locked. Note the GPUs that are in flight. If the engine sleeps, hand back what is due; true if there was any. */
static bool launches_look(struct gpu_watch *watch, bool engine_sleeps)
{
    struct launch *l, *next;
    bool any = false;

    watch->in_flight = 0;
    for (l = TAILQ_FIRST(&watch->launches); l; l = next) {
        next = TAILQ_NEXT(l, watched);
        if (engine_sleeps && is_first(watch, l) && gpu_launch_is_due(l)) {
            l->is_watched = false;
            TAILQ_REMOVE(&watch->launches, l, watched);
            worker_launch_finished(watch->worker, &l->finished);
            any = true;
            continue;
        }
        for (int p = 0; p < l->nparts; p++)
            watch->in_flight |= 1u << l->parts[p].gpu_index;
    }
    return any;
}

/* Locked. */
static bool health_look(struct gpu_watch *watch, uint32_t gpus)
{
    static const uint64_t one = 1;

    for (int g = 0; g < GPU_MAX_GPUS; g++) {
        if (!(gpus & 1u << g) || !watch->plugin->health(g, &watch->lost))
            continue;
        watch->lost.status = -ECONNRESET;
        atomic_store_explicit(&watch->is_lost, 1, memory_order_release);
        ssize_t n = write(watch->worker->wake_fd, &one, sizeof(one)); /* fails only if it is awake */
        (void)n;
        return false;
    }
    return true;
}

/* Locked; released meanwhile. */
static void nap(struct gpu_watch *watch, struct spin *spin, bool engine_sleeps, uint64_t since_ns)
{
    struct timespec t = {.tv_nsec = clock_ns() - since_ns < LONG_AFTER_NS ? NAP_NS : LONG_NAP_NS};

    (void)pthread_mutex_unlock(&watch->lock);
    if (!engine_sleeps || !spin_once(spin, watch->worker->config.spin_us))
        (void)nanosleep(&t, NULL);
    (void)pthread_mutex_lock(&watch->lock);
}

/* Locked. Sleep until there is something to watch, or until a suspicion is to be looked into again. */
static void idle_wait(struct gpu_watch *watch, uint64_t now)
{
    struct timespec t;

    if (now >= watch->suspect_until_ns) {
        watch->suspects = 0;
        (void)pthread_cond_wait(&watch->changed, &watch->lock);
        return;
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += HEALTH_EVERY_NS;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    (void)pthread_cond_timedwait(&watch->changed, &watch->lock, &t);
}

static void *watch_main(void *arg)
{
    struct gpu_watch *watch = arg;
    struct spin spin = {0};
    uint64_t since_ns = clock_ns(), health_ns = since_ns;

    (void)prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0);
    (void)pthread_mutex_lock(&watch->lock);
    for (bool well = true; well && !watch->stop;) {
        uint64_t now = clock_ns();
        bool engine_sleeps = atomic_load_explicit(&watch->worker->engine_sleeps, memory_order_relaxed) != 0;
        if (launches_look(watch, engine_sleeps)) {
            spin_reset(&spin);
            since_ns = health_ns = now;
        }
        if (!engine_sleeps) {
            spin_reset(&spin);
            since_ns = now;
        }
        uint32_t gpus = watch->in_flight | (now < watch->suspect_until_ns ? watch->suspects : 0);
        if (gpus && now - health_ns >= HEALTH_EVERY_NS) {
            well = health_look(watch, gpus);
            health_ns = now;
        }
        if (!TAILQ_EMPTY(&watch->launches)) {
            nap(watch, &spin, engine_sleeps, since_ns);
        } else if (well && !watch->stop) {
            idle_wait(watch, now);
            spin_reset(&spin);
            since_ns = clock_ns();
            if (watch->in_flight == 0 && !watch->suspects)
                health_ns = since_ns;
        }
    }
    (void)pthread_mutex_unlock(&watch->lock);
    return NULL;
}

int gpu_watch_start(struct worker *w, const struct gpu_plugin *plugin, struct gpu_watch **out, struct error *e)
{
    struct gpu_watch *watch = calloc(1, sizeof(*watch));
    pthread_condattr_t attr;

    if (!watch)
        return error_set(e, -ENOMEM, "no memory to watch GPUs");
    watch->worker = w;
    watch->plugin = plugin;
    TAILQ_INIT(&watch->launches);
    (void)pthread_mutex_init(&watch->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&watch->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    int status = pthread_create(&watch->thread, NULL, watch_main, watch);
    if (status) {
        (void)pthread_cond_destroy(&watch->changed);
        (void)pthread_mutex_destroy(&watch->lock);
        free(watch);
        return error_set(e, -status, "cannot start the thread that watches GPUs: %s", strerror(status));
    }
    *out = watch;
    return 0;
}

void gpu_watch_stop(struct gpu_watch *watch)
{
    (void)pthread_mutex_lock(&watch->lock);
    watch->stop = true;
    (void)pthread_cond_signal(&watch->changed);
    (void)pthread_mutex_unlock(&watch->lock);
    (void)pthread_join(watch->thread, NULL);
    (void)pthread_cond_destroy(&watch->changed);
    (void)pthread_mutex_destroy(&watch->lock);
    free(watch);
}

void gpu_watch_add(struct gpu_watch *watch, struct launch *l)
{
    (void)pthread_mutex_lock(&watch->lock);
    bool is_only = TAILQ_EMPTY(&watch->launches);
    TAILQ_INSERT_TAIL(&watch->launches, l, watched);
    l->is_watched = true;
    if (is_only)
        (void)pthread_cond_signal(&watch->changed);
    (void)pthread_mutex_unlock(&watch->lock);
}

bool gpu_watch_take(struct gpu_watch *watch, struct launch *l)
{
    (void)pthread_mutex_lock(&watch->lock);
    bool taken = l->is_watched;
    if (taken)
        TAILQ_REMOVE(&watch->launches, l, watched);
    l->is_watched = false;
    (void)pthread_mutex_unlock(&watch->lock);
    return taken;
}

void gpu_watch_suspect(struct gpu_watch *watch, uint32_t gpus)
{
    (void)pthread_mutex_lock(&watch->lock);
    watch->suspects |= gpus;
    watch->suspect_until_ns = clock_ns() + SUSPECT_NS;
    (void)pthread_cond_signal(&watch->changed);
    (void)pthread_mutex_unlock(&watch->lock);
}

bool gpu_watch_lost(struct gpu_watch *watch, struct error *e)
{
    if (!atomic_load_explicit(&watch->is_lost, memory_order_acquire))
        return false;
    *e = watch->lost;
    return true;
}
