/* SPDX-License-Identifier: MIT
 *
 * launch.hip - launches of an operator on one GPU. What stays the same from call to call is uploaded to the GPU's memory once;
 * a call costs the waits for its words and one kernel.
 */
#include <stdlib.h>

#include "kernels/gpu/device/execute.h"
#include "kernels/gpu/plugin/compile.h"
#include "kernels/gpu/plugin/inside.h"

enum { GPU_MOVERS = 64 }; /* workgroups, at least, of a kernel that moves rows that come from other ranks */

struct gpu_launch {
    int gpu;
    int nruns;
    /* The first is used for calls that suit it, the last one for all others. There may be one only. */
    struct gpu_choice choices[2];
    int nchoices;
    struct gpu_choice generated;          /* a step's, instead of all others, where it has a function */
    bool second;                          /* the last client-launched run used the second set of counters */
    uint32_t epoch;                       /* the last call's, with which its times are stamped */
    struct gpu_fixed fixed;               /* a copy of the GPU's, without what kernels write */
    struct gpu_fixed *there;              /* in the GPU's memory; plans, counters and times follow in the same allocation */
    int64_t *numbers[GPU_MAX_RUNS];       /* a copy of numbers_there[i] */
    uint64_t numbers_there[GPU_MAX_RUNS]; /* launch_numbers(): in the GPU's memory */
    uint32_t nnumbers[GPU_MAX_RUNS];
};

/* ---- making ---- */

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Bytes from a plan's first set of counters to its second set. Client-launched runs alternate between them, as no kernel resets its own
 * counters then. */
static uint64_t counters_pitch(uint32_t ngroups)
{
    return aligned((GPU_GROUPS + (uint64_t)ngroups) * sizeof(uint32_t));
}

/* Lays out the parts of run r from address `at` on. Returns their end. */
static uint64_t plan_place(struct gpu_plan *plan, const struct gpu_run *r, uint64_t at)
{
    plan->slices = at;
    at += aligned(r->first[GPU_PHASES] * sizeof(struct slice));
    plan->groups = at;
    at += aligned(r->ngroups * sizeof(struct signal_group));
    plan->counters = at;
    at += 2 * counters_pitch(r->ngroups);
    plan->times = at;
    at += aligned(r->first[GPU_PHASES] * sizeof(struct slice_time));
    memcpy(plan->first, r->first, sizeof(plan->first));
    memcpy(plan->sets, r->sets, sizeof(plan->sets));
    plan->ngroups = r->ngroups;
    plan->rank = (uint32_t)r->rank;
    if (r->first[GPU_PHASES] > 0) {
        plan->free_kind = r->slices[0].kind;
        plan->free_col = r->slices[0].col;
        plan->free_cols = r->slices[0].cols;
    }
    return at;
}

/* Fills in the image of a plan's parts in host memory. `image` corresponds to the address `base` on the GPU. */
static void plan_fill(const struct gpu_plan *plan, const struct gpu_run *r, unsigned char *image, uint64_t base)
{
    uint32_t *counters = (uint32_t *)(image + (plan->counters - base));
    uint32_t *second = counters + counters_pitch(r->ngroups) / sizeof(uint32_t);

    memcpy(image + (plan->slices - base), r->slices, r->first[GPU_PHASES] * sizeof(struct slice));
    memcpy(image + (plan->groups - base), r->groups, r->ngroups * sizeof(struct signal_group));
    for (uint32_t g = 0; g < r->ngroups; g++)
        counters[GPU_GROUPS + g] = second[GPU_GROUPS + g] = r->groups[g].slices;
}

