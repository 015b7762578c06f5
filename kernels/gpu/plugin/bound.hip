/* SPDX-License-Identifier: MIT
 *
 * bound.hip - bound operators, which a client launches onto its own streams (kernels/gpu/bound.h has the argument why that is
 * correct): the part of the plug-in that a client's process uses. It shares the process, and the GPU's primary context, with
 * the program itself. So it changes nothing that the program may depend on, such as the environment or memory pools.
 */
#include <stdlib.h>

#include "kernels/gpu/bound_check.h"
#include "kernels/gpu/device/execute.h"
#include "kernels/gpu/device/tiles/tiles_call.h"
#include "kernels/gpu/plugin/compile.h"
#include "kernels/gpu/plugin/inside.h"
#include "kernels/gpu/plugin/product.h"
#include "kernels/gpu/plugin/rings.h"
#include "kernels/gpu/plugin/whole_rows.h"
#include "kernels/gpu/step.h"

/* The argument of the barrier's kernel. */
struct barrier {
    uint64_t epoch;  /* numbered: 0 */
    uint64_t series; /* gpu_series.word; 0: none */
    uint64_t left;   /* numbered: address of gpu_fixed.left of the kernel that follows */
    uint64_t clash;  /* gpu_series.clash */
    uint64_t begun;  /* address of the word to set when the run begins; 0: none */
    uint64_t ended;  /* a noop: address of the word to set when the run has ended. 0: the operator's kernel follows */
    uint64_t areas[GPU_MAX_GPUS]; /* control memory of all ranks, one on each GPU */
    uint32_t rank, nranks;
    uint32_t numbered, zero; /* gpu_series.numbered */
    struct gpu_recall recall;
};

struct gpu_prepared {
    int gpu;
    uint32_t compute;          /* enum compute_kind */
    struct gpu_launch *launch; /* NULL: a noop */
    struct gpu_call call;      /* the argument of every run; epoch, stamp and slots_at change, unless it is numbered */
    uint64_t slots_bytes;      /* bytes of one half of the packet memory */
    bool needs_barrier;        /* a run needs a barrier */
    struct barrier barrier;
    void *places;            /* struct gpu_stream_places in the GPU's memory; NULL: the program has bound the operator */
    struct gpu_waits waits;  /* the other ranks' words of the barrier, for a kernel that waits for them itself */
    struct rings_call rings; /* EXCHANGE_RINGS: the argument of every collective, but for what it is */
    struct products products;
    struct gpu_code *code; /* a program's step: its kernel. NULL: it is no step */
};

/* The argument of the kernel that changes numbers of a program's step: as many words as kernels' arguments hold. */
#define NUMBERS_AT_ONCE 448
struct numbers {
    uint64_t to;
    uint32_t n, zero;
    int64_t words[NUMBERS_AT_ONCE];
};
static_assert(sizeof(struct numbers) <= 4096, "kernels take at most 4 KiB of arguments");

/* In a rank's area: the last run to which another rank's stream has come. */
static __host__ __device__ uint64_t come_word(uint64_t area, uint32_t other)
{
    return area + (GPU_FLAG_DONE + other) * sizeof(uint64_t);
}

/* One thread: the end of a noop, of which `series` counts the runs. */
static __device__ void noop_count(const struct barrier &m, uint64_t epoch)
{
    struct gpu_series series = {};

    series.word = m.series;
    series.clash = m.clash;
    gpu_record_end_alone(m.series, epoch);
    if (!m.numbered)
        gpu_store_relaxed((uint64_t *)m.series, epoch);
    else if (atomicCAS((unsigned long long *)m.series, (unsigned long long)epoch - 1, (unsigned long long)epoch) != epoch - 1)
        gpu_clash(series, epoch);
}

/* The barrier, in one wave: tells the other ranks that this rank's stream has reached the run, and waits until theirs have.
 * After it the stream's next kernel may store into all ranks' memory.
 * Memory order. This rank's earlier kernels on the stream have ended (gpu_follow()), and their loads and stores come before its
 * word (release, system). A rank that has seen all words has acquired everything before them. */
