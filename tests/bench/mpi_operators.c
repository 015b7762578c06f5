/* SPDX-License-Identifier: MIT
 *
 * mpi_operators.c - the operators as a computation and a call of MPI, with the kernels that the daemon uses: its pooling code
 * and the same BLAS.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/blas.h"
#include "kernels/cpu/thin.h"
#include "tests/bench/sequence.h"

static void *allocate(const struct sequence *s, int64_t elements, size_t size)
{
    size_t bytes = ((size_t)elements * size + 4096) / 4096 * 4096;
    void *p = aligned_alloc(4096, bytes);

    if (!p)
        sequence_fail(s, "no memory for %zu bytes", bytes);
    memset(p, 0, bytes);
    return p;
}

static float *allocate_floats(const struct sequence *s, int64_t elements)
{
    return allocate(s, elements, sizeof(float));
}

static void add_variant(struct sequence *s, const char *name, void (*compute)(struct sequence *),
                        void (*communicate)(struct sequence *))
{
    s->variants[s->nvariants++] = (struct variant){.name = name, .compute = compute, .communicate = communicate};
}

static int as_int(const struct sequence *s, int64_t value)
{
    if (value > INT_MAX)
        sequence_fail(s, "a message of %lld elements: MPI allows %d", (long long)value, INT_MAX);
    return (int)value;
}

/* Contiguous messages: send_rows(p) rows to rank p and receive_rows rows from each, of so many elements. */
static void set_counts(struct sequence *s, const int64_t send_rows[], int64_t send_cols, int64_t receive_rows,
                       int64_t receive_cols)
{
    int64_t sent = 0, received = 0;

    for (int p = 0; p < s->nranks; p++) {
        s->send_counts[p] = as_int(s, send_rows[p] * send_cols);
        s->send_starts[p] = as_int(s, sent);
        s->receive_counts[p] = as_int(s, receive_rows * receive_cols);
        s->receive_starts[p] = as_int(s, received);
        sent += s->send_counts[p];
        received += s->receive_counts[p];
    }
}

/* ---- embedding ---- */

/* The slices of the sequential schedule's first half, one after the other: all pooled vectors, [destination][sample][table]. */
static void embedding_compute(struct sequence *s)
{
    unsigned char *staging[FCC_MAX_RANKS] = {0};
    const struct run run = {.plan = s->plan, .problem = s->problem, .rank = s->rank, .args = s->args, .staging = staging};
    struct error e;

    staging[s->rank] = (unsigned char *)s->computed;
    for (uint32_t i = 0; i < s->plan->nslices; i++) {
        const struct slice *slice = &s->plan->slices[i];
        if (slice->kind == SLICE_COMPUTE && cpu_slice(&run, slice, &s->workgroup, &e))
            sequence_fail(s, "%s", e.text);
    }
}

static void alltoallv_and_unpack(struct sequence *s)
{
    const struct shape *sh = &s->bench.shape;
    int64_t samples = shape_share(sh->batch, s->nranks, s->rank), part = sh->tables * sh->dim;

    (void)MPI_Alltoallv(s->computed, s->send_counts, s->send_starts, MPI_FLOAT, s->received, s->receive_counts,
                        s->receive_starts, MPI_FLOAT, MPI_COMM_WORLD);
    for (int source = 0; source < s->nranks; source++)
        for (int64_t i = 0; i < samples; i++)
            memcpy(s->out + (i * s->nranks + source) * part, s->received + s->receive_starts[source] + i * part,
                   (size_t)part * sizeof(float));
}

static void alltoallw_in_place(struct sequence *s)
{
    (void)MPI_Alltoallw(s->computed, s->one_each, s->send_bytes, s->send_types, s->out, s->one_each, s->receive_bytes,
                        s->receive_types, MPI_COMM_WORLD);
}

