/* SPDX-License-Identifier: MIT */
#include "gpu_lanes.h"

static bool is_one(uint32_t gpus)
{
    return (gpus & (gpus - 1)) == 0;
}

/* All others and, of several GPUs, each one's by itself. */
static uint32_t trials(const struct gpu_lanes *s)
{
    return 1 + (is_one(s->gpus) ? 0 : (uint32_t)__builtin_popcount(s->gpus));
}

static bool is_over(const struct gpu_lanes *s)
{
    return s->trial >= trials(s);
}

bool lanes_are_tried(const struct gpu_lanes *s)
{
    return !is_over(s);
}

static uint32_t others(const struct gpu_lanes *s)
{
    uint32_t rest = s->gpus;

    if (s->trial == 0)
        return s->best ^ s->gpus;
    for (uint32_t i = 1; i < s->trial; i++)
        rest &= rest - 1;
    return s->best ^ (rest & -rest);
}

static void turn_begin(struct gpu_lanes *s, uint32_t trial, uint32_t turn)
{
    s->trial = trial;
    s->turn = turn;
    s->use = !is_over(s) && turn % 2 ? others(s) : s->best;
}

static void trials_begin(struct gpu_lanes *s)
{
    s->before = s->best;
    s->kept = s->worse = 0;
    turn_begin(s, 0, 0);
}

void lanes_begin(struct gpu_lanes *s, uint32_t gpus)
{
    if (s->gpus == gpus)
        return;
    *s = (struct gpu_lanes){.gpus = gpus, .patience = LANES_PATIENCE};
    trials_begin(s);
}

static void trial_end(struct gpu_lanes *s, bool better)
{
    if (better)
        s->best = others(s);
    s->best_ns = better ? s->most_ns : s->least_ns;
    turn_begin(s, s->trial + 1, 0);
    if (!is_over(s))
        return;
    s->patience = s->best != s->before ? LANES_PATIENCE : s->patience * 2;
    if (s->patience > LANES_PATIENCE_MOST)
        s->patience = LANES_PATIENCE_MOST;
}

/* A window of a trial: of the lanes as they are, or of the others. */
static void window_try(struct gpu_lanes *s, uint64_t mean)
{
    if (s->turn % 2 == 0) {
        s->least_ns = s->turn && s->least_ns < mean ? s->least_ns : mean;
        turn_begin(s, s->trial, s->turn + 1);
        return;
    }
    uint64_t gain = s->least_ns / 16 > LANES_GAIN_NS ? s->least_ns / 16 : LANES_GAIN_NS;
    s->most_ns = s->turn > 1 && s->most_ns > mean ? s->most_ns : mean;
    bool better = s->most_ns + gain <= s->least_ns;
    if (!better || s->turn + 1 == LANES_TURNS)
        trial_end(s, better);
    else
        turn_begin(s, s->trial, s->turn + 1);
}

/* A window of what was chosen. */
static void window_watch(struct gpu_lanes *s, uint64_t mean)
{
    uint64_t loss = s->best_ns / 8 > LANES_LOSS_NS ? s->best_ns / 8 : LANES_LOSS_NS;

    if (mean < s->best_ns) /* slowly: one window may begin late and look short */
        s->best_ns -= (s->best_ns - mean) / 8;
    s->worse = mean > s->best_ns + loss ? s->worse + 1 : 0;
    s->kept += LANES_WINDOW;
    if (s->worse >= s->patience || s->kept >= LANES_KEEP)
        trials_begin(s);
}

void lanes_note(struct gpu_lanes *s, uint32_t used, bool behind, uint64_t ended_ns, uint64_t busy_ns)
{
    uint64_t before = s->ended_ns;

    /* The first with other lanes than its predecessor waits for that one's queue, too. */
    s->ended_ns = used == s->use ? ended_ns : 0;
    if (!behind || !before || used != s->use) {
        s->count = 0;
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
    if (is_over(s))
        window_watch(s, mean);
    else
        window_try(s, mean);
    if (s->use != use)
        s->ended_ns = 0;
}
