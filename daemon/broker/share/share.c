/* SPDX-License-Identifier: MIT */
#include "daemon/broker/share/share.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/broker/metrics/flights.h"
#include "daemon/broker/metrics/metrics.h"
#include "daemon/broker/share/law.h"
#include "proto/base/log.h"

/* job.share. Of GPUs: what the worker has said last, and its part. */
struct job_share {
    struct share_told *told;
    bool awake; /* its bell is not set: it uses GPUs, or did when the timer ran last */
    struct on_gpu {
        uint64_t used_ns, waits; /* as the worker has said them last */
        uint64_t busy_ns;        /* likewise, up to that look */
        uint64_t active_ns;      /* when it used the GPU last. 0: never */
        bool limited;            /* it was told of a limit, which stands */
        struct share_part part;
    } on[SHARE_GPUS];
};

static const struct share_said *said_of(const struct job *j)
{
    return ledger_said(job_flight(j));
}

static bool is_weighted(const struct broker *b)
{
    return !strcmp(b->config.gpu_turns, "weighted");
}

static void bell_set(struct job_share *s)
{
    s->awake = false;
    __atomic_store_n(&s->told->bell, 1, __ATOMIC_SEQ_CST);
}

/* There is no limit on that GPU, and no past. */
static void part_end(struct job_share *s, unsigned gpu)
{
    struct on_gpu *on = &s->on[gpu];

    share_set(&s->told->limited, share_get(&s->told->limited) & ~(UINT64_C(1) << gpu));
    share_set(&s->told->until_ns[gpu], SHARE_FREE);
    on->limited = false;
    on->part = (struct share_part){.weight = 0};
}

/* For how long the worker has had something in the GPU's queues, since it began. Its two words are of different moments at times: then a look finds too little, or too
 * much, and the next one as much more or less. */
static uint64_t busy_of(const struct share_said *said, unsigned gpu, uint64_t now)
{
    uint64_t since = share_get(&said->since_ns[gpu]), busy = share_get(&said->busy_ns[gpu]);

    return busy + (since && since < now ? now - since : 0);
}

/* What the worker has done on a GPU since the last look. Whatever it writes, the count here never falls, and a worker can claim no more than share_step()
 * takes of it. */
static void gpu_look(struct job *j, unsigned gpu, uint64_t now)
{
    const struct share_said *said = said_of(j);
    struct on_gpu *on = &j->share->on[gpu];
    uint64_t used = share_get(&said->used_ns[gpu]), waits = share_get(&said->waits[gpu]), busy = busy_of(said, gpu, now);

    on->part.busy_ns = busy > on->busy_ns ? busy - on->busy_ns : 0;
    on->busy_ns = busy;
    on->part.occupied_ns = used > on->used_ns ? used - on->used_ns : 0;
    on->part.ahead_ns = share_get(&said->ahead_ns[gpu]);
    on->part.waits = share_get(&said->waiting[gpu]) != 0 || waits != on->waits;
    on->used_ns = used;
    on->waits = waits;
    if (on->part.occupied_ns || share_get(&said->running[gpu]) || on->part.waits)
        on->active_ns = now;
}

static void look(struct job *j, uint64_t now)
{
    for (unsigned gpu = 0; gpu < SHARE_GPUS; gpu++)
        gpu_look(j, gpu, now);
}

static bool is_active(const struct job_share *s, unsigned gpu, uint64_t now)
{
    return s->on[gpu].active_ns && now - s->on[gpu].active_ns <= SHARE_ACTIVE_NS;
}

/* The active worker's part is in `parts`, which has room for all jobs. Returns their number. */
static unsigned parts_find(const struct broker *b, unsigned gpu, uint64_t now, struct job *jobs[], struct share_part *parts[])
{
    unsigned n = 0;
    struct job *j;

    LIST_FOREACH(j, &b->jobs, link) {
        if (!j->share || !j->share->awake || !is_active(j->share, gpu, now))
            continue;
        jobs[n] = j;
        parts[n++] = &j->share->on[gpu].part;
    }
    for (unsigned i = 0; i < n; i++) {
        unsigned own = 0; /* jobs of one user share the user's part equally */
        for (unsigned k = 0; k < n; k++)
            own += jobs[k]->uid == jobs[i]->uid;
        parts[i]->weight = (double)config_weight(&b->config, jobs[i]->uid) / own;
    }
    return n;
}

static void part_tell(struct job_share *s, unsigned gpu, uint64_t now)
{
    struct on_gpu *on = &s->on[gpu];
    uint64_t until = on->used_ns + on->part.allowed_ns;

    share_set(&s->told->until_ns[gpu], until < on->used_ns ? SHARE_FREE : until);
    share_set(&s->told->when_ns, now);
    share_set(&s->told->limited, share_get(&s->told->limited) | UINT64_C(1) << gpu);
    on->limited = true;
}

/* Returns whether several workers use the GPU. */
static bool gpu_share(struct broker *b, unsigned gpu, uint64_t now, uint64_t elapsed, struct job *jobs[],
                      struct share_part *parts[])
{
    unsigned n = parts_find(b, gpu, now, jobs, parts);
    struct job *j;

