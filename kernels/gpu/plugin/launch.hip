/* SPDX-License-Identifier: MIT
 *
 * launch.hip - launches of an operator on one GPU. What stays the same from call to call is uploaded to the GPU's memory once;
 * a call costs the waits for its words and one kernel.
 */
#include <stdlib.h>

#include "kernels/gpu/device/execute.h"
#include "kernels/gpu/plugin/inside.h"

struct gpu_launch {
    int gpu;
    int nruns;
    struct gpu_kernel kernel;
    uint32_t workgroups;
    struct gpu_gemm_quick gemm_quick;
    struct gpu_gemv_quick gemv_quick;
    const struct gpu_kernel *quick; /* the specialised kernel: that of gemm_quick or gemv_quick; NULL: none */
    uint32_t quick_workgroups;
    bool second;                         /* the last client-launched run used the second set of counters */
    uint32_t epoch;                      /* the last call's, with which its times are stamped */
    struct gpu_fixed fixed;              /* a copy of the GPU's, without what kernels write */
    struct gpu_fixed *there;             /* in the GPU's memory; plans, counters and times follow in the same allocation */
    int64_t *tables[GPU_MAX_RUNS];       /* a copy of tables_there[i] */
    uint64_t tables_there[GPU_MAX_RUNS]; /* for gpu_input.embedding.table_first, in the GPU's memory */
    uint32_t ntables[GPU_MAX_RUNS];
};

/* ---- making ---- */

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Bytes from a plan's first set of counters to its second set. Client-launched runs alternate between them, as no kernel resets
 * its own counters then. */
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
    plan->free_kind = r->slices[0].kind;
    plan->free_col = r->slices[0].col;
    plan->free_cols = r->slices[0].cols;
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

/* Chooses the number of workgroups: as many as are resident at a time, at most one for each slice, at least one for each
 * run. */
static int workgroups_choose(const struct gpu_launch *l, const struct gpu_kernel *k, uint32_t *out, struct error *e)
{
    int fit = 0;
    uint64_t slices = 0;
    hipError_t status = hipOccupancyMaxActiveBlocksPerMultiprocessor(&fit, k->function, (int)k->threads, k->shared_bytes);

    if (status != hipSuccess)
        return gpu_error(e, l->gpu, "asking how many workgroups fit", status);
    if (fit < 1)
        return error_set(e, -EIO, "%s GPU %d: a workgroup of %u threads and %zu bytes of shared memory does not fit", GPU_KIND,
                         l->gpu, k->threads, k->shared_bytes);
    if (k->per_multiprocessor && fit > (int)k->per_multiprocessor)
        fit = (int)k->per_multiprocessor;
    for (int i = 0; i < l->nruns; i++)
        slices += l->fixed.plans[i].first[GPU_PHASES];
    uint64_t n = (uint64_t)fit * gpu_multiprocessors_for(&l->fixed.shape, gpus[l->gpu].multiprocessors);
    n = n < slices ? n : slices;
    n = n > (uint64_t)l->nruns ? n : (uint64_t)l->nruns;
    n = k->cluster > 1 ? (n + k->cluster - 1) / k->cluster * k->cluster : n;
    *out = k->workgroups ? k->workgroups : (uint32_t)n;
    return 0;
}

#define NOOP_GATES 16
/* The words that noop's kernel waits for, and their values. The kernel stops waiting when the failure epoch at `leave` reaches
 * `epoch`. */
struct noop_gates {
    uint64_t leave, epoch;
    uint32_t n, zero;
    uint64_t words[NOOP_GATES];
    uint32_t values[NOOP_GATES];
};
static __global__ void noop_kernel(GPU_PARAMETER struct gpu_end end, GPU_PARAMETER struct noop_gates gates);

static struct gpu_kernel kernel_get(const struct gpu_shape *shape, int gpu)
{
    enum fcc_dtype dtype = (enum fcc_dtype)shape->dtype;

    if (!gpu_has_kernels(shape))
        return {NULL, 0, 0, 0};
    switch (shape->compute) {
    case COMPUTE_BAG:
        return gpu_embedding_kernel(dtype, shape->over_nodes);
    case COMPUTE_GEMV:
        return gpu_gemv_kernel(dtype, shape->over_nodes);
    case COMPUTE_GEMM:
        return gpu_gemm_kernel(dtype, gpu, shape->over_nodes);
    case COMPUTE_NONE:
        return {(const void *)noop_kernel, GPU_WAVE_MOST, 0, 1, 0, 1};
    default:
        return {NULL, 0, 0, 0};
    }
}