static int launch_upload(struct gpu_launch *l, const struct gpu_run runs[], struct error *e)
{
    uint64_t bytes = aligned(sizeof(struct gpu_fixed));
    struct gpu_plan unplaced;
    void *there = NULL;

    for (int i = 0; i < l->nruns; i++)
        bytes = plan_place(&unplaced, &runs[i], bytes);
    unsigned char *image = (unsigned char *)calloc(1, bytes);
    if (!image)
        return error_set(e, -ENOMEM, "%s GPU %d: no memory for plans of %llu bytes", GPU_KIND, l->gpu,
                         (unsigned long long)bytes);
    hipError_t status = hipSetDevice(l->gpu);
    if (status == hipSuccess)
        status = hipMallocAsync(&there, bytes, gpus[l->gpu].side);
    if (status != hipSuccess) {
        free(image);
        return gpu_error(e, l->gpu, "memory for plans", status);
    }
    l->there = (struct gpu_fixed *)there;
    uint64_t base = (uint64_t)there, at = base + aligned(sizeof(struct gpu_fixed));
    for (int i = 0; i < l->nruns; i++) {
        at = plan_place(&l->fixed.plans[i], &runs[i], at);
        plan_fill(&l->fixed.plans[i], &runs[i], image, base);
        l->fixed.plans[i].flags = l->fixed.flags[runs[i].rank];
    }
    memcpy(image, &l->fixed, sizeof(l->fixed));
    int result = memory_write(l->gpu, base, image, bytes, e);
    free(image);
    return result;
}

/* Chooses the number of workgroups: as many as are resident at a time, at most one for each slice (one may only move, through rings), at least one a run. */
static int workgroups_choose(const struct gpu_launch *l, struct gpu_choice *c, struct error *e)
{
    const struct gpu_kernel *k = &c->kernel;
    int fit = 0;
    uint64_t slices = 0;
    hipError_t status = k->loaded
                            ? hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(&fit, (hipFunction_t)k->function,
                                                                                 (int)k->threads, k->shared_bytes)
                            : hipOccupancyMaxActiveBlocksPerMultiprocessor(&fit, k->function, (int)k->threads, k->shared_bytes);

    if (status != hipSuccess)
        return gpu_error(e, l->gpu, "asking how many workgroups fit", status);
    if (fit < 1)
        return error_set(e, -EIO, "%s GPU %d: a workgroup of %u threads and %zu bytes of shared memory does not fit", GPU_KIND,
                         l->gpu, k->threads, k->shared_bytes);
    if (k->per_multiprocessor && fit > (int)k->per_multiprocessor)
        fit = (int)k->per_multiprocessor;
    for (int i = 0; i < l->nruns; i++)
        slices += l->fixed.plans[i].first[GPU_PHASES];
    if (l->fixed.shape.waits && slices < GPU_MOVERS)
        slices = GPU_MOVERS; /* to move what comes, however little this rank sends */
    uint64_t n = (uint64_t)fit * gpu_multiprocessors_for(&l->fixed.shape, gpus[l->gpu].multiprocessors);
    n = n < slices || l->fixed.shape.through_rings ? n : slices;
    n = n > (uint64_t)l->nruns ? n : (uint64_t)l->nruns;
    n = k->cluster > 1 ? (n + k->cluster - 1) / k->cluster * k->cluster : n;
    c->workgroups = k->workgroups ? k->workgroups : (uint32_t)n;
    c->workgroups = c->most && c->most < c->workgroups ? c->most : c->workgroups;
    return 0;
}

/* ---- the kernels: the first row that suits and fits is taken ---- */

enum { ONE_NODE = 1, OVER_NODES = 2, ANYWHERE = ONE_NODE | OVER_NODES };
enum { ANY_CHIP, HOPPER };
enum { SOME_CALLS, ALL_CALLS };
enum { NO_F8 = FACTORS_BATCH_INVARIANT, F8 = FACTORS_ALL };
enum { PLAIN, EPILOGUE = 1u << STAGE_BIAS | 1u << STAGE_RESIDUAL | 1u << STAGE_GATE };

