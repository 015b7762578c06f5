/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_vector.c - a fake GPU's collectives, whose results are real: as in kernels/gpu/device/compute/vector_put.hip and vector_reduce.hip.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/combine.h"
#include "kernels/cpu/step.h"
#include "kernels/gpu/step.h"
#include "kernels/plan/dtype.h"
#include "proto/base/error.h"
#include "tests/fake_gpu/fake_gpu_inside.h"

/* A slice's elements, as struct vector_piece's; and who reduces them. */
struct piece {
    int64_t at, count;
    uint32_t owner;
};

static struct piece piece_make(const struct gpu_shape *shape, int64_t begin, const struct slice *s, int64_t end)
{
    int64_t count = s->cols * shape->unit < end - begin ? s->cols * shape->unit : end - begin;

    return (struct piece){.at = begin, .count = count};
}

static void vector_put(const struct task *t, const struct gpu_plan *plan, const struct slice *s)
{
    const struct gpu_shape *shape = &t->launch->fixed.shape;
    const struct gpu_input *in = &t->call.in[plan - t->launch->fixed.plans];
    const int64_t *parts = pointer(in->vector.parts);
    const struct piece piece = piece_make(shape, s->col * shape->unit, s, parts[2 * shape->nranks + s->dst]);
    const unsigned char *from = (unsigned char *)pointer(in->vector.in) + (parts[s->dst] + piece.at) * shape->element_bytes;
    unsigned char *to =
        (unsigned char *)pointer(t->call.out[s->dst].data) + (parts[shape->nranks + s->dst] + piece.at) * shape->element_bytes;

    wrong(s->kind != SLICE_COMPUTE_PUT, "a collective that moves has another slice");
    if (from != to)
        memcpy(to, from, (size_t)piece.count * shape->element_bytes);
}

static struct piece piece_reduced(const struct gpu_shape *shape, const struct slice *s)
{
    uint32_t owner = 0;

    while (shape->first[owner + 1] <= (int64_t)s->col)
        owner++;
    struct piece piece =
        piece_make(shape, shape->elements[owner] + (s->col - shape->first[owner]) * shape->unit, s, shape->elements[owner + 1]);
    piece.owner = owner;
    return piece;
}

static unsigned char *result_at(const struct task *t, uint32_t rank, const struct piece *piece, int64_t at)
{
    const struct gpu_shape *shape = &t->launch->fixed.shape;
    int64_t element = piece->at + at - (shape->keeps_own ? shape->elements[piece->owner] : 0);

    return (unsigned char *)pointer(t->call.out[rank].data) + element * shape->element_bytes;
}

static enum fcc_dtype sum_dtype(const struct gpu_shape *shape)
{
    return shape->dtype == FCC_F16 || shape->dtype == FCC_BF16 ? FCC_F32 : (enum fcc_dtype)shape->dtype;
}

static size_t sum_bytes(const struct gpu_shape *shape)
{
    return sum_dtype(shape) == FCC_F32 ? sizeof(float) : shape->element_bytes;
}

static unsigned char *slot_at(const struct task *t, uint32_t at, uint32_t slot, const struct slice *s,
                              const struct piece *piece)
{
    const struct gpu_shape *shape = &t->launch->fixed.shape;
    int64_t before = (s->col - shape->first[piece->owner]) * shape->unit;

    return (unsigned char *)pointer(t->launch->fixed.staging[at] + shape->local_bytes + slot * shape->slot_bytes) +
           (size_t)before * sum_bytes(shape);
}

/* Combines n elements, from element `at` on, of the terms in slots from the first one on. */
static void slots_combine(const struct task *t, uint32_t rank, const struct slice *s, const struct piece *piece, int64_t at,
                          size_t n, uint32_t count, unsigned char *sum)
{
    const struct gpu_shape *shape = &t->launch->fixed.shape;
    const unsigned char *terms[GPU_MAX_RANKS];

    for (uint32_t i = 0; i < count; i++)
        terms[i] = slot_at(t, rank, s->terms + i, s, piece) + (size_t)at * sum_bytes(shape);
    combine((enum fcc_reduction)shape->reduction, sum_dtype(shape), sum_dtype(shape), terms, (int)count, n, sum);
}

/* ... this node's ranks', then the nodes'. */
static void nodes_combine(const struct task *t, uint32_t rank, const struct slice *s, const struct piece *piece, int64_t at,
                          size_t n, unsigned char *sum)
{
    const struct gpu_shape *shape = &t->launch->fixed.shape;
    const unsigned char *terms[GPU_MAX_RANKS];
    _Alignas(64) unsigned char own[COMBINE_BLOCK_BYTES];
    uint32_t here = s->wait_count - (shape->nodes - 1);

    slots_combine(t, rank, s, piece, at, n, here, own);
    for (uint32_t j = 0; j < shape->nodes; j++)
        terms[j] = j == s->slot
                       ? own
                       : slot_at(t, rank, s->terms + here + j - (j > s->slot), s, piece) + (size_t)at * sum_bytes(shape);
    combine((enum fcc_reduction)shape->reduction, sum_dtype(shape), sum_dtype(shape), terms, (int)shape->nodes, n, sum);
}

