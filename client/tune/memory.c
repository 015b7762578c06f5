/* SPDX-License-Identifier: MIT
 *
 * memory.c - the tensors with which candidates run: made numbers, positive and exact in every dtype, so that no root or logarithm makes a NaN of them,
 * whose equality would say nothing.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/stream/bound.h"
#include "client/tune/tuner.h"
#include "kernels/plan/dtype.h"
#include "proto/base/clock.h"

#define PIECE 16384 /* elements; fewer make more copies to a GPU */

int ranks_most(struct tuner *t, double values[], int n)
{
    const struct fcc_all_reduce_args args = {
        .in = fcc_tensor_1d(t->mine, 0, FCC_F64, n), .out = fcc_tensor_1d(t->most, 0, FCC_F64, n), .reduction = FCC_MAX};
    int status = fcc_buffer_write(t->mine, 0, values, (size_t)n * sizeof(double));

    if (status == 0)
        status = fcc_all_reduce(t->comm, &args);
    return status ? status : fcc_buffer_read(t->most, 0, values, (size_t)n * sizeof(double));
}

static bool is_tensor(const struct parameter *p)
{
    return p->kind != PARAMETER_SCALAR;
}

static int64_t elements_of(const struct tuner *t, uint32_t i)
{
    const int ranks = t->written->nranks; /* of a group */

    return value_elements_of(&t->written->parameters[i].value, ranks, t->comm->rank % ranks);
}

static size_t size_of(const struct tuner *t, uint32_t i)
{
    return fcc_dtype_size((enum fcc_dtype)t->written->parameters[i].value.dtype);
}

/* What chooses rows of tables: indices that there are, and, of offsets, bags that have all indices, as many each. */
static int integers_fill(struct tuner *t, uint32_t i)
{
    const struct parameter *of = &t->written->parameters[i];
    const int64_t n = elements_of(t, i);
    int64_t most = 1, bags = 0;
    int status = 0;

    for (uint32_t k = 0; k < t->written->nnodes; k++) {
        const struct node *node = &t->written->nodes[k];
        if (node_spec(node)->kind != OPERATION_LOOKUP || (node->arg[1] != of->node && node->arg[2] != of->node))
            continue;
        bags = node->arg[2] == of->node ? n - 1 : bags;
        most = node->arg[2] == of->node ? t->written->nodes[node->arg[1]].value.shape[0]
                                        : t->written->nodes[node->arg[0]].value.shape[1];
    }
    uint64_t x = (uint64_t)t->comm->rank + 1;
    for (int64_t k = 0; k < n && status == 0; k++) {
        x = x * UINT64_C(6364136223846793005) + 1442695040888963407;
        const int64_t value = bags ? slice_begin(most, (int)bags, (int)k) : most ? (int64_t)(x >> 33) % most : 0;
        const int32_t half = (int32_t)value;
        status = fcc_buffer_write(t->memory[i], (uint64_t)k * size_of(t, i),
                                  of->value.dtype == FCC_I64 ? (const void *)&value : &half, size_of(t, i));
    }
    return status;
}

/* 1/64 to 127/64; of a local tensor others on each rank. */
static int parameter_fill(struct tuner *t, uint32_t i)
{
    const struct value *v = &t->written->parameters[i].value;
    const int64_t n = elements_of(t, i);
    uint32_t x = i * 2654435761u + (v->layout == LAYOUT_REPLICATED ? 0 : (uint32_t)t->comm->rank * 40503u + 1);
    uint16_t room[2 * PIECE];
    float values[PIECE];
    int status = 0;

    if (v->dtype == FCC_I32 || v->dtype == FCC_I64)
        return integers_fill(t, i);
    for (int64_t at = 0, count; at < n && status == 0; at += count) {
        count = n - at < PIECE ? n - at : PIECE;
        for (int64_t k = 0; k < count; k++) {
            x = x * 1664525u + 1013904223u;
            values[k] = (float)((x >> 24) % 127 + 1) / 64;
        }
        dtype_from_f32(room, values, (enum fcc_dtype)v->dtype, (size_t)count);
        status = fcc_buffer_write(t->memory[i], (uint64_t)at * size_of(t, i), room, (size_t)count * size_of(t, i));
    }
    return status;
}

int memory_fill(struct tuner *t)
{
    int status = 0;

    for (uint32_t i = 0; i < t->written->nparameters && status == 0; i++)
        if (is_tensor(&t->written->parameters[i]) && t->written->parameters[i].kind != PARAMETER_IN)
            status = parameter_fill(t, i);
    return status;
}

int memory_make(struct tuner *t)
{
    int status = 0;
    double failed;

    for (uint32_t i = 0; i < t->written->nparameters && status == 0; i++) {
        if (!is_tensor(&t->written->parameters[i]))
            continue;
        const size_t bytes = (size_t)elements_of(t, i) * size_of(t, i);
        status = fcc_buffer_alloc(t->comm, FCC_BUFFER_RESULT, bytes + 1, &t->memory[i]);
        if (status == 0 && t->written->parameters[i].kind != PARAMETER_IN && !(t->want[i] = malloc(bytes + 1)))
            status = last_error_set(-ENOMEM, "tuning: no memory for a copy of the results");
        if (status == 0)
            status = parameter_fill(t, i);
    }
    failed = -status; /* what one rank has not got, all do without */
    const int told = ranks_most(t, &failed, 1);
    if (status || told)
        return status ? status : told;
    return failed > 0 ? last_error_set(-(int)failed, "tuning: another rank has no memory for the program's tensors once more")
                      : 0;
}

