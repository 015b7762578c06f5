/* SPDX-License-Identifier: MIT
 *
 * rings.h - collectives and products that this process's own kernels run, in any memory (kernels/gpu/rings.h).
 */
#ifndef FCC_CLIENT_STREAM_RINGS_H
#define FCC_CLIENT_STREAM_RINGS_H

#include "client/core/context.h"
#include "client/core/epilogue.h"
#include "kernels/gpu/device/tiles/tiles_order.h"
#include "kernels/gpu/rings.h"
#include "kernels/plan/program.h"

/* What the arguments have that only kernels can use which this process launches: tensors with FCC_ADDRESS, counts in a GPU's memory. NULL:
 * nothing. */
const char *rings_needed(const struct fcc_comm *comm, const struct op_spec *op, const void *args,
                         const struct fcc_epilogue *epilogue);
/* Whether an operator can go through rings at all. What computes is called a product here, embedding_all_to_all, too; it has an epilogue, perhaps. */
static inline bool op_puts_rows(const struct op_spec *op)
{
    return (op->compute == COMPUTE_GEMM || op->compute == COMPUTE_BAG) && op->exchange == EXCHANGE_PUT;
}
/* What the vendor's library multiplies, with its exchange in pieces (kernels/gpu/plugin/pieces.hip). */
static inline bool op_is_in_pieces(const struct op_spec *op)
{
    return op->compute == COMPUTE_GEMM && (op->exchange == EXCHANGE_REDUCE || op->exchange == EXCHANGE_GATHER);
}
static inline bool op_is_product(const struct op_spec *op)
{
    return (op->compute == COMPUTE_GEMV && op->exchange == EXCHANGE_REDUCE) || op_puts_rows(op) || op_is_in_pieces(op);
}
/* A collective with an epilogue is run as a product without factors. */
static inline bool op_is_run_as_product(const struct op_spec *op, const struct fcc_epilogue *epilogue)
{
    return op_is_product(op) || (op->compute == COMPUTE_VECTOR && op->epilogue && epilogue_does(epilogue));
}
static inline bool op_has_rings(const struct op_spec *op)
{
    return op->compute == COMPUTE_VECTOR || op_is_product(op);
}
/* Whether this communicator's collectives can be launched here; asks the other ranks once, as an operator of its own: all ranks call
 * this for the same collective. 1: yes. 0: no, and why (-EOPNOTSUPP) is in *why. Another status: an error, which all ranks have. */
int rings_get(struct fcc_comm *comm, struct error *why);
/* Launch a collective, whose public arguments these are, onto a stream, or refuse it with an error for all ranks. */
int rings_enqueue(struct fcc_comm *comm, const struct op_spec *op, const void *args, void *stream);
/* Whether they are open, and run products, too. On all ranks they do, or do not, when the same operator is called. */
bool rings_run_products(struct fcc_comm *comm);
/* Whether they run products in pieces. */
bool rings_run_pieces(struct fcc_comm *comm);
/* What all ranks have for products in pieces. */
enum pieces_level rings_pieces_level(struct fcc_comm *comm);
/* Whether they are open, and all ranks have the vendor's library of products. */
bool rings_have_library(struct fcc_comm *comm);
/* The first error of a run that has ended and was not reported yet; 0: there is none. Sets the last error. */
int rings_error(struct fcc_comm *comm);
/* Such errors until now are told with another one that came first. */
void rings_error_pass(struct fcc_comm *comm);
/* comm->rings_lock held. This rank is about to give a run up, and so to overwrite what it has found of an older one: keep that for
 * fcc_comm_error(). */
void rings_error_keep(struct fcc_comm *comm);
/* The program has synchronized its streams: find out what other ranks have said of its runs since these ended. */
void rings_ask(struct fcc_comm *comm);
/* The communicator is about to be destroyed: the worker, which hears only of runs that wait, must not take the ended ones for missing. */
void rings_leave(struct fcc_comm *comm);

/* What this thread launches through rings from now on, up to rings_continue(false), is the same call as the run before it: if that was given up, it is no run. */
void rings_continue(bool continues);

/* ---- guard.c ---- */

#define GUARD_CAPTURED                                                                                                         \
    0xffffu /* in the place of a hash of the numbers, which is less: a graph has the run, and its numbers are the GPU's */
