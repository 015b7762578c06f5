/* SPDX-License-Identifier: MIT
 *
 * test_gather_plan.c - the plans of all_gather_gemm, for all ranks together, run by workgroups that take turns at random: levels ascend, every
 * order comes to an end, rows are where they are read, each element of C is made once, and nobody ends before all have read its rows. Rows
 * are bytes here, in memory of the size that the plans ask for.
 *
 * Each run draws other cases, FCC_TEST_CASES=N of them. FCC_TEST_SEED=N repeats a run; a failure prints the seed and the case.
 */
#include "kernels/plan/exchange/gather.h"
#include "tests/bed/harness.h"
#include "tests/plan/plan_case.h"
#include "tests/plan/plan_expect.h"

enum { CASES = 1200, ROWS_MOST = 300, DEPTH = 9000, WORKERS = 3 };

static struct problem *problem_draw(bool gpu)
{
    static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};
    struct problem *p = problem_of(FCC_OP_ALL_GATHER_GEMM, 1 + (int)random_below(RANKS), dtypes[random_below(3)]);
    const bool large = random_below(8) == 0; /* of several chunks */

    p->dim[DIM_K] = large ? 1000 + random_below(DEPTH) : random_size(20);
    p->dim[DIM_FACTOR_BYTES] = (int64_t)dtype_size(p->dtype);
    p->dim[DIM_GATHERED] = random_below(2);
    if (!gpu && random_below(4) == 0) { /* e4m3 with scales */
        p->dim[DIM_FACTOR_BYTES] = 1;
        p->epilogue.stages = 1u << STAGE_X_SCALE;
    }
    for (int r = 0; r < p->nranks; r++) {
        p->node_of[r] = (int32_t)random_below(1 + random_below(4));
        p->rank_dim[DIM_M][r] = random_size(large ? ROWS_MOST : 40);
        p->rank_dim[DIM_N][r] = random_size(50);
        p->rank_dim[DIM_K][r] = p->dim[DIM_K];
        p->dim[DIM_M] += p->rank_dim[DIM_M][r];
        p->dim[DIM_N] = p->rank_dim[DIM_N][r] > p->dim[DIM_N] ? p->rank_dim[DIM_N][r] : p->dim[DIM_N];
    }
    if (!gpu && random_below(3) == 0) {
        p->epilogue.number[NUMBER_NORM] = FCC_RMS_NORM;
        p->epilogue.cols = p->dim[DIM_N];
    }
    return p;
}

/* ---- a run ---- */

struct sim {
    const struct test_case *c;
    unsigned char *staging[RANKS];
    bool *flags[RANKS], *gathered[RANKS]; /* gathered: a row is there */
    uint32_t *left[RANKS], next[RANKS], finished[RANKS];
    int64_t held[RANKS][WORKERS], made[RANKS]; /* made: elements of C */
    bool ended[RANKS];
};

static const struct gather_layout *layout_of(const struct sim *x, int r)
{
    return x->c->plans[r]->layout;
}

/* On GPUs where rows are follows from their numbers. */
static int place_of(const struct sim *x, int r, int source)
{
    return layout_of(x, r)->place[source];
}

static unsigned char mark_of(int64_t row)
{
    return (unsigned char)(1 + row % 251);
}

/* The rows of a slice in staging memory: writes or checks each byte. */
static void rows_touch(const struct sim *x, int r, const struct slice *s, int at, uint64_t begin, bool write)
{
    const struct gather_layout *l = layout_of(x, r);

    for (uint32_t i = 0; i < s->rows; i++) {
        const int64_t row = (int64_t)s->row + i;
        const uint64_t from = begin + (uint64_t)(row - l->first[s->slot]) * l->row_bytes;
        EXPECT(from + l->row_bytes <= x->c->plans[at]->gather_bytes);
        for (uint64_t b = 0; b < l->row_bytes; b++) {
            EXPECT(write || x->staging[at][from + b] == mark_of(row));
            x->staging[at][from + b] = mark_of(row);
        }
    }
}

