/* SPDX-License-Identifier: MIT
 *
 * platform.h - the one place where GPUs differ. Sources are written in HIP's spelling; under nvcc the names become CUDA's.
 * What differs by chip (fences, clocks, the width of a wave) has a name here that the operators use; matrix instructions have
 * theirs in kernels/gpu/device/matrix.h.
 */
#ifndef FCC_KERNELS_GPU_PLATFORM_H
#define FCC_KERNELS_GPU_PLATFORM_H

#include <stdint.h>

#if defined(__CUDACC_RTC__) || defined(__HIPCC_RTC__)
/* A program's step is compiled where it runs (kernels/gpu/plugin/compile.hip), where the vendor's headers need not be. */
#define GPU_RUNTIME_COMPILED 1
#if defined(__CUDACC_RTC__)
#define GPU_KIND "cuda"
#define GPU_PARAMETER const __grid_constant__
#else
#define GPU_KIND "hip"
#define GPU_PARAMETER const
#endif
struct gpu_bf16 {
    uint16_t bits;
};
struct gpu_f16 {
    uint16_t bits;
};
#elif defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define GPU_KIND "cuda"
#define GPU_PARAMETER const __grid_constant__ /* a kernel's argument that stays where the launch put it */
typedef __nv_bfloat16 gpu_bf16;
#else
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
#define GPU_KIND "hip"
#define GPU_PARAMETER const
struct gpu_bf16 {
    uint16_t bits;
};
#endif
#if !defined(GPU_RUNTIME_COMPILED)
typedef __half gpu_f16;
#endif

#define GPU_DEVICE static __device__ __forceinline__

/* ---- numbers ---- */

GPU_DEVICE float gpu_to_f32(float x)
{
    return x;
}

GPU_DEVICE float gpu_to_f32(gpu_f16 x)
{
#if defined(__CUDACC_RTC__)
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#elif defined(__HIPCC_RTC__)
    return (float)__builtin_bit_cast(_Float16, x.bits);
#else
    return __half2float(x);
#endif
}

GPU_DEVICE float gpu_to_f32(gpu_bf16 x)
{
#if defined(__CUDACC__) && !defined(GPU_RUNTIME_COMPILED)
    return __bfloat162float(x);
#else
    return __uint_as_float((uint32_t)x.bits << 16);
#endif
}

/* Rounds to the nearest, ties to even; keeps infinities and NaN. */
GPU_DEVICE void gpu_from_f32(float *out, float x)
{
    *out = x;
}

GPU_DEVICE void gpu_from_f32(gpu_f16 *out, float x)
{
#if defined(__CUDACC_RTC__)
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out->bits) : "f"(x));
#elif defined(__HIPCC_RTC__)
    out->bits = __builtin_bit_cast(uint16_t, (_Float16)x);
#else
    *out = __float2half_rn(x);
#endif
}

GPU_DEVICE void gpu_from_f32(gpu_bf16 *out, float x)
{
#if defined(__CUDACC_RTC__)
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out->bits) : "f"(x));
#elif defined(__CUDACC__)
    *out = __float2bfloat16_rn(x);
