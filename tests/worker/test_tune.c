/* SPDX-License-Identifier: MIT
 *
 * test_tune.c - the choice of a schedule for `auto` (daemon/worker/comm/tune.h), from times that the test makes up.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "daemon/worker/comm/tune.h"
#include "kernels/plan/problem.h"

#define TIMES 9 /* of each schedule, until its figure is known */
#define CHOICES 1024

static const struct tune_class class = {.op = FCC_OP_GEMV_ALL_REDUCE, .dtype = FCC_BF16, .bytes = 50, .flops = 50};

/* Run whatever is chosen so often, for which the schedules take these times. How often it was the sequential one. */
static int chosen(struct tune *t, int choices, uint64_t fused_ns, uint64_t sequential_ns)
{
    int sequential = 0;

    for (int i = 0; i < choices; i++) {
        enum fcc_schedule_kind kind = tune_expect(t, &class);
        assert_int_equal(tune_choose(t, &class), kind);
        assert_true(kind == FCC_SCHEDULE_FUSED || kind == FCC_SCHEDULE_SEQUENTIAL);
        sequential += kind == FCC_SCHEDULE_SEQUENTIAL;
        struct tune_sample sample = {.class = class, .kind = kind, .ns = kind == FCC_SCHEDULE_FUSED ? fused_ns : sequential_ns};
        tune_record(t, &sample);
    }
    return sequential;
}

/* What an operator is bound with after such times. */
static enum fcc_schedule_kind best(uint64_t fused_ns, uint64_t sequential_ns)
{
    struct tune *t = tune_new();
    enum fcc_schedule_kind kind;

    assert_non_null(t);
    for (int i = 0; i < 2 * TIMES; i++) {
        assert_false(tune_best(t, &class, &kind));
        assert_int_equal(kind, FCC_SCHEDULE_FUSED); /* while nothing is known */
        (void)chosen(t, 1, fused_ns, sequential_ns);
    }
    assert_true(tune_best(t, &class, &kind));
    free(t);
    return kind;
}

static void faster_one_is_chosen(void **state)
{
    struct tune *t = tune_new();

    (void)state;
    assert_non_null(t);
    assert_int_equal(chosen(t, 2 * TIMES, 10000, 9900), TIMES); /* both are tried */
    assert_true(chosen(t, CHOICES, 10000, 9900) > CHOICES * 9 / 10);
    assert_true(chosen(t, CHOICES, 10000, 10100) < CHOICES); /* the other one is tried again, and has become faster */
    assert_true(chosen(t, CHOICES, 10000, 10100) < CHOICES / 10);
    free(t);
}

/* A bound operator keeps its schedule, so a difference as small as between two measurements of one schedule decides nothing. */
static void bound_one_is_fused_unless_clearly_slower(void **state)
{
    (void)state;
    assert_int_equal(best(10000, 20000), FCC_SCHEDULE_FUSED);
    assert_int_equal(best(10000, 10000), FCC_SCHEDULE_FUSED);
    assert_int_equal(best(10000, 9700), FCC_SCHEDULE_FUSED);
    assert_int_equal(best(10000, 9000), FCC_SCHEDULE_SEQUENTIAL);
    assert_int_equal(best(20000, 10000), FCC_SCHEDULE_SEQUENTIAL);
}

/* Factors in e4m3, and batch invariance, of the same sizes. */
static void factors_are_apart(void **state)
{
    struct problem *p = problem_new(1), *other;
    struct tune_class found[FACTORS_ALL + 1];

    (void)state;
    assert_non_null(p);
    assert_int_equal(problem_begin(p, FCC_OP_GEMV_ALL_REDUCE), 0);
    p->dtype = FCC_BF16;
    p->dim[DIM_M] = 1;
    p->dim[DIM_N] = p->rank_dim[DIM_K][0] = 4096;
    for (uint32_t i = 0; i <= FACTORS_ALL; i++) {
        p->factors = i;
        found[i] = tune_class_of(p);
        other = problem_copy(p);
        assert_non_null(other);
        assert_true(problem_equal(p, other));
        other->factors ^= FACTORS_SECOND_F8;
        assert_false(problem_equal(p, other));
        problem_free(other);
        for (uint32_t j = 0; j < i; j++)
            assert_memory_not_equal(&found[i], &found[j], sizeof(found[i]));
    }
    assert_true(found[FACTORS_SECOND_F8].bytes < found[0].bytes); /* half as much is read */
    problem_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faster_one_is_chosen),
        cmocka_unit_test(bound_one_is_fused_unless_clearly_slower),
        cmocka_unit_test(factors_are_apart),
    };

    return cmocka_run_group_tests_name("tune", tests, NULL, NULL);
}