    LIST_FOREACH(j, &b->jobs, link)
        if (j->share && j->share->on[gpu].limited && (n < 2 || !j->share->awake || !is_active(j->share, gpu, now)))
            part_end(j->share, gpu);
    if (n < 2)
        return false;
    share_step(parts, n, elapsed);
    for (unsigned i = 0; i < n; i++)
        part_tell(jobs[i]->share, gpu, now);
    return true;
}

static void idle_find(const struct broker *b, uint64_t now)
{
    struct job *j;

    LIST_FOREACH(j, &b->jobs, link) {
        bool any = false;
        for (unsigned gpu = 0; j->share && gpu < SHARE_GPUS; gpu++)
            any |= is_active(j->share, gpu, now);
        if (j->share && j->share->awake && !any)
            bell_set(j->share);
    }
}

static void limits_end(const struct broker *b)
{
    struct job *j;

    LIST_FOREACH(j, &b->jobs, link)
        for (unsigned gpu = 0; j->share && gpu < SHARE_GPUS; gpu++)
            if (j->share->on[gpu].limited)
                part_end(j->share, gpu);
}

static unsigned awake_count(const struct broker *b)
{
    const struct job *j;
    unsigned n = 0;

    LIST_FOREACH(j, &b->jobs, link)
        n += j->share && j->share->awake;
    return n;
}

/* True: a GPU is shared, and the timer is to go on. */
static bool shares_step(struct broker *b, uint64_t now)
{
    unsigned most = awake_count(b);
    struct job **jobs = calloc(most + 1, sizeof(struct job *)), *j;
    struct share_part **parts = calloc(most + 1, sizeof(struct share_part *));
    bool shared = false;

    if (!jobs || !parts)
        log_warning("no memory for shares of GPUs: workers launch as they like");
    LIST_FOREACH(j, &b->jobs, link)
        if (j->share && j->share->awake)
            look(j, now);
    for (unsigned gpu = 0; jobs && parts && gpu < SHARE_GPUS; gpu++)
        shared |= gpu_share(b, gpu, now, now - b->share_ns, jobs, parts);
    free((void *)jobs);
    free((void *)parts);
    b->share_ns = now;
    return shared;
}

static void timer_start(struct broker *b)
{
    static const struct timeval period = {.tv_usec = SHARE_PERIOD_NS / 1000};

    if (event_add(&b->share_event, &period))
        log_warning("the timer for shares of GPUs does not start: workers launch as they like");
}

static void on_time(evutil_socket_t sock, short what, void *arg)
{
    struct broker *b = arg;
    uint64_t now = clock_ns();

    (void)sock, (void)what;
    bool shared = is_weighted(b) && shares_step(b, now);
    idle_find(b, now);
    if (shared)
        timer_start(b);
    else
        limits_end(b);
}

void job_share_heard(struct job *j)
{
    struct broker *b = j->broker;
    uint64_t now = clock_ns();
    struct job *other;

    if (!j->share || j->share->awake || share_get(&j->share->told->bell))
        return;
    j->share->awake = true;
    if (awake_count(b) < 2 || !is_weighted(b))
        return;
    if (!event_initialized(&b->share_event))
        (void)evtimer_assign(&b->share_event, b->base, on_time, b);
    if (event_pending(&b->share_event, EV_TIMEOUT, NULL)) {
        look(j, now); /* what it did before is not shared */
        return;
    }
    LIST_FOREACH(other, &b->jobs, link)
        if (other->share && other->share->awake)
            look(other, now);
    b->share_ns = now;
    timer_start(b);
}

void job_share_open(struct job *j, int ledger)
{
    struct job_share *s = calloc(1, sizeof(*s));

    if (s)
        s->told = ledger_told_map(ledger);
    if (!s || !s->told) {
        job_log(LOG_LEVEL_WARNING, j, "its worker %d has no share of GPUs: %s: it launches as it likes", j->pid,
                strerror(ENOMEM));
        free(s);
        return;
    }
    j->share = s;
    share_set(&s->told->limited, 0); /* an earlier broker's word */
    for (unsigned gpu = 0; gpu < SHARE_GPUS; gpu++)
        share_set(&s->told->until_ns[gpu], SHARE_FREE);
    bell_set(s);
}

void job_share_close(struct job *j)
{
    struct job_share *s = j->share;

    if (!s)
        return;
    j->share = NULL;
    share_set(&s->told->limited, 0);
    ledger_told_unmap(s->told);
    free(s);
}

void shares_again(struct broker *b)
{
    struct job *j;

    event_stop(&b->share_event);
    limits_end(b);
    LIST_FOREACH(j, &b->jobs, link)
        if (j->share)
            bell_set(j->share);
}

uint64_t shares_count(const struct broker *b)
{
    uint32_t gpus = 0;
    const struct job *j;

    LIST_FOREACH(j, &b->jobs, link)
        for (unsigned gpu = 0; j->share && gpu < SHARE_GPUS; gpu++)
            gpus |= (uint32_t)j->share->on[gpu].limited << gpu;
    return (uint64_t)__builtin_popcount(gpus);
}

void shares_close(struct broker *b)
{
    event_stop(&b->share_event);
}
