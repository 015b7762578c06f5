/* SPDX-License-Identifier: MIT
 *
 * test_batch.c - FCC_SCHEDULE_BATCH_INVARIANT: the cases of batch_cases.h, drawn at random, on one node and over several; and requests that are batch
 * invariant by turns. FCC_TEST_DEVICE=cuda or hip: the same on GPUs.
 */
#include <errno.h>

#include "tests/operators/batch_cases.h"

enum { CASES = 25 };

static void cases_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;

    random_state = *(const uint64_t *)argument;
    rank_open(&r, rank, all);
    for (unsigned i = 1; i <= (unsigned)test_rounds(CASES); i++) {
        struct batch b = batch_draw(all->n, i, false);
        batch_run(&r, &b);
    }
    rank_close(&r);
}

static void on_one_node(void)
{
    cases_on(1, 3, cases_rank);
}

static void on_two_nodes(void)
{
    cases_on(2, 4, cases_rank);
}

/* ---- what is refused, on all ranks; and another kind of run with the same tensors, which may have begun early ---- */

static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    struct batch b = {.op = OP_GEMV, .dtype = FCC_F32, .n = 200, .k = {700, 700}, .m = 1, .seed = 7};
    static unsigned char bits[200 * sizeof(float)];
    struct rank r;

    (void)argument;
    rank_open(&r, rank, all);
    batch_fill(&r, &b);
    b.schedule = rank ? FCC_SCHEDULE_BATCH_INVARIANT | FCC_SCHEDULE_FLAT : FCC_SCHEDULE_FLAT;
    FAILS(batch_call(&r, &b), -EINVAL);
    CHECK(strstr(fcc_last_error(), "gemv_all_reduce: schedule: rank 1 has batch invariant, rank 0 has no batch invariance"));
    for (int i = 0; i < 200; i++) {
        b.schedule = FCC_SCHEDULE_FLAT | (i % 2 ? FCC_SCHEDULE_BATCH_INVARIANT : 0);
        OK(batch_call(&r, &b));
        result_move(&r, result_bytes(&r, &b), true);
        if (i == 1)
            memcpy(bits, r.images[1], sizeof(bits));
        CHECK(i % 2 == 0 || memcmp(bits, r.images[1], sizeof(bits)) == 0);
        OK(fcc_noop(r.comm));
    }
    rank_close(&r);
}

static void by_turns(void)
{
    pair_run(refused_rank);
}

int main(void)
{
    static const struct test tests[] = {
        {"on_one_node", on_one_node, 120}, {"on_two_nodes", on_two_nodes, 120}, {"by_turns", by_turns, 60}};

    return tests_run("batch", TESTS(tests));
}
