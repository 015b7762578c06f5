/* SPDX-License-Identifier: MIT
 *
 * tiles_order.h - products whose exchange goes on tile by tile, of two ranks (tiles.hip): which tiles there are, in which order a rank's workgroups take them,
 * and where in the other rank's memory for arrivals they lie. Plain C and C++, as tests follow the same order.
 *
 * A product has two parts, of some rows each and all columns. Of sums these are the other rank's rows, whose tiles are sent, and this rank's own, to which the other
 * rank's are added. Of what is gathered, this rank's rows, and then the other's, as they come. A tile has TILES_ROWS rows; a unit two of them, one below the other,
 * which a cluster of two workgroups multiplies. Units come by bands of some units one below the other, and in a band by columns: those that are
 * multiplied at a time then have much of A and B in common. Where a part's last rows are no more than one tile's, units of two tiles side by side (flat ones) come at
 * its end: below them nothing would be multiplied half of the time.
 *
 * Of what is sent the first groups of units come first, and from then on groups of both parts take turns: so what is sent leaves while own tiles, too, are
 * multiplied. How many groups go ahead is each rank's own choice (tiles_ahead()). Of what is gathered all of the first part comes first. Groups are the same on both
 * ranks, whatever their GPUs are.
 *
 * Slots. Tile t of a part that is sent goes to slot t % slots, and is the slot's t / slots + 1st: the word `come` of the slot says so at the receiver
 * (rings_piece_count()). Who has taken it out says so by `used` at the sender, which waits for that before it stores the slot's next tile.
 *
 * Why nothing deadlocks, if workgroups take positions one after the other and each goes through its own in that order. Give group g of what is sent the value g, and
 * group g of the own part g + ahead - 1/2: a rank's order is that of the values. An own tile waits for a tile that is sent with a smaller value (the same g). A
 * tile that is sent waits for the own tile `slots` before it at the receiver, whose group is at most g - slots / group + ahead - 1/2, which is less than g as
 * ahead groups are not more than there are slots at that receiver. (For one that sends nothing itself take 1 for `ahead`.) A sum that is sent back waits that the one `slots` before it was taken, which waits for nothing but its arrival. So of all tiles that are not
 * done that with the smallest value waits for none; and as positions are taken in order, a workgroup that is there has it, or takes it next. One
 * workgroup on each GPU is enough.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_TILES_ORDER_H
#define FCC_KERNELS_GPU_DEVICE_TILES_ORDER_H

#include "kernels/plan/exchange/rings.h"

#define TILES_ROWS 128u
#define TILES_BAND 8u   /* units of a band */
#define TILES_GROUP 64u /* units: about as many as an H100 or H200 has clusters */
#define TILES_GATHER_BAND 4u
#define TILES_CLUSTERS                                                                                                         \
    66 /* of an H100 or H200. On another GPU the same holds, with tiles that are chosen less well; all ranks choose alike */
#define TILES_BYTES_LEAST (UINT64_C(1) << 20)
#define TILES_RETURNS_LEAST (UINT64_C(4) << 20) /* the same of sums that go back */
#define TILES_AHEAD 2u
#define TILES_AHEAD_ALL 4u
/* From this K on a tile of 128 x 256 is multiplied for as long as as many as an H200 has multiprocessors travel over NVLink (22 us). */
#define TILES_LINK_K 1930
#define TILES_COME_MOST 16 /* pieces of a rank's rows that are gathered */
/* ... of which each is at least so large: a copy and that of its word take some 8 us beside the bytes, and these 43. */
#define TILES_COME_BYTES (UINT64_C(16) << 20)
#define TILES_MOVED_ROWS 16u /* of a tile that came back, which are moved at a time */
#define TILES_WORDS 2048u
/* The end of the memory for arrivals, which products in pieces leave alone: words of the slots, that nothing but tiles' kernels stores to. */
#define TILES_END_BYTES (64u << 10)
#define TILES_ARRIVALS_BYTES (RINGS_ARRIVALS_BYTES - TILES_END_BYTES)

