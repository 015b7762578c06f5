/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_prepared.c - what a client's process uses of the fake plug-in: operators that it launches by itself. A run is a function on
 * a stream of the fake driver, and does there what a fake GPU does for the worker's launches (fake_gpu_kernel.c).
 *
 * Of f32 it computes something, too: the product of only the first element of each row and each column. So where all others are 0 it is
 * the whole product, which shows that each rank found all ranks' memory, and in the order of the stream.
 */
#include "tests/fake_gpu/fake_gpu_rings.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/gpu/bound_check.h"
#include "kernels/gpu/step.h"

struct gpu_prepared {
    struct gpu gpu; /* has nothing but its number */
    struct gpu_launch launch;
    struct task task; /* of every run, but for what counts */
    unsigned char *plan;
    uint64_t slots_bytes;
    _Atomic uint64_t *begun, *ended;
    bool meets;
    struct gpu_stream_places places;  /* n is 0: the program has bound it */
    uint64_t epoch;                   /* of the newest run; NUMBERED: the runs find theirs by themselves */
    _Atomic uint64_t *series, *clash; /* gpu_series's */
    struct run_record *records;       /* those of an operator that the program has bound */
    _Atomic int under_way;            /* runs */
    struct run *captured;             /* the newest one of a graph */
    _Atomic int enqueued;             /* runs that have not ended */
    struct client_driver driver;
    struct rings *rings; /* not NULL: it is that, and the rest, but for the plan, is not used */
    int64_t *numbers;    /* a program's step's, as they are in the GPU's memory */
    size_t nnumbers;
    struct numbers *captured_numbers; /* the newest ones of a graph */
    struct guard *captured_guards;    /* likewise */
};

/* In front of a run of a step: whether it is one. */
struct guard {
    struct gpu_prepared *prepared;
    const struct rings *rings;
    struct guard *before; /* gpu_prepared.captured_guards */
    bool is_captured;
};

/* Words that come to a step's numbers in the order of a stream. */
struct numbers {
    struct gpu_prepared *prepared;
    struct numbers *before; /* gpu_prepared.captured_numbers */
    bool is_captured;
    size_t at, n;
    int64_t words[];
};

#define NUMBERED UINT64_MAX

struct run {
    struct gpu_prepared *prepared;
    uint64_t epoch;                   /* 0: the one behind the last one that has ended */
    bool is_captured;                 /* it may be run any number of times, until the operator is closed */
    struct run *before;               /* gpu_prepared.captured */
    struct gpu_repeated_run repeated; /* epoch is 0: the program has bound the operator */
};

/* ---- what it computes ---- */

static float element(uint64_t data, int64_t at)
{
    return ((const float *)pointer(data))[at];
}

float prepared_partial(const struct task *t, uint32_t row, uint32_t col)
{
    const struct gpu_input *in = &t->call.in[0];

    if (!in->gemv.k)
        return 0;
    return element(in->gemv.x, row * in->gemv.x_stride) * element(in->gemv.w, col * in->gemv.w_stride);
}

void prepared_rows_put(const struct task *t, const struct slice *s)
{
    const struct gpu_output *c = &t->call.out[s->dst];
    const struct gpu_input *in = &t->call.in[0];

    if (s->kind != SLICE_COMPUTE_PUT && s->kind != SLICE_PUT) /* what is put is computed then, which makes no difference */
        return;
    for (uint32_t i = 0; i < s->rows; i++)
        for (uint32_t j = 0; j < s->cols; j++)
            ((float *)pointer(c->data))[(s->dst_row + i) * c->stride[0] + s->dst_col + j] =
                in->gemm.k ? element(in->gemm.a, (s->row + i) * in->gemm.a_stride) * element(in->gemm.b, s->col + j) : 0;
}

/* ---- runs ---- */

