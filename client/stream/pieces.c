/* SPDX-License-Identifier: MIT
 *
 * pieces.c - gemm_reduce_scatter, gemm_all_reduce and all_gather_gemm that this process launches: products by the vendor's library, with their exchange in
 * pieces beside them (kernels/gpu/plugin/pieces.hip), through the communicator's rings (rings.c), in any memory.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "client/core/call.h"
#include "client/core/epilogue.h"
#include "client/stream/bound.h"
#include "client/stream/rings.h"
#include "kernels/plan/compute/dense.h"
#include "kernels/plan/compute/factors.h"
#include "kernels/plan/tensor.h"

enum { A, B };

static const struct fcc_tensor *tensor_of(const struct op_spec *op, const void *args, int i)
{
    return (const struct fcc_tensor *)(const void *)((const unsigned char *)args + op->tensors[i].at);
}

static uint32_t options_of(const struct op_spec *op, const void *args)
{
    return *(const uint32_t *)(const void *)((const unsigned char *)args + op->schedule_at);
}

bool pieces_suit(const struct op_spec *op, const void *args, const struct fcc_epilogue *epilogue)
{
    bool suits = !epilogue_does(epilogue) && !(options_of(op, args) & FCC_SCHEDULE_BATCH_INVARIANT);

    for (int i = 0; i < op->result; i++)
        suits &= tensor_of(op, args, i)->dtype != FCC_F8E4M3;
    return suits;
}

static uint64_t address_of(const struct tensor *t)
{
    return (uint64_t)(uintptr_t)t->data;
}

static void pieces_fill(const struct fcc_comm *comm, const struct op_args *args, struct rings_pieces *out)
{
    const struct tensor *a = &args->tensors[A], *b = &args->tensors[B], *c = dense_result(args);
    const bool gathers = dense_gathers_rows(args);

    *out = (struct rings_pieces){.op = args->op,
                                 .dtype = c->dtype,
                                 .gathers = gathers,
                                 .scatters = op_scatters_rows(args->op),
                                 .m = gathers ? c->shape[0] : a->shape[0],
                                 .n = c->shape[1],
                                 .k = a->shape[1],
                                 .a = address_of(a),
                                 .b = address_of(b),
                                 .c = address_of(c),
                                 .a_stride = a->stride[0],
                                 .b_stride = b->stride[0],
                                 .c_stride = c->stride[0]};
    if (gathers) {
        const struct tensor *every = &args->tensors[FCC_GATHER_GATHERED];
        out->gathered = address_of(every);
        out->gathered_stride = every->data ? every->stride[0] : 0;
        out->rows[comm->rank] = a->shape[0];
        if (comm->nranks == 2)
            out->rows[comm->rank ^ 1] = out->m - a->shape[0];
    } else {
        dense_rows(args, comm->nranks, out->rows);
    }
}

/* Bytes that go to one other rank, as far as all ranks know them alike. */
static uint64_t bytes_sent(const struct fcc_comm *comm, const struct rings_pieces *what)
{
    const uint64_t size = dtype_size((enum fcc_dtype)what->dtype);

    return (uint64_t)what->m * (uint64_t)(what->gathers ? what->k : what->n) * size / (uint64_t)comm->nranks;
}

/* What is the same on all ranks decides, so it knows no K of a sum. */
static enum pieces_way way_of(struct fcc_comm *comm, const struct rings_pieces *what, uint32_t schedule)
{
    const int64_t row = what->gathers ? what->k : what->n;
    const enum pieces_level level = rings_pieces_level(comm);
    const uint64_t bytes = bytes_sent(comm, what);

    if (comm->nranks != 2 || schedule == FCC_SCHEDULE_SEQUENTIAL)
        return PIECES_SEQUENCE;
    if (level >= PIECES_HOPPER && tiles_can(what->m, row, dtype_size((enum fcc_dtype)what->dtype)) &&
        (level == PIECES_WISH || (tiles_pay(what->m, bytes, !what->gathers && !what->scatters) &&
                                  (what->gathers || tiles_fit(what->rows[0], what->rows[1])))))
        return PIECES_TILES;
    return schedule == FCC_SCHEDULE_FUSED || rings_pieces_suit((uint32_t)comm->nranks, bytes) ? PIECES_BESIDE : PIECES_SEQUENCE;
}

/* Of a product in sequence: what is gathered lies in `gathered`, or in memory for as many bytes; so does a, if its rows lie apart. */
static int gathered_fits(const struct fcc_comm *comm, const struct rings_pieces *what, struct error *e)
{
    const uint64_t row = (uint64_t)what->k * dtype_size((enum fcc_dtype)what->dtype);
    const bool kept = what->gathered && what->gathered_stride == what->k;
    const int64_t own = what->rows[comm->rank];

    if (!kept && (uint64_t)what->m * row > RINGS_GATHERED_MOST)
        return error_set(e, -EOPNOTSUPP,
                         "the ranks' a: %" PRId64 " rows of %" PRId64
                         ": allowed in sequence, or on more than two ranks, are %" PRIu64
                         " bytes together, unless gathered is there and dense",
                         what->m, what->k, RINGS_GATHERED_MOST);
    if (what->a_stride != what->k && own > 1 && (uint64_t)own * row > RINGS_GATHERED_MOST)
        return error_set(e, -EOPNOTSUPP,
                         "a: stride[0] %" PRId64 ": allowed of more than %" PRIu64
                         " bytes in sequence, or on more than two ranks, is %" PRId64,
                         what->a_stride, RINGS_GATHERED_MOST, what->k);
    return 0;
}

