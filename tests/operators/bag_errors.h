/* SPDX-License-Identifier: MIT
 *
 * bag_errors.h - embedding_all_to_alls on streams in which ranks differ, or have wrong numbers in their data, which all ranks hear of, and after which the
 * communicator goes on. Whoever includes this has stream_settle().
 */
#ifndef FCC_TEST_BAG_ERRORS_H
#define FCC_TEST_BAG_ERRORS_H

#include "tests/operators/bag_cases.h"

static void stream_settle(const struct rank *r);

static inline void bag_works(const struct rank *r, int64_t batch, int32_t tables, int64_t dim)
{
    const struct bag_case c = bag_of(r, FCC_F16, batch, tables, dim);

    bag_fill(r, &c);
    OK(bag_enqueue(r, &c));
    bag_check_all(r, &c, 0);
}

/* All ranks have the error, and the communicator goes on. A rank that has ended its run before another rank gave it up hears of that with its next
 * run, and asks the GPU. */
static inline void bag_error_is(const struct rank *r, int status, int wanted, const char *text)
{
    const struct bag_case next = bag_of(r, FCC_F16, 8, 1, 32);

    stream_settle(r);
    int got = status < 0 ? status : fcc_comm_error(r->comm);
    bag_fill(r, &next);
    OK(bag_enqueue(r, &next));
    stream_settle(r);
    got = got ? got : fcc_comm_error_wait(r->comm, -1);
    if (got != wanted || !strstr(fcc_last_error(), text))
        check_failed(__FILE__, __LINE__, "rank %d: %d (%s), expected %d (%s)", r->rank, got, fcc_last_error(), wanted, text);
    if (status < 0)
        (void)fcc_comm_error(r->comm); /* the run itself says the same */
    OK(fcc_comm_error(r->comm));
    bag_works(r, 10, 2, 64);
    bag_works(r, 200, 3, 128);
}

/* ---- ranks that differ ---- */

static inline void bag_differences(const struct rank *r)
{
    const bool last = r->rank == r->n - 1;
    struct bag_case c = bag_of(r, FCC_F16, 40, 3, last ? 64 : 72);
    char text[128];

    bag_fill(r, &c);
    bag_error_is(r, bag_enqueue(r, &c), -EINVAL, "embedding_all_to_all: out: shape[2]: rank ");
    c = bag_of(r, last ? FCC_BF16 : FCC_F16, 40, 3, 64);
    bag_fill(r, &c);
    bag_error_is(r, bag_enqueue(r, &c), -EINVAL, "embedding_all_to_all: out: dtype: rank ");
    c = bag_of(r, FCC_F16, last ? 41 : 40, 3, 64);
    bag_fill(r, &c);
    bag_error_is(r, bag_enqueue(r, &c), -EINVAL, "embedding_all_to_all: batch: rank ");
    c = bag_of(r, FCC_F16, 40, 3, 64);
    c.even = false;
    c.split[0] += last;
    c.split[r->n - 1] -= last;
    bag_fill(r, &c);
    bag_error_is(r, bag_enqueue(r, &c), -EINVAL, "embedding_all_to_all: batch_split[");
    c = bag_of(r, FCC_F16, 40, 3, 64);
    c.tables[0] += last; /* so the last rank's out has one table more */
    bag_fill(r, &c);
    (void)snprintf(text, sizeof(text), "embedding_all_to_all: out: rank %d has shape[1] %d, all ranks together have %d tables",
                   r->n - 1, 3 * r->n + 1, 3 * r->n);
    bag_error_is(r, bag_enqueue(r, &c), -EINVAL, text);
    const struct fcc_all_reduce_args sum = {.in = fcc_tensor_1d(FCC_ADDRESS, r->memory[PART_X], FCC_F32, 1000),
                                            .out = fcc_tensor_1d(FCC_ADDRESS, r->memory[PART_Y], FCC_F32, 1000)};
    c = bag_of(r, FCC_F16, 40, 3, 64);
    bag_fill(r, &c);
    bag_error_is(r, last ? fcc_all_reduce_enqueue(r->comm, &sum, r->stream, NULL) : bag_enqueue(r, &c), -EINVAL, "called");
}

/* ---- arguments and data that are wrong ---- */

static inline void bag_arguments(const struct rank *r)
{
    const bool last = r->rank == r->n - 1;
    const struct bag_case c = bag_of(r, FCC_F16, 40, 3, 64);
    struct bag_call call;

    bag_call_make(r, &c, &call);
    call.args.num_tables = last ? -1 : 3;
    bag_error_is(r, fcc_embedding_all_to_all_enqueue(r->comm, &call.args, r->stream, NULL), -EINVAL,
                 "embedding_all_to_all: num_tables: -1: allowed are 0 to");
    bag_call_make(r, &c, &call);
    call.table_rows[0] += last;
    bag_error_is(r, fcc_embedding_all_to_all_enqueue(r->comm, &call.args, r->stream, NULL), -EINVAL,
                 "embedding_all_to_all: table_rows");
    bag_call_make(r, &c, &call);
    call.args.out.offset = last ? call.args.tables.offset : call.args.out.offset;
    bag_error_is(r, fcc_embedding_all_to_all_enqueue(r->comm, &call.args, r->stream, NULL), -EINVAL,
                 "embedding_all_to_all: tables: overlaps out");
}

/* One wrong number: element `at` of the offsets or indices of the last rank. */
static inline void bag_data_is(const struct rank *r, int part, int64_t at, int64_t value, const char *text)
{
    const struct bag_case c = bag_of(r, FCC_BF16, 100, 4, 64);
    char all[256];

    bag_fill(r, &c);
    if (r->rank == r->n - 1) {
        r->move(r, (enum part)part, (size_t)(at + 1) * 4, true);
        index_put(&c, r->image, at, value);
        r->move(r, (enum part)part, (size_t)(at + 1) * 4, false);
    }
    (void)snprintf(all, sizeof(all), "rank %d: embedding_all_to_all: %s", r->n - 1, text);
    bag_error_is(r, bag_enqueue(r, &c), -ERANGE, all);
}

static inline void bag_data(const struct rank *r)
{
    bag_data_is(r, BAG_INDICES, 0, 1000, "indices[0]: 1000: table 0, bag ");
    bag_data_is(r, BAG_INDICES, 500, -1, "indices[500]: -1: table ");
    bag_data_is(r, BAG_OFFSETS, 0, -3, "offsets[0]: -3: table 0, begin of bag 0: allowed are 0 to ");
    bag_data_is(r, BAG_OFFSETS, 100 * 4, 1 << 20, "offsets[400]: 1048576: table 3, end of bag 99: allowed are ");
}

#endif
