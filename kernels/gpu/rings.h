/* SPDX-License-Identifier: MIT
 *
 * rings.h - collectives and products that the ranks' own kernels run on the GPUs of one node: a call, and the memory through which ranks
 * exchange data. Plain C and C++.
 *
 * Each rank has such memory (the packet memory of a bound operator, bound.h), which the others store into; inputs and results are touched
 * by their own rank only, so they may lie anywhere. One memory serves all collectives and products of a communicator, of any size and dtype.
 *
 * Runs are counted on the GPU. Each kernel is a run, and so has the next number, whoever launches it: the host or a graph.
 *
 *   headers   What a rank is about to do in the run: struct rings_header. Ranks store theirs at all others first. Whoever has another
 *             rank's knows that this one has finished the run before, and whether both do the same.
 *   packets   Small parts. Eight bytes of data travel as two words, each with its run's stamp (struct gpu_stamped), so they need no flag.
 *             Runs alternate between two halves: a rank sends run n's when it knows that the receiver has begun run n - 1, so that this one
 *             has finished n - 2, which used the same half.
 *   pieces    Large parts. Each channel, which is a workgroup at both ends, has a ring of pieces for each other rank; `full` counts at the
 *             receiver what has come, `free` at the sender what has been taken. Both contain the run, so they never go back. A rank sends
 *             only when it has the receiver's header of the same run: until then the receiver may still take pieces of the run before.
 *             Hopper's copy engine moves them (device/exchange/rings_bulk.h), elsewhere all threads do.
 *   lines     Large parts, instead of pieces, of two ranks that NVLink joins, but not where all ranks know that the whole is longer than
 *             RINGS_LINES_MOST: 120 bytes of data and a stamp, stored at once by eight lanes (device/exchange/rings_lines.h). Runs alternate between two
 *             halves, as with packets.
 *
 * Reductions of large vectors take two steps: each owner of a chunk gets all ranks' terms (pieces of step 0), combines them in rank order
 * and sends the result to whoever gets it (step 1). Of two ranks whoever gets the whole result reduces all of it, in one step. Where there is one step,
 * two workgroups of each channel reduce, a half of each piece each (`twins`): one alone is slower than the link. Of small
 * ones each rank that gets the result gets all terms, as packets.
 *
 * Products (gemv_all_reduce) are run by the kernels of kernels/gpu/device/compute/gemv.hip (kernels/gpu/device/through_rings.h). In one
 * step each rank sends each partial sum to all ranks, as a packet (struct gpu_stamped), and adds all ranks' in rank order. In two steps, of
 * more than two ranks and large results, a partial sum goes to the rank that reduces its column, which sends the result to all others, as
 * packets, too. Where a packet lies
 * depends on M, N and the number of ranks alone. So ranks agree on nothing before a run: neither the K of the others nor their kernels, tiles and
 * numbers of workgroups matter. Each rank makes what a shape needs by itself, and keeps it. A product whose packets do not fit
 * into the memory for them is computed in parts, some columns each, which are runs of their own.
 *
 * all_reduce with an epilogue is a product that has no w (`copies`): the ranks add up the rows of x, which travel as packets of 16 bytes
 * (device/exchange/rings_rows.h).
 *
 * Products whose rows go to the ranks (gemm_all_to_all) are run by the kernels of kernels/gpu/device/compute/gemm.hip. Rows for another rank
 * are stored into its landing memory (kernels/plan/exchange/landing.h), out of which its own kernel moves them into its result. The header says how many
 * rows there are for each rank, so ranks need not know that before a run either. embedding_all_to_all goes the same way
 * (kernels/gpu/device/compute/bag.hip): its rows are the receiver's samples, and the header says how many tables the sender has. Whoever finds a wrong
 * offset or index gives the run up, and says on all ranks which one.
 *
 * Counts may lie in the rank's memory, where an earlier kernel has stored them: only the workgroups of the run read them, so a graph can replay
 * it with others. What is decided before, the kernel and its number of workgroups, depends on the lengths of the rank's own vectors, which are
 * bounds then. A part that is longer than packets can be does not fit into a result whose kernel takes packets alone, so both ends of
 * a part agree. The headers say what each rank sends, as always, and receivers store that for whoever follows on their stream.
 *
 * The host hears only of collectives that wait for long, and of runs that were given up (struct fcc_binding: begun, ended, until): a kernel
 * ends when its stores have reached the host, which takes as long as a small collective. Each run has a record in its rank's memory, which the worker reads (run_record.h).
 */
#ifndef FCC_KERNELS_GPU_RINGS_H
#define FCC_KERNELS_GPU_RINGS_H

