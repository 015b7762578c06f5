/* SPDX-License-Identifier: MIT
 *
 * test_kernels.c - the operators' results on the cpu against plain loops in double precision that share no code with them.
 *
 * All ranks run in this thread: each in turn takes its next slice if the flags it waits for are raised. Every input lies in an
 * allocation of just its size, for the sanitizers; every byte around and between an output's elements must stay as it was.
 *
 * FCC_TEST_SEED=N repeats a run; a failure prints the seed and the case.
 */
#include "kernel_bed.h"

#include "dtype.h"

/* FCC_TEST_CASES: so many cases of each kind, where time is short (a sanitizer on a GPU). A quarter of them under the others. */
static int cases(int most)
{
    const char *fewer = getenv("FCC_TEST_CASES");
    int n = fewer ? atoi(fewer) : getenv("FCC_TEST_SLOW") ? (most + 3) / 4 : most;
    return n > 0 && n < most ? n : most;
}

/* ---- f16 and bf16 ---- */

struct format {
    enum fcc_dtype dtype;
    int fraction, exponent;
};
static const struct format formats[] = {{FCC_F16, 10, 5}, {FCC_BF16, 7, 8}};

static void expect_rounded(const struct format *format, const float *in, const uint16_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double value = float_round((double)in[i], format->fraction, format->exponent);
        double got = get(out, format->dtype, (int64_t)i);
        assert_true((isnan(got) && isnan(value)) || (got == value && !signbit(got) == !signbit(value)));
    }
}

/* One value to f32 and back, and f32 around it and around the middle between it and the next one. */
static void expect_conversions(const struct format *format, uint16_t h)
{
    double value = float_value(h, format->fraction, format->exponent);
    uint32_t bits, half = format->dtype == FCC_F16 ? 0x1000 : 0x8000;
    uint16_t back[2], halves[16]; /* twice what is used: get() could read f32 */
    float f, near[8];

    dtype_to_f32(&f, &h, format->dtype, 1);
    dtype_from_f32(back, &f, format->dtype, 1);
    if (isnan(value)) {
        assert_true(isnan(f) && isnan(get(back, format->dtype, 0)));
        assert_true((h ^ back[0]) < 1 << format->fraction); /* sign and exponent */
        return;
    }
    assert_true(f == (float)value && !signbit(f) == !signbit(value));
    assert_int_equal(h, back[0]);
    memcpy(&bits, &f, sizeof(bits));
    for (uint32_t j = 0; j < 8; j++) {
        uint32_t changed = bits + (j < 4 ? j - 2 : half + j - 6);
        memcpy(&near[j], &changed, sizeof(changed));
    }
    dtype_from_f32(halves, near, format->dtype, 8);
    expect_rounded(format, near, halves, 8);
}

static void test_dtypes(void **state)
{
    (void)state;
    for (size_t k = 0; k < 2; k++)
        for (uint32_t i = 0; i < 65536; i++)
            expect_conversions(&formats[k], (uint16_t)i);
    /* random f32 of all sizes, subnormal ones too, and lengths that are no multiple of a vector's */
    for (int round = 0; round < 20000; round++) {
        float in[37];
        uint16_t out[74];
        size_t n = 1 + (size_t)random_below(37);
        const struct format *format = &formats[random_below(2)];
        for (size_t i = 0; i < n; i++) {
            uint32_t bits = random_u32();
            if (random_below(2)) /* within f16's subnormals and normals */
                bits = (bits & 0x807fffff) | (uint32_t)(100 + random_below(45)) << 23;
            memcpy(&in[i], &bits, sizeof(bits));
        }
        out[n] = 0x5a5a;
        dtype_from_f32(out, in, format->dtype, n);
        assert_int_equal(out[n], 0x5a5a);
        expect_rounded(format, in, out, n);
    }
}

/* ---- embedding_all_to_all ---- */

struct embedding {
    int64_t batch, split[RANKS], tables[RANKS], table_rows[RANKS][8], all_tables, dim;
    bool mean, weighted[RANKS];
};

static int64_t index_get(const struct tensor *t, int64_t i)
{
    int32_t narrow;
    int64_t wide;

    if (t->dtype == FCC_I64) {
        memcpy(&wide, t->data + i * 8, sizeof(wide));
        return wide;
    }
    memcpy(&narrow, t->data + i * 4, sizeof(narrow));
    return narrow;
}

