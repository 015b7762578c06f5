/* SPDX-License-Identifier: MIT
 *
 * kernel_gemm.h - test_kernels.c's cases of gemm_all_to_all.
 */
#ifndef FCC_TEST_KERNEL_GEMM_H
#define FCC_TEST_KERNEL_GEMM_H

#include "tests/kernels/kernel_bed.h"

/* Up to `most` rows for each rank. The ranks' k is random; where all is regular it is k_most, or a little less with rows of a as
 * far apart as if it were not. */
static void gemm_open(struct test_case *c, enum fcc_dtype dtype, int64_t n, int64_t k_most, int64_t most,
                      int64_t rows[RANKS][RANKS])
{
    int64_t equal = random_below(4) == 0 ? random_size(30) : -1;

    for (int r = 0; r < c->nranks; r++)
        for (int p = 0; p < c->nranks; p++)
            rows[r][p] = equal >= 0 ? equal : random_size(most);
    for (int r = 0; r < c->nranks; r++) {
        struct tensor *t = c->args[r].tensors;
        int64_t k = case_regular ? k_most : random_size(k_most), m = 0, received = 0;
        for (int p = 0; p < c->nranks; p++) {
            m += rows[r][p];
            received += rows[p][r];
        }
        matrix_open(&t[FCC_GEMM_A], &c->memory[r][FCC_GEMM_A], dtype, m, k, false);
        matrix_open(&t[FCC_GEMM_B], &c->memory[r][FCC_GEMM_B], dtype, k, n, false);
        matrix_open(&t[FCC_GEMM_C], &c->memory[r][FCC_GEMM_C], dtype, received + random_size(3), n, true);
        if (case_regular && random_below(2))
            t[FCC_GEMM_A].shape[1] = t[FCC_GEMM_B].shape[0] = k - 1 - random_below(7);
        if (equal < 0)
            attr_add(&c->args[r], c->attrs[r], FCC_ATTR_SEND_ROWS, rows[r], (size_t)c->nranks);
    }
    c->result = FCC_GEMM_C;
    case_place(c, 1 + random_below(2));
}

static void expect_gemm(const struct test_case *c, int64_t n, int64_t rows[RANKS][RANKS])
{
    for (int p = 0; p < c->nranks; p++) {
        int64_t received = 0, values[FCC_MAX_RANKS];
        assert_int_equal(op_values(c->problem, p, values), c->nranks);
        for (int r = 0; r < c->nranks; r++) {
            assert_int_equal(values[r], rows[r][p]);
            received += rows[r][p];
        }
        double *reference = must(calloc((size_t)(received * n) + 1, sizeof(double))), *out = reference;
        for (int r = 0; r < c->nranks; r++) {
            double *a = matrix_values(&c->args[r].tensors[FCC_GEMM_A]), *b = matrix_values(&c->args[r].tensors[FCC_GEMM_B]);
            int64_t depth = c->args[r].tensors[FCC_GEMM_A].shape[1], first = 0;
            for (int q = 0; q < p; q++)
                first += rows[r][q];
            for (int64_t i = first; i < first + rows[r][p]; i++, out += n) {
                for (int64_t k = 0; k < depth; k++)
                    for (int64_t j = 0; j < n; j++)
                        out[j] += a[i * depth + k] * b[k * n + j];
                for (int64_t j = 0; j < n; j++)
                    out[j] += epilogue_value(c, r, i, j);
            }
            free(a);
            free(b);
        }
        expect_output(&c->args[p].tensors[FCC_GEMM_C], &c->memory[p][FCC_GEMM_C], received, reference);
        free(reference);
    }
}

static void expect_gemm_runs(struct test_case *c, int number, int64_t n, int64_t rows[RANKS][RANKS])
{
    for (int kind = FCC_SCHEDULE_FUSED; kind <= FCC_SCHEDULE_SEQUENTIAL; kind++) {
        struct schedule s = random_schedule((enum fcc_schedule_kind)kind, 60, 60);
        struct error e = {0};
        if (case_regular) {
            s.slice_rows = random_below(3) ? 0 : 1 + (uint32_t)random_below(300);
            s.slice_cols = random_below(3) ? 0 : 8 * (1 + (uint32_t)random_below(70));
        }
        (void)snprintf(case_text, sizeof(case_text), "gemm %d: %s, %s, %d ranks, n %lld, %u x %u", number,
                       case_regular ? "regular" : "any", schedule_name(s.kind), c->nranks, (long long)n, s.slice_rows,
                       s.slice_cols);
        case_match(c, FCC_OP_GEMM_ALL_TO_ALL);
        if (execute(c, s, &e))
            fail_msg("%s: %s", case_text, e.text);
        expect_gemm(c, n, rows);
    }
    execute_halves(c);
}

