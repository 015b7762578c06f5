/* SPDX-License-Identifier: MIT
 *
 * hopper.h - Hopper's own instructions (sm_90a): warpgroup matrix instructions, barriers in shared memory, and the copy
 * engine (TMA). Names of the PTX ISA stand in the comments.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_HOPPER_H
#define FCC_KERNELS_GPU_DEVICE_HOPPER_H

#include "kernels/gpu/device/tiles/waits_tell.h"
#include "kernels/gpu/platform.h"

/* A matrix for wgmma: where it begins in shared memory, and the two offsets, in bytes; 128-byte swizzle. */
__host__ __device__ __forceinline__ uint64_t gpu_wgmma_matrix(uint32_t address, uint32_t leading, uint32_t stride)
{
    return (uint64_t)(address & 0x3ffff) >> 4 | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 |
           (uint64_t)1 << 62;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Order this thread's accesses to shared memory before those of the matrix units and the copy engine after the next barrier. */
GPU_DEVICE void gpu_fence_for_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Order this thread's accesses to any memory, and what it has acquired, before those of the copy engine that it starts later. */
GPU_DEVICE void gpu_fence_proxies()
{
    asm volatile("fence.proxy.async;" ::: "memory");
}

/* ---- matrix instructions (wgmma), by all 128 threads of a warpgroup ---- */

GPU_DEVICE void gpu_wgmma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

GPU_DEVICE void gpu_wgmma_end_group()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int newest> GPU_DEVICE void gpu_wgmma_await_all_but()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(newest) : "memory");
}

/* A compiler barrier for the sums: the compiler does not know that they change until the matrix instructions have been
 * awaited. */
template <int N> GPU_DEVICE void gpu_wgmma_pin(float (&sums)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(sums[i])::"memory");
}

#define GPU_SUMS_8(i)                                                                                                          \
    "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), "+f"(sums[i + 5]),              \
        "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define GPU_SUMS_32(i) GPU_SUMS_8(i), GPU_SUMS_8(i + 8), GPU_SUMS_8(i + 16), GPU_SUMS_8(i + 24)
#define GPU_PLACES_0                                                                                                           \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                                   \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GPU_PLACES_32                                                                                                          \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                                         \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define GPU_PLACES_64                                                                                                          \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                                         \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define GPU_PLACES_96                                                                                                          \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "                             \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/* sums (+)= A . B for 16 k; A [64][16] K-major, B [16][n] N-major (b_order 1) or K-major (0). Without `add` the sums are 0
 * before. */
#define GPU_WGMMA(n, type, b_order, places, a_place, b_place, add_place, ...)                                                  \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_place ", 0;\n"                                                    \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" places "}, " a_place ", " b_place         \
                 ", add, 1, 1, 0, " b_order ";\n}"                                                                             \
                 : __VA_ARGS__                                                                                                 \
                 : "l"(a), "l"(b), "r"((uint32_t)add))
#define GPU_WGMMA_256(type)                                                                                                    \
    GPU_WGMMA("256", type, "1", GPU_PLACES_0 ", " GPU_PLACES_32 ", " GPU_PLACES_64 ", " GPU_PLACES_96, "%128", "%129", "%130", \
              GPU_SUMS_32(0), GPU_SUMS_32(32), GPU_SUMS_32(64), GPU_SUMS_32(96))
#define GPU_WGMMA_192(type)                                                                                                    \
    GPU_WGMMA("192", type, "1", GPU_PLACES_0 ", " GPU_PLACES_32 ", " GPU_PLACES_64, "%96", "%97", "%98", GPU_SUMS_32(0),       \
              GPU_SUMS_32(32), GPU_SUMS_32(64))
#define GPU_WGMMA_128(type)                                                                                                    \
    GPU_WGMMA("128", type, "1", GPU_PLACES_0 ", " GPU_PLACES_32, "%64", "%65", "%66", GPU_SUMS_32(0), GPU_SUMS_32(32))
#define GPU_WGMMA_64(type) GPU_WGMMA("64", type, "1", GPU_PLACES_0, "%32", "%33", "%34", GPU_SUMS_32(0))

#define GPU_WGMMA_ADD(n)                                                                                                       \
    GPU_DEVICE void gpu_wgmma_add(float(&sums)[n / 2], uint64_t a, uint64_t b, bool add, gpu_f16)                              \
    {                                                                                                                          \
        GPU_WGMMA_##n("f16");                                                                                                  \
    }                                                                                                                          \
    GPU_DEVICE void gpu_wgmma_add(float(&sums)[n / 2], uint64_t a, uint64_t b, bool add, gpu_bf16)                             \
    {                                                                                                                          \
        GPU_WGMMA_##n("bf16");                                                                                                 \
    }
