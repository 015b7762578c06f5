/* SPDX-License-Identifier: MIT
 *
 * none.c - the empty compute: the ranks only meet; of rings also what all of them have. The plan is the single wait that plan_make() adds to
 * every plan without slices.
 */
#include "kernels/plan/program.h"
#include "kernels/plan/tensor.h"

#include <errno.h>

enum { LIBRARY_MOST = 3 }; /* PIECES_WISH */

static int none_check(const struct op_args *args, int nranks, int rank, struct error *e)
{
    size_t count;
    const int64_t *library = op_attr(args, FCC_ATTR_LIBRARY, &count);

    (void)nranks;
    (void)rank;
    if (library && (count != 1 || *library < 0 || *library > LIBRARY_MOST))
        return error_set(e, -EINVAL, "library: allowed is one number, 0 to %d", LIBRARY_MOST);
    return args_check(args, e);
}

/* What all ranks have of the vendor's library of products, and beyond it (enum pieces_level). */
static int64_t library_match(const struct op_args args[], int nranks)
{
    int64_t all = LIBRARY_MOST;

    for (int r = 0; r < nranks; r++) {
        size_t count;
        const int64_t *library = op_attr(&args[r], FCC_ATTR_LIBRARY, &count);
        all = !library ? 0 : *library < all ? *library : all;
    }
    return all;
}

static int none_match(const struct op_args args[], int nranks, struct problem *out, struct error *e)
{
    out->dim[DIM_N] = library_match(args, nranks);
    return match_schedule(args, nranks, e);
}

static struct work none_work(const struct problem *problem, int rank)
{
    (void)problem;
    (void)rank;
    return (struct work){0};
}

const struct compute_ops compute_none = {.check = none_check, .match = none_match, .work = none_work};

static void none_plan(const struct problem *problem, int rank, const struct compute_ops *compute, struct plan_builder *b)
{
    (void)problem;
    (void)rank;
    (void)compute;
    b->plan->schedule.route = PLAN_FLAT;
}

const struct exchange_ops exchange_none = {.plan = none_plan};
