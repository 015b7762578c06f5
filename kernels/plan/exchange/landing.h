/* SPDX-License-Identifier: MIT
 *
 * landing.h - how the rows that a rank computes for another one get there through rings (kernels/gpu/rings.h): in parts, into the receiver's
 * landing memory, out of which the receiver's own kernel moves them into its result, which so may lie anywhere. Plain C and C++.
 *
 * Each rank has landing memory. It is divided into slots, one for each other rank, and a slot into places. Part p lies in place
 * p % LANDING_PLACES, so a part is stored when the part LANDING_PLACES before it has been moved. The receiver moves a part in pieces, each by
 * a workgroup, which tells the sender. Runs do not overlap: a rank stores at another one when that has begun the same run.
 *
 * Where a row lies depends on the number of rows for that rank, N, the element's size and the number of ranks alone, which both ends know: the
 * header of the run (exchange/rings.h) has the number of rows, and of embedding_all_to_all that of tables: a row is then what a rank's tables have
 * for a sample, and a part has whole tables.
 */
#ifndef FCC_KERNELS_PLAN_EXCHANGE_LANDING_H
#define FCC_KERNELS_PLAN_EXCHANGE_LANDING_H

#include <stdint.h>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define LANDING_FUNCTION static inline __host__ __device__
#else
#define LANDING_FUNCTION static inline
#endif

#define LANDING_BYTES (64u << 20) /* of a rank's landing memory, had it a slot for itself, too */
#define LANDING_PLACES 16u
#define LANDING_PIECES 32u /* of a part */
#define LANDING_ROWS 512u  /* of a part, at most */
#define LANDING_COLUMNS                                                                                                        \
    64u /* of products: a part's are a multiple of so many, and of LANDING_TILE where a place has room for that */
#define LANDING_TILE 256u    /* columns of the widest tile that a GPU computes */
#define LANDING_FLAGS 16384u /* of a rank: one for each part of each other rank that comes in a run */

/* The parts of the rows for one rank: each has `rows` rows and `cols` columns, but those at the ends have fewer. Part p begins at row
 * p % down * rows and column p / down * cols: parts that are under way at a time share columns, so that they read the same of b. In its place its
 * rows are `cols` elements apart. */
struct landing_parts {
    uint32_t rows, cols, down;
    uint32_t count; /* 0: there are no rows, or no columns */
};

LANDING_FUNCTION uint32_t landing_place_bytes(uint32_t nranks)
{
    return LANDING_BYTES / nranks / LANDING_PLACES / 256 * 256;
}

/* Offset of the slot of another rank. */
LANDING_FUNCTION uint64_t landing_slot_at(uint32_t nranks, uint32_t receiver, uint32_t sender)
{
    return (uint64_t)(sender - (sender > receiver)) * LANDING_PLACES * landing_place_bytes(nranks);
}

/* Bytes of a rank's slots. */
LANDING_FUNCTION uint64_t landing_bytes(uint32_t nranks)
{
    return (uint64_t)(nranks - 1) * LANDING_PLACES * landing_place_bytes(nranks);
}

/* Parts of one sender, at most. */
LANDING_FUNCTION uint32_t landing_parts_most(uint32_t nranks)
{
    return LANDING_FLAGS / nranks;
}

/* The flag that says that a part has come. */
LANDING_FUNCTION uint32_t landing_flag(uint32_t nranks, uint32_t sender, uint32_t part)
{
    return sender * landing_parts_most(nranks) + part;
}

/* size: bytes of an element. rows and n: below 2^31. granule: a part's columns, and a piece's, are a multiple of so many: LANDING_COLUMNS, or a
 * table's, of which a place has room for one row at least. place_bytes: landing_place_bytes(). GPUs compute this, so it divides numbers of 32 bits
 * only. */
LANDING_FUNCTION struct landing_parts landing_parts_of(uint32_t place_bytes, uint32_t rows, uint32_t n, uint32_t size,
                                                       uint32_t granule)
{
    struct landing_parts parts = {0, 0, 0, 0};

    if (rows == 0 || n == 0)
        return parts;
    const uint32_t room = place_bytes / (granule * size); /* rows of one granule */
    parts.rows = rows < LANDING_ROWS ? rows : LANDING_ROWS;
    parts.rows = parts.rows < room ? parts.rows : room;
    const uint32_t most = place_bytes / (parts.rows * size), all = (n + granule - 1) / granule * granule,
                   tile = granule == LANDING_COLUMNS && most >= LANDING_TILE ? LANDING_TILE : granule;
    const uint32_t fit = most / tile * tile;
    parts.cols = fit < all ? fit : all;
    parts.down = (rows + parts.rows - 1) / parts.rows;
    const uint64_t count = (uint64_t)((n + parts.cols - 1) / parts.cols) * parts.down;
    parts.count = count < UINT32_MAX ? (uint32_t)count : UINT32_MAX;
    return parts;
}

/* A rectangle of the rows for one rank. */
struct landing_box {
    uint32_t row, rows, col, cols;
};

LANDING_FUNCTION struct landing_box landing_part_at(const struct landing_parts *parts, uint32_t part, uint32_t rows, uint32_t n)
{
    struct landing_box box;

    box.row = part % parts->down * parts->rows;
    box.col = part / parts->down * parts->cols;
    box.rows = rows - box.row < parts->rows ? rows - box.row : parts->rows;
    box.cols = n - box.col < parts->cols ? n - box.col : parts->cols;
    return box;
}

/* Piece i of a part, in the part: some of its rows, or of few rows some of the columns. It may be empty. */
LANDING_FUNCTION struct landing_box landing_piece_at(const struct landing_box *part, uint32_t i, uint32_t granule)
{
    struct landing_box box = {0, part->rows, 0, part->cols};
    const uint32_t blocks = (part->cols + granule - 1) / granule;
    const uint32_t whole = part->rows >= LANDING_PIECES ? part->rows : blocks;
    const uint32_t first = whole * i / LANDING_PIECES, end = whole * (i + 1) / LANDING_PIECES;

    if (part->rows >= LANDING_PIECES) {
        box.row = first;
        box.rows = end - first;
        return box;
    }
    box.col = first * granule;
    box.cols = end == blocks ? part->cols - box.col : (end - first) * granule;
    return box;
}

/* The word by which a receiver tells that piece i of the part in a place has been moved: its place among those of the sender, and its value,
 * which grows from part to part and from run to run. */
LANDING_FUNCTION uint64_t landing_taken_at(uint32_t receiver, uint32_t part, uint32_t piece)
{
    return (((uint64_t)receiver * LANDING_PLACES + part % LANDING_PLACES) * LANDING_PIECES + piece) * sizeof(uint64_t);
}

LANDING_FUNCTION uint64_t landing_taken(uint64_t run, uint32_t part)
{
    return run << 16 | (part / LANDING_PLACES + 1);
}

LANDING_FUNCTION uint64_t landing_taken_bytes(uint32_t nranks)
{
    return landing_taken_at(nranks, 0, 0);
}

#endif
