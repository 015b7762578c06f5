/* SPDX-License-Identifier: MIT
 *
 * program.c - opening and closing programs, and what a rank says of their parameters.
 */
#include "client/program/program.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "client/submission.h"

#define SIZES_MOST ((int)PROGRAM_SIZES_MAX)

int program_parameter(const struct fcc_program *p, const char *name)
{
    for (uint32_t i = 0; name && i < p->program->nparameters; i++)
        if (strcmp(program_name_of(p->program, p->program->parameters[i].name), name) == 0)
            return (int)i;
    return last_error_set(-ENOENT, "rank %d: program `%s`: parameter `%.64s`: it has none of this name", p->comm->rank,
                          program_name_of(p->program, p->program->name), name ? name : "(NULL)");
}

void fcc_program_close(fcc_program *p)
{
    if (!p)
        return;
    program_unbind(p);
    for (uint32_t i = 0; p->temporaries && i < p->steps.ntemporaries; i++)
        fcc_buffer_free(p->temporaries[i]);
    for (uint32_t i = 0; p->staged && i < p->steps.nsteps; i++)
        fcc_buffer_free(p->staged[i]);
    if (p->group != p->comm)
        fcc_comm_destroy(p->group);
    free(p->staged);
    free(p->text);
    for (uint32_t i = 0; p->places && i < p->program->nparameters; i++)
        free(p->places[i]);
    free(p->places);
    free(p->begins);
    free(p->tensors);
    free(p->scalars);
    free(p->given);
    free(p->temporaries);
    free(p->numbers);
    program_steps_free(&p->steps);
    program_free(p->program);
    free(p);
}

/* Both say a size by its name. */
static_assert(sizeof(struct fcc_program_size) == sizeof(struct program_size) &&
                  offsetof(struct fcc_program_size, name) == offsetof(struct program_size, name) &&
                  offsetof(struct fcc_program_size, value) == offsetof(struct program_size, value),
              "one layout");

int program_sizes_check(const struct fcc_program_size sizes[], int n, struct error *e)
{
    if (n < 0 || n > SIZES_MOST || (n > 0 && !sizes))
        return error_set(e, -EINVAL, "sizes: %d: allowed are 0 to %d, not NULL", n, SIZES_MOST);
    for (int i = 0; i < n; i++)
        if (!sizes[i].name)
            return error_set(e, -EINVAL, "sizes[%d].name: NULL: not allowed", i);
    return 0;
}

/* A program as its caller gives it. */
struct given {
    const char *text;
    size_t length;
    const struct fcc_program_size *sizes;
    int nsizes;
};

/* Whether only ranks of one node can run its steps. */
static bool is_of_one_node(const struct fcc_program *p)
{
    struct error e = {.status = 0};
    struct code code;
    bool is = false;

    for (uint32_t i = 0; i < p->steps.nsteps; i++)
        is |= p->steps.steps[i].kind == STEP_OF_CODE &&
              !code_read(p->steps.steps[i].words, p->steps.steps[i].nwords, &code, &e) && code_is_of_one_node(&code);
    return is;
}

/* The program of a text: checked, scheduled and cut into steps. */
static int program_build(struct fcc_program *p, const struct given *given, bool over_nodes, struct error *e)
{
    if (!given->text)
        return error_set(e, -EINVAL, "text: NULL: not allowed");
    if (program_sizes_check(given->sizes, given->nsizes, e))
        return e->status;
    if (program_parse(given->text, given->length, &p->program, e) ||
        program_bind(p->program, p->comm->nranks, (const struct program_size *)given->sizes, (size_t)given->nsizes, e) ||
        program_schedule(p->program, e))
        return e->status;
    p->program->over_nodes = over_nodes;
    p->program->on_gpus = p->comm->accelerator != NULL;
    if (program_steps(p->program, &p->steps, e))
        return e->status;
    p->nranks = p->program->nranks;
    p->rank = p->comm->rank % p->nranks;
    return 0;
}

/* A value's bytes on this rank, at least 1. */
static size_t value_bytes(const struct fcc_program *p, const struct value *v)
{
    const int64_t n = value_elements_of(v, p->nranks, p->rank);

    return n > 0 ? (size_t)n * fcc_dtype_size((enum fcc_dtype)v->dtype) : 1;
}

/* Allocates what the program needs for itself of one kind: each rank alone its local memory, all together the symmetric one, which has one size on
 * all. */