static const struct gpu_kernel_entry kernels[] = {
#if defined(__CUDACC__)
    {COMPUTE_GEMM, EXCHANGE_PUT, DTYPES_HALF, ONE_NODE, PLAIN, 0, HOPPER, SOME_CALLS, gpu_gemm_hopper_fits,
     gpu_gemm_hopper_params, gpu_gemm_hopper_gate},
    {COMPUTE_GEMV, EXCHANGE_REDUCE, DTYPES_FLOAT, ONE_NODE, PLAIN, 0, HOPPER, SOME_CALLS, gpu_gemv_hopper_fits,
     gpu_gemv_hopper_params, NULL},
#endif
    {COMPUTE_GEMM, EXCHANGE_PUT, DTYPES_FLOAT, ANYWHERE, EPILOGUE, NO_F8, ANY_CHIP, ALL_CALLS, gpu_gemm_fits, NULL, NULL},
    {COMPUTE_GEMM, EXCHANGE_REDUCE, DTYPES_FLOAT, ANYWHERE, EPILOGUE, NO_F8, ANY_CHIP, ALL_CALLS, gpu_gemm_fits, NULL, NULL},
    {COMPUTE_GEMM, EXCHANGE_GATHER, DTYPES_FLOAT, ANYWHERE, EPILOGUE, NO_F8, ANY_CHIP, ALL_CALLS, gpu_gemm_fits, NULL, NULL},
    {COMPUTE_GEMV, EXCHANGE_REDUCE, DTYPES_FLOAT, ANYWHERE, EPILOGUE, NO_F8, ANY_CHIP, ALL_CALLS, gpu_gemv_fits, NULL, NULL},
    {COMPUTE_GEMM, EXCHANGE_PUT, DTYPES_FLOAT, ANYWHERE, EPILOGUE, F8, ANY_CHIP, ALL_CALLS, gpu_gemm_factors_fits,
     gpu_factors_params, NULL},
    {COMPUTE_GEMM, EXCHANGE_REDUCE, DTYPES_FLOAT, ANYWHERE, EPILOGUE, F8, ANY_CHIP, ALL_CALLS, gpu_gemm_factors_fits,
     gpu_factors_params, NULL},
    {COMPUTE_GEMV, EXCHANGE_REDUCE, DTYPES_FLOAT, ANYWHERE, EPILOGUE, F8, ANY_CHIP, ALL_CALLS, gpu_gemv_factors_fits,
     gpu_factors_params, NULL},
    {COMPUTE_BAG, EXCHANGE_PUT, DTYPES_FLOAT, ANYWHERE, PLAIN, 0, ANY_CHIP, ALL_CALLS, gpu_bag_fits, NULL, NULL},
    {COMPUTE_VECTOR, EXCHANGE_PUT, DTYPES_ANY, ANYWHERE, PLAIN, 0, ANY_CHIP, ALL_CALLS, gpu_vector_put_fits, NULL, NULL},
    {COMPUTE_VECTOR, EXCHANGE_REDUCE, DTYPES_ADDED, ANYWHERE, PLAIN, 0, ANY_CHIP, ALL_CALLS, gpu_vector_reduce_fits, NULL,
     NULL},
    {COMPUTE_STEP, EXCHANGE_REDUCE, DTYPES_FLOAT, ONE_NODE, PLAIN, 0, ANY_CHIP, ALL_CALLS, gpu_step_fits, NULL, NULL},
    {COMPUTE_NONE, EXCHANGE_NONE, DTYPES_FLOAT, ANYWHERE, PLAIN, 0, ANY_CHIP, ALL_CALLS, gpu_noop_fits, gpu_noop_params,
     gpu_noop_gate},
};

static bool entry_suits(const struct gpu_kernel_entry *entry, const struct gpu_shape *shape, bool hopper)
{
    return entry->compute == shape->compute && entry->exchange == shape->exchange && entry->dtypes >> shape->dtype & 1u &&
           entry->where & (shape->over_nodes ? OVER_NODES : ONE_NODE) && !(shape->stages & ~entry->stages) &&
           !(shape->factors & ~entry->factors) && (hopper || !entry->hopper);
}

int kernels_one_of_each_file(const void *functions[GPU_FILES])
{
    int n = 0;

    for (const struct gpu_kernel_entry &entry : kernels) {
        struct gpu_shape shape = {};
        struct gpu_choice choice = {};
        shape.compute = entry.compute;
        shape.exchange = entry.exchange;
        shape.dtype = FCC_F32;
        /* A program's step comes with a kernel of its own; that of the table is for fccd's, and takes 430 MB of an H200 for what its threads keep. */
        if (entry.compute != COMPUTE_STEP && n < GPU_FILES && entry.all_calls && entry.fits(&shape, 0, NULL, 0, &choice))
            functions[n++] = choice.kernel.function;
    }
    return n;
}

