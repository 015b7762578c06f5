/* SPDX-License-Identifier: MIT
 *
 * fuzz_arguments.c - what ranks may ask of an operator, with any shapes, dtypes, strides and attributes: check, match and plan, as the
 * worker does them. What they let pass must be a problem whose plans lie inside the tensors and in memory that is worth them:
 *
 *   - a refusal is -EINVAL with a reason in words; nothing is refused that is as a program would ask it;
 *   - every slice lies in its rank's result and in its destination's; what an all-to-all computes and delivers is every element once;
 *   - flags, groups and staging memory are within their bounds, whatever the numbers.
 */
#include <errno.h>

#include "kernels/plan/program.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/vectors.h"

enum { RANKS = 8, WORDS = 48, PROBES = 64, PLAIN_SLICES = 8192 };
#define VIRTUAL_BYTES ((__int128)1 << 42) /* of a buffer: nothing of it is touched */

struct request {
    struct op_args args;
    int64_t words[WORDS];
    size_t nwords;
};

static unsigned char memory[1]; /* where tensors are said to lie */
static unsigned char *const far =
    (unsigned char *)((uintptr_t)1 << 62); /* and results of collectives, which do not overlap inputs */

/* ---- what ranks ask ---- */

static struct tensor tensor_make(enum fcc_dtype dtype, int ndim, int64_t a, int64_t b, int64_t c)
{
    struct tensor t = {
        .data = memory, .dtype = dtype, .ndim = ndim, .symmetric = true, .shape = {a, b, c}, .stride = {1, 1, 1, 1}};

    for (int i = ndim - 2; i >= 0; i--) {
        __int128 stride = (__int128)t.stride[i + 1] * (t.shape[i + 1] > 0 ? t.shape[i + 1] : 1);
        t.stride[i] = stride > INT64_MAX ? INT64_MAX : (int64_t)stride;
    }
    return t;
}

static void attr_add(struct request *r, enum fcc_attr key, const int64_t *values, size_t n)
{
    if (r->nwords + 1 + n > WORDS)
        return;
    r->words[r->nwords++] = (int64_t)((uint64_t)key << 32 | n);
    for (size_t i = 0; i < n; i++)
        r->words[r->nwords++] = values[i];
}

/* A size that a program might have; seldom a huge one. */
static int64_t size_take(struct input *in)
{
    int64_t n = input_number(in);

    return n < 0 || n > INT32_MAX ? 3 : n;
}

static void embedding_make(struct input *in, struct request all[], int nranks, enum fcc_dtype dtype)
{
    int64_t dim = 1 + size_take(in) % 4096, batch = 0, split[RANKS], tables[RANKS], total = 0, rows[4], pooling;
    bool even = input_below(in, 2);

    pooling = input_below(in, 2);
    for (int r = 0; r < nranks; r++) {
        split[r] = even && r ? split[0] : size_take(in) % 100000;
        batch += split[r];
        total += tables[r] = input_below(in, 5);
    }
    for (int r = 0; r < nranks; r++) {
        struct tensor *t = all[r].args.tensors;
        enum fcc_dtype index = input_below(in, 2) ? FCC_I32 : FCC_I64;
        int64_t sum = 0, nnz = size_take(in);
        for (int i = 0; i < tables[r]; i++)
            sum += rows[i] = size_take(in) % 100000;
        t[FCC_EMB_TABLES] = tensor_make(dtype, 2, sum, dim, 0);
        t[FCC_EMB_INDICES] = tensor_make(index, 1, nnz, 0, 0);
        t[FCC_EMB_OFFSETS] = tensor_make(index, 1, tables[r] * batch + 1, 0, 0);
        if (!pooling && input_below(in, 2))
            t[FCC_EMB_WEIGHTS] = tensor_make(FCC_F32, 1, nnz, 0, 0);
        t[FCC_EMB_OUT] = tensor_make(dtype, 3, split[r], total, dim);
        attr_add(&all[r], FCC_ATTR_TABLE_ROWS, rows, (size_t)tables[r]);
        attr_add(&all[r], FCC_ATTR_POOLING, &pooling, 1);
        attr_add(&all[r], FCC_ATTR_BATCH, &batch, 1);
        if (!even)
            attr_add(&all[r], FCC_ATTR_BATCH_SPLIT, split, (size_t)nranks);
    }
}

