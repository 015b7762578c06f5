/* SPDX-License-Identifier: MIT
 *
 * bound.c - programs that the ranks' own processes launch, on their streams and in CUDA graphs. Each step of code is prepared as an operator is, with a
 * kernel that the worker has compiled (client/stream/bound_step.c); collectives go through rings, as on all streams. A run of the program is a run of each
 * step, one behind the other. What a run may have anew, the numbers in the code, lies in the GPU's memory, and comes there in the order of a stream.
 *
 * Guarded programs. Nobody compares the runs of a program that is bound: a rank that runs another program, or none since its caller has given it something wrong, lets the others
 * wait until the time limit ends the communicator. So each run of a guarded one begins with a run of the communicator's rings (client/stream/guard.c), which all collectives
 * that are launched here are, too. All ranks' runs of rings have one order; where two differ in one of them, or a rank refuses it, it is given up on all ranks, and the steps behind
 * it are no runs: those of code by a guard in front of each (prepared_guard()), and collectives as they continue it (rings_continue()).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/core/call.h"
#include "client/program/program.h"
#include "client/stream/rings.h"
#include "client/submission.h"
#include "kernels/plan/compute/step.h"

void program_unbind(struct fcc_program *p)
{
    for (uint32_t i = 0; p->bound && i < p->steps.nsteps; i++)
        fcc_prepared_free(p->bound[i]);
    free(p->bound);
    p->bound = NULL;
}

/* ---- a step's request ---- */

/* Tensor i of the operator. */
static const struct fcc_tensor *tensor_of(const struct fcc_program_step_args *args, int i)
{
    return i == STEP_IN ? &args->in : i == STEP_OUT ? &args->out : &args->t[i - STEP_TENSOR];
}

static int tensor_find(struct fcc_comm *comm, const struct fcc_tensor *t, int i, struct operator_step *out, struct error *e)
{
    const char *name = op_spec(FCC_PROGRAM_STEP)->tensors[i].name;
    struct tensor *to = &out->args.tensors[i];
    uint64_t address = 0, room = 0;

    if (!t->buffer)
        return 0;
    if (t->buffer == FCC_ADDRESS && i < STEP_TENSOR)
        return error_set(e, -EINVAL, "%s: FCC_ADDRESS: other ranks use it: allowed is a tensor in a buffer", name);
    if (rings_address(comm, name, t, &address, &room, e))
        return e->status;
    if ((uint64_t)t->shape[0] > room / fcc_dtype_size((enum fcc_dtype)t->dtype))
        return error_set(e, -EINVAL,
                         "%s: %" PRId64 " elements from byte %" PRIu64 " on: its buffer has %" PRIu64 " bytes from there on",
                         name, t->shape[0], t->offset, room);
    *to = (struct tensor){
        .data = (unsigned char *)(uintptr_t)address, .dtype = (enum fcc_dtype)t->dtype, .ndim = 1, .symmetric = true};
    to->shape[0] = t->shape[0];
    to->stride[0] = 1;
    return 0;
}

static size_t attr_put(int64_t *at, enum fcc_attr key, const int64_t words[], int32_t n)
{
    at[0] = (int64_t)((uint64_t)key << 32 | (uint32_t)n);
    if (n > 0)
        memcpy(at + 1, words, (size_t)n * sizeof(at[0]));
    return 1 + (size_t)n;
}