/* The other ranks' streams have come to it, too. False: it is to leave. */
static bool ranks_meet(const struct gpu *g, const struct task *t)
{
    uint32_t rank = t->launch->fixed.plans[0].rank, n = t->launch->fixed.shape.nranks;
    bool well = true;

    for (uint32_t r = 0; r < n; r++)
        if (r != rank)
            flag_raise(t, r, GPU_FLAG_DONE + rank);
    for (uint32_t r = 0; r < n && well; r++)
        well = r == rank ||
               slice_await(g, t, rank, &(struct slice){.wait_first = GPU_FLAG_DONE + r, .wait_count = 1, .wait_stride = 1});
    return well;
}

/* ---- runs that are recalled ---- */

static _Atomic uint64_t *failure_of(const struct gpu_launch *l)
{
    return (_Atomic uint64_t *)pointer(l->fixed.flags[l->fixed.plans[0].rank]) + GPU_FLAGS;
}

static bool must_leave(const struct task *t)
{
    return atomic_load(failure_of(t->launch)) >= t->call.epoch;
}

static _Atomic uint32_t *place(uint64_t address, uint64_t pitch, uint32_t slot)
{
    return pointer(address + slot * pitch);
}

/* As kernels/gpu/device/recall.h. */
static void hand_over(const struct gpu_prepared *p, const struct gpu_repeated_run *run)
{
    const _Atomic uint32_t *finished = place(p->places.finished.address, p->places.finished.pitch, run->slot);

    for (uint32_t i = 0; i < p->places.n; i++)
        atomic_store(place(p->places.started[i].address, p->places.started[i].pitch, run->slot), run->value);
    while ((int32_t)(atomic_load(finished) - run->value) < 0)
        (void)usleep(10);
}

/* The worker's launch stores all of the result again; as a fake GPU computes nothing for the worker, it is as if it were not computed. */
static void sum_wipe(const struct task *t)
{
    const struct gpu_shape *shape = &t->launch->fixed.shape;
    const struct gpu_output *y = &t->call.out[t->launch->fixed.plans[0].rank];

    for (int64_t i = 0; shape->compute == COMPUTE_GEMV && t->launch->computes && i < shape->m * shape->n; i++)
        ((float *)pointer(y->data))[i / shape->n * y->stride[0] + i % shape->n] = NAN;
}

static void run_free(struct run *run)
{
    if (!run->is_captured) /* otherwise prepared_close() does */
        free(run);
}

/* As kernels/gpu/device/numbers.h: the run's number. False: it is over, or the operator's run before has not ended. */
static bool run_number(const struct run *run, uint64_t *epoch)
{
    struct gpu_prepared *p = run->prepared;

    *epoch = run->epoch ? run->epoch : atomic_load(p->series) + 1;
    if (!run->epoch && atomic_load(failure_of(&p->launch)) >= *epoch)
        return false;
    if (atomic_fetch_add(&p->under_way, 1) == 0)
        return true;
    atomic_store(p->clash, *epoch);
    atomic_store(failure_of(&p->launch), UINT64_MAX);
    (void)atomic_fetch_sub(&p->under_way, 1);
    return false;
}

static void run_execute(void *argument)
{
    struct run *run = argument;
    struct gpu_prepared *p = run->prepared;
    struct task *t = &p->task;
    uint64_t began = now_ns(), epoch;

    if (!run_number(run, &epoch)) {
        (void)atomic_fetch_sub(&p->enqueued, !run->is_captured);
        run_free(run);
        return;
    }
    t->call.epoch = epoch;
    t->call.stamp = (uint32_t)epoch;
    t->call.slots_at = epoch % 2 * p->slots_bytes;
    wrong(atomic_exchange(p->begun, epoch) >= epoch, "a prepared operator's run begins behind a later one");
    (void)atomic_fetch_add(&control->runs, 1);
    launch_groups_set(&p->launch);
    if (p->series)
        fake_record_begin(p->records, RUN_RECORDS, epoch, run_record_what(epoch, RUN_RECORDS, 0, 0, 0));
    if (run->repeated.epoch) {
        gpu_call_inputs_set(&t->call, p->launch.fixed.shape.compute, run->repeated.inputs);
        t->call.out[p->launch.fixed.plans[0].rank].data = run->repeated.result;
    }
    if (!p->meets || ranks_meet(&p->gpu, t))
        phases_run(&p->gpu, t);
    if (run->repeated.epoch && must_leave(t)) {
        (void)atomic_fetch_add(&control->recalled, 1);
        sum_wipe(t);
        hand_over(p, &run->repeated);
    } else if (run->repeated.epoch) {
        (void)atomic_fetch_add(&control->bound, 1);
    }
    if (p->series) {
        fake_record_end(p->records, RUN_RECORDS, epoch, false);
        atomic_store(p->series, epoch);
    }
    (void)atomic_fetch_sub(&p->under_way, 1);
    atomic_store_explicit(p->ended, gpu_done_make((uint32_t)epoch, now_ns() - began), memory_order_release);
    (void)atomic_fetch_sub(&p->enqueued, !run->is_captured);
    run_free(run);
}