static void index_put(struct tensor *t, int64_t i, int64_t value)
{
    int32_t narrow = (int32_t)value;

    if (t->dtype == FCC_I64)
        memcpy(t->data + i * 8, &value, sizeof(value));
    else
        memcpy(t->data + i * 4, &narrow, sizeof(narrow));
}

/* Bags of random lengths, many empty and some long, with some unused indices before and behind. */
static void embedding_indices(struct embedding *m, struct tensor *t, struct memory *memory, int rank)
{
    struct tensor *indices = &t[FCC_EMB_INDICES], *offsets = &t[FCC_EMB_OFFSETS], *weights = &t[FCC_EMB_WEIGHTS];
    int64_t bags = m->tables[rank] * m->batch, at = random_below(3), end;

    indices->dtype = offsets->dtype = random_below(2) ? FCC_I64 : FCC_I32;
    offsets->ndim = indices->ndim = weights->ndim = 1;
    offsets->shape[0] = bags + 1;
    strides_choose(offsets, false);
    input_open(offsets, &memory[FCC_EMB_OFFSETS], false);
    index_put(offsets, 0, at);
    for (int64_t b = 0; b < bags; b++) {
        if (m->table_rows[rank][b / m->batch] > 0)
            /* A long sum of few rows over and over is beyond what f32 adds up to 1e-5. */
            at += random_below(200) == 0 && m->table_rows[rank][b / m->batch] > 20 ? random_below(3000) : random_size(12);
        index_put(offsets, b + 1, at);
    }
    indices->shape[0] = at + random_below(3);
    strides_choose(indices, false);
    input_open(indices, &memory[FCC_EMB_INDICES], false);
    for (int64_t i = 0; i < indices->shape[0]; i++) /* what belongs to no bag is never looked at */
        index_put(indices, i, -7);
    for (int64_t b = 0; b < bags; b++)
        for (at = index_get(offsets, b), end = index_get(offsets, b + 1); at < end; at++)
            index_put(indices, at, random_below(m->table_rows[rank][b / m->batch]));
    m->weighted[rank] = !m->mean && random_below(2);
    if (m->weighted[rank]) {
        weights->dtype = FCC_F32;
        weights->shape[0] = indices->shape[0];
        strides_choose(weights, false);
        input_open(weights, &memory[FCC_EMB_WEIGHTS], true);
    }
}

static void embedding_open(struct test_case *c, struct embedding *m, enum fcc_dtype dtype, bool absent)
{
    static const int64_t dims[] = {1, 3, 15, 16, 17, 32, 40, 48, 64, 65, 80, 100, 128, 130, 600};

    memset(m, 0, sizeof(*m));
    m->dim = dims[random_below(sizeof(dims) / sizeof(dims[0]))];
    m->mean = random_below(3) == 0;
    for (int r = 0; r < c->nranks; r++) {
        m->batch += m->split[r] = random_size(random_below(10) == 0 ? 300 : 20);
        m->all_tables += m->tables[r] = absent ? 0 : random_size(5);
    }
    for (int r = 0; r < c->nranks; r++) {
        struct tensor *t = c->args[r].tensors;
        t[FCC_EMB_TABLES].dtype = t[FCC_EMB_OUT].dtype = dtype;
        for (int64_t i = 0; i < m->tables[r]; i++)
            t[FCC_EMB_TABLES].shape[0] += m->table_rows[r][i] = random_size(50);
        t[FCC_EMB_TABLES].ndim = 2;
        t[FCC_EMB_TABLES].shape[1] = m->dim;
        strides_choose(&t[FCC_EMB_TABLES], random_below(2));
        if (m->tables[r] > 0 || random_below(2)) {
            input_open(&t[FCC_EMB_TABLES], &c->memory[r][FCC_EMB_TABLES], true);
            embedding_indices(m, t, c->memory[r], r);
        }
        t[FCC_EMB_OUT].ndim = 3;
        t[FCC_EMB_OUT].shape[0] = m->split[r];
        t[FCC_EMB_OUT].shape[1] = m->all_tables;
        t[FCC_EMB_OUT].shape[2] = m->dim;
        strides_choose(&t[FCC_EMB_OUT], random_below(2));
        if (random_below(4) == 0) { /* [table][sample][dim] in memory */
            t[FCC_EMB_OUT].stride[0] = m->dim + random_below(3);
            t[FCC_EMB_OUT].stride[1] = t[FCC_EMB_OUT].stride[0] * (m->split[r] + 1);
        }
        output_open(&t[FCC_EMB_OUT], &c->memory[r][FCC_EMB_OUT]);
        attr_add(&c->args[r], c->attrs[r], FCC_ATTR_TABLE_ROWS, m->table_rows[r], (size_t)m->tables[r]);
        attr_add(&c->args[r], c->attrs[r], FCC_ATTR_POOLING, (int64_t[]){m->mean ? FCC_POOLING_MEAN : FCC_POOLING_SUM}, 1);
        attr_add(&c->args[r], c->attrs[r], FCC_ATTR_BATCH, &m->batch, 1);
        attr_add(&c->args[r], c->attrs[r], FCC_ATTR_BATCH_SPLIT, m->split, (size_t)c->nranks);
    }
    c->result = FCC_EMB_OUT;
    case_place(c, 1 + random_below(2));
}