static int temporaries_make(struct fcc_program *p, bool symmetric)
{
    for (uint32_t i = 0; i < p->steps.ntemporaries; i++) {
        assert(p->steps.temporaries);
        const struct step_temporary *t = &p->steps.temporaries[i];
        if (t->symmetric != symmetric || t->stands_for)
            continue;
        size_t bytes = value_bytes(p, &t->value);
        if (t->symmetric && t->value.layout == LAYOUT_SLICED)
            bytes = (size_t)value_elements(&t->value) * fcc_dtype_size((enum fcc_dtype)t->value.dtype) + 1;
        const int status = fcc_buffer_alloc(t->across ? p->comm : p->group,
                                            t->symmetric ? FCC_BUFFER_SYMMETRIC : FCC_BUFFER_LOCAL, bytes, &p->temporaries[i]);
        if (status)
            return status;
    }
    return 0;
}

int stand_ins_make(struct fcc_program *p)
{
    int status = 0;

    for (uint32_t i = 0; i < p->steps.ntemporaries && status == 0; i++) {
        const struct step_temporary *t = &p->steps.temporaries[i];
        if (t->stands_for && !p->temporaries[i] && temporary_is_needed(p, t))
            status = fcc_buffer_alloc(p->group, t->symmetric ? FCC_BUFFER_RESULT : FCC_BUFFER_LOCAL, value_bytes(p, &t->value),
                                      &p->temporaries[i]);
    }
    return status;
}

static bool tables_make(struct fcc_program *p)
{
    assert(p->program);
    const size_t n = p->program->nparameters + 1;

    p->text = program_print(p->program);
    p->tensors = calloc(n, sizeof(*p->tensors));
    p->scalars = calloc(n, sizeof(*p->scalars));
    p->given = calloc(n, sizeof(*p->given));
    p->temporaries = calloc(p->steps.ntemporaries + 1, sizeof(fcc_buffer *));
    p->places = calloc(n, sizeof(*p->places));
    p->numbers = calloc(p->program->nnodes + 1, sizeof(*p->numbers));
    return p->text && p->tensors && p->scalars && p->given && p->temporaries && p->numbers && p->places;
}

/* NULL: *e says why. */
static struct fcc_program *program_new(fcc_comm *comm, const struct given *given, bool over_nodes, struct error *e)
{
    struct fcc_program *p = calloc(1, sizeof(*p));
    int status;

    if (!p) {
        (void)error_set(e, -ENOMEM, "out of memory");
        return NULL;
    }
    p->comm = p->group = comm;
    if (program_build(p, given, over_nodes, e) == 0 && !tables_make(p))
        (void)error_set(e, -ENOMEM, "out of memory");
    if (!e->status && (status = temporaries_make(p, false)) != 0)
        (void)error_set(e, status, "%s", fcc_last_error());
    if (!e->status)
        return p;
    fcc_program_close(p);
    return NULL;
}

/* The communicator of this rank's group, where the program has several. */
static int group_make(struct fcc_program *p)
{
    fcc_comm *made = NULL;
    int status;

    assert(p->nranks > 0);
    status = fcc_comm_split(p->comm, p->comm->rank / p->nranks, p->comm->rank, NULL, &made);
    if (status)
        return status;
    (void)pthread_mutex_lock(&made->context->lock);
    made->whole = p->comm;
    (void)pthread_mutex_unlock(&made->context->lock);
    p->group = made;
    return 0;
}

/* Whether a program has found that. */
static bool is_over_nodes(const struct fcc_comm *comm)
{
    (void)pthread_mutex_lock(&comm->context->lock);
    const bool is = comm->is_over_nodes;
    (void)pthread_mutex_unlock(&comm->context->lock);
    return is;
}

/* Once more, as ranks on several nodes run it. NULL: *status says why, on all ranks. */
static struct fcc_program *program_cut_anew(struct fcc_program *p, const struct given *given, int *status)
{
    struct fcc_comm *comm = p->comm;
    struct error e = {.status = 0};

    (void)pthread_mutex_lock(&comm->context->lock);
    comm->is_over_nodes = true; /* for the next program */
    (void)pthread_mutex_unlock(&comm->context->lock);
    fcc_program_close(p);
    p = program_new(comm, given, true, &e);
    *status = p ? program_agree(comm, given->text, given->length, p->program, false)
                : operator_refuse_all(comm, FCC_PROGRAM_STEP, e.status, e.text);
    return p;
}