static __global__ void barrier_kernel(GPU_PARAMETER struct barrier m)
{
    const uint32_t other = threadIdx.x;
    const bool is_other = other < m.nranks && other != m.rank;
    uint64_t epoch = m.epoch;
    auto must_leave = [&] { return gpu_load_relaxed((const uint64_t *)m.areas[m.rank] + GPU_FLAGS) >= epoch; };
    bool leave = false, over = false;

    gpu_follow();
    if (m.numbered)
        epoch = gpu_run_next(m.series, &over);
    if (__syncthreads_or(over)) /* numbers.h; the threads have loaded one word, but not at one time */
        return;
    if (threadIdx.x == 0 && m.series)
        gpu_record_begin_alone(m.series, epoch, gpu_clock());
    if (threadIdx.x == 0 && m.begun)
        gpu_store_relaxed((uint64_t *)m.begun, epoch);
    if (threadIdx.x == 0 && m.numbered && !m.ended)
        (void)atomicAdd((uint32_t *)m.left, GPU_LEFT_TOLD);
    if (is_other)
        gpu_store_release((uint64_t *)come_word(m.areas[other], m.rank), epoch);
    if (is_other) {
        const uint64_t *word = (const uint64_t *)come_word(m.areas[m.rank], other);
        for (uint32_t spins = 1; gpu_load_relaxed(word) < epoch && !leave; spins++)
            if (spins % GPU_LOOK_SPINS == 0)
                leave = must_leave(); /* the operator's kernel will check that itself */
        (void)gpu_load_acquire(word);
    }
    if (!m.ended)
        return;
    __syncthreads();
    if (threadIdx.x)
        return;
    if (m.recall.places && must_leave())
        gpu_hand_over(m.recall);
    if (m.series)
        noop_count(m, epoch);
    gpu_store_relaxed((uint64_t *)m.ended, (uint64_t)(uint32_t)epoch);
}

/* Kernels of the step that ran before on the stream have ended, and those behind it begin after its end. */
static __global__ void numbers_kernel(GPU_PARAMETER struct numbers numbers)
{
    for (uint32_t i = threadIdx.x; i < numbers.n; i += blockDim.x)
        ((int64_t *)numbers.to)[i] = numbers.words[i];
}

/* Addresses in the rank's own memory. */
struct guard {
    uint64_t rings; /* the failure epoch of the communicator's rings, with their number of products behind it */
    uint64_t begun; /* rings_head.begun */
    uint64_t step;  /* the failure epoch of the step, with the number of its last run behind it */
};

/* One thread, when all that was on the stream before has ended: the step behind it is no run if the rings' newest run was given up (bound.h). */
static __global__ void guard_kernel(GPU_PARAMETER struct guard g)
{
    uint64_t rings_failed = 0, products = 0, failed = 0, last = 0;

    gpu_load_relaxed_pair(true, (const uint64_t *)g.rings, &rings_failed, &products);
    gpu_load_relaxed_pair(true, (const uint64_t *)g.step, &failed, &last);
    const bool given_up = rings_failed >= gpu_load_relaxed((const uint64_t *)g.begun) / RINGS_UNITS + products;
    if (failed != UINT64_MAX && (given_up || failed > last))
        (void)atomicCAS((unsigned long long *)g.step, (unsigned long long)failed,
                        given_up ? (unsigned long long)last + 1 : 0ull);
}

/* Prepares a GPU for launches, in a process that does not open it. */
static int gpu_use(int gpu, struct error *e)
{
    struct gpu *g = &gpus[gpu];
    hipDeviceProp_t properties;
    int fit;

    if (g->side)
        return 0;
    hipError_t status = hipGetDeviceProperties(&properties, gpu);
    if (status == hipSuccess) /* this call loads the kernel; loading it later could wait for a kernel that waits for this one */
        status = hipOccupancyMaxActiveBlocksPerMultiprocessor(&fit, (const void *)barrier_kernel, GPU_WAVE_MOST, 0);
    if (status == hipSuccess)
        status = hipOccupancyMaxActiveBlocksPerMultiprocessor(&fit, (const void *)numbers_kernel, GPU_WAVE_MOST, 0);
    if (status == hipSuccess)
        status = hipOccupancyMaxActiveBlocksPerMultiprocessor(&fit, (const void *)guard_kernel, 1, 0);
    if (status == hipSuccess)
        status = hipStreamCreateWithFlags(&g->side, hipStreamNonBlocking);
    if (status != hipSuccess)
        return gpu_error(e, gpu, "using it", status);
    g->multiprocessors = (uint32_t)properties.multiProcessorCount;
    g->follows = GPU_FOLLOWS(properties);
    g->hopper = properties.major == 9 && properties.minor == 0;
    return 0;
}