/* The bag of sample s in table t of a rank. */
static void embedding_bag(const struct embedding *m, const struct op_args *args, int rank, int64_t t, int64_t s, double *out)
{
    const struct tensor *tensors = args->tensors, *tables = &tensors[FCC_EMB_TABLES];
    int64_t first = index_get(&tensors[FCC_EMB_OFFSETS], t * m->batch + s), end, row = 0;

    end = index_get(&tensors[FCC_EMB_OFFSETS], t * m->batch + s + 1);
    for (int64_t i = 0; i < t; i++)
        row += m->table_rows[rank][i];
    for (int64_t d = 0; d < m->dim; d++) {
        out[d] = 0;
        for (int64_t i = first; i < end; i++)
            out[d] +=
                get(tables->data, tables->dtype, (row + index_get(&tensors[FCC_EMB_INDICES], i)) * tables->stride[0] + d) *
                (m->weighted[rank] ? get(tensors[FCC_EMB_WEIGHTS].data, FCC_F32, i) : 1);
        if (m->mean && end > first)
            out[d] /= (double)(end - first);
    }
}

static void expect_embedding(const struct test_case *c, const struct embedding *m)
{
    int64_t first = 0;

    for (int p = 0; p < c->nranks; first += m->split[p++]) {
        double *reference = must(malloc((size_t)(m->split[p] * m->all_tables * m->dim + 1) * sizeof(double))), *out = reference;
        for (int64_t s = first; s < first + m->split[p]; s++)
            for (int r = 0; r < c->nranks; r++)
                for (int64_t t = 0; t < m->tables[r]; t++, out += m->dim)
                    embedding_bag(m, &c->args[r], r, t, s, out);
        expect_output(&c->args[p].tensors[FCC_EMB_OUT], &c->memory[p][FCC_EMB_OUT], m->split[p], reference);
        free(reference);
    }
}

static void test_embedding(void **state)
{
    (void)state;
    for (int i = 0; i < cases(120); i++) {
        struct test_case c = {.nranks = 1 + (int)random_below(RANKS)};
        struct embedding m;
        struct error e = {0};
        embedding_open(&c, &m, float_dtypes[i % 3], i % 40 == 39);
        for (int kind = FCC_SCHEDULE_FUSED; kind <= FCC_SCHEDULE_SEQUENTIAL; kind++) {
            struct schedule s = random_schedule((enum fcc_schedule_kind)kind, 40, 6);
            (void)snprintf(case_text, sizeof(case_text), "embedding %d: %s, %d ranks, batch %lld, dim %lld, %u x %u%s", i,
                           schedule_name(s.kind), c.nranks, (long long)m.batch, (long long)m.dim, s.slice_rows, s.slice_cols,
                           m.mean ? ", mean" : "");
            case_match(&c, FCC_OP_EMBEDDING_ALL_TO_ALL);
            if (execute(&c, s, &e))
                fail_msg("%s: %s", case_text, e.text);
            expect_embedding(&c, &m);
        }
        execute_halves(&c);
        case_close(&c);
    }
}

