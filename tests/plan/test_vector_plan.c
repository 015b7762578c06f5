/* SPDX-License-Identifier: MIT
 *
 * test_vector_plan.c - the plans of collectives, for all ranks together: every element is delivered once, levels ascend, every order of
 * execution comes to an end, nobody ends before his input has been read; also for vectors of more than 2^31 elements.
 *
 * Each run draws other cases. FCC_TEST_SEED=N repeats a run; a failure prints the seed and the case.
 */
#include "kernels/plan/compute/vector.h"
#include "kernels/plan/exchange/reduce.h"
#include "tests/bed/harness.h"
#include "tests/plan/plan_case.h"
#include "tests/plan/plan_expect.h"

enum { CASES = 3000, ELEMENTS = 700 };

static enum fcc_op random_op(void)
{
    enum fcc_op op;

    do
        op = (enum fcc_op)random_below(FCC_OP_COUNT);
    while (op_spec(op)->compute != COMPUTE_VECTOR);
    return op;
}

/* A problem of random parts, of about `most` elements each. */
static struct problem *problem_draw(enum fcc_op op, int64_t most)
{
    static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_BF16, FCC_U8, FCC_F64};
    struct problem *p = problem_of(op, 1 + (int)random_below(RANKS), dtypes[random_below(4)]);
    int64_t to[RANKS];

    p->dim[DIM_M] = 1;
    p->dim[DIM_ROOT] = random_below(p->nranks);
    for (int r = 0; r < p->nranks; r++) {
        p->node_of[r] = (int32_t)random_below(1 + random_below(4));
        p->rank_dim[DIM_N][r] = p->dim[DIM_N];
        p->rank_dim[DIM_K][r] = random_below(4) ? random_below(most) : 0;
        p->dim[DIM_N] += p->rank_dim[DIM_K][r];
    }
    for (int r = 0; r < p->nranks && op_counts(op); r++) {
        for (int q = 0; q < p->nranks; q++)
            to[q] = random_below(3) ? random_below(most / p->nranks + 1) : 0;
        problem_counts_set(p, r, to);
    }
    return p;
}

static void plans_make(struct test_case *c, int number)
{
    struct error e = {0};

    (void)snprintf(case_text, sizeof(case_text), "case %d: %s, %d ranks, %ld elements", number, op_name(c->problem->op),
                   c->problem->nranks, (long)c->problem->dim[DIM_N]);
    for (int r = 0; r < c->problem->nranks; r++)
        if (plan_make(c->problem, r, &c->schedule, &c->plans[r], &e))
            fail_msg("%s: rank %d: %s", case_text, r, e.text);
}

/* The elements of slice s of a part that begins at column `first` and has so many elements. */
static int64_t elements_of(const struct problem *p, const struct slice *s, int64_t first, int64_t part)
{
    int64_t unit = vector_unit(p), begin = (s->col - first) * unit, most = s->cols * unit;

    EXPECT(begin >= 0 && begin < part && s->rows == 1 && s->row == 0);
    return most < part - begin ? most : part - begin;
}

/* Each rank's slices for each destination follow each other and are its whole part. */
static void expect_puts(const struct test_case *c)
{
    for (int r = 0; r < c->problem->nranks; r++) {
        int64_t next[RANKS] = {0}, done[RANKS] = {0};
        for (uint32_t i = 0; i < c->plans[r]->nslices; i++) {
            const struct slice *s = &c->plans[r]->slices[i];
            if (s->kind == SLICE_WAIT)
                continue;
            EXPECT(s->kind == SLICE_COMPUTE_PUT && s->dst < c->problem->nranks && s->col == next[s->dst] &&
                   s->dst_col == s->col);
            next[s->dst] += s->cols;
            done[s->dst] += elements_of(c->problem, s, 0, vector_part(c->problem, r, s->dst).count);
        }
        for (int q = 0; q < c->problem->nranks; q++)
            EXPECT(done[q] == vector_part(c->problem, r, q).count);
    }
}

