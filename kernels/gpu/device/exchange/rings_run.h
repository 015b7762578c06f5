/* SPDX-License-Identifier: MIT
 *
 * rings_run.h - a run of a collective through rings (kernels/gpu/rings.h): its begin, with its number, and its end. rings_headers.h has what ranks say to each other
 * meanwhile, rings_parts.h what goes where.
 *
 * Memory order.
 * - A run's begin: the rank's run before has ended (gpu_follow(): kernels of a rank follow each other), so its loads from this rank's memory
 *   and its stores into it are over. Its header says so: other ranks that see the header (acquire) may use again what that run used.
 * - A piece: all threads have stored it; __syncthreads(); one thread: fence (system), then `full` at the receiver (relaxed). There one thread
 *   looks at `full` (relaxed) until it is there, loads it (acquire), then __syncthreads(), then all threads read. They have read;
 *   __syncthreads(); one thread stores `free` at the sender (release), which awaits it as it awaits `full`.
 * - A packet is stored by stores of 8 bytes, each with its stamp: whoever finds the stamp has the data.
 *
 * Every wait ends when the rank's failure epoch says so (abi.h): a rank that gives a run up stores its number there at all ranks, and the
 * worker, or the client if the worker has died, the largest number. Later runs of the same rank are not concerned by the former.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_RUN_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_RUN_H

#include "kernels/gpu/device/exchange/rings_parts.h"

/* One thread: whether the run before, which is the same call's, was given up: then this one does nothing, and has no number, so that ranks whose call
 * has other runs, or which have refused it, count as many. All workgroups see the same: the count of runs is complete only when all have
 * added to it; and where a call has several runs, what one rank finds in a run's headers each rank finds, so no run is given up that another
 * rank has finished. */
GPU_DEVICE bool rings_skips(const struct rings_call &c, struct rings_run *run, unsigned long long own)
{
    struct rings_head *head = rings_head_of(c, c.rank);
    uint64_t failed = 0, products = 0;

    gpu_load_relaxed_pair(true, rings_failure_of(c, c.rank), &failed, &products);
    const uint64_t last = gpu_load_relaxed(&head->begun) / RINGS_UNITS + products;
    if (failed < last)
        return false;
    (void)atomicAdd((unsigned long long *)&head->inside, own); /* rings_end() takes it away */
    run->number = last;
    run->over = failed == UINT64_MAX;
    run->leave = true;
    run->noted = run->twice = run->told = run->each = run->twins = false;
    return true;
}

/* One thread of the first workgroup: the run has begun. A product's lengths are not among the call's. */
GPU_DEVICE void rings_record_begin(const struct rings_call &c, uint64_t number, uint64_t clock)
{
    const struct gpu_collective &w = c.what;
    const uint64_t elements = (uint64_t)(w.in_elements > w.out_elements ? w.in_elements : w.out_elements);

    gpu_record_begin(rings_head_of(c, c.rank)->records, RUN_RECORDS_RINGS, number, clock,
                     run_record_what(number, RUN_RECORDS_RINGS, w.op, w.dtype, w.rows ? 0 : elements * w.element_bytes));
}

GPU_DEVICE void rings_record_end(const struct rings_call &c, uint64_t number, bool given_up)
{
    gpu_record_end(rings_head_of(c, c.rank)->records, RUN_RECORDS_RINGS, number, given_up);
}

/* One thread: the run's number, and whether it must not begin. A call's workgroups are alone: the sum of what those before have added is a
 * multiple of the call's number. All that is loaded is on its way at once. */