static void expect_range_error(struct test_case *c, const char *text)
{
    for (int kind = FCC_SCHEDULE_FUSED; kind <= FCC_SCHEDULE_COMPUTE_ONLY; kind++) {
        struct error e = {0};
        assert_int_equal(execute(c, (struct schedule){.kind = (enum fcc_schedule_kind)kind}, &e), -ERANGE);
        assert_string_equal(e.text, text);
    }
}

/* 2 tables of 10 and 20 rows, 4 samples, bags of 3: bag (t, s) begins at index 12 * t + 3 * s. */
static void test_embedding_ranges(void **state)
{
    struct test_case c = {.nranks = 1, .result = FCC_EMB_OUT};
    struct tensor *t = c.args[0].tensors;

    (void)state;
    (void)snprintf(case_text, sizeof(case_text), "ranges");
    t[FCC_EMB_TABLES] = (struct tensor){.dtype = FCC_F32, .ndim = 2, .shape = {30, 5}, .stride = {5, 1}};
    t[FCC_EMB_INDICES] = (struct tensor){.dtype = FCC_I64, .ndim = 1, .shape = {24}, .stride = {1}};
    t[FCC_EMB_OFFSETS] = (struct tensor){.dtype = FCC_I64, .ndim = 1, .shape = {9}, .stride = {1}};
    t[FCC_EMB_OUT] = (struct tensor){.dtype = FCC_F32, .ndim = 3, .shape = {4, 2, 5}, .stride = {10, 5, 1}};
    for (int i = FCC_EMB_TABLES; i <= FCC_EMB_OFFSETS; i++)
        input_open(&t[i], &c.memory[0][i], i == FCC_EMB_TABLES);
    output_open(&t[FCC_EMB_OUT], &c.memory[0][FCC_EMB_OUT]);
    for (int i = 0; i < 24; i++)
        index_put(&t[FCC_EMB_INDICES], i, i % 10);
    for (int i = 0; i < 9; i++)
        index_put(&t[FCC_EMB_OFFSETS], i, 3LL * i);
    attr_add(&c.args[0], c.attrs[0], FCC_ATTR_TABLE_ROWS, (int64_t[]){10, 20}, 2);
    attr_add(&c.args[0], c.attrs[0], FCC_ATTR_POOLING, (int64_t[]){FCC_POOLING_SUM}, 1);
    attr_add(&c.args[0], c.attrs[0], FCC_ATTR_BATCH, (int64_t[]){4}, 1);
    case_match(&c, FCC_OP_EMBEDDING_ALL_TO_ALL);

    index_put(&t[FCC_EMB_INDICES], 19, 20);
    expect_range_error(&c, "indices[19]: 20: table 1, bag 2, position 1: allowed are 0 to 19");
    index_put(&t[FCC_EMB_INDICES], 19, INT64_MIN);
    expect_range_error(&c, "indices[19]: -9223372036854775808: table 1, bag 2, position 1: allowed are 0 to 19");
    index_put(&t[FCC_EMB_INDICES], 19, 19);
    index_put(&t[FCC_EMB_INDICES], 11, 10);
    expect_range_error(&c, "indices[11]: 10: table 0, bag 3, position 2: allowed are 0 to 9");
    index_put(&t[FCC_EMB_INDICES], 11, 9);
    index_put(&t[FCC_EMB_OFFSETS], 8, 25);
    expect_range_error(&c, "offsets[8]: 25: table 1, end of bag 3: allowed are 21 to 24");
    index_put(&t[FCC_EMB_OFFSETS], 8, 24);
    index_put(&t[FCC_EMB_OFFSETS], 2, 2);
    expect_range_error(&c, "offsets[2]: 2: table 0, end of bag 1: allowed are 3 to 24");
    index_put(&t[FCC_EMB_OFFSETS], 2, 6);
    index_put(&t[FCC_EMB_OFFSETS], 0, -1);
    expect_range_error(&c, "offsets[0]: -1: table 0, begin of bag 0: allowed are 0 to 24");
    case_close(&c);
}

/* In any part of a large slice: one table, 300 bags of 3. A wrong end is a good begin of the next bag, so that one bag only is
 * wrong. */
