/* SPDX-License-Identifier: MIT
 *
 * test_stages.c - epilogues: the cases of stage_cases.h, drawn at random, on one node and over two and three; what is refused; and programs that
 * were linked when an epilogue had a bias and a residual only.
 */
#include <dlfcn.h>
#include <errno.h>

#include "tests/operators/stage_cases.h"

enum { CASES = 60 };

static void cases_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;

    random_state = *(const uint64_t *)argument;
    rank_open(&r, rank, all);
    for (unsigned i = 1; i <= (unsigned)test_rounds(CASES); i++) {
        const struct stage_case c = stage_draw(all->n, i, false);
        stage_run(&r, &c);
    }
    rank_close(&r);
}

static void on_one_node(void)
{
    cases_on(1, 4, cases_rank);
}

static void on_two_nodes(void)
{
    cases_on(2, 5, cases_rank);
}

static void on_three_nodes(void)
{
    cases_on(3, 6, cases_rank);
}

/* ---- what is refused, on all ranks ---- */

static struct stage_case plain_case(void)
{
    struct stage_case c = {
        .op = OP_GEMM, .dtype = FCC_F16, .n = 32, .norm = FCC_RMS_NORM, .sum = true, .residual = true, .seed = 7};

    for (int r = 0; r < STAGE_RANKS; r++) {
        c.m[r] = 4;
        c.k[r] = 8;
    }
    return c;
}

static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    const bool last = rank == all->n - 1;
    const struct stage_case c = plain_case();
    struct fcc_tensor result;
    struct fcc_epilogue e, good;
    struct rank r;

    (void)argument;
    rank_open(&r, rank, all);
    result = fcc_tensor_2d(r.result, 0, c.dtype, c.m[0], c.n);
    epilogue_fill(&r, &c, c.m[0], &result, &good);
    stage_run(&r, &c);
#define REFUSED(change, text)                                                                                                  \
    do {                                                                                                                       \
        e = good;                                                                                                              \
        change;                                                                                                                \
        FAILS(stage_call(&r, &c, &result, &e), -EINVAL);                                                                       \
        if (!strstr(fcc_last_error(), text))                                                                                   \
            check_failed(__FILE__, __LINE__, "rank %d: \"%s\", expected \"%s\"", rank, fcc_last_error(), text);                \
    } while (0)
    REFUSED(e.norm = last ? 2 : 1, "norm: rank 1 has 2, rank 0 has 1");
    REFUSED(e.norm_eps = last ? 1 : 0, "norm_eps: rank 1 has 1, rank 0 has 0");
    REFUSED(e.norm = last ? 9 : 1, "rank 1: gemm_all_reduce: norm: 9: allowed are 0 to 2");
    REFUSED(e.reserved[3] = last, "rank 1: gemm_all_reduce: epilogue: reserved[3]: 1: must be 0");
    REFUSED(if (last) e.norm_weight = part_of(&r, PART_WEIGHT, c.dtype, -1, 31), "norm_weight: shape[0] 31: allowed is 32 (N)");
    REFUSED(if (last) e.sum = result, "rank 1: gemm_all_reduce: sum: ");
    REFUSED(if (last)(e.residual = e.sum, e.residual.offset += 64), "rank 1: gemm_all_reduce: residual: ");
    REFUSED(if (last) e.sum = (struct fcc_tensor){.buffer = NULL}, "sum: rank 1 has none, rank 0 has one");
#undef REFUSED
    struct stage_case sums = c;
    sums.op = OP_SUM;
    for (int ints = 0; ints < 2; ints++) {
        result = fcc_tensor_1d(r.result, 0, last && ints ? FCC_I32 : c.dtype, last && !ints ? 127 : 128);
        const struct fcc_tensor in = {r.local, part_at(PART_A), result.dtype, 1, {result.shape[0], 0, 0, 0}, {0, 0, 0, 0}};
        FAILS(fcc_all_reduce_epilogue(r.comm, &(struct fcc_all_reduce_args){.in = in, .out = result}, &good), -EINVAL);
        const char *text =
            ints ? "rank 1: all_reduce: epilogue: in: dtype i32: allowed: f32, f16, bf16"
                 : "rank 1: all_reduce: in: shape[0] 127: allowed with the epilogue's rows of 32 are multiples of that";
        if (!strstr(fcc_last_error(), text))
            check_failed(__FILE__, __LINE__, "rank %d: \"%s\", expected \"%s\"", rank, fcc_last_error(), text);
    }
    stage_run(&r, &sums);
    stage_run(&r, &c);
    rank_close(&r);
}

static void refused(void)
{
    pair_run(refused_rank);
}

/* ---- the first form of struct fcc_epilogue ---- */

typedef int first_epilogue(fcc_comm *, const struct fcc_gemm_all_reduce_args *, const void *);

static void first_rank(int rank, const struct ranks *all, void *argument)
{
    struct stage_case c = plain_case();
    struct fcc_epilogue e;
    unsigned char first[2 * sizeof(struct fcc_tensor) + 512];
    double sum[32], out[32];
    struct rank r;
    void *found = dlvsym(RTLD_DEFAULT, "fcc_gemm_all_reduce_epilogue", "FCC_0");
    first_epilogue *call;

    (void)argument;
    CHECK(found != NULL);
    memcpy(&call, &found, sizeof(call)); /* ISO C has no cast from one to the other */
    rank_open(&r, rank, all);
    c.norm = FCC_NO_NORM;
    c.sum = false;
    const struct fcc_tensor result = fcc_tensor_2d(r.result, 0, c.dtype, c.m[0], c.n);
    part_fill(&r, PART_A, c.dtype, c.seed + (unsigned)rank, (int64_t)c.m[0] * c.k[0]);
    part_fill(&r, PART_B, c.dtype, c.seed + 100u + (unsigned)rank, (int64_t)c.k[0] * c.n);
    epilogue_fill(&r, &c, c.m[0], &result, &e);
    image_move(&r, 0, false);
    memset(first, 0xff, sizeof(first)); /* what lies behind a bias and a residual is not looked at */
    memcpy(first, &e.bias, sizeof(e.bias));
    memcpy(first + sizeof(e.bias), &e.residual, sizeof(e.residual));
    OK(call(r.comm,
            &(struct fcc_gemm_all_reduce_args){
                .a = part_of(&r, PART_A, c.dtype, c.m[0], c.k[0]), .b = part_of(&r, PART_B, c.dtype, c.k[0], c.n), .c = result},
            first));
    image_move(&r, 1, true);
    row_expect(&c, all->n, 0, 0, sum, out);
    for (int j = 0; j < c.n; j++)
        CHECK(reference_element(REFERENCE_F16, r.images[1], j) == rounded(c.dtype, out[j]));
    rank_close(&r);
}

static void first_form(void)
{
    pair_run(first_rank);
}

int main(void)
{
    static const struct test tests[] = {{"on_one_node", on_one_node, 60},
                                        {"on_two_nodes", on_two_nodes, 90},
                                        {"on_three_nodes", on_three_nodes, 90},
                                        {"refused", refused, 30},
                                        {"first_form", first_form, 30}};

    return tests_run("stages", TESTS(tests));
}