static void gemv_make(struct input *in, struct request all[], int nranks, enum fcc_dtype dtype)
{
    int64_t m = 1 + size_take(in) % FCC_GEMV_MAX_M, n = size_take(in);

    for (int r = 0; r < nranks; r++) {
        int64_t k = size_take(in);
        all[r].args.tensors[FCC_GEMV_X] = tensor_make(dtype, 2, m, k, 0);
        all[r].args.tensors[FCC_GEMV_W] = tensor_make(dtype, 2, n, k, 0);
        all[r].args.tensors[FCC_GEMV_Y] = tensor_make(dtype, 2, m, n, 0);
    }
}

static void sums_make(struct input *in, struct request all[], int nranks, enum fcc_dtype dtype)
{
    int64_t m = 1 + size_take(in), n = size_take(in);

    for (int r = 0; r < nranks; r++) {
        int64_t k = size_take(in);
        all[r].args.tensors[FCC_GEMM_A] = tensor_make(dtype, 2, m, k, 0);
        all[r].args.tensors[FCC_GEMM_B] = tensor_make(dtype, 2, k, n, 0);
        all[r].args.tensors[FCC_GEMM_C] = tensor_make(dtype, 2, m, n, 0);
    }
}

/* Rows of the sum for each rank, given or equal. */
static void scatter_make(struct input *in, struct request all[], int nranks, enum fcc_dtype dtype)
{
    int64_t rows[RANKS], m = 0;
    const bool equal = input_below(in, 2);

    sums_make(in, all, nranks, dtype);
    for (int r = 0; r < nranks; r++)
        m += rows[r] = size_take(in) % 1000000;
    for (int r = 0; r < nranks; r++) {
        all[r].args.tensors[FCC_GEMM_A].shape[0] = m;
        all[r].args.tensors[FCC_GEMM_C].shape[0] = equal ? m / nranks + (r < m % nranks) : rows[r];
        if (!equal)
            attr_add(&all[r], FCC_ATTR_ROWS, rows, (size_t)nranks);
    }
}

static void gathers_make(struct input *in, struct request all[], int nranks, enum fcc_dtype dtype)
{
    const int64_t k = size_take(in);
    const bool gathered = input_below(in, 2);
    int64_t rows[RANKS], m = 0;

    for (int r = 0; r < nranks; r++)
        m += rows[r] = size_take(in) % 1000000;
    for (int r = 0; r < nranks; r++) {
        const int64_t n = size_take(in);
        all[r].args.tensors[FCC_GATHER_A] = tensor_make(dtype, 2, rows[r], k, 0);
        all[r].args.tensors[FCC_GATHER_B] = tensor_make(dtype, 2, k, n, 0);
        if (gathered)
            all[r].args.tensors[FCC_GATHER_GATHERED] = tensor_make(dtype, 2, m, k, 0);
        all[r].args.tensors[FCC_GATHER_C] = tensor_make(dtype, 2, m, n, 0);
    }
}

static void gemm_make(struct input *in, struct request all[], int nranks, enum fcc_dtype dtype)
{
    int64_t n = size_take(in), rows[RANKS][RANKS], sent[RANKS] = {0}, received[RANKS] = {0};
    bool equal = input_below(in, 2);
    int64_t each = size_take(in) % 1000000;

    for (int r = 0; r < nranks; r++)
        for (int q = 0; q < nranks; q++) {
            rows[r][q] = equal ? each : size_take(in) % 1000000;
            sent[r] += rows[r][q];
            received[q] += rows[r][q];
        }
    for (int r = 0; r < nranks; r++) {
        bool alone = input_rarely(in, 4); /* without b */
        int64_t k = alone ? n : size_take(in);
        all[r].args.tensors[FCC_GEMM_A] = tensor_make(dtype, 2, sent[r], k, 0);
        all[r].args.tensors[FCC_GEMM_B] = tensor_make(dtype, 2, k, n, 0);
        if (alone)
            memset(&all[r].args.tensors[FCC_GEMM_B], 0, sizeof(all[r].args.tensors[FCC_GEMM_B]));
        all[r].args.tensors[FCC_GEMM_C] = tensor_make(dtype, 2, received[r] + (input_rarely(in, 8) ? 5 : 0), n, 0);
        if (!equal || input_below(in, 2))
            attr_add(&all[r], FCC_ATTR_SEND_ROWS, rows[r], (size_t)nranks);
    }
}

