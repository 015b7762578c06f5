/* SPDX-License-Identifier: MIT
 *
 * plugin.hip - the node's GPUs: descriptions, contexts, streams and clocks; and the plug-in's table of functions.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/gpu/plugin/compile.h"
#include "kernels/gpu/plugin/inside.h"
#include "proto/base/clock.h"

#define CLOCK_ROUNDS 32
#define CLOCK_LIMIT_NS 200000000u /* time limit for all rounds together */

struct gpu gpus[GPU_MAX_GPUS];
bool gpus_share_by_ipc;

int gpu_error(struct error *e, int gpu, const char *what, hipError_t status)
{
    (void)hipGetLastError(); /* clears a non-sticky error, so that it is not reported again */
    return error_set(e, status == hipErrorMemoryAllocation ? -ENOMEM : -EIO, "%s GPU %d: %s: %s", GPU_KIND, gpu, what,
                     hipGetErrorString(status));
}

/* ---- descriptions ---- */

static int plugin_count(struct error *e)
{
    int count = 0;
    hipError_t status = hipGetDeviceCount(&count);

    /* Other errors may be temporary, such as an MPS server that accepts no clients now. But the runtime does not try again in
     * this process. */
    if (status != hipSuccess && status != hipErrorNoDevice && status != hipErrorInsufficientDriver)
        return error_set(e, -EAGAIN, "the GPUs' runtime does not start: %s", hipGetErrorString(status));
    if (status != hipSuccess || count < 1)
        return error_set(e, -ENODEV, "no GPU: %s", status != hipSuccess ? hipGetErrorString(status) : "the driver has none");
    return count < GPU_MAX_GPUS ? count : GPU_MAX_GPUS;
}

uint32_t gpu_peers(int gpu)
{
    uint32_t mask = 1u << gpu;
    int count = plugin_count(NULL);

    for (int p = 0; p < count; p++) {
        int can = 0;
        if (p != gpu && hipDeviceCanAccessPeer(&can, p, gpu) == hipSuccess && can)
            mask |= 1u << p;
    }
    return mask;
}

static int plugin_describe(int gpu, struct gpu_description *out, struct error *e)
{
    hipDeviceProp_t properties;
    int count = plugin_count(e);

    if (count < 0)
        return count;
    if (gpu < 0 || gpu >= count)
        return error_set(e, -ENOENT, "%s GPU %d: allowed are 0 to %d", GPU_KIND, gpu, count - 1);
    hipError_t status = hipGetDeviceProperties(&properties, gpu);
    if (status != hipSuccess)
        return gpu_error(e, gpu, "its properties", status);
    memset(out, 0, sizeof(*out));
    (void)snprintf(out->name, sizeof(out->name), "%.*s", (int)sizeof(out->name) - 1, properties.name);
    (void)hipDeviceGetPCIBusId(out->pci, (int)sizeof(out->pci), gpu);
    gpu_uuid(gpu, out->uuid);
    out->memory_bytes = properties.totalGlobalMem;
    out->multiprocessors = (uint32_t)properties.multiProcessorCount;
    out->peers = gpu_peers(gpu) & ~(1u << gpu);
    for (int p = 0; p < count; p++)
        if (out->peers & 1u << p)
            (void)snprintf(out->links[p], sizeof(out->links[p]), "%s", gpu_link_name(gpu, p));
    out->stream_memory_operations = (uint32_t)gpu_stream_waits(gpu);
    out->words_in_memory = (uint32_t)(gpu_stream_waits(gpu) && gpu_words_in_memory(gpu));
    out->lanes = strcmp(GPU_KIND, "cuda") ? 1 : GPU_LANES; /* several queues were measured on NVIDIA's GPUs only */
    return 0;
}

/* ---- clock ---- */

struct clock_words {
    volatile uint64_t ping;  /* the round that the host asks for */
    volatile uint64_t pong;  /* the round that the GPU has answered */
    volatile uint64_t clock; /* the GPU's clock; stored before pong */
    volatile uint64_t stop;
};

/* One thread: answers each ping with the GPU's clock. Ends after the last round, or when `stop` is set. */
static __global__ void clock_answer(struct clock_words *w, uint64_t rounds)
{
    for (uint64_t round = 1; round <= rounds; round++) {
        while (w->ping < round)
            if (w->stop)
                return;
        w->clock = gpu_clock();
        gpu_fence_system();
        w->pong = round;
    }
}

/* Asks repeatedly and takes the fastest answer, which is the most precise: the GPU read its clock between `before` and
 * `after`. */
static int clock_ask(struct clock_words *w, uint64_t *clock, uint64_t *ns)
{
    uint64_t start = clock_ns(), best = UINT64_MAX, after = start;

    for (uint64_t round = 1; round <= CLOCK_ROUNDS; round++) {
        uint64_t before = clock_ns();
        w->ping = round;
        __sync_synchronize();
        while (w->pong < round)
            if (clock_ns() - start > CLOCK_LIMIT_NS)
                return -ETIMEDOUT;
        after = clock_ns();
        if (after - before < best) {
            best = after - before;
            *clock = w->clock;
            *ns = before + best / 2;
        }
    }
    return 0;
}

