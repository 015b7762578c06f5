/* SPDX-License-Identifier: MIT
 *
 * triggers.h - how kernels of operators over several nodes send. Part of execute.h.
 *
 * What such a kernel stores for a rank on another node it stores into that rank's bounce buffer: host memory here. Then it pushes a trigger
 * into its GPU's FIFO, and the proxy, a thread of the CPU, sends what was stored (daemon/worker/nodes/triggers.c). A flag for such a rank
 * is a trigger, too, and goes behind the slices of its group.
 *
 * Memory order, where it is more than execute.h's:
 * - A slice and its trigger. All threads have stored; __syncthreads(); one thread: fence (system), then the trigger's two words, by
 *   relaxed stores. The proxy takes a trigger when both words are there (acquire, both), so it sees the slice, which was stored before
 *   the fence. The fence comes before both words, so neither has to wait for the other.
 * - Slices and the flag of their group. A trigger's place is a position that an atomic addition to `head` gave, in the GPU's memory (an
 *   atomic on host memory is not one over every PCIe), and the proxy goes by positions. Who counts the group down does so by
 *   an acquire-release after it has taken its slice's position, so who counts to zero takes the flag's position after all of them. All
 *   are on one GPU, whose scope this needs.
 * - Full. As in fifo.h: a producer looks before it takes a position, so that all of them could take one. It looks at a tail that one of
 *   them has seen, which lies in the GPU's memory and is not younger than the real one, so what it finds free is free; only if
 *   that is not enough it looks across the bus. Who has seen a tail (acquire, system) stores it after a fence, who finds it there
 *   loads it with acquire: so what is stored into a slot comes after what the proxy has done with it.
 *
 * Who waits for room waits for the proxy and the link, and these wait for no kernel (daemon/net/proxy.h). It looks at the failure
 * epoch meanwhile.
 *
 * Such a kernel waits for no other node. It runs some of the phases only (struct gpu_nodes): the worker starts the next ones when the
 * flags that other nodes raise for them have come, so a kernel that runs holds nobody up, and the nodes need no common order in which
 * operators of several communicators start (daemon/worker/device/gpu/steps.c).
 */
#ifndef FCC_KERNELS_GPU_DEVICE_TRIGGERS_H
#define FCC_KERNELS_GPU_DEVICE_TRIGGERS_H

#include "kernels/gpu/abi.h"
#include "kernels/gpu/platform.h"

/* As in daemon/net/fifo.h, which has more of it. */
#define GPU_TRIGGER_PUT 0x40000000u
#define GPU_TRIGGER_FLAG 0x80000000u

GPU_DEVICE bool gpu_is_remote(const struct gpu_call &call, uint32_t rank)
{
    return call.nodes.remote >> rank & 1u;
}

/* One thread, after a fence (system). must_leave() says that the operator is to end; then false, and nothing was pushed. */
template <typename MustLeave>
GPU_DEVICE bool gpu_trigger_push(const struct gpu_call &call, uint32_t rank, uint32_t dst, uint32_t what, MustLeave must_leave)
{
    enum { LOOK_SPINS = 64 };
    const struct gpu_fifo &f = call.nodes.fifo;
    unsigned long long *head = (unsigned long long *)f.head;

    for (uint32_t spins = 1;; spins++) {
        uint64_t taken = gpu_load_relaxed((const uint64_t *)head), seen = gpu_load_acquire((const uint64_t *)head + 1);
        if ((int64_t)(taken - seen) <= (int64_t)f.room)
            break;
        uint64_t tail = gpu_load_acquire((const uint64_t *)f.tail);
        gpu_fence_system();
        (void)atomicMax(head + 1, (unsigned long long)tail);
        if (spins % LOOK_SPINS == 0 && must_leave())
            return false;
    }
    uint64_t *slot = (uint64_t *)f.slots + (atomicAdd(head, 1ull) & (f.capacity - 1)) * 2;
    gpu_store_relaxed(slot, call.nodes.number | (uint64_t)rank << 32 | (uint64_t)dst << 48);
    gpu_store_relaxed(slot + 1, what | (call.epoch & 0xffffffffu) << 32);
    return true;
}

#endif
