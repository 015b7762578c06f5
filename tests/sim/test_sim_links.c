/* SPDX-License-Identifier: MIT
 *
 * test_sim_links.c - how flows share links: fair, found again by a simulation that finds every rate anew, and which ways they take.
 */
#include "tests/sim/sim_case.h"

#include <math.h>

#include "kernels/sim/flows.h"

/* Random flows over random links: the rates fill no link beyond its bandwidth, and each flow has a full link on which no flow has more. With a tolerance links are
 * filled up to as much more or less, and each flow has a link that is full so far. */
static void fair_with(double tolerance)
{
    enum { LINKS = 24, FLOWS = 80, CHANGES = 400 };
    struct sim_machine m = machine_of(LINKS / 2, 1);
    const uint32_t memory[2] = {NONE, NONE};

    m.fabric.tolerance = tolerance;
    m.node.store_bytes_s = 2000;
    for (int round = 0; round < 20; round++) {
        struct sim *s = NULL;
        struct error e = {0};
        uint32_t flows[FLOWS], n = 0;
        assert_int_equal(sim_new(&m, 1, &s, &e), 0);
        for (uint32_t i = 0; i + 1 < s->nlinks; i++)
            link_make(s, i, 1000.0 + (double)random_below(1000000), false);
        for (int change = 0; change < CHANGES; change++) {
            if (n == FLOWS || (n > 0 && random_below(3) == 0)) {
                const uint32_t k = (uint32_t)random_below(n);
                flow_end(s, flows[k]);
                flows[k] = flows[--n];
            } else {
                uint32_t path[5], length = 1 + (uint32_t)random_below(4), first = (uint32_t)random_below(LINKS);
                for (uint32_t k = 0; k < length; k++)
                    path[k] = (first + k * (1 + first % 5)) % LINKS;
                if (random_below(4) == 0)
                    path[length++] = s->store_link;
                flows[n++] = flow_begin(s, 1e18, path, length, memory, 0, true);
            }
            if (random_below(2))
                continue;
            assert_true(links_settle(s));
            for (uint32_t i = 0; i < LINKS; i++) {
                double sum = 0;
                for (uint32_t k = 0; k < s->links[i].n; k++)
                    sum += s->paces[s->links[i].flows[k] >> s->path_shift].rate;
                assert_true(sum == link_sum(s, i) && sum <= s->links[i].bytes_s * (1 + tolerance));
            }
            for (uint32_t k = 0; k < n; k++) {
                const struct pace *f = &s->paces[flows[k]];
                const uint32_t *path = &s->hops[flows[k] << s->path_shift];
                const double rate = f->rate;
                bool bound = path[f->nlinks - 1] == s->store_link && rate == s->links[s->store_link].bytes_s;
                assert_true(rate > 0 && rate == s->gauges[f->holder].level);
                for (unsigned j = 0; j < f->nlinks && !bound; j++) {
                    const struct link *l = &s->links[path[j]];
                    if (l->fixed)
                        continue;
                    bound = link_sum(s, path[j]) + l->n >= l->bytes_s * (1 - tolerance); /* rates are whole */
                    for (uint32_t q = 0; q < l->n && bound && !(tolerance > 0); q++)
                        bound = s->paces[l->flows[q] >> s->path_shift].rate <= rate;
                }
                assert_true(bound);
            }
        }
        sim_free(s);
    }
}

static void test_fair(void **state)
{
    (void)state;
    fair_with(0);
    fair_with(0.02);
}

/* ---- a slow model of the same: every rate anew at every change, by filling all links together ---- */

enum { SLOW_LINKS = 12, SLOW_FLOWS = 60, SLOW_PATH = 4 };
struct slow_flow {
    uint32_t path[SLOW_PATH], length;
    double begin, left, rate, end; /* end: 0: it has not ended */
};

/* Rates of those that are under way at `now`: the link that fills first gives its flows what they have for good, then the next. */
static void slow_rates(const double bytes_s[], struct slow_flow flows[], double now)
{
    double rest[SLOW_LINKS];
    bool open[SLOW_FLOWS];

    memcpy(rest, bytes_s, sizeof(rest));
    for (int f = 0; f < SLOW_FLOWS; f++)
        open[f] = flows[f].end == 0 && flows[f].begin <= now;
    for (bool some = true; some;) {
        double least = 0;
        int narrow = -1, count[SLOW_LINKS] = {0};
        for (int f = 0; f < SLOW_FLOWS; f++)
            for (uint32_t k = 0; open[f] && k < flows[f].length; k++)
                count[flows[f].path[k]]++;
        for (int i = 0; i < SLOW_LINKS; i++)
            if (count[i] && (narrow < 0 || rest[i] / count[i] < least)) {
                narrow = i;
                least = rest[i] / count[i];
            }
        some = narrow >= 0;
        for (int f = 0; f < SLOW_FLOWS && some; f++) {
            bool through = false;
            for (uint32_t k = 0; k < flows[f].length; k++)
                through |= flows[f].path[k] == (uint32_t)narrow;
            if (!open[f] || !through)
                continue;
            open[f] = false;
            flows[f].rate = least;
            for (uint32_t k = 0; k < flows[f].length; k++)
                rest[flows[f].path[k]] -= least;
        }
    }
}