/* What all ranks' processes have (FCC_ATTR_LIBRARY): each includes those before it. */
enum pieces_level {
    PIECES_NONE,
    PIECES_LIBRARY, /* the vendor's library of products */
    PIECES_HOPPER,  /* GPUs on which products by tiles are fast */
    PIECES_WISH,    /* the wish that products go by tiles wherever they can */
};

/* Ways of a product in pieces: rings_pieces.sequential. */
enum pieces_way {
    PIECES_BESIDE,   /* by the vendor's library, with the exchange in pieces beside it */
    PIECES_SEQUENCE, /* one behind the other */
    PIECES_TILES,    /* by one kernel, with the exchange tile by tile */
};

/* What ranks have there. */
struct tiles_words {
    uint64_t come[TILES_WORDS], used[TILES_WORDS]; /* stored by the other rank */
    uint64_t run;                                  /* this rank's own: the number of the run; 0: it was given up as it began */
    uint32_t taken;                                /* positions */
    uint32_t moved;                                /* of gemm_all_reduce: parts of the other rank's sums that have been taken */
    uint32_t come_to;                              /* of kernels that take any matrices: workgroups that have come */
    uint32_t parts[TILES_WORDS]; /* of each slot: parts of the tile in it that have been moved; 0 when all have */
};

struct tiles_part {
    int64_t rows;
    uint32_t high, wide, units; /* units one below the other, but for flat ones; tiles side by side; all units */
};

struct tiles_order {
    struct tiles_part part[2]; /* the one that comes first; the other */
    uint32_t cols;             /* of a tile: 128, 192 or 256 */
    uint32_t band;             /* units */
    uint32_t ahead;            /* groups of the first part before the other's first; at most as many as there are slots for */
    uint32_t slots;            /* of each flow */
    uint32_t positions;        /* some are nothing's: tiles_unit() */
};

#ifdef __cplusplus
static_assert(sizeof(struct tiles_words) <= TILES_END_BYTES, "words");
static_assert(TILES_ARRIVALS_BYTES / (TILES_ROWS * 128 * 2) <= TILES_WORDS, "each slot has words");
#endif

RINGS_FUNCTION uint64_t tiles_slot_bytes(uint32_t cols)
{
    return (uint64_t)TILES_ROWS * cols * 2;
}

RINGS_FUNCTION struct tiles_part tiles_part_of(int64_t rows, int64_t n, uint32_t cols)
{
    const int64_t unit = 2 * TILES_ROWS, left = rows % unit;
    const bool has_flat = left > 0 && left <= (int64_t)TILES_ROWS;
    struct tiles_part p = {rows, (uint32_t)(rows / unit + (left && !has_flat)), (uint32_t)((n + cols - 1) / cols), 0};

    p.units = p.high * p.wide + (has_flat ? (p.wide + 1) / 2 : 0);
    return p;
}

RINGS_FUNCTION uint32_t tiles_groups(const struct tiles_part *part)
{
    return (part->units + TILES_GROUP - 1) / TILES_GROUP;
}

/* Groups of what is sent that come before own ones. All, where these are few and K is so long that they leave as fast as they are multiplied: an own tile then finds
 * the other rank's there. Else what a workgroup has multiplied waits for the link, which own tiles in turn with them make up for: two groups, of which the second is
 * multiplied while the first travels. */
RINGS_FUNCTION uint32_t tiles_ahead(const struct tiles_order *o, int64_t k)
{
    const uint32_t all = tiles_groups(&o->part[0]), most = k >= TILES_LINK_K ? TILES_AHEAD_ALL : TILES_AHEAD;

    return all > most || all > o->slots / 2 / TILES_GROUP ? (all < TILES_AHEAD ? all : TILES_AHEAD) : all;
}

/* flows: of tiles that are sent: 1, or 2 if sums go back; 0: none is, and all of the first part comes first. k: this rank's own. */
RINGS_FUNCTION struct tiles_order tiles_order_of(int64_t first_rows, int64_t other_rows, int64_t n, int64_t k, uint32_t cols,
                                                 uint32_t band, uint32_t flows)
{
    struct tiles_order o;

    o.part[0] = tiles_part_of(first_rows, n, cols);
    o.part[1] = tiles_part_of(other_rows, n, cols);
    o.cols = cols;
    o.band = band;
    o.slots = flows ? (uint32_t)(TILES_ARRIVALS_BYTES / tiles_slot_bytes(cols) / flows) : 0;
    o.slots &= ~1u; /* whole units */
    o.ahead = flows ? tiles_ahead(&o, k) : tiles_groups(&o.part[0]);
    o.positions = (tiles_groups(&o.part[0]) + tiles_groups(&o.part[1])) * TILES_GROUP;
    return o;
}

