/* SPDX-License-Identifier: MIT
 *
 * test_share_law.c - how the time of a GPU is shared out (daemon/broker/share/law.c), on a GPU that is a few lines: kernels of several workers run side
 * by side, each slower by so many as there are, or get slices of time by turns. No clock, so every figure is the same in each run.
 *
 * Weights are kept where all want more than their part; who wants less gets that, and leaves the rest; who is alone, or is beside somebody who does
 * nothing, never waits; a GPU does nothing only for a step after somebody has gone; debts and savings are bounded, whatever is reported.
 */
#include "daemon/broker/share/law.h"
#include "daemon/common/share.h"
#include "tests/bed/harness.h"

enum { MOST = 8, QUANTUM_NS = 10000, SLICE_NS = 2000000 };

/* A worker that launches kernels of `kernel_ns` (of a GPU's time alone), and `gap_ns` after the end of one the next one. */
struct runner {
    struct share_part part;
    double kernel_ns, gap_ns;
    double from, until;     /* when it runs at all */
    double left_ns;         /* of its kernel, alone. 0: none runs */
    double took_ns;         /* the last one */
    double began, ready_at; /* of its kernel, when it has been on the GPU first; when it may launch the next one */
    double reported, allowed;
    bool waited;
    double work, waited_ns; /* results: the GPU's time that it really had; how long it was held back */
};

struct gpu {
    struct runner *runners;
    unsigned n;
    double now, idle_ns; /* idle: nothing ran, though somebody was held back */
    double stepped;
    bool slices;       /* by turns */
    unsigned turn;     /* slices: whose it is */
    double slice_left; /* ... and for how long */
};

static void launch_look(struct gpu *g, struct runner *r)
{
    if (r->left_ns > 0 || g->now < r->ready_at || g->now < r->from || g->now >= r->until)
        return;
    if (r->reported >= r->allowed) { /* it has one kernel at a time: nothing is ahead */
        r->waited = true;
        r->waited_ns += QUANTUM_NS;
        return;
    }
    r->left_ns = r->kernel_ns;
    r->began = -1;
}

/* Whose slice of time it is: who has nothing on the GPU is passed over. */
static void turn_find(struct gpu *g)
{
    if (g->slice_left > 0 && g->runners[g->turn].left_ns > 0)
        return;
    for (unsigned i = 0; i < g->n; i++) {
        g->turn = (g->turn + 1) % g->n;
        if (g->runners[g->turn].left_ns > 0)
            break;
    }
    g->slice_left = SLICE_NS;
}

static void gpu_go(struct gpu *g)
{
    unsigned running = 0;
    double waited = 0;

    for (unsigned i = 0; i < g->n; i++) {
        double before = g->runners[i].waited_ns;
        launch_look(g, &g->runners[i]);
        waited += g->runners[i].waited_ns - before;
        running += g->runners[i].left_ns > 0;
    }
    turn_find(g);
    g->now += QUANTUM_NS;
    g->slice_left -= QUANTUM_NS;
    g->idle_ns += !running && waited > 0 ? QUANTUM_NS : 0;
    for (unsigned i = 0; i < g->n; i++) {
        struct runner *r = &g->runners[i];
        if (r->left_ns <= 0)
            continue;
        r->part.busy_ns += QUANTUM_NS;
        if (g->slices && i != g->turn)
            continue;
        const double had = (double)QUANTUM_NS / (g->slices ? 1 : running);
        r->began = r->began < 0 ? g->now - QUANTUM_NS : r->began;
        r->work += had;
        r->left_ns -= had;
        if (r->left_ns > 0)
            continue;
        r->left_ns = 0;
        r->ready_at = g->now + r->gap_ns;
        r->took_ns = g->now - r->began;
        r->part.occupied_ns += (uint64_t)(g->now - r->began);
        r->reported += g->now - r->began;
    }
}

