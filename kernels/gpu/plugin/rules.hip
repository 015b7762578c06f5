/* SPDX-License-Identifier: MIT
 *
 * rules.hip - rules of trackers on GPUs (daemon/worker/track/): what moves rows, for the worker; and the kernels of one thread by which streams
 * of clients count and wait.
 *
 * Memory order. A client's kernel that counts follows what its stream has been given, and fences (system) before it adds. The worker's thread loads
 * the count (acquire), then enqueues the rows here. A stream's store of a word comes behind a fence (system) of what the stream did
 * before: so rows, signal and `done` follow each other. Who has seen `done` (the worker's thread) stores the rule's `done` (release), which the
 * client's kernel loads (acquire).
 *
 * Queues. Nothing in these streams waits for another stream, so none of them can be blocked for long. They have another priority than the
 * streams that operators run on, which clients may block: the driver gives streams of one priority the same few hardware queues, where a
 * blocked stream would block its neighbours.
 */
#include <stdlib.h>

#include "kernels/gpu/platform.h"
#include "kernels/gpu/plugin/inside.h"

#define ADD_WORKGROUPS 16
#define ADD_THREADS 512
#define ADD_PACKETS 4 /* of 16 bytes, that a thread has under way */

/* ---- the client's kernels ---- */

static __global__ void count_kernel(uint64_t *count, uint64_t n)
{
    gpu_fence_system();
    (void)atomicAdd_system((unsigned long long *)count, (unsigned long long)n);
}

/* A count of the CPU's may come while this looks: then it waits for more than it must, or for less, as if it had looked sooner or later. */
static __global__ void await_kernel(struct gpu_rule_words w)
{
    const uint64_t need = gpu_load_relaxed((const uint64_t *)w.need),
                   counted = gpu_load_acquire((const uint64_t *)w.count) + gpu_load_acquire((const uint64_t *)w.streams),
                   run = need ? counted / need : 0;

    while (gpu_load_acquire((const uint64_t *)w.done) < run)
        if (gpu_load_relaxed((const int32_t *)w.status) || gpu_load_relaxed((const int32_t *)w.ended))
            return;
}

/* ---- runs that a stream works off itself ----
 *
 * Runs of a rule follow each other in the streams' order, so one kernel at a time has its words. What is in front of the rows waits and what is behind them
 * signals; the rows are moved by what the stream is given in between. */

GPU_DEVICE bool is_over(const struct gpu_rule_words *w)
{
    return gpu_load_relaxed((const int32_t *)w->status) || gpu_load_relaxed((const int32_t *)w->ended);
}

/* False: the rule has ended, which is for good. */
GPU_DEVICE bool words_await(const struct gpu_rule_words *w, const struct gpu_rule_work *work, uint64_t run)
{
    for (int i = 0; i < FCC_RULE_AWAITS; i++) {
        const uint64_t *word = (const uint64_t *)work->awaits[i].word;
        while (word && gpu_load_acquire(word) + work->awaits[i].lag < run)
            if (is_over(w))
                return false;
    }
    return true;
}

GPU_DEVICE void run_tell(const struct gpu_rule_words *w, const struct gpu_rule_work *work, uint64_t run)
{
    if (is_over(w))
        return;
    gpu_fence_system(); /* the rows, and all that the stream has done before */
    if (work->signal)
        gpu_store_release((uint64_t *)work->signal, run);
    gpu_store_release((uint64_t *)w->ran, run);
}

/* `tells`: the run moves no rows, and ends here. */
static __global__ void begin_kernel(struct gpu_rule_words w, struct gpu_rule_work work, int tells)
{
    const uint64_t run = gpu_load_relaxed((const uint64_t *)w.ran) + 1;

    gpu_store_relaxed((uint64_t *)w.begun, run);
    if (words_await(&w, &work, run) && tells)
        run_tell(&w, &work, run);
}

static __global__ void end_kernel(struct gpu_rule_words w, struct gpu_rule_work work)
{
    run_tell(&w, &work, gpu_load_relaxed((const uint64_t *)w.ran) + 1);
}

const void *rules_kernel(void)
{
    return (const void *)count_kernel;
}

int rule_add(const struct gpu_rule_words *words, uint64_t n, void *stream, struct error *e)
{
    uint64_t *count = (uint64_t *)words->streams;
    void *arguments[] = {&count, &n};
    hipError_t status = hipLaunchKernel((const void *)count_kernel, dim3(1), dim3(1), arguments, 0, (hipStream_t)stream);

    return status == hipSuccess ? 0 : error_set(e, -EIO, "%s: counting for a rule: %s", GPU_KIND, hipGetErrorString(status));
}