/* Chooses the first kernel of the table that fits, and if that does not suit all calls, the next one, too. */
static int kernels_choose(struct gpu_launch *l, const struct gpu_run runs[], struct error *e)
{
    const struct gpu_shape *shape = &l->fixed.shape;
    hipDeviceProp_t properties;
    bool all_calls = false;
    int status = 0;

    if (hipGetDeviceProperties(&properties, l->gpu) != hipSuccess)
        return error_set(e, -EIO, "%s GPU %d: it does not answer", GPU_KIND, l->gpu);
    for (const struct gpu_kernel_entry &entry : kernels) {
        struct gpu_choice *c = &l->choices[l->nchoices];
        if (all_calls || status)
            break;
        if (!entry_suits(&entry, shape, properties.major == 9 && properties.minor == 0) || (l->nchoices && !entry.all_calls) ||
            !entry.fits(shape, l->gpu, runs, l->nruns, c)) {
            *c = {};
            continue;
        }
        c->entry = &entry;
        l->nchoices++;
        all_calls = entry.all_calls;
        status = workgroups_choose(l, c, e);
    }
    if (status == 0 && !all_calls)
        return error_set(e, -EINVAL, "%s GPU %d: compute %u, exchange %u, dtype %u, factors %u: no such kernel", GPU_KIND,
                         l->gpu, shape->compute, shape->exchange, shape->dtype, shape->factors);
    return status;
}

/* The kernel of a call, whose second argument is `params`. */
static const struct gpu_choice *choice_of(const struct gpu_launch *l, const void *params)
{
    return l->generated.kernel.function ? &l->generated : &l->choices[params ? 0 : l->nchoices - 1];
}

int launch_make(int gpu, const struct gpu_shape *shape, const uint64_t flags[], const struct gpu_run runs[], int nruns,
                struct gpu_launch **out, struct error *e)
{
    if (nruns < 1 || nruns > GPU_MAX_RUNS)
        return error_set(e, -EINVAL, "%s GPU %d: %d ranks of one communicator: allowed are 1 to %d", GPU_KIND, gpu, nruns,
                         GPU_MAX_RUNS);
    struct gpu_launch *l = (struct gpu_launch *)calloc(1, sizeof(*l));
    if (!l)
        return error_set(e, -ENOMEM, "%s GPU %d: no memory for a launch", GPU_KIND, gpu);
    l->gpu = gpu;
    l->nruns = nruns;
    l->fixed.shape = *shape;
    memcpy(l->fixed.flags, flags, shape->nranks * sizeof(flags[0]));
    (void)hipSetDevice(gpu);
    int status = launch_upload(l, runs, e);
    if (status == 0)
        status = kernels_choose(l, runs, e);
    if (status) {
        launch_free(l);
        return status;
    }
    *out = l;
    return 0;
}

void launch_free(struct gpu_launch *l)
{
    if (hipSetDevice(l->gpu) == hipSuccess) {
        if (l->there)
            (void)hipFreeAsync(l->there, gpus[l->gpu].side);
        for (int i = 0; i < l->nruns; i++)
            if (l->numbers_there[i])
                (void)hipFreeAsync((void *)l->numbers_there[i], gpus[l->gpu].side);
    }
    for (int i = 0; i < l->nruns; i++)
        free(l->numbers[i]);
    free(l);
}

uint32_t launch_workgroups(const struct gpu_launch *l)
{
    return choice_of(l, l)->workgroups;
}

int launch_code(struct gpu_launch *l, const struct gpu_code *code, struct error *e)
{
    struct gpu_choice c = {};

    if (code && code->function == l->generated.kernel.function)
        return 0;
    l->generated = c;
    if (!code)
        return 0;
    c.entry = l->choices[0].entry;
    c.kernel = {code->function, code->threads, 0, 0};
    c.kernel.loaded = true;
    int status = hipSetDevice(l->gpu) == hipSuccess ? workgroups_choose(l, &c, e)
                                                    : error_set(e, -EIO, "%s GPU %d: it does not answer", GPU_KIND, l->gpu);
    if (status == 0)
        l->generated = c;
    return status;
}