/* Pieces and parts have room for some rows at least. */
static int sizes_check(const struct fcc_comm *comm, const struct rings_pieces *what, struct error *e)
{
    const int64_t row = what->gathers ? what->k : what->n,
                  most = (int64_t)(RINGS_PIECES_ROW / dtype_size((enum fcc_dtype)what->dtype));

    if (row > most)
        return error_set(e, -EOPNOTSUPP, "%s: shape[1] %" PRId64 ": allowed with FCC_ADDRESS are at most %" PRId64,
                         what->gathers ? "a" : "c", row, most);
    return what->gathers && what->sequential == PIECES_SEQUENCE ? gathered_fits(comm, what, e) : 0;
}

/* The library takes matrices whose rows lie apart. */
static int rows_check(const struct op_args *args, struct error *e)
{
    const struct op_spec *op = op_spec(args->op);

    for (int i = A; i <= B; i++) {
        const struct tensor *t = &args->tensors[i];
        if (t->shape[0] > 1 && t->stride[0] < t->shape[1])
            return error_set(e, -EINVAL,
                             "%s: stride[0] %" PRId64 ": rows overlap: allowed with FCC_ADDRESS are %" PRId64 " and more",
                             op->tensors[i].name, t->stride[0], t->shape[1]);
    }
    return 0;
}

int pieces_enqueue(struct fcc_comm *comm, const struct op_spec *op, const void *args, void *stream)
{
    struct rings_pieces what;
    struct op_args found;
    struct error why = {.status = 0};
    struct rings_task task = {.pieces = &what, .ntensors = op->ntensors};
    int64_t words[RINGS_ATTR_WORDS];
    int status = status_of(comm);
    char called[64];

    (void)snprintf(called, sizeof(called), "fcc_%s_enqueue", op->name);
    if (status)
        return prepared_over_explain(comm, status, called);
    if (product_args_find(comm, op, args, NULL, words, &found, &why) || rows_check(&found, &why))
        return product_refuse(comm, op, &why, stream);
    pieces_fill(comm, &found, &what);
    const uint32_t schedule = options_of(op, args) & ~FCC_SCHEDULE_ANY_ORDER;
    what.sequential = way_of(comm, &what, schedule);
    what.by_library = rings_pieces_level(comm) != PIECES_WISH;
    if (sizes_check(comm, &what, &why))
        return product_refuse(comm, op, &why, stream);
    for (int i = 0; i < op->ntensors; i++)
        task.tensors[i] = tensor_of(op, args, i);
    return rings_task_enqueue(comm, &task, stream);
}

static const char *way_text(uint64_t what)
{
    static const char *const texts[] = {"in pieces", "in sequence", "by tiles"};

    return (what & 0xff) < sizeof(texts) / sizeof(texts[0]) ? texts[what & 0xff] : "in another way";
}

/* What the ranks' headers say: pieces.hip, pieces_start(). */
void pieces_other_text(const struct rings_failure *f, const struct op_spec *op, char text[FCC_TEXT_MAX])
{
    const uint64_t all = f->theirs.what ^ f->mine.what;
    const bool gathers = op->exchange == EXCHANGE_GATHER;
    const bool in_sequence = (f->mine.what & 0xff) == PIECES_SEQUENCE;
    const char *result = op->tensors[op->result].name;

    if (all >> 16 & 0xff)
        (void)snprintf(text, FCC_TEXT_MAX, "%s: dtype: rank %u has %s, rank %u has %s", result, f->rank,
                       dtype_name((enum fcc_dtype)(f->theirs.what >> 16 & 0xff)), f->by,
                       dtype_name((enum fcc_dtype)(f->mine.what >> 16 & 0xff)));
    else if (all & 0xff)
        (void)snprintf(text, FCC_TEXT_MAX, "schedule, or sizes: rank %u multiplies %s, rank %u %s", f->rank,
                       way_text(f->theirs.what), f->by, way_text(f->mine.what));
    else if (in_sequence && f->theirs.whole != f->mine.whole)
        (void)snprintf(text, FCC_TEXT_MAX, "%s: rank %u has %" PRIu64 " elements%s, rank %u has %" PRIu64,
                       gathers ? "the whole a" : "the sum", f->rank, f->theirs.whole, gathers ? "" : " at a time", f->by,
                       f->mine.whole);
    else if (!in_sequence && f->theirs.own != f->mine.own)
        (void)snprintf(text, FCC_TEXT_MAX, "%s: shape[0]: rank %u has %" PRIu64 ", rank %u has %" PRIu64, gathers ? "c" : "a",
                       f->rank, f->theirs.own, f->by, f->mine.own);
    else if (f->theirs.whole != f->mine.whole)
        (void)snprintf(text, FCC_TEXT_MAX, "%s: shape[1]: rank %u has %" PRIu64 ", rank %u has %" PRIu64,
                       gathers ? "a" : result, f->rank, f->theirs.whole, f->by, f->mine.whole);
    else
        (void)snprintf(text, FCC_TEXT_MAX, "%s: rank %u has other numbers of rows, or of their elements, than rank %u",
                       gathers                        ? "a, c"
                       : op_scatters_rows(op->number) ? "rows, a, c"
                                                      : result,
                       f->rank, f->by);
}
