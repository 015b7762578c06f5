/* SPDX-License-Identifier: MIT */
#include "daemon/worker/device/gpu/reader.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/worker/device/gpu/gpus.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"

#define CLOCK_EVERY_NS UINT64_C(10000000000) /* clocks are looked at anew; between, how fast they run is known */
#define CLOCK_AGAIN_NS UINT64_C(1000000000)  /* ... or when that has failed */
#define SETTLE_NS UINT64_C(1000000000)       /* far more than any such copy takes */
#define REST_NS 20000
#define FUTURE_NS 1000000.0 /* that a time may be ahead: clocks are not read without error */

struct gpu_reader {
    const struct gpu_plugin *plugin;
    pthread_t thread;
    pthread_mutex_t lock; /* what follows */
    pthread_cond_t changed;
    STAILQ_HEAD(, gpu_read) reads;
    bool stop;
    /* The thread's: */
    struct gpu_moment moments[GPU_MAX_GPUS];
    uint64_t again_ns[GPU_MAX_GPUS]; /* when the GPU's clock is to be looked at; 0: it has not been */
    bool told[GPU_MAX_GPUS];         /* that it does not answer */
};

/* The GPU's clock, as it was a while ago, if that will do. */
static struct gpu_moment moment_of(struct gpu_reader *reader, int gpu)
{
    const uint64_t now = clock_ns();
    struct error why;

    if (now < reader->again_ns[gpu])
        return reader->moments[gpu];
    if (!reader->plugin->clock_read(gpu, &reader->moments[gpu], &why)) {
        reader->again_ns[gpu] = now + CLOCK_EVERY_NS;
        return reader->moments[gpu];
    }
    reader->again_ns[gpu] = now + CLOCK_AGAIN_NS;
    if (!reader->told[gpu])
        log_warning("flight recorder: times of runs that ranks launch may be missing: %s", why.text);
    reader->told[gpu] = true;
    return reader->moments[gpu];
}

static void read_do(struct gpu_reader *reader, struct gpu_read *r)
{
    r->error.status = 0;
    for (unsigned i = 0; i < r->n && !r->error.status; i++) {
        r->parts[i].moment = moment_of(reader, r->parts[i].gpu);
        (void)reader->plugin->records_read(r->parts[i].to, r->parts[i].gpu, r->parts[i].from, r->bytes, &r->error);
    }
    atomic_store_explicit(&r->done, 1, memory_order_release);
}

static void *reader_main(void *arg)
{
    struct gpu_reader *reader = arg;

    (void)pthread_mutex_lock(&reader->lock);
    while (!reader->stop || !STAILQ_EMPTY(&reader->reads)) {
        struct gpu_read *r = STAILQ_FIRST(&reader->reads);
        if (!r) {
            (void)pthread_cond_wait(&reader->changed, &reader->lock);
            continue;
        }
        STAILQ_REMOVE_HEAD(&reader->reads, link);
        (void)pthread_mutex_unlock(&reader->lock);
        read_do(reader, r); /* whose owner may free it then */
        (void)pthread_mutex_lock(&reader->lock);
    }
    (void)pthread_mutex_unlock(&reader->lock);
    return NULL;
}

/* NULL: the error has the reason. */
static struct gpu_reader *reader_start(struct gpus *g, struct error *e)
{
    struct gpu_reader *reader = calloc(1, sizeof(*reader));

    if (!reader) {
        (void)error_set(e, -ENOMEM, "no memory to read what runs have noted");
        return NULL;
    }
    reader->plugin = g->plugin;
    STAILQ_INIT(&reader->reads);
    (void)pthread_mutex_init(&reader->lock, NULL);
    (void)pthread_cond_init(&reader->changed, NULL);
    int status = pthread_create(&reader->thread, NULL, reader_main, reader);
    if (status) {
        (void)pthread_cond_destroy(&reader->changed);
        (void)pthread_mutex_destroy(&reader->lock);
        free(reader);
        (void)error_set(e, -status, "cannot start the thread that reads what runs have noted: %s", strerror(status));
        return NULL;
    }
    return reader;
}

int gpu_read_ask(struct gpus *g, struct gpu_read *r, struct error *e)
{
    if (!g->reader)
        g->reader = reader_start(g, e);
    if (!g->reader)
        return e->status;
    atomic_store_explicit(&r->done, 0, memory_order_relaxed);
    (void)pthread_mutex_lock(&g->reader->lock);
    STAILQ_INSERT_TAIL(&g->reader->reads, r, link);
    (void)pthread_cond_signal(&g->reader->changed);
    (void)pthread_mutex_unlock(&g->reader->lock);
    return 0;
}

bool gpu_read_settle(const struct gpu_read *r)
{
    static const struct timespec rest = {.tv_nsec = REST_NS};
    const uint64_t until = clock_ns() + SETTLE_NS;

    while (!gpu_read_is_done(r)) {
        if (clock_ns() > until)
            return false;
        (void)nanosleep(&rest, NULL);
    }
    return true;
}

void gpu_reader_stop(struct gpus *g)
{
    struct gpu_reader *reader = g->reader;

    if (!reader)
        return;
    (void)pthread_mutex_lock(&reader->lock);
    reader->stop = true;
    (void)pthread_cond_signal(&reader->changed);
    (void)pthread_mutex_unlock(&reader->lock);
    (void)pthread_join(reader->thread, NULL);
    (void)pthread_cond_destroy(&reader->changed);
    (void)pthread_mutex_destroy(&reader->lock);
    free(reader);
    g->reader = NULL;
}

uint64_t gpu_moment_ns(const struct gpu_moment *m, uint64_t clock, uint64_t since, uint64_t now)
{
    const double ticks = clock >= m->clock ? (double)(clock - m->clock) : -(double)(m->clock - clock);
    const double from_now = ((double)m->ns - (double)now) + ticks * m->rate; /* small numbers: a double has 53 bits */

    if (!clock || !(m->rate > 0) || !(from_now <= FUTURE_NS) || !(from_now >= -(double)(now - since)))
        return 0;
    return from_now >= 0 ? now : now - (uint64_t)-from_now;
}