static void test_embedding_ranges_large(void **state)
{
    enum { BAGS = 300, SIZE = 3, TABLE = 40 };
    struct test_case c = {.nranks = 1, .result = FCC_EMB_OUT};
    struct tensor *t = c.args[0].tensors, *indices = &t[FCC_EMB_INDICES], *offsets = &t[FCC_EMB_OFFSETS];
    int64_t dim = random_below(2) ? 5 : 68;
    char text[128];

    (void)state;
    (void)snprintf(case_text, sizeof(case_text), "ranges, large slices");
    t[FCC_EMB_TABLES] = (struct tensor){.dtype = FCC_F32, .ndim = 2, .shape = {TABLE, dim}, .stride = {dim, 1}};
    *indices = (struct tensor){.dtype = FCC_I32, .ndim = 1, .shape = {BAGS * SIZE}, .stride = {1}};
    *offsets = (struct tensor){.dtype = FCC_I32, .ndim = 1, .shape = {BAGS + 1}, .stride = {1}};
    t[FCC_EMB_OUT] = (struct tensor){.dtype = FCC_F32, .ndim = 3, .shape = {BAGS, 1, dim}, .stride = {dim, dim, 1}};
    for (int i = FCC_EMB_TABLES; i <= FCC_EMB_OFFSETS; i++)
        input_open(&t[i], &c.memory[0][i], i == FCC_EMB_TABLES);
    output_open(&t[FCC_EMB_OUT], &c.memory[0][FCC_EMB_OUT]);
    for (int i = 0; i < BAGS * SIZE; i++)
        index_put(indices, i, random_below(TABLE));
    for (int i = 0; i <= BAGS; i++)
        index_put(offsets, i, (int64_t)i * SIZE);
    attr_add(&c.args[0], c.attrs[0], FCC_ATTR_TABLE_ROWS, (int64_t[]){TABLE}, 1);
    attr_add(&c.args[0], c.attrs[0], FCC_ATTR_POOLING, (int64_t[]){FCC_POOLING_SUM}, 1);
    attr_add(&c.args[0], c.attrs[0], FCC_ATTR_BATCH, (int64_t[]){BAGS}, 1);
    case_match(&c, FCC_OP_EMBEDDING_ALL_TO_ALL);
    for (int i = 0; i < cases(20); i++) {
        int bag = 1 + (int)random_below(BAGS - 1), position = (int)random_below(SIZE), at = bag * SIZE + position;
        int wrong = i % 2 ? TABLE : -1;
        int64_t was = index_get(indices, at);
        index_put(indices, at, wrong);
        (void)snprintf(text, sizeof(text), "indices[%d]: %d: table 0, bag %d, position %d: allowed are 0 to %d", at, wrong, bag,
                       position, TABLE - 1);
        expect_range_error(&c, text);
        index_put(indices, at, was);
        index_put(offsets, bag + 1, bag * SIZE - 1);
        (void)snprintf(text, sizeof(text), "offsets[%d]: %d: table 0, end of bag %d: allowed are %d to %d", bag + 1,
                       bag * SIZE - 1, bag, bag * SIZE, BAGS * SIZE);
        expect_range_error(&c, text);
        index_put(offsets, bag + 1, (int64_t)(bag + 1) * SIZE);
    }
    case_close(&c);
}

/* ---- gemv_all_reduce ---- */

static void matrix_open(struct tensor *t, struct memory *memory, enum fcc_dtype dtype, int64_t rows, int64_t cols, bool output)
{
    *t = (struct tensor){.dtype = dtype, .ndim = 2, .shape = {rows, cols}};
    strides_choose(t, random_below(2));
    if (!output && random_below(10) == 0)
        t->stride[0] = random_below(cols); /* rows of an input may overlap */
    if (output)
        output_open(t, memory);
    else
        input_open(t, memory, true);
}

/* The ranks' k is random, from k_least on (-1: mostly small). Where all is regular it is a multiple of 8, but for one row: there
 * it may be less, with rows as far apart as if it were not. */
