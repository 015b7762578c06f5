/* SPDX-License-Identifier: MIT
 *
 * triggers.h - how kernels of operators over several nodes send. Part of execute.h.
 *
 * Data for a rank on another node is stored into that rank's bounce buffer, which is host memory of this node. The kernel then
 * pushes a trigger into its GPU's FIFO, and the proxy, a CPU thread, sends the data (daemon/worker/nodes/triggers.c). A flag
 * for such a rank is a trigger, too, which follows those of the slices of its group.
 *
 * Memory order, where it is more than execute.h's:
 * - A slice and its trigger. All threads have stored; __syncthreads(); one thread: fence (system), then the trigger's two words,
 *   by relaxed stores. The proxy takes a trigger when both words are there (acquire, both), so it sees the slice, which was
 *   stored before the fence. The fence comes before both words, so neither has to wait for the other.
 * - Slices and the flag of their group. The proxy takes triggers in the order of their positions, which an atomic addition to
 *   `head` gives out. `head` is in the GPU's memory, since not every PCIe has atomics on host memory. A thread counts its group
 *   down by an acquire-release after it has taken its slice's position, so the thread that counts to zero takes the flag's
 *   position after all slices of the group. All are on one GPU, so GPU scope is enough.
 * - A full FIFO. As in fifo.h, a producer checks for room before it takes a position, with room enough for all producers at
 *   once. It first reads a copy of the tail in the GPU's memory. The copy may be older than the tail, so slots that it shows
 *   free are free. If it shows too little room, the producer reads the tail across the bus (acquire, system) and stores it as
 *   the new copy after a fence. Producers load the copy with acquire. So stores into a slot come after the proxy's accesses to
 *   it.
 *
 * A producer that waits for room waits for the proxy and the network, which wait for no kernel (daemon/net/proxy.h). It checks
 * the failure epoch meanwhile.
 *
 * Such a kernel waits for no other node. It runs only some of the phases (struct gpu_nodes). The worker launches the next
 * phases when the flags that other nodes raise for them have come. So a running kernel never blocks the GPU for another node,
 * and the nodes need no common order in which they start operators of several communicators (daemon/worker/device/gpu/steps.c).
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

/* One thread, after a fence (system): push a trigger. Returns false, without a push, when must_leave() says that the operator
 * must end. */
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