static void slow_run(const double bytes_s[], struct slow_flow flows[])
{
    double now = 0;

    for (int left = SLOW_FLOWS; left > 0;) {
        double next = INFINITY;
        slow_rates(bytes_s, flows, now);
        for (int f = 0; f < SLOW_FLOWS; f++) {
            if (flows[f].end > 0)
                continue;
            const double at = flows[f].begin > now ? flows[f].begin : now + flows[f].left / flows[f].rate;
            next = at < next ? at : next;
        }
        for (int f = 0; f < SLOW_FLOWS; f++) {
            if (flows[f].end > 0 || flows[f].begin > now)
                continue;
            flows[f].left -= flows[f].rate * (next - now);
            if (flows[f].left <= 1e-9 * bytes_s[0]) {
                flows[f].end = next;
                left--;
            }
        }
        now = next;
    }
}

/* The same flows begin and end at the same times, whoever finds their rates, and carry as many bytes over each link. */
static void test_slow(void **state)
{
    struct sim_machine m = machine_of(SLOW_LINKS / 2, 1);
    const uint32_t memory[2] = {NONE, NONE};

    (void)state;
    for (int round = 0; round < 50; round++) {
        struct slow_flow flows[SLOW_FLOWS] = {{.length = 0}};
        double bytes_s[SLOW_LINKS], carried[SLOW_LINKS] = {0}, ends[SLOW_FLOWS] = {0};
        struct sim *s = NULL;
        struct error e = {0};
        struct event event;
        assert_int_equal(sim_new(&m, 1, &s, &e), 0);
        for (uint32_t i = 0; i < SLOW_LINKS; i++) {
            bytes_s[i] = 1e9 * (double)(1 + random_below(20));
            link_make(s, i, bytes_s[i], false);
        }
        for (uint32_t f = 0; f < SLOW_FLOWS; f++) {
            const uint32_t first = (uint32_t)random_below(SLOW_LINKS), step = 1 + 2 * (uint32_t)random_below(2);
            flows[f].length = 1 + (uint32_t)random_below(SLOW_PATH);
            for (uint32_t k = 0; k < flows[f].length; k++)
                flows[f].path[k] = (first + k * step) % SLOW_LINKS;
            flows[f].begin = 1e-3 * (double)random_below(40);
            flows[f].left = 1e6 * (double)(1 + random_below(200));
            for (uint32_t k = 0; k < flows[f].length; k++)
                carried[flows[f].path[k]] += flows[f].left;
            assert_true(event_put(s, EVENT_START, f, ps_of(flows[f].begin)));
        }
        for (;;) {
            if (!event_due(s))
                assert_true(links_settle(s));
            if (!event_take(s, &event))
                break;
            s->now = event.at;
            if (event.kind == EVENT_START) {
                const struct slow_flow *f = &flows[event.id];
                (void)flow_begin(s, f->left, f->path, f->length, memory, event.id, FLOW_STORE);
                continue;
            }
            for (uint32_t id; (id = link_ended(s, event.id)) != NONE;) {
                ends[s->flows[id].owner] = (double)s->now / PS_PER_S;
                flow_end(s, id);
            }
        }
        slow_run(bytes_s, flows);
        for (int f = 0; f < SLOW_FLOWS; f++)
            expect_near(ends[f], flows[f].end, 1e6);
        for (int i = 0; i < SLOW_LINKS; i++)
            assert_true(s->carried[i] == carried[i] && link_sum(s, i) == 0);
        sim_free(s);
    }
}

enum { WAYS = 40, WAY_LINKS = 24, WAY_MESSAGES = 5 };
struct way {
    uint32_t path[4], length;
    double bytes;
};
/* When messages end that follow each other on the same ways, and what the links have carried. */
struct ways_end {
    uint64_t at[WAYS][WAY_MESSAGES];
    double carried[WAY_LINKS];
};