static void step(struct gpu *g)
{
    struct share_part *parts[MOST];

    for (unsigned i = 0; i < g->n; i++) {
        struct runner *r = &g->runners[i];
        parts[i] = &r->part;
        r->part.ahead_ns = r->left_ns > 0 ? (uint64_t)r->took_ns : 0;
        r->part.waits = r->waited;
    }
    share_step(parts, g->n, (uint64_t)(g->now - g->stepped));
    g->stepped = g->now;
    for (unsigned i = 0; i < g->n; i++) {
        struct runner *r = &g->runners[i];
        CHECK(r->part.credit_ns <= (double)SHARE_SAVED_NS && r->part.credit_ns >= -(double)SHARE_DEBT_NS);
        CHECK(r->part.owed_ns >= -(double)SHARE_DEBT_NS && r->part.owed_ns <= (double)SHARE_DEBT_NS);
        r->allowed = r->reported + (double)r->part.allowed_ns;
        r->waited = false;
        r->part.occupied_ns = r->part.busy_ns = 0;
    }
}

static void run(struct gpu *g, double until)
{
    for (double next = g->now + SHARE_PERIOD_NS; g->now < until;) {
        gpu_go(g);
        if (g->now >= next) {
            step(g);
            next = g->now + SHARE_PERIOD_NS;
        }
    }
}

static struct runner runner(double weight, double kernel_us, double gap_us)
{
    return (struct runner){
        .part.weight = weight, .kernel_ns = kernel_us * 1e3, .gap_ns = gap_us * 1e3, .until = 1e18, .allowed = 1e18};
}

/* a is within `part` of b */
static void near(const char *what, double a, double b, double part)
{
    if (a < b * (1 - part) || a > b * (1 + part))
        check_failed(__FILE__, __LINE__, "%s: %.4f, expected %.4f within %.0f %%", what, a, b, part * 100);
}

static void weights_try(bool slices)
{
    static const double weights[] = {1, 3, 10}, kernels[] = {20, 200, 1000, 5000};

    for (unsigned w = 0; w < 3; w++)
        for (unsigned a = 0; a < 4; a++)
            for (unsigned b = 0; b < 4; b++) {
                struct runner two[] = {runner(weights[w], kernels[a], 0), runner(1, kernels[b], 0)};
                struct gpu g = {.runners = two, .n = 2, .slices = slices};
                char what[96];
                run(&g, 10e9);
                (void)snprintf(what, sizeof(what), "weight %g, kernels of %g and %g us", weights[w], kernels[a], kernels[b]);
                const double ratio = two[0].work / two[1].work;
                if (!slices || (kernels[a] < 1000 && kernels[b] < 1000))
                    near(what, ratio, weights[w], .15);
                else if (ratio < .4 * weights[w] || ratio > 2 * weights[w])
                    check_failed(__FILE__, __LINE__, "%s: %.4f", what, ratio);
                near("the GPU's time is all used", two[0].work + two[1].work, 10e9, .02);
            }
}

static void weights_are_kept(void)
{
    weights_try(false);
}

/* Where kernels that fit into a slice are no longer for what others have, and their times do not show that two workers want all of the GPU. One that goes through
 * several slices is charged some of what others had meanwhile. */
static void weights_are_kept_by_turns(void)
{
    weights_try(true);
}

static void three_and_one(void)
{
    struct runner four[] = {runner(4, 100, 0), runner(2, 300, 0), runner(1, 50, 0), runner(1, 1000, 0)};
    struct gpu g = {.runners = four, .n = 4};

    run(&g, 10e9);
    for (int i = 0; i < 4; i++)
        near("its part", four[i].work / 10e9, four[i].part.weight / 8, .15);
}

/* Somebody who wants little has it, without being held back, and all that is left goes to the other. */
static void little_is_free(void)
{
    for (int heavy = 0; heavy < 2; heavy++) {
        struct runner two[] = {runner(1, 500, 0), runner(heavy ? 10 : .5, 20, 980)};
        for (int slices = 0; slices < 2; slices++) {
            struct runner both[] = {two[0], two[1]};
            struct gpu g = {.runners = both, .n = 2, .slices = slices};
            run(&g, 5e9);
            CHECK(both[1].waited_ns == 0);
            CHECK(both[0].work + both[1].work > .97 * 5e9);
        }
    }
}

/* One whose weight is large and who has gaps between kernels is not slowed down to half by one that has none. */
static void gaps_are_no_loss(void)
{
    struct runner alone[] = {runner(10, 100, 50)}, two[] = {runner(10, 100, 50), runner(1, 100, 0)};
    struct gpu one = {.runners = alone, .n = 1}, both = {.runners = two, .n = 2};

    run(&one, 5e9);
    run(&both, 5e9);
    CHECK(two[0].work > .8 * alone[0].work);
    CHECK(two[1].work > .1 * 5e9);
}

