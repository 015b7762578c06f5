/* SPDX-License-Identifier: MIT
 *
 * products.c - products (gemv_all_reduce, gemm_all_to_all), embedding_all_to_all (bags.c), and all_reduce with an epilogue, that this process's own kernels
 * run, through the communicator's rings (rings.c): from any memory, and without asking other ranks for a new shape.
 */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "client/core/epilogue.h"
#include "client/core/request.h"
#include "client/stream/bags.h"
#include "client/stream/bound.h"
#include "client/stream/rings.h"
#include "kernels/gpu/scales.h"
#include "kernels/plan/compute/dense.h"
#include "kernels/plan/compute/factors.h"
#include "kernels/plan/compute/vector.h"
#include "kernels/plan/epilogue.h"
#include "kernels/plan/tensor.h"

/* ---- a call's arguments ---- */

/* Tensor i of the request: the operator's, then the epilogue's. */
static const struct fcc_tensor *tensor_of(const struct op_spec *op, const void *args, const struct fcc_epilogue *epilogue,
                                          int i)
{
    const unsigned char *in = i < op->ntensors ? (const unsigned char *)args : (const unsigned char *)epilogue;

    return (const struct fcc_tensor *)(const void *)(in + op_tensor(op, i)->at);
}

static int tensors_of(const struct op_spec *op, const struct fcc_epilogue *epilogue)
{
    return op->ntensors + epilogue_tensors(epilogue);
}

bool product_needs_rings(const struct op_spec *op, const void *args, const struct fcc_epilogue *epilogue)
{
    bool needed = false;

    for (int i = 0; args && i < tensors_of(op, epilogue); i++)
        needed |= tensor_of(op, args, epilogue, i)->buffer == FCC_ADDRESS;
    return needed;
}

static const uint32_t *options_of(const struct op_spec *op, const void *args)
{
    return (const uint32_t *)(const void *)((const unsigned char *)args + op->schedule_at);
}

/* Without what may be or'ed to it on a stream, too. */
static uint32_t schedule_of(const struct op_spec *op, const void *args)
{
    return *options_of(op, args) & ~(FCC_SCHEDULE_BATCH_INVARIANT | (op_is_in_pieces(op) ? FCC_SCHEDULE_ANY_ORDER : 0));
}

static bool is_batch_invariant(const struct op_spec *op, const void *args)
{
    return *options_of(op, args) & FCC_SCHEDULE_BATCH_INVARIANT;
}

bool product_has_rings(const struct op_spec *op, const void *args, bool anywhere)
{
    const uint32_t schedule = schedule_of(op, args);

    return schedule == FCC_SCHEDULE_AUTO || schedule == FCC_SCHEDULE_FUSED ||
           (anywhere && schedule == FCC_SCHEDULE_SEQUENTIAL && (op->compute == COMPUTE_GEMV || op_is_in_pieces(op)));
}

/* ---- by the vendor's library: what follows the product is the same kernel, of any number of rows ---- */

/* Whether fccd's own kernels multiply any number of rows: with factors in e4m3, or batch invariance, for which the library's sums depend too much on
 * the rest of the batch. */
static bool is_own(const struct op_spec *op, const void *args)
{
    bool own = is_batch_invariant(op, args);

    for (int i = 0; i < op->result; i++)
        own |= tensor_of(op, args, NULL, i)->dtype == FCC_F8E4M3;
    return own;
}

static bool library_may(struct fcc_comm *comm, const struct op_spec *op, const void *args)
{
    if (op_is_in_pieces(op))
        return true;
    return op->compute == COMPUTE_GEMV && !is_own(op, args) && schedule_of(op, args) != FCC_SCHEDULE_FUSED &&
           rings_have_library(comm);
}

/* What ranks choose depends on what is the same on all of them. `auto`: a row by itself is multiplied faster by fccd's own kernel, which sends what it
 * has meanwhile; several are by the library, for which the rows' kernel follows at once (tests/bench/RESULTS.md). */
static bool library_is_chosen(struct fcc_comm *comm, const struct op_spec *op, const void *args, int64_t rows)
{
    return library_may(comm, op, args) && (rows > 1 || schedule_of(op, args) == FCC_SCHEDULE_SEQUENTIAL);
}

static int rows_most(struct fcc_comm *comm, const struct op_spec *op, const void *args)
{
    return op_puts_rows(op) || op_is_in_pieces(op)           ? 0
           : library_may(comm, op, args) || is_own(op, args) ? FCC_GEMV_MAX_ROWS
                                                             : FCC_GEMV_MAX_M;
}