/* Asks the driver for something that it wants a current GPU for. 0, or the driver's error. */
static int run_push(struct gpu_prepared *p, uint64_t epoch, const struct gpu_repeated_run *repeated, void *stream)
{
    struct run *run = malloc(sizeof(*run));
    int capturing = 0, result = p->driver.capturing(stream, &capturing);

    *run = (struct run){.prepared = p, .epoch = epoch, .is_captured = capturing != 0};
    wrong(capturing && epoch, "a run with a number is captured");
    if (repeated)
        run->repeated = *repeated;
    if (run->is_captured) {
        run->before = p->captured;
        p->captured = run;
        return result ? result : p->driver.function_push(stream, run_execute, run);
    }
    (void)atomic_fetch_add(&p->enqueued, 1);
    if (!result)
        result = p->driver.function_push(stream, run_execute, run);
    if (!result)
        return 0;
    (void)atomic_fetch_sub(&p->enqueued, 1);
    free(run);
    return result;
}

static int run_start(struct gpu_prepared *p, uint64_t epoch, const struct gpu_repeated_run *repeated, void *stream,
                     struct error *e)
{
    int status = call_check(FAKE_PREPARED_START, p->gpu.number, "launching an operator", e);

    wrong(p->epoch && p->epoch != NUMBERED && epoch && epoch != p->epoch + 1,
          "a bound operator's epochs do not follow each other");
    wrong(!repeated && !p->epoch && epoch > 1, "the first epoch of an operator that the program has bound");
    wrong(p->epoch == NUMBERED && epoch, "a run with a number behind one that has none");
    wrong(repeated && !epoch, "a repeated run without a number");
    wrong(!repeated != !p->places.n, "a run is repeated of what the program has bound, or the other way round");
    if (status)
        return status;
    if (run_push(p, epoch, repeated, stream))
        return error_set(e, -EIO, "cuda GPU %d: launching an operator: the driver refused", p->gpu.number);
    p->epoch = epoch ? epoch : NUMBERED;
    return 0;
}

static int prepared_start(struct gpu_prepared *p, uint64_t epoch, void *stream, struct error *e)
{
    return run_start(p, epoch, NULL, stream, e);
}

static int prepared_repeat(struct gpu_prepared *p, const struct gpu_repeated_run *run, void *stream, struct error *e)
{
    return run_start(p, run->epoch, run, stream, e);
}

/* ---- a program's step ---- */

static void numbers_execute(void *argument)
{
    struct numbers *numbers = argument;
    struct gpu_prepared *p = numbers->prepared;

    wrong(atomic_load(&p->under_way) != 0, "a step's numbers change while it runs");
    memcpy(p->numbers + numbers->at, numbers->words, numbers->n * sizeof(numbers->words[0]));
    (void)atomic_fetch_sub(&p->enqueued, !numbers->is_captured);
    if (!numbers->is_captured)
        free(numbers);
}

