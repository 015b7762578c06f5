/* SPDX-License-Identifier: MIT
 *
 * bound_step.c - steps of programs that this process launches itself: what their kernels are told, and the kernels, which the worker has compiled.
 *
 * The worker knows of a rank's step its code, the dtypes of its tensors, and where `in` and `out` lie, which other ranks read and store into. All other
 * tensors are this process's own, anywhere in its memory. So the numbers that the kernel is told (step_numbers.h) are made here, of the request as this
 * process has it, and from the worker come only the plan and other ranks' tables. These are checked so far that a kernel stays in memory that is mapped
 * for it. The kernel itself is believed: it was compiled by this user's worker, which has the same rights.
 */
#include "client/stream/bound.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/core/call.h"
#include "kernels/gpu/step_numbers.h"
#include "kernels/plan/dtype.h"
#include "kernels/plan/tensor.h"
#include "proto/sealed.h"

#define CODE_LIMIT_MS                                                                                                          \
    60000 /* a step is compiled in about half a second, the longest that there can be in some, behind all that other ranks ask for */
static const struct timespec code_nap = {.tv_nsec = 2000000};

/* ---- the plan ---- */

bool prepared_step_fits(const struct gpu_prepared_plan *plan, const struct prepared_wanted *w)
{
    const struct op_args *own = w->step;
    const struct code code = step_code(own);
    const struct gpu_shape *s = &plan->shape;
    const int rank = (int)plan->rank, nranks = (int)s->nranks;

    if (!code.head)
        return false;
    const bool reduces = code_reduces(&code), gives = code_has_result(&code), shares = code_is_shared(&code);
    const int64_t begin = step_begin_of(&code, nranks, rank), end = begin + step_count_of(&code, nranks, rank);
    const uint32_t words = shares && code.begins ? 1 + 2 * (uint32_t)code.head->tensors : 0;
    if (s->n != code.head->rows * code.head->inner || plan->reads_inputs != reduces || plan->shares_result != gives ||
        plan->table_words != words || s->dtype != (reduces ? own->tensors[STEP_IN].dtype : FCC_F32))
        return false;
    if (!shares)
        return true;
    return s->elements[rank] >= begin && s->elements[rank + 1] <= end && plan->out[rank].data == w->tensors[STEP_OUT].offset &&
           plan->out[rank].in == w->tensors[STEP_IN].offset;
}

/* The sums of tensors' pieces lie in staging memory. */
static bool pieces_fit(const struct gpu_prepared_plan *plan, const struct code *code, int64_t count)
{
    const int64_t most = code_sums_tensors(code) ? step_pieces_most(count, code->head->tensors) : 0;

    if (!code_sums_tensors(code))
        return true;
    for (uint32_t i = 0; i < plan->first[GPU_PHASES]; i++) {
        const struct slice *s = &gpu_prepared_slices(plan)[i];
        if (s->kind == SLICE_REDUCE && (int64_t)s->col + s->cols > most)
            return false;
    }
    return (uint64_t)most * STEP_PIECE_BYTES <= plan->staging_bytes;
}

/* ---- the ranks' tables ---- */

/* A rank's request, as far as its tables of `in` and `out` go; *words, of table_words + 1, become its attribute. */
static int rank_tables(const struct gpu_prepared_plan *plan, const struct code *code, uint32_t rank, int64_t *words,
                       struct op_args *out, struct error *e)
{
    const int64_t *given =
        (const int64_t *)(const void *)((const char *)plan + plan->tables) + (size_t)rank * plan->table_words;
    const int64_t bits = plan->table_words ? given[0] : 0;
    const size_t count = plan->table_words ? 1 + (size_t)((bits & 1) + (bits >> 1 & 1)) * (size_t)code->head->tensors : 0;

    *out = (struct op_args){.op = FCC_PROGRAM_STEP};
    if (!bits)
        return 0;
    if (bits & ~INT64_C(3))
        return error_set(e, -EPROTO, "tables of rank %u: 0x%llx: allowed are those of in and out", rank,
                         (unsigned long long)bits);
    words[0] = (int64_t)((uint64_t)FCC_ATTR_TABLES << 32 | count);
    memcpy(words + 1, given, count * sizeof(words[0]));
    out->attrs = words;
    out->nattrs = 1 + count;
    return code_tables_check(code, words + 1, count, e);
}

/* The number of elements behind the begin of a rank's tensor; -1: more than any has. */
static int64_t elements_behind(const struct op_args *args, const struct code *code, int tensor)
{
    const int64_t *places = code->begins ? step_places(args, code, tensor) : NULL;
    int64_t most = places ? 0 : code->head->rows * code->head->inner;

    for (int64_t k = 0; places && k < code->head->tensors; k++) {
        const int64_t n = code->begins[k + 1] - code->begins[k];
        if (places[k] < 0 || places[k] > GPU_PREPARED_ELEMENTS_MOST)
            return -1;
        most = places[k] + n > most ? places[k] + n : most;
    }
    return most;
}

static bool memory_has(uint64_t at, int64_t elements, enum fcc_dtype dtype, uint64_t bytes)
{
    return elements >= 0 && at <= bytes && (uint64_t)elements <= (bytes - at) / dtype_size(dtype);
}