/* The request as this process has it. *attrs: to be freed. */
static int own_make(const struct fcc_program *p, const struct fcc_program_step_args *args, struct operator_step *out,
                    int64_t **attrs, struct error *e)
{
    *out = (struct operator_step){.args = {.op = FCC_PROGRAM_STEP, .ntensors = STEP_TENSOR + CODE_TENSORS}};
    *attrs = calloc(2 + (size_t)args->words + (size_t)args->table_words, sizeof(**attrs));
    if (!*attrs)
        return error_set(e, -ENOMEM, "out of memory");
    out->args.attrs = *attrs;
    out->args.nattrs = attr_put(*attrs, FCC_ATTR_CODE, args->code, args->words);
    out->args.nattrs += attr_put(*attrs + out->args.nattrs, FCC_ATTR_TABLES, args->tables, args->table_words);
    for (int i = 0; i < STEP_TENSOR + CODE_TENSORS; i++)
        if (tensor_find(p->group, tensor_of(args, i), i, out, e))
            return e->status;
    for (int i = 0; i < CODE_TENSORS; i++)
        out->buffers[i] = args->t[i].buffer == FCC_ADDRESS ? NULL : args->t[i].buffer;
    return prepared_step_check(&out->args, p->nranks, p->rank, e);
}

/* What the worker is to know: the dtypes of the tensors that only this rank uses, and no tables of these. */
static void wire_make(const struct fcc_program_step_args *own, struct code_call *to, int64_t dtypes[CODE_TENSORS])
{
    const int64_t bits = own->table_words ? to->tables[0] & 3 : 0,
                  each = ((const struct code_head *)(const void *)own->code)->tensors;

    for (int i = 0; i < CODE_TENSORS; i++) {
        dtypes[i] = own->t[i].buffer ? (int64_t)own->t[i].dtype : -1;
        to->args.t[i] = (struct fcc_tensor){.buffer = NULL};
    }
    to->args.dtypes = dtypes;
    to->args.dtype_words = CODE_TENSORS;
    to->args.table_words = bits ? (int32_t)(1 + ((bits & 1) + (bits >> 1)) * each) : 0;
    to->tables[0] = bits;
}

/* A rank alone has nobody to compare with. */
static bool is_compared(const struct fcc_program *p)
{
    return p->is_guarded && p->nranks > 1;
}

/* A step that is being bound. */
struct binding {
    struct operator_step own;
    int64_t *attrs; /* own's */
    struct prepare_begun begun;
};

/* The worker has it, and makes its kernel from now on, beside those of other steps; or the step has nothing to do, and nothing is begun. */
static int step_begin(struct fcc_program *p, const struct program_step *step, struct binding *out)
{
    struct error e = {.status = 0};
    struct code_call call;
    int64_t dtypes[CODE_TENSORS];
    int status;

    if (!code_call_make(p, step, &call))
        return 0;
    if (own_make(p, &call.args, &out->own, &out->attrs, &e)) {
        status = operator_refuse_step(p->group, e.status, e.text);
    } else {
        const struct fcc_program_step_args whole = call.args;
        wire_make(&whole, &call, dtypes);
        status = operator_prepare_step(p->group, &call.args, &out->own, &out->begun);
    }
    return status ? program_step_error(p, step, status) : 0;
}

/* All steps of code: each is begun before the first one is waited for. all[nsteps]: zeroed. p->bound: what has been bound, also on an error. */
static int steps_bind(struct fcc_program *p, struct binding all[])
{
    int status = 0;

    for (uint32_t i = 0; i < p->steps.nsteps && status == 0; i++)
        if (p->steps.steps[i].kind == STEP_OF_CODE)
            status = step_begin(p, &p->steps.steps[i], &all[i]);
    for (uint32_t i = 0; i < p->steps.nsteps; i++) {
        if (status == 0 && all[i].begun.prepared) {
            status = comm_prepare_end(&all[i].begun, &all[i].own.args, &p->bound[i]);
            if (p->bound[i])
                p->bound[i]->is_counted = is_compared(p);
            status = status ? program_step_error(p, &p->steps.steps[i], status) : 0;
        }
        comm_prepare_drop(&all[i].begun); /* behind one that has failed, on all ranks */
        free(all[i].attrs);
    }
    return status;
}

/* ---- binding ---- */

/* What has to be opened for the steps that are not of code. */
struct needs {
    bool rings, across, products, pieces;
};

/* What a guard cannot be in front of. A wrong index ends a lookup when other ranks may have ended theirs well, so ranks that went on behind it would not be
 * in step. */
