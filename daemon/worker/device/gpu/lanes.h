/* SPDX-License-Identifier: MIT
 *
 * lanes.h - chooses by measurement which of two streams (lanes) of the worker each GPU gets a communicator's kernels by.
 *
 * A GPU reads its queues with a few units, two on an H200. A client's stream and the worker's stream hand over to each other at every
 * operator. If one unit reads both queues it has to switch, and a hand-over takes 4 us more on one GPU, 6 us on two and on four
 * (tests/bench/TRIED.md); one GPU with the wrong lane costs as much as all. No interface tells which unit reads a queue, and that may change
 * when a stream is created. So each GPU has two lanes, and hand-overs are measured while operators are queued behind each other: the time
 * from the end of one operator to the end of the next, less the time of its kernels.
 *
 * Nothing is gained before the last GPU has the right lane, so whole combinations are tried, not one GPU after the other. First the other
 * lane on all GPUs, then on one GPU or on all but one, then on two or all but two; for four GPUs these are all. Each is measured in one
 * window. If it looks better than the best so far, both are measured in turns: with two better windows out of three it becomes the best, and
 * the trials begin again from there. Turns keep a change in the client's own work between operators from deciding. Trials are repeated when
 * hand-overs have become slower, and after a number of hand-overs that doubles, up to LANES_KEEP, as long as trials change nothing.
 *
 * A pure state machine: no clock, no GPU, no memory.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_LANES_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_LANES_H

#include <stdbool.h>
#include <stdint.h>

#define LANES_WINDOW 16u    /* hand-overs per window, whose mean is one measurement: single ends are noticed late */
#define LANES_SETTLE 8u     /* hand-overs left out after the first use of a lane, which takes tens of microseconds more */
#define LANES_WINS 2u       /* windows that decide a trial, either way */
#define LANES_GAIN_NS 600u  /* a window is better if it is less by this, and by an eighth */
#define LANES_LOSS_NS 1500u /* a window is worse if it is more by this, and by an eighth */
#define LANES_PATIENCE 4u
#define LANES_PATIENCE_MOST 64u
#define LANES_KEEP_LEAST 2048u /* hand-overs until trials are repeated in any case: at first, and (LANES_KEEP) at most */
#define LANES_KEEP 65536u

enum lanes_phase {
    LANES_OWN,    /* this window measures the best lanes so far */
    LANES_OTHERS, /* this window measures the lanes on trial */
    LANES_KEPT,   /* all trials are over: the best lanes are used */
};

struct gpu_lanes {
    uint32_t gpus;    /* a bit for each of the communicator's GPUs */
    uint32_t use;     /* bit g: the next launch uses the second lane of GPU g */
    uint32_t best;    /* bit g: the best lanes so far have the second lane of GPU g */
    uint64_t best_ns; /* LANES_KEPT: time of a hand-over with the best lanes */
    enum lanes_phase phase;
    uint32_t trial;      /* index of the combination on trial, in the order in which they are tried */
    uint32_t better;     /* number of this trial's windows that were better than least_ns */
    uint32_t not_better; /* number of this trial's windows that were not */
    uint64_t others_ns;  /* the shortest of this trial's better windows */
    uint64_t least_ns;   /* the shortest window of the best lanes during these trials */
    uint32_t known[2];   /* a bit for each GPU whose first ([0]), second ([1]) lane has been used */
    uint32_t settle;     /* number of hand-overs that are still left out */
    uint32_t count;      /* number of hand-overs in the window so far */
    uint64_t sum_ns;
    uint64_t ended_ns; /* when the previous launch ended. 0: the next end measures no hand-over */
    uint32_t before;   /* the best lanes when the trials began */
    uint32_t kept;     /* LANES_KEPT: hand-overs since the last trial */
    uint32_t keep;     /* number of hand-overs after which trials are repeated */
    uint32_t worse;    /* LANES_KEPT: number of successive windows that were much slower than best_ns */
    uint32_t patience; /* number of such windows after which trials are repeated */
};

/* Begin the trials. The first time *s is zero; later calls do nothing unless the GPUs have changed. */
void lanes_begin(struct gpu_lanes *s, uint32_t gpus);
/* A launch is over; to be called in the order of launches. behind: it was queued behind another launch, so that its time has no other delay
 * than that of the hand-over. busy_ns: the time of its kernels. */
void lanes_note(struct gpu_lanes *s, uint32_t used, bool behind, uint64_t ended_ns, uint64_t busy_ns);
/* Whether trials still go on. */
bool lanes_are_tried(const struct gpu_lanes *s);

#endif