/* Messages that MPI itself puts where they belong in out. */
static void set_types(struct sequence *s)
{
    const struct shape *sh = &s->bench.shape;
    int samples = (int)shape_share(sh->batch, s->nranks, s->rank), part = as_int(s, sh->tables * sh->dim);

    for (int p = 0; p < s->nranks; p++) {
        s->one_each[p] = 1;
        s->send_bytes[p] = as_int(s, (int64_t)s->send_starts[p] * (int64_t)sizeof(float));
        s->receive_bytes[p] = as_int(s, (int64_t)p * part * (int64_t)sizeof(float));
        (void)MPI_Type_contiguous(s->send_counts[p], MPI_FLOAT, &s->send_types[p]);
        (void)MPI_Type_commit(&s->send_types[p]);
        (void)MPI_Type_vector(samples, part, as_int(s, (int64_t)part * s->nranks), MPI_FLOAT, &s->receive_types[p]);
        (void)MPI_Type_commit(&s->receive_types[p]);
    }
}

static void fill_ids(struct sequence *s, int64_t nnz, int64_t bags)
{
    const struct shape *sh = &s->bench.shape;
    bool wide = sh->index_dtype == FCC_I64;

    s->indices = allocate(s, nnz, wide ? 8 : 4);
    s->offsets = allocate(s, bags + 1, wide ? 8 : 4);
    for (int64_t i = 0; i < nnz; i++) {
        int64_t id = data_id(sh, s->rank, (uint64_t)i);
        if (wide)
            ((int64_t *)s->indices)[i] = id;
        else
            ((int32_t *)s->indices)[i] = (int32_t)id;
    }
    for (int64_t i = 0; i <= bags; i++) {
        if (wide)
            ((int64_t *)s->offsets)[i] = i * sh->pooling;
        else
            ((int32_t *)s->offsets)[i] = (int32_t)(i * sh->pooling);
    }
}

static struct tensor dense_tensor(void *data, enum fcc_dtype dtype, int ndim, int64_t rows, int64_t cols)
{
    return (struct tensor){
        .data = data, .dtype = dtype, .ndim = ndim, .shape = {rows, cols}, .stride = {ndim == 2 ? cols : 1, ndim == 2}};
}

/* The request as the daemon would have it. */
static void embedding_args(struct sequence *s, int64_t nnz, int64_t bags)
{
    const struct shape *sh = &s->bench.shape;
    struct op_args *args;
    size_t n = 0;

    s->args = calloc((size_t)s->nranks, sizeof(*s->args));
    s->attrs = calloc((size_t)sh->tables + 5, sizeof(*s->attrs));
    if (!s->args || !s->attrs)
        sequence_fail(s, "no memory for the arguments");
    s->attrs[n++] = (int64_t)FCC_ATTR_TABLE_ROWS << 32 | sh->tables;
    for (int64_t t = 0; t < sh->tables; t++)
        s->attrs[n++] = sh->rows;
    s->attrs[n++] = (int64_t)FCC_ATTR_POOLING << 32 | 1;
    s->attrs[n++] = FCC_POOLING_SUM;
    s->attrs[n++] = (int64_t)FCC_ATTR_BATCH << 32 | 1;
    s->attrs[n++] = sh->batch;
    args = &s->args[s->rank];
    *args = (struct op_args){.op = FCC_OP_EMBEDDING_ALL_TO_ALL, .ntensors = FCC_EMB_TENSORS, .attrs = s->attrs, .nattrs = n};
    args->tensors[FCC_EMB_TABLES] = dense_tensor(s->w, FCC_F32, 2, sh->tables * sh->rows, sh->dim);
    args->tensors[FCC_EMB_INDICES] = dense_tensor(s->indices, sh->index_dtype, 1, nnz, 0);
    args->tensors[FCC_EMB_OFFSETS] = dense_tensor(s->offsets, sh->index_dtype, 1, bags + 1, 0);
}

static void embedding_setup(struct sequence *s)
{
    const struct schedule compute_only = {.kind = FCC_SCHEDULE_COMPUTE_ONLY};
    const struct shape *sh = &s->bench.shape;
    int64_t bags = sh->tables * sh->batch, nnz = bags * sh->pooling, samples = shape_share(sh->batch, s->nranks, s->rank);
    int64_t send_rows[FCC_MAX_RANKS] = {0};
    struct error e;

    for (int p = 0; p < s->nranks; p++)
        send_rows[p] = shape_share(sh->batch, s->nranks, p);
    s->w = allocate_floats(s, sh->tables * sh->rows * sh->dim);
    data_fill(sh, BENCH_TABLES, s->rank, 0, (uint64_t)(sh->tables * sh->rows * sh->dim), s->w);
    fill_ids(s, nnz, bags);
    s->computed = allocate_floats(s, bags * sh->dim);
    s->received = allocate_floats(s, samples * sh->tables * s->nranks * sh->dim);
    embedding_args(s, nnz, bags);
    s->problem = shape_problem(sh, 1);
    if (!s->problem)
        sequence_fail(s, "out of memory");
    if (plan_make(s->problem, s->rank, &compute_only, &s->plan, &e))
        sequence_fail(s, "%s", e.text);
    set_counts(s, send_rows, sh->tables * sh->dim, samples, sh->tables * sh->dim);
    set_types(s);
    add_variant(s, "pool, MPI_Alltoallv, unpack", embedding_compute, alltoallv_and_unpack);
    add_variant(s, "pool, MPI_Alltoallw", embedding_compute, alltoallw_in_place);
}

