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

static hipError_t rows_add(const struct gpu_rule_run *run, hipStream_t stream)
{
    struct rule_rows r = {(char *)run->to, (const char *)run->from, run->rows,
                          run->row_bytes,  run->from_stride,        run->to_stride};
    const bool packets = (run->from | run->to | run->row_bytes | run->from_stride | run->to_stride) % sizeof(uint4) == 0;
    const void *kernel = run->dtype == FCC_F32   ? add_kernel<float>(packets)
                         : run->dtype == FCC_F16 ? add_kernel<gpu_f16>(packets)
                                                 : add_kernel<gpu_bf16>(packets);
    void *arguments[] = {&r};

    return hipLaunchKernel(kernel, dim3(ADD_WORKGROUPS), dim3(ADD_THREADS), arguments, 0, stream);
}

/* ---- stores ---- */

static hipError_t rows_store(const struct gpu_rule_run *run, hipStream_t stream)
{
    const uint64_t pitch_most = 1u << 30; /* less than the largest pitch of both runtimes */
    uint64_t rows = run->rows, bytes = run->row_bytes;
    hipError_t status = hipSuccess;

    if (rows > 1 && run->from_stride == bytes && run->to_stride == bytes) {
        bytes *= rows;
        rows = 1;
    }
    if (rows > 1 && run->from_stride <= pitch_most && run->to_stride <= pitch_most)
        return hipMemcpy2DAsync((void *)run->to, run->to_stride, (const void *)run->from, run->from_stride, bytes, rows,
                                hipMemcpyDeviceToDevice, stream);
    for (uint64_t r = 0; r < rows && status == hipSuccess; r++)
        status = hipMemcpyAsync((void *)(run->to + r * run->to_stride), (const void *)(run->from + r * run->from_stride), bytes,
                                hipMemcpyDeviceToDevice, stream);
    return status;
}

int rule_start(const struct gpu_rule_run *run, struct error *e)
{
    const bool adds = run->action == FCC_RULE_ADD;
    hipStream_t stream = gpus[run->gpu].rules[adds ? GPU_RULE_QUEUES - 1 : run->lane % (GPU_RULE_QUEUES - 1)];
    hipError_t status = hipSetDevice(run->gpu);

    if (status == hipSuccess && run->rows)
        status = adds ? rows_add(run, stream) : rows_store(run, stream);
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
