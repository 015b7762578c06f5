/* SPDX-License-Identifier: MIT
 *
 * counts.h - counts of an operator that lie in memory of the rank's device (fccclient.h, all_to_all): device_send_counts and
 * device_receive_counts. Kernels that this process launches read and store them (rings.c); on cpu devices the call does.
 */
#ifndef FCC_CLIENT_STREAM_COUNTS_H
#define FCC_CLIENT_STREAM_COUNTS_H

#include "client/core/context.h"
#include "kernels/plan/program.h"

/* The address of such counts; 0: absent. args NULL: there are none. */
uint64_t device_counts(const struct op_spec *op, const void *args, enum device_counts which);
/* Whether there are some. */
bool device_counts_given(const struct op_spec *op, const void *args);
/* Refuses an address that is not aligned, and counts that are given twice. */
int device_counts_check(const struct op_spec *op, const void *args, struct error *e);

/* Which of the counts, in rank order, is the first that is negative, or more than the ones before leave of `most`; n: none. */
uint32_t counts_wrong(const int64_t counts[], uint32_t n, int64_t most);
/* What is wrong with it, in words. */
void counts_wrong_text(const struct op_spec *op, int64_t count, uint32_t rank, int64_t most, char text[FCC_TEXT_MAX]);

/* Arguments without counts in memory: of a rank on a cpu device, where this thread can read them. */
struct counts_read {
    int64_t counts[FCC_MAX_RANKS];
    union {
        struct fcc_tensor align;
        unsigned char bytes[512];
    } args;
};
/* Reads the counts; `out` has the arguments as they are with these, whose input ends with the last element that is sent. */
int device_counts_read(const struct op_spec *op, const void *args, int nranks, struct counts_read *out, struct error *e);

#endif