int fcc_program_open(fcc_comm *comm, const char *text, size_t length, const struct fcc_program_size sizes[], int nsizes,
                     fcc_program **out)
{
    const struct given given = {text, length, sizes, nsizes};
    struct error e = {.status = 0};
    struct fcc_program *p = NULL;
    int status = comm_check(comm);

    if (status)
        return status;
    if (comm->context->version < FCC_PROTO_PROGRAMS)
        (void)error_set(
            &e, -EOPNOTSUPP,
            "program: this node's fccd speaks version %u of the protocol, which runs no programs, or none like this "
            "library's: upgrade fccd",
            comm->context->version);
    else if (!out)
        (void)error_set(&e, -EINVAL, "out: NULL: not allowed");
    else
        p = program_new(comm, &given, is_over_nodes(comm) || comm->context->version < FCC_PROTO_HALVES, &e);
    if (!p)
        return operator_refuse_all(comm, FCC_PROGRAM_STEP, e.status, e.text);
    const bool of_one_node = is_of_one_node(p);
    status = program_agree(comm, text, length, p->program, of_one_node);
    if (status == -EOPNOTSUPP && of_one_node && !(p = program_cut_anew(p, &given, &status)))
        return status;
    if (status == 0 && p->nranks < comm->nranks)
        status = group_make(p);
    if (status == 0)
        status = temporaries_make(p, true);
    if (status) {
        fcc_program_close(p);
        return status;
    }
    *out = p;
    return 0;
}

int64_t fcc_program_elements(const fcc_program *p, const char *name)
{
    if (!p)
        return last_error_set(-EINVAL, "program: NULL: not allowed");
    const int i = program_parameter(p, name);
    return i < 0 ? i : value_elements_of(&p->program->parameters[i].value, p->nranks, p->rank);
}

int fcc_program_shares(const fcc_program *p, const char *name)
{
    if (!p)
        return last_error_set(-EINVAL, "program: NULL: not allowed");
    const int i = program_parameter(p, name);
    return i < 0 ? i : p->steps.shared[i];
}

const char *fcc_program_text(const fcc_program *p)
{
    return p ? p->text : "";
}

int64_t dense_elements(const struct fcc_tensor *t)
{
    int64_t n = 1, dense = 1;

    for (unsigned d = t->ndim; d-- > 0 && d < FCC_MAX_DIMS;) {
        if (t->shape[d] < 0 || (t->stride[d] != 0 && t->shape[d] > 1 && t->stride[d] != dense) ||
            __builtin_mul_overflow(n, t->shape[d], &dense))
            return -1;
        n = dense;
    }
    return n;
}

int fcc_program_tensor(fcc_program *p, const char *name, const struct fcc_tensor *t)
{
    if (!p || !t)
        return last_error_set(-EINVAL, "%s: NULL: not allowed", p ? "tensor" : "program");
    const int i = program_parameter(p, name);
    if (i < 0)
        return i;
    const struct value *v = &p->program->parameters[i].value;
    const int64_t needed = value_elements_of(v, p->nranks, p->rank);
    const int64_t n = dense_elements(t);
    if (v->dtype == DTYPE_PLAIN)
        return last_error_set(-EINVAL, "rank %d: program: `%s` is a scalar: allowed is fcc_program_scalar()", p->comm->rank,
                              name);
    if (!t->buffer || t->ndim < 1 || t->ndim > FCC_MAX_DIMS || n < 0)
        return last_error_set(-EINVAL, "rank %d: program: `%s`: allowed is a dense tensor of 1 to %d dimensions in a buffer",
                              p->comm->rank, name, FCC_MAX_DIMS);
    if (t->dtype != v->dtype || n != needed)
        return last_error_set(
            -EINVAL, "rank %d: program: `%s`: dtype %u, %" PRId64 " elements: allowed is %s (%u), %" PRId64 " elements",
            p->comm->rank, name, t->dtype, n, value_dtype_name(v->dtype), v->dtype, needed);
    const struct fcc_tensor *was = &p->tensors[i];
    p->is_moved |= p->places[i] || was->buffer != t->buffer || was->offset != t->offset;
    p->tensors[i] = fcc_tensor_1d(t->buffer, t->offset, (enum fcc_dtype)t->dtype, n);
    free(p->places[i]);
    p->places[i] = NULL;
    return 0;
}

int fcc_program_scalar(fcc_program *p, const char *name, double value)
{
    if (!p)
        return last_error_set(-EINVAL, "program: NULL: not allowed");
    const int i = program_parameter(p, name);
    if (i < 0)
        return i;
    if (p->program->parameters[i].kind != PARAMETER_SCALAR)
        return last_error_set(-EINVAL, "rank %d: program: `%s` is a tensor: allowed is fcc_program_tensor()", p->comm->rank,
                              name);
    p->scalars[i] = value;
    p->given[i] = true;
    p->is_changed = true;
    return 0;
}