/* Whose words they are: each thread has its own. */
enum clock_reader { CLOCK_ENGINE, CLOCK_RECORDS, CLOCK_READERS };

/* stream: nothing on it waits. */
static int clock_read_on(int gpu, enum clock_reader reader, hipStream_t stream, uint64_t *clock, uint64_t *ns, struct error *e)
{
    struct clock_words *w = (struct clock_words *)gpus[gpu].clock_words, *there = NULL;
    uint64_t rounds = CLOCK_ROUNDS;
    int answer = 0;
    hipError_t status = hipSetDevice(gpu);

    if (status == hipSuccess)
        status = hipHostGetDevicePointer((void **)&there, (void *)w, 0);
    if (status == hipSuccess)
        there += reader;
    w += reader;
    memset((void *)w, 0, sizeof(*w));
    void *arguments[] = {&there, &rounds};
    if (status == hipSuccess)
        status = hipLaunchKernel((const void *)clock_answer, dim3(1), dim3(1), arguments, 0, stream);
    if (status == hipSuccess) {
        answer = clock_ask(w, clock, ns);
        w->stop = 1;
        status = hipStreamSynchronize(stream);
    }
    if (status != hipSuccess)
        return gpu_error(e, gpu, "reading its clock", status);
    return answer ? error_set(e, answer, "%s GPU %d: its clock did not answer", GPU_KIND, gpu) : 0;
}

int gpu_clock_read(int gpu, uint64_t *clock, uint64_t *ns, struct error *e)
{
    return clock_read_on(gpu, CLOCK_ENGINE, gpus[gpu].side, clock, ns, e);
}

/* ---- what runs have noted: by a thread of its own ---- */

#define RATE_LEAST_NS                                                                                                          \
    1000000000u /* two moments that are nearer to each other say less of the clock's rate than its maker does */

/* The GPU's clock and CLOCK_MONOTONIC drift apart by some us a second: how fast it has run since the context was made. A clock of ns that seems to be far from
 * one was set meanwhile. */
static int records_clock(int gpu, struct gpu_moment *out, struct error *e)
{
    const struct gpu *g = &gpus[gpu];
    struct gpu_moment now = {0, 0, 1};
    int status = clock_read_on(gpu, CLOCK_RECORDS, g->reads, &now.clock, &now.ns, e);

    if (status)
        return status;
    if (now.clock > g->opened_clock && now.ns - g->opened_ns >= RATE_LEAST_NS)
        now.rate = (double)(now.ns - g->opened_ns) / (double)(now.clock - g->opened_clock);
    else if (!GPU_CLOCK_IS_NS)
        now.rate = 10; /* 100 MHz, until it is known */
    if (GPU_CLOCK_IS_NS && (now.rate < 0.999 || now.rate > 1.001))
        now.rate = 1;
    *out = now;
    return 0;
}

static int records_read(void *to, int gpu, uint64_t from, uint64_t bytes, struct error *e)
{
    const struct gpu *g = &gpus[gpu];
    hipError_t status = hipSetDevice(gpu);

    for (uint64_t at = 0; at < bytes && status == hipSuccess; at += GPU_READ_ROOM) {
        const uint64_t some = bytes - at < GPU_READ_ROOM ? bytes - at : GPU_READ_ROOM;
        status = hipMemcpyAsync(g->read_room, (const void *)(from + at), some, hipMemcpyDeviceToHost, g->reads);
        if (status == hipSuccess)
            status = hipStreamSynchronize(g->reads);
        if (status == hipSuccess)
            memcpy((char *)to + at, g->read_room, some);
    }
    return status == hipSuccess ? 0 : gpu_error(e, gpu, "reading what runs have noted", status);
}

static hipError_t reads_open(struct gpu *g)
{
    int least = 0, greatest = 0;
    hipError_t status = hipDeviceGetStreamPriorityRange(&least, &greatest);

    if (status == hipSuccess)
        status = hipStreamCreateWithPriority(&g->reads, hipStreamNonBlocking, greatest);
    return status == hipSuccess ? hipHostMalloc(&g->read_room, GPU_READ_ROOM, hipHostMallocPortable) : status;
}

/* ---- contexts ---- */

/* Keeps memory that is freed with hipFreeAsync() in the process's pool. To return it to the driver would wait for the GPU,
 * whose queue may be blocked by a client's stream. */
static hipError_t pool_keep(int gpu)
{
    uint64_t all = UINT64_MAX;
    hipMemPool_t pool;
    hipError_t status = hipDeviceGetDefaultMemPool(&pool, gpu);

    return status == hipSuccess ? hipMemPoolSetAttribute(pool, hipMemPoolAttrReleaseThreshold, &all) : status;
}