/* A unit: of which part, and which. False: the position is nothing's. */
RINGS_FUNCTION bool tiles_unit(const struct tiles_order *o, uint32_t position, uint32_t *part, uint32_t *unit)
{
    const uint32_t group = position / TILES_GROUP, first = tiles_groups(&o->part[0]), other = tiles_groups(&o->part[1]);
    const uint32_t left = first - o->ahead, both = left < other ? left : other;
    uint32_t at;

    if (group < o->ahead) {
        *part = 0;
        at = group;
    } else if (group < o->ahead + 2 * both) {
        *part = (group - o->ahead) % 2 == 0;
        at = (group - o->ahead) / 2 + (*part ? 0 : o->ahead);
    } else {
        *part = other > both;
        at = *part ? group - o->ahead - both : group - both;
    }
    *unit = at * TILES_GROUP + position % TILES_GROUP;
    return *unit < o->part[*part].units;
}

/* How often all clusters multiply a unit. */
RINGS_FUNCTION int64_t tiles_rounds(int64_t first_rows, int64_t other_rows, int64_t n, uint32_t cols)
{
    const int64_t units = (int64_t)tiles_part_of(first_rows, n, cols).units + tiles_part_of(other_rows, n, cols).units;

    return (units + TILES_CLUSTERS - 1) / TILES_CLUSTERS;
}

/* How long a round of tiles of so many columns takes, in percent of one of 256: small tiles read more for what they multiply. */
RINGS_FUNCTION int64_t tiles_round_percent(uint32_t cols)
{
    return cols == 128 ? 60 : cols == 192 ? 79 : 100;
}

/* Columns of a product's tiles. Both ranks know each other's rows and, of sums, N; of what is gathered each its own N. Large tiles read less for what they multiply; small
 * ones leave fewer multiprocessors without any in the last round. */
RINGS_FUNCTION uint32_t tiles_columns(int64_t first_rows, int64_t other_rows, int64_t n)
{
    uint32_t best = 256;

    for (uint32_t cols = 192; cols >= 128; cols -= 64)
        if (tiles_rounds(first_rows, other_rows, n, cols) * tiles_round_percent(cols) <
            tiles_rounds(first_rows, other_rows, n, best) * tiles_round_percent(best))
            best = cols;
    return best;
}

/* Whether a product of two ranks can go by tiles, as far as all ranks know it: rows of what is exchanged whose elements the copy engine takes. row: elements of one; size:
 * bytes of an element. */
RINGS_FUNCTION bool tiles_can(int64_t m, int64_t row, uint64_t size)
{
    return size == 2 && row > 0 && row % 8 == 0 && m > 0;
}

/* Of what is gathered: how many runs it is, each of some rows of either rank, as those that come lie there all at a time. rows: the most that a rank has. */
RINGS_FUNCTION int64_t tiles_gather_runs(int64_t rows, int64_t row)
{
    const int64_t most = (int64_t)(TILES_ARRIVALS_BYTES / ((uint64_t)row * 2));

    return rows > most ? (rows + most - 1) / most : 1;
}

/* Whether it then takes less time that way than in pieces, or in sequence: with as many rows as a unit has, and enough that moves. returns: sums go back. */
RINGS_FUNCTION bool tiles_pay(int64_t m, uint64_t bytes, bool returns)
{
    return m >= 4 * (int64_t)TILES_ROWS && bytes >= (returns ? TILES_RETURNS_LEAST : TILES_BYTES_LEAST);
}

/* Whether a sum's rows on the ranks fill tiles well. What tiles have more than these is multiplied all the same: from a twelfth on the library takes less time, in pieces,
 * but for short products, whose pieces cost more. */
