/* SPDX-License-Identifier: MIT
 *
 * test_plan_ranks.c - plans of many ranks: their memory, and for all ranks together that flags are raised once, within the limits, and
 * before they are waited for.
 */
#include <malloc.h>

#include "kernels/plan/exchange/reduce.h"
#include "tests/plan/plan_case.h"

/* Where the ranks are. SPREAD: rank r on node r modulo 4. UNEVEN: two on the first node, three on the second, all others on a third. */
enum placement { ONE_NODE, FOUR_NODES, SPREAD, UNEVEN, PLACEMENTS };

static int32_t node_of(enum placement placement, int rank, int n)
{
    switch (placement) {
    case ONE_NODE:
        return 0;
    case FOUR_NODES:
        return rank * 4 / n;
    case SPREAD:
        return rank % 4;
    default:
        return rank < 2 ? 0 : rank < 5 ? 1 : 2;
    }
}

enum { TILE = 16, TILES = 2 }; /* of sums: columns; tiles of a rank's chunk */

/* A little for each pair of ranks. node: the problem's. */
static struct problem *problem_many(enum fcc_op op, enum placement placement, int n, int32_t node)
{
    struct problem *p = problem_new(n);
    int64_t rows[2 * FCC_MAX_RANKS];

    assert_non_null(p);
    p->node = node;
    for (int r = 0; r < n; r++)
        p->node_of[r] = node_of(placement, r, n);
    assert_int_equal(problem_begin(p, op), 0);
    p->dim[DIM_M] = op == FCC_OP_EMBEDDING_ALL_TO_ALL ? n : reduces(op) ? 2 : 0;
    p->dim[DIM_N] = reduces(op) ? TILES * TILE * n : 8;
    p->dim[DIM_VECTOR] = 4;
    for (int r = 0; r < n; r++) {
        p->rank_dim[DIM_M][r] = op == FCC_OP_EMBEDDING_ALL_TO_ALL;
        p->rank_dim[DIM_N][r] = 1;
        p->rank_dim[DIM_K][r] = op == FCC_OP_EMBEDDING_ALL_TO_ALL ? n : 3;
    }
    for (int r = 0; r < n && op_counts(op); r++) {
        for (int q = 0; q < n; q++)
            rows[q] = (r + q) % 3;
        problem_counts_set(p, r, rows);
    }
    return p;
}

static size_t plan_bytes(const struct plan *p)
{
    return malloc_usable_size((void *)(uintptr_t)p) + malloc_usable_size(p->slices) + malloc_usable_size(p->groups) +
           malloc_usable_size(p->level_first) + malloc_usable_size(p->layout);
}

/* Of all ranks' plans: the level of the slice that raises each flag, [rank][flag]. */
struct raised {
    int n;
    uint32_t nflags;
    uint32_t *levels; /* plus 1; 0: nobody raises it */
};

static uint32_t *level_at(const struct raised *all, int rank, uint32_t flag)
{
    return &all->levels[(size_t)rank * all->nflags + flag];
}

static void raise_note(const struct raised *all, const struct plan *plan, const struct signal_group *g, uint32_t level)
{
    bool one = g->dst != SLICE_DST_ALL && !(g->dst & SLICE_DST_SET);

    assert_true(g->flag < all->nflags);
    for (int r = one ? g->dst : 0; r < (one ? g->dst + 1 : all->n); r++) {
        if (!plan_reaches(plan, g->dst, r))
            continue;
        if (*level_at(all, r, g->flag))
            fail_msg("%s: flag %u of rank %d is raised twice", case_text, g->flag, r);
        *level_at(all, r, g->flag) = level + 1;
    }
}

static void raises_note(const struct raised *all, const struct plan *plan)
{
    uint32_t *left = calloc(plan->ngroups + 1, sizeof(*left)), level = 0;

    assert_non_null(left);
    for (uint32_t i = 0; i < plan->nslices; i++) {
        uint32_t group = plan->slices[i].group;
        while (plan->level_first[level + 1] <= i)
            level++;
        if (group != SLICE_NO_GROUP && ++left[group] == plan->groups[group].slices)
            raise_note(all, plan, &plan->groups[group], level);
    }
    free(left);
}

static void waits_check(const struct raised *all, const struct plan *plan, const struct slice *s, uint32_t level)
{
    for (uint32_t k = 0; k < s->wait_count; k++) {
        uint32_t flag = s->wait_first + k * s->wait_stride;
        if (flag >= all->nflags || !*level_at(all, plan->rank, flag) || *level_at(all, plan->rank, flag) > level)
            fail_msg("%s: rank %d: flag %u, which a slice of kind %d and level %u waits for, is raised at level %d", case_text,
                     plan->rank, flag, s->kind, level, flag < all->nflags ? (int)*level_at(all, plan->rank, flag) - 1 : -2);
    }
}

