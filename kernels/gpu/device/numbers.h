/* SPDX-License-Identifier: MIT
 *
 * numbers.h - which run a kernel is: its epoch, its packets' stamp, its half of the packet memory and its set of counters.
 *
 * A launch by the worker carries these numbers. A launch of a bound operator that may be replayed by a CUDA graph cannot
 * (gpu_series.numbered), so each of its workgroups reads the number of the last run when it begins, and its own run is the next
 * one. The last workgroup that leaves stores the run's number. The workgroups of a run begin after the end of the run before it,
 * because kernels of one rank follow each other (gpu_follow()), so all of them read the same number. The other ranks' kernels
 * have the same number, because all ranks run the operator equally often.
 *
 * The failure epoch stands beside the number, and both are loaded at once. A run that has failed before it begins (the
 * communicator or the operator has ended) is over: its workgroups use tensors for nothing but prefetches, leave, and tell the host
 * nothing, because the host's memory may be gone.
 *
 * Two runs at a time. Nothing orders the runs of two graphs that a program replays on two streams without an event between
 * them. So each workgroup counts itself in gpu_fixed.left when it begins (without waiting for the answer) and when it leaves. The
 * workgroup whose leaving makes the number complete sees in the same word how many have begun, since all changes of a word have
 * one order, and a thread counts its workgroup's begin before its end. If that is not the same number, workgroups of another run
 * have begun meanwhile. The same holds for the runs that have told the host that they have begun, which the barrier's kernel
 * does if there is one: it shows a run whose barrier was under way. Then the workgroup stores the failure epoch, which ends all
 * later runs on this GPU, and tells the host, where the worker ends the communicator. A noop has one workgroup, and compares the
 * word of the last run when it ends.
 *
 * Runs through rings are counted together with collectives: kernels/gpu/device/through_rings.h.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_NUMBERS_H
#define FCC_KERNELS_GPU_DEVICE_NUMBERS_H

#include "kernels/gpu/abi.h"
#include "kernels/gpu/platform.h"
#include "kernels/plan/exchange/rings.h"

struct gpu_numbers {
    uint64_t epoch, slots_at;
    uint64_t counters, idle; /* the run's set of counters, and the other one */
    uint32_t over;           /* 1: the run has failed before it has begun */
    /* Through rings: the operator is over, and words in host memory may be gone; the run is not counted; threads have left before they have
     * done all. */
    uint32_t gone, skipped, left_early, told; /* told: a thread has waited for long, and told the host */
    uint64_t products;                        /* the runs of products before this one */
    /* 1: the workgroup has all ranks' headers, and knows the rows (of embedding_all_to_all: the tables) that each sends to this one, and how many
     * come from the ranks before it. */
    uint32_t met;
    uint32_t differs, differs_by; /* not RINGS_WELL: enum rings_why the run cannot go on; struct rings_failure has the rest */
    uint64_t theirs[3];
    uint32_t rows[GPU_MAX_GPUS], rows_at[GPU_MAX_GPUS];
    union {
        struct landing_parts parts[GPU_MAX_GPUS]; /* in which they come; this rank's own: none */
        uint64_t data[RINGS_DATA_WORDS];          /* differs is RINGS_DATA: a struct gpu_failure */
    };
    uint32_t most; /* parts that come from a rank */
};

#define GPU_LOOK_SPINS 64 /* looks at a flag between looks at the failure epoch */

/* The workgroup's, if the kernel is numbered: gpu_number() fills it in. */
GPU_DEVICE struct gpu_numbers *gpu_numbers_here()
{
    __shared__ struct gpu_numbers numbers;

    return &numbers;
}

/* The number of the run that begins now, and whether it is over. Any thread, after gpu_follow(). word: gpu_series.word. */
GPU_DEVICE uint64_t gpu_run_next(uint64_t word, bool *over)
{
    uint64_t failed = 0, last = 0;

    gpu_load_relaxed_pair(true, (const uint64_t *)word - (GPU_FLAG_RUN - GPU_FLAGS), &failed, &last);
    *over = failed > last;
    return last + 1;
}