#if defined(__CUDACC__)
/* Loads all kernels of the file that this one is in. A driver before CUDA 12.5 cannot. */
static hipError_t file_load(const void *function)
{
    static const auto library_of = driver_entry<CUresult (*)(CUlibrary *, CUkernel)>("cuKernelGetLibrary", 12050);
    static const auto count_of = driver_entry<CUresult (*)(unsigned *, CUlibrary)>("cuLibraryGetKernelCount", 12040);
    static const auto list = driver_entry<CUresult (*)(CUkernel *, unsigned, CUlibrary)>("cuLibraryEnumerateKernels", 12040);
    static const auto function_of = driver_entry<CUresult (*)(CUfunction *, CUkernel)>("cuKernelGetFunction");
    static const auto load = driver_entry<CUresult (*)(CUfunction)>("cuFuncLoad", 12040);
    CUkernel kernel, kernels[512];
    CUlibrary library;
    CUfunction f;
    unsigned n = 0;

    if (!library_of || !count_of || !list || !function_of || !load)
        return hipSuccess;
    hipError_t status = cudaGetKernel((cudaKernel_t *)&kernel, function);
    if (status == hipSuccess)
        status = (hipError_t)library_of(&library, kernel);
    if (status == hipSuccess)
        status = (hipError_t)count_of(&n, library);
    n = n < sizeof(kernels) / sizeof(kernels[0]) ? n : (unsigned)(sizeof(kernels) / sizeof(kernels[0]));
    if (status == hipSuccess)
        status = (hipError_t)list(kernels, n, library);
    for (unsigned i = 0; i < n && status == hipSuccess; i++) {
        status = (hipError_t)function_of(&f, kernels[i]);
        if (status == hipSuccess)
            status = (hipError_t)load(f);
    }
    return status;
}
#else
static hipError_t file_load(const void *)
{
    return hipSuccess; /* operators are bound on CUDA GPUs only */
}
#endif

static int prepared_load(int gpu, struct error *e)
{
    int status = gpu < 0 || gpu >= GPU_MAX_GPUS
                     ? error_set(e, -EINVAL, "%s GPU %d: allowed are 0 to %d", GPU_KIND, gpu, GPU_MAX_GPUS - 1)
                     : gpu_use(gpu, e);
    const void *functions[GPU_FILES];
    int n = status ? 0 : kernels_one_of_each_file(functions);

    for (int i = 0; i < n && status == 0; i++) {
        hipError_t result = file_load(functions[i]);
        status = result == hipSuccess ? 0 : gpu_error(e, gpu, "loading kernels", result);
    }
    if (status == 0) {
        struct rings_rows_call none = {};
        hipError_t result = file_load(rows_kernel());
        if (result == hipSuccess)
            result = file_load(factor_rows_kernel());
        if (result == hipSuccess)
            result = file_load(rings_rows_launch_of(&none, false).kernel);
        if (result == hipSuccess)
            result = file_load(rules_kernel());
        if (result == hipSuccess)
            result = file_load(flows_kernel());
        if (result == hipSuccess)
            result = file_load(tiles_kernel());
        if (result == hipSuccess)
            result = rings_kernels_prepare(gpus[gpu].follows);
        status = result == hipSuccess ? 0 : gpu_error(e, gpu, "loading kernels of collectives", result);
    }
    return status;
}

static int plan_check(const struct gpu_prepared_plan *plan, size_t bytes, int gpu, struct error *e)
{
    struct error why = {};

    if (gpu < 0 || gpu >= GPU_MAX_GPUS)
        return error_set(e, -EINVAL, "%s GPU %d: allowed are 0 to %d", GPU_KIND, gpu, GPU_MAX_GPUS - 1);
    int status = gpu_prepared_plan_check(plan, bytes, &why);
    return status ? error_set(e, status, "%s GPU %d: %s", GPU_KIND, gpu, why.text) : 0;
}

