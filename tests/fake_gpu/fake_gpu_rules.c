/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_rules.c - rules of trackers on fake GPUs: a thread of each GPU does the runs that the worker gives it, some time later, in their order;
 * and what clients' streams count and wait for.
 */
#include "tests/fake_gpu/fake_gpu_inside.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/plan/dtype.h"
#include "kernels/plan/plan.h"

/* ---- the worker's ---- */

static int task_push(int gpu, struct rule_task *t, struct error *e)
{
    struct gpu *g = &gpus[gpu];
    int status = lost_error(gpu, e);

    wrong(pthread_equal(engine, pthread_self()), "a rule from the engine's thread");
    wrong(!g->open, "a rule on a GPU that is not open");
    rule_task_check(t);
    if (status) {
        free(t->words);
        free(t);
        return status;
    }
    (void)pthread_mutex_lock(&g->lock);
    STAILQ_INSERT_TAIL(&g->rules, t, link);
    (void)pthread_cond_broadcast(&g->changed);
    (void)pthread_mutex_unlock(&g->lock);
    return 0;
}

int fake_rule_start(const struct gpu_rule_run *run, struct error *e)
{
    struct rule_task *t = calloc(1, sizeof(*t));

    wrong(!run->run || !run->done || (!run->rows && !run->signal), "a run of a rule that does nothing");
    t->run = *run;
    return task_push(run->gpu, t, e);
}

int fake_words_look(int gpu, const uint64_t words[], uint32_t n, uint64_t to[], uint64_t *done, uint64_t number,
                    struct error *e)
{
    struct rule_task *t = calloc(1, sizeof(*t));

    wrong(!n, "a look at no words");
    t->run = (struct gpu_rule_run){.gpu = gpu, .done = address_of(done), .run = number};
    t->words = malloc((n + 1) * sizeof(words[0]));
    memcpy(t->words, words, n * sizeof(words[0]));
    t->to = to;
    t->n = n;
    return task_push(gpu, t, e);
}

/* ---- what runs have noted ---- */

#define CLOCK_AHEAD UINT64_C(3600000000000)
#define CLOCK_TICK 10 /* ns */

static uint64_t clock_at(uint64_t ns)
{
    return (ns + CLOCK_AHEAD) / CLOCK_TICK;
}

uint64_t fake_clock(void)
{
    return clock_at(now_ns());
}

int fake_clock_read(int gpu, struct gpu_moment *out, struct error *e)
{
    wrong(pthread_equal(engine, pthread_self()), "a GPU's clock is read on the engine's thread");
    out->ns = now_ns();
    out->clock = clock_at(out->ns);
    out->rate = CLOCK_TICK;
    return lost_error(gpu, e);
}

int fake_records_read(void *to, int gpu, uint64_t from, uint64_t bytes, struct error *e)
{
    wrong(pthread_equal(engine, pthread_self()), "records are read on the engine's thread");
    memory_check(from, bytes);
    for (uint64_t at = 0; at < bytes; at += sizeof(uint64_t))
        ((uint64_t *)to)[at / sizeof(uint64_t)] = atomic_load((_Atomic uint64_t *)pointer(from + at));
    return lost_error(gpu, e);
}

void fake_record_begin(struct run_record *records, uint32_t n, uint64_t run, uint64_t what)
{
    _Atomic uint64_t *words = (_Atomic uint64_t *)(void *)&records[run % n];

    atomic_store(&words[2], what);
    atomic_store(&words[3], 0);
    atomic_store(&words[1], fake_clock());
    atomic_store(&words[0], run);
}

void fake_record_end(struct run_record *records, uint32_t n, uint64_t run, bool given_up)
{
    _Atomic uint64_t *words = (_Atomic uint64_t *)(void *)&records[run % n];

    atomic_store(&words[3], fake_clock() | (given_up ? RUN_RECORD_GIVEN_UP : 0));
}

static void element_add(uint32_t dtype, unsigned char *to, const unsigned char *from)
{
    float a, b;

    dtype_to_f32(&a, to, (enum fcc_dtype)dtype, 1);
    dtype_to_f32(&b, from, (enum fcc_dtype)dtype, 1);
    a += b;
    dtype_from_f32(to, &a, (enum fcc_dtype)dtype, 1);
}

/* Stores or adds the rows of a run, and raises its signal. */
static void work_do(const struct gpu_rule_work *w, uint64_t run)
{
    const uint64_t size = w->action == FCC_RULE_ADD ? dtype_size((enum fcc_dtype)w->dtype) : 1;

    for (uint64_t row = 0; row < w->rows; row++) {
        unsigned char *to = (unsigned char *)pointer(w->to) + row * w->to_stride;
        const unsigned char *from = (const unsigned char *)pointer(w->from) + row * w->from_stride;
        if (w->action != FCC_RULE_ADD)
            memcpy(to, from, w->row_bytes);
        for (uint64_t at = 0; w->action == FCC_RULE_ADD && at < w->row_bytes; at += size)
            element_add(w->dtype, to + at, from + at);
    }
    if (w->signal)
        wrong(atomic_exchange((_Atomic uint64_t *)pointer(w->signal), run) >= run, "a rule's signal goes back");
}