/* gpu_number() of an operator with control memory of its own. */
GPU_DEVICE void gpu_number_alone(const struct gpu_call &call)
{
    struct gpu_numbers *here = gpu_numbers_here();
    const struct gpu_series &series = call.series;
    bool over;

    if (threadIdx.x == 0) {
        uint64_t epoch = gpu_run_next(series.word, &over), odd = epoch % 2;
        here->epoch = epoch;
        here->slots_at = odd * series.slots_bytes;
        here->counters = odd ? series.counters[1] : series.counters[0];
        here->idle = odd ? series.counters[0] : series.counters[1];
        here->over = over;
        (void)atomicAdd(&((struct gpu_fixed *)call.fixed)->left, GPU_LEFT_BEGUN);
    }
    __syncthreads();
}

GPU_DEVICE uint64_t gpu_epoch(const struct gpu_call &call)
{
    return call.series.numbered ? gpu_numbers_here()->epoch : call.epoch;
}

GPU_DEVICE uint32_t gpu_stamp(const struct gpu_call &call)
{
    return call.series.numbered ? (uint32_t)gpu_numbers_here()->epoch : call.stamp;
}

GPU_DEVICE uint64_t gpu_slots_at(const struct gpu_call &call)
{
    return call.series.numbered ? gpu_numbers_here()->slots_at : call.slots_at;
}

GPU_DEVICE uint32_t *gpu_counters_of(const struct gpu_call &call, uint32_t run)
{
    return (uint32_t *)(call.series.numbered ? gpu_numbers_here()->counters : call.plans[run].counters);
}

/* The counters of the run before, which are reset for the next one. NULL: there are none. */
GPU_DEVICE uint32_t *gpu_idle_counters(const struct gpu_call &call)
{
    return (uint32_t *)(call.series.numbered ? gpu_numbers_here()->idle : call.idle_counters);
}

GPU_DEVICE bool gpu_is_over(const struct gpu_call &call)
{
    return call.series.numbered && gpu_numbers_here()->over;
}

/* Any thread, through rings: it leaves before it has done all, so the run has failed on this rank. */
GPU_DEVICE void gpu_left_early(const struct gpu_call &call)
{
    if (call.rings.nranks)
        *(volatile uint32_t *)&gpu_numbers_here()->left_early = 1;
}

/* ---- what is kept of runs: kernels/plan/exchange/run_record.h. Stores that nobody waits for. n: how many records there are ---- */

/* One thread of the run's first workgroup. what: run_record_what(). */
GPU_DEVICE void gpu_record_begin(struct run_record *records, uint32_t n, uint64_t run, uint64_t clock, uint64_t what)
{
    uint64_t *at = (uint64_t *)&records[run % n];

    gpu_store_relaxed_pair(at + 2, what, 0);
    gpu_store_relaxed_pair(at, run, clock);
}

/* One thread, behind the former: in the same thread, or a barrier lies between. */
GPU_DEVICE void gpu_record_end(struct run_record *records, uint32_t n, uint64_t run, bool given_up)
{
    gpu_store_relaxed(&records[run % n].ended, gpu_clock() | (given_up ? RUN_RECORD_GIVEN_UP : 0));
}

/* Those of an operator with control memory of its own, which the program has bound. word: gpu_series.word. */
GPU_DEVICE struct run_record *gpu_records_of(uint64_t word)
{
    return (struct run_record *)(word + (GPU_RECORDS_AT - GPU_FLAG_RUN * sizeof(uint64_t)));
}

GPU_DEVICE void gpu_record_begin_alone(uint64_t word, uint64_t run, uint64_t clock)
{
    gpu_record_begin(gpu_records_of(word), RUN_RECORDS, run, clock, run_record_what(run, RUN_RECORDS, 0, 0, 0));
}

GPU_DEVICE void gpu_record_end_alone(uint64_t word, uint64_t run)
{
    gpu_record_end(gpu_records_of(word), RUN_RECORDS, run, false);
}

/* One thread: two runs are under way. This GPU's kernels end, and the host hears of it. */
GPU_DEVICE void gpu_clash(const struct gpu_series &series, uint64_t epoch)
{
    gpu_store_relaxed((uint64_t *)series.clash, epoch);
    gpu_store_relaxed((uint64_t *)series.word - (GPU_FLAG_RUN - GPU_FLAGS), UINT64_MAX);
}

#endif