static void guard_check(const struct fcc_program *p, struct error *e)
{
    if (p->is_guarded && program_has_groups(p->program))
        (void)error_set(e, -EOPNOTSUPP, "groups of ranks: not in guarded programs yet: allowed is fcc_program_prepare()");
    for (uint32_t i = 0; i + 1 < p->steps.nsteps && p->is_guarded && !e->status; i++)
        if (p->steps.steps[i].kind == STEP_OF_LOOKUP)
            (void)error_set(
                e, -EOPNOTSUPP,
                "line %d: rows of tables: allowed in guarded programs as their last step, since a wrong index may be found "
                "when other ranks are behind it: allowed anywhere is fcc_program_prepare()",
                p->steps.steps[i].line);
}

/* The same. The tensors have been given. */
static int steps_check(const struct fcc_program *p, struct needs *needs, struct error *e)
{
    uint32_t codes = 0;

    needs->rings = is_compared(p);
    guard_check(p, e);
    for (uint32_t i = 0; i < p->steps.nsteps && !e->status; i++) {
        const struct program_step *step = &p->steps.steps[i];
        if (step->kind == STEP_OF_PRODUCT) {
            needs->rings = true;
            needs->pieces |= product_is_in_pieces(step);
            needs->products |= !product_is_in_pieces(step);
        } else if (step->kind == STEP_OF_EXCHANGE && p->program->nodes[step->node].op == OP_SEND)
            needs->across = true;
        else if (step->kind == STEP_OF_EXCHANGE)
            needs->rings = true;
        else if (step->kind == STEP_OF_LOOKUP)
            needs->rings = needs->products = true;
        else
            codes++;
    }
    if (codes > FCC_PREPARED_MAX && !e->status)
        return error_set(e, -EOPNOTSUPP, "%u steps of elements: allowed in a bound program are %d: `fuse` makes fewer", codes,
                         FCC_PREPARED_MAX);
    return e->status;
}

/* What is not there is there on no rank. */
static int needs_open(struct fcc_program *p, const struct needs *needs)
{
    int status = needs->rings ? fcc_collectives_prepare(p->group) : 0;

    if (status == 0 && needs->across)
        status = fcc_collectives_prepare(p->comm);
    if (status == 0 && needs->pieces)
        status = fcc_products_prepare(p->group);
    if (status == 0 && needs->products && !rings_run_products(p->group))
        status = last_error_set(-EOPNOTSUPP, "rank %d: program: the plug-in for these GPUs runs no products", p->comm->rank);
    return status;
}

/* All ranks get the error. */
static int refuse(struct fcc_program *p, const struct error *e)
{
    return operator_refuse_step(p->comm, e->status, e->text);
}

/* What a run's header says: the scheduled text, which has the sizes, and the table. */
static uint32_t key_make(const struct fcc_program *p)
{
    uint64_t hash = program_hash(PROGRAM_HASH_BEGIN, p->text, strlen(p->text));

    if (p->begins)
        hash = program_hash(hash, p->begins, (size_t)(p->program->tensors + 1) * sizeof(p->begins[0]));
    return (uint32_t)(hash ^ hash >> 32) | 1;
}

/* All ranks guard it, or all hear that they differ. */
static int guard_agree(struct fcc_program *p)
{
    p->key = key_make(p);
    const int64_t words[sizeof(struct code_head) / sizeof(int64_t)] = {CODE_TEXT, 1, p->key};
    const struct fcc_program_step_args args = {.code = words, .words = sizeof(words) / sizeof(words[0])};

    guard_learn(p->comm, p->key, p->text);
    return operator_call(p->comm, FCC_PROGRAM_STEP, &args);
}

