/* SPDX-License-Identifier: MIT
 *
 * bags.h - embedding_all_to_all through rings (kernels/gpu/rings.h): for products.c and rings_errors.c.
 */
#ifndef FCC_CLIENT_STREAM_BAGS_H
#define FCC_CLIENT_STREAM_BAGS_H

#include "client/core/context.h"
#include "kernels/gpu/rings.h"
#include "kernels/plan/program.h"

/* The worker's check of a request, and what rings have no room for. */
int bags_check(const struct op_args *args, int nranks, int rank, struct error *e);
/* args: checked. out->bags.table_rows points into args->attrs. */
void bags_fill(const struct op_args *args, int nranks, struct rings_product *out);
/* Where two ranks' headers differ in what only this operator has. */
void bags_other_text(const struct rings_failure *f, char text[FCC_TEXT_MAX]);
/* False: the reason is none that only this operator has. */
bool bags_failure_text(const struct rings_failure *f, char text[FCC_TEXT_MAX], int *status);

#endif