/* Fills in the calls' argument: turns the plan's offsets into addresses. */
static void call_fill(struct gpu_prepared *p, const struct gpu_prepared_plan *plan, const struct gpu_prepared_memory *m)
{
    struct gpu_call *call = &p->call;
    uint64_t inputs[GPU_PREPARED_INPUTS];

    call->end.done = m->ended;
    call->end.in_stream = GPU_IN_STREAM;
    call->nodes.phase_next = GPU_PHASES;
    call->in[0] = plan->in;
    gpu_prepared_inputs(plan, m, inputs);
    gpu_call_inputs_set(call, plan->shape.compute, inputs);
    for (uint32_t r = 0; r < plan->shape.nranks; r++) {
        call->out[r] = plan->out[r];
        call->out[r].data += m->results[r];
        if (plan->shape.compute == COMPUTE_STEP)
            call->out[r].in += m->ins[r];
        p->barrier.areas[r] = m->areas[r];
    }
    if (!m->places.n) { /* bound by the program */
        call->series.word = p->barrier.series = m->areas[plan->rank] + GPU_FLAG_RUN * sizeof(uint64_t);
        call->series.clash = p->barrier.clash = m->clash;
        call->series.slots_bytes = plan->slots_bytes;
    }
    p->barrier.rank = plan->rank;
    p->barrier.nranks = plan->shape.nranks;
    p->barrier.begun = m->begun;
    p->barrier.ended = p->compute == COMPUTE_NONE ? m->ended : 0;
    for (uint32_t r = 0; p->needs_barrier && r < plan->shape.nranks; r++) {
        if (r == plan->rank)
            continue;
        call->barrier.words[p->waits.count] = come_word(m->areas[r], plan->rank);
        p->waits.words[p->waits.count++] = come_word(m->areas[plan->rank], r);
    }
}

/* A program's step: its numbers come to the GPU, and its kernel is loaded. */
static int step_open(struct gpu_prepared *p, const struct gpu_prepared_memory *m, struct error *e)
{
    int status = m->numbers && m->nnumbers >= GPU_STEP_NUMBERS && m->nnumbers <= UINT32_MAX && m->image
                     ? launch_numbers(p->launch, 0, m->numbers, (uint32_t)m->nnumbers, &p->call.in[0].vector.parts, e)
                     : error_set(e, -EINVAL, "%s GPU %d: a step without numbers or without a kernel", GPU_KIND, p->gpu);

    if (status == 0)
        status = code_load(p->gpu, m->image, m->image_bytes, &p->code, e);
    return status ? status : launch_code(p->launch, p->code, e);
}

static int launch_open(struct gpu_prepared *p, const struct gpu_prepared_plan *plan, const struct gpu_prepared_memory *m,
                       struct error *e)
{
    struct gpu_run run = {};
    uint64_t slots[GPU_MAX_RANKS], staging[GPU_MAX_RANKS];

    run.rank = (int)plan->rank;
    run.slices = (const struct slice *)((const char *)plan + plan->slices);
    run.groups = (const struct signal_group *)((const char *)plan + plan->groups);
    memcpy(run.sets, plan->sets, sizeof(run.sets));
    run.ngroups = plan->ngroups;
    memcpy(run.first, plan->first, sizeof(run.first));
    for (uint32_t r = 0; r < plan->shape.nranks; r++)
        slots[r] = m->areas[r] + plan->slots_at;
    for (uint32_t r = 0; r < plan->shape.nranks; r++) /* a kernel uses its own rank's only */
        staging[r] = m->areas[plan->rank] + plan->staging_at;
    int status = launch_make(p->gpu, &plan->shape, m->areas, &run, 1, &p->launch, e);
    if (status == 0 && plan->shape.compute == COMPUTE_STEP)
        status = step_open(p, m, e);
    if (status == 0 && !m->places.n && launch_workgroups(p->launch) > GPU_LEFT_MOST)
        status = error_set(e, -EOPNOTSUPP, "%s GPU %d: a kernel of %u workgroups: allowed are 1 to %u", GPU_KIND, p->gpu,
                           launch_workgroups(p->launch), GPU_LEFT_MOST);
    return status ? status : launch_addresses(p->launch, staging, slots, e);
}

/* Uploads the addresses of the stream words, for runs that are recalled. */
static int places_open(struct gpu_prepared *p, const struct gpu_prepared_memory *m, struct error *e)
{
    hipError_t status = hipMallocAsync(&p->places, sizeof(m->places), gpus[p->gpu].side);

    if (status != hipSuccess)
        return gpu_error(e, p->gpu, "memory for places", status);
    p->call.recall.places = (uint64_t)p->places;
    return memory_write(p->gpu, (uint64_t)p->places, &m->places, sizeof(m->places), e);
}