static int gpu_open(int gpu, struct error *e)
{
    struct gpu *g = &gpus[gpu];
    hipDeviceProp_t properties;
    hipError_t status = hipSetDevice(gpu);

    if (status == hipSuccess)
        status = hipFree(NULL); /* makes the context */
    if (status == hipSuccess)
        status = pool_keep(gpu);
    if (status == hipSuccess)
        status = hipGetDeviceProperties(&properties, gpu);
    for (uint32_t i = 0; i < GPU_LANES && status == hipSuccess; i++)
        status = hipStreamCreateWithFlags(&g->run[i], hipStreamNonBlocking);
    if (status == hipSuccess)
        status = hipStreamCreateWithFlags(&g->side, hipStreamNonBlocking);
    if (status == hipSuccess)
        status = hipStreamCreateWithFlags(&g->in, hipStreamNonBlocking);
    if (status == hipSuccess)
        status = rules_open(g);
    if (status == hipSuccess)
        status = reads_open(g);
    if (status == hipSuccess)
        status = hipEventCreateWithFlags(&g->moved, hipEventDisableTiming);
    if (status == hipSuccess)
        status = hipEventCreateWithFlags(&g->copied, hipEventDisableTiming);
    if (status == hipSuccess)
        status = hipHostMalloc(&g->clock_words, CLOCK_READERS * sizeof(struct clock_words),
                               hipHostMallocMapped | hipHostMallocPortable);
    if (status != hipSuccess)
        return gpu_error(e, gpu, "making a context", status);
    g->multiprocessors = (uint32_t)properties.multiProcessorCount;
    g->follows = GPU_FOLLOWS(properties);
#if !defined(__CUDACC__)
    g->data_path = properties.hdpMemFlushCntl;
#endif
    g->open = true;
    return gpu_clock_read(gpu, &g->opened_clock, &g->opened_ns, e);
}

static int plugin_open(uint32_t mask, bool ipc, struct error *e)
{
    int count = plugin_count(e), status = 0;
    uint32_t opened = 0;

    if (count < 0)
        return count;
    gpus_share_by_ipc = ipc;
    for (int g = 0; g < GPU_MAX_GPUS && status == 0; g++) {
        if (!(mask & 1u << g) || gpus[g].open)
            continue;
        if (g >= count)
            return error_set(e, -ENOENT, "%s GPU %d: allowed are 0 to %d", GPU_KIND, g, count - 1);
        status = gpu_open(g, e);
        opened |= 1u << g;
    }
    return status == 0 && opened ? memory_open(opened, e) : status;
}

static void plugin_close(void)
{
    for (int g = 0; g < GPU_MAX_GPUS; g++) {
        if (!gpus[g].open || hipSetDevice(g) != hipSuccess)
            continue;
        for (uint32_t i = 0; i < GPU_LANES; i++) {
            (void)hipStreamSynchronize(gpus[g].run[i]);
            (void)hipStreamDestroy(gpus[g].run[i]);
        }
        (void)hipStreamDestroy(gpus[g].side);
        (void)hipStreamDestroy(gpus[g].in);
        rules_close(&gpus[g]);
        (void)hipStreamDestroy(gpus[g].reads);
        (void)hipHostFree(gpus[g].read_room);
        (void)hipEventDestroy(gpus[g].moved);
        (void)hipEventDestroy(gpus[g].copied);
        (void)hipHostFree(gpus[g].clock_words);
        gpus[g].open = false;
    }
}

static int plugin_health(int gpu, struct error *e)
{
    hipError_t status = hipStreamQuery(gpus[gpu].run[0]);

    return status == hipSuccess || status == hipErrorNotReady ? 0 : gpu_error(e, gpu, "its context is lost", status);
}

static const struct gpu_plugin plugin = {
    GPU_PLUGIN_ABI, GPU_KIND,      plugin_count,      plugin_describe, plugin_open,   plugin_close,
    memory_alloc,   memory_free,   memory_copy,       memory_write,    host_register, host_unregister,
    launch_make,    launch_free,   launch_numbers,    launch_start,    word_store,    memory_share,
    plugin_health,  launch_times,  launch_workgroups, host_alloc,      host_free,     copy_in,
    copies_await,   memory_export, writes_flush,      rule_start,      words_look,    records_clock,
    records_read,   compiler,      code_compile,      code_load,       code_free,     launch_code,
};

extern "C" __attribute__((visibility("default"))) const struct gpu_plugin *gpu_plugin(void)
{
    /* Load all kernels with the context (CUDA only; HIP does so anyway). Loading a kernel at its first launch may wait for the
     * GPU, whose queue may be blocked by a client's stream. */
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    /* Enough hardware channels that the two queues of a GPU share neither a channel nor the unit of the GPU that reads it
     * (daemon/worker/device/gpu/lanes.h). Under MPS the default is 2; with 2 or 3 both queues synchronize equally slowly. A GPU
     * has about 120 channels for all processes, and each process takes as many as it may, so 32 would leave room for three
     * workers. All this was measured on an H200. */
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "5", 0);
    return &plugin;
}
