/* SPDX-License-Identifier: MIT */
#include "daemon/worker/device/gpu/lanes.h"

/* The i-th combination to try, as the GPUs whose lane differs from the best ones. 0: there are no more. */
static uint32_t candidate(uint32_t gpus, uint32_t i)
{
    int n = __builtin_popcount(gpus);

    if (i-- == 0)
        return gpus;
    for (uint32_t x = gpus; n > 1 && x; x &= x - 1) {
        uint32_t one = x & -x;
        if (i-- == 0)
            return one;
        if (n > 2 && i-- == 0)
            return gpus ^ one;
    }
    for (uint32_t x = gpus; n > 3 && x; x &= x - 1)
        for (uint32_t y = x & (x - 1); y; y &= y - 1) {
            uint32_t two = (x & -x) | (y & -y);
            if (i-- == 0)
                return two;
            if (n > 4 && i-- == 0)
                return gpus ^ two;
        }
    return 0;
}

bool lanes_are_tried(const struct gpu_lanes *s)
{
    return s->phase != LANES_KEPT;
}

/* Begin a window, with the best lanes or the lanes on trial. */
static void window_begin(struct gpu_lanes *s, enum lanes_phase phase)
{
    s->phase = phase;
    s->use = phase == LANES_OTHERS ? s->best ^ candidate(s->gpus, s->trial) : s->best;
    uint32_t first = s->gpus & ~s->use, second = s->gpus & s->use;
    if ((first & ~s->known[0]) | (second & ~s->known[1]))
        s->settle = LANES_SETTLE;
    s->known[0] |= first;
    s->known[1] |= second;
}

static void trials_begin(struct gpu_lanes *s)
{
    s->before = s->best;
    s->kept = s->worse = s->trial = 0;
    s->better = s->not_better = 0;
    s->least_ns = UINT64_MAX;
    window_begin(s, LANES_OWN);
}

void lanes_begin(struct gpu_lanes *s, uint32_t gpus)
{
    if (s->gpus == gpus)
        return;
    *s = (struct gpu_lanes){.gpus = gpus, .patience = LANES_PATIENCE, .keep = LANES_KEEP_LEAST};
    trials_begin(s);
}

static uint32_t doubled(uint32_t n, uint32_t most)
{
    return 2 * n < most ? 2 * n : most;
}

static void trials_end(struct gpu_lanes *s)
{
    bool changed = s->best != s->before;

    s->best_ns = s->least_ns;
    s->patience = changed ? LANES_PATIENCE : doubled(s->patience, LANES_PATIENCE_MOST);
    s->keep = changed ? LANES_KEEP_LEAST : doubled(s->keep, LANES_KEEP);
    window_begin(s, LANES_KEPT);
}

static void trial_end(struct gpu_lanes *s, bool is_better)
{
    s->trial++;
    if (is_better) {
        s->best ^= candidate(s->gpus, s->trial - 1);
        s->least_ns = s->others_ns;
        s->trial = 0; /* all that differ from these */
    }
    s->better = s->not_better = 0;
    if (candidate(s->gpus, s->trial))
        window_begin(s, LANES_OTHERS);
    else
        trials_end(s);
}

static bool is_less(uint64_t ns, uint64_t than)
{
    uint64_t gain = than / 8 > LANES_GAIN_NS ? than / 8 : LANES_GAIN_NS;

    return ns + gain <= than;
}

/* A window of the best lanes has ended: the first one, or one in the middle of a trial that looked better. The trial fails if this window is
 * as good, because then the client's own work between operators has changed. */
static void own_note(struct gpu_lanes *s, uint64_t mean)
{
    s->least_ns = mean < s->least_ns ? mean : s->least_ns;
    if (s->better && !is_less(s->others_ns, s->least_ns))
        trial_end(s, false);
    else
        window_begin(s, LANES_OTHERS);
}

static void others_note(struct gpu_lanes *s, uint64_t mean)
{
    if (is_less(mean, s->least_ns)) {
        s->others_ns = s->better && s->others_ns < mean ? s->others_ns : mean;
        s->better++;
    } else {
        s->not_better++;
    }
    if (!s->better || s->not_better == LANES_WINS || s->better == LANES_WINS)
        trial_end(s, s->better == LANES_WINS);
    else
        window_begin(s, LANES_OWN);
}

/* LANES_KEPT: a window has ended. */
static void window_watch(struct gpu_lanes *s, uint64_t mean)
{
    uint64_t loss = s->best_ns / 8 > LANES_LOSS_NS ? s->best_ns / 8 : LANES_LOSS_NS;

    if (mean < s->best_ns) /* approach it slowly: a single window may look too short */
        s->best_ns -= (s->best_ns - mean) / 8;
    s->worse = mean > s->best_ns + loss ? s->worse + 1 : 0;
    s->kept += LANES_WINDOW;
    if (s->worse >= s->patience || s->kept >= s->keep)
        trials_begin(s);
}

void lanes_note(struct gpu_lanes *s, uint32_t used, bool behind, uint64_t ended_ns, uint64_t busy_ns)
{
    uint64_t before = s->ended_ns;

    /* The first launch on other lanes also waits for its predecessor's queue, so it measures no hand-over. */
    s->ended_ns = used == s->use ? ended_ns : 0;
    if (!behind || !before || used != s->use) {
        s->count = 0;
        return;
    }
    if (s->settle > 0) {
        s->settle--;
        return;
    }
    if (s->count++ == 0)
        s->sum_ns = 0;
    s->sum_ns += ended_ns - before > busy_ns ? ended_ns - before - busy_ns : 0;
    if (s->count < LANES_WINDOW)
        return;
    s->count = 0;
    uint64_t mean = s->sum_ns / LANES_WINDOW;
    uint32_t use = s->use;
    if (s->phase == LANES_KEPT)
        window_watch(s, mean);
    else if (s->phase == LANES_OWN)
        own_note(s, mean);
    else
        others_note(s, mean);
    if (s->use != use)
        s->ended_ns = 0;
}
