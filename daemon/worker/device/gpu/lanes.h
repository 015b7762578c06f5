/* SPDX-License-Identifier: MIT
 *
 * lanes.h - by which of its queues each GPU gets a communicator's operators.
 *
 * A GPU reads its queues by a few units, two on an H200. A client's stream and the worker's queue hand over to each other; if both
 * are read by the same unit, it leaves one for the other each time, and a hand-over takes 4 us more on one GPU, 6 on two and on
 * four (tests/bench/TRIED.md): as much if one GPU has the wrong lane as if all have. Nothing tells by which unit a queue is read, and it
 * may change when somebody makes a stream. So there are two lanes on each GPU, and what they are worth is tried: from the end of one
 * operator to the end of the next, less the time that its kernels took, while operators stand behind each other.
 *
 * Because nothing is won until the last GPU has its right lane, it does not do to go on from what is a little better: whole
 * combinations are tried. First all GPUs' other lanes, for ranks usually do the same on each; then those that differ in one GPU
 * from the lanes as they are or from all others, then in two: of four GPUs these are all. Each is measured once, and again in
 * turns with the lanes as they are if it looks better: twice better of three, and it stays, and it all begins anew from there (a
 * client that begins or ends to do other work between its operators meanwhile does not look like that). It is tried again when
 * hand-overs have become slower, and after a time that doubles, up to LANES_KEEP of them, as long as trying changes nothing.
 *
 * A pure state machine: no clock, no GPU, no memory.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_LANES_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_LANES_H

#include <stdbool.h>
#include <stdint.h>

#define LANES_WINDOW 16u /* hand-overs whose mean is one measurement: ends are noticed late, sometimes several at a time */
#define LANES_SETTLE                                                                                                           \
    8u                /* hand-overs by a lane at first that do not count: its first use takes some tens of microseconds more */
#define LANES_WINS 2u /* windows of one trial that decide it */
#define LANES_GAIN_NS 600u  /* what others must be better by, at least, or an eighth */
#define LANES_LOSS_NS 1500u /* so much worse, at least, for so many windows: try again */
#define LANES_PATIENCE 4u
#define LANES_PATIENCE_MOST 64u
#define LANES_KEEP_LEAST 2048u /* hand-overs until it is tried again in any case: at first, and at most */
#define LANES_KEEP 65536u

enum lanes_phase {
    LANES_OWN,    /* a window of the lanes as they are */
    LANES_OTHERS, /* of those that are tried */
    LANES_KEPT,   /* all trials are over: what is best stays */
};

struct gpu_lanes {
    uint32_t gpus;    /* that the communicator has: a bit for each */
    uint32_t use;     /* bit g: the next launch is to use GPU g's second lane */
    uint32_t best;    /* the lanes as they are */
    uint64_t best_ns; /* a hand-over with them */
    enum lanes_phase phase;
    uint32_t trial;      /* the how-manieth */
    uint32_t better;     /* windows of the others, in this trial */
    uint32_t not_better; /* the rest of them */
    uint64_t others_ns;  /* the least of those that were better */
    uint64_t least_ns;   /* of the lanes as they are */
    uint32_t known[2];   /* GPUs whose first, second lane has been used */
    uint32_t settle;     /* hand-overs that are still left out */
    uint32_t count;      /* hand-overs of the window so far */
    uint64_t sum_ns;
    uint64_t ended_ns; /* of the launch before; 0: what follows tells nothing */
    uint32_t before;   /* the lanes when it began to try */
    uint32_t kept;     /* hand-overs since the last trial */
    uint32_t keep;     /* so many: try again */
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