int launch_numbers(struct gpu_launch *l, int run, const int64_t numbers[], uint32_t count, uint64_t *address, struct error *e)
{
    size_t bytes = count * sizeof(numbers[0]);
    void *there = NULL;

    if (!l->numbers[run] || l->nnumbers[run] != count || memcmp(l->numbers[run], numbers, bytes)) {
        int64_t *here = (int64_t *)realloc(l->numbers[run], bytes);
        if (!here)
            return error_set(e, -ENOMEM, "%s GPU %d: no memory for %u numbers", GPU_KIND, l->gpu, count);
        l->numbers[run] = here;
        memset(here, 0xff, bytes); /* invalid until the upload has succeeded */
        hipError_t status = hipSetDevice(l->gpu);
        if (status == hipSuccess && (l->nnumbers[run] != count || !l->numbers_there[run])) {
            if (l->numbers_there[run])
                (void)hipFreeAsync((void *)l->numbers_there[run], gpus[l->gpu].side);
            l->numbers_there[run] = 0;
            status = hipMallocAsync(&there, bytes, gpus[l->gpu].side);
            l->numbers_there[run] = (uint64_t)there;
        }
        l->nnumbers[run] = count;
        if (status != hipSuccess)
            return gpu_error(e, l->gpu, "memory for an operator's numbers", status);
        int result = memory_write(l->gpu, l->numbers_there[run], numbers, bytes, e);
        if (result)
            return result;
        memcpy(here, numbers, bytes);
    }
    *address = l->numbers_there[run];
    return 0;
}

/* ---- starting ---- */

/* Uploads an array of all ranks' addresses unless the GPU has it already. */
static int addresses_fill(struct gpu_launch *l, uint64_t here[], uint64_t there[], const uint64_t addresses[], struct error *e)
{
    size_t bytes = l->fixed.shape.nranks * sizeof(addresses[0]);

    if (!memcmp(here, addresses, bytes))
        return 0;
    int status = memory_write(l->gpu, (uint64_t)there, addresses, bytes, e);
    if (status == 0)
        memcpy(here, addresses, bytes);
    return status;
}

/* Workgroups of a kernel over nodes, which may run only some of the phases: at most one for each slice of these phases. */
static uint32_t workgroups_of_phases(const struct gpu_launch *l, uint32_t most, const struct gpu_nodes *nodes)
{
    uint64_t slices = 0;

    for (int i = 0; i < l->nruns; i++)
        slices += l->fixed.plans[i].first[nodes->phase_next] - l->fixed.plans[i].first[nodes->phase_first];
    slices = slices > (uint64_t)l->nruns ? slices : (uint64_t)l->nruns;
    return slices < most ? (uint32_t)slices : most;
}

/* Makes this queue the current one: orders it after everything on the former queue. */
static hipError_t lane_take(struct gpu *g, uint32_t lane)
{
    if (g->lane == lane)
        return hipSuccess;
    hipError_t status = hipEventRecord(g->moved, g->run[g->lane]);
    if (status == hipSuccess)
        status = hipStreamWaitEvent(g->run[lane], g->moved, 0);
    if (status == hipSuccess)
        g->lane = lane;
    return status;
}

/* Fills in what a call has of its launch. Returns the second argument of the kernel, or NULL. */
static void *call_complete(struct gpu_launch *l, struct gpu_call *call)
{
    call->fixed = l->there;
    call->nruns = (uint32_t)l->nruns;
    call->end.epoch = (uint32_t)call->epoch;
    memcpy(call->plans, l->fixed.plans, sizeof(call->plans));
    l->epoch = (uint32_t)call->epoch;
    return l->choices[0].entry->params ? l->choices[0].entry->params(&l->choices[0], call, &l->fixed) : NULL;
}

/* Whether the kernel itself waits for the words that need not have come before it begins. */
static bool call_gates(const struct gpu_launch *l, void *params, const struct gpu_waits *waits)
{
    const struct gpu_choice *c = choice_of(l, params);

    return params && c->entry->gate && c->entry->gate(c, params, waits);
}