/* The slice reads rows: they are there, and their rank has not ended, if they are its own `a`. */
static void rows_read(const struct sim *x, int r, const struct slice *s)
{
    const struct gather_layout *l = layout_of(x, r);
    const int place = place_of(x, r, s->slot);

    EXPECT((int64_t)s->row >= l->first[s->slot] && (int64_t)s->row + s->rows <= l->first[s->slot + 1]);
    if (x->c->schedule.kind == FCC_SCHEDULE_COMPUTE_ONLY || !l->row_bytes)
        return;
    if (place == GATHER_AT_SOURCE) {
        EXPECT(!x->ended[s->slot] && x->c->problem->node_of[s->slot] == x->c->problem->node_of[r]);
        EXPECT(x->c->schedule.target == PLAN_CPU || s->slot == r);
    } else if (place == GATHER_IN_GATHERED) {
        for (uint32_t i = 0; i < s->rows; i++)
            EXPECT(x->gathered[r][s->row + i]);
    } else {
        EXPECT(x->c->problem->node_of[place] == x->c->problem->node_of[r]);
        rows_touch(x, r, s, place, l->at[s->slot], false);
    }
}

static void gathered_set(const struct sim *x, int r, const struct slice *s)
{
    for (uint32_t i = 0; i < s->rows; i++) {
        EXPECT(!x->gathered[r][s->row + i] && x->c->problem->dim[DIM_GATHERED]);
        x->gathered[r][s->row + i] = true;
    }
}

static void slice_run(struct sim *x, int r, const struct slice *s)
{
    switch (s->kind) {
    case SLICE_COMPUTE_PUT:
        EXPECT(s->dst == r && s->dst_row == s->row && s->dst_col == s->col && s->rows > 0 && s->cols > 0);
        rows_read(x, r, s);
        x->made[r] += (int64_t)s->rows * s->cols;
        break;
    case SLICE_PUT:
        EXPECT(s->cols == x->c->problem->dim[DIM_K] && s->rows > 0);
        if (s->dst != r) {
            EXPECT(s->slot == r);
            rows_touch(x, r, s, s->dst, layout_of(x, r)->sent[s->dst], true);
        } else if (place_of(x, r, s->slot) == GATHER_IN_GATHERED) {
            EXPECT(!x->ended[s->slot]);
            gathered_set(x, r, s);
        } else {
            EXPECT(!x->ended[s->slot]);
            rows_touch(x, r, s, r, layout_of(x, r)->at[s->slot], true);
        }
        break;
    case SLICE_FORWARD:
        EXPECT(s->dst == r && s->rows > 0);
        rows_read(x, r, s);
        gathered_set(x, r, s);
        break;
    case SLICE_ROWS:
        EXPECT(x->c->schedule.kind == FCC_SCHEDULE_COMM_ONLY ||
               x->made[r] == x->c->problem->dim[DIM_M] * x->c->problem->rank_dim[DIM_N][r]);
        break;
    default:
        EXPECT(s->kind == SLICE_WAIT);
    }
}

static void slice_finish(struct sim *x, int r, const struct slice *s)
{
    const struct plan *plan = x->c->plans[r];

    slice_run(x, r, s);
    x->ended[r] = ++x->finished[r] == plan->nslices;
    if (s->group == SLICE_NO_GROUP || --x->left[r][s->group])
        return;
    for (int q = 0; q < x->c->problem->nranks; q++)
        if (plan_reaches(plan, plan->groups[s->group].dst, q)) {
            EXPECT(!x->flags[q][plan->groups[s->group].flag]);
            x->flags[q][plan->groups[s->group].flag] = true;
        }
}

