/* SPDX-License-Identifier: MIT
 *
 * gemm_tiles.h - the tiles in which a GPU computes C_r = A_r . B_r, of which the rows go to the ranks: for plans (gemm.c) and for products
 * through rings (kernels/gpu/plugin/product_puts.hip). Plain C and C++.
 */
#ifndef FCC_KERNELS_PLAN_COMPUTE_GEMM_TILES_H
#define FCC_KERNELS_PLAN_COMPUTE_GEMM_TILES_H

#include <stdbool.h>
#include <stdint.h>

#define GEMM_TILES_WANTED 120  /* a GPU has some 130 multiprocessors */
#define GEMM_ROWS_TOGETHER 128 /* at most, of one tile */
#define GEMM_ROWS_LOW 64       /* of the lower tile that there is */
#define GEMM_SPLIT_COLS 128    /* K is split of tiles of at most so many columns */
#define GEMM_SPLIT_MOST 8      /* workgroups that share a tile's K */

/* Workgroups that share the K of each of `count` tiles: as many as leave all tiles their own at the same time, on a GPU that runs so many. Kernels for GPUs
 * (kernels/gpu/device/compute/gemm.hip) ask besides whether as many clusters have room. */
static inline uint32_t gemm_split_parts(uint32_t count, uint32_t cols, uint32_t workgroups)
{
    uint32_t parts = cols > GEMM_SPLIT_COLS ? 1 : GEMM_SPLIT_MOST;

    while (parts > 1 && (uint64_t)count * parts > workgroups)
        parts /= 2;
    return parts;
}

/* The most rows that go to one destination. */
static inline int64_t gemm_longest_part(const int64_t to[], int nranks)
{
    int64_t longest = 0;

    for (int p = 0; p < nranks; p++)
        longest = to[p] > longest ? to[p] : longest;
    return longest;
}

/* The tiles of all destinations. Where none gets more rows than a tile has, several share one that has room for them. */
static inline int64_t gemm_tiles_of(const int64_t to[], int nranks, int64_t n, int64_t rows, int64_t cols)
{
    bool shared = gemm_longest_part(to, nranks) <= rows;
    int64_t high = 0, left = 0; /* rows that the last tile has room for */

    for (int p = 0; p < nranks; p++) {
        int64_t part = to[p];
        bool joins = shared && part <= left;
        high += joins ? 0 : (part + rows - 1) / rows;
        left = joins ? left - part : part < GEMM_ROWS_TOGETHER ? GEMM_ROWS_TOGETHER - part : 0;
    }
    return high * ((n + cols - 1) / cols);
}

/* A GPU's slice is one tile of its matrix units, so that the first ones leave early: 128 rows of 256 columns of f16 and bf16, or of
 * 128 of f32; 64 rows where no destination gets more. Narrower where there would be fewer tiles than a GPU has multiprocessors,
 * some 130; where all rows make one of 64, as narrow as can be: that is bound by reading b. */
static inline void gemm_tile_choose(const int64_t to[], int nranks, int64_t n, bool f32, uint32_t *tile_rows,
                                    uint32_t *tile_cols)
{
    int64_t sent = 0;

    for (int p = 0; p < nranks; p++)
        sent += to[p];
    bool one = sent <= 64;
    int64_t rows = gemm_longest_part(to, nranks) <= 64 && !f32 ? 64 : 128, cols = f32 ? 128 : 256,
            least = f32 || !one ? 128 : 64;

    while (cols > least && gemm_tiles_of(to, nranks, n, rows, cols) < GEMM_TILES_WANTED)
        cols /= 2;
    *tile_rows = (uint32_t)rows;
    *tile_cols = (uint32_t)cols;
}

#endif