/* Receive slots lie in the staging memory, which is equally large on all ranks. */
static void slots_check(const struct plan *plan, const struct slice *s)
{
    const struct reduce_layout *l = plan->layout;
    bool stores = puts_tile(s) || s->kind == SLICE_REDUCE_NODE;
    unsigned last = stores ? s->slot : 0u, terms = s->kind == SLICE_REDUCE_NODE ? s->terms + s->wait_count - 1 : 0;

    last = terms > last ? terms : last;
    assert_true(l->local_bytes + (last + 1) * l->slot_bytes <= plan->staging_bytes);
}

static void plans_check(struct plan *const plans[], int n, bool reduce)
{
    struct raised all = {.n = n, .nflags = plans[0]->nflags};

    all.levels = calloc((unsigned)n * (size_t)all.nflags, sizeof(*all.levels));
    assert_non_null(all.levels);
    for (int r = 0; r < n; r++) {
        assert_int_equal(plans[r]->nflags, all.nflags);
        raises_note(&all, plans[r]);
    }
    for (int r = 0; r < n; r++) {
        uint32_t level = 0;
        for (uint32_t i = 0; i < plans[r]->nslices; i++) {
            while (plans[r]->level_first[level + 1] <= i)
                level++;
            waits_check(&all, plans[r], &plans[r]->slices[i], level);
            if (reduce && plans[r]->layout)
                slots_check(plans[r], &plans[r]->slices[i]);
        }
    }
    free(all.levels);
}

/* So many bytes for each rank of the communicator, in the plan of one of them. */
enum { PLAN_BYTES = 800, PLAN_BYTES_MORE = 4096 };

static enum plan_target target = PLAN_CPU;

static void many_check(enum fcc_op op, enum placement placement, int n, enum fcc_schedule_kind kind, enum plan_route route)
{
    static struct plan *plans[2 * FCC_MAX_RANKS];
    struct problem *p = problem_many(op, placement, n, -1);
    const struct schedule schedule = {.kind = kind, .target = target, .route = route, .slice_cols = reduces(op) ? TILE : 0};
    struct error e = {0};

    (void)snprintf(case_text, sizeof(case_text), "%s, %d ranks, placement %d, %s, %s", op_name(op), n, (int)placement,
                   schedule_name(kind), route_name(route));
    for (int r = 0; r < n; r++) {
        if (plan_make(p, r, &schedule, &plans[r], &e))
            fail_msg("%s: rank %d: %s", case_text, r, e.text);
        assert_true(plans[r]->nflags <= PLAN_MAX_FLAGS);
        if (plan_bytes(plans[r]) > PLAN_BYTES * (size_t)n + PLAN_BYTES_MORE)
            fail_msg("%s: rank %d: %zu bytes", case_text, r, plan_bytes(plans[r]));
    }
    plans_check(plans, n, reduces(op));
    for (int r = 0; r < n; r++)
        plan_free(plans[r]);
    problem_free(p);
}

static void test_many(void **state)
{
    static const int numbers[] = {127, 128, 256, FCC_MAX_RANKS};

    (void)state;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        for (size_t op = 0; op < sizeof(all_ops) / sizeof(all_ops[0]); op++)
            for (int placement = 0; placement < PLACEMENTS; placement++) {
                enum fcc_schedule_kind kind = placement % 2 == (int)i % 2
                                                  ? FCC_SCHEDULE_SEQUENTIAL
                                                  : FCC_SCHEDULE_FUSED; /* each with each, of some number */
                many_check(all_ops[op], (enum placement)placement, numbers[i], kind, PLAN_ROUTE_RULE);
                if (reduces(all_ops[op]) && numbers[i] <= 256)
                    many_check(all_ops[op], (enum placement)placement, numbers[i], kind, PLAN_FLAT);
            }
}

/* On a node with a quarter of the ranks: plans of the others have the same sizes and nothing else, and the problem has memory for the
 * counts of its own. */