static int prepared_numbers(struct gpu_prepared *p, size_t at, const int64_t words[], size_t n, void *stream, struct error *e)
{
    struct numbers *numbers = malloc(sizeof(*numbers) + n * sizeof(words[0]));
    int capturing = 0, result = p->driver.capturing(stream, &capturing);

    wrong(!p->numbers || at < GPU_STEP_NUMBERS || at > p->nnumbers || n > p->nnumbers - at, "numbers that a step has not");
    *numbers = (struct numbers){.prepared = p, .is_captured = capturing != 0, .at = at, .n = n};
    memcpy(numbers->words, words, n * sizeof(words[0]));
    if (numbers->is_captured) {
        numbers->before = p->captured_numbers;
        p->captured_numbers = numbers;
    }
    (void)atomic_fetch_add(&p->enqueued, !numbers->is_captured);
    if (!result)
        result = p->driver.function_push(stream, numbers_execute, numbers);
    return result ? error_set(e, -EIO, "cuda GPU %d: changing a step's numbers: the driver refused", p->gpu.number) : 0;
}

/* As the plug-in's guard_kernel(). */
static void guard_execute(void *argument)
{
    struct guard *guard = argument;
    struct gpu_prepared *p = guard->prepared;
    const struct rings *r = guard->rings;
    const uint64_t newest = atomic_load(rings_word(&r->heads[r->rank]->begun)) / RINGS_UNITS + atomic_load(r->products);
    const bool given_up = atomic_load(r->failures[r->rank]) >= newest;
    uint64_t failed = atomic_load(failure_of(&p->launch));
    const uint64_t last = atomic_load(p->series);

    wrong(atomic_load(&p->under_way) != 0, "a step's guard looks while it runs");
    if (failed != UINT64_MAX && (given_up || failed > last))
        (void)atomic_compare_exchange_strong(failure_of(&p->launch), &failed, given_up ? last + 1 : 0);
    (void)atomic_fetch_sub(&p->enqueued, !guard->is_captured);
    if (!guard->is_captured)
        free(guard);
}

static int prepared_guard(struct gpu_prepared *p, const struct gpu_prepared *rings, void *stream, struct error *e)
{
    struct guard *guard = malloc(sizeof(*guard));
    int capturing = 0, result = p->driver.capturing(stream, &capturing);

    wrong(!p->numbers || !rings->rings || rings->rings->gpu.number != p->gpu.number,
          "a guard of what is no step, or by what are no rings of its GPU");
    wrong(p->epoch && p->epoch != NUMBERED, "a guard of a step whose runs the host has counted");
    *guard = (struct guard){.prepared = p, .rings = rings->rings, .is_captured = capturing != 0};
    if (guard->is_captured) {
        guard->before = p->captured_guards;
        p->captured_guards = guard;
    }
    (void)atomic_fetch_add(&p->enqueued, !guard->is_captured);
    if (!result)
        result = p->driver.function_push(stream, guard_execute, guard);
    return result ? error_set(e, -EIO, "cuda GPU %d: launching a guard: the driver refused", p->gpu.number) : 0;
}

static int step_open(struct gpu_prepared *p, const struct gpu_prepared_memory *m, struct error *e)
{
    struct gpu_code *code;
    int status = call_check(FAKE_PREPARED_CODE, p->gpu.number, "loading a step's kernel", e);

    if (status)
        return status;
    (void)fake_code_take(p->gpu.number, m->image, m->image_bytes, &code);
    p->launch.code = code;
    wrong(!m->numbers || m->nnumbers < GPU_STEP_NUMBERS, "a step without numbers");
    p->numbers = malloc(m->nnumbers * sizeof(m->numbers[0]));
    p->nnumbers = m->nnumbers;
    memcpy(p->numbers, m->numbers, m->nnumbers * sizeof(m->numbers[0]));
    p->task.call.in[0].vector.parts = address_of(p->numbers);
    return 0;
}

static void step_close(struct gpu_prepared *p)
{
    for (struct numbers *n = p->captured_numbers, *before; n; n = before) {
        before = n->before;
        free(n);
    }
    for (struct guard *g = p->captured_guards, *before; g; g = before) {
        before = g->before;
        free(g);
    }
    if (p->launch.code)
        fake_code_drop((struct gpu_code *)(uintptr_t)p->launch.code);
    free(p->numbers);
}

