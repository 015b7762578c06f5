/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_kernel.c - a fake GPU at work: a thread that takes one launch after the other from its queue. Functions of a
 * kernel that return false say that it is to leave.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "proto/proto.h"
#include "tests/fake_gpu/fake_gpu_inside.h"

#define NAP_NS 20000

uint64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void gpu_nap(void)
{
    static const struct timespec t = {.tv_nsec = NAP_NS};

    (void)nanosleep(&t, NULL);
}

static _Atomic uint64_t *flag_of(const struct task *t, uint32_t rank, uint32_t flag)
{
    return (_Atomic uint64_t *)pointer(t->launch->fixed.flags[rank]) + flag;
}

bool task_must_leave(const struct task *t)
{
    for (int i = 0; i < t->launch->nruns; i++)
        if (atomic_load_explicit(flag_of(t, t->launch->fixed.plans[i].rank, GPU_FLAGS), memory_order_relaxed) >= t->call.epoch)
            return true;
    return false;
}

/* A GPU whose context is lost stands still: the worker ends without waiting for it. */
void gpu_stand(const struct gpu *g)
{
    while (control->lost >> g->number & 1u)
        gpu_nap();
}

static bool word_has_come(uint64_t word, uint32_t value)
{
    return (int32_t)(atomic_load_explicit((_Atomic uint32_t *)pointer(word), memory_order_acquire) - value) >= 0;
}

static void words_await(struct gpu *g, const struct task *t)
{
    for (int i = 0, n = t->waits.in_kernel ? t->waits.before : t->waits.count; i < n; i++)
        for (; !word_has_come(t->waits.words[i], t->waits.values[i]); gpu_nap())
            gpu_stand(g);
    gpu_stand(g);
    (void)pthread_mutex_lock(&g->lock);
    while (g->copies_done < t->copies)
        (void)pthread_cond_wait(&g->changed, &g->lock);
    (void)pthread_mutex_unlock(&g->lock);
}

/* What is there now: fake_gpu_memory.c says why from the file. */
static void rows_copy(const struct copy *c)
{
    unsigned char *row = malloc(c->row_bytes);

    for (uint32_t r = 0; r < c->rows; r++) {
        ssize_t n = pread(c->file, row, c->row_bytes, (off_t)(c->file_at + r * c->stride));
        wrong(n != (ssize_t)c->row_bytes, "a copy from memory that is not there any more");
        memcpy(pointer(c->to + r * c->stride), row, c->row_bytes);
    }
    free(row);
}