GPU_WGMMA_ADD(256)
GPU_WGMMA_ADD(192)
GPU_WGMMA_ADD(128)
GPU_WGMMA_ADD(64)

/* As GPU_WGMMA_64 with B K-major: both matrices as they lie in memory where a row is a vector. 8, 16, 32, 64 or 128 columns. */
#define GPU_WGMMA_ROWS_64(type) GPU_WGMMA("64", type, "0", GPU_PLACES_0, "%32", "%33", "%34", GPU_SUMS_32(0))
#define GPU_WGMMA_ROWS_128(type)                                                                                               \
    GPU_WGMMA("128", type, "0", GPU_PLACES_0 ", " GPU_PLACES_32, "%64", "%65", "%66", GPU_SUMS_32(0), GPU_SUMS_32(32))
#define GPU_WGMMA_ROWS_32(type)                                                                                                \
    GPU_WGMMA("32", type, "0", "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15", "%16", "%17", "%18",    \
              GPU_SUMS_8(0), GPU_SUMS_8(8))
#define GPU_WGMMA_ROWS_16(type) GPU_WGMMA("16", type, "0", "%0, %1, %2, %3, %4, %5, %6, %7", "%8", "%9", "%10", GPU_SUMS_8(0))
#define GPU_WGMMA_ROWS_8(type)                                                                                                 \
    GPU_WGMMA("8", type, "0", "%0, %1, %2, %3", "%4", "%5", "%6", "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]))
#define GPU_WGMMA_ROWS(n)                                                                                                      \
    GPU_DEVICE void gpu_wgmma_add_rows(float(&sums)[n / 2], uint64_t a, uint64_t b, bool add, gpu_f16)                         \
    {                                                                                                                          \
        GPU_WGMMA_ROWS_##n("f16");                                                                                             \
    }                                                                                                                          \
    GPU_DEVICE void gpu_wgmma_add_rows(float(&sums)[n / 2], uint64_t a, uint64_t b, bool add, gpu_bf16)                        \
    {                                                                                                                          \
        GPU_WGMMA_ROWS_##n("bf16");                                                                                            \
    }
GPU_WGMMA_ROWS(8)
GPU_WGMMA_ROWS(16)
GPU_WGMMA_ROWS(32)
GPU_WGMMA_ROWS(64)
GPU_WGMMA_ROWS(128)

/* Two sums as one word, the first in the low half. */
GPU_DEVICE uint32_t gpu_wgmma_pair(float low, float high, gpu_f16)
{
    __half2 pair = __floats2half2_rn(low, high);
    uint32_t word;

    memcpy(&word, &pair, sizeof(word));
    return word;
}

GPU_DEVICE uint32_t gpu_wgmma_pair(float low, float high, gpu_bf16)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t word;

    memcpy(&word, &pair, sizeof(word));
    return word;
}

/* ---- registers ---- */

/* All threads of a warpgroup: raise the number of registers of each thread to N, a multiple of 8 (setmaxnreg.inc). Waits until
 * others have given back enough. Between two changes there must be a barrier of the whole warpgroup. */
template <int N> GPU_DEVICE void gpu_registers_more()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* All threads of a warpgroup: lower the number of registers of each thread to N (setmaxnreg.dec). */
template <int N> GPU_DEVICE void gpu_registers_fewer()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- barriers in shared memory (mbarrier): a phase ends after a number of arrivals and of bytes copied ---- */

GPU_DEVICE uint32_t gpu_shared_address(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}

/* Initialise a barrier. One thread calls this, then gpu_barriers_made(); a barrier of the workgroup follows. */
GPU_DEVICE void gpu_barrier_make(uint64_t *barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(gpu_shared_address(barrier)), "r"(arrivals) : "memory");
}

GPU_DEVICE void gpu_barriers_made()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    gpu_fence_for_async();
}

/* Releases what this thread did before. */
GPU_DEVICE void gpu_barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(gpu_shared_address(barrier)) : "memory");
}

GPU_DEVICE void gpu_barrier_arrive_expecting(uint64_t *barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(gpu_shared_address(barrier)), "r"(bytes)
                 : "memory");
}

#define GPU_BARRIER_ARRIVE_AT(how)                                                                                             \
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"                                              \
                 "mbarrier.arrive" how ".shared::cluster.b64 _, [there];\n}" ::"r"(gpu_shared_address(barrier)),               \
                 "r"(rank)                                                                                                     \
                 : "memory")

/* Arrive at the barrier at the same address in workgroup `rank` of the cluster, which may be another one. That workgroup may
 * then read what this thread has stored there. Costs a fence of the GPU's memory. */
