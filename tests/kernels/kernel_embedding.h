/* SPDX-License-Identifier: MIT
 *
 * kernel_embedding.h - test_kernels.c's cases of embedding_all_to_all.
 */
#ifndef FCC_TEST_KERNEL_EMBEDDING_H
#define FCC_TEST_KERNEL_EMBEDDING_H

#include "tests/kernels/kernel_bed.h"

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

#endif