static void gemv_open(struct test_case *c, enum fcc_dtype dtype, int64_t m, int64_t n, int64_t k_least, int64_t k_more)
{
    for (int r = 0; r < c->nranks; r++) {
        struct tensor *t = c->args[r].tensors;
        int64_t k = k_least < 0 ? random_size(random_below(10) == 0 ? 1200 : 90) : k_least + random_size(k_more);
        k = k_least < 0 && random_below(8) == 0 ? 16 / (int64_t)dtype_size(dtype) : k; /* a vector */
        k = case_regular && k != 4 ? (k + 7) / 8 * 8 : k;
        matrix_open(&t[FCC_GEMV_X], &c->memory[r][FCC_GEMV_X], dtype, m, k, false);
        matrix_open(&t[FCC_GEMV_W], &c->memory[r][FCC_GEMV_W], dtype, n, k, false);
        matrix_open(&t[FCC_GEMV_Y], &c->memory[r][FCC_GEMV_Y], dtype, m, n, true);
        if (case_regular && m == 1 && k > 0) {
            int64_t less = random_below(2) ? 1 + random_below(7) : 0;
            t[FCC_GEMV_X].shape[1] -= less;
            t[FCC_GEMV_W].shape[1] -= less;
        }
    }
    c->result = FCC_GEMV_Y;
    case_place(c, random_below(2) ? 1 : 1 + random_below(4));
}

static void expect_gemv(const struct test_case *c, int64_t m, int64_t n)
{
    double *reference = must(calloc((size_t)(m * n) + 1, sizeof(double)));

    for (int r = 0; r < c->nranks; r++) {
        double *x = matrix_values(&c->args[r].tensors[FCC_GEMV_X]), *w = matrix_values(&c->args[r].tensors[FCC_GEMV_W]);
        int64_t depth = c->args[r].tensors[FCC_GEMV_X].shape[1];
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++)
                for (int64_t k = 0; k < depth; k++)
                    reference[i * n + j] += x[i * depth + k] * w[j * depth + k];
        free(x);
        free(w);
    }
    for (int r = 0; r < c->nranks; r++)
        expect_output(&c->args[r].tensors[FCC_GEMV_Y], &c->memory[r][FCC_GEMV_Y], m, reference);
    free(reference);
}

/* Every rank's y has the bits of `bits` (dense), which are set by rank 0 of the first run. */
static void expect_bits(const struct test_case *c, unsigned char *bits, bool first)
{
    for (int r = 0; r < c->nranks; r++) {
        const struct tensor *y = &c->args[r].tensors[FCC_GEMV_Y];
        size_t size = dtype_size(y->dtype), row = (size_t)y->shape[1] * size;
        for (int64_t i = 0; i < y->shape[0]; i++) {
            if (first && r == 0)
                memcpy(bits + (size_t)i * row, y->data + (size_t)(i * y->stride[0]) * size, row);
            EXPECT(memcmp(bits + (size_t)i * row, y->data + (size_t)(i * y->stride[0]) * size, row) == 0);
        }
    }
}

/* Fused, sequential, and fused again: right, and the same bits. Then the halves. */
static void expect_gemv_runs(struct test_case *c, int number, struct schedule s, int64_t m, int64_t n)
{
    unsigned char *bits = must(calloc((size_t)(m * n) + 1, sizeof(float)));
    struct error e = {0};

    for (int run = 0; run < 3; run++) {
        s.kind = run == 1 ? FCC_SCHEDULE_SEQUENTIAL : FCC_SCHEDULE_FUSED;
        (void)snprintf(case_text, sizeof(case_text), "gemv %d: %s, %s, %s, %d ranks, m %lld, n %lld, tile %u", number,
                       case_regular ? "regular" : "any", schedule_name(s.kind), route_name(s.route), c->nranks, (long long)m,
                       (long long)n, s.slice_cols);
        case_match(c, FCC_OP_GEMV_ALL_REDUCE);
        if (execute(c, s, &e))
            fail_msg("%s: %s", case_text, e.text);
        if (run < 2)
            expect_gemv(c, m, n);
        expect_bits(c, bits, run == 0);
    }
    execute_halves(c);
    free(bits);
}

static void test_gemv(void **state)
{
    (void)state;
    for (int i = 0; i < cases(150); i++) {
        struct test_case c = {.nranks = 1 + (int)random_below(RANKS)};
        int64_t m = random_below(2) ? 1 : 1 + random_below(FCC_GEMV_MAX_M), n = random_size(random_below(5) ? 100 : 1500);
        struct schedule s = random_schedule(FCC_SCHEDULE_FUSED, 1, 90);
        gemv_open(&c, float_dtypes[i % 3], m, n, -1, 0);
        s.route = (enum plan_route)random_below(PLAN_HIERARCHICAL + 1);
        s.target = random_below(2) ? PLAN_GPU : PLAN_CPU;
        expect_gemv_runs(&c, i, s, m, n);
        case_close(&c);
    }
}