/* Each rank puts its vector to all, itself, too, and reduces all of it for itself. */
static void expect_whole(const struct test_case *c, int rank)
{
    const struct problem *p = c->problem;
    int64_t put[RANKS] = {0}, reduced = 0, all = p->dim[DIM_N];

    for (uint32_t i = 0; i < c->plans[rank]->nslices; i++) {
        const struct slice *s = &c->plans[rank]->slices[i];
        if (s->kind == SLICE_WAIT)
            continue;
        EXPECT(s->kind == SLICE_COMPUTE_PUT || (s->kind == SLICE_REDUCE && s->dst == rank));
        int64_t *done = s->kind == SLICE_REDUCE ? &reduced : &put[s->dst];
        EXPECT(*done == s->col && s->dst_col == s->col);
        *done += elements_of(p, s, 0, all);
    }
    EXPECT(reduced == all);
    for (int q = 0; q < p->nranks; q++)
        EXPECT(put[q] == all);
}

/* Over nodes, of the sums that one rank gets, that rank and the owner's node hear, and nobody else, whatever the route: each word costs a message. */
static void expect_word(const struct test_case *c, int owner, const struct slice *s)
{
    const struct plan *plan = c->plans[owner];
    const int32_t *node_of = c->problem->node_of;

    if (plan->schedule.target != PLAN_CPU || !plan_is_over_nodes(c->problem) || vector_receiver(c->problem, owner) < 0)
        return;
    for (int q = 0; q < c->problem->nranks; q++)
        EXPECT(plan_reaches(plan, plan->groups[s->group].dst, q) ==
               (q == vector_receiver(c->problem, owner) || node_of[q] == node_of[owner]));
}

/* Each owner reduces its chunk, whole, for whom it is. */
static void expect_reduces(const struct test_case *c)
{
    const struct problem *p = c->problem;
    int64_t elements[RANKS + 1], columns[RANKS + 1] = {0};

    if (reduce_is_by_all(p, &c->plans[0]->schedule)) {
        for (int r = 0; r < p->nranks; r++)
            expect_whole(c, r);
        return;
    }
    vector_chunks(p, elements);
    EXPECT(elements[0] == 0 && elements[p->nranks] == p->dim[DIM_N]);
    for (int r = 0; r < p->nranks; r++)
        columns[r + 1] = columns[r] + vector_columns(elements[r + 1] - elements[r], vector_unit(p));
    for (int r = 0; r < p->nranks; r++) {
        int64_t done = 0, receiver = vector_receiver(p, r);
        for (uint32_t i = 0; i < c->plans[r]->nslices; i++) {
            const struct slice *s = &c->plans[r]->slices[i];
            if (s->kind != SLICE_REDUCE)
                continue;
            EXPECT(receiver < 0 || s->dst == receiver);
            expect_word(c, r, s);
            done += elements_of(p, s, columns[r], elements[r + 1] - elements[r]);
        }
        EXPECT(done == elements[r + 1] - elements[r]);
    }
}

static bool reads_input(const struct slice *s)
{
    return s->kind != SLICE_WAIT && s->kind != SLICE_FORWARD;
}

/* Whether a node's ranks have not ended the operator before the slice is done: it is theirs, or stores into a result of theirs. */
static bool concerns(const struct test_case *c, int from, const struct slice *s, int node)
{
    bool does = c->problem->node_of[from] == node;

    for (int q = 0; q < c->problem->nranks && s->kind == SLICE_REDUCE; q++)
        does |= c->problem->node_of[q] == node && plan_reaches(c->plans[from], s->dst, q);
    return does && reads_input(s);
}

/* Workgroups take turns at random. On one node no rank ends before every slice that reads its input or stores into its result has; of several nodes
 * none does, all of whose ranks a worker lets end together. */