/* All ranks' inputs, which one node's GPUs can read. */
static void inputs_combine(const struct task *t, const struct piece *piece, int64_t at, size_t n, unsigned char *sum)
{
    const struct gpu_shape *shape = &t->launch->fixed.shape;
    const unsigned char *terms[GPU_MAX_RANKS];

    for (uint32_t r = 0; r < shape->nranks; r++)
        terms[r] = (unsigned char *)pointer(t->call.out[r].in) + (piece->at + at) * shape->element_bytes;
    combine((enum fcc_reduction)shape->reduction, (enum fcc_dtype)shape->dtype, sum_dtype(shape), terms, (int)shape->nranks, n,
            sum);
}

/* A block of a slice that ends in results. */
static void block_store(const struct task *t, const struct gpu_plan *plan, const struct slice *s, const struct piece *piece,
                        int64_t at, size_t n, unsigned char *sum)
{
    const struct gpu_shape *shape = &t->launch->fixed.shape;
    _Alignas(64) unsigned char rounded[COMBINE_BLOCK_BYTES];

    if (shape->reduction == FCC_AVERAGE)
        combine_divide(sum_dtype(shape), (int)shape->nranks, n, sum);
    combine_convert(rounded, (enum fcc_dtype)shape->dtype, sum, sum_dtype(shape), n);
    for (uint32_t r = 0; r < shape->nranks; r++)
        if (plan_goes_to(plan, s->dst, r))
            memcpy(result_at(t, r, piece, at), rounded, n * shape->element_bytes);
}

static void block_run(const struct task *t, const struct gpu_plan *plan, const struct slice *s, const struct piece *piece,
                      int64_t at, size_t n)
{
    const struct gpu_shape *shape = &t->launch->fixed.shape;
    const unsigned char *in = pointer(t->call.in[plan - t->launch->fixed.plans].vector.in);
    _Alignas(64) unsigned char sum[COMBINE_BLOCK_BYTES];
    size_t offset = (size_t)at * sum_bytes(shape);

    switch (s->kind) {
    case SLICE_COMPUTE_PUT:
        combine_convert(slot_at(t, s->dst, s->slot, s, piece) + offset, sum_dtype(shape),
                        in + (piece->at + at) * shape->element_bytes, (enum fcc_dtype)shape->dtype, n);
        break;
    case SLICE_REDUCE_NODE:
        slots_combine(t, plan->rank, s, piece, at, n, s->wait_count, sum);
        memcpy(slot_at(t, s->dst, s->slot, s, piece) + offset, sum, n * sum_bytes(shape));
        break;
    case SLICE_REDUCE:
        if (shape->over_nodes)
            nodes_combine(t, plan->rank, s, piece, at, n, sum);
        else
            inputs_combine(t, piece, at, n, sum);
        block_store(t, plan, s, piece, at, n, sum);
        break;
    default: /* FORWARD: what lies in this rank's result */
        memcpy(sum, result_at(t, plan->rank, piece, at), n * shape->element_bytes);
        for (uint32_t r = 0; r < shape->nranks; r++)
            if (plan_goes_to(plan, s->dst, r))
                memcpy(result_at(t, r, piece, at), sum, n * shape->element_bytes);
        break;
    }
}

/* ---- steps of programs: kernels/gpu/device/compute/step.hip ---- */

/* A request as kernels/cpu/step.c has it, of what a launch was told. */
struct step_request {
    struct op_args args;
    struct code code;
    int64_t attrs[2 + CODE_TABLES_MAX];
};

/* How much further element e of the table's tensor lies than e elements behind the begin. */
static int64_t step_shift(const struct gpu_step *step, int place, int64_t tensor)
{
    return step->places[place] ? ((const int64_t *)(const void *)step)[step->places[place] + tensor] : 0;
}