GPU_DEVICE void rings_number(const struct rings_call &c, struct rings_run *run)
{
    struct rings_head *head = rings_head_of(c, c.rank);
    const unsigned long long own = (unsigned long long)c.what.number << RINGS_INSIDE | 1;
    uint64_t failed = 0, products = 0; /* side by side */

    if (c.what.continues && rings_skips(c, run, own))
        return;
    gpu_load_relaxed_pair(true, rings_failure_of(c, c.rank), &failed, &products);
    const uint64_t inside = atomicAdd((unsigned long long *)&head->inside, own),
                   begun = atomicAdd((unsigned long long *)&head->begun, (unsigned long long)(RINGS_UNITS / gridDim.x)),
                   clock = blockIdx.x == 0 ? gpu_clock() : 0; /* while they are on their way */
    run->number = begun / RINGS_UNITS + products + 1;
    run->over = failed == UINT64_MAX;
    run->leave = failed >= run->number;
    run->twice = inside >> RINGS_INSIDE != (inside & ((1u << RINGS_INSIDE) - 1)) * c.what.number;
    run->noted = !run->over;
    if (blockIdx.x == 0 && !run->over)
        rings_record_begin(c, run->number, clock);
    run->told = run->each = run->twins = false;
    if (failed + 1 == run->number && blockIdx.x == 0) /* the run before had ended here when it was given up */
        gpu_store_relaxed((uint64_t *)c.failed, failed);
}

/* All threads, behind gpu_follow(). KNOWS: finds at once what comes from where, if that is known. REDUCES: the collective does. */
template <bool KNOWS = false, bool REDUCES = false>
GPU_DEVICE bool rings_begin(const struct rings_call &c, struct rings_run *run)
{
    struct rings_head *head = rings_head_of(c, c.rank);
    const bool is_other = threadIdx.x < c.nranks && threadIdx.x != c.rank;
    uint64_t before[2] = {0, 0}; /* the other rank's newest headers */
    bool leave = false;

    if (is_other)
        for (uint32_t i = 0; i < 2; i++)
            before[i] = gpu_load_relaxed(&head->header[i][threadIdx.x].what);
    if (threadIdx.x == blockDim.x - 1)
        rings_number(c, run);
    if (threadIdx.x < GPU_WAVE) {
        rings_sends_find(c, run, threadIdx.x);
        if (KNOWS) {
            gpu_wave_sync();
            const bool knows = rings_gets_know(c, run, REDUCES, threadIdx.x);
            if (threadIdx.x == 0)
                run->knows = knows;
        }
    }
    __syncthreads();
    if (run->leave || run->twice) {
        if (threadIdx.x == 0 && run->twice && !run->over) {
            gpu_store_relaxed((uint64_t *)c.clash, run->number);
            rings_give_up(c, *run, {RINGS_TWICE, c.rank, c.rank, {0, 0, 0, 0}, rings_header_make(c, *run, c.rank)});
        }
        return false;
    }
    /* The header goes into the place of the one before the last, which a rank that has begun the last run has read. */
    const uint64_t last = run->number % 2 ? before[0] : before[1]; /* no index: they stay in registers */
    if (is_other && (int16_t)((uint16_t)(last >> 48) - (uint16_t)(run->number - 1)) < 0)
        leave = !rings_before_await(c, *run, threadIdx.x);
    if (is_other && blockIdx.x == 0 && !leave)
        rings_header_send(c, *run, threadIdx.x);
    if (threadIdx.x == 0 && rings_refuses(c, *run)) {
        rings_refuse(c, *run);
        leave = true;
    }
    return __syncthreads_or(leave) == 0;
}

/* The last wave of the first workgroup does it while the others go on: compares all ranks' headers with what this rank does, where nothing
 * else depends on them. A rank that does something else is told to leave by whoever finds it, in what it waits for. PARTS: ranks may have parts of their own,
 * which are to add up. */
template <bool PARTS = false> GPU_DEVICE void rings_check(const struct rings_call &c, struct rings_run &run)
{
    const uint32_t r = threadIdx.x - (blockDim.x - GPU_WAVE);
    struct rings_header h = {0, 0, 0, 0};
    bool well = true;

    if (blockIdx.x != 0 || threadIdx.x < blockDim.x - GPU_WAVE)
        return;
    if (r < c.nranks && r != c.rank)
        well = rings_header_await(c, run, r, &h) && rings_header_check(c, run, r, h);
    if (!PARTS || gpu_wave_vote(!well))
        return;
    if (r == c.rank)
        h = rings_header_make(c, run, r);
    (void)rings_gets_check(c, &run, r, h.own);
}

