/* SPDX-License-Identifier: MIT
 *
 * packet_sizes.h - the sizes of the slices of a gemv whose partial sums travel as packets, on the GPUs of one node: pure functions, for plans
 * (kernels/plan/exchange/reduce_packets.c) and for products through rings (kernels/gpu/plugin/product.hip). Plain C and C++.
 */
#ifndef FCC_KERNELS_PLAN_EXCHANGE_PACKET_SIZES_H
#define FCC_KERNELS_PLAN_EXCHANGE_PACKET_SIZES_H

#include <stdbool.h>
#include <stdint.h>

/* Columns of a slice that is computed. One row: one or two columns for each of a workgroup's 8 waves, and some hundreds of tiles for the
 * workgroups to take; but where a column is short, each workgroup takes one tile. More rows: a half to one thousand of tiles. Their sizes
 * are powers of two, so that on GPUs with large matrix instructions some of them make 64 columns. */
static inline int64_t gemv_packets_tile(int64_t m, int64_t n, int64_t k)
{
    int64_t tile = 8, short_k = 1024;

    if (m == 1 && n <= 1 << 16) {
        tile = n < 4096 ? 8 : 16;
        while (k < short_k && tile * 256 < n)
            tile *= 2;
    } else {
        while (tile * 512 < n)
            tile *= 2;
    }
    return tile;
}

/* Columns of a slice that is reduced, whole cache lines of `line` columns. `columns`: that a rank reduces; owned: each rank others. A slice
 * has as many sums as a workgroup adds with a few per thread, so that all workgroups have work, but not so few that a slice's overhead
 * dominates. With several slices for each workgroup the packets of later slices arrive meanwhile. In one step half of the workgroups put
 * meanwhile, if putting is a phase of its own. Results for other ranks are whole cache lines. */
static inline int64_t packets_reduced(int64_t m, int64_t columns, int64_t line, bool owned)
{
    int64_t sums = m * columns / (owned ? 128 : 64), least = owned ? 1024 : 256;

    sums = sums < least ? least : sums > 2048 ? 2048 : sums;
    return (sums + m * line - 1) / (m * line) * line;
}

#endif