/* Whether what is read of a rank's input, and stored into its result, is mapped. */
static int rank_check(const struct gpu_prepared_plan *plan, const struct op_args *own, const struct code *code,
                      const struct op_args *args, uint32_t r, const struct gpu_prepared_sizes *sizes, struct error *e)
{
    if ((plan->reads_inputs &&
         !memory_has(plan->out[r].in, elements_behind(args, code, STEP_IN), own->tensors[STEP_IN].dtype, sizes->ins[r])) ||
        (plan->shares_result && !memory_has(plan->out[r].data, elements_behind(args, code, STEP_OUT),
                                            own->tensors[STEP_OUT].dtype, sizes->results[r])))
        return error_set(e, -EPROTO, "plan: rank %u: an input in %llu bytes, and a result in %llu: the kernels would use more",
                         r, (unsigned long long)sizes->ins[r], (unsigned long long)sizes->results[r]);
    return 0;
}

/* args[nranks] and words[nranks][table_words + 1], both zeroed: fills them in, and makes the numbers. */
static int numbers_make(const struct gpu_prepared_plan *plan, const struct op_args *own, const struct gpu_prepared_sizes *sizes,
                        struct op_args *args, int64_t *words, struct step_numbers *out, struct error *e)
{
    const struct code code = step_code(own);
    const int nranks = (int)plan->shape.nranks, rank = (int)plan->rank;
    const int64_t begin = step_begin_of(&code, nranks, rank), count = step_count_of(&code, nranks, rank);

    if (!pieces_fit(plan, &code, count))
        return error_set(e, -EPROTO, "plan: %llu bytes of staging memory: not enough for its sums",
                         (unsigned long long)plan->staging_bytes);
    for (int r = 0; r < nranks; r++, words += plan->table_words + 1) {
        if (r == rank)
            args[r] = *own;
        else if (rank_tables(plan, &code, (uint32_t)r, words, &args[r], e))
            return -EPROTO;
        if (rank_check(plan, own, &code, &args[r], (uint32_t)r, sizes, e))
            return e->status;
    }
    return step_numbers_make(args, nranks, rank, begin, count, out) ? 0 : error_set(e, -ENOMEM, "out of memory");
}

/* ---- the kernel ---- */

/* Asks until it is made, or cannot be. */
static int image_get(const struct fcc_prepared *p, void **image, size_t *bytes)
{
    const int64_t deadline = deadline_in_ms(CODE_LIMIT_MS);
    struct fcc_prepared_reply reply = {.map_bytes = 0};
    struct error e = {.status = 0};
    int fd = -1, status;

    while ((status = prepared_ask(p->comm, p->number, FCC_PREPARED_CODE, p->comm->rank, &reply, &fd)) == -EAGAIN) {
        if (now_ns() >= deadline)
            return last_error_set(-ETIMEDOUT, "rank %d: prepare: its kernel was not made within %d s", p->comm->rank,
                                  CODE_LIMIT_MS / 1000);
        (void)nanosleep(&code_nap, NULL);
    }
    if (status)
        return status;
    status = sealed_read(fd, 1, GPU_PREPARED_CODE_MOST, "the worker's kernel", image, bytes, &e);
    (void)close(fd);
    return status ? last_error_set(status, "rank %d: prepare: %s", p->comm->rank, e.text) : 0;
}

/* ---- the whole ---- */

int prepared_step_check(const struct op_args *own, int nranks, int rank, struct error *e)
{
    if (step_check(own, nranks, rank, e))
        return e->status;
    return step_tensors_share(own)
               ? error_set(e, -EOPNOTSUPP, "tensors of the step share memory: allowed is that with fcc_program_run()")
               : 0;
}

void prepared_step_free(struct prepared_step_parts *parts)
{
    free(parts->numbers);
    free(parts->image);
}

int prepared_step_get(struct fcc_prepared *p, const struct gpu_prepared_plan *plan, const struct op_args *own,
                      const struct gpu_prepared_sizes *sizes, struct prepared_step_parts *out)
{
    const size_t nranks = plan->shape.nranks;
    struct op_args *args = calloc(nranks, sizeof(*args));
    int64_t *words = calloc(nranks * (plan->table_words + 1), sizeof(*words));
    const struct code code = step_code(own);
    struct step_numbers numbers = {.words = NULL};
    struct error e = {.status = 0};
    int status =
        args && words ? numbers_make(plan, own, sizes, args, words, &numbers, &e) : error_set(&e, -ENOMEM, "out of memory");

    free(args);
    free(words);
    if (status)
        return last_error_set(status, "rank %d: prepare: %s", p->comm->rank, e.text);
    *out = (struct prepared_step_parts){.numbers = numbers.words, .nnumbers = numbers.count};
    p->numbers_at = (size_t)((const int64_t *)(const void *)code.instructions - (const int64_t *)(const void *)code.head) +
                    GPU_STEP_NUMBERS;
    status = image_get(p, &out->image, &out->image_bytes);
    if (status) {
        prepared_step_free(out);
        *out = (struct prepared_step_parts){.numbers = NULL};
    }
    return status;
}