static int schedule_check(struct fcc_comm *comm, const struct op_spec *op, const void *args, struct error *e)
{
    if (schedule_of(op, args) != FCC_SCHEDULE_SEQUENTIAL || library_may(comm, op, args))
        return 0;
    if (is_own(op, args))
        return error_set(
            e, -EINVAL,
            "schedule: sequential: allowed with FCC_ADDRESS for factors of the result's dtype, not batch invariant");
    return error_set(e, -EOPNOTSUPP, "schedule: sequential: allowed with FCC_ADDRESS where all ranks can load cuBLAS");
}

bool product_prefers_rings(struct fcc_comm *comm, const struct op_spec *op, void *stream)
{
    int before = 0, capturing = DRIVER_NOT_CAPTURING;

    if (!op_puts_rows(op) && !op_is_in_pieces(op))
        return true;
    if (accelerator_enter(comm->accelerator, &before))
        return false;
    if (ACCELERATOR_CALL(comm->accelerator, stream_capturing, stream, &capturing))
        capturing = DRIVER_NOT_CAPTURING;
    accelerator_leave(comm->accelerator, before);
    return capturing != DRIVER_NOT_CAPTURING;
}

static bool is_empty(const struct fcc_tensor *t)
{
    bool empty = false;

    for (unsigned i = 0; i < t->ndim && i < FCC_MAX_DIMS; i++)
        empty |= t->shape[i] == 0;
    return empty;
}

/* room: bytes from the tensor's first element to the end of its buffer. */
static int tensor_find(struct fcc_comm *comm, const char *name, const struct fcc_tensor *t, struct tensor *out, uint64_t *room,
                       struct error *e)
{
    const size_t size = dtype_size((enum fcc_dtype)t->dtype);
    int64_t dense = 1;
    uint64_t address = 0;
    bool given = false;

    *out = (struct tensor){.dtype = (enum fcc_dtype)t->dtype, .ndim = (int)t->ndim, .symmetric = true};
    if (!t->buffer)
        return 0;
    if (t->ndim > FCC_MAX_DIMS)
        return error_set(e, -EINVAL, "%s: %u dimensions: allowed are 1 to %d", name, t->ndim, FCC_MAX_DIMS);
    for (unsigned i = t->ndim; i-- > 0;) {
        out->shape[i] = t->shape[i];
        out->stride[i] = dense;
        given |= t->stride[i] != 0;
        if (__builtin_mul_overflow(dense, t->shape[i], &dense))
            dense = INT64_MAX;
    }
    if (given)
        memcpy(out->stride, t->stride, t->ndim * sizeof(t->stride[0]));
    if (t->buffer == FCC_ADDRESS && !t->offset && is_empty(t))
        address = sizeof(int64_t); /* what has no elements may have no address; nobody looks there */
    else if (rings_address(comm, name, t, &address, room, e))
        return e->status;
    if (size && address % size)
        return error_set(e, -EINVAL, "%s: address 0x%" PRIx64 ": allowed are multiples of its elements' %zu bytes", name,
                         address, size);
    out->data = (unsigned char *)(uintptr_t)address;
    return 0;
}

/* A vector's result may lie where the vector does. args: NULL: whether it could. */
static bool is_in_place(const struct op_spec *op, const struct op_args *args, int from, int to)
{
    return op->compute == COMPUTE_VECTOR && from == FCC_VECTOR_IN && to == FCC_VECTOR_OUT &&
           (!args || args->tensors[from].data == args->tensors[to].data);
}

/* What the rank stores into lies apart from all else, but for what epilogue_may_share() allows, and in place. */
static int results_check(const struct op_spec *op, const struct op_args *args, struct error *e)
{
    const uint32_t results = epilogue_results(args) | 1u << op->result;

    for (int to = 0; results >> to; to++)
        for (int i = 0; i < args->ntensors && results >> to & 1; i++)
            if (i != to && args->tensors[i].data && tensors_overlap(&args->tensors[i], &args->tensors[to]) &&
                !epilogue_may_share(args, i, to) && !is_in_place(op, args, i, to))
                return error_set(e, -EINVAL, "%s: overlaps %s: allowed is %s", op_tensor(op, i)->name, op_tensor(op, to)->name,
                                 i == op->ntensors + STAGE_RESIDUAL || is_in_place(op, NULL, i, to)
                                     ? "the same place, or apart from it"
                                     : "apart from it");
    return 0;
}