static void vectors_make(struct input *in, struct request all[], int nranks)
{
    static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_BF16, FCC_F64, FCC_U8};
    const struct op_spec *op = op_spec(all[0].args.op);
    enum fcc_dtype dtype = dtypes[input_below(in, 4)];
    int64_t root = input_below(in, (uint32_t)nranks), reduction = input_below(in, FCC_MAX + 1), row = 1;
    int shift = op->number == FCC_OP_ALL_TO_ALL ? -1 : (int)input_below(in, (uint32_t)nranks);
    struct vector_lengths l;

    vector_lengths_draw(in, op, nranks, (int)root, shift, &l);
    for (int r = 0; r < nranks; r++) {
        int64_t to = shift > 0 ? (r + shift) % nranks : -1, from = shift > 0 ? (r + nranks - shift) % nranks : -1;
        if (l.in[r] >= 0)
            all[r].args.tensors[FCC_VECTOR_IN] = tensor_make(dtype, 1, l.in[r], 0, 0);
        if (l.out[r] >= 0)
            all[r].args.tensors[FCC_VECTOR_OUT] = tensor_make(dtype, 1, l.out[r], 0, 0);
        all[r].args.tensors[FCC_VECTOR_OUT].data = l.out[r] >= 0 ? far : NULL;
        int64_t come[RANKS] = {0};
        for (int q = 0; q < nranks; q++)
            come[q] = l.counts[q][r];
        for (int i = 0; i < op->nattrs; i++)
            if (op->attrs[i].key == FCC_ATTR_EXPECTED_COUNTS)
                attr_add(&all[r], FCC_ATTR_EXPECTED_COUNTS, come, (size_t)nranks);
            else if (op->attrs[i].kind == ATTR_RANKS)
                attr_add(&all[r], (enum fcc_attr)op->attrs[i].key, l.counts[r], (size_t)nranks);
            else
                attr_add(&all[r], (enum fcc_attr)op->attrs[i].key,
                         op->attrs[i].key == FCC_ATTR_ROOT           ? &root
                         : op->attrs[i].key == FCC_ATTR_REDUCTION    ? &reduction
                         : op->attrs[i].key == FCC_ATTR_ROW_ELEMENTS ? &row
                         : op->attrs[i].key == FCC_ATTR_DESTINATION  ? &to
                                                                     : &from,
                         1);
    }
}

static void spoil(struct input *in, struct request *r)
{
    struct tensor *t = &r->args.tensors[input_below(in, FCC_MAX_TENSORS)];
    int64_t value = input_number(in);
    unsigned at = input_below(in, FCC_MAX_DIMS);

    switch (input_below(in, 11)) {
    case 0:
        t->shape[at] = value;
        break;
    case 1:
        t->stride[at] = value;
        break;
    case 2:
        t->dtype = (enum fcc_dtype)(uint16_t)value;
        break;
    case 3:
        t->ndim = (int)(uint16_t)value;
        break;
    case 4:
        t->data = value & 1 ? memory : NULL;
        break;
    case 5:
        t->symmetric = value & 1;
        break;
    case 6:
        r->args.op = (enum fcc_op)((uint64_t)value % FCC_OP_COUNT);
        break;
    case 7:
        r->args.schedule = (enum fcc_schedule_kind)((uint64_t)value & 63);
        break;
    case 8:
        r->words[(uint64_t)value % WORDS] = input_number(in);
        break;
    case 9:
        r->nwords = (uint64_t)value % WORDS;
        break;
    default:
        r->args.ntensors = (int)((uint64_t)value % (FCC_MAX_TENSORS + 1));
        break;
    }
}

/* As tensor_form_check() and tensor_place_check() of resolve.c let it pass. */
static bool tensor_is_possible(const struct tensor *t)
{
    __int128 last = 0;

    if (!t->data)
        return true;
    if (!dtype_size(t->dtype) || t->ndim < 1 || t->ndim > FCC_MAX_DIMS)
        return false;
    for (int d = 0; d < t->ndim; d++)
        if (t->shape[d] < 0 || t->shape[d] > (t->ndim == 1 ? VECTOR_MOST : INT32_MAX) || t->stride[d] < 0)
            return false;
    for (int d = 0; d < t->ndim; d++) {
        if (t->shape[d] == 0)
            return true;
        last += (__int128)(t->shape[d] - 1) * t->stride[d];
    }
    return (last + 1) * (__int128)dtype_size(t->dtype) <= VIRTUAL_BYTES;
}

static bool request_is_possible(const struct request *r)
{
    for (int i = 0; i < r->args.ntensors; i++)
        if (!tensor_is_possible(&r->args.tensors[i]))
            return false;
    return r->args.ntensors == op_spec(r->args.op)->ntensors;
}

