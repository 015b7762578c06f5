/* SPDX-License-Identifier: MIT
 *
 * test_lanes.c - the choice of lanes (daemon/worker/device/gpu/lanes.h), against a machine of which the test knows what each lane is worth.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "daemon/worker/device/gpu/lanes.h"

#define AHEAD 4 /* launches that have their lanes already when others are chosen */

/* Hand-overs cost as much as the slowest GPU's. */
struct machine {
    uint32_t gpus, fast; /* bit g of fast: GPU g's second lane is the fast one */
    uint64_t fast_ns, slow_ns;
    uint64_t work_ns; /* of the client, between two operators */
    uint64_t now_ns, busy_ns;
    unsigned noise_ns, seed;
    unsigned hiccups; /* one of so many hand-overs takes that much longer; 0: none */
    uint64_t hiccup_ns;
    uint64_t look_ns;  /* how often somebody looks for ends; 0: all the time */
    uint64_t first_ns; /* what the first use of lanes takes more */
    uint32_t used[2];  /* bit g: GPU g's first, second lane */
    uint32_t coming[AHEAD];
};

static uint64_t hand_over(struct machine *m, uint32_t lanes)
{
    uint64_t ns = ((lanes ^ m->fast) & m->gpus ? m->slow_ns : m->fast_ns) + m->work_ns;

    if (m->hiccups && (unsigned)rand_r(&m->seed) % m->hiccups == 0)
        ns += m->hiccup_ns;
    for (int lane = 0; lane < 2; lane++) {
        uint32_t here = m->gpus & (lane ? lanes : ~lanes);
        ns += here & ~m->used[lane] ? m->first_ns : 0;
        m->used[lane] |= here;
    }
    return ns + (m->noise_ns ? (uint64_t)rand_r(&m->seed) % m->noise_ns : 0);
}

/* So many operators, one behind the other but for the first. */
static void operators(struct machine *m, struct gpu_lanes *s, unsigned n, uint32_t *slow)
{
    for (unsigned i = 0; i < n; i++) {
        uint32_t lanes = m->coming[0];
        for (int a = 0; a + 1 < AHEAD; a++)
            m->coming[a] = m->coming[a + 1];
        m->coming[AHEAD - 1] = s->use;
        m->now_ns += hand_over(m, lanes) + m->busy_ns;
        if (slow)
            *slow += ((lanes ^ m->fast) & m->gpus) != 0;
        uint64_t late = m->look_ns ? m->look_ns - m->now_ns % m->look_ns : 0;
        lanes_note(s, lanes, i > 0, m->now_ns + late, m->busy_ns);
    }
}

static void start(struct machine *m, struct gpu_lanes *s)
{
    *s = (struct gpu_lanes){0};
    lanes_begin(s, m->gpus);
    for (int a = 0; a < AHEAD; a++)
        m->coming[a] = s->use;
}

#define OPERATORS 2500 /* enough for all trials of 8 GPUs */
#define LATER 40000u   /* in which it is tried again, ever more seldom */

static void found(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 200; seed++) {
        static const uint32_t machines[] = {1, 3, 0xf, 0xff, 0x24};
        uint32_t gpus = machines[seed % 5], all = seed / 5 % 2 ? gpus : 0;
        struct machine m = {.gpus = gpus,
                            .fast = all,
                            .fast_ns = 9000,
                            .slow_ns = 15000,
                            .busy_ns = seed % 7 * 5000,
                            .now_ns = 1,
                            .noise_ns = 1500,
                            .look_ns = seed % 3 * 10000,
                            .seed = seed};
        struct gpu_lanes s;
        start(&m, &s);
        operators(&m, &s, OPERATORS, NULL);
        assert_int_equal(s.best, m.fast);
        uint32_t slow = 0;
        operators(&m, &s, LATER, &slow);
        assert_true(slow < LATER / 5);
        assert_int_equal(s.best, m.fast);
    }
}

/* At the first attempt, though the first use of lanes makes a window of theirs as slow as the others. */
static void first_use(void **state)
{
    (void)state;
    for (uint32_t fast = 0; fast < 4; fast++) {
        struct machine m = {.gpus = 3, .fast_ns = 8500, .slow_ns = 13000, .now_ns = 1, .noise_ns = 500, .first_ns = 90000};
        struct gpu_lanes s;
        m.fast = fast;
        start(&m, &s);
        operators(&m, &s, 400, NULL);
        assert_int_equal(s.best, fast);
    }
}