/* As requests are checked when they are packed. */
static int lists_check(const struct op_spec *op, const void *args, struct error *e)
{
    const unsigned char *in = (const unsigned char *)args;

    for (int i = 0; i < op->nattrs; i++) {
        const struct attr_spec *a = &op->attrs[i];
        if (a->kind != ATTR_LIST)
            continue;
        const int32_t n = *(const int32_t *)(const void *)(in + a->count_at);
        if (n < 0 || n > a->count_most)
            return error_set(e, -EINVAL, "%s: %d: allowed are 0 to %d", a->count_name, n, a->count_most);
        if (n && !*(const int64_t *const *)(const void *)(in + a->at))
            return error_set(e, -EINVAL, "%s: NULL: allowed only if %s is 0", a->name, a->count_name);
    }
    return 0;
}

int product_args_find(struct fcc_comm *comm, const struct op_spec *op, const void *args, const struct fcc_epilogue *epilogue,
                      int64_t words[], struct op_args *out, struct error *e)
{
    const uint32_t *options = options_of(op, args);
    uint64_t room[FCC_MAX_TENSORS] = {0};
    int status = 0;

    *out = (struct op_args){
        .op = (enum fcc_op)op->number, .batch_invariant = is_batch_invariant(op, args), .ntensors = tensors_of(op, epilogue)};
    if (lists_check(op, args, e))
        return e->status;
    rings_attrs_find(comm, op, args, words, out);
    out->nattrs += epilogue_attr(epilogue, &words[out->nattrs]);
    status = epilogue_reserved_check(epilogue, e);
    if (!status)
        status = schedule_check(comm, op, args, e);
    for (int i = 0; i < 7 && !status; i++)
        if (options[1 + i])
            status = error_set(e, -EINVAL, "reserved[%d]: %u: must be 0", i, options[1 + i]);
    for (int i = 0; i < out->ntensors && !status; i++)
        status = tensor_find(comm, op_tensor(op, i)->name, tensor_of(op, args, epilogue, i), &out->tensors[i], &room[i], e);
    if (!status)
        status = op->compute == COMPUTE_BAG      ? bags_check(out, comm->nranks, comm->rank, e)
                 : op->compute == COMPUTE_VECTOR ? vector_check(out, comm->nranks, comm->rank, e)
                                                 : dense_check(out, comm->nranks, comm->rank, rows_most(comm, op, args), e);
    for (int i = 0; i < out->ntensors && !status; i++) {
        const uint64_t bytes = out->tensors[i].data ? (uint64_t)tensor_reach(&out->tensors[i]) : 0;
        if (bytes > room[i] && tensor_of(op, args, epilogue, i)->buffer != FCC_ADDRESS)
            status = error_set(e, -EINVAL,
                               "%s: %" PRIu64 " bytes from byte %" PRIu64 " on: its buffer has %" PRIu64 " from there on",
                               op_tensor(op, i)->name, bytes, tensor_of(op, args, epilogue, i)->offset, room[i]);
    }
    return status ? status : results_check(op, out, e);
}

/* The rows that are expected of each rank, which a call without a request has in the place of those that have come; NULL: any number. */
static const int64_t *expected_of(const struct op_spec *op, const void *args)
{
    return op->values_at ? *(const int64_t *const *)(const void *)((const unsigned char *)args + op->values_at) : NULL;
}

static bool counts_are_known(const int64_t *expected, int nranks)
{
    bool known = expected != NULL;

    for (int r = 0; r < nranks && known; r++)
        known = expected[r] >= 0;
    return known;
}

static int expected_check(const struct fcc_comm *comm, const struct op_spec *op, const void *args,
                          const struct epilogue *epilogue, struct error *e)
{
    const int64_t *expected = expected_of(op, args);

    if (op_puts_rows(op) && epilogue_has_rows(epilogue) && !counts_are_known(expected, comm->nranks))
        return error_set(e, -EINVAL, "%s: not all are given: needed with norm, sum or quantization on a stream",
                         op->values_name);
    for (int r = 0; expected && r < comm->nranks; r++)
        if (expected[r] < -1 || expected[r] > INT32_MAX)
            return error_set(e, -EINVAL, "%s[%d]: %" PRId64 ": allowed are -1 to %d", op->values_name, r, expected[r],
                             INT32_MAX);
    return 0;
}

