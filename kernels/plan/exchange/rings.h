/* SPDX-License-Identifier: MIT
 *
 * rings.h - the memory of rings, through which the ranks' own kernels run collectives and products on the GPUs of one node:
 * kernels/gpu/rings.h says how. Plain C and C++.
 */
#ifndef FCC_KERNELS_PLAN_EXCHANGE_RINGS_H
#define FCC_KERNELS_PLAN_EXCHANGE_RINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/plan/exchange/landing.h"
#include "kernels/plan/exchange/run_record.h"

#if defined(__CUDACC__) || defined(__HIPCC__)
#define RINGS_FUNCTION static inline __host__ __device__
#else
#define RINGS_FUNCTION static inline
#endif

#define RINGS_RANKS 16
#define RINGS_CHANNELS 32u
#define RINGS_STEPS 2u
/* Pieces of a ring: twice as many as are on their way from a sender's first store until it hears that a piece was taken, which takes some 20 us on two H200. */
#define RINGS_DEPTH 8u
/* Lines (kernels/gpu/device/exchange/rings_lines.h), of two ranks: the waves of a kernel; units of a wave's ring; bytes of a unit, and of the data in it. */
#define RINGS_LINES_WAVES 768u
#define RINGS_LINES_DEPTH 8u
#define RINGS_LINES_UNIT 2048u
#define RINGS_LINES_DATA (RINGS_LINES_UNIT / 16 * 15)
/* Of the whole, where all ranks know how long it is: beyond, the stamps of lines cost more than pieces do, which take longer to begin and to end. */
#define RINGS_LINES_MOST (64u << 20)
#define RINGS_PRODUCT_BYTES (16u << 20) /* of a rank's packets of a product, of all ranks together, in each of two halves */
#define RINGS_ONE_STEP_BYTES (1u << 20) /* of all ranks' packets of a product, if each goes to all ranks */
#define RINGS_ROWS_BYTES (8u << 20) /* of the packets from all other ranks of rows that are added up, in each of two halves */
/* Of landing memory, at least: what a rank uses itself while nothing comes there. It holds the workspace of the vendor's library (32 MiB), and rows of a
 * product that are added up next, of two ranks as many as the memory for their packets holds: these have 12 bytes of data in 16. */
#define RINGS_SCRATCH_BYTES ((32u << 20) + RINGS_ROWS_BYTES / 16 * 12)
#define RINGS_PRODUCT_LINE 64 /* columns of a product that is computed in parts: each but the last has a multiple of so many */
#define RINGS_FLOWS 2u        /* of products in pieces: terms; results */
#define RINGS_PIECES_MOST 63u /* of a flow, in a run */
#define RINGS_ARRIVALS_BYTES (64u << 20)       /* of a rank's memory for the pieces of products that come from the other rank */
#define RINGS_ELEMENTS_MOST (INT64_C(1) << 46) /* of a vector: less than what a header has room for */

/* What a rank does in a run, as four words. The upper 16 bits of each are the lower ones of the run. `what`: rings_what(). `whole`: elements of
 * the whole vector; RINGS_UNKNOWN: the rank does not know. `own`: of collectives in which each rank has a part, elements of its part; of
 * those with counts, elements that it has for the receiver of the header. Of products `whole` is N, `own` is M, or the rows for the receiver of
 * the header, the epilogue's stages stand in the place of the reduction, and a hash of its numbers above the operator. Of embedding_all_to_all they are rings_bags_whole() and
 * rings_bags_own().
 * Of collectives with rows `whole` is the elements of a row. `wants`: of collectives with counts, elements that it expects of the receiver; RINGS_UNKNOWN: any
 * number. So both ends find that they differ. */
struct rings_header {
    uint64_t what, whole, own, wants;
};
#define RINGS_UNKNOWN ((UINT64_C(1) << 48) - 1)

RINGS_FUNCTION uint64_t rings_what(uint32_t op, uint32_t dtype, uint32_t reduction, uint32_t root)
{
    return (uint64_t)op << 24 | (uint64_t)dtype << 16 | (uint64_t)reduction << 8 | root;
}

