/* SPDX-License-Identifier: MIT
 *
 * gpu_lanes.h - by which of its queues each GPU gets a communicator's operators.
 *
 * A GPU reads its queues by a few units, two on an H200. A client's stream and the worker's queue hand over to each other; if both
 * are read by the same unit, it leaves one for the other each time, and a hand-over takes 4 us more on one GPU, 6 on two
 * (tests/bench/TRIED.md). Nothing tells by which unit a queue is read, and it may change when somebody makes a stream. So there are two
 * lanes on each GPU, and what they are worth is tried: from the end of one operator to the end of the next, less the time that its
 * kernels took, while operators stand behind each other. First all GPUs' other lanes, then each GPU's by itself: in turns with the
 * lanes as they are, twice, and what was better both times stays (a client that begins to do other work between its operators meanwhile
 * does not look like that). It is tried again when hand-overs have become slower, and after LANES_KEEP of them; where trying
 * has changed nothing it takes twice as long until the next time, up to LANES_PATIENCE_MOST windows.
 *
 * A pure state machine: no clock, no GPU, no memory.
 */
#ifndef FCCD_GPU_LANES_H
#define FCCD_GPU_LANES_H

#include <stdbool.h>
#include <stdint.h>

#define LANES_WINDOW 16u    /* hand-overs whose mean is one measurement: ends are noticed late, sometimes several at a time */
#define LANES_TURNS 4u      /* measurements of a trial: as they are, the others, and again */
#define LANES_GAIN_NS 600u  /* what others must be better by, at least */
#define LANES_LOSS_NS 1500u /* so much worse, at least, for so many windows: try again */
#define LANES_PATIENCE 4u
#define LANES_PATIENCE_MOST 64u
#define LANES_KEEP 8192u /* hand-overs until it is tried again in any case */

struct gpu_lanes {
    uint32_t gpus;     /* that the communicator has: a bit for each */
    uint32_t use;      /* bit g: the next launch is to use GPU g's second lane */
    uint32_t best;     /* the lanes as they are, but for a trial */
    uint64_t best_ns;  /* a hand-over with them */
    uint32_t trial;    /* the how-manieth; all are over: what is best stays */
    uint32_t turn;     /* of the trial */
    uint64_t least_ns; /* of the lanes as they are, in this trial */
    uint64_t most_ns;  /* of the others */
    uint32_t count;    /* hand-overs of the window so far */
    uint64_t sum_ns;
    uint64_t ended_ns; /* of the launch before; 0: what follows tells nothing */
    uint32_t before;   /* the lanes when it began to try */
    uint32_t kept;     /* hand-overs since the last trial */
    uint32_t worse;    /* windows of hand-overs that are much slower than best_ns, one after the other */
    uint32_t patience; /* so many: try again */
};

/* Zeroed before; again with other GPUs: from the beginning. */
void lanes_begin(struct gpu_lanes *s, uint32_t gpus);
/* A launch is over, in the order of launches: which lanes it used, whether it stood behind another one (so that nobody's delay but the
 * streams' is in its time), when it ended and how long its kernels took. */
void lanes_note(struct gpu_lanes *s, uint32_t used, bool behind, uint64_t ended_ns, uint64_t busy_ns);
/* Has it not come to an end with trying yet? */
bool lanes_are_tried(const struct gpu_lanes *s);

#endif