static void expect_end(const struct test_case *c)
{
    static bool flags[RANKS][FLAGS];
    uint32_t next[RANKS] = {0}, *left[RANKS];
    int n = c->problem->nranks, ended = 0, idle = 0;
    const bool together = plan_is_over_nodes(c->problem);
    int64_t busy[RANKS] = {0}; /* by node: slices that concern it */
    int going[RANKS] = {0};    /* by node: ranks that have not ended */

    memset(flags, 0, sizeof(flags));
    for (int r = 0; r < n; r++) {
        left[r] = calloc(c->plans[r]->ngroups + 1, sizeof(uint32_t));
        assert_non_null(left[r]);
        for (uint32_t g = 0; g < c->plans[r]->ngroups; g++)
            left[r][g] = c->plans[r]->groups[g].slices;
        for (uint32_t i = 0; i < c->plans[r]->nslices; i++)
            for (int node = 0; node < n; node++)
                busy[node] += concerns(c, r, &c->plans[r]->slices[i], node);
        going[c->problem->node_of[r]] += c->plans[r]->nslices > 0;
        ended += c->plans[r]->nslices == 0;
    }
    for (int r = (int)random_below(n); ended < n && idle <= 8 * n; r = idle > 4 * n ? (r + 1) % n : (int)random_below(n)) {
        const struct plan *plan = c->plans[r];
        const struct slice *s = &plan->slices[next[r]];
        bool ready = next[r] < plan->nslices;
        for (uint32_t w = 0; ready && w < s->wait_count; w++)
            ready = flags[r][s->wait_first + w * s->wait_stride];
        idle = ready ? 0 : idle + 1;
        if (!ready)
            continue;
        for (int node = 0; node < n; node++)
            busy[node] -= concerns(c, r, s, node);
        const int here = c->problem->node_of[r];
        const bool is_over = ++next[r] == plan->nslices;
        ended += is_over;
        going[here] -= is_over;
        EXPECT(!is_over || (together && going[here]) || busy[here] == 0 || op_spec(plan->op)->exchange != EXCHANGE_REDUCE);
        if (s->group == SLICE_NO_GROUP || --left[r][s->group])
            continue;
        for (int q = 0; q < n; q++)
            if (plan_reaches(plan, plan->groups[s->group].dst, q))
                flags[q][plan->groups[s->group].flag] = true;
    }
    EXPECT(ended == n);
    for (int r = 0; r < n; r++)
        free(left[r]);
}

static void test_random(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        struct test_case c = {.problem = problem_draw(random_op(), ELEMENTS)};
        c.schedule = (struct schedule){.kind = (enum fcc_schedule_kind)(FCC_SCHEDULE_FUSED + i % 4), .workgroups = 2};
        c.schedule.route = (enum plan_route)random_below(PLAN_HIERARCHICAL + 1);
        c.schedule.slice_cols = (uint32_t)(30 + random_below(ELEMENTS));
        plans_make(&c, i);
        if (c.schedule.kind != FCC_SCHEDULE_COMPUTE_ONLY) {
            if (reduces(c.problem->op))
                expect_reduces(&c);
            else
                expect_puts(&c);
        }
        for (int r = 0; r < c.problem->nranks; r++)
            expect_groups(&c, c.plans[r]);
        expect_levels(&c);
        expect_flags(&c);
        expect_end(&c);
        case_close(&c);
    }
}

/* Beyond 2^31 elements, with parts that no unit divides. */
static void test_huge(void **state)
{
    (void)state;
    for (int i = 0; i < 60; i++) {
        struct test_case c = {.problem = problem_draw(random_op(), INT64_C(1) << (30 + i % 6)),
                              .schedule = {.kind = FCC_SCHEDULE_FUSED, .workgroups = 2}};
        plans_make(&c, i);
        if (reduces(c.problem->op))
            expect_reduces(&c);
        else
            expect_puts(&c);
        case_close(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_huge)};

    random_state = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
