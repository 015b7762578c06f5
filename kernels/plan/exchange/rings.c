/* SPDX-License-Identifier: MIT
 *
 * rings.c - the memory through which ranks' own kernels run collectives: rings.h. The worker only makes it; who launches
 * what through it, it learns from the words of the binding.
 */
#include "kernels/plan/exchange/rings.h"

#include "kernels/plan/program.h"

static void rings_plan(const struct problem *problem, int rank, const struct compute_ops *compute, struct plan_builder *b)
{
    (void)rank;
    (void)compute;
    b->plan->schedule.route = PLAN_FLAT;
    b->plan->transport = TRANSPORT_FLAGS;
    b->plan->packet_bytes =
        (rings_bytes((uint32_t)problem->nranks) / 2 + 255) / 256 * 256; /* of each half: runs do not alternate here */
}

const struct exchange_ops exchange_rings = {.plan = rings_plan};