/* ---- from a plan ---- */

static void contract_check(const struct gpu_prepared_plan *plan, const struct gpu_prepared_memory *m)
{
    uint32_t nranks = plan->shape.nranks;

    wrong(!m->begun || !m->ended || m->begun % 8 || m->ended % 8, "no words of begin and end");
    wrong(!m->clash || m->clash % 8, "no word of runs that are under way at a time");
    for (uint32_t r = 0; r < nranks; r++) {
        wrong(!m->areas[r], "a rank without an area");
        wrong(!m->ins[r] && plan->reads_inputs, "a rank without an input");
        wrong(!m->results[r] && plan->shape.compute != COMPUTE_NONE &&
                  (plan->shape.compute != COMPUTE_STEP || plan->shares_result) &&
                  (r == plan->rank ? !m->places.n : plan->shares_result),
              "a rank without a result");
        for (uint32_t other = 0; other < r; other++)
            wrong(m->areas[r] == m->areas[other], "two ranks with one area");
    }
}

/* Places become addresses. */
static void call_fill(struct gpu_call *call, const struct gpu_prepared_plan *plan, const struct gpu_prepared_memory *m)
{
    uint64_t inputs[GPU_PREPARED_INPUTS];

    call->nodes.phase_next = GPU_PHASES;
    call->in[0] = plan->in;
    gpu_prepared_inputs(plan, m, inputs);
    gpu_call_inputs_set(call, plan->shape.compute, inputs);
    for (uint32_t r = 0; r < plan->shape.nranks; r++) {
        call->out[r] = plan->out[r];
        call->out[r].data += m->results[r];
        if (plan->shape.compute == COMPUTE_STEP)
            call->out[r].in += m->ins[r];
    }
}

static void launch_fill(struct gpu_launch *l, const struct gpu_prepared_plan *plan, const struct gpu_prepared_memory *m)
{
    struct gpu_plan *own = &l->fixed.plans[0];

    l->nruns = 1;
    l->computes = plan->shape.dtype == FCC_F32;
    l->fixed.shape = plan->shape;
    for (uint32_t r = 0; r < plan->shape.nranks; r++) {
        l->fixed.flags[r] = m->areas[r];
        l->fixed.slots[r] = m->areas[r] + plan->slots_at;
    }
    *own = (struct gpu_plan){.ngroups = plan->ngroups, .rank = plan->rank};
    memcpy(own->first, plan->first, sizeof(own->first));
    memcpy(own->sets, plan->sets, sizeof(own->sets));
    own->slices = address_of(plan) + plan->slices;
    own->groups = address_of(plan) + plan->groups;
    own->counters = address_of(calloc(plan->ngroups + 1, sizeof(uint32_t)));
    own->times = address_of(calloc(plan->first[GPU_PHASES] + 1, sizeof(struct slice_time)));
}

static int driver_find(struct gpu_prepared *p, struct error *e)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD), *push, *capturing;

    if (!library)
        return error_set(e, -ENODEV, "this process has not loaded the driver");
    push = dlsym(library, "cuLaunchHostFunc");
    capturing = dlsym(library, "cuStreamIsCapturing");
    (void)dlclose(library); /* the client keeps it */
    memcpy(&p->driver.function_push, &push, sizeof(push));
    memcpy(&p->driver.capturing, &capturing, sizeof(capturing));
    return 0;
}

static void prepared_close(struct gpu_prepared *p)
{
    wrong(p->enqueued != 0, "a prepared operator is closed whose runs have not ended");
    for (struct run *run = p->captured, *before; run; run = before) {
        before = run->before;
        free(run);
    }
    if (p->rings)
        rings_close(p->rings);
    step_close(p);
    free(pointer(p->launch.fixed.plans[0].counters));
    free(pointer(p->launch.fixed.plans[0].times));
    free(p->plan);
    free(p);
    (void)atomic_fetch_sub(&control->prepared, 1);
}

