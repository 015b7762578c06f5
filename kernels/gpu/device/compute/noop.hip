/* SPDX-License-Identifier: MIT
 *
 * noop.hip - a barrier. Its plans do nothing; when all ranks' streams have arrived, it is done. If possible, the kernel begins when the
 * streams of its own GPU's ranks have arrived, and waits for the others itself. That is faster than waiting on the stream, and occupies one
 * wave. The kernel uses no slices and no counters. It has one workgroup, and short arguments, as long ones take longer to reach the GPU.
 */
#include "kernels/gpu/device/execute.h"
#include "kernels/gpu/device/registry.h"

#define NOOP_GATES 16
/* The words that noop's kernel waits for, and their values. The kernel stops waiting when the failure epoch at `leave` reaches `epoch`. */
struct noop_gates {
    uint64_t leave, epoch;
    uint32_t n, zero;
    uint64_t words[NOOP_GATES];
    uint32_t values[NOOP_GATES];
};
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
    gpu_tell_host(end, end.epoch, 0);
}

bool gpu_noop_fits(const struct gpu_shape *, int, const struct gpu_run[], int, struct gpu_choice *out)
{
    out->kernel = {(const void *)noop_kernel, GPU_WAVE_MOST, 0, 1, 0, 1};
    return true;
}

void *gpu_noop_params(const struct gpu_choice *, const struct gpu_call *call, const struct gpu_fixed *)
{
    static thread_local struct noop_gates gates;

    gates.n = 0;
    gates.leave = call->plans[0].flags + GPU_FLAGS * sizeof(uint64_t);
    gates.epoch = call->epoch;
    return &gates;
}

bool gpu_noop_gate(const struct gpu_choice *, void *params, const struct gpu_waits *waits)
{
    struct noop_gates *gates = (struct noop_gates *)params;
    uint32_t n = (uint32_t)(waits->count - waits->before);

    if (n > NOOP_GATES)
        return false;
    gates->n = n;
    memcpy(gates->words, waits->words + waits->before, n * sizeof(gates->words[0]));
    memcpy(gates->values, waits->values + waits->before, n * sizeof(gates->values[0]));
    return n > 0;
}