static int program_prepare(struct fcc_program *p, bool is_guarded)
{
    struct error e = {.status = 0};
    struct needs needs = {.rings = false};
    int status;

    if (!p)
        return last_error_set(-EINVAL, "program: NULL: not allowed");
    status = comm_check(p->comm);
    if (status)
        return status;
    program_unbind(p);
    p->is_guarded = is_guarded;
    if (!p->comm->accelerator)
        (void)error_set(&e, -EOPNOTSUPP, "a program: its ranks are on cpu devices: allowed on CUDA GPUs");
    if (!e.status && !program_ready(p, &e) && (status = stand_ins_make(p)) != 0)
        (void)error_set(&e, status, "%s", fcc_last_error());
    if (!e.status && !steps_check(p, &needs, &e) && is_compared(p) && (status = products_stage(p)) != 0)
        (void)error_set(&e, status, "%s", fcc_last_error());
    fcc_prepared **bound = calloc(p->steps.nsteps + 1, sizeof(fcc_prepared *));
    struct binding *all = calloc(p->steps.nsteps + 1, sizeof(*all));
    if ((!bound || !all) && !e.status)
        (void)error_set(&e, -ENOMEM, "out of memory");
    if (e.status || !bound || !all) {
        free(all);
        free(bound);
        return refuse(p, &e);
    }
    p->bound = bound;
    status = p->group != p->comm ? fcc_noop(p->comm) : 0; /* what one rank has refused, all groups hear here */
    if (status == 0 && is_compared(p))
        status = guard_agree(p);
    if (status == 0)
        status = needs_open(p, &needs);
    if (status == 0)
        status = steps_bind(p, all);
    free(all);
    p->is_moved = p->is_changed = false;
    if (status) {
        char text[FCC_TEXT_MAX];
        text_copy(text, sizeof(text), fcc_last_error());
        program_unbind(p);
        (void)last_error_set(status, "%s", text);
    }
    return status;
}

int fcc_program_prepare(fcc_program *program)
{
    return program_prepare(program, false);
}

int fcc_program_prepare_guarded(fcc_program *program)
{
    return program_prepare(program, true);
}

/* ---- runs ---- */

static int bound_check(const struct fcc_program *p, const char *called)
{
    const char *what = !p->bound     ? "it is not prepared"
                       : p->is_moved ? "tensors have been given elsewhere since it was prepared"
                                     : NULL;
    const int status = comm_check(p->comm);

    if (status || !what)
        return status;
    return last_error_set(-EINVAL, "rank %d: %s: program `%s`: %s: needed before is fcc_program_prepare()", p->comm->rank,
                          called, program_name_of(p->program, p->program->name), what);
}

/* The steps' numbers are those of the scalars, behind what is on the stream. */
static int numbers_enqueue(struct fcc_program *p, void *stream)
{
    struct error e = {.status = 0};
    int status = 0;

    if (program_ready(p, &e))
        return last_error_set(e.status, "rank %d: %s", p->comm->rank, e.text);
    for (uint32_t i = 0; i < p->steps.nsteps && status == 0; i++) {
        const struct program_step *step = &p->steps.steps[i];
        const struct code_head *head = (const struct code_head *)(const void *)step->words;
        if (!p->bound[i] || !step->nnumbers)
            continue;
        const struct code_operand *operands = (const struct code_operand *)(const void *)(head + 1);
        const int64_t *instructions = (const int64_t *)(const void *)(operands + head->operands);
        status = prepared_numbers(p->bound[i], instructions,
                                  (size_t)head->instructions * sizeof(struct code_instruction) / sizeof(int64_t), stream);
        if (status)
            return program_step_error(p, step, status);
    }
    return status;
}

int fcc_program_scalars_enqueue(fcc_program *p, void *stream)
{
    int capturing = DRIVER_NOT_CAPTURING, status;

    if (!p)
        return last_error_set(-EINVAL, "program: NULL: not allowed");
    status = bound_check(p, "fcc_program_scalars_enqueue");
    if (status == 0)
        status = prepared_capturing(p->comm, stream, &capturing);
    if (status == 0)
        status = numbers_enqueue(p, stream);
    if (status == 0 && capturing == DRIVER_NOT_CAPTURING)
        p->is_changed = false;
    return status;
}