/* Whatever each GPU's lane is: nothing shows until all are right. */
static void each_its_own(void **state)
{
    static const uint32_t machines[] = {3, 0xb, 0xf, 0x55};

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t fast = 0; fast < 256; fast++) {
            struct machine m = {
                .gpus = machines[i], .fast_ns = 9000, .slow_ns = 15000, .now_ns = 1, .noise_ns = 1000, .seed = fast};
            struct gpu_lanes s;
            m.fast = fast & m.gpus;
            start(&m, &s);
            operators(&m, &s, OPERATORS, NULL);
            assert_int_equal(s.best, m.fast);
        }
}

/* Of eight GPUs those that differ in up to two from the lanes as they are, or from all others. */
static void two_of_eight(void **state)
{
    (void)state;
    for (uint32_t fast = 0; fast < 256; fast++) {
        int others = __builtin_popcount(fast);
        struct machine m = {
            .gpus = 0xff, .fast = fast, .fast_ns = 9000, .slow_ns = 15000, .now_ns = 1, .noise_ns = 1000, .seed = fast};
        struct gpu_lanes s;
        if (others > 2 && others < 6)
            continue;
        start(&m, &s);
        operators(&m, &s, OPERATORS, NULL);
        assert_int_equal(s.best, fast);
    }
}

/* Now and then something else takes the machine, so that a window says nothing: found all the same, if not the first time. */
static void hiccups(void **state)
{
    unsigned at_once = 0, later = 0;

    (void)state;
    for (unsigned seed = 0; seed < 200; seed++) {
        struct machine m = {.gpus = 0xf,
                            .fast = seed % 16,
                            .fast_ns = 9000,
                            .slow_ns = 15000,
                            .now_ns = 1,
                            .noise_ns = 1000,
                            .hiccup_ns = 150000,
                            .hiccups = 100,
                            .seed = seed};
        struct gpu_lanes s;
        start(&m, &s);
        operators(&m, &s, 1000, NULL);
        at_once += s.best == m.fast;
        operators(&m, &s, LATER, NULL);
        later += s.best == m.fast;
    }
    assert_true(at_once > 100);
    assert_true(later > 190);
}

/* Lanes that are worth the same: what was there stays. */
static void no_difference(void **state)
{
    struct machine m = {.gpus = 3, .fast_ns = 9000, .slow_ns = 9000, .now_ns = 1, .noise_ns = 400, .seed = 1};
    struct gpu_lanes s;

    (void)state;
    start(&m, &s);
    operators(&m, &s, OPERATORS, NULL);
    assert_int_equal(s.best, 0);
}

/* Hand-overs become slow, as the client has made a stream: found again, soon. Then the client works between its operators: tried,
 * ever more seldom. */
static void changes(void **state)
{
    struct machine m = {.gpus = 3, .fast_ns = 9000, .slow_ns = 15000, .now_ns = 1, .noise_ns = 500, .seed = 2};
    struct gpu_lanes s;
    uint32_t slow = 0;

    (void)state;
    start(&m, &s);
    operators(&m, &s, OPERATORS, NULL);
    assert_int_equal(s.best, 0);
    m.fast = 3;
    operators(&m, &s, OPERATORS, NULL);
    assert_int_equal(s.best, 3);
    for (int i = 0; i < 400; i++) {
        m.work_ns = i % 2 ? 200000 : 0;
        operators(&m, &s, 100, &slow);
        assert_int_equal(m.fast, 3);
    }
    assert_true(slow < 3000); /* of 40000 */
    m.work_ns = 0;
    operators(&m, &s, OPERATORS, NULL);
    assert_int_equal(s.best, 3);
}

/* Operators that are waited for one by one say nothing, whatever they take. */
static void one_by_one(void **state)
{
    struct machine m = {.gpus = 3, .fast = 3, .fast_ns = 9000, .slow_ns = 15000, .now_ns = 1, .seed = 3};
    struct gpu_lanes s;

    (void)state;
    start(&m, &s);
    for (int i = 0; i < OPERATORS; i++)
        operators(&m, &s, 1, NULL);
    assert_int_equal(s.best, 0);
    assert_int_equal(s.best_ns, 0);
    lanes_begin(&s, 3); /* the same GPUs: nothing begins anew */
    operators(&m, &s, OPERATORS, NULL);
    assert_int_equal(s.best, 3);
    lanes_begin(&s, 3);
    assert_int_equal(s.best, 3);
    lanes_begin(&s, 7);
    assert_int_equal(s.best, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(found),        cmocka_unit_test(first_use),  cmocka_unit_test(each_its_own),
        cmocka_unit_test(two_of_eight), cmocka_unit_test(hiccups),    cmocka_unit_test(no_difference),
        cmocka_unit_test(changes),      cmocka_unit_test(one_by_one),
    };

    return cmocka_run_group_tests_name("lanes", tests, NULL, NULL);
}