/* What y's first row must be to the last bit if K is 1, so that a partial sum is one product, rounded once: the ranks' in rank order, or
 * (by nodes) those of each node in rank order, and then the nodes' in the order of their first ranks. */
static float gemv_in_order(const struct test_case *c, int64_t j, bool by_nodes)
{
    float total = 0, sum;
    bool done[RANKS] = {false}, some = false;

    for (int r = 0; r < c->nranks; r++) {
        if (done[r])
            continue;
        sum = 0;
        for (int q = r, n = 0; q < c->nranks; q++) {
            const struct tensor *x = &c->args[q].tensors[FCC_GEMV_X], *w = &c->args[q].tensors[FCC_GEMV_W];
            if (by_nodes ? c->node_of[q] != c->node_of[r] : q != r)
                continue;
            volatile float product = (float)get(x->data, FCC_F32, 0) * (float)get(w->data, FCC_F32, j * w->stride[0]);
            sum = n++ ? sum + product : product;
            done[q] = true;
        }
        total = some ? total + sum : sum;
        some = true;
    }
    return total;
}

static void test_gemv_order(void **state)
{
    int unlike = 0;

    (void)state;
    for (int i = 0; i < cases(60); i++) {
        struct test_case c = {.nranks = 3 + (int)random_below(RANKS - 2)};
        int64_t n = 1 + random_below(200);
        struct schedule s = {.target = i / 2 % 2 ? PLAN_GPU : PLAN_CPU,
                             .route = i % 2 ? PLAN_FLAT : PLAN_HIERARCHICAL,
                             .slice_cols = (uint32_t)(1 + random_below(40))};
        struct error e = {0};
        gemv_open(&c, FCC_F32, 1, n, 1, 0);
        case_place(&c, 2 + random_below(3));
        for (int kind = FCC_SCHEDULE_FUSED; kind <= FCC_SCHEDULE_SEQUENTIAL; kind++) {
            s.kind = (enum fcc_schedule_kind)kind;
            (void)snprintf(case_text, sizeof(case_text), "gemv order %d: %s, %s, %d ranks, n %lld, tile %u", i,
                           schedule_name(s.kind), route_name(s.route), c.nranks, (long long)n, s.slice_cols);
            case_match(&c, FCC_OP_GEMV_ALL_REDUCE);
            if (execute(&c, s, &e))
                fail_msg("%s: %s", case_text, e.text);
            for (int64_t j = 0; j < n; j++) {
                float want = gemv_in_order(&c, j, s.route != PLAN_FLAT);
                unlike += want != gemv_in_order(&c, j, s.route == PLAN_FLAT);
                for (int r = 0; r < c.nranks; r++)
                    EXPECT((float)get(c.args[r].tensors[FCC_GEMV_Y].data, FCC_F32, j) == want);
            }
        }
        case_close(&c);
    }
    EXPECT(unlike > 2 * cases(60)); /* the two orders give other bits, often enough to tell them apart */
}

/* Rows that begin at multiples of 16 bytes, all numbers of rows of x, a K in many parts and in few. One case in four has so
 * many rows that its results take two steps on GPUs; one in eight has a K whose x does not fit into a workgroup's memory, one
 * has one row that is long, sometimes longer than fits, one a short one and so many columns that all workgroups get some, and one
 * several rows and as many columns, in one step: for one rank, or for two with few rows. */
static void test_gemv_regular(void **state)
{
    (void)state;
    case_regular = true;
    for (int i = 0; i < cases(32); i++) {
        bool many = i % 4 == 3, deep = i % 8 == 5, one = i % 8 == 2, short_one = i % 8 == 6;
        bool wide = i % 8 == 4;
        struct test_case c = {.nranks = deep ? 2 : many ? 4 : 1 + (int)random_below(4)};
        int64_t m = many || deep ? FCC_GEMV_MAX_M - random_below(8) : 2 + random_below(FCC_GEMV_MAX_M - 1);
        int64_t n = many ? 640 + random_below(300) : 1 + random_below(deep || one ? 70 : i % 3 ? 150 : 400);
        int64_t longest = random_below(3) == 0 ? 66000 : random_below(2) ? 15000 : 3900;
        struct schedule s = random_schedule(FCC_SCHEDULE_FUSED, 1, 90);
        m = one || short_one ? 1 : m;
        n = short_one || wide ? 1 + random_below(3000) : n;
        if (wide) {
            c.nranks = 1 + (int)random_below(2);
            m = c.nranks == 1 ? m : 2 + random_below(7);
        }
        gemv_open(&c, float_dtypes[1 + random_below(2)], m, n, deep ? 9000 : one ? longest : 0, wide ? 200 : many ? 300 : 1100);
        expect_gemv_runs(&c, i, s, m, n);
        case_close(&c);
    }
    case_regular = false;
}