#else
    uint32_t bits = __float_as_uint(x);
    bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    out->bits = (uint16_t)(is_nan ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

/* ---- memory order ----
 * A workgroup's results are released by one of its threads: all threads store, __syncthreads() (which orders their stores
 * before what that thread does next), then gpu_fence_system() and a store of the flag. On NVIDIA a fence is cumulative: it
 * covers what the thread has observed, so also the others' stores. On AMD __syncthreads() waits for all stores of the
 * workgroup to reach the L2, and the system-scope fence writes the L2 back. */

GPU_DEVICE void gpu_fence_system()
{
#if defined(__CUDACC__)
    asm volatile("fence.acq_rel.sys;" ::: "memory"); /* __threadfence_system() is the dearer fence.sc */
#else
    __threadfence_system();
#endif
}

/* Stores and loads of a word at system scope: gpu_store_release(), gpu_store_relaxed(), gpu_load_acquire(), gpu_load_relaxed().
 * ptx, reg: the word's type and register in PTX. */
#if defined(__CUDACC__)
#define GPU_STORE(order, ORDER, type, ptx, reg)                                                                                \
    GPU_DEVICE void gpu_store_##order(type *at, type value)                                                                    \
    {                                                                                                                          \
        asm volatile("st." #order ".sys.global." ptx " [%0], %1;" ::"l"(at), reg(value) : "memory");                           \
    }
#define GPU_LOAD(order, ORDER, type, ptx, reg)                                                                                 \
    GPU_DEVICE type gpu_load_##order(const type *at)                                                                           \
    {                                                                                                                          \
        type value;                                                                                                            \
        asm volatile("ld." #order ".sys.global." ptx " %0, [%1];" : "=" reg(value) : "l"(at) : "memory");                      \
        return value;                                                                                                          \
    }
#else
#define GPU_STORE(order, ORDER, type, ptx, reg)                                                                                \
    GPU_DEVICE void gpu_store_##order(type *at, type value)                                                                    \
    {                                                                                                                          \
        __hip_atomic_store(at, value, __ATOMIC_##ORDER, __HIP_MEMORY_SCOPE_SYSTEM);                                            \
    }
#define GPU_LOAD(order, ORDER, type, ptx, reg)                                                                                 \
    GPU_DEVICE type gpu_load_##order(const type *at)                                                                           \
    {                                                                                                                          \
        return __hip_atomic_load(at, __ATOMIC_##ORDER, __HIP_MEMORY_SCOPE_SYSTEM);                                             \
    }
#endif
GPU_STORE(release, RELEASE, uint64_t, "u64", "l")
GPU_STORE(release, RELEASE, uint32_t, "u32", "r")
GPU_STORE(relaxed, RELAXED, uint64_t, "u64", "l")
GPU_STORE(relaxed, RELAXED, uint32_t, "u32", "r")
GPU_LOAD(acquire, ACQUIRE, uint64_t, "u64", "l")
GPU_LOAD(relaxed, RELAXED, uint64_t, "u64", "l")
GPU_LOAD(relaxed, RELAXED, int32_t, "s32", "r")
#undef GPU_STORE
#undef GPU_LOAD

/* Stores two words side by side, aligned to 16 bytes, relaxed. Each word is whole; which of them is seen first is not said. */
GPU_DEVICE void gpu_store_relaxed_pair(uint64_t *at, uint64_t first, uint64_t second)
{
#if defined(__CUDACC__)
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(first), "l"(second) : "memory");
#else
    gpu_store_relaxed(at, first);
    gpu_store_relaxed(at + 1, second);
#endif
}

/* Sixteen bytes, aligned: the last four, a stamp, are never seen without the twelve before them. */
struct gpu_stamped_twelve {
    uint32_t data[3], stamp;
};

GPU_DEVICE void gpu_twelve_store(struct gpu_stamped_twelve *at, const uint32_t (&data)[3], uint32_t stamp)
{
    const uint64_t low = (uint64_t)data[1] << 32 | data[0], high = (uint64_t)stamp << 32 | data[2];

#if defined(__CUDACC__)
    asm volatile("{\n.reg .b128 all;\nmov.b128 all, {%1, %2};\nst.relaxed.sys.global.b128 [%0], all;\n}" ::"l"(at), "l"(low),
                 "l"(high)
                 : "memory");
#else
    gpu_store_relaxed((uint64_t *)at, low);
    gpu_store_release((uint64_t *)at + 1, high);
#endif
}

/* If `wanted`; otherwise *out is left as it is. */
GPU_DEVICE void gpu_twelve_load(bool wanted, const struct gpu_stamped_twelve *at, struct gpu_stamped_twelve *out)
{
#if defined(__CUDACC__)
    uint64_t low = (uint64_t)out->data[1] << 32 | out->data[0], high = (uint64_t)out->stamp << 32 | out->data[2];
    asm volatile("{\n.reg .pred wanted;\n.reg .b128 all;\nsetp.ne.u32 wanted, %3, 0;\nmov.b128 all, {%0, %1};\n"
                 "@wanted ld.relaxed.sys.global.b128 all, [%2];\nmov.b128 {%0, %1}, all;\n}"
                 : "+l"(low), "+l"(high)
                 : "l"(at), "r"((uint32_t)wanted)
                 : "memory");
#else
    if (!wanted)
        return;
    const uint64_t high = gpu_load_acquire((const uint64_t *)at + 1), low = gpu_load_relaxed((const uint64_t *)at);
#endif
    *out = {{(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high}, (uint32_t)(high >> 32)};
}

/* Raises a word, to which others may store and raise, too, on any GPU: relaxed. */
GPU_DEVICE void gpu_raise(uint64_t *at, uint64_t value)
{
    (void)atomicMax_system((unsigned long long *)at, (unsigned long long)value);
}

/* Two words side by side, aligned to 16 bytes, relaxed. Each word is whole; which of them is newer is not said. Not `wanted`:
 * *first and *second stay as they are. No branch, so that the compiler can issue several such loads before it waits for one. */
GPU_DEVICE void gpu_load_relaxed_pair(bool wanted, const uint64_t *at, uint64_t *first, uint64_t *second)
{
#if defined(__CUDACC__)
    asm volatile("{\n.reg .pred wanted;\nsetp.ne.u32 wanted, %3, 0;\n"
                 "@wanted ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];\n}"
                 : "+l"(*first), "+l"(*second)
                 : "l"(at), "r"((uint32_t)wanted)
                 : "memory");
#else
    *first = wanted ? gpu_load_relaxed(at) : *first;
    *second = wanted ? gpu_load_relaxed(at + 1) : *second;
#endif
}

/* Adds and returns what was there. Releases what the thread has stored or seen, and acquires what those released who added
 * before it, all on one GPU: one fence where a fence, an atomic and another fence would be three. Who then releases something
 * to others than this GPU, by a fence (system), does so for all of them. */
GPU_DEVICE uint32_t gpu_add_acq_rel(uint32_t *at, uint32_t value)
{
#if defined(__CUDACC__)
    uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(value) : "memory");
    return before;
#else
    return __hip_atomic_fetch_add(at, value, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
#endif
}

/* ---- from device memory to a workgroup's ---- */

/* Sixteen bytes, aligned, which nothing writes meanwhile. The thread goes on and needs no register for them; they are there
 * after its gpu_copies_await(). */
GPU_DEVICE void gpu_copy_16(void *to, const void *from)
{
#if defined(__CUDACC__)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
#else
    *(uint4 *)to = *(const uint4 *)from;
#endif
}

/* A hint that this will be read soon. */
GPU_DEVICE void gpu_prefetch(const void *at)
{
#if defined(__CUDACC__)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#else
    (void)at;
#endif
}

/* Prefetches `bytes` bytes; their number and `at` are multiples of 16. */
GPU_DEVICE void gpu_prefetch_bytes(const void *at, uint32_t bytes)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at), "r"(bytes) : "memory");
#else
    for (uint32_t i = 0; i < bytes; i += 128)
        gpu_prefetch((const char *)at + i);
#endif
}

GPU_DEVICE void gpu_copies_await()
{
#if defined(__CUDACC__)
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/* ---- kernels that follow each other ---- */

/* The first thing in every kernel, by all of its threads: the one before it on the stream has ended, and its stores are seen. A
 * kernel's workgroups are brought onto the GPU when those of the one before have left, which is sooner (gpu_kernel_launch()). */
GPU_DEVICE void gpu_follow()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* A barrier of a workgroup's first threads, in whole waves; on AMD of all, so that there no other thread may be at work. */
GPU_DEVICE void gpu_sync_first(uint32_t threads)
{
#if defined(__CUDACC__)
    asm volatile("barrier.sync 1, %0;" ::"r"(threads) : "memory");
#else
    (void)threads;
    __syncthreads();
#endif
}

/* The workgroup has done its work, and waits for nothing but its own GPU: what comes next on the stream may be brought onto the GPU beside
 * what is left of this kernel, as soon as all workgroups have said so. It still waits for this one's end (gpu_follow()). */
GPU_DEVICE void gpu_let_follow()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- the GPU's clock: runs evenly, the same for all its multiprocessors; kernels/gpu/plugin/plugin.hip relates it to CLOCK_MONOTONIC ---- */

#if defined(__CUDACC__)
#define GPU_CLOCK_IS_NS true
#else
#define GPU_CLOCK_IS_NS false
#endif

GPU_DEVICE uint64_t gpu_clock()
{
#if defined(__CUDACC__)
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
#else
    return __builtin_amdgcn_s_memrealtime();
#endif
}

/* ---- waves ---- */

#define GPU_WAVE_MOST 64
#if defined(__CUDACC__)
#define GPU_WAVE 32
#else
#define GPU_WAVE __AMDGCN_WAVEFRONT_SIZE /* 64 on gfx9, 32 on gfx10 */
#endif

/* The sum over a wave, in every lane; the order of the additions is the same every run. */
GPU_DEVICE float gpu_wave_sum(float x)
{
    for (int step = GPU_WAVE / 2; step > 0; step /= 2)
#if defined(__CUDACC__)
        x += __shfl_xor_sync(0xffffffffu, x, step);
#else
        x += __shfl_xor(x, step);
#endif
    return x;
}

/* `value` of a lane of this lane's team: `team` lanes, a power of two, of which the first one's number is a multiple of it. */
template <typename T> GPU_DEVICE T gpu_team_get(T value, uint32_t lane, uint32_t team)
{
#if defined(__CUDACC__)
    return __shfl_sync(0xffffffffu, value, (int)lane, (int)team);
#else
    return __shfl(value, (int)lane, (int)team);
#endif
}

/* A barrier of the wave's lanes, which orders their accesses to memory among them. */
GPU_DEVICE void gpu_wave_sync()
{
#if defined(__CUDACC__)
    __syncwarp();
#else
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    __builtin_amdgcn_wave_barrier();
#endif
}

/* One bit for each lane of the wave. */
GPU_DEVICE uint64_t gpu_wave_vote(bool yes)
{
#if defined(__CUDACC__)
    return __ballot_sync(0xffffffffu, yes);
#else
    return __ballot(yes);
#endif
}

/* The first lane of the own team that has its bit in a vote, or `team` or more. */
GPU_DEVICE uint32_t gpu_team_first(uint64_t vote, uint32_t team)
{
    vote >>= threadIdx.x % GPU_WAVE & ~(team - 1);
    return vote ? (uint32_t)__ffsll((unsigned long long)vote) - 1 : GPU_WAVE;
}

#endif