GPU_DEVICE void gpu_barrier_arrive_at(uint64_t *barrier, uint32_t rank)
{
    GPU_BARRIER_ARRIVE_AT(".release.cluster");
}

/* As gpu_barrier_arrive_at(), for a thread that has only read, and tells those who will overwrite the data. Does not wait
 * for the thread's stores. */
GPU_DEVICE void gpu_barrier_done_at(uint64_t *barrier, uint32_t rank)
{
    GPU_BARRIER_ARRIVE_AT("");
}

/* As gpu_barrier_done_at(), and the phase also expects `bytes` from gpu_cluster_send_...(). */
GPU_DEVICE void gpu_barrier_expect_at(uint64_t *barrier, uint32_t rank, uint32_t bytes)
{
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.expect_tx.shared::cluster.b64 _, [there], %2;\n}" ::"r"(gpu_shared_address(barrier)),
                 "r"(rank), "r"(bytes)
                 : "memory");
}

/* A word in the workgroup's shared memory that says what other warps may read there. */
GPU_DEVICE void gpu_shared_release(uint32_t *at, uint32_t value)
{
    asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(gpu_shared_address(at)), "r"(value) : "memory");
}

GPU_DEVICE uint32_t gpu_shared_acquire(const uint32_t *at)
{
    uint32_t value;

    asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(gpu_shared_address(at)) : "memory");
    return value;
}

/* A barrier for THREADS threads of the workgroup, whole warps. ID is not 0, which is __syncthreads()'s. */
template <int ID, int THREADS> GPU_DEVICE void gpu_barrier_some()
{
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}

#if defined(GPU_WAITS_TELL)
#define GPU_BARRIER_AWAIT(how) gpu_barrier_await_telling(barrier, parity)
GPU_DEVICE void gpu_barrier_await_telling(uint64_t *barrier, uint32_t parity)
{
    const uint64_t begin = gpu_clock();
    uint32_t over = 0;

    while (!over && !tell_is_over()) {
        asm volatile("{\n.reg .pred over;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 over, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, over;\n}"
                     : "=r"(over)
                     : "r"(gpu_shared_address(barrier)), "r"(parity)
                     : "memory");
        if (!over && threadIdx.x % 32 == 0 && gpu_clock() - begin > TELL_BARRIER_NS)
            tell_note(gpu_shared_address(barrier), 0, *(volatile uint64_t *)barrier, parity);
    }
}
#else
#define GPU_BARRIER_AWAIT(how)                                                                                                 \
    asm volatile("{\n.reg .pred over;\nlook:\n"                                                                                \
                 "mbarrier.try_wait.parity" how ".shared::cta.b64 over, [%0], %1;\n"                                           \
                 "@!over bra look;\n}" ::"r"(gpu_shared_address(barrier)),                                                     \
                 "r"(parity)                                                                                                   \
                 : "memory")

#endif

/* Wait until the phase of this parity is over. Acquires what the arriving threads did before, also in other workgroups of the
 * cluster. */
GPU_DEVICE void gpu_barrier_await_cluster(uint64_t *barrier, uint32_t parity)
{
    GPU_BARRIER_AWAIT(".acquire.cluster");
}

/* As gpu_barrier_await_cluster(), but acquires only what threads of this workgroup did. */
GPU_DEVICE void gpu_barrier_await(uint64_t *barrier, uint32_t parity)
{
    GPU_BARRIER_AWAIT("");
}

/* Is the phase of this parity over? Does not wait. */
GPU_DEVICE bool gpu_barrier_over(uint64_t *barrier, uint32_t parity)
{
    uint32_t over;

    asm volatile("{\n.reg .pred over;\nmbarrier.test_wait.parity.shared::cta.b64 over, [%1], %2;\nselp.u32 %0, 1, 0, over;\n}"
                 : "=r"(over)
                 : "r"(gpu_shared_address(barrier)), "r"(parity)
                 : "memory");
    return over != 0;
}

/* ---- clusters: workgroups that see each other's shared memory ---- */

GPU_DEVICE uint32_t gpu_cluster_rank()
{
    uint32_t rank;

    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* A barrier for all threads of all workgroups of the cluster. */
GPU_DEVICE void gpu_cluster_barrier()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* A barrier of the cluster that orders no stores, so it does not wait for them. */
GPU_DEVICE void gpu_cluster_meet()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Store into the shared memory of workgroup `rank` of the cluster, at the address of `at`. */
GPU_DEVICE void gpu_cluster_store(uint64_t *at, uint32_t rank, uint64_t value)
{
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "st.shared::cluster.u64 [there], %2;\n"
                 "}" ::"r"(gpu_shared_address(at)),
                 "r"(rank), "l"(value)
                 : "memory");
}