/* ---- what is expected ---- */

static void expect_refusal(int status, const struct error *e)
{
    FUZZ_CHECK(status == -EINVAL && e->status == status && e->text[0] && memchr(e->text, 0, sizeof(e->text)));
    FUZZ_CHECK(strstr(e->text, "unknown:") != e->text);
}

/* The rows and columns of what a rank computes, and of its result. */
struct extent {
    int64_t sent_rows, sent_cols, rows, cols;
};

/* What source sends to dst; 0 if the operator has no counts. */
static int64_t rows_of(const struct problem *p, int source, int dst)
{
    return op_counts(p->op) ? p->counts[source].to[dst] : 0;
}

static struct extent extent_of(const struct problem *p, int rank)
{
    struct extent x = {0};

    for (int q = 0; q < p->nranks; q++) {
        if (p->op == FCC_OP_EMBEDDING_ALL_TO_ALL) {
            x.sent_rows = p->dim[DIM_M];
            x.sent_cols = p->rank_dim[DIM_N][rank];
            x.rows = p->rank_dim[DIM_M][rank];
            x.cols += p->rank_dim[DIM_N][q];
        } else if (p->op == FCC_OP_GEMM_ALL_TO_ALL) {
            x.sent_rows += rows_of(p, rank, q);
            x.rows += rows_of(p, q, rank);
            x.sent_cols = x.cols = p->dim[DIM_N];
        } else if (op_spec(p->op)->exchange == EXCHANGE_REDUCE) {
            x.sent_rows = x.rows = p->dim[DIM_M];
            x.sent_cols = x.cols = p->dim[DIM_N];
        } else if (p->op == FCC_OP_ALL_GATHER_GEMM) {
            x.sent_rows = x.rows = p->dim[DIM_M];
            x.sent_cols = x.cols = p->rank_dim[DIM_N][rank];
        }
    }
    return x;
}

static bool is_all_to_all(const struct problem *p)
{
    return p->op == FCC_OP_EMBEDDING_ALL_TO_ALL || p->op == FCC_OP_GEMM_ALL_TO_ALL;
}

/* No more than what all ranks' results and partial sums take together, each rounded up. */
static void expect_staging(const struct problem *p, const struct plan *plan)
{
    __int128 elements = 0, width = p->op == FCC_OP_EMBEDDING_ALL_TO_ALL ? p->dim[DIM_VECTOR] : 1;
    struct extent x = extent_of(p, plan->rank);

    if (op_is_vector(p->op)) { /* what other nodes' ranks send of each chunk, and room for a chunk that is not the longest */
        FUZZ_CHECK((__int128)plan->staging_bytes <= ((__int128)p->dim[DIM_N] + 1024 * 1024) * (2 * p->nranks + 2) * 8);
        return;
    }
    if (p->op == FCC_OP_ALL_GATHER_GEMM) { /* rows of A, and results that are made of whole rows */
        FUZZ_CHECK((__int128)plan->staging_bytes <=
                   (__int128)p->dim[DIM_M] * (x.sent_cols + p->dim[DIM_K]) * 4 + 64 * (p->nranks + 1));
        return;
    }
    elements = (__int128)x.sent_rows * x.sent_cols * width;
    if (op_spec(p->op)->exchange == EXCHANGE_REDUCE)
        elements = (elements + 1024 * 1024) * (2 * p->nranks + 2);
    FUZZ_CHECK((__int128)plan->staging_bytes <= elements * 8 + (1 << 20));
    if (is_all_to_all(p) && plan->schedule.kind != FCC_SCHEDULE_FUSED)
        FUZZ_CHECK((__int128)plan->staging_bytes >= elements * (int)dtype_size(p->dtype));
}