static void alone_never_waits(void)
{
    struct runner one[] = {runner(1, 3000, 0)};
    struct gpu g = {.runners = one, .n = 1};

    run(&g, 2e9);
    CHECK(one[0].waited_ns == 0 && one[0].work > .999 * 2e9);
}

/* Two that are equal; one has gone: whatever the other one owes, it goes on within two steps. And when that one comes back it has saved up no more than it may. */
static void the_rest_is_taken(void)
{
    struct runner two[] = {runner(1, 20000, 0), runner(100, 100, 0)};
    struct gpu g = {.runners = two, .n = 2};

    two[1].until = 1e9;
    run(&g, 1e9);
    CHECK(two[0].waited_ns > .5e9);
    double before = two[0].work;
    g.idle_ns = 0;
    run(&g, 2e9);
    CHECK(g.idle_ns <= 2.5 * SHARE_PERIOD_NS);
    CHECK(two[0].work - before > .98 * 1e9);
    two[1].until = 1e18;
    two[1].kernel_ns = two[0].kernel_ns = 100e3;
    two[1].part.weight = 1;
    run(&g, 2.2e9); /* what the long kernel of then has cost is over */
    double a = two[0].work, b = two[1].work;
    run(&g, 3.2e9);
    near("equal again", (two[1].work - b) / (two[0].work - a), 1, .1);
}

/* Nothing runs, and all wait, as when several GPUs wait for each other: after a step nobody owes anything. */
static void nobody_waits_for_nobody(void)
{
    struct share_part a = {.weight = 1}, b = {.weight = 1}, *parts[] = {&a, &b};

    a.occupied_ns = b.occupied_ns = SHARE_DEBT_NS;
    share_step(parts, 2, SHARE_PERIOD_NS);
    a.occupied_ns = b.occupied_ns = 0;
    a.waits = b.waits = true;
    a.limited = b.limited = true;
    a.owed_ns = b.owed_ns = 0;
    a.credit_ns = b.credit_ns = -(double)SHARE_DEBT_NS;
    share_step(parts, 2, SHARE_PERIOD_NS);
    CHECK(a.allowed_ns > 0 && b.allowed_ns > 0);
}

/* Who waits without having been told to, always, gets nothing by it. */
static void lies_are_no_demand(void)
{
    struct runner two[] = {runner(1, 500, 0), runner(100, 500, 0)};
    struct gpu g = {.runners = two, .n = 2};

    two[1].until = 0;
    for (double until = SHARE_PERIOD_NS; until < 1e9; until += SHARE_PERIOD_NS) {
        two[1].waited = true;
        run(&g, until);
    }
    CHECK(two[0].work > .98 * 1e9);
}

/* Whatever is reported. */
static void numbers_are_bounded(void)
{
    struct share_part a = {.weight = 1, .occupied_ns = UINT64_MAX, .busy_ns = UINT64_MAX, .waits = true}, b = {.weight = 10000},
                      *parts[] = {&a, &b};

    for (int i = 0; i < 1000; i++) {
        share_step(parts, 2, i % 7 ? SHARE_PERIOD_NS : UINT64_C(60000000000));
        parts[0] = &a, parts[1] = &b;
        CHECK(a.owed_ns <= (double)SHARE_DEBT_NS && a.credit_ns >= -(double)SHARE_DEBT_NS);
        CHECK(b.credit_ns <= (double)SHARE_SAVED_NS && b.allowed_ns >= SHARE_PERIOD_NS / 2);
        a.occupied_ns = i % 3 ? UINT64_MAX : 0;
        a.ahead_ns = i % 2 ? UINT64_MAX : 0;
    }
}

int main(void)
{
    static const struct test tests[] = {
        {"weights_are_kept", weights_are_kept, 60},     {"weights_are_kept_by_turns", weights_are_kept_by_turns, 60},
        {"three_and_one", three_and_one, 60},           {"little_is_free", little_is_free, 60},
        {"gaps_are_no_loss", gaps_are_no_loss, 60},     {"alone_never_waits", alone_never_waits, 60},
        {"the_rest_is_taken", the_rest_is_taken, 60},   {"nobody_waits_for_nobody", nobody_waits_for_nobody, 60},
        {"lies_are_no_demand", lies_are_no_demand, 60}, {"numbers_are_bounded", numbers_are_bounded, 60}};

    return tests_run("share_law", TESTS(tests));
}