int rule_await(const struct gpu_rule_words *words, void *stream, struct error *e)
{
    struct gpu_rule_words w = *words;
    void *arguments[] = {&w};
    hipError_t status = hipLaunchKernel((const void *)await_kernel, dim3(1), dim3(1), arguments, 0, (hipStream_t)stream);

    return status == hipSuccess ? 0 : error_set(e, -EIO, "%s: waiting for a rule: %s", GPU_KIND, hipGetErrorString(status));
}

/* ---- streams ---- */

hipError_t rules_open(struct gpu *g)
{
    int least = 0, greatest = 0;
    hipError_t status = hipDeviceGetStreamPriorityRange(&least, &greatest);

    for (int i = 0; i < GPU_RULE_QUEUES && status == hipSuccess; i++)
        status = hipStreamCreateWithPriority(&g->rules[i], hipStreamNonBlocking, greatest);
    return status == hipSuccess ? hipStreamCreateWithPriority(&g->looks, hipStreamNonBlocking, greatest) : status;
}

void rules_close(struct gpu *g)
{
    for (int i = 0; i < GPU_RULE_QUEUES; i++)
        (void)hipStreamDestroy(g->rules[i]);
    (void)hipStreamDestroy(g->looks);
}

/* ---- additions ---- */

struct rule_rows {
    char *to;
    const char *from;
    uint64_t rows, row_bytes, from_stride, to_stride;
};

template <typename T> GPU_DEVICE T sum_of(T a, T b)
{
    T out;

    gpu_from_f32(&out, gpu_to_f32(a) + gpu_to_f32(b));
    return out;
}

/* Packets of 16 bytes, of rows that are aligned to them. */
template <typename T> static __global__ void __launch_bounds__(ADD_THREADS) add_packets(struct rule_rows r)
{
    const uint64_t in_row = r.row_bytes / sizeof(uint4), all = in_row * r.rows, stride = (uint64_t)gridDim.x * ADD_THREADS;
    enum { N = sizeof(uint4) / sizeof(T) };

    for (uint64_t i = (uint64_t)blockIdx.x * ADD_THREADS + threadIdx.x; i < all; i += stride * ADD_PACKETS) {
        uint4 a[ADD_PACKETS], b[ADD_PACKETS];
#pragma unroll
        for (int p = 0; p < ADD_PACKETS; p++) {
            const uint64_t at = i + (uint64_t)p * stride, row = at / in_row, col = at % in_row;
            if (at < all) {
                a[p] = *(const uint4 *)(r.to + row * r.to_stride + col * sizeof(uint4));
                b[p] = *(const uint4 *)(r.from + row * r.from_stride + col * sizeof(uint4));
            }
        }
#pragma unroll
        for (int p = 0; p < ADD_PACKETS; p++) {
            const uint64_t at = i + (uint64_t)p * stride, row = at / in_row, col = at % in_row;
            T x[N], y[N];
            if (at >= all)
                continue;
            memcpy(x, &a[p], sizeof(x));
            memcpy(y, &b[p], sizeof(y));
#pragma unroll
            for (int k = 0; k < N; k++)
                x[k] = sum_of(x[k], y[k]);
            memcpy(&a[p], x, sizeof(x));
            *(uint4 *)(r.to + row * r.to_stride + col * sizeof(uint4)) = a[p];
        }
    }
}

/* Rows that lie anyhow. */
template <typename T> static __global__ void __launch_bounds__(ADD_THREADS) add_elements(struct rule_rows r)
{
    const uint64_t in_row = r.row_bytes / sizeof(T), all = in_row * r.rows;

    for (uint64_t i = (uint64_t)blockIdx.x * ADD_THREADS + threadIdx.x; i < all; i += (uint64_t)gridDim.x * ADD_THREADS) {
        T *to = (T *)(r.to + i / in_row * r.to_stride) + i % in_row;
        *to = sum_of(*to, ((const T *)(r.from + i / in_row * r.from_stride))[i % in_row]);
    }
}

template <typename T> static const void *add_kernel(bool packets)
{
    return packets ? (const void *)add_packets<T> : (const void *)add_elements<T>;
}