static void task_run(const struct rule_task *t)
{
    const struct gpu_rule_run *r = &t->run;
    const struct gpu_rule_work work = {.action = r->action,
                                       .dtype = r->dtype,
                                       .from = r->from,
                                       .to = r->to,
                                       .rows = r->rows,
                                       .row_bytes = r->row_bytes,
                                       .from_stride = r->from_stride,
                                       .to_stride = r->to_stride,
                                       .signal = r->signal};

    for (uint32_t i = 0; i < t->n; i++)
        t->to[i] = atomic_load_explicit((_Atomic uint64_t *)pointer(t->words[i]), memory_order_acquire);
    work_do(&work, r->run);
}

void *ruler_main(void *argument)
{
    struct gpu *g = argument;

    (void)pthread_mutex_lock(&g->lock);
    while (!STAILQ_EMPTY(&g->rules) || !g->end) {
        struct rule_task *t = STAILQ_FIRST(&g->rules);
        if (!t) {
            (void)pthread_cond_wait(&g->changed, &g->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&g->lock);
        const uint64_t until = now_ns() + (t->n ? 0 : control->copy_us * UINT64_C(1000));
        while (now_ns() < until)
            gpu_nap();
        task_run(t);
        (void)pthread_mutex_lock(&g->lock);
        STAILQ_REMOVE_HEAD(&g->rules, link);
        atomic_store_explicit((_Atomic uint64_t *)pointer(t->run.done), t->run.run, memory_order_release);
        free(t->words);
        free(t);
    }
    (void)pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* ---- the client's ---- */

struct point {
    struct point *before; /* a graph's, which stay: replays come at any time */
    struct gpu_rule_words words;
    struct gpu_rule_work work; /* `works`: it works off a run */
    uint64_t n;                /* otherwise: 0: it waits */
    bool works, is_captured;
};
static struct point *captured;

static uint64_t load(uint64_t at)
{
    return atomic_load_explicit((_Atomic uint64_t *)pointer(at), memory_order_acquire);
}

static bool is_over(const struct gpu_rule_words *w)
{
    return atomic_load((_Atomic int32_t *)pointer(w->status)) || atomic_load((_Atomic int32_t *)pointer(w->ended));
}

/* As the plug-in's kernels: when the rule has ended, nothing is waited for, and the rows are moved all the same. */
static void work_pass(const struct gpu_rule_words *w, const struct gpu_rule_work *work)
{
    const uint64_t run = load(w->ran) + 1;
    struct gpu_rule_work silent = *work;

    atomic_store((_Atomic uint64_t *)pointer(w->begun), run);
    for (int i = 0; i < FCC_RULE_AWAITS; i++)
        while (work->awaits[i].word && load(work->awaits[i].word) + work->awaits[i].lag < run && !is_over(w))
            gpu_nap();
    if (is_over(w))
        silent.signal = 0;
    work_do(&silent, run);
    if (!is_over(w))
        atomic_store((_Atomic uint64_t *)pointer(w->ran), run);
}

static void point_pass(void *argument)
{
    struct point *p = argument;
    const struct gpu_rule_words *w = &p->words;

    if (p->works) {
        work_pass(w, &p->work);
    } else if (p->n) {
        (void)atomic_fetch_add((_Atomic uint64_t *)pointer(w->streams), p->n);
    } else {
        const uint64_t need = load(w->need), run = need ? (load(w->count) + load(w->streams)) / need : 0;
        while (load(w->done) < run && !is_over(w))
            gpu_nap();
    }
    if (!p->is_captured)
        free(p);
}

/* Of a captured one the list is the owner, otherwise point_pass(). */
static struct point *point_make(const struct point *what, bool is_captured)
{
    struct point *p = malloc(sizeof(*p));

    if (!p)
        return NULL;
    *p = *what;
    p->is_captured = is_captured;
    if (is_captured) { /* the test captures by one thread */
        p->before = captured;
        captured = p;
    }
    return p;
}

static int point_push(const struct point *what, void *stream, struct error *e)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD), *push, *capturing;
    struct client_driver driver;
    struct point *p;
    int is_captured = 0;

    if (!library)
        return error_set(e, -ENODEV, "this process has not loaded the driver");
    push = dlsym(library, "cuLaunchHostFunc");
    capturing = dlsym(library, "cuStreamIsCapturing");
    (void)dlclose(library); /* the client keeps it */
    memcpy(&driver.function_push, &push, sizeof(push));
    memcpy(&driver.capturing, &capturing, sizeof(capturing));
    if (driver.capturing(stream, &is_captured))
        return error_set(e, -EIO, "the driver refused");
    p = point_make(what, is_captured != 0);
    if (!p)
        return error_set(e, -ENOMEM, "out of memory");
    if (!driver.function_push(stream, point_pass, p))
        return 0;
    if (!is_captured)
        free(p);
    return error_set(e, -EIO, "the driver refused");
}

int fake_rule_add(const struct gpu_rule_words *words, uint64_t n, void *stream, struct error *e)
{
    return n ? point_push(&(struct point){.words = *words, .n = n}, stream, e) : 0;
}

int fake_rule_await(const struct gpu_rule_words *words, void *stream, struct error *e)
{
    return point_push(&(struct point){.words = *words}, stream, e);
}

int fake_rule_run(const struct gpu_rule_words *words, const struct gpu_rule_work *work, void *stream, struct error *e)
{
    return point_push(&(struct point){.words = *words, .work = *work, .works = true}, stream, e);
}