/* A workgroup takes a slice, or finishes the one that it has. Returns whether it could. */
static bool step(struct sim *x, int r, int w)
{
    const struct plan *plan = x->c->plans[r];

    if (x->held[r][w] < 0) {
        if (x->next[r] == plan->nslices)
            return false;
        x->held[r][w] = x->next[r]++;
        return true;
    }
    const struct slice *s = &plan->slices[x->held[r][w]];
    for (uint32_t i = 0; i < s->wait_count; i++)
        if (!x->flags[r][s->wait_first + i * s->wait_stride])
            return false;
    slice_finish(x, r, s);
    x->held[r][w] = -1;
    return true;
}

static void expect_run(const struct test_case *c)
{
    struct sim x = {.c = c};
    const int n = c->problem->nranks, workers = 1 + (int)random_below(WORKERS);
    const enum fcc_schedule_kind kind = c->schedule.kind;

    for (int r = 0; r < n; r++) {
        x.staging[r] = calloc(c->plans[r]->staging_bytes + 1, 1);
        x.flags[r] = calloc(c->plans[r]->nflags + 1, sizeof(bool));
        x.gathered[r] = calloc((size_t)c->problem->dim[DIM_M] + 1, sizeof(bool));
        x.left[r] = calloc(c->plans[r]->ngroups + 1, sizeof(uint32_t));
        assert_true(x.staging[r] && x.flags[r] && x.gathered[r] && x.left[r]);
        for (uint32_t g = 0; g < c->plans[r]->ngroups; g++)
            x.left[r][g] = c->plans[r]->groups[g].slices;
        for (int w = 0; w < WORKERS; w++)
            x.held[r][w] = -1;
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < 8 * n; i++)
            moved |= step(&x, (int)random_below(n), (int)random_below(workers));
        for (int i = 0; i < n * workers && !moved; i++)
            moved |= step(&x, i / workers, i % workers);
    }
    for (int r = 0; r < n; r++) {
        const struct problem *p = c->problem;
        EXPECT(x.ended[r]);
        EXPECT(x.made[r] == (kind == FCC_SCHEDULE_COMM_ONLY ? 0 : p->dim[DIM_M] * p->rank_dim[DIM_N][r]));
        for (int64_t row = 0; row < p->dim[DIM_M]; row++)
            EXPECT(x.gathered[r][row] == (p->dim[DIM_GATHERED] && p->dim[DIM_K] > 0 && kind != FCC_SCHEDULE_COMPUTE_ONLY));
        free(x.staging[r]);
        free(x.flags[r]);
        free(x.gathered[r]);
        free(x.left[r]);
    }
}

/* ---- what is expected of all plans ---- */

/* No element of C is in two tiles: there are as many as elements, and none is twice. */
static void expect_tiles(const struct test_case *c)
{
    static unsigned char seen[RANKS * ROWS_MOST][50];

    for (int r = 0; r < c->problem->nranks; r++) {
        memset(seen, 0, sizeof(seen));
        for (uint32_t i = 0; i < c->plans[r]->nslices; i++) {
            const struct slice *s = &c->plans[r]->slices[i];
            for (uint32_t row = s->row; s->kind == SLICE_COMPUTE_PUT && row < s->row + s->rows; row++)
                for (uint32_t col = s->col; col < s->col + s->cols; col++)
                    EXPECT(!seen[row][col]++);
        }
    }
}

/* Rows go once to each other node. */
static void expect_sends(const struct test_case *c)
{
    for (int r = 0; r < c->problem->nranks; r++) {
        int64_t sent = 0, nodes = 0;
        for (int q = 0; q < c->problem->nranks; q++)
            nodes += c->schedule.target == PLAN_GPU
                         ? q != r
                         : is_first_of_node(c, q) && c->problem->node_of[q] != c->problem->node_of[r];
        for (uint32_t i = 0; i < c->plans[r]->nslices; i++)
            sent +=
                c->plans[r]->slices[i].kind == SLICE_PUT && c->plans[r]->slices[i].dst != r ? c->plans[r]->slices[i].rows : 0;
        EXPECT(sent == (c->schedule.kind == FCC_SCHEDULE_COMPUTE_ONLY || !c->problem->dim[DIM_K]
                            ? 0
                            : nodes * c->problem->rank_dim[DIM_M][r]));
    }
}