RINGS_FUNCTION bool tiles_fit(int64_t first_rows, int64_t other_rows)
{
    const int64_t tile = TILES_ROWS, m = first_rows + other_rows,
                  all = ((first_rows + tile - 1) / tile + (other_rows + tile - 1) / tile) * tile;

    return m < 8 * tile || all * 100 <= m * 108;
}

/* How a tile stands in its slot, as it leaves a workgroup's shared memory (gemm_shape::BOXES): bytes from the slot's begin to number `chunk` of a row's 16
 * bytes. */
RINGS_FUNCTION uint32_t tiles_place_in_slot(uint32_t row, uint32_t chunk)
{
    const uint32_t box = chunk / 8 * 2 + row / 64, half = row / 8 % 2;

    return box * 8192 + half * 4096 + row / 16 % 4 * 1024 + row % 8 * 128 + (chunk % 8 ^ row % 8) * 16;
}

/* Of what is gathered: elements from one row to the next, where they come. */
RINGS_FUNCTION int64_t tiles_row(int64_t k)
{
    return (k + 7) / 8 * 8;
}

/* ... and rows of a piece, of `row` elements each: whole units, and no more pieces than a run may count, nor smaller ones than pay. */
RINGS_FUNCTION int64_t tiles_come_rows(int64_t rows, int64_t row)
{
    const int64_t unit = 2 * (int64_t)TILES_ROWS, units = (rows + unit - 1) / unit,
                  least = (units + TILES_COME_MOST - 1) / TILES_COME_MOST, bytes = unit * row * 2,
                  large = ((int64_t)TILES_COME_BYTES + bytes - 1) / bytes;

    return (least > large ? least : large) * unit;
}

/* Whether a unit's tiles stand side by side. */
RINGS_FUNCTION bool tiles_is_flat(const struct tiles_order *o, uint32_t part, uint32_t unit)
{
    return unit >= o->part[part].high * o->part[part].wide;
}

/* Where a tile begins in its part: its number is 2 * unit, or one more for the lower one, or of a flat unit the right one. False: it is not there, as a unit at the end may
 * have only one. */
RINGS_FUNCTION bool tiles_place(const struct tiles_order *o, uint32_t part, uint32_t tile, uint32_t *row, uint32_t *col)
{
    const struct tiles_part *p = &o->part[part];
    const uint32_t unit = tile / 2, all = p->high * p->wide;

    if (tiles_is_flat(o, part, unit)) {
        const uint32_t at = 2 * (unit - all) + tile % 2;
        *row = p->high * 2 * TILES_ROWS;
        *col = at * o->cols;
        return at < p->wide;
    }
    const uint32_t band = unit / (o->band * p->wide), within = unit % (o->band * p->wide), left = p->high - band * o->band,
                   high = left < o->band ? left : o->band;

    *row = (band * o->band + within % high) * 2 * TILES_ROWS + tile % 2 * TILES_ROWS;
    *col = within / high * o->cols;
    return *row < p->rows;
}

RINGS_FUNCTION bool tiles_is_there(const struct tiles_order *o, uint32_t part, uint32_t tile)
{
    uint32_t row, col;

    return tiles_place(o, part, tile, &row, &col);
}

/* Of a tile that is there: how many parts of TILES_MOVED_ROWS it has. */
RINGS_FUNCTION uint32_t tiles_moved_parts(const struct tiles_order *o, uint32_t part, uint32_t row)
{
    const int64_t left = o->part[part].rows - row, rows = left < (int64_t)TILES_ROWS ? left : (int64_t)TILES_ROWS;

    return (uint32_t)((rows + TILES_MOVED_ROWS - 1) / TILES_MOVED_ROWS);
}

/* The tile that its slot had before. False: none. */
RINGS_FUNCTION bool tiles_before(const struct tiles_order *o, uint32_t part, uint32_t tile, uint32_t *before)
{
    for (*before = tile; *before >= o->slots;) {
        *before -= o->slots;
        if (tiles_is_there(o, part, *before))
            return true;
    }
    return false;
}

/* Which of its slot's tiles a tile is, as the words say. */
RINGS_FUNCTION uint64_t tiles_count(const struct tiles_order *o, uint64_t run, uint32_t tile)
{
    return rings_piece_count(run, tile / o->slots + 1);
}

#endif