static void test_gemm(void **state)
{
    (void)state;
    for (int i = 0; i < cases(120); i++) {
        bool large = i % 40 >= 37;
        struct test_case c = {.nranks = 1 + (int)random_below(large ? 2 : RANKS)};
        int64_t n = random_size(large ? 70 : 50), rows[RANKS][RANKS] = {{0}};
        if (large && random_below(2))
            n = 1000 + random_below(50); /* more than one block of columns */
        gemm_open(&c, float_dtypes[i % 3], n, large ? 1200 : 60, large && n < 1000 ? 400 : 40, rows);
        expect_gemm_runs(&c, i, n, rows);
        case_close(&c);
    }
}

/* With a bias, a residual, or both, of each rank's own values. */
static void test_gemm_epilogue(void **state)
{
    (void)state;
    for (int i = 0; i < cases(60); i++) {
        struct test_case c = {.nranks = 1 + (int)random_below(RANKS)};
        int64_t n = 8 * (1 + random_below(40)), rows[RANKS][RANKS] = {{0}}, computed[RANKS];
        case_regular = i % 2;
        n = case_regular ? n : random_size(random_below(5) ? 60 : 1100);
        gemm_open(&c, float_dtypes[i % 3], n, case_regular ? 40 : 60, i % 10 == 9 ? 200 : 40, rows);
        for (int r = 0; r < c.nranks; r++)
            computed[r] = c.args[r].tensors[FCC_GEMM_A].shape[0];
        epilogue_open(&c, FCC_GEMM_TENSORS, false, computed, n);
        expect_gemm_runs(&c, i, n, rows);
        case_close(&c);
    }
    case_regular = false;
}

/* Rows and columns that begin at multiples of 16 bytes, and tiles of all sizes. */
static void test_gemm_regular(void **state)
{
    (void)state;
    case_regular = true;
    for (int i = 0; i < cases(24); i++) {
        struct test_case c = {.nranks = 1 + (int)random_below(3)};
        int64_t n = 8 * (1 + random_below(i % 3 ? 70 : 20)), k = 8 * (1 + random_below(i % 4 ? 20 : 60));
        int64_t rows[RANKS][RANKS] = {{0}};
        gemm_open(&c, float_dtypes[i % 3], n, k, i % 2 ? 90 : 200, rows);
        expect_gemm_runs(&c, i, n, rows);
        case_close(&c);
    }
    case_regular = false;
}

/* Twice, and the same bits; and sequential. The slices are as given, 0: as the plan has them. */
static void expect_gemm_tiles(struct test_case *c, uint32_t slice_rows, uint32_t slice_cols, int64_t n, int64_t k,
                              int64_t rows[RANKS][RANKS])
{
    unsigned char *bits[RANKS] = {NULL};
    struct error e = {0};

    for (int run = 0; run < 3; run++) {
        struct schedule s = {.kind = run == 1 ? FCC_SCHEDULE_SEQUENTIAL : FCC_SCHEDULE_FUSED,
                             .slice_rows = slice_rows,
                             .slice_cols = slice_cols};
        (void)snprintf(case_text, sizeof(case_text), "gemm tiles: %s, %d ranks, n %lld, k %lld, %u x %u", schedule_name(s.kind),
                       c->nranks, (long long)n, (long long)k, s.slice_rows, s.slice_cols);
        case_match(c, FCC_OP_GEMM_ALL_TO_ALL);
        if (execute(c, s, &e))
            fail_msg("%s: %s", case_text, e.text);
        if (run < 2)
            expect_gemm(c, n, rows);
        for (int r = 0; r < c->nranks; r++) {
            const struct memory *m = &c->memory[r][FCC_GEMM_C];
            if (run == 0)
                bits[r] = memcpy(must(malloc(m->bytes)), m->base, m->bytes);
            EXPECT(run != 2 || (bits[r] && memcmp(bits[r], m->base, m->bytes) == 0));
        }
    }
    for (int r = 0; r < c->nranks; r++)
        free(bits[r]);
}

/* On GPUs with some 130 multiprocessors: as many tiles as leave 8, 4, 2 workgroups or one for each, of 64 x 64, 128 x 128 and
 * 128 x 256; K of more steps than fit into shared memory, and of fewer than there are workgroups. On the cpu, to which they are nothing
 * special, two of them. */
static void test_gemm_tiles(void **state)
{
    static const struct {
        int64_t n, k, rows;
        uint32_t slice_rows, slice_cols;
    } sizes[] = {
        {200, 8000, 20, 0, 0},     {1000, 1064, 20, 0, 0},   {1000, 40, 20, 0, 0},      {2000, 1000, 20, 0, 0},
        {4000, 1800, 15, 0, 0},    {4600, 136, 20, 0, 0},    {1000, 2800, 42, 0, 0},    {1000, 200, 60, 0, 0},
        {2040, 1448, 42, 0, 0},    {4000, 840, 42, 0, 0},    {1400, 840, 90, 64, 256},  {700, 72, 300, 128, 256},
        {2500, 72, 700, 128, 256}, {2100, 72, 500, 64, 256}, {1900, 72, 500, 128, 128}, {1480, 72, 500, 64, 128},
        {9000, 72, 42, 0, 0},
    };
    enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

    (void)state;
    case_regular = true;
    for (int i = 0; i < cases(bed_device() ? 2 * SIZES : 2); i++) {
        int at = bed_device() ? (i + i / SIZES) % SIZES : 1 + 9 * i;
        struct test_case c = {.nranks = i < SIZES ? 3 : 1 + (int)random_below(3)};
        int64_t rows[RANKS][RANKS] = {{0}};
        gemm_open(&c, float_dtypes[1 + i % 2], sizes[at].n, sizes[at].k, sizes[at].rows, rows);
        case_place(&c, 1);
        expect_gemm_tiles(&c, sizes[at].slice_rows, sizes[at].slice_cols, sizes[at].n, sizes[at].k, rows);
        case_close(&c);
    }
    case_regular = false;
}