/* In the place of a root of products, and beside rings_rows_root(): what the ranks' factors have in common (enum factors); of those in e4m3 a bit for
 * each that has scales. */
#define RINGS_FACTORS 0x80u
#define RINGS_ROWS_ROOT                                                                                                        \
    0x0fu /* the bits of rings_rows_root(); of products with factors in e4m3 the upper two are those of scales */
RINGS_FUNCTION uint32_t rings_factors(uint32_t factors, bool first_scaled, bool second_scaled)
{
    return factors ? RINGS_FACTORS | factors << 4 | (first_scaled ? 4u : 0) | (second_scaled ? 8u : 0) : 0;
}
RINGS_FUNCTION uint32_t rings_scaled_of(uint64_t what)
{
    return what & RINGS_FACTORS && what >> 4 & 3 ? (uint32_t)(what >> 2 & 3) : 0;
}
RINGS_FUNCTION uint32_t rings_factors_of(uint64_t what)
{
    return what & RINGS_FACTORS ? (uint32_t)(what >> 4 & 7) : 0;
}

/* Of products: `numbers` has 16 bits, of an epilogue, whose stages are 8 bits. */
RINGS_FUNCTION uint64_t rings_what_product(uint32_t op, uint32_t dtype, uint32_t stages, uint32_t numbers, uint32_t root)
{
    return (uint64_t)numbers << 32 | rings_what(op, dtype, stages, root);
}
/* In the place of a collective's root: it has an epilogue, and its header is a product's. */
RINGS_FUNCTION uint32_t rings_rows_root(uint32_t reduction)
{
    return 1 + reduction;
}

/* A word of a header. */
#define RINGS_NUMBER_MASK RINGS_UNKNOWN /* the lower 48 bits */
RINGS_FUNCTION uint64_t rings_stamped(uint64_t run, uint64_t value)
{
    return run << 48 | (value & RINGS_NUMBER_MASK);
}

/* embedding_all_to_all: `whole` has the batch and dim, `own` the samples of the receiver of the header, as the sender divides the batch, and the
 * sender's tables. */
#define RINGS_DIM_MOST 65536u /* a row of one table has a place in landing memory, whatever the number of ranks */
#define RINGS_DIM_BITS 17
#define RINGS_TABLES_BITS 16
RINGS_FUNCTION uint64_t rings_bags_whole(uint64_t batch, uint64_t dim)
{
    return batch << RINGS_DIM_BITS | dim;
}

RINGS_FUNCTION uint64_t rings_bags_own(uint64_t samples, uint64_t tables)
{
    return samples << RINGS_TABLES_BITS | tables;
}

RINGS_FUNCTION uint32_t rings_bags_dim(uint64_t whole)
{
    return (uint32_t)(whole & ((1u << RINGS_DIM_BITS) - 1));
}

RINGS_FUNCTION uint32_t rings_bags_tables(uint64_t own)
{
    return (uint32_t)(own & ((1u << RINGS_TABLES_BITS) - 1));
}

#define RINGS_REFUSES 0xffu /* in the place of an operator's number: the rank gives the run up, and says why to all */

/* Why a run was given up. */
enum rings_why {
    RINGS_WELL,
    RINGS_OTHER,   /* `rank` does something else: theirs, mine */
    RINGS_SUM,     /* the ranks' parts are `theirs.own` elements together: the whole vector has `mine.whole` */
    RINGS_COUNT,   /* `rank` has `theirs.own` elements for `by`, which expects `mine.own` of it */
    RINGS_ROOM,    /* `theirs.own` elements (of products, rows; tables) come: the result has room for `mine.own` */
    RINGS_TWICE,   /* another run of `by` was under way */
    RINGS_REFUSED, /* `by` cannot take part: `text` says why */
    RINGS_SENDS,   /* `by` was to send `mine.own` rows to `rank`, and may send `mine.whole` to all: less than 0, or too many */
    RINGS_SPLIT,   /* `rank` has `theirs.own` samples for `by`, which has `mine.own` (rings_bags_own()) */
    RINGS_PLACE, /* the rank's part, which shares memory with the whole vector, lies `mine.own` elements behind its begin, not `theirs.own` */
    RINGS_DATA, /* `by` has found a wrong number in its data: `data` is a struct gpu_failure */
};
#define RINGS_TEXT 160
#define RINGS_DATA_WORDS 7
struct rings_failure {
    uint64_t run; /* written last */
    uint32_t why, rank, by, zero;
    struct rings_header theirs, mine; /* without the run */
    union {
        char text[RINGS_TEXT];
        uint64_t data[RINGS_DATA_WORDS];
    };
};