/* A flag that is awaited is raised, by one group. */
static void expect_raised(const struct test_case *c)
{
    for (int r = 0; r < c->problem->nranks; r++) {
        unsigned *raised = calloc(c->plans[r]->nflags + 1, sizeof(*raised));
        assert_non_null(raised);
        EXPECT(c->plans[r]->nflags == c->plans[0]->nflags && !c->plans[r]->shared && !c->plans[r]->start_level);
        for (int q = 0; q < c->problem->nranks; q++)
            for (uint32_t g = 0; g < c->plans[q]->ngroups; g++)
                raised[c->plans[q]->groups[g].flag] += plan_reaches(c->plans[q], c->plans[q]->groups[g].dst, r);
        for (uint32_t i = 0; i < c->plans[r]->nslices; i++)
            for (uint32_t w = 0; w < c->plans[r]->slices[i].wait_count; w++)
                EXPECT(raised[c->plans[r]->slices[i].wait_first + w * c->plans[r]->slices[i].wait_stride] == 1);
        free(raised);
    }
}

/* On GPUs no kernel waits for another node: those of the first levels for ranks of this node alone, and those of the others begin when all that they
 * wait for elsewhere has come. */
static void expect_kernels(const struct test_case *c)
{
    const struct problem *p = c->problem;

    for (int r = 0; r < p->nranks && c->schedule.target == PLAN_GPU; r++)
        for (int q = 0; q < p->nranks; q++)
            for (uint32_t g = 0; g < c->plans[q]->ngroups; g++) {
                const struct signal_group *group = &c->plans[q]->groups[g];
                for (uint32_t i = 0; i < c->plans[r]->nslices && plan_reaches(c->plans[q], group->dst, r); i++) {
                    const struct slice *s = &c->plans[r]->slices[i];
                    const bool waits = group->flag >= s->wait_first && group->flag < s->wait_first + s->wait_count;
                    const bool first = level_of(c->plans[r], i) < LEVEL_REDUCE;
                    EXPECT(!waits || p->node_of[q] == p->node_of[r] || (!first && !s->is_here) || !plan_is_over_nodes(p));
                    EXPECT(!waits || !plan_is_over_nodes(p) || s->kind != SLICE_COMPUTE_PUT || s->is_here ||
                           p->node_of[q] != p->node_of[r]);
                }
            }
}

/* The tiles are the same under every schedule, and so are the bits. */
static void expect_same_tiles(const struct test_case *c)
{
    struct schedule other = c->schedule;
    struct error e = {0};

    other.kind = c->schedule.kind == FCC_SCHEDULE_FUSED ? FCC_SCHEDULE_SEQUENTIAL : FCC_SCHEDULE_FUSED;
    for (int r = 0; r < c->problem->nranks; r++) {
        struct plan *plan = NULL;
        EXPECT(plan_make(c->problem, r, &other, &plan, &e) == 0);
        EXPECT(plan->schedule.slice_rows == c->plans[r]->schedule.slice_rows &&
               plan->schedule.slice_cols == c->plans[r]->schedule.slice_cols);
        plan_free(plan);
    }
}

/* Of a rank elsewhere there are the sizes. */
static void expect_sizes(const struct test_case *c)
{
    struct error e = {0};

    c->problem->node = 77;
    for (int r = 0; r < c->problem->nranks; r++) {
        struct plan *plan = NULL;
        EXPECT(plan_make(c->problem, r, &c->schedule, &plan, &e) == 0);
        EXPECT(plan->nslices == 0 && plan->staging_bytes == c->plans[r]->staging_bytes && plan->nflags == c->plans[r]->nflags);
        plan_free(plan);
    }
    c->problem->node = -1;
}