/* A rank that has not said all cannot run; the others hear. */
static int complete_check(const struct fcc_program *p, struct error *e)
{
    if (p->program->tensors > 0 && !p->begins)
        return error_set(
            e, -EINVAL, "program: scattered(%" PRId64 "): its tensors: not given: needed is fcc_program_table() before the run",
            p->program->tensors);
    for (uint32_t i = 0; i < p->program->nparameters; i++) {
        const char *name = program_name_of(p->program, p->program->parameters[i].name);
        const bool scalar = p->program->parameters[i].kind == PARAMETER_SCALAR;
        if (scalar ? !p->given[i] : !p->tensors[i].buffer)
            return error_set(e, -EINVAL, "program: `%s`: not given: needed is %s before the run", name,
                             scalar ? "fcc_program_scalar()" : "fcc_program_tensor()");
    }
    return 0;
}

/* Ranks of other groups wait for this one in the sends behind a step that has failed, and hear of it there: each of them has had as many operators of
 * all ranks as this one. */
static int across_refuse(struct fcc_program *p, uint32_t from, int status)
{
    char text[FCC_TEXT_MAX];

    for (uint32_t i = from + 1; i < p->steps.nsteps; i++) {
        const struct program_step *step = &p->steps.steps[i];
        if (p->group == p->comm || step->kind != STEP_OF_EXCHANGE || p->program->nodes[step->node].op != OP_SEND)
            continue;
        text_copy(text, sizeof(text), fcc_last_error());
        (void)operator_refuse_all(p->comm, FCC_PROGRAM_STEP, status, text);
        return last_error_set(status, "%s", text);
    }
    return status;
}

static int steps_run(struct fcc_program *p)
{
    int status = 0;

    for (uint32_t i = 0; i < p->steps.nsteps && status == 0; i++) {
        const bool across =
            p->steps.steps[i].kind == STEP_OF_EXCHANGE && p->program->nodes[p->steps.steps[i].node].op == OP_SEND;
        status = program_step_run(p, &p->steps.steps[i]);
        if (!step_copies(p, &p->steps.steps[i], status)) {
            status = status && !across ? across_refuse(p, i, status) : status;
            continue;
        }
        status = stand_ins_make(p); /* it has changed nothing: from the copies in front of it on, once more */
        while (i > 0 && p->steps.steps[i - 1].copies && status == 0)
            i--;
        i--;
    }
    return status;
}

int program_ready(struct fcc_program *p, struct error *e)
{
    program_numbers(p->program, p->scalars, p->numbers);
    (void)complete_check(p, e);
    for (uint32_t i = 0; i < p->steps.nsteps && !e->status; i++)
        if (p->steps.steps[i].kind == STEP_OF_CODE)
            (void)step_numbers_set(&p->steps.steps[i], p->program, p->numbers, e);
    return e->status;
}

/* What fccd launches uses its own memory, and on GPUs its products have no activations (epilogue_check_gpu()): refused before anything is stored. */
static int launched_check(const struct fcc_program *p, struct error *e)
{
    for (uint32_t i = 0; i < p->steps.nsteps && p->comm->accelerator; i++)
        if (p->steps.steps[i].kind == STEP_OF_PRODUCT && p->steps.steps[i].activation)
            return error_set(
                e, -EOPNOTSUPP,
                "program: line %d: an activation fused with a product: not on GPUs where fccd launches it: allowed "
                "with fcc_program_enqueue()",
                p->steps.steps[i].line);
    for (uint32_t i = 0; i < p->program->nparameters; i++)
        if (p->tensors[i].buffer == FCC_ADDRESS)
            return error_set(e, -EOPNOTSUPP, "program: `%s`: FCC_ADDRESS: allowed with fcc_program_enqueue()",
                             program_name_of(p->program, p->program->parameters[i].name));
    return 0;
}

int fcc_program_run(fcc_program *p)
{
    struct error e = {.status = 0};

    if (!p)
        return last_error_set(-EINVAL, "program: NULL: not allowed");
    int status = comm_check(p->comm);
    if (status)
        return status;
    if (!program_ready(p, &e))
        (void)launched_check(p, &e);
    if (e.status)
        return operator_refuse_all(p->comm, FCC_PROGRAM_STEP, e.status, e.text);
    status = stand_ins_make(p);
    if (status)
        return operator_refuse_all(p->comm, FCC_PROGRAM_STEP, status, fcc_last_error());
    if (p->group != p->comm && (status = fcc_noop(p->comm)) != 0) /* what one rank has refused, all groups hear here */
        return status;
    return steps_run(p);
}
