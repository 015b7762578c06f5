/* SPDX-License-Identifier: MIT
 *
 * run_record.h - what kernels that ranks launch by themselves note of their runs, in their own rank's control memory, which is the GPU's: so a note costs
 * two stores that nobody waits for, where a store to the host takes as long as a small collective. The worker copies the notes now and then
 * (daemon/worker/comm/bound/records.c). Plain C and C++.
 *
 * One thread of the run's first workgroup stores the first three numbers when the run begins, and one stores `ended` when it ends. Run n's record is
 * overwritten by run n + the number of records. The first two numbers and the last two are stored together each, and in no order: so both pairs say which
 * run they are of. Who reads does so at any time, and ranks' programs can write here: a record counts if its number belongs at its place and both pairs agree.
 */
#ifndef FCC_KERNELS_PLAN_EXCHANGE_RUN_RECORD_H
#define FCC_KERNELS_PLAN_EXCHANGE_RUN_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__CUDACC__) || defined(__HIPCC__) || defined(__CUDACC_RTC__) || defined(__HIPCC_RTC__)
#define RUN_RECORD_FUNCTION static inline __host__ __device__
#else
#define RUN_RECORD_FUNCTION static inline
#endif

/* How many there are: powers of two. */
#define RUN_RECORDS 64u         /* of an operator with control memory of its own */
#define RUN_RECORDS_RINGS 1024u /* of all that goes through the rings of a communicator */

struct run_record {
    uint64_t number, begun; /* times are the GPU's clock's */
    uint64_t what;          /* run_record_what() */
    uint64_t ended;         /* 0: it has not; RUN_RECORD_GIVEN_UP besides: it was given up */
};
#define RUN_RECORD_GIVEN_UP (UINT64_C(1) << 63)

/* op: enum fcc_op, and dtype, as far as the kernel knows them, else 0; bytes: of the longer one of a rank's two vectors, 0: not said. From the top: 8 bits
 * of how often the records were begun anew, the operator, the dtype, 40 bits of bytes. */
RUN_RECORD_FUNCTION uint64_t run_record_what(uint64_t number, uint32_t records, uint32_t op, uint32_t dtype, uint64_t bytes)
{
    return number / records << 56 | (uint64_t)(op & 0xff) << 48 | (uint64_t)(dtype & 0xff) << 40 |
           (bytes & ((UINT64_C(1) << 40) - 1));
}

/* Whether `what` is run `number`'s, and not that of a run before it which had the same place. */
RUN_RECORD_FUNCTION bool run_record_agrees(uint64_t what, uint64_t number, uint32_t records)
{
    return what >> 56 == (number / records & 0xff);
}

RUN_RECORD_FUNCTION uint32_t run_record_op(uint64_t what)
{
    return (uint32_t)(what >> 48 & 0xff);
}

RUN_RECORD_FUNCTION uint32_t run_record_dtype(uint64_t what)
{
    return (uint32_t)(what >> 40 & 0xff);
}

RUN_RECORD_FUNCTION uint64_t run_record_bytes(uint64_t what)
{
    return what & ((UINT64_C(1) << 40) - 1);
}

#endif