/* Less than GUARD_CAPTURED. */
static uint32_t numbers_hash(const struct fcc_program *p)
{
    uint64_t hash = PROGRAM_HASH_BEGIN;

    for (uint32_t i = 0; i < p->program->nparameters; i++)
        hash = program_hash(hash, &p->scalars[i], sizeof(p->scalars[i]));
    return (uint32_t)((hash ^ hash >> 32) % GUARD_CAPTURED);
}

/* Some steps of the run are on the stream, and some are not: the run cannot be repeated, and the other ranks' wait for it. */
static int run_lost(struct fcc_program *p, int status)
{
    char text[FCC_TEXT_MAX], reason[FCC_ABORT_REASON_MAX + 1];

    text_copy(text, sizeof(text), fcc_last_error());
    (void)snprintf(reason, sizeof(reason), "a step of a program could not be put onto its stream: %.140s", text);
    (void)comm_tell(p->group, FCC_MSG_COMM_ABORT, reason);
    return last_error_set(status, "%s", text);
}

/* Whether the step has something to do. */
static int step_enqueue(struct fcc_program *p, uint32_t i, void *stream, bool captures, bool *does)
{
    const struct program_step *step = &p->steps.steps[i];

    *does = p->bound[i] || step->kind != STEP_OF_CODE;
    if (p->bound[i] && is_compared(p)) {
        const int status = prepared_guard(p->bound[i], stream);
        if (status)
            return status;
    }
    switch (step->kind) {
    case STEP_OF_EXCHANGE:
        return exchange_run(p, step, &stream);
    case STEP_OF_PRODUCT:
        return product_run(p, step, &stream, captures);
    case STEP_OF_LOOKUP:
        return lookup_run(p, step, &stream, captures);
    default:
        return p->bound[i] ? fcc_prepared_enqueue(p->bound[i], stream) : 0;
    }
}

int fcc_program_enqueue(fcc_program *p, void *stream)
{
    int capturing = DRIVER_NOT_CAPTURING, status;
    bool any = false, does;

    if (!p)
        return last_error_set(-EINVAL, "program: NULL: not allowed");
    status = bound_check(p, "fcc_program_enqueue");
    if (status == 0)
        status = prepared_capturing(p->comm, stream, &capturing);
    if (status == 0 && p->is_changed && capturing == DRIVER_NOT_CAPTURING)
        status = fcc_program_scalars_enqueue(p, stream);
    if (status == 0 && is_compared(p)) {
        status =
            guard_enqueue(p->comm, p->key, capturing != DRIVER_NOT_CAPTURING ? GUARD_CAPTURED : numbers_hash(p), NULL, stream);
        any = status == 0;
    }
    rings_continue(is_compared(p));
    for (uint32_t i = 0; i < p->steps.nsteps && status == 0; i++) {
        status = step_enqueue(p, i, stream, capturing != DRIVER_NOT_CAPTURING, &does);
        if (status) {
            status = program_step_error(p, &p->steps.steps[i], status);
            status = any && capturing == DRIVER_NOT_CAPTURING ? run_lost(p, status) : status;
        }
        any |= does;
    }
    rings_continue(false);
    return status;
}

int fcc_program_refuse_enqueue(fcc_program *p, const char *reason, void *stream)
{
    int status;

    if (!p || !reason)
        return last_error_set(-EINVAL, "%s: NULL: not allowed", !p ? "program" : "reason");
    status = comm_check(p->comm);
    if (status)
        return status;
    if (!p->bound || !p->is_guarded)
        return last_error_set(
            -EINVAL, "rank %d: fcc_program_refuse_enqueue: program `%s`: needed before is fcc_program_prepare_guarded()",
            p->comm->rank, program_name_of(p->program, p->program->name));
    return is_compared(p) ? guard_enqueue(p->comm, p->key, 0, text_without_rank(p->comm->rank, reason), stream) : 0;
}