static void expect_slice(const struct problem *p, const struct plan *plan, const struct slice *s)
{
    struct extent x = extent_of(p, plan->rank);

    FUZZ_CHECK(s->kind >= SLICE_COMPUTE_PUT && s->kind < SLICE_KINDS);
    FUZZ_CHECK(s->group == SLICE_NO_GROUP || s->group < plan->ngroups);
    FUZZ_CHECK(!s->wait_count || s->wait_first + (uint64_t)(s->wait_count - 1) * s->wait_stride < plan->nflags);
    FUZZ_CHECK(s->dst == SLICE_DST_ALL || s->dst & SLICE_DST_SET || s->dst < p->nranks);
    if (s->kind == SLICE_WAIT)
        return;
    if (op_is_vector(p->op)) {
        vector_expect(p, plan, s);
        return;
    }
    FUZZ_CHECK(s->rows && s->cols);
    if (p->op == FCC_OP_ALL_GATHER_GEMM && (s->kind == SLICE_PUT || s->kind == SLICE_FORWARD)) /* rows of A */
        x.sent_cols = p->dim[DIM_K];
    FUZZ_CHECK((int64_t)s->row + s->rows <= x.sent_rows && (int64_t)s->col + s->cols <= x.sent_cols);
    if (is_all_to_all(p) && s->kind != SLICE_COMPUTE) {
        x = extent_of(p, s->dst);
        FUZZ_CHECK((int64_t)s->dst_row + s->rows <= x.rows && (int64_t)s->dst_col + s->cols <= x.cols);
    }
}

static void expect_plan(const struct problem *p, const struct plan *plan)
{
    uint32_t *in_group = calloc(plan->ngroups + 1, sizeof(*in_group));

    FUZZ_CHECK(in_group && plan->nslices && plan->nslices <= PLAN_MAX_SLICES && plan->nflags <= PLAN_MAX_FLAGS);
    expect_staging(p, plan);
    for (uint32_t i = 0; i < plan->nslices; i++) {
        expect_slice(p, plan, &plan->slices[i]);
        if (plan->slices[i].group != SLICE_NO_GROUP)
            in_group[plan->slices[i].group]++;
    }
    for (uint32_t g = 0; g < plan->ngroups; g++)
        FUZZ_CHECK(plan->groups[g].slices == in_group[g] && in_group[g] && plan->groups[g].flag < plan->nflags);
    free(in_group);
}

static bool covers(const struct slice *s, int64_t row, int64_t col)
{
    return row >= s->dst_row && row < (int64_t)s->dst_row + s->rows && col >= s->dst_col && col < (int64_t)s->dst_col + s->cols;
}

/* What an all-to-all delivers to a rank has the size of its result, and covers some of its elements, corners of slices among them, once:
 * so there is no gap and no overlap. */
static void expect_delivery(const struct problem *p, struct plan *const plans[], int dst, struct input *in)
{
    struct extent x = extent_of(p, dst);
    __int128 area = 0;

    for (int r = 0; r < p->nranks; r++)
        for (uint32_t i = 0; i < plans[r]->nslices; i++) {
            const struct slice *s = &plans[r]->slices[i];
            if ((s->kind == SLICE_COMPUTE_PUT || s->kind == SLICE_PUT) && s->dst == dst)
                area += (__int128)s->rows * s->cols;
        }
    if (plans[0]->schedule.kind == FCC_SCHEDULE_COMPUTE_ONLY) {
        FUZZ_CHECK(area == 0);
        return;
    }
    FUZZ_CHECK(area == (__int128)x.rows * x.cols);
    for (int probe = 0; probe < PROBES && area; probe++) {
        int64_t row = (int64_t)(input_bits(in, 4) % (uint64_t)x.rows), col = (int64_t)(input_bits(in, 4) % (uint64_t)x.cols);
        if (probe % 2) {
            const struct plan *plan = plans[probe / 2 % p->nranks];
            const struct slice *s = &plan->slices[input_bits(in, 4) % plan->nslices];
            if (s->dst == dst && s->rows) {
                row = (int64_t)s->dst_row + (probe & 2 ? s->rows - 1 : 0);
                col = (int64_t)s->dst_col + (probe & 4 ? s->cols - 1 : 0);
            }
        }
        unsigned times = 0;
        for (int r = 0; r < p->nranks; r++)
            for (uint32_t i = 0; i < plans[r]->nslices; i++) {
                const struct slice *s = &plans[r]->slices[i];
                times += (s->kind == SLICE_COMPUTE_PUT || s->kind == SLICE_PUT) && s->dst == dst && covers(s, row, col);
            }
        if (row < x.rows && col < x.cols)
            FUZZ_CHECK(times == 1);
    }
}

/* ---- one input ---- */