void memory_free(struct tuner *t)
{
    for (uint32_t i = 0; t->written && i < t->written->nparameters; i++) {
        fcc_buffer_free(t->memory[i]);
        free(t->want[i]);
    }
}

/* A table's tensors are equally long, and lie one behind the other. */
static int table_tell(const struct tuner *t, fcc_program *p)
{
    const int64_t n = t->written->tensors, elements = t->written->tensor_elements;
    int64_t each[PROGRAM_TABLE_MAX];

    for (int64_t i = 0; i < n; i++)
        each[i] = slice_begin(elements, (int)n, (int)i + 1) - slice_begin(elements, (int)n, (int)i);
    return n > 0 ? fcc_program_table(p, each, (int)n) : 0;
}

int candidate_open(struct tuner *t, int i, fcc_program **out)
{
    char *text = i ? text_with_schedule(t->text, t->length, t->candidates.candidate[i].schedule) : strndup(t->text, t->length);
    /* without memory this rank brings an empty text, and so all ranks hear */
    int status =
        fcc_program_open(t->comm, text ? text : "", text ? (i ? strlen(text) : t->length) : 0, t->sizes, t->nsizes, out);

    free(text);
    if (status == 0 && (status = table_tell(t, *out)) != 0)
        fcc_program_close(*out);
    for (uint32_t k = 0; k < t->written->nparameters && status == 0; k++) {
        const struct parameter *p = &t->written->parameters[k];
        const char *name = program_name_of(t->written, p->name);
        const struct fcc_tensor tensor = is_tensor(p)
                                             ? fcc_tensor_1d(t->memory[k], 0, (enum fcc_dtype)p->value.dtype, elements_of(t, k))
                                             : (struct fcc_tensor){.buffer = NULL};
        status = is_tensor(p) ? fcc_program_tensor(*out, name, &tensor) : fcc_program_scalar(*out, name, 0.5);
        if (status)
            fcc_program_close(*out);
    }
    return status;
}

int candidate_run(struct tuner *t, fcc_program *p, double *seconds)
{
    int status = memory_fill(t);

    if (status == 0)
        status = fcc_noop(t->comm);
    const uint64_t begin = clock_ns();
    if (status == 0)
        status = fcc_program_run(p);
    *seconds = (double)(clock_ns() - begin) * 1e-9;
    return status;
}

void kernels_await(const struct tuner *t, uint64_t end)
{
    static const struct timespec nap = {.tv_nsec = 2000000};
    struct fcc_prepared_reply reply;
    int fd = -1;

    while (t->comm->kind != FCC_DEVICE_CPU && clock_ns() < end &&
           prepared_ask(t->comm, 0, FCC_PREPARED_CODE, t->comm->rank, &reply, &fd) == -EAGAIN)
        (void)nanosleep(&nap, NULL);
}

int results_keep(struct tuner *t)
{
    int status = 0;

    for (uint32_t i = 0; i < t->written->nparameters && status == 0; i++)
        if (t->want[i])
            status = fcc_buffer_read(t->memory[i], 0, t->want[i], (size_t)elements_of(t, i) * size_of(t, i));
    return status;
}

/* Sums in another order differ by roundings: by some units of the dtype, of the largest value that went into them, which is taken to be like the
 * result's. */
static bool values_agree(const float *a, const float *b, size_t n, enum fcc_dtype dtype)
{
    const float unit = dtype == FCC_F32 ? 0x1p-13f : dtype == FCC_F16 ? 0x1p-8f : 0x1p-5f;
    float largest = 1;

    for (size_t i = 0; i < n; i++)
        largest = fabsf(b[i]) > largest && !isinf(b[i]) ? fabsf(b[i]) : largest;
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i] && !(fabsf(a[i] - b[i]) <= unit * largest) &&
            !(isnan(a[i]) && isnan(b[i]))) /* infinite ones are equal */
            return false;
    return true;
}

bool results_agree(const struct tuner *t)
{
    uint16_t room[2 * PIECE];
    float got[PIECE], want[PIECE];

    for (uint32_t i = 0; i < t->written->nparameters; i++) {
        const enum fcc_dtype dtype = (enum fcc_dtype)t->written->parameters[i].value.dtype;
        const size_t size = t->want[i] ? size_of(t, i) : 0;
        const int64_t n = t->want[i] ? elements_of(t, i) : 0;
        for (int64_t at = 0, count; at < n; at += count) {
            count = n - at < PIECE ? n - at : PIECE;
            const unsigned char *kept = (const unsigned char *)t->want[i] + (size_t)at * size;
            if (fcc_buffer_read(t->memory[i], (uint64_t)at * size, room, (size_t)count * size))
                return false;
            if (memcmp(room, kept, (size_t)count * size) == 0)
                continue;
            dtype_to_f32(got, room, dtype, (size_t)count);
            dtype_to_f32(want, kept, dtype, (size_t)count);
            if (!values_agree(got, want, (size_t)count, dtype))
                return false;
        }
    }
    return true;
}