static int prepared_open(int gpu, const struct gpu_prepared_plan *plan, size_t bytes, const struct gpu_prepared_memory *memory,
                         struct gpu_prepared **out, struct error *e)
{
    int status = control_open(e);

    if (status == 0)
        status = call_check(FAKE_PREPARED_OPEN, gpu, "preparing an operator", e);
    if (status)
        return status;
    wrong(gpu < 0 || gpu >= (int)control->gpus, "a prepared operator on a GPU that there is not");
    status = gpu_prepared_plan_check(plan, bytes, e);
    if (status)
        return status;
    contract_check(plan, memory);
    struct gpu_prepared *p = calloc(1, sizeof(*p));
    status = driver_find(p, e);
    if (status) {
        free(p);
        return status;
    }
    p->gpu.number = gpu;
    p->plan = malloc(bytes);
    memcpy(p->plan, plan, bytes);
    launch_fill(&p->launch, (const struct gpu_prepared_plan *)(const void *)p->plan, memory);
    p->task.launch = &p->launch;
    call_fill(&p->task.call, plan, memory);
    p->slots_bytes = plan->slots_bytes;
    if (plan->shape.exchange == EXCHANGE_RINGS)
        p->rings = rings_open(gpu, plan, memory, &p->driver);
    p->meets = !plan->only_slots && plan->shape.nranks > 1;
    p->places = memory->places;
    p->begun = pointer(memory->begun);
    p->ended = pointer(memory->ended);
    p->clash = pointer(memory->clash);
    p->records = pointer(memory->areas[plan->rank] + GPU_RECORDS_AT);
    if (!memory->places.n)
        p->series = (_Atomic uint64_t *)pointer(memory->areas[plan->rank]) + GPU_FLAG_RUN;
    (void)atomic_fetch_add(&control->prepared, 1);
    if (plan->shape.compute == COMPUTE_STEP && step_open(p, memory, e)) {
        prepared_close(p);
        return e->status;
    }
    *out = p;
    return 0;
}

static int prepared_collective(struct gpu_prepared *p, const struct gpu_collective *what, void *stream, struct error *e)
{
    wrong(!p->rings, "a collective is put onto another operator");
    return rings_collective(p->rings, what, stream, e);
}

static int prepared_product(struct gpu_prepared *p, const struct rings_product *what, void *stream, struct error *e)
{
    wrong(!p->rings, "a product is put onto another operator");
    return rings_product(p->rings, what, stream, e);
}

static int prepared_pieces(struct gpu_prepared *p, const struct rings_pieces *what, void *stream, struct error *e)
{
    wrong(!p->rings, "a product in pieces is put onto another operator");
    return rings_in_pieces(p->rings, what, stream, e);
}

static bool prepared_library(void)
{
    struct error ignored = {.status = 0};

    return !control_open(&ignored) && control->library && !getenv("FAKE_GPU_WITHOUT_LIBRARY");
}

static int prepared_load(int gpu, struct error *e)
{
    int status = control_open(e);

    wrong(status == 0 && (gpu < 0 || gpu >= (int)control->gpus), "kernels are loaded on a GPU that there is not");
    return status;
}

const struct gpu_prepared_functions *gpu_prepared_functions(void)
{
    static const struct gpu_prepared_functions functions = {.abi = GPU_PLUGIN_ABI,
                                                            .load = prepared_load,
                                                            .open = prepared_open,
                                                            .start = prepared_start,
                                                            .repeat = prepared_repeat,
                                                            .close = prepared_close,
                                                            .collective = prepared_collective,
                                                            .product = prepared_product,
                                                            .pieces = prepared_pieces,
                                                            .library = prepared_library,
                                                            .rule_add = fake_rule_add,
                                                            .rule_await = fake_rule_await,
                                                            .rule_run = fake_rule_run,
                                                            .numbers = prepared_numbers,
                                                            .guard = prepared_guard};

    return &functions;
}