/* The beginning of a rank's memory. (The number of runs of products, GPU_FLAG_RUN in kernels/gpu/abi.h, stands beside
 * the failure epoch. A run's number is one more than all runs before it.) */
struct rings_head {
    uint64_t
        inside; /* workgroups that are under way: their number, and above it (RINGS_INSIDE) the sum of their calls' numbers */
    uint64_t begun;      /* collectives that have begun, in RINGS_UNITS of each */
    uint32_t left, zero; /* of a product: workgroups that have ended, and RINGS_LEFT_FAILED for each that has left early */
    uint64_t given_up;   /* the last run that a workgroup of this rank has given up. What follows is aligned to 16 bytes */
    struct rings_header header[2][RINGS_RANKS]; /* of runs of either parity, by the ranks that they are from */
    uint64_t full[RINGS_STEPS][RINGS_CHANNELS][RINGS_RANKS], free[RINGS_STEPS][RINGS_CHANNELS][RINGS_RANKS];
    uint64_t taken
        [RINGS_LINES_WAVES]; /* of lines, by the wave that sends and the one of the same number that takes: units that have been taken */
    /* Of products in pieces: rings_piece_count() of those that have come, and have been used; and of 0, 1, 2, ... pieces of this rank's run, which copy
     * engines store at the other rank. */
    uint64_t come[RINGS_FLOWS], used[RINGS_FLOWS], counts[RINGS_PIECES_MOST + 1];
    struct rings_failure failure[RINGS_RANKS]; /* by the ranks that have found it */
    struct run_record
        records[RUN_RECORDS_RINGS]; /* of the last runs: run n's is [n % RUN_RECORDS_RINGS]; aligned to 16 bytes */
};
#define RINGS_INSIDE 16  /* bits */
#define RINGS_UNITS 384u /* a multiple of the number of workgroups of any collective's kernel */
#define RINGS_LEFT_FAILED (1u << 16)
#define RINGS_PACKETS_AT ((sizeof(struct rings_head) + 255) / 256 * 256)

/* Of a piece, at most. */
RINGS_FUNCTION uint64_t rings_piece_bytes(uint32_t nranks)
{
    return nranks <= 2 ? 64u << 10 : nranks <= 4 ? 32u << 10 : 16u << 10;
}

/* Bytes of a part that travels as packets. On two H200 packets of 1 MB still arrive before pieces would; with more ranks each sends to all. */
RINGS_FUNCTION uint64_t rings_packets_most(uint32_t nranks)
{
    return nranks <= 2 ? 1u << 20 : 256u << 10;
}

/* Of all packets from another rank. */
RINGS_FUNCTION uint64_t rings_packet_bytes(uint32_t nranks)
{
    return 2 * rings_packets_most(nranks);
}

RINGS_FUNCTION uint64_t rings_pieces_at(uint32_t nranks)
{
    return RINGS_PACKETS_AT + 2 * (uint64_t)(nranks - 1) * rings_packet_bytes(nranks);
}

/* Lines: a wave's ring, of runs of either parity. They lie apart: data could look like a stamp. */
RINGS_FUNCTION uint64_t rings_lines_at(uint32_t nranks, uint64_t run, uint32_t wave)
{
    const uint64_t steps = nranks > 2 ? RINGS_STEPS : 1; /* two ranks' pieces take one step */

    return rings_pieces_at(nranks) + steps * RINGS_CHANNELS * (nranks - 1) * RINGS_DEPTH * rings_piece_bytes(nranks) +
           (run % 2 * RINGS_LINES_WAVES + wave) * RINGS_LINES_DEPTH * RINGS_LINES_UNIT;
}