/* ---- gemm_all_to_all ---- */

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
        assert_int_equal(op_get(FCC_OP_GEMM_ALL_TO_ALL)->values(&c->problem, p, values), c->nranks);
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
            for (int64_t i = first; i < first + rows[r][p]; i++, out += n)
                for (int64_t k = 0; k < depth; k++)
                    for (int64_t j = 0; j < n; j++)
                        out[j] += a[i * depth + k] * b[k * n + j];
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
 * 128 x 256; K of more steps than fit into shared memory, and of fewer than there are workgroups. */
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
    for (int i = 0; i < cases(bed_device() ? 2 * SIZES : SIZES); i++) {
        int at = (i + i / SIZES) % SIZES;
        struct test_case c = {.nranks = i < SIZES ? 3 : 1 + (int)random_below(3)};
        int64_t rows[RANKS][RANKS] = {{0}};
        gemm_open(&c, float_dtypes[1 + i % 2], sizes[at].n, sizes[at].k, sizes[at].rows, rows);
        case_place(&c, 1);
        expect_gemm_tiles(&c, sizes[at].slice_rows, sizes[at].slice_cols, sizes[at].n, sizes[at].k, rows);
        case_close(&c);
    }
    case_regular = false;
}

/* ---- the rest ---- */

static void test_noop(void **state)
{
    struct test_case c = {.nranks = 5};
    struct error e = {0};

    (void)state;
    (void)snprintf(case_text, sizeof(case_text), "noop");
    case_match(&c, FCC_OP_NOOP);
    for (int kind = FCC_SCHEDULE_FUSED; kind <= FCC_SCHEDULE_COMM_ONLY; kind++)
        assert_int_equal(execute(&c, (struct schedule){.kind = (enum fcc_schedule_kind)kind}, &e), 0);
}

static void test_scratch(void **state)
{
    struct workgroup wg = {0};
    unsigned char *a, *b;

    (void)state;
    a = must(workgroup_scratch(&wg, 1));
    assert_true((uintptr_t)a % 64 == 0);
    memset(a, 1, 1);
    b = must(workgroup_scratch(&wg, 1000000));
    memset(b, 1, 1000000);
    assert_ptr_equal(workgroup_scratch(&wg, 500), b);
    assert_null(workgroup_scratch(&wg, SIZE_MAX - 5));
    assert_ptr_equal(workgroup_scratch(&wg, 1000000), b);
    workgroup_release(&wg);
    assert_non_null(workgroup_scratch(&wg, 0));
    workgroup_release(&wg);
}

int main(void)
{
#define ON_ALL_DEVICES                                                                                                         \
    cmocka_unit_test(test_embedding), cmocka_unit_test(test_embedding_ranges), cmocka_unit_test(test_embedding_ranges_large),  \
        cmocka_unit_test(test_gemv), cmocka_unit_test(test_gemv_order), cmocka_unit_test(test_gemv_regular),                   \
        cmocka_unit_test(test_gemm), cmocka_unit_test(test_gemm_regular), cmocka_unit_test(test_gemm_tiles),                   \
        cmocka_unit_test(test_noop)
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dtypes), ON_ALL_DEVICES, cmocka_unit_test(test_scratch)};
    const struct CMUnitTest on_gpus[] = {ON_ALL_DEVICES};
#undef ON_ALL_DEVICES
    const char *seed = getenv("FCC_TEST_SEED");

    random_state = seed ? strtoull(seed, NULL, 0) : 1;
    (void)printf("FCC_TEST_SEED=%llu\n", (unsigned long long)random_state);
    return bed_device() ? cmocka_run_group_tests(on_gpus, bed_setup, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