static hipError_t rows_add(struct rule_rows r, uint32_t dtype, hipStream_t stream)
{
    const bool packets = ((uint64_t)r.from | (uint64_t)r.to | r.row_bytes | r.from_stride | r.to_stride) % sizeof(uint4) == 0;
    const void *kernel = dtype == FCC_F32   ? add_kernel<float>(packets)
                         : dtype == FCC_F16 ? add_kernel<gpu_f16>(packets)
                                            : add_kernel<gpu_bf16>(packets);
    void *arguments[] = {&r};

    return hipLaunchKernel(kernel, dim3(ADD_WORKGROUPS), dim3(ADD_THREADS), arguments, 0, stream);
}

/* ---- stores ---- */

static hipError_t rows_store(struct rule_rows r, hipStream_t stream)
{
    const uint64_t pitch_most = 1u << 30; /* less than the largest pitch of both runtimes */
    hipError_t status = hipSuccess;

    if (r.rows > 1 && r.from_stride == r.row_bytes && r.to_stride == r.row_bytes) {
        r.row_bytes *= r.rows;
        r.rows = 1;
    }
    if (r.rows > 1 && r.from_stride <= pitch_most && r.to_stride <= pitch_most)
        return hipMemcpy2DAsync(r.to, r.to_stride, r.from, r.from_stride, r.row_bytes, r.rows, hipMemcpyDeviceToDevice, stream);
    for (uint64_t i = 0; i < r.rows && status == hipSuccess; i++)
        status =
            hipMemcpyAsync(r.to + i * r.to_stride, r.from + i * r.from_stride, r.row_bytes, hipMemcpyDeviceToDevice, stream);
    return status;
}

/* T: struct gpu_rule_run, struct gpu_rule_work. */
template <typename T> static hipError_t rows_move(const T *what, hipStream_t stream)
{
    const struct rule_rows r = {(char *)what->to, (const char *)what->from, what->rows,
                                what->row_bytes,  what->from_stride,        what->to_stride};

    return what->action == FCC_RULE_ADD ? rows_add(r, what->dtype, stream) : rows_store(r, stream);
}

int rule_run(const struct gpu_rule_words *words, const struct gpu_rule_work *work, void *stream, struct error *e)
{
    struct gpu_rule_words w = *words;
    struct gpu_rule_work what = *work;
    int tells = !work->rows;
    void *arguments[] = {&w, &what, &tells};
    hipError_t status = hipLaunchKernel((const void *)begin_kernel, dim3(1), dim3(1), arguments, 0, (hipStream_t)stream);

    if (status == hipSuccess && !tells)
        status = rows_move(work, (hipStream_t)stream);
    if (status == hipSuccess && !tells)
        status = hipLaunchKernel((const void *)end_kernel, dim3(1), dim3(1), arguments, 0, (hipStream_t)stream);
    return status == hipSuccess ? 0 : error_set(e, -EIO, "%s: a rule's run: %s", GPU_KIND, hipGetErrorString(status));
}

int rule_start(const struct gpu_rule_run *run, struct error *e)
{
    const bool adds = run->action == FCC_RULE_ADD;
    hipStream_t stream = gpus[run->gpu].rules[adds ? GPU_RULE_QUEUES - 1 : run->lane % (GPU_RULE_QUEUES - 1)];
    hipError_t status = hipSetDevice(run->gpu);

    if (status == hipSuccess && run->rows)
        status = rows_move(run, stream);
    if (status == hipSuccess && run->signal)
        status = hipStreamWriteValue64(stream, (void *)run->signal, run->run, 0);
    if (status == hipSuccess)
        status = hipStreamWriteValue64(stream, (void *)run->done, run->run, 0);
    return status == hipSuccess ? 0 : gpu_error(e, run->gpu, "a rule's run", status);
}

int words_look(int gpu, const uint64_t words[], uint32_t n, uint64_t to[], uint64_t *done, uint64_t number, struct error *e)
{
    hipError_t status = hipSetDevice(gpu);

    for (uint32_t i = 0; i < n && status == hipSuccess; i++)
        status = hipMemcpyAsync(&to[i], (const void *)words[i], sizeof(to[i]), hipMemcpyDeviceToHost, gpus[gpu].looks);
    if (status == hipSuccess)
        status = hipStreamWriteValue64(gpus[gpu].looks, done, number, 0);
    return status == hipSuccess ? 0 : gpu_error(e, gpu, "looking at words", status);
}