/* The address of `at` in workgroup `rank` of the cluster, for gpu_cluster_send_...(). */
GPU_DEVICE uint32_t gpu_cluster_address(const void *at, uint32_t rank)
{
    uint32_t there;

    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(gpu_shared_address(at)), "r"(rank));
    return there;
}

/* Send two words. When they are there, 16 bytes are counted at the barrier `full`, and a thread that awaits it as for the
 * cluster sees the words. No thread has to arrive or release. `there` and `full` are gpu_cluster_address()es in the same
 * workgroup. */
GPU_DEVICE void gpu_cluster_send_words(uint32_t there, uint64_t first, uint64_t second, uint32_t full)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%0], {%1, %2}, [%3];" ::"r"(there),
                 "l"(first), "l"(second), "r"(full)
                 : "memory");
}

/* Send four numbers in the same way. */
GPU_DEVICE void gpu_cluster_send_four(uint32_t there, float a, float b, float c, float d, uint32_t full)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there),
                 "f"(a), "f"(b), "f"(c), "f"(d), "r"(full)
                 : "memory");
}

/* ---- the copy engine (cp.async.bulk) ---- */

/* Prefetch the description (TMA descriptor) of a matrix, which lies in the kernel's arguments. */
GPU_DEVICE void gpu_map_prefetch(const void *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Copy a box of a matrix into shared memory; its bytes are counted at `barrier`. x counts elements of a row. */
GPU_DEVICE void gpu_box_load(void *to, const void *map, int32_t x, int32_t y, uint64_t *barrier)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            gpu_shared_address(to)),
        "l"(map), "r"(x), "r"(y), "r"(gpu_shared_address(barrier))
        : "memory");
}

/* The cache policy for data that is read once (evict first). */
GPU_DEVICE uint64_t gpu_policy_once()
{
    uint64_t policy;

    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* As gpu_box_load(), with a cache policy. */
GPU_DEVICE void gpu_box_load_as(uint64_t policy, void *to, const void *map, int32_t x, int32_t y, uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(gpu_shared_address(to)),
                 "l"(map), "r"(x), "r"(y), "r"(gpu_shared_address(barrier)), "l"(policy)
                 : "memory");
}

/* Copy contiguous bytes into shared memory. Their number and both addresses are multiples of 16. */
GPU_DEVICE void gpu_bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(gpu_shared_address(to)),
        "l"(from), "r"(bytes), "r"(gpu_shared_address(barrier))
        : "memory");
}

GPU_DEVICE void gpu_bulk_load_as(uint64_t policy, void *to, const void *from, uint32_t bytes, uint64_t *barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
            gpu_shared_address(to)),
        "l"(from), "r"(bytes), "r"(gpu_shared_address(barrier)), "l"(policy)
        : "memory");
}

/* Prefetch a box into the L2. */
GPU_DEVICE void gpu_box_prefetch(const void *map, int32_t x, int32_t y)
{
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(map), "r"(x), "r"(y) : "memory");
}

/* As gpu_box_load(), into both workgroups of a cluster at the same address (multicast); the bytes are counted at each one's
 * barrier. */
GPU_DEVICE void gpu_box_load_both(void *to, const void *map, int32_t x, int32_t y, uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(gpu_shared_address(to)),
                 "l"(map), "r"(x), "r"(y), "r"(gpu_shared_address(barrier)), "h"((uint16_t)3)
                 : "memory");
}

/* Copy from shared memory, as part of this thread's next group. `bytes` and both addresses are multiples of 16. */
GPU_DEVICE void gpu_bulk_store(void *to, const void *from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(gpu_shared_address(from)),
                 "r"(bytes)
                 : "memory");
}

/* Store a box of a matrix (driver_matrix_map()) from shared memory, as far as it lies in it, likewise. */
GPU_DEVICE void gpu_box_store(const void *map, int32_t x, int32_t y, const void *from)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x), "r"(y),
                 "r"(gpu_shared_address(from))
                 : "memory");
}

GPU_DEVICE void gpu_bulk_end_group()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Wait until all of this thread's groups have been read from shared memory. */
GPU_DEVICE void gpu_bulk_await_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* The same for all but the newest groups. */
template <int NEWEST> GPU_DEVICE void gpu_bulk_await_read_but()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(NEWEST) : "memory");
}

/* As gpu_bulk_await(), for all but the newest groups. */
template <int NEWEST> GPU_DEVICE void gpu_bulk_await_but()
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(NEWEST) : "memory");
}

/* Wait until all of this thread's groups have been written. They are visible to this thread, as if it had stored them
 * itself. */
GPU_DEVICE void gpu_bulk_await()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#endif
#endif