/* Chooses a specialised kernel if there is one for this shape. */
static int quick_choose(struct gpu_launch *l, const struct gpu_run runs[], struct error *e)
{
    const struct gpu_shape *shape = &l->fixed.shape;
    uint32_t most = UINT32_MAX;

    if (shape->compute == COMPUTE_GEMM) {
        gpu_gemm_quick_choose(shape, l->gpu, runs, l->nruns, &l->gemm_quick);
        l->quick = l->gemm_quick.kernel.function ? &l->gemm_quick.kernel : NULL;
    } else if (shape->compute == COMPUTE_GEMV) {
        gpu_gemv_quick_choose(shape, l->gpu, runs, l->nruns, &l->gemv_quick);
        l->quick = l->gemv_quick.kernel.function ? &l->gemv_quick.kernel : NULL;
        most = l->gemv_quick.most;
    }
    int status = l->quick ? workgroups_choose(l, l->quick, &l->quick_workgroups, e) : 0;
    l->quick_workgroups = l->quick_workgroups < most ? l->quick_workgroups : most;
    return status;
}

/* The specialised kernel's second argument for a call. NULL: there is no such kernel, or it does not support this call. */
static void *quick_maps(const struct gpu_launch *l, const struct gpu_call *call)
{
    if (!l->quick)
        return NULL;
    return l->quick == &l->gemm_quick.kernel ? gpu_gemm_quick_maps(&l->gemm_quick, call, &l->fixed)
                                             : gpu_gemv_quick_maps(&l->gemv_quick, call, &l->fixed);
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
    l->kernel = kernel_get(shape, gpu);
    int status = l->kernel.function ? launch_upload(l, runs, e)
                                    : error_set(e, -EINVAL, "%s GPU %d: compute %u, exchange %u, dtype %u: no such kernel",
                                                GPU_KIND, gpu, shape->compute, shape->exchange, shape->dtype);
    if (status == 0)
        status = workgroups_choose(l, &l->kernel, &l->workgroups, e);
    if (status == 0)
        status = quick_choose(l, runs, e);
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
            if (l->tables_there[i])
                (void)hipFreeAsync((void *)l->tables_there[i], gpus[l->gpu].side);
    }
    for (int i = 0; i < l->nruns; i++)
        free(l->tables[i]);
    free(l);
}

uint32_t launch_workgroups(const struct gpu_launch *l)
{
    return l->quick ? l->quick_workgroups : l->workgroups;
}

int launch_tables(struct gpu_launch *l, int run, const int64_t first[], uint32_t ntables, uint64_t *address, struct error *e)
{
    size_t bytes = ((size_t)ntables + 1) * sizeof(first[0]);
    void *there = NULL;

    if (!l->tables[run] || l->ntables[run] != ntables || memcmp(l->tables[run], first, bytes)) {
        int64_t *here = (int64_t *)realloc(l->tables[run], bytes);
        if (!here)
            return error_set(e, -ENOMEM, "%s GPU %d: no memory for %u tables", GPU_KIND, l->gpu, ntables);
        l->tables[run] = here;
        memset(here, 0xff, bytes); /* invalid until the upload has succeeded */
        hipError_t status = hipSetDevice(l->gpu);
        if (status == hipSuccess && (l->ntables[run] != ntables || !l->tables_there[run])) {
            if (l->tables_there[run])
                (void)hipFreeAsync((void *)l->tables_there[run], gpus[l->gpu].side);
            l->tables_there[run] = 0;
            status = hipMallocAsync(&there, bytes, gpus[l->gpu].side);
            l->tables_there[run] = (uint64_t)there;
        }
        l->ntables[run] = ntables;
        if (status != hipSuccess)
            return gpu_error(e, l->gpu, "memory for the tables' rows", status);
        int result = memory_write(l->gpu, l->tables_there[run], first, bytes, e);
        if (result)
            return result;
        memcpy(here, first, bytes);
    }
    *address = l->tables_there[run];
    return 0;
}

/* ---- noop: a barrier. Its plans do nothing; when all ranks' streams have arrived, it is done. If possible, the kernel begins
 * when the streams of its own GPU's ranks have arrived, and waits for the others itself. That is faster than waiting on the
 * stream, and occupies one wave. The kernel uses no slices and no counters. It has one workgroup, and short arguments, as long
 * ones take longer to reach the GPU ---- */

static __global__ void noop_kernel(GPU_PARAMETER struct gpu_end end, GPU_PARAMETER struct noop_gates gates)
{
    gpu_follow();
    if (threadIdx.x < gates.n) {
        const uint64_t *word = (const uint64_t *)gates.words[threadIdx.x];
        uint32_t value = gates.values[threadIdx.x];
        bool leave = false;
        for (uint32_t spins = 1; (int32_t)((uint32_t)gpu_load_relaxed(word) - value) < 0 && !leave; spins++)
            if (spins % GPU_LOOK_SPINS == 0)
                leave = gpu_load_relaxed((const uint64_t *)gates.leave) >= gates.epoch;
        (void)gpu_load_acquire(word);
    }
    __syncthreads();
    if (threadIdx.x)
        return;
    gpu_fence_system();
    gpu_tell(end);
    gpu_tell_host(end, 0);
}

