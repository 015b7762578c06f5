/* SPDX-License-Identifier: MIT
 *
 * products_errors.c - what products' ranks are told where they differ (rings_errors.c: collectives').
 */
#include <inttypes.h>
#include <stdio.h>

#include "client/stream/bags.h"
#include "client/stream/rings.h"
#include "kernels/plan/compute/vector.h"
#include "kernels/plan/epilogue.h"

/* The same of all_reduce with an epilogue, which in the place of a root has rings_rows_root(). False: they differ as products may. */
static bool rows_other_text(const struct rings_failure *f, char text[FCC_TEXT_MAX])
{
    const uint32_t theirs = (uint32_t)f->theirs.what & RINGS_ROWS_ROOT, mine = (uint32_t)f->mine.what & RINGS_ROWS_ROOT;

    if (!theirs != !mine)
        (void)snprintf(text, FCC_TEXT_MAX, "epilogue: rank %u has %s, rank %u has %s", f->rank, theirs ? "one" : "none", f->by,
                       mine ? "one" : "none");
    else if (theirs != mine)
        (void)snprintf(text, FCC_TEXT_MAX, "reduction: rank %u has %s, rank %u has %s", f->rank,
                       reduction_name((int64_t)theirs - rings_rows_root(0)), f->by,
                       reduction_name((int64_t)mine - rings_rows_root(0)));
    else if (f->theirs.what == f->mine.what && f->theirs.whole != f->mine.whole)
        (void)snprintf(text, FCC_TEXT_MAX, "epilogue: elements of a row: rank %u has %" PRIu64 ", rank %u has %" PRIu64,
                       f->rank, f->theirs.whole, f->by, f->mine.whole);
    else if (f->theirs.what == f->mine.what)
        (void)snprintf(text, FCC_TEXT_MAX, "in: rank %u has %" PRIu64 " elements, rank %u's in has %" PRIu64, f->rank,
                       f->theirs.own * f->theirs.whole, f->by, f->mine.own * f->mine.whole);
    else
        return false;
    return true;
}

/* Factors of other dtypes, scales or batch invariance of one of two ranks. False: they differ in something else. */
static bool factors_other_text(const struct rings_failure *f, const struct op_spec *op, char text[FCC_TEXT_MAX])
{
    const uint32_t theirs = rings_factors_of(f->theirs.what), mine = rings_factors_of(f->mine.what), differ = theirs ^ mine;
    const uint32_t scales = rings_scaled_of(f->theirs.what) ^ rings_scaled_of(f->mine.what);
    static const char other[] = "the result's dtype";

    for (int i = 0; i < op->result; i++)
        if (differ >> i & FACTORS_FIRST_F8) {
            (void)snprintf(text, FCC_TEXT_MAX, "%s: dtype: rank %u has %s, rank %u has %s", op->tensors[i].name, f->rank,
                           theirs >> i & FACTORS_FIRST_F8 ? dtype_name(FCC_F8E4M3) : other, f->by,
                           mine >> i & FACTORS_FIRST_F8 ? dtype_name(FCC_F8E4M3) : other);
            return true;
        }
    for (int i = 0; i < op->result; i++)
        if (scales >> i & 1) {
            (void)snprintf(text, FCC_TEXT_MAX, "%s: rank %u has %s, rank %u has %s", epilogue_specs[STAGE_X_SCALE + i].name,
                           f->rank, rings_scaled_of(f->theirs.what) >> i & 1 ? "one" : "none", f->by,
                           rings_scaled_of(f->mine.what) >> i & 1 ? "one" : "none");
            return true;
        }
    if (differ & FACTORS_BATCH_INVARIANT)
        (void)snprintf(text, FCC_TEXT_MAX, "schedule: rank %u has %s, rank %u has %s", f->rank,
                       invariance_name(theirs & FACTORS_BATCH_INVARIANT), f->by,
                       invariance_name(mine & FACTORS_BATCH_INVARIANT));
    return differ != 0;
}

void product_other_text(const struct rings_failure *f, const struct op_spec *op, char text[FCC_TEXT_MAX])
{
    const char *result = op->tensors[op->result].name;
    const uint64_t all = f->theirs.what ^ f->mine.what, differ = all & ~UINT64_C(0xff);
    int stage = 0;

    if (op_is_in_pieces(op)) {
        pieces_other_text(f, op, text);
        return;
    }
    if (op->compute == COMPUTE_VECTOR && rows_other_text(f, text))
        return;
    if (op->compute != COMPUTE_BAG && factors_other_text(f, op, text))
        return;

    while (stage < STAGES - 1 && !(differ >> (8 + stage) & 1))
        stage++;
    const bool theirs = f->theirs.what >> (8 + stage) & 1;
    if (op->compute == COMPUTE_BAG && !differ)
        bags_other_text(f, text);
    else if (differ >> 16 & 0xff)
        (void)snprintf(text, FCC_TEXT_MAX, "%s: dtype: rank %u has %s, rank %u has %s", result, f->rank,
                       dtype_name((enum fcc_dtype)(f->theirs.what >> 16 & 0xff)), f->by,
                       dtype_name((enum fcc_dtype)(f->mine.what >> 16 & 0xff)));
    else if (differ >> 8 & 0xff)
        (void)snprintf(text, FCC_TEXT_MAX, "%s: rank %u has %s, rank %u has %s", epilogue_specs[stage].name, f->rank,
                       theirs ? "one" : "none", f->by, theirs ? "none" : "one");
    else if (differ)
        (void)snprintf(text, FCC_TEXT_MAX,
                       "epilogue: norm, norm_eps, activation, scale or quantization: rank %u has other numbers than rank %u",
                       f->rank, f->by);
    else if (all && f->theirs.own == f->mine.own) /* not `auto` on all ranks, which would have chosen the same */
        (void)snprintf(text, FCC_TEXT_MAX, "schedule: rank %u has %s, rank %u has %s", f->rank,
                       f->theirs.what & 0xff ? "sequential, or auto" : "fused", f->by,
                       f->mine.what & 0xff ? "sequential, or auto" : "fused");
    else if (!op_puts_rows(op) && f->theirs.own != f->mine.own)
        (void)snprintf(text, FCC_TEXT_MAX, "%s: shape[0]: rank %u has %" PRIu64 ", rank %u has %" PRIu64, result, f->rank,
                       f->theirs.own, f->by, f->mine.own);
    else
        (void)snprintf(text, FCC_TEXT_MAX, "%s: shape[1]: rank %u has %" PRIu64 ", rank %u has %" PRIu64, result, f->rank,
                       f->theirs.whole, f->by, f->mine.whole);
}