static void rings_open(struct gpu_prepared *p, const struct gpu_prepared_plan *plan, const struct gpu_prepared_memory *m)
{
    struct rings_call *c = &p->rings;

    c->rank = plan->rank;
    c->nranks = plan->shape.nranks;
    c->lines = plan->lines;
    c->begun = m->begun;
    c->ended = m->ended;
    c->failed = m->failed;
    c->clash = m->clash;
    for (uint32_t r = 0; r < c->nranks; r++) {
        c->area[r] = m->areas[r];
        c->rings[r] = m->areas[r] + plan->slots_at;
    }
}

int rings_start(int gpu, const struct rings_call *rings, hipStream_t stream, struct error *e)
{
    void *arguments[] = {(void *)rings};

    if (sums_vector_suits(rings)) {
        hipError_t result = sums_vector_start(gpu, rings, stream);
        return result == hipSuccess ? 0 : gpu_error(e, gpu, "launching an all_reduce", result);
    }
    const struct rings_launch l = rings_launch_of(rings, gpus[gpu].follows);
    hipError_t status =
        gpu_kernel_launch(l.kernel, l.workgroups, l.threads, arguments, l.shared_bytes, stream, gpus[gpu].follows);
    return status == hipSuccess ? 0 : gpu_error(e, gpu, "launching a collective", status);
}

static int prepared_collective(struct gpu_prepared *p, const struct gpu_collective *what, void *stream, struct error *e)
{
    p->rings.what = *what;
    return rings_start(p->gpu, &p->rings, (hipStream_t)stream, e);
}

/* The run of a product without columns is a collective that moves nothing. */
static int empty_start(struct gpu_prepared *p, const struct rings_product *what, void *stream, struct error *e)
{
    struct gpu_collective nothing = {};

    nothing.op = what->op;
    nothing.dtype = what->dtype;
    nothing.number = what->number;
    nothing.in_share = nothing.out_share = VECTOR_ALL;
    nothing.element_bytes = 1;
    nothing.reduction = what->stages;
    nothing.root = (what->copies && !what->puts) || what->library ? rings_rows_root(what->reduction) : 0;
    nothing.numbers = (what->copies && !what->puts) || what->library ? what->numbers : 0;
    nothing.rows = what->puts ? 1 : (uint32_t)what->m; /* each rank may put others */
    return prepared_collective(p, &nothing, stream, e);
}

static int prepared_product(struct gpu_prepared *p, const struct rings_product *what, void *stream, struct error *e)
{
    return what->n > 0 || what->bags.table_rows ? product_start(&p->products, p->gpu, &p->rings, what, (hipStream_t)stream, e)
                                                : empty_start(p, what, stream, e);
}

static int prepared_pieces(struct gpu_prepared *p, const struct rings_pieces *what, void *stream, struct error *e)
{
    return pieces_start(&p->products, p->gpu, &p->rings, what, (hipStream_t)stream, e);
}