/* ---- without b ---- */

/* Rows of any bits: infinities, NaNs of all kinds, -0. */
static void rows_open(struct test_case *c, enum fcc_dtype dtype, int64_t n, int64_t most, int64_t rows[RANKS][RANKS])
{
    for (int r = 0; r < c->nranks; r++)
        for (int p = 0; p < c->nranks; p++)
            rows[r][p] = random_size(most);
    for (int r = 0; r < c->nranks; r++) {
        struct tensor *t = c->args[r].tensors;
        int64_t m = 0, received = 0;
        for (int p = 0; p < c->nranks; p++) {
            m += rows[r][p];
            received += rows[p][r];
        }
        matrix_open(&t[FCC_GEMM_A], &c->memory[r][FCC_GEMM_A], dtype, m, n, false);
        for (size_t i = 0; i < c->memory[r][FCC_GEMM_A].bytes; i++)
            c->memory[r][FCC_GEMM_A].base[i] = random_below(3) ? (unsigned char)random_u32() : random_below(2) ? 0xff : 0x80;
        matrix_open(&t[FCC_GEMM_C], &c->memory[r][FCC_GEMM_C], dtype, received + random_size(3), n, true);
        attr_add(&c->args[r], c->attrs[r], FCC_ATTR_SEND_ROWS, rows[r], (size_t)c->nranks);
    }
    c->result = FCC_GEMM_C;
    case_place(c, 1 + random_below(2));
}

/* The bits of one row are there, and the used bytes are marked. */
static void expect_row(const struct tensor *a, int64_t from, const struct tensor *out, int64_t to, const struct memory *m,
                       bool *used)
{
    size_t bytes = (size_t)a->shape[1] * dtype_size(a->dtype), size = dtype_size(a->dtype);
    const unsigned char *source = a->data + (size_t)(from * a->stride[0]) * size,
                        *found = out->data + (size_t)(to * out->stride[0]) * size;

    if (memcmp(source, found, bytes) != 0)
        fail_msg("%s: row %lld of a, row %lld of c: other bits", case_text, (long long)from, (long long)to);
    memset(used + (found - m->base), 1, bytes);
}

static void expect_rows(const struct test_case *c, int64_t rows[RANKS][RANKS])
{
    for (int p = 0; p < c->nranks; p++) {
        const struct memory *m = &c->memory[p][FCC_GEMM_C];
        bool *used = must(calloc(m->bytes + 1, 1));
        int64_t to = 0;
        for (int r = 0; r < c->nranks; r++) {
            int64_t from = 0;
            for (int q = 0; q < p; q++)
                from += rows[r][q];
            for (int64_t i = 0; i < rows[r][p]; i++)
                expect_row(&c->args[r].tensors[FCC_GEMM_A], from + i, &c->args[p].tensors[FCC_GEMM_C], to++, m, used);
        }
        for (size_t i = 0; i < m->bytes; i++)
            EXPECT(used[i] || m->base[i] == POISON);
        free(used);
    }
}

static void test_gemm_rows(void **state)
{
    (void)state;
    for (int i = 0; i < cases(90); i++) {
        struct test_case c = {.nranks = 1 + (int)random_below(RANKS)};
        int64_t n = i % 9 == 8 ? 1000 + random_below(300) : random_size(80), rows[RANKS][RANKS] = {{0}};
        case_regular = random_below(2);
        rows_open(&c, float_dtypes[i % 3], case_regular ? n / 8 * 8 : n, i % 15 == 14 ? 300 : 30, rows);
        for (int kind = FCC_SCHEDULE_FUSED; kind <= FCC_SCHEDULE_SEQUENTIAL; kind++) {
            struct schedule s = random_schedule((enum fcc_schedule_kind)kind, 60, 60);
            struct error e = {0};
            (void)snprintf(case_text, sizeof(case_text), "gemm rows %d: %s, %d ranks, n %lld, %u x %u", i,
                           schedule_name(s.kind), c.nranks, (long long)n, s.slice_rows, s.slice_cols);
            case_match(&c, FCC_OP_GEMM_ALL_TO_ALL);
            if (execute(&c, s, &e))
                fail_msg("%s: %s", case_text, e.text);
            expect_rows(&c, rows);
        }
        execute_halves(&c);
        case_close(&c);
    }
    case_regular = false;
}

#endif