/* ---- gemv ---- */

static void gemv_blas(struct sequence *s)
{
    const struct shape *sh = &s->bench.shape;

    if (sh->m == 1)
        blas_sgemv(CblasRowMajor, CblasNoTrans, (int)sh->n, (int)sh->k, 1, s->w, (int)sh->k, s->x, 1, 0, s->computed, 1);
    else
        blas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)sh->m, (int)sh->n, (int)sh->k, 1, s->x, (int)sh->k, s->w,
                   (int)sh->k, 0, s->computed, (int)sh->n);
}

/* With the loop that fccd uses: the strongest there is for what is compared. */
static void gemv_by_hand(struct sequence *s)
{
    const struct shape *sh = &s->bench.shape;

    thin_multiply(sh->m, sh->n, sh->k, s->x, sh->k, s->w, FCC_F32, sh->k, false, s->computed, sh->n);
}

static void allreduce(struct sequence *s)
{
    (void)MPI_Allreduce(s->computed, s->out, (int)s->out_elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void gemv_setup(struct sequence *s)
{
    const struct shape *sh = &s->bench.shape;

    s->x = allocate_floats(s, sh->m * sh->k);
    s->w = allocate_floats(s, sh->n * sh->k);
    s->computed = allocate_floats(s, sh->m * sh->n);
    data_fill(sh, BENCH_X, s->rank, 0, (uint64_t)(sh->m * sh->k), s->x);
    data_fill(sh, BENCH_W, s->rank, 0, (uint64_t)(sh->n * sh->k), s->w);
    add_variant(s, sh->m == 1 ? "sgemv, MPI_Allreduce" : "sgemm, MPI_Allreduce", gemv_blas, allreduce);
    if (sh->m == 1)
        add_variant(s, "fccd's loop, MPI_Allreduce", gemv_by_hand, allreduce);
}

/* ---- gemm ---- */

static void gemm_blas(struct sequence *s)
{
    const struct shape *sh = &s->bench.shape;

    blas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)sh->m, (int)sh->n, (int)sh->k, 1, s->x, (int)sh->k, s->w,
               (int)sh->n, 0, s->computed, (int)sh->n);
}

static void alltoall(struct sequence *s)
{
    (void)MPI_Alltoall(s->computed, s->send_counts[0], MPI_FLOAT, s->out, s->receive_counts[0], MPI_FLOAT, MPI_COMM_WORLD);
}

static void alltoallv(struct sequence *s)
{
    (void)MPI_Alltoallv(s->computed, s->send_counts, s->send_starts, MPI_FLOAT, s->out, s->receive_counts, s->receive_starts,
                        MPI_FLOAT, MPI_COMM_WORLD);
}

static void gemm_setup(struct sequence *s)
{
    const struct shape *sh = &s->bench.shape;
    int64_t send_rows[FCC_MAX_RANKS] = {0};

    for (int p = 0; p < s->nranks; p++)
        send_rows[p] = shape_share(sh->m, s->nranks, p);
    s->x = allocate_floats(s, sh->m * sh->k);
    s->w = allocate_floats(s, sh->k * sh->n);
    s->computed = allocate_floats(s, sh->m * sh->n);
    data_fill(sh, BENCH_X, s->rank, 0, (uint64_t)(sh->m * sh->k), s->x);
    data_fill(sh, BENCH_W, s->rank, 0, (uint64_t)(sh->k * sh->n), s->w);
    set_counts(s, send_rows, sh->n, send_rows[s->rank], sh->n);
    if (sh->m % s->nranks == 0)
        add_variant(s, "sgemm, MPI_Alltoall", gemm_blas, alltoall);
    add_variant(s, "sgemm, MPI_Alltoallv", gemm_blas, alltoallv);
}

