/* SPDX-License-Identifier: MIT
 *
 * submission.h - a SUBMIT message under construction, made of a typed call by the operator's row (kernels/plan/operators.def). The first failure is
 * kept, and later calls do nothing.
 */
#ifndef FCC_CLIENT_SUBMISSION_H
#define FCC_CLIENT_SUBMISSION_H

#include "client/core/request.h"
#include "client/memory/buffer.h"
#include "kernels/plan/program.h"
#include "kernels/plan/spec.h"

struct submission {
    struct fcc_comm *comm;
    const struct op_spec *op;
    const unsigned char *args;           /* the public struct; NULL: the operator takes none */
    const struct fcc_epilogue *epilogue; /* NULL: none */
    struct fcc_submit *msg;              /* malloc'ed, `room` bytes; NULL: out of memory */
    size_t room, length;
    struct error error;                          /* the reason for refusing the operator */
    struct tensor_place places[FCC_MAX_TENSORS]; /* of the tensors */
};

/* Allocates a message with room for all tensors and attributes of the operator. */
void submission_begin(struct submission *s, fcc_comm *comm, const struct op_spec *op, const void *args,
                      const struct fcc_epilogue *epilogue);
/* Packs the arguments, in the order of the wire. */
void submission_pack(struct submission *s);
void submission_fail(struct submission *s, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Calls an operator by its number and waits for it, as its function does; or refuses it in this process, so that all ranks get the error
 * (client/operators.c). */
int operator_call(fcc_comm *comm, enum fcc_op op, const void *args);
int operator_refuse_all(fcc_comm *comm, enum fcc_op op, int status, const char *text);
/* A program's step that is to be bound, as this process has it: the request with the addresses of all its tensors, and the buffers of those that only this
 * rank uses (NULL: they lie elsewhere). */
struct operator_step {
    struct op_args args;
    const fcc_buffer *buffers[FCC_MAX_TENSORS];
};
/* Begins to prepare a step, together with all other ranks (comm_prepare_begin()); or says in its place why this rank does not. `args` are a struct
 * fcc_program_step_args without the tensors t, whose dtypes are there instead. */
struct prepare_begun;
int operator_prepare_step(fcc_comm *comm, const void *args, const struct operator_step *step, struct prepare_begun *out);
int operator_refuse_step(fcc_comm *comm, int status, const char *text);
/* Tensor i of the operator's own. */
static inline const struct fcc_tensor *submission_arg(const struct submission *s, int i)
{
    return (const struct fcc_tensor *)(const void *)(s->args + s->op->tensors[i].at);
}

#endif
