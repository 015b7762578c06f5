/* SPDX-License-Identifier: MIT
 *
 * bag.h - requests of EmbeddingBag over tables that are shared out among the ranks.
 */
#ifndef FCC_KERNELS_PLAN_COMPUTE_BAG_H
#define FCC_KERNELS_PLAN_COMPUTE_BAG_H

#include "kernels/plan/program.h"

int bag_check(const struct op_args *args, int nranks, int rank, struct error *e);
/* The value of an attribute that is one number, of a checked request. */
int64_t bag_number(const struct op_args *args, enum fcc_attr key);
/* The samples of each rank. */
void bag_split(const struct op_args *args, int nranks, int64_t split[]);

/* Sets the error -ERANGE, for every device: of offsets[at], the begin or end of a table's bag, or of indices[at], at a
 * position of its bag. */
int bag_offset_error(struct error *e, int64_t at, int64_t offset, int table, bool end, int64_t bag, int64_t least,
                     int64_t most);
int bag_index_error(struct error *e, int64_t at, int64_t id, int table, int64_t bag, int64_t position, int64_t nrows);

#endif