static void test_random(void **state)
{
    (void)state;
    for (int i = 0; i < number_of("FCC_TEST_CASES", test_rounds(CASES)); i++) {
        const bool gpu = random_below(3) == 0;
        struct test_case c = {.problem = problem_draw(gpu)};
        struct error e = {0};
        c.schedule = (struct schedule){.kind = (enum fcc_schedule_kind)(FCC_SCHEDULE_FUSED + i % 4),
                                       .target = gpu ? PLAN_GPU : PLAN_CPU,
                                       .workgroups = (uint32_t)random_below(5)};
        c.schedule.slice_rows = random_below(2) ? 1 + (uint32_t)random_below(70) : 0;
        c.schedule.slice_cols = random_below(2) ? 1 + (uint32_t)random_below(50) : 0;
        (void)snprintf(case_text, sizeof(case_text), "case %d: %s, %s, %d ranks, m %ld, k %ld, slices %u x %u, gathered %d", i,
                       gpu ? "gpu" : "cpu", schedule_name(c.schedule.kind), c.problem->nranks, (long)c.problem->dim[DIM_M],
                       (long)c.problem->dim[DIM_K], c.schedule.slice_rows, c.schedule.slice_cols,
                       (int)c.problem->dim[DIM_GATHERED]);
        for (int r = 0; r < c.problem->nranks; r++)
            if (plan_make(c.problem, r, &c.schedule, &c.plans[r], &e))
                fail_msg("%s: rank %d: %s", case_text, r, e.text);
        expect_tiles(&c);
        expect_sends(&c);
        expect_raised(&c);
        expect_kernels(&c);
        expect_run(&c);
        expect_same_tiles(&c);
        expect_same_again(&c);
        expect_sizes(&c);
        case_close(&c);
    }
}

/* Levels ascend. Small problems: expect_levels() has room for few flags. */
static void test_levels(void **state)
{
    (void)state;
    for (int i = 0; i < number_of("FCC_TEST_CASES", test_rounds(CASES)); i++) {
        struct test_case c = {.problem = problem_draw(false)};
        struct error e = {0};
        c.schedule = (struct schedule){.kind = (enum fcc_schedule_kind)(FCC_SCHEDULE_FUSED + i % 4), .workgroups = 2};
        (void)snprintf(case_text, sizeof(case_text), "levels, case %d", i);
        for (int r = 0; r < c.problem->nranks; r++)
            if (plan_make(c.problem, r, &c.schedule, &c.plans[r], &e))
                fail_msg("%s: rank %d: %s", case_text, r, e.text);
        expect_levels(&c);
        case_close(&c);
    }
}

/* As many ranks as there may be: flags and time. */
static void test_many(void **state)
{
    struct problem *p = problem_of(FCC_OP_ALL_GATHER_GEMM, FCC_MAX_RANKS, FCC_F32);
    struct schedule fused = {.kind = FCC_SCHEDULE_FUSED};
    struct plan *plan = NULL;
    struct error e = {0};

    (void)state;
    (void)snprintf(case_text, sizeof(case_text), "many ranks");
    for (int r = 0; r < p->nranks; r++) {
        p->node_of[r] = r / 8;
        p->rank_dim[DIM_M][r] = 100000;
        p->dim[DIM_M] += p->rank_dim[DIM_M][r];
        p->rank_dim[DIM_N][r] = p->dim[DIM_N] = 1000;
        p->rank_dim[DIM_K][r] = p->dim[DIM_K] = 4000;
    }
    p->dim[DIM_FACTOR_BYTES] = 4;
    if (plan_make(p, 77, &fused, &plan, &e))
        fail_msg("%s", e.text);
    EXPECT(plan->nflags <= PLAN_MAX_FLAGS);
    plan_free(plan);
    problem_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_levels),
                                       cmocka_unit_test(test_many)};
    random_state = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
