/* SPDX-License-Identifier: MIT
 *
 * bound.hip - operators that a client launches onto its own streams (kernels/gpu/bound.h says why that is right): all that a client's
 * process uses of the plug-in. It shares the process with the program's own runtime, in the GPU's primary context, so nothing
 * here sets what others depend on: no environment, no memory pool.
 */
#include <stdlib.h>

#include "kernels/gpu/bound_check.h"
#include "kernels/gpu/device/execute.h"
#include "kernels/gpu/device/offer.h"
#include "kernels/gpu/plugin/inside.h"

struct meeting {
    uint64_t epoch, begun;
    uint64_t ended;               /* the run is over then: a noop. 0: the operator's kernel is behind it */
    uint64_t areas[GPU_MAX_GPUS]; /* of all ranks: each is alone on its GPU */
    uint32_t rank, nranks;
    struct gpu_offer offer;
};

struct gpu_prepared {
    int gpu;
    uint32_t compute;          /* enum compute_kind */
    struct gpu_launch *launch; /* NULL: a noop */
    struct gpu_call call;      /* of every run, but for what counts */
    uint64_t slots_bytes;
    bool meets;
    struct meeting meeting;
    void *places;           /* struct gpu_stream_places in the GPU's memory; NULL: none are offered */
    struct gpu_waits waits; /* for the others' words, if the kernel waits for them itself */
};

/* In a rank's area: the last run to which another rank's stream has come. */
static __host__ __device__ uint64_t come_word(uint64_t area, uint32_t other)
{
    return area + (GPU_FLAG_DONE + other) * sizeof(uint64_t);
}

/* One wave: this rank's stream has come to the run; have the others'? What is behind this on the stream may store at all ranks then. Where
 * the run is offered and stands back, the others are told all the same, as it is true: nobody waits for this one's word then.
 * Memory order. What this rank's stream has read and written before is over (gpu_follow()), and comes before its word (release, system); and
 * whoever sees all words acquires what was before them. */
static __global__ void meet_kernel(GPU_PARAMETER struct meeting m)
{
    const uint32_t other = threadIdx.x;
    const bool is_other = other < m.nranks && other != m.rank;
    auto must_leave = [&] { return gpu_load_relaxed((const uint64_t *)m.areas[m.rank] + GPU_FLAGS) >= m.epoch; };
    bool stands_back = false, leave = false;

    gpu_follow();
    if (threadIdx.x == 0 && m.begun)
        gpu_store_relaxed((uint64_t *)m.begun, m.epoch);
    if (is_other)
        gpu_store_release((uint64_t *)come_word(m.areas[other], m.rank), m.epoch);
    if (m.offer.word)
        stands_back = __syncthreads_or(threadIdx.x == 0 && gpu_offer_await(m.offer, m.epoch, must_leave));
    if (is_other && !stands_back) {
        const uint64_t *word = (const uint64_t *)come_word(m.areas[m.rank], other);
        for (uint32_t spins = 1; gpu_load_relaxed(word) < m.epoch && !leave; spins++)
            if (spins % GPU_LOOK_SPINS == 0)
                leave = must_leave(); /* the operator's kernel sees it, too */
        (void)gpu_load_acquire(word);
    }
    if (!m.ended)
        return;
    if (stands_back && threadIdx.x == 0)
        gpu_words_pass(m.offer, must_leave);
    __syncthreads();
    if (threadIdx.x == 0)
        gpu_store_relaxed((uint64_t *)m.ended, (uint64_t)(uint32_t)m.epoch);
}