static hipError_t kernel_start(const struct gpu_launch *l, struct gpu_call *call, void *params, uint32_t workgroups,
                               hipStream_t stream, bool follows)
{
    const struct gpu_kernel *kernel = &choice_of(l, params)->kernel;
    void *arguments[] = {call, params};

    if (kernel->loaded)
        return gpu_function_launch(kernel->function, workgroups, kernel->threads, arguments, kernel->shared_bytes, stream,
                                   follows);
    return gpu_kernel_launch(kernel->function, workgroups, kernel->threads, arguments, kernel->shared_bytes, stream, follows);
}

int launch_addresses(struct gpu_launch *l, const uint64_t staging[], const uint64_t slots[], struct error *e)
{
    int status = addresses_fill(l, l->fixed.staging, l->there->staging, staging, e);

    return status ? status : addresses_fill(l, l->fixed.slots, l->there->slots, slots, e);
}

void *launch_complete(struct gpu_launch *l, struct gpu_call *call, struct gpu_waits *waits)
{
    void *params = call_complete(l, call);
    struct gpu_plan *plan = &call->plans[0]; /* the only one */
    uint64_t *sets = call->series.counters;

    sets[0] = plan->counters;
    sets[1] = sets[0] + counters_pitch(plan->ngroups);
    l->second = call->series.word ? call->epoch % 2 != 0 : !l->second; /* some epochs of repeated runs may be skipped */
    call->idle_counters = sets[!l->second];
    plan->counters = sets[l->second];
    waits->in_kernel = call_gates(l, params, waits);
    return params;
}

hipError_t launch_enqueue(const struct gpu_launch *l, struct gpu_call *call, void *params, hipStream_t stream, bool follows)
{
    return kernel_start(l, call, params, choice_of(l, params)->workgroups, stream, follows);
}

int launch_start(struct gpu_launch *l, struct gpu_call *call, const uint64_t staging[], const uint64_t slots[],
                 struct gpu_waits *waits, uint32_t lane, struct error *e)
{
    hipStream_t stream = gpus[l->gpu].run[lane];
    int result = launch_addresses(l, staging, slots, e);

    if (result)
        return result;
    void *params = call_complete(l, call);
    waits->in_kernel = call_gates(l, params, waits);
    uint32_t workgroups = choice_of(l, params)->workgroups;
    if (l->fixed.shape.over_nodes)
        workgroups = workgroups_of_phases(l, workgroups, &call->nodes);
    hipError_t status = hipSetDevice(l->gpu);
    if (status == hipSuccess)
        status = lane_take(&gpus[l->gpu], lane);
    if (status == hipSuccess)
        status = gpu_stream_await(stream, waits->words, waits->values, waits->in_kernel ? waits->before : waits->count);
    if (status == hipSuccess && l->fixed.shape.over_nodes)
        status = copies_join(l->gpu);
    if (status == hipSuccess)
        status = kernel_start(l, call, params, workgroups, stream, gpus[l->gpu].follows);
    return status == hipSuccess ? 0 : gpu_error(e, l->gpu, "launching an operator", status);
}

/* ---- times ---- */

int launch_times(struct gpu_launch *l, int run, struct slice_time out[], struct error *e)
{
    const struct gpu_plan *plan = &l->fixed.plans[run];
    const struct gpu *g = &gpus[l->gpu];
    uint64_t clock, ns;
    double rate = 1; /* ns per tick */
    int status = memory_copy(out, l->gpu, plan->times, plan->first[GPU_PHASES] * sizeof(out[0]), e);

    if (status == 0)
        status = gpu_clock_read(l->gpu, &clock, &ns, e);
    if (status)
        return status;
    if (!GPU_CLOCK_IS_NS && clock > g->opened_clock)
        rate = (double)(ns - g->opened_ns) / (double)(clock - g->opened_clock);
    for (uint32_t i = 0; i < plan->first[GPU_PHASES]; i++) {
        struct slice_time *t = &out[i];
        if (t->epoch != l->epoch) { /* the last call did not reach this slice: these are an earlier call's times */
            memset(t, 0, sizeof(*t));
            continue;
        }
        uint64_t *const fields[] = {&t->wait_ns, &t->start_ns, &t->end_ns};
        for (uint64_t *const field : fields)
            if (*field)
                *field = ns - (uint64_t)((double)(int64_t)(clock - *field) * rate);
        t->epoch = 0;
    }
    return 0;
}