/* again: each takes over the links of the one before. */
static void ways_run(const struct way ways[WAYS], bool again, struct ways_end *out)
{
    const struct sim_machine m = machine_of(WAY_LINKS / 2, 1);
    const struct message message = {.latency = 0};
    const uint32_t memory[2] = {0, 1};
    uint32_t ended[WAYS] = {0};
    struct sim *s = NULL;
    struct error e = {0};
    struct event event;

    assert_int_equal(sim_new(&m, 1, &s, &e), 0);
    for (uint32_t i = 0; i < WAY_LINKS; i++) {
        link_make(s, i, 1e9 * (double)(1 + i % 7), false);
        s->links[i].wide = i % 6 == 5;
    }
    for (uint32_t i = 0; i < WAYS; i++)
        (void)flow_begin(s, ways[i].bytes, ways[i].path, ways[i].length, memory, i, FLOW_MESSAGE);
    for (;;) {
        if (!event_due(s))
            assert_true(links_settle(s));
        if (!event_take(s, &event))
            break;
        s->now = event.at;
        for (uint32_t id; (id = link_ended(s, event.id)) != NONE;) {
            const uint32_t i = s->flows[id].owner;
            const bool last = ended[i] + 1 == WAY_MESSAGES;
            out->at[i][ended[i]++] = s->now;
            if (last || !again)
                flow_end(s, id);
            else
                flow_stop(s, id, &message);
            if (!last && again)
                flow_again(s, ways[i].bytes / ended[i], i);
            else if (!last)
                (void)flow_begin(s, ways[i].bytes / ended[i], ways[i].path, ways[i].length, memory, i, FLOW_MESSAGE);
        }
    }
    for (uint32_t i = 0; i < WAY_LINKS; i++) {
        out->carried[i] = s->carried[i];
        assert_true(s->links[i].n == 0 && link_sum(s, i) == 0);
    }
    sim_free(s);
}

/* A message that takes over the links of the one before it ends at the same picosecond as one that is put on them anew. */
static void test_again(void **state)
{
    (void)state;
    for (int round = 0; round < 50; round++) {
        struct way ways[WAYS] = {{.length = 0}};
        struct ways_end anew = {.carried = {0}}, again = {.carried = {0}};
        for (int i = 0; i < WAYS; i++) {
            const uint32_t first = (uint32_t)random_below(WAY_LINKS), step = 1 + 2 * (uint32_t)random_below(2);
            ways[i].length = 2 + (uint32_t)random_below(3);
            ways[i].bytes = 6e7 * (double)(1 + random_below(20));
            for (uint32_t k = 0; k < ways[i].length; k++)
                ways[i].path[k] = (first + k * step) % WAY_LINKS;
        }
        ways_run(ways, false, &anew);
        ways_run(ways, true, &again);
        assert_memory_equal(anew.at, again.at, sizeof(anew.at));
        for (int i = 0; i < WAY_LINKS; i++)
            assert_true(anew.carried[i] == again.carried[i]);
        for (int i = 0; i < WAYS; i++)
            assert_true(again.at[i][WAY_MESSAGES - 1] > 0);
    }
}

static void test_torus(void **state)
{
    struct sim_machine m = machine_of(64, 1);
    struct sim *s = NULL;
    struct error e = {0};
    uint32_t path[PATH_MAX_LINKS];
    uint64_t latency;

    (void)state;
    m.fabric = (struct sim_fabric){
        .kind = SIM_TORUS, .bytes_s = RATE, .dimensions = 3, .shape = {4, 4, 4}, .latency_s = 1, .hop_s = 0.5, .in_flight = 1};
    assert_int_equal(sim_new(&m, 1, &s, &e), 0);
    for (int a = 0; a < 64; a++)
        for (int b = 0; b < 64; b++) {
            int far = 0;
            for (int stride = 1; stride < 64; stride *= 4) {
                const int d = abs(a / stride % 4 - b / stride % 4);
                far += d > 2 ? 4 - d : d;
            }
            if (a == b)
                continue;
            assert_int_equal(fabric_path(s, a, b, 0, path, &latency), far + 2);
            assert_true(latency == (uint64_t)(1e12 + (far - 1) * 5e11));
            for (int i = 0; i < far; i++)
                assert_true(path[1 + i] >= s->fabric_first && path[1 + i] < s->node_first);
        }
    sim_free(s);
    m.fabric.shape[0] = 5;
    assert_int_equal(sim_new(&m, 1, &s, &e), -EINVAL);
    assert_string_equal(e.text, "fabric: shape: a torus of 80 nodes: there are 64");
}

static void test_graph(void **state)
{
    enum { A = SIM_MAX_NODES, B };
    struct sim_cable cables[] = {{0, A, RATE}, {A, 0, RATE}, {1, A, RATE},     {A, 1, RATE},
                                 {2, B, RATE}, {B, 2, RATE}, {A, B, RATE / 2}, {B, A, RATE / 2}};
    struct sim_machine m = machine_of(3, 1);
    struct sim *s = NULL;
    struct error e = {0};

    (void)state;
    m.fabric =
        (struct sim_fabric){.kind = SIM_GRAPH, .bytes_s = RATE, .in_flight = 4, .cables = cables, .ncables = 8, .nswitches = 2};
    expect_near(seconds_of(&m, vector_of(FCC_OP_SEND_RECEIVE, 3, 3, EACH)), 2 * BYTES / RATE, 1e5);
    m.fabric.ncables = 6;
    assert_int_equal(sim_new(&m, 1, &s, &e), -EINVAL);
    assert_string_equal(e.text, "fabric: disconnected: no way from node 0 to node 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fair),  cmocka_unit_test(test_slow),  cmocka_unit_test(test_again),
        cmocka_unit_test(test_torus), cmocka_unit_test(test_graph),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