/* What launches need of a GPU, in a process that owns no memory there. */
static int gpu_use(int gpu, struct error *e)
{
    struct gpu *g = &gpus[gpu];
    hipDeviceProp_t properties;
    int fit;

    if (g->side)
        return 0;
    hipError_t status = hipGetDeviceProperties(&properties, gpu);
    if (status == hipSuccess) /* which loads it: later that could wait for a kernel that waits */
        status = hipOccupancyMaxActiveBlocksPerMultiprocessor(&fit, (const void *)meet_kernel, GPU_WAVE_MOST, 0);
    if (status == hipSuccess)
        status = hipStreamCreateWithFlags(&g->side, hipStreamNonBlocking);
    if (status != hipSuccess)
        return gpu_error(e, gpu, "using it", status);
    g->multiprocessors = (uint32_t)properties.multiProcessorCount;
    g->follows = GPU_FOLLOWS(properties);
    return 0;
}

static int plan_check(const struct gpu_prepared_plan *plan, size_t bytes, int gpu, struct error *e)
{
    struct error why = {};

    if (gpu < 0 || gpu >= GPU_MAX_GPUS)
        return error_set(e, -EINVAL, "%s GPU %d: allowed are 0 to %d", GPU_KIND, gpu, GPU_MAX_GPUS - 1);
    int status = gpu_prepared_plan_check(plan, bytes, &why);
    return status ? error_set(e, status, "%s GPU %d: %s", GPU_KIND, gpu, why.text) : 0;
}

/* The calls' argument: places become addresses. */
static void call_fill(struct gpu_prepared *p, const struct gpu_prepared_plan *plan, const struct gpu_prepared_memory *m)
{
    struct gpu_call *call = &p->call;
    uint64_t inputs[GPU_PREPARED_INPUTS];

    call->end.done = m->ended;
    call->end.in_stream = 1;
    call->nodes.phase_next = GPU_PHASES;
    call->in[0] = plan->in;
    gpu_prepared_inputs(plan, m, inputs);
    gpu_call_inputs_set(call, plan->shape.compute, inputs);
    for (uint32_t r = 0; r < plan->shape.nranks; r++) {
        call->out[r] = plan->out[r];
        call->out[r].data += m->results[r];
        p->meeting.areas[r] = m->areas[r];
    }
    p->meeting.rank = plan->rank;
    p->meeting.nranks = plan->shape.nranks;
    p->meeting.begun = m->begun;
    p->meeting.ended = p->compute == COMPUTE_NONE ? m->ended : 0;
    for (uint32_t r = 0; p->meets && r < plan->shape.nranks; r++) {
        if (r == plan->rank)
            continue;
        call->meeting.words[p->waits.count] = come_word(m->areas[r], plan->rank);
        p->waits.words[p->waits.count++] = come_word(m->areas[plan->rank], r);
    }
}

static int launch_open(struct gpu_prepared *p, const struct gpu_prepared_plan *plan, const struct gpu_prepared_memory *m,
                       struct error *e)
{
    struct gpu_run run = {};
    uint64_t slots[FCC_MAX_RANKS];

    run.rank = (int)plan->rank;
    run.slices = (const struct slice *)((const char *)plan + plan->slices);
    run.groups = (const struct signal_group *)((const char *)plan + plan->groups);
    run.sets = plan->sets;
    run.ngroups = plan->ngroups;
    memcpy(run.first, plan->first, sizeof(run.first));
    for (uint32_t r = 0; r < plan->shape.nranks; r++)
        slots[r] = m->areas[r] + plan->slots_at;
    int status = launch_make(p->gpu, &plan->shape, m->areas, &run, 1, &p->launch, e);
    return status ? status : launch_slots(p->launch, slots, e);
}

/* For runs that are offered. */
static int places_open(struct gpu_prepared *p, const struct gpu_prepared_memory *m, struct error *e)
{
    hipError_t status = hipMallocAsync(&p->places, sizeof(m->places), gpus[p->gpu].side);

    if (status != hipSuccess)
        return gpu_error(e, p->gpu, "memory for places", status);
    p->call.offer.places = (uint64_t)p->places;
    return memory_write(p->gpu, (uint64_t)p->places, &m->places, sizeof(m->places), e);
}