static void prepared_close(struct gpu_prepared *p)
{
    products_free(&p->products, p->gpu);
    if (p->places)
        (void)hipFreeAsync(p->places, gpus[p->gpu].side);
    if (p->launch)
        launch_free(p->launch);
    if (p->code)
        code_free(p->code);
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
    p->needs_barrier = !plan->only_slots && plan->shape.nranks > 1;
    call_fill(p, plan, memory);
    if (plan->shape.exchange == EXCHANGE_RINGS)
        rings_open(p, plan, memory);
    if (plan->shape.exchange == EXCHANGE_RINGS && plan->shape.n)
        status = library_open(gpu, sums_workspace(&p->rings), &p->products.library, e);
    if (p->products.library && status == 0)
        status = flows_open(gpu, &p->products.flows, e);
    if (status == 0 && p->compute != COMPUTE_NONE)
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

/* Whether a launch may be made behind a kernel that has not ended. Since CUDA 12.3 it may also be captured into a graph. */
static bool follows(const struct gpu_prepared *p)
{
    return gpus[p->gpu].follows && (!p->barrier.numbered || gpu_graphs_follow());
}

static hipError_t barrier_enqueue(struct gpu_prepared *p, hipStream_t stream)
{
    void *arguments[] = {&p->barrier};

    return gpu_kernel_launch((const void *)barrier_kernel, 1, GPU_WAVE_MOST, arguments, 0, stream, follows(p));
}

/* Enqueues the operator's kernel, after a barrier unless it needs none or contains it. */
static hipError_t operator_enqueue(struct gpu_prepared *p, hipStream_t stream)
{
    hipError_t status = hipSuccess;

    for (int i = 0; i < p->waits.count; i++)
        p->waits.values[i] = (uint32_t)p->call.epoch;
    void *maps = launch_complete(p->launch, &p->call, &p->waits);
    bool barrier_before = p->needs_barrier && !p->waits.in_kernel;
    p->call.end.begun = barrier_before ? 0 : p->barrier.begun; /* 0: the barrier's kernel sets the word */
    p->call.barrier.n = p->waits.in_kernel ? (uint32_t)p->waits.count : 0;
    p->barrier.left = (uint64_t)p->call.fixed + offsetof(struct gpu_fixed, left);
    if (barrier_before)
        status = barrier_enqueue(p, stream);
    return status == hipSuccess ? launch_enqueue(p->launch, &p->call, maps, stream, follows(p)) : status;
}

static int prepared_start(struct gpu_prepared *p, uint64_t epoch, void *stream, struct error *e)
{
    p->call.series.numbered = p->barrier.numbered = epoch == 0;
    p->call.epoch = p->barrier.epoch = epoch;
    p->call.stamp = (uint32_t)epoch;
    p->call.slots_at = epoch % 2 * p->slots_bytes;
    hipError_t status = p->launch ? operator_enqueue(p, (hipStream_t)stream) : barrier_enqueue(p, (hipStream_t)stream);
    return status == hipSuccess ? 0 : gpu_error(e, p->gpu, "launching an operator", status);
}

static int prepared_repeat(struct gpu_prepared *p, const struct gpu_repeated_run *run, void *stream, struct error *e)
{
    gpu_call_inputs_set(&p->call, p->compute, run->inputs);
    p->call.out[p->barrier.rank].data = run->result;
    p->call.end.in_stream = run->fenced ? GPU_IN_STREAMS : GPU_IN_STREAM;
    p->call.recall.slot = run->slot;
    p->call.recall.value = run->value;
    p->barrier.recall = p->call.recall;
    return prepared_start(p, run->epoch, stream, e);
}

static int prepared_numbers(struct gpu_prepared *p, size_t at, const int64_t words[], size_t n, void *stream, struct error *e)
{
    hipError_t status = hipSuccess;
    struct numbers numbers = {};
    void *arguments[] = {&numbers};

    for (size_t done = 0; done < n && status == hipSuccess; done += numbers.n) {
        numbers.to = p->call.in[0].vector.parts + (at + done) * sizeof(words[0]);
        numbers.n = (uint32_t)(n - done < NUMBERS_AT_ONCE ? n - done : NUMBERS_AT_ONCE);
        memcpy(numbers.words, words + done, numbers.n * sizeof(words[0]));
        status = gpu_kernel_launch((const void *)numbers_kernel, 1, GPU_WAVE_MOST, arguments, 0, (hipStream_t)stream, false);
    }
    return status == hipSuccess ? 0 : gpu_error(e, p->gpu, "changing a step's numbers", status);
}

static int prepared_guard(struct gpu_prepared *p, const struct gpu_prepared *rings, void *stream, struct error *e)
{
    const struct rings_call *c = &rings->rings;
    struct guard guard = {};
    void *arguments[] = {&guard};

    guard.rings = c->area[c->rank] + GPU_PREPARED_FAILURE_AT;
    guard.begun = c->rings[c->rank] + offsetof(struct rings_head, begun);
    guard.step = p->call.series.word - (GPU_FLAG_RUN - GPU_FLAGS) * sizeof(uint64_t);
    hipError_t status = gpu_kernel_launch((const void *)guard_kernel, 1, 1, arguments, 0, (hipStream_t)stream, false);
    return status == hipSuccess ? 0 : gpu_error(e, p->gpu, "launching a guard", status);
}

static const struct gpu_prepared_functions functions = {
    GPU_PLUGIN_ABI, prepared_load,       prepared_open,    prepared_start,   prepared_repeat,
    prepared_close, prepared_collective, prepared_product, prepared_pieces,  library_is_there,
    rule_add,       rule_await,          rule_run,         prepared_numbers, prepared_guard};

extern "C" __attribute__((visibility("default"))) const struct gpu_prepared_functions *gpu_prepared_functions(void)
{
    return &functions;
}