/* Rows for a rank travel in parts, of which each has a flag. */
static int parts_check(const struct fcc_comm *comm, const struct op_args *args, struct error *e)
{
    const struct tensor *result = &args->tensors[op_spec(args->op)->result];
    const uint32_t nranks = (uint32_t)comm->nranks, n = (uint32_t)result->shape[1];
    int64_t rows[RINGS_RANKS];

    dense_send_rows(args, comm->nranks, rows);
    for (int r = 0; r < comm->nranks; r++) {
        const struct landing_parts parts = landing_parts_of(landing_place_bytes(nranks), (uint32_t)rows[r], n,
                                                            (uint32_t)dtype_size(result->dtype), LANDING_COLUMNS);
        if (r != comm->rank && parts.count > landing_parts_most(nranks))
            return error_set(e, -EINVAL,
                             "send_rows[%d]: %" PRId64
                             " rows of %u elements travel in %u parts of up to %u bytes: allowed are %u",
                             r, rows[r], n, parts.count, landing_place_bytes(nranks), landing_parts_most(nranks));
    }
    return 0;
}

static uint64_t address_of(const struct tensor *t)
{
    return t ? (uint64_t)(uintptr_t)t->data : 0;
}

/* The rows of the result; of what is put, those that are expected. */
static int64_t result_rows(const struct rings_product *what, const int64_t *expected, int nranks)
{
    int64_t rows = 0;

    for (int r = 0; r < nranks && what->puts; r++)
        rows += expected[r];
    return what->puts ? rows : what->m;
}

/* What follows the sum, apart from bias and residual: by the product's kernel, or by one behind it, which makes whole rows. */
static void stages_fill(const struct op_args *args, const struct epilogue *p, const int64_t *expected, int nranks,
                        struct rings_product *out)
{
    const struct tensor *sum = epilogue_tensor(args, STAGE_SUM), *gate = epilogue_tensor(args, STAGE_GATE);
    const struct tensor *f8 = epilogue_tensor(args, STAGE_QUANTIZED), *scale = epilogue_tensor(args, STAGE_QUANTIZED_SCALE);
    const bool first = epilogue_rounds_first(p);

    if (!first) {
        out->gate = address_of(gate);
        out->gate_stride = gate ? gate->stride[0] : 0;
        out->activation = p->number[NUMBER_ACTIVATION];
        out->scale = p->number[NUMBER_SCALE] ? epilogue_float(p, NUMBER_SCALE) : 0;
    }
    if (!epilogue_has_rows(p))
        return;
    out->whole_rows = (struct gpu_rows){.y = out->y,
                                        .sum = address_of(sum),
                                        .weight = address_of(epilogue_tensor(args, STAGE_NORM_WEIGHT)),
                                        .bias = address_of(epilogue_tensor(args, STAGE_NORM_BIAS)),
                                        .gate = first ? address_of(gate) : 0,
                                        .quantized = address_of(f8),
                                        .quantized_scale = address_of(scale),
                                        .y_stride = out->y_stride,
                                        .sum_stride = sum ? sum->stride[0] : 0,
                                        .gate_stride = first && gate ? gate->stride[0] : 0,
                                        .quantized_stride = f8 ? f8->stride[0] : 0,
                                        .scale_stride = scale ? scale->stride[0] : 0,
                                        .m = result_rows(out, expected, nranks),
                                        .n = out->n,
                                        .dtype = out->dtype,
                                        .norm = p->number[NUMBER_NORM],
                                        .activation = first ? p->number[NUMBER_ACTIVATION] : 0,
                                        .quantization = p->number[NUMBER_QUANTIZATION],
                                        .eps = epilogue_float(p, NUMBER_NORM_EPS),
                                        .scale = first ? epilogue_float(p, NUMBER_SCALE) : 1,
                                        .rounds_first = first,
                                        .is_there = 1};
    out->y = sum ? address_of(sum) : out->y;
    out->y_stride = sum ? sum->stride[0] : out->y_stride;
}

/* Bias and residual, and the stages, of a product whose shape and result are there. */
static void epilogue_fill(const struct fcc_comm *comm, const struct op_args *args, const int64_t *expected,
                          struct rings_product *out)
{
    const struct tensor *residual = epilogue_tensor(args, STAGE_RESIDUAL);
    const struct epilogue epilogue = epilogue_of(args, out->n);

    out->bias = address_of(epilogue_tensor(args, STAGE_BIAS));
    out->residual = address_of(residual);
    out->residual_stride = residual ? residual->stride[0] : 0;
    out->stages = epilogue.stages & ((1u << STAGE_X_SCALE) - 1);
    out->numbers = epilogue_hash(&epilogue);
    stages_fill(args, &epilogue, expected, comm->nranks, out);
}