static void prepared_close(struct gpu_prepared *p)
{
    if (p->places)
        (void)hipFreeAsync(p->places, gpus[p->gpu].side);
    if (p->launch)
        launch_free(p->launch);
    free(p);
}

static int prepared_open(int gpu, const struct gpu_prepared_plan *plan, size_t bytes, const struct gpu_prepared_memory *memory,
                         struct gpu_prepared **out, struct error *e)
{
    int status = plan_check(plan, bytes, gpu, e);

    if (status == 0)
        status = gpu_use(gpu, e);
    if (status)
        return status;
    struct gpu_prepared *p = (struct gpu_prepared *)calloc(1, sizeof(*p));
    if (!p)
        return error_set(e, -ENOMEM, "%s GPU %d: no memory for an operator", GPU_KIND, gpu);
    p->gpu = gpu;
    p->compute = plan->shape.compute;
    p->slots_bytes = plan->slots_bytes;
    p->meets = !plan->only_slots && plan->shape.nranks > 1;
    call_fill(p, plan, memory);
    if (p->compute != COMPUTE_NONE)
        status = launch_open(p, plan, memory, e);
    if (status == 0 && memory->places.n)
        status = places_open(p, memory, e);
    if (status) {
        prepared_close(p);
        return status;
    }
    *out = p;
    return 0;
}

static hipError_t meeting_enqueue(struct gpu_prepared *p, hipStream_t stream)
{
    void *arguments[] = {&p->meeting};

    return gpu_kernel_launch((const void *)meet_kernel, 1, GPU_WAVE_MOST, arguments, 0, stream, gpus[p->gpu].follows);
}

/* The operator's kernel, behind a meeting unless it needs none, or meets the others itself. */
static hipError_t operator_enqueue(struct gpu_prepared *p, hipStream_t stream)
{
    hipError_t status = hipSuccess;

    for (int i = 0; i < p->waits.count; i++)
        p->waits.values[i] = (uint32_t)p->call.epoch;
    void *maps = launch_complete(p->launch, &p->call, &p->waits);
    bool meets_before = p->meets && !p->waits.in_kernel;
    p->call.end.begun = meets_before ? 0 : p->meeting.begun; /* it has begun when it meets the others */
    p->call.meeting.n = p->waits.in_kernel ? (uint32_t)p->waits.count : 0;
    if (meets_before)
        status = meeting_enqueue(p, stream);
    return status == hipSuccess ? launch_enqueue(p->launch, &p->call, maps, stream) : status;
}

static int prepared_start(struct gpu_prepared *p, uint64_t epoch, void *stream, struct error *e)
{
    p->call.epoch = p->meeting.epoch = epoch;
    p->call.stamp = (uint32_t)epoch;
    p->call.slots_at = epoch % 2 * p->slots_bytes;
    hipError_t status = p->launch ? operator_enqueue(p, (hipStream_t)stream) : meeting_enqueue(p, (hipStream_t)stream);
    return status == hipSuccess ? 0 : gpu_error(e, p->gpu, "launching an operator", status);
}

static int prepared_offer(struct gpu_prepared *p, const struct gpu_offered_run *run, void *stream, struct error *e)
{
    gpu_call_inputs_set(&p->call, p->compute, run->inputs);
    p->call.out[p->meeting.rank].data = run->result;
    p->call.offer.word = p->meeting.areas[p->meeting.rank] + gpu_offer_word_at(run->epoch);
    p->call.offer.slot = run->slot;
    p->call.offer.value = run->value;
    p->meeting.offer = p->call.offer;
    return prepared_start(p, run->epoch, stream, e);
}

static const struct gpu_prepared_functions functions = {GPU_PLUGIN_ABI, prepared_open, prepared_start, prepared_offer,
                                                        prepared_close};

extern "C" __attribute__((visibility("default"))) const struct gpu_prepared_functions *gpu_prepared_functions(void)
{
    return &functions;
}