/* The tables of the rank's own tensors, as an attribute. */
static void step_tables(const struct gpu_step *step, struct step_request *r)
{
    static const int order[CODE_TENSORS + 1] = {CODE_OUT, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    size_t n = 2;

    r->attrs[1] = 0;
    for (int i = 0; i <= CODE_OUT && r->code.begins; i++) {
        const int t = order[i];
        if (!step->places[t])
            continue;
        r->attrs[1] |= INT64_C(1) << (t == CODE_OUT ? STEP_OUT : STEP_TENSOR + t);
        for (int64_t k = 0; k < r->code.head->tensors; k++)
            r->attrs[n++] = step_shift(step, t, k) + r->code.begins[k];
    }
    r->attrs[0] = (int64_t)FCC_ATTR_TABLES << 32 | (int64_t)(n - 1);
    r->args.attrs = r->attrs;
    r->args.nattrs = r->attrs[1] ? n : 0;
}

static struct step_request *step_request(const struct gpu_step *step)
{
    const int64_t *words = (const int64_t *)(const void *)(step + 1);
    const struct code_head *head = (const struct code_head *)(const void *)words;
    const size_t bytes = sizeof(*head) + (size_t)head->operands * sizeof(struct code_operand) +
                         (size_t)head->instructions * sizeof(struct code_instruction) +
                         (head->tensors ? (size_t)head->tensors + 1 : 0) * sizeof(int64_t);
    struct step_request *r = calloc(1, sizeof(*r));
    struct error e = {.status = 0};

    wrong(!r || code_read(words, bytes / sizeof(words[0]), &r->code, &e) != 0, "a step's code");
    r->args = (struct op_args){.op = FCC_PROGRAM_STEP, .ntensors = STEP_TENSOR + CODE_TENSORS};
    for (int i = 0; i <= CODE_OUT; i++)
        r->args.tensors[i == CODE_OUT ? STEP_OUT : STEP_TENSOR + i] =
            (struct tensor){.data = pointer(step->tensor[i]), .dtype = (enum fcc_dtype)step->dtype[i], .ndim = 1};
    step_tables(step, r);
    return r;
}

/* A block of elements of one tensor, whose begin they lie `tensor`'s shifts from. */
static void step_block_run(const struct task *t, const struct gpu_plan *plan, const struct slice *s, struct step *core,
                           int64_t at, size_t n)
{
    const struct gpu_shape *shape = &t->launch->fixed.shape;
    const struct gpu_step *step = pointer(t->call.in[plan - t->launch->fixed.plans].vector.parts);
    const int64_t tensor = core->code.begins ? code_tensor_of(&core->code, at) : 0;
    const bool reduces = code_reduces(&core->code), gives = code_has_result(&core->code);
    const enum fcc_dtype dtype = (enum fcc_dtype)step->dtype[CODE_OUT];
    const unsigned char *terms[GPU_MAX_RANKS];

    for (uint32_t r = 0; r < shape->nranks && reduces; r++)
        terms[r] = (unsigned char *)pointer(t->call.out[r].in) +
                   (at + step_shift(step, GPU_STEP_IN + (int)r, tensor)) * shape->element_bytes;
    if (reduces)
        combine((enum fcc_reduction)shape->reduction, (enum fcc_dtype)shape->dtype, FCC_F32, terms, (int)shape->nranks, n,
                (unsigned char *)core->block[0]);
    step_block(core, at, n);
    for (uint32_t r = 0; r < shape->nranks && gives; r++)
        if (plan_goes_to(plan, s->dst, r))
            dtype_from_f32((unsigned char *)pointer(t->call.out[r].data) +
                               (size_t)(at + step_shift(step, GPU_STEP_OUT + (int)r, tensor)) * dtype_size(dtype),
                           step_result(core), dtype, n);
}

/* A rank without elements has the sum 0 of each tensor. */
static void step_sums_none(const struct step_request *r)
{
    for (int64_t k = 0; k < r->code.head->instructions; k++) {
        const struct code_instruction *i = &r->code.instructions[k];
        const struct tensor *t = i->op == CODE_SUM ? step_tensor(&r->args, &r->code.operands[i->from[1]]) : NULL;
        if (t)
            memset(t->data, 0, (size_t)r->code.head->tensors * dtype_size(t->dtype));
    }
}

/* Sums of tensors are made by the slice that waits for all pieces; those do nothing here. */
static void step_slice_run(const struct task *t, const struct gpu_plan *plan, const struct slice *s)
{
    const struct gpu_shape *shape = &t->launch->fixed.shape;
    const struct gpu_step *step = pointer(t->call.in[plan - t->launch->fixed.plans].vector.parts);
    struct step_request *r = step_request(step);
    const bool shares = code_is_shared(&r->code), tensors = code_sums_tensors(&r->code);
    const struct piece piece = tensors  ? (struct piece){.at = step->begin, .count = s->kind == SLICE_PUT ? step->count : 0}
                               : shares ? piece_reduced(shape, s)
                                        : piece_make(shape, step->begin + s->col * shape->unit, s, step->begin + step->count);
    struct step *core = aligned_alloc(_Alignof(struct step), sizeof(*core));

    wrong(!core || tensors != (step->pieces != 0), "a step's table");
    step_begin(core, &r->args, r->code, step->begin, step->begin + step->count);
    if (tensors && step->count == 0)
        step_sums_none(r);
    for (int64_t at = 0, n; at < piece.count; at += n) {
        n = (int64_t)step_block_size(core, piece.at + at, piece.count - at);
        step_block_run(t, plan, s, core, piece.at + at, (size_t)n);
    }
    free(core);
    free(r);
}

void vector_slice_run(const struct task *t, const struct gpu_plan *plan, const struct slice *s)
{
    const struct gpu_shape *shape = &t->launch->fixed.shape;

    if (s->kind == SLICE_WAIT)
        return;
    if (shape->compute == COMPUTE_STEP) {
        step_slice_run(t, plan, s);
        return;
    }
    if (shape->exchange == EXCHANGE_PUT) {
        vector_put(t, plan, s);
        return;
    }
    const struct piece piece = piece_reduced(shape, s);
    for (int64_t at = 0; at < piece.count; at += COMBINE_BLOCK)
        block_run(t, plan, s, &piece, at, (size_t)(piece.count - at < COMBINE_BLOCK ? piece.count - at : COMBINE_BLOCK));
}