/* One thread: what this rank has for itself, by counts in memory, is what it expects of itself. No other rank sees that. */
GPU_DEVICE bool rings_own_check(const struct rings_call &c, struct rings_run &run)
{
    if (!c.what.counts)
        return true;
    const int64_t expected = c.what.expected[c.rank];
    const struct rings_header mine = rings_header_make(c, run, c.rank);

    if (expected < 0 || (int64_t)mine.own == expected)
        return true;
    rings_give_up(c, run, {RINGS_COUNT, c.rank, c.rank, mine, {mine.what, mine.whole, (uint64_t)expected, 0}});
    return false;
}

/* All threads: waits for all ranks' headers, and finds what comes from where. pieces: what the others' runs before have used in the memory
 * for pieces may be used again. (Packets need no more than rings_begin().) */
GPU_DEVICE bool rings_meet(const struct rings_call &c, struct rings_run *run, bool reduces, bool pieces)
{
    const uint32_t r = threadIdx.x;
    bool leave = false;

    if (r < GPU_WAVE) {
        struct rings_header h = rings_header_make(c, *run, r < c.nranks ? r : 0);
        if (r < c.nranks && r != c.rank) {
            leave = !rings_header_await(c, *run, r, &h) || !rings_header_check(c, *run, r, h);
            if (pieces)
                (void)gpu_load_acquire(&rings_head_of(c, c.rank)->header[run->number % 2][r].what);
        }
        if (r == c.rank)
            leave = !rings_own_check(c, *run);
        if (gpu_wave_vote(leave) == 0) {
            rings_gets_set(c, run, reduces, r, h.own);
            leave = !rings_gets_check(c, run, r, h.own);
        }
    }
    return __syncthreads_or(leave) == 0;
}

/* The same behind rings_begin<true>(): what is known is not waited for. Then rings_check<true>() follows. */
GPU_DEVICE bool rings_learn(const struct rings_call &c, struct rings_run *run, bool reduces)
{
    return run->knows || rings_meet(c, run, reduces, false);
}

/* All threads: the workgroup leaves. When all have, the next kernel on the stream begins, which is the next run. failed: the first thread of the
 * first workgroup has seen that the run was given up. goes_on: the kernel is followed by others of the same run, the last of which says when it has ended. */
GPU_DEVICE void rings_end_after(const struct rings_call &c, const struct rings_run &run, bool failed, bool goes_on = false)
{
    gpu_let_follow();
    __syncthreads();
    if (threadIdx.x)
        return;
    (void)atomicAdd((unsigned long long *)&rings_head_of(c, c.rank)->inside,
                    0ull - ((unsigned long long)c.what.number << RINGS_INSIDE | 1));
    if (run.over)
        return;
    if (failed || run.leave)
        gpu_store_relaxed((uint64_t *)c.failed, run.number);
    if (blockIdx.x == 0 && run.noted && (!goes_on || failed || run.leave))
        rings_record_end(c, run.number, failed || run.leave);
    if (run.told)
        gpu_store_relaxed((uint64_t *)c.ended, (uint64_t)(uint32_t)run.number);
}

/* The same. Only the first workgroup asks once more whether another rank has given the run up; if that comes later, the next run tells the host
 * (rings_number()). */
GPU_DEVICE void rings_end(const struct rings_call &c, const struct rings_run &run, bool goes_on = false)
{
    gpu_let_follow();
    rings_end_after(c, run, threadIdx.x == 0 && (blockIdx.x == 0 ? rings_must_leave(c, run) : run.leave), goes_on);
}

#endif