#include "kernels/gpu/abi.h"
#include "kernels/gpu/whole_rows.h"
#include "kernels/plan/exchange/rings.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RINGS_PIECES_LEAST (UINT64_C(4) << 20)

#ifdef __cplusplus
static_assert(RINGS_RANKS == GPU_MAX_GPUS, "one rank on each GPU");
#endif

/* Whether a reduction of such vectors takes one step. */
RINGS_FUNCTION bool rings_at_once(uint32_t nranks, uint64_t bytes)
{
    return bytes <= rings_packets_most(nranks) && bytes * (nranks - 1) <= rings_packet_bytes(nranks);
}

/* A call. Lengths, counts and places are in elements. What every kernel reads stands together: each line of it takes time to load. */
struct gpu_collective {
    uint32_t op, dtype, reduction, root;
    uint32_t in_share, out_share; /* enum vector_share */
    uint32_t element_bytes;
    uint32_t reduces; /* 1: EXCHANGE_REDUCE; 0: EXCHANGE_PUT */
    uint32_t number;  /* of the call, 1 or more: no two calls that are under way at a time have the same */
    uint32_t rows;    /* of a product without columns, which moves nothing, and of rows that the ranks add up: M; 0: another */
    uint32_t numbers; /* of these, as rings_product.numbers; of products in pieces rings_pieces_numbers() */
    uint32_t continues;                /* 1: it is the same call as the run before it. If that was given up, this is no run */
    uint64_t in, out;                  /* addresses in this process; 0: the rank has none */
    int64_t in_elements, out_elements; /* 0: the rank has none */
    int64_t
        place; /* where the rank's part lies in its whole vector, in elements from the begin, and one: in place. 0: apart from it */
    int64_t row_elements; /* of all_to_all, the same on all ranks; 0: the collective has no rows */
    /* Addresses in this process of [nranks] numbers of rows each; 0: none. `counts`: what goes to each rank, which the kernel reads when it
     * begins; `send` is not used then. `received`: where it stores what has come from each */
    uint64_t counts, received;
    int64_t rows_most;             /* that `counts` may have together */
    char refusal[RINGS_TEXT];      /* not empty: the rank gives the run up, for all ranks, with this text */
    int64_t send[RINGS_RANKS];     /* of collectives with counts: elements for each rank, which follow each other in `in` */
    int64_t expected[RINGS_RANKS]; /* ... and from each rank; -1: any number */
};

/* What embedding_all_to_all has besides. Its tables are `w`, N is the columns of all its tables, M the batch, rows[] its samples for each rank, and y
 * [samples of this rank][all ranks' tables][dim], with the distances of samples (y_stride) and of tables. */
struct rings_bags {
    const int64_t *table_rows; /* [ntables], not used after the call */
    uint32_t ntables, flags;   /* GPU_INDEX_WIDE, GPU_POOL_MEAN */
    int64_t dim, nnz, table_stride;
    int64_t tables; /* of all ranks, in y */
    uint64_t indices, offsets, weights;
};

/* A product, or embedding_all_to_all. Strides are in elements. Either the ranks add up what they compute: y = the sum over the ranks of x . w^T, and what the epilogue
 * adds, which is the same on all ranks. Or (`puts`) x . w, with what the epilogue adds on this rank, is sent to the ranks by rows: y is what
 * comes from rank 0, then what comes from rank 1, ... */
struct rings_product {
    uint32_t op, dtype;
    uint32_t number;   /* of the call, as of a collective */
    uint32_t captured; /* 1: a graph may use what the call needs as long as the rings are open */
    uint32_t puts;
    uint32_t copies;    /* 1: there is no w, the rows are those of x */
    uint32_t reduction; /* of rows that are added up (copies, and not puts): enum fcc_reduction, how */
    uint32_t
        library; /* of sums: 1: each rank's product is the vendor's library's, whose rows are added up as those of x are with `copies` */
    int64_t m, n, k;  /* k: this rank's. m: of puts, too */
    uint64_t x, w, y; /* addresses in this process; x and w: 0 if they have no elements */
    int64_t x_stride, w_stride, y_stride;
    /* The epilogue's stages of each element, as gpu_input has them. With rows stages y is where the rounded sums go, and
     * `whole_rows` what follows; its `wide`, added_bias and residual are 0 */
    uint64_t bias, residual, gate; /* 0: absent */
    int64_t residual_stride, gate_stride;
    uint32_t activation;
    float scale;
    uint32_t
        stages; /* those of the epilogue's that are no factors' scales, a bit (1 << enum stage) each, which the ranks compare: 8 bits */
    uint32_t numbers; /* epilogue_hash(), likewise */
    struct gpu_rows whole_rows;
    int64_t rows[RINGS_RANKS];     /* of puts: for each rank, which follow each other in x */
    int64_t expected[RINGS_RANKS]; /* ... and from each rank; -1: any number */
    int64_t room;                  /* of puts: rows of y */
    struct rings_bags bags;        /* embedding_all_to_all; bags.table_rows NULL: another one */
    uint32_t continues; /* as that of a collective. Then there are no rows stages, unless `library` or `copies` is 1 */
    uint32_t factors;   /* enum factors, the same on all ranks. FACTORS_BATCH_INVARIANT: of rows that are added up, too */
    struct gpu_factor_scales scales;
};