/* Sets the words that the kernel itself waits for. Returns false if the stream is to wait for all words. */
static bool noop_gate(const struct gpu_launch *l, const struct gpu_waits *waits, uint64_t epoch, struct noop_gates *out)
{
    uint32_t n = (uint32_t)(waits->count - waits->before);

    out->n = 0;
    if (n == 0 || n > NOOP_GATES)
        return false;
    out->n = n;
    out->leave = l->fixed.plans[0].flags + GPU_FLAGS * sizeof(uint64_t);
    out->epoch = epoch;
    memcpy(out->words, waits->words + waits->before, n * sizeof(out->words[0]));
    memcpy(out->values, waits->values + waits->before, n * sizeof(out->values[0]));
    return true;
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
static uint32_t workgroups_of_phases(const struct gpu_launch *l, const struct gpu_nodes *nodes)
{
    uint64_t slices = 0;

    for (int i = 0; i < l->nruns; i++)
        slices += l->fixed.plans[i].first[nodes->phase_next] - l->fixed.plans[i].first[nodes->phase_first];
    slices = slices > (uint64_t)l->nruns ? slices : (uint64_t)l->nruns;
    return slices < l->workgroups ? (uint32_t)slices : l->workgroups;
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

/* Fills in what a call has of its launch. Returns the second argument of the specialised kernel, or NULL. */
static void *call_complete(struct gpu_launch *l, struct gpu_call *call)
{
    call->fixed = l->there;
    call->nruns = (uint32_t)l->nruns;
    call->end.epoch = (uint32_t)call->epoch;
    memcpy(call->plans, l->fixed.plans, sizeof(call->plans));
    l->epoch = (uint32_t)call->epoch;
    return quick_maps(l, call);
}

static hipError_t kernel_start(const struct gpu_launch *l, void *arguments[], bool quick, uint32_t workgroups,
                               hipStream_t stream)
{
    const struct gpu_kernel *kernel = quick ? l->quick : &l->kernel;

    return gpu_kernel_launch(kernel->function, workgroups, kernel->threads, arguments, kernel->shared_bytes, stream,
                             gpus[l->gpu].follows);
}

int launch_slots(struct gpu_launch *l, const uint64_t slots[], struct error *e)
{
    return addresses_fill(l, l->fixed.slots, l->there->slots, slots, e);
}

void *launch_complete(struct gpu_launch *l, struct gpu_call *call, struct gpu_waits *waits)
{
    void *maps = call_complete(l, call);
    struct gpu_plan *plan = &call->plans[0]; /* the only one */
    uint64_t second = plan->counters + counters_pitch(plan->ngroups);

    l->second = !l->second; /* not by the epoch's parity, as some epochs may be skipped */
    call->idle_counters = l->second ? plan->counters : second;
    plan->counters = l->second ? second : plan->counters;
    waits->in_kernel = maps && l->quick == &l->gemm_quick.kernel && gpu_gemm_quick_gate(&l->gemm_quick, maps, waits);
    return maps;
}

hipError_t launch_enqueue(const struct gpu_launch *l, struct gpu_call *call, void *maps, hipStream_t stream)
{
    void *arguments[] = {call, maps};

    return kernel_start(l, arguments, maps != NULL, maps ? l->quick_workgroups : l->workgroups, stream);
}

int launch_start(struct gpu_launch *l, struct gpu_call *call, const uint64_t staging[], const uint64_t slots[],
                 struct gpu_waits *waits, uint32_t lane, struct error *e)
{
    hipStream_t stream = gpus[l->gpu].run[lane];
    int result = addresses_fill(l, l->fixed.staging, l->there->staging, staging, e);

    if (result == 0)
        result = launch_slots(l, slots, e);
    if (result)
        return result;
    void *maps = call_complete(l, call);
    struct noop_gates gates;
    bool noop = l->fixed.shape.compute == COMPUTE_NONE;
    void *arguments[] = {call, noop ? (void *)&gates : maps};
    if (noop)
        waits->in_kernel = noop_gate(l, waits, call->epoch, &gates);
    else
        waits->in_kernel = maps && l->quick == &l->gemm_quick.kernel && gpu_gemm_quick_gate(&l->gemm_quick, maps, waits);
    uint32_t workgroups = maps                        ? l->quick_workgroups
                          : l->fixed.shape.over_nodes ? workgroups_of_phases(l, &call->nodes)
                                                      : l->workgroups;
    hipError_t status = hipSetDevice(l->gpu);
    if (status == hipSuccess)
        status = lane_take(&gpus[l->gpu], lane);
    if (status == hipSuccess)
        status = gpu_stream_await(stream, waits->words, waits->values, waits->in_kernel ? waits->before : waits->count);
    if (status == hipSuccess && l->fixed.shape.over_nodes)
        status = copies_join(l->gpu);
    if (status == hipSuccess)
        status = kernel_start(l, arguments, maps != NULL, workgroups, stream);
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