/* Of all_reduce: the vectors are matrices, whose rows the epilogue's tensors know the length of. */
static void rows_fill(const struct fcc_comm *comm, const struct op_args *args, struct rings_product *out)
{
    const struct tensor *in = &args->tensors[FCC_VECTOR_IN], *to = &args->tensors[FCC_VECTOR_OUT];
    const int64_t n = epilogue_cols(args, in->shape[0]);

    *out = (struct rings_product){.op = args->op,
                                  .dtype = in->dtype,
                                  .copies = 1,
                                  .reduction = (uint32_t)vector_number(args, FCC_ATTR_REDUCTION, FCC_SUM),
                                  .m = n > 0 ? in->shape[0] / n : epilogue_rows(args),
                                  .n = n,
                                  .k = n,
                                  .x = address_of(in),
                                  .y = address_of(to),
                                  .x_stride = n,
                                  .y_stride = n,
                                  .factors = args->batch_invariant ? FACTORS_BATCH_INVARIANT : 0};
    epilogue_fill(comm, args, NULL, out);
}

static void product_fill(struct fcc_comm *comm, const struct op_args *args, const int64_t *expected, struct rings_product *out)
{
    const struct op_spec *op = op_spec(args->op);
    const struct tensor *x = &args->tensors[FCC_GEMV_X], *w = &args->tensors[FCC_GEMV_W], *y = &args->tensors[FCC_GEMV_Y];
    const bool reads = x->shape[1] > 0;

    *out = (struct rings_product){.op = args->op,
                                  .dtype = y->dtype,
                                  .puts = op_puts_rows(op),
                                  .copies = !w->data,
                                  .m = x->shape[0],
                                  .n = y->shape[1],
                                  .k = x->shape[1],
                                  .x = reads ? address_of(x) : 0,
                                  .w = reads ? address_of(w) : 0,
                                  .y = address_of(y),
                                  .x_stride = x->stride[0],
                                  .w_stride = w->data ? w->stride[0] : 0,
                                  .y_stride = y->stride[0],
                                  .factors = factors_of(args),
                                  .scales.of = {gpu_scales_of(args, 0), gpu_scales_of(args, 1)}};
    epilogue_fill(comm, args, expected, out);
    if (!out->puts)
        return;
    out->room = y->shape[0];
    dense_send_rows(args, comm->nranks, out->rows);
    for (int r = 0; r < comm->nranks; r++)
        out->expected[r] = expected ? expected[r] : -1;
}

/* ---- launching ---- */

int product_refuse(struct fcc_comm *comm, const struct op_spec *op, const struct error *why, void *stream)
{
    int status = rings_refuse(comm, op, why->text, stream);

    return status ? status : last_error_set(why->status, "rank %d: %s: %s", comm->rank, op->name, why->text);
}

int product_enqueue(struct fcc_comm *comm, const struct op_spec *op, const void *args, const struct fcc_epilogue *epilogue,
                    void *stream)
{
    struct rings_product what;
    struct op_args found;
    struct error why = {.status = 0};
    struct rings_task task = {.product = &what, .ntensors = 0};
    int64_t words[RINGS_ATTR_WORDS];
    int status = status_of(comm);
    char called[64];

    (void)snprintf(called, sizeof(called), "fcc_%s%s_enqueue", op->name, epilogue ? "_epilogue" : "");
    if (status)
        return prepared_over_explain(comm, status, called);
    if (product_args_find(comm, op, args, epilogue, words, &found, &why))
        return product_refuse(comm, op, &why, stream);
    const struct epilogue stages = epilogue_of(&found, 0);
    if (expected_check(comm, op, args, &stages, &why) || (op_puts_rows(op) && parts_check(comm, &found, &why)))
        return product_refuse(comm, op, &why, stream);
    if (op->compute == COMPUTE_BAG)
        bags_fill(&found, comm->nranks, &what);
    else if (op->compute == COMPUTE_VECTOR)
        rows_fill(comm, &found, &what);
    else
        product_fill(comm, &found, expected_of(op, args), &what);
    what.library = library_is_chosen(comm, op, args, what.m);
    for (int i = 0; i < found.ntensors; i++)
        task.tensors[task.ntensors++] = tensor_of(op, args, epilogue, i);
    return rings_task_enqueue(comm, &task, stream);
}