/* Launches a run that the ranks compare: `key`, not 0, says which program follows it, and `numbers` with which. refusal: not NULL: this rank gives it up, on all
 * ranks, with this text (under capture nothing is launched). The rings are open. */
int guard_enqueue(struct fcc_comm *comm, uint32_t key, uint32_t numbers, const char *refusal, void *stream);
/* A program that has this key, for errors: its text's first line. */
void guard_learn(struct fcc_comm *comm, uint32_t key, const char *text);
/* comm->rings_lock held. */
void guard_name(const struct fcc_comm *comm, uint32_t key, char text[GUARD_TEXT]);
/* comm->rings_lock held. Why a run of a program was given up: where two ranks' differ, or what a rank has said. False: it is of another kind. */
bool guard_failure_text(const struct fcc_comm *comm, const struct rings_failure *f, char text[FCC_TEXT_MAX]);

/* ---- products.c ---- */

/* Whether one of the tensors has FCC_ADDRESS. epilogue: NULL: none. */
bool product_needs_rings(const struct op_spec *op, const void *args, const struct fcc_epilogue *epilogue);
/* Whether rings run a product with this schedule, the first of the arguments' options. anywhere: it cannot be launched otherwise. */
bool product_has_rings(const struct op_spec *op, const void *args, bool anywhere);
/* Whether a product in buffers goes through rings, if there are any. One whose rows go to the ranks does so only into a graph: fccd stores them where
 * they belong, so that nobody moves them again. */
bool product_prefers_rings(struct fcc_comm *comm, const struct op_spec *op, void *stream);
int product_enqueue(struct fcc_comm *comm, const struct op_spec *op, const void *args, const struct fcc_epilogue *epilogue,
                    void *stream);
/* Where two ranks' products differ, the first thing in which they do. */
void product_other_text(const struct rings_failure *f, const struct op_spec *op, char text[FCC_TEXT_MAX]);

/* The arguments of a call, as a request has them, checked. */
int product_args_find(struct fcc_comm *comm, const struct op_spec *op, const void *args, const struct fcc_epilogue *epilogue,
                      int64_t words[], struct op_args *out, struct error *e);
/* This rank cannot take part in a product: all ranks are told, with the error's text. Sets the last error. */
int product_refuse(struct fcc_comm *comm, const struct op_spec *op, const struct error *why, void *stream);

/* ---- pieces.c ---- */

/* Whether a product of these arguments can be one in pieces. */
bool pieces_suit(const struct op_spec *op, const void *args, const struct fcc_epilogue *epilogue);
int pieces_enqueue(struct fcc_comm *comm, const struct op_spec *op, const void *args, void *stream);
/* Where two ranks' products in pieces differ, the first thing in which they do. */
void pieces_other_text(const struct rings_failure *f, const struct op_spec *op, char text[FCC_TEXT_MAX]);

/* ---- rings.c, for products.c and pieces.c ---- */

/* What is put onto a stream. */
struct rings_task {
    struct gpu_collective *collective; /* one of the three is there */
    struct rings_product *product;
    struct rings_pieces *pieces;
    const struct fcc_tensor *tensors[FCC_MAX_TENSORS]; /* whose buffers a graph keeps */
    int ntensors;
    uint64_t counts[DEVICE_COUNTS]; /* addresses; graphs keep their buffers, too, if they lie in some */
};
int rings_task_enqueue(struct fcc_comm *comm, const struct rings_task *task, void *stream);
/* The attributes of a call's arguments as words, as requests have them. */
enum { RINGS_ATTR_WORDS = 2 * (1 + RINGS_RANKS) + 8 + 1 + EPILOGUE_NUMBERS + FCC_MAX_TABLES };
void rings_attrs_find(const struct fcc_comm *comm, const struct op_spec *op, const void *args, int64_t words[RINGS_ATTR_WORDS],
                      struct op_args *out);
/* Launch a run that gives itself up on all ranks, with this text, as the operator. */
int rings_refuse(struct fcc_comm *comm, const struct op_spec *op, const char *text, void *stream);
/* The address of a tensor's first element, on this rank's GPU; *room: bytes from there to the end of its buffer, which may be another communicator's, as
 * those of a program of groups are. */
int rings_address(struct fcc_comm *comm, const char *name, const struct fcc_tensor *t, uint64_t *out, uint64_t *room,
                  struct error *e);

#endif