/* Does its copies, one after the other. */
void *gpu_copier_main(void *argument)
{
    struct gpu *g = argument;

    (void)pthread_mutex_lock(&g->lock);
    while (!g->end || !STAILQ_EMPTY(&g->copies)) {
        struct copy *c = STAILQ_FIRST(&g->copies);
        if (!c) {
            (void)pthread_cond_wait(&g->changed, &g->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&g->lock);
        for (uint64_t until = now_ns() + control->copy_us * UINT64_C(1000); now_ns() < until;)
            gpu_nap();
        rows_copy(c);
        (void)atomic_fetch_add(&control->copied, 1);
        (void)pthread_mutex_lock(&g->lock);
        STAILQ_REMOVE_HEAD(&g->copies, link);
        g->copies_done++;
        (void)pthread_cond_broadcast(&g->changed);
        free(c);
    }
    (void)pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* What need not have come before the kernel began, before it stores anything at other ranks. */
static bool gates_await(const struct gpu *g, const struct task *t)
{
    for (int i = t->waits.before; t->waits.in_kernel && i < t->waits.count; i++)
        for (; !word_has_come(t->waits.words[i], t->waits.values[i]); gpu_nap()) {
            gpu_stand(g);
            if (task_must_leave(t))
                return false;
        }
    return true;
}

static bool kernel_hold(const struct gpu *g, const struct task *t)
{
    uint64_t until = now_ns() + control->run_us * UINT64_C(1000);
    bool leaves, was_held = false;

    for (;; gpu_nap()) {
        bool deaf = control->deaf >> g->number & 1u;
        bool held = control->hold >> g->number & 1u && control->hold_phase == t->call.nodes.phase_first;
        if (held != was_held)
            (void)atomic_fetch_add(&control->holding, held ? 1 : -1);
        was_held = held;
        gpu_stand(g);
        leaves = !deaf && task_must_leave(t);
        if (leaves || (!deaf && !held && now_ns() >= until))
            break;
    }
    if (was_held)
        (void)atomic_fetch_sub(&control->holding, 1);
    return !leaves;
}

/* The test's failure, as gpu_fail() in kernels/gpu/device/execute.h. */
static bool kernel_is_well(const struct task *t)
{
    const struct gpu_fixed *fixed = &t->launch->fixed;

    for (int i = 0; i < t->launch->nruns; i++) {
        uint32_t yes = 1;
        if (control->failing_rank != fixed->plans[i].rank ||
            (control->failing_epoch && control->failing_epoch != t->call.epoch) ||
            !atomic_compare_exchange_strong(&control->failing, &yes, 0))
            continue;
        struct gpu_failure *out = pointer(t->call.in[i].failure);
        *out = control->failure;
        for (uint32_t r = 0; r < fixed->shape.nranks; r++)
            if (fixed->flags[r])
                atomic_store_explicit(flag_of(t, r, GPU_FLAGS), t->call.epoch, memory_order_release);
        return false;
    }
    return true;
}

bool slice_await(const struct gpu *g, const struct task *t, uint32_t rank, const struct slice *s)
{
    for (uint32_t i = 0; i < s->wait_count; i++)
        while (atomic_load_explicit(flag_of(t, rank, s->wait_first + i * s->wait_stride), memory_order_acquire) <
               t->call.epoch) {
            gpu_stand(g);
            if (task_must_leave(t))
                return false;
            gpu_nap();
        }
    return true;
}

/* Flags only grow: one that goes back may be waited for until the end. */
void flag_raise(const struct task *t, uint32_t rank, uint32_t flag)
{
    wrong(atomic_exchange_explicit(flag_of(t, rank, flag), t->call.epoch, memory_order_acq_rel) > t->call.epoch,
          "a flag goes back");
}

/* The word of an element of y from `source`, in the slots of rank `at`: as in kernels/gpu/device/exchange/packets.h. */
static _Atomic uint64_t *word_of(const struct task *t, uint32_t at, uint32_t source, uint32_t row, uint32_t col)
{
    const struct gpu_fixed *fixed = &t->launch->fixed;
    uint64_t slot = fixed->slots[at] + t->call.slots_at + source * fixed->shape.slot_bytes;

    col -= (uint32_t)fixed->shape.first[at];
    return (_Atomic uint64_t *)pointer(slot) + (col / 8 * (uint64_t)fixed->shape.m + row) * 8 + col % 8;
}

static uint32_t stamp_of(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

/* What a launch that computes nothing sends is who it is from. */
static uint64_t word_make(const struct task *t, uint32_t rank, uint32_t row, uint32_t col)
{
    float sum = t->launch->computes ? prepared_partial(t, row, col) : 0;
    uint32_t bits = rank;

    if (t->launch->computes)
        memcpy(&bits, &sum, sizeof(bits));
    return (uint64_t)t->call.stamp << 32 | bits;
}

/* A tile's words to all ranks, or to the one that reduces it. */
static void words_put(const struct task *t, uint32_t rank, const struct slice *s)
{
    for (uint32_t i = 0; i < s->rows; i++)
        for (uint32_t j = s->col; j < s->col + s->cols; j++) {
            uint64_t word = word_make(t, rank, i, j);
            for (uint32_t r = 0; r < t->launch->fixed.shape.nranks; r++)
                wrong((s->dst == SLICE_DST_ALL || s->dst == r) &&
                          stamp_of(atomic_exchange_explicit(word_of(t, r, rank, i, j), word, memory_order_relaxed)) >=
                              t->call.stamp,
                      "a word's stamp does not grow");
        }
}

/* Some rank was told to leave, and goes on with what comes next; the others will be. */
static bool is_given_up(const struct task *t)
{
    const struct gpu_fixed *fixed = &t->launch->fixed;

    for (uint32_t r = 0; r < fixed->shape.nranks; r++)
        if (fixed->flags[r] && atomic_load(flag_of(t, r, GPU_FLAGS)) >= t->call.epoch)
            return true;
    return false;
}

static bool word_await(const struct gpu *g, const struct task *t, const _Atomic uint64_t *at, float *sum)
{
    uint64_t word;
    uint32_t bits;

    while (stamp_of(word = atomic_load_explicit(at, memory_order_relaxed)) != t->call.stamp) {
        wrong(stamp_of(word) > t->call.stamp && !is_given_up(t), "a word is overwritten before it was read");
        gpu_stand(g);
        if (task_must_leave(t))
            return false;
        gpu_nap();
    }
    bits = (uint32_t)word;
    memcpy(sum, &bits, sizeof(*sum));
    return true;
}

static bool words_reduce(const struct gpu *g, const struct task *t, const struct gpu_plan *plan, const struct slice *s)
{
    for (uint32_t i = 0; i < s->rows * s->cols; i++) {
        float sum = 0, term;
        for (uint32_t r = 0; r < t->launch->fixed.shape.nranks; r++) {
            if (!word_await(g, t, word_of(t, plan->rank, r, i / s->cols, s->col + i % s->cols), &term))
                return false;
            sum += term;
        }
        if (t->launch->computes)
            result_store(t, plan, s, i, &sum);
    }
    return true;
}

/* What other ranks wait for and this one waits for; nothing else is computed, but by a launch that does. */
static bool slice_run(const struct gpu *g, const struct task *t, const struct gpu_plan *plan, const struct slice *s)
{
    const struct gpu_shape *shape = &t->launch->fixed.shape;

    if (shape->compute == COMPUTE_VECTOR || shape->compute == COMPUTE_STEP) {
        vector_slice_run(t, plan, s);
        return true;
    }
    if (shape->exchange == EXCHANGE_GATHER) {
        gather_slice_run(t, plan, s);
        return true;
    }
    if (shape->over_nodes || (shape->compute == COMPUTE_GEMM && shape->exchange == EXCHANGE_REDUCE))
        nodes_slice_run(t, plan, s);
    else if (t->launch->computes && shape->compute == COMPUTE_GEMM)
        prepared_rows_put(t, s);
    if (shape->over_nodes || shape->compute != COMPUTE_GEMV)
        return true;
    if (s->kind == SLICE_COMPUTE_PUT || s->kind == SLICE_PUT)
        words_put(t, plan->rank, s);
    return s->kind != SLICE_REDUCE || words_reduce(g, t, plan, s);
}

static bool slice_signal(const struct gpu *g, const struct task *t, const struct gpu_plan *plan, const struct slice *s)
{
    uint32_t *left = (uint32_t *)pointer(plan->counters) + s->group;
    const struct signal_group *group;

    if (s->group == SLICE_NO_GROUP || --*left)
        return true;
    group = (const struct signal_group *)pointer(plan->groups) + s->group;
    for (uint32_t r = 0; r < t->launch->fixed.shape.nranks; r++)
        if (plan_goes_to(plan, group->dst, r)) {
            if (!nodes_is_remote(t, r))
                flag_raise(t, r, group->flag);
            else if (!nodes_trigger_push(g, t, plan->rank, r, FAKE_TRIGGER_FLAG | group->flag))
                return false;
        }
    return true;
}

static bool phase_run(const struct gpu *g, const struct task *t, const struct gpu_plan *plan, uint32_t phase)
{
    struct slice_time *times = pointer(plan->times);
    const struct slice *slices = pointer(plan->slices);

    for (uint32_t i = plan->first[phase]; i < plan->first[phase + 1]; i++) {
        struct slice_time time = {.epoch = (uint32_t)t->call.epoch};
        if (slices[i].wait_count && (!t->call.nodes.phase_first || slices[i].is_here)) {
            time.wait_ns = now_ns();
            if (!slice_await(g, t, plan->rank, &slices[i]))
                return false;
        }
        time.start_ns = now_ns();
        if (!slice_run(g, t, plan, &slices[i]) || !nodes_slice_send(g, t, plan, &slices[i], i) ||
            !slice_signal(g, t, plan, &slices[i]))
            return false;
        time.end_ns = now_ns();
        times[i] = time;
    }
    return true;
}

/* Of a rank that is here. */
static uint64_t flags_first(const struct task *t)
{
    uint32_t r = 0;

    while (!t->launch->fixed.flags[r])
        r++;
    return t->launch->fixed.flags[r];
}

/* A product in one step. Nothing but words in slots goes to other GPUs, and whether these come in the right order their stamps tell. */
static bool sends_only_words(const struct task *t)
{
    const struct gpu_shape *shape = &t->launch->fixed.shape;
    const struct slice *slices = pointer(t->launch->fixed.plans[0].slices);

    return shape->compute == COMPUTE_GEMV && !shape->over_nodes && shape->first[shape->nranks - 1] == 0 &&
           slices[0].kind == SLICE_COMPUTE_PUT;
}

/* Of one communicator, which has its flags for itself, nothing older may be there any more: on no GPU. */
static void order_check(const struct task *t)
{
    if (sends_only_words(t))
        return;
    for (int i = 0; i < GPU_MAX_GPUS; i++) {
        struct gpu *g = &gpus[i];
        if (!g->open)
            continue;
        const struct task *other;
        (void)pthread_mutex_lock(&g->lock);
        STAILQ_FOREACH(other, &g->tasks, link)
            wrong(flags_first(other) == flags_first(t) && other->call.epoch < t->call.epoch,
                  "an operator begins on a GPU while the one before is not over on another");
        (void)pthread_mutex_unlock(&g->lock);
    }
}

static void kernel_linger(const struct gpu *g)
{
    uint64_t until = now_ns() + control->run_us * UINT64_C(1000);

    while ((control->linger >> g->number & 1u) && now_ns() < until)
        gpu_nap();
}

void launch_groups_set(const struct gpu_launch *l)
{
    for (int i = 0; i < l->nruns; i++) {
        const struct gpu_plan *plan = &l->fixed.plans[i];
        for (uint32_t k = 0; k < plan->ngroups; k++)
            ((uint32_t *)pointer(plan->counters))[k] = ((const struct signal_group *)pointer(plan->groups))[k].slices;
    }
}

void phases_run(const struct gpu *g, const struct task *t)
{
    bool go_on = true;

    for (uint32_t phase = t->call.nodes.phase_first; phase < t->call.nodes.phase_next && go_on; phase++)
        for (int i = 0; i < t->launch->nruns && go_on; i++)
            go_on = phase_run(g, t, &t->launch->fixed.plans[i], phase);
}

static void kernel_run(const struct gpu *g, const struct task *t)
{
    bool go_on;

    if (!t->call.nodes.later)
        t->launch->fixed.began = now_ns();
    launch_groups_set(t->launch);
    if (!t->waits.in_kernel)
        order_check(t);
    (void)atomic_fetch_add(&control->begun, 1);
    go_on = kernel_hold(g, t) && kernel_is_well(t) && gates_await(g, t);
    if (t->waits.in_kernel && go_on)
        order_check(t);
    if (go_on)
        phases_run(g, t);
    kernel_linger(g);
}

/* Locked: who sees `done` and then looks into the queue does not find the task there any more. */
static void kernel_end(struct gpu *g)
{
    struct task *t = STAILQ_FIRST(&g->tasks);

    for (uint32_t i = 0; i < t->call.end.nwords; i++)
        atomic_store_explicit((_Atomic uint32_t *)pointer(t->call.end.words[i]), t->call.end.values[i], memory_order_release);
    while ((control->untold >> g->number & 1u) && !g->end) {
        (void)pthread_mutex_unlock(&g->lock);
        gpu_nap();
        (void)pthread_mutex_lock(&g->lock);
    }
    (void)atomic_fetch_add(&control->ended, 1);
    STAILQ_REMOVE_HEAD(&g->tasks, link);
    for (uint32_t i = 0; i < t->call.end.npeers; i++)
        atomic_store_explicit((_Atomic uint32_t *)pointer(t->call.end.peers[i]), t->call.end.epoch, memory_order_release);
    atomic_store_explicit((_Atomic uint64_t *)pointer(t->call.end.done),
                          gpu_done_make(t->call.end.epoch, now_ns() - t->launch->fixed.began), memory_order_release);
    (void)pthread_cond_broadcast(&g->changed);
    free(t);
}

void *gpu_main(void *argument)
{
    struct gpu *g = argument;

    (void)pthread_mutex_lock(&g->lock);
    while (!g->end) {
        struct task *t = STAILQ_FIRST(&g->tasks);
        if (!t) {
            (void)pthread_cond_wait(&g->changed, &g->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&g->lock);
        words_await(g, t);
        kernel_run(g, t);
        gpu_stand(g);
        (void)pthread_mutex_lock(&g->lock);
        kernel_end(g);
    }
    (void)pthread_mutex_unlock(&g->lock);
    return NULL;
}