/* gemm_reduce_scatter, gemm_all_reduce and all_gather_gemm: a product by the vendor's library, with the exchange in pieces beside it, or before or behind it; or by one
 * kernel with the exchange tile by tile.
 * Addresses in this process; strides are in elements, last strides 1. */
struct rings_pieces {
    uint32_t op, dtype;
    uint32_t number;     /* of the call, as of a collective */
    uint32_t sequential; /* enum pieces_way (device/tiles/tiles_order.h), the same on all ranks */
    uint32_t gathers;    /* 1: a has rows[rank] rows, and c m */
    uint32_t scatters;   /* 1: a has m rows, and c rows[rank]. Neither: both have m */
    uint32_t
        by_library; /* 1: of what is gathered by tiles, this rank may multiply by the library instead; of no concern to other ranks */
    uint32_t continues; /* as that of a collective. But c is stored into whether the run before was given up or not */
    int64_t m, n, k;    /* of sums k, of what is gathered n is this rank's */
    uint64_t a, b, c, gathered;
    int64_t a_stride, b_stride, c_stride, gathered_stride;
    int64_t rows[RINGS_RANKS]; /* that each rank owns; of what is gathered, of more than two ranks, this rank's alone */
};
/* Whether two ranks do best in pieces. What is the same on both decides: `bytes` go to the other rank. */
static inline bool rings_pieces_suit(uint32_t nranks, uint64_t bytes)
{
    return nranks == 2 && bytes >= RINGS_PIECES_LEAST;
}
/* Bytes of a row of what is exchanged, at most: a place has several. */
#define RINGS_PIECES_ROW (UINT64_C(512) << 10)
/* Bytes of the whole A that a rank of more than two, or in sequence, has memory for. */
#define RINGS_GATHERED_MOST ((uint64_t)RINGS_ARRIVALS_BYTES / 2)

/* Bytes of memory of a rank's own in which it makes a run's terms. */
#define RINGS_TERMS_BYTES (UINT64_C(32) << 20)

/* A number of 16 bits that follows from M, the length of a row of what is exchanged, and the rows of the ranks, as far as all know them: ranks compare
 * it. */
RINGS_FUNCTION uint32_t rings_pieces_numbers(const struct rings_pieces *what, uint32_t nranks)
{
    const uint32_t known = what->gathers && nranks != 2 ? 0 : nranks;
    uint64_t hash = (uint64_t)what->m * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)(what->gathers ? what->k : what->n);

    for (uint32_t r = 0; r <= known; r++) {
        hash = (hash ^ hash >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
        hash += r < known ? (uint64_t)what->rows[r] : 0;
    }
    return (uint32_t)((hash ^ hash >> 32) * UINT64_C(0x94d049bb133111eb) >> 48);
}

/* How many runs a sum in sequence is, each of some rows: what is the same on all ranks decides. All else is one run. */
RINGS_FUNCTION int64_t rings_pieces_runs(const struct rings_pieces *what, uint32_t nranks)
{
    const uint64_t row = (uint64_t)what->n * (what->dtype == FCC_F32 ? 4 : 2);

    if (!what->sequential || what->gathers || what->m == 0 || row == 0)
        return 1;
    /* Scattered, a run has at worst a row more of each rank, and behind them lie results whose rows do not lie side by side. */
    const uint64_t fit = what->scatters ? RINGS_TERMS_BYTES / 2 / row - nranks : RINGS_TERMS_BYTES / row;
    return (int64_t)(((uint64_t)what->m + fit - 1) / fit);
}

/* What a product's header has in the place of a root, but for rings_rows_root(). */
static inline uint32_t rings_product_root(const struct rings_product *what)
{
    return rings_factors(what->factors, what->scales.of[0].at != 0, what->scales.of[1].at != 0);
}

#ifdef __cplusplus
}
#endif
#endif