static void test_elsewhere(void **state)
{
    enum { N = 256, NODE = 2 };

    (void)state;
    for (size_t op = 0; op < sizeof(all_ops) / sizeof(all_ops[0]); op++)
        for (int kind = FCC_SCHEDULE_FUSED; kind <= FCC_SCHEDULE_COMM_ONLY; kind++) {
            struct problem *all = problem_many(all_ops[op], FOUR_NODES, N, -1),
                           *own = problem_many(all_ops[op], FOUR_NODES, N, NODE);
            const struct schedule schedule = {.kind = (enum fcc_schedule_kind)kind, .workgroups = 1};
            struct problem *copy = problem_copy(own);
            (void)snprintf(case_text, sizeof(case_text), "%s, %s", op_name(all_ops[op]), schedule_name(schedule.kind));
            assert_true(copy && problem_equal(own, copy));
            assert_true(problem_bytes(own) <= (N / 4 * 24 + 70) * N + 256);
            for (int r = 0; r < N; r += 9) {
                struct plan *whole = NULL, *sizes = NULL;
                struct error e;
                assert_int_equal(plan_make(all, r, &schedule, &whole, &e), 0);
                assert_int_equal(plan_make(copy, r, &schedule, &sizes, &e), 0);
                assert_int_equal(problem_is_here(own, r), r / (N / 4) == NODE);
                EXPECT(whole->staging_bytes == sizes->staging_bytes && whole->packet_bytes == sizes->packet_bytes);
                EXPECT(whole->transport == sizes->transport && whole->shared == sizes->shared);
                if (problem_is_here(own, r)) {
                    EXPECT(whole->nslices == sizes->nslices && whole->nflags == sizes->nflags);
                    EXPECT(!memcmp(whole->slices, sizes->slices, whole->nslices * sizeof(struct slice)));
                } else {
                    EXPECT(sizes->nslices == 0 && sizes->ngroups == 0 && !sizes->layout && plan_bytes(sizes) <= 1024);
                }
                plan_free(whole);
                plan_free(sizes);
            }
            problem_free(all);
            problem_free(own);
            problem_free(copy);
        }
}

/* Neither a communicator's most ranks nor a GPU's limit plans. */
static void test_beyond(void **state)
{
    (void)state;
    target = PLAN_GPU;
    for (size_t op = 0; op < sizeof(all_ops) / sizeof(all_ops[0]); op++)
        for (int placement = 0; placement < PLACEMENTS; placement++)
            many_check(all_ops[op], (enum placement)placement, 4 * GPU_MAX_RANKS, FCC_SCHEDULE_FUSED, PLAN_ROUTE_RULE);
    many_check(FCC_OP_GEMM_ALL_REDUCE, FOUR_NODES, 2 * FCC_MAX_RANKS, FCC_SCHEDULE_FUSED, PLAN_HIERARCHICAL);
    target = PLAN_CPU;
    many_check(FCC_OP_EMBEDDING_ALL_TO_ALL, SPREAD, 2 * FCC_MAX_RANKS, FCC_SCHEDULE_FUSED, PLAN_FLAT);
}

/* Lines of a result are all owned, each by one rank, and by ranks as equal as can be. Of fewer lines than ranks, no two owners are farther apart than two blocks,
 * and the first rank owns one; in nodes of eight all places have as many. */
static void test_lines(void **state)
{
    (void)state;
    for (int n = 1; n <= 96; n++)
        for (int node = 1; node <= 8; node *= 2)
            for (int64_t lines = 0; lines <= 200; lines++) {
                int64_t least = lines, most = 0, before = plan_lines_before(lines, n, node, 0);
                int last = 0;
                assert_true(before == 0 && plan_lines_before(lines, n, node, n) == lines);
                for (int p = 0; p < n; p++) {
                    const int64_t next = plan_lines_before(lines, n, node, p + 1), own = next - before;
                    least = own < least ? own : least;
                    most = own > most ? own : most;
                    assert_true(lines == 0 || lines >= n || !own || p - last < 2 * ((n + lines - 1) / lines));
                    last = own ? p : last;
                    before = next;
                }
                assert_true(least >= 0 && most - least <= 1);
                assert_true(lines == 0 || plan_lines_before(lines, n, node, 1) == most);
            }
    for (int64_t lines = 64; lines <= 256; lines *= 2) /* nodes of eight: as many owners at each place */
        for (int n = (int)lines * 2; n <= 4096; n *= 2) {
            int64_t places[8] = {0};
            for (int p = 0; p < n; p++)
                places[p % 8] += plan_lines_before(lines, n, 8, p + 1) - plan_lines_before(lines, n, 8, p);
            for (int place = 0; place < 8; place++)
                assert_int_equal(places[place], lines / 8);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines), cmocka_unit_test(test_many),
                                       cmocka_unit_test(test_elsewhere), cmocka_unit_test(test_beyond)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