RINGS_FUNCTION uint64_t rings_products_at(uint32_t nranks)
{
    return rings_lines_at(nranks, 0, nranks == 2 ? 2 * RINGS_LINES_WAVES : 0);
}

/* Landing memory. It lies apart from packets: rows that are left over there could look like packets of a later run. */
RINGS_FUNCTION uint64_t rings_landing_at(uint32_t nranks)
{
    return rings_products_at(nranks) + 2 * (uint64_t)RINGS_PRODUCT_BYTES;
}

RINGS_FUNCTION uint64_t rings_landing_bytes(uint32_t nranks)
{
    const uint64_t slots = landing_bytes(nranks);

    return slots > RINGS_SCRATCH_BYTES ? slots : RINGS_SCRATCH_BYTES;
}

/* The words by which receivers tell this rank what they have moved. */
RINGS_FUNCTION uint64_t rings_taken_at(uint32_t nranks)
{
    return rings_landing_at(nranks) + rings_landing_bytes(nranks);
}

/* Packets of whole rows that the ranks add up (kernels/gpu/device/exchange/rings_rows.h). They lie apart from products' packets, whose stamps stand
 * elsewhere: data could look like one. */
RINGS_FUNCTION uint64_t rings_rows_at(uint32_t nranks)
{
    return (rings_taken_at(nranks) + landing_taken_bytes(nranks) + 255) / 256 * 256;
}

/* Bytes of another rank's packets of rows, in each half. */
RINGS_FUNCTION uint64_t rings_rows_slot(uint32_t nranks)
{
    return nranks > 1 ? RINGS_ROWS_BYTES / (nranks - 1) / 256 * 256 : 0;
}

/* Products in pieces (kernels/gpu/plugin/pieces.hip): where the other rank's come. Nothing else lies there, as pieces of a run that was given up may still
 * be on their way when the ranks do something else. */
RINGS_FUNCTION uint64_t rings_arrivals_at(uint32_t nranks)
{
    return (rings_rows_at(nranks) + 2 * (uint64_t)RINGS_ROWS_BYTES + 255) / 256 * 256;
}

/* The value of a word when so many pieces of a run have come, or have been used. */
RINGS_FUNCTION uint64_t rings_piece_count(uint64_t run, uint32_t pieces)
{
    return run << 16 | pieces;
}

/* Bytes of a rank's memory. */
RINGS_FUNCTION uint64_t rings_bytes(uint32_t nranks)
{
    return rings_arrivals_at(nranks) + RINGS_ARRIVALS_BYTES;
}

/* Bytes from one rank's packets of a product to those of the next, in each half. The same for all shapes: so what a rank stores there, perhaps
 * late in a run that was given up, or twice, never lies where another rank stores in a later run. */
RINGS_FUNCTION uint64_t rings_product_slot(uint32_t nranks)
{
    return RINGS_PRODUCT_BYTES / nranks / 256 * 256;
}

/* Whether each rank reduces some of the columns, and sends the results to the others (two steps); otherwise each rank reduces all. Two ranks would
 * send about as much, and wait longer. */
RINGS_FUNCTION bool rings_product_in_two_steps(uint32_t nranks, uint64_t m, uint64_t n)
{
    return nranks > 2 && m * n * 8 * nranks > RINGS_ONE_STEP_BYTES;
}

/* The most columns of a product that are computed in one run. In two steps a rank's packets are a partial sum, of 8 bytes, and a result, of 4 or 8, of
 * each of its columns. */
RINGS_FUNCTION uint64_t rings_product_columns(uint32_t nranks, uint64_t m, bool two_steps)
{
    const uint64_t columns = rings_product_slot(nranks) / (two_steps ? 16 : 8) / m / RINGS_PRODUCT_LINE * RINGS_PRODUCT_LINE;

    return two_steps ? columns * nranks : columns;
}

#endif