static void plans_try(struct input *in, const struct problem *p, enum plan_route route)
{
    struct schedule schedule = {.kind = (enum fcc_schedule_kind)(FCC_SCHEDULE_FUSED + input_below(in, 4)),
                                .target = input_below(in, 2) ? PLAN_GPU : PLAN_CPU,
                                .route = route,
                                .workgroups = input_below(in, 260)};
    struct plan *plans[RANKS] = {NULL};
    struct error e = {0};
    bool all = is_all_to_all(p);

    if (input_rarely(in, 4)) { /* as fccctl plan may ask */
        schedule.slice_rows = (uint32_t)input_number(in);
        schedule.slice_cols = (uint32_t)input_number(in);
    }
    for (int r = 0; r < p->nranks; r++) {
        int status = plan_make(p, r, &schedule, &plans[r], &e);
        if (status) {
            /* Default slices are refused only where there would be too many of them (plan.h). */
            FUZZ_CHECK(schedule.slice_rows || schedule.slice_cols || p->nranks > 1 || status == -ENOMEM ||
                       strstr(e.text, "slices: more than"));
            expect_refusal(status, &e);
            all = false;
            break;
        }
        expect_plan(p, plans[r]);
        if (plans[r]->nslices > PLAIN_SLICES) { /* one is enough of what takes long */
            all = false;
            break;
        }
    }
    for (int dst = 0; dst < p->nranks && all; dst++)
        expect_delivery(p, plans, dst, in);
    for (int r = 0; r < p->nranks; r++)
        plan_free(plans[r]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const make[FCC_OP_COUNT])(struct input *, struct request *, int, enum fcc_dtype) = {
        [FCC_OP_EMBEDDING_ALL_TO_ALL] = embedding_make, [FCC_OP_GEMV_ALL_REDUCE] = gemv_make,
        [FCC_OP_GEMM_ALL_TO_ALL] = gemm_make,           [FCC_OP_GEMM_ALL_REDUCE] = sums_make,
        [FCC_OP_GEMM_REDUCE_SCATTER] = scatter_make,    [FCC_OP_ALL_GATHER_GEMM] = gathers_make,
    };
    static struct request all[RANKS];
    struct input in = {.at = data, .left = size};
    int nranks = 1 + (int)input_below(&in, RANKS), status = 0;
    enum fcc_op op = (enum fcc_op)input_below(&in, FCC_OP_COUNT);
    enum fcc_dtype dtype = (enum fcc_dtype)(FCC_F32 + input_below(&in, 3));
    int32_t node_of[RANKS];
    struct op_args args[RANKS];
    struct error e = {0};
    unsigned spoilt = input_below(&in, 8);

    if (op_spec(op)->compute == COMPUTE_STEP) /* fuzz_program.c */
        return 0;

    memset(all, 0, sizeof(all));
    spoilt = spoilt < 4 ? 0 : spoilt - 3;
    enum plan_route route = (enum plan_route)input_below(&in, PLAN_HIERARCHICAL + 1);
    for (int r = 0; r < nranks; r++) {
        all[r].args = (struct op_args){.op = op, .route = route, .ntensors = op_spec(op)->ntensors};
        node_of[r] = (int32_t)input_below(&in, 4);
    }
    if (op_spec(op)->compute == COMPUTE_VECTOR)
        vectors_make(&in, all, nranks);
    else if (make[op])
        make[op](&in, all, nranks, dtype);
    for (unsigned i = 0; i < spoilt; i++)
        spoil(&in, &all[input_below(&in, (uint32_t)nranks)]);
    for (int r = 0; r < nranks; r++) {
        if (!request_is_possible(&all[r]) || all[r].args.op != op)
            return 0;
        all[r].args.attrs = all[r].words;
        all[r].args.nattrs = all[r].nwords;
        status = op_attrs_check(all[r].words, all[r].nwords, &e);
        if (!status)
            status = op_check(&all[r].args, nranks, r, &e);
        if (status)
            break;
        args[r] = all[r].args;
    }
    struct problem *problem = problem_new(nranks);
    memcpy(problem->node_of, node_of, (size_t)nranks * sizeof(node_of[0]));
    FUZZ_CHECK(problem_begin(problem, op) == 0);
    if (!status)
        status = op_match(args, nranks, problem, &e);
    if (status) {
        FUZZ_CHECK(spoilt > 0);
        expect_refusal(status, &e);
        problem_free(problem);
        return 0;
    }
    for (int i = 0; i < 3; i++)
        plans_try(&in, problem, route);
    for (int r = 0; r < nranks; r++) {
        struct work work = plan_work(problem, r);
        int64_t values[FCC_MAX_RANKS];
        FUZZ_CHECK(work.bytes >= 0 && work.flops >= 0);
        int n = op_values(problem, r, values);
        FUZZ_CHECK(n >= 0 && n <= FCC_MAX_RANKS);
    }
    problem_free(problem);
    return 0;
}