static void reduce_scatter_block(struct sequence *s)
{
    (void)MPI_Reduce_scatter_block(s->computed, s->out, s->receive_counts[0], MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void reduce_scatter(struct sequence *s)
{
    (void)MPI_Reduce_scatter(s->computed, s->out, s->send_counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* The rows that go to each rank are those that it gets of the sum. */
static void gemm_reduce_setup(struct sequence *s)
{
    const struct shape *sh = &s->bench.shape;

    gemm_setup(s);
    s->nvariants = 0;
    if (sh->m % s->nranks == 0)
        add_variant(s, "sgemm, MPI_Reduce_scatter_block", gemm_blas, reduce_scatter_block);
    add_variant(s, "sgemm, MPI_Reduce_scatter", gemm_blas, reduce_scatter);
}

/* ---- all_gather_gemm: the rows of all ranks, then one product ---- */

static void allgather(struct sequence *s)
{
    (void)MPI_Allgather(s->x, s->send_counts[0], MPI_FLOAT, s->received, s->send_counts[0], MPI_FLOAT, MPI_COMM_WORLD);
}

static void gathered_blas(struct sequence *s)
{
    const struct shape *sh = &s->bench.shape;

    blas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, as_int(s, sh->m * s->nranks), (int)sh->n, (int)sh->k, 1, s->received,
               (int)sh->k, s->w, (int)sh->n, 0, s->out, (int)sh->n);
}

static void gather_setup(struct sequence *s)
{
    const struct shape *sh = &s->bench.shape;

    s->x = allocate_floats(s, sh->m * sh->k);
    s->w = allocate_floats(s, sh->k * sh->n);
    s->received = allocate_floats(s, sh->m * sh->k * s->nranks);
    data_fill(sh, BENCH_X, s->rank, 0, (uint64_t)(sh->m * sh->k), s->x);
    data_fill(sh, BENCH_W, s->rank, 0, (uint64_t)(sh->k * sh->n), s->w);
    s->send_counts[0] = as_int(s, sh->m * sh->k);
    s->variants[s->nvariants++] =
        (struct variant){.name = "MPI_Allgather, sgemm", .compute = gathered_blas, .communicate = allgather, .gathers = true};
}

/* ---- all ---- */

const char *sequence_blas(char *out, size_t room)
{
    const char *(*config)(void) = NULL;
    Dl_info where = {0};
    void *library = NULL;

    if (dladdr(*(void **)&blas_sgemm, &where) && where.dli_fname)
        library = dlopen(where.dli_fname, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (library)
        *(void **)&config = dlsym(library, "openblas_get_config");
    (void)snprintf(out, room, "%s: %s", where.dli_fname ? where.dli_fname : "unknown", config ? config() : "not OpenBLAS");
    if (library)
        (void)dlclose(library);
    return out;
}

static void barrier(struct sequence *s)
{
    (void)s;
    (void)MPI_Barrier(MPI_COMM_WORLD);
}

void sequence_setup(struct sequence *s)
{
    int64_t rows, cols;
    struct error e;

    if (blas_open(&e))
        sequence_fail(s, "%s", e.text);
    result_size(&s->bench.shape, s->rank, &rows, &cols);
    s->out_elements = (size_t)(rows * cols);
    (void)as_int(s, rows * cols);
    s->out = allocate_floats(s, rows * cols);
    switch (s->bench.shape.op) {
    case FCC_OP_EMBEDDING_ALL_TO_ALL:
        embedding_setup(s);
        return;
    case FCC_OP_GEMV_ALL_REDUCE:
        gemv_setup(s);
        return;
    case FCC_OP_GEMM_ALL_TO_ALL:
        gemm_setup(s);
        return;
    case FCC_OP_GEMM_REDUCE_SCATTER:
        gemm_reduce_setup(s);
        return;
    case FCC_OP_ALL_GATHER_GEMM:
        gather_setup(s);
        return;
    default: /* noop. Others are not compared here */
        break;
    }
    add_variant(s, "MPI_Barrier", NULL, barrier);
}
