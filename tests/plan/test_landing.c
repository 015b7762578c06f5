/* SPDX-License-Identifier: MIT
 *
 * test_landing.c - rows on their way through landing memory (kernels/plan/exchange/landing.h), for sizes drawn at random: parts and pieces contain each
 * element once, parts fit into their places, tiles of GPUs do not lie across parts, and no two parts under way share a flag or a word; and what else lies in a
 * rank's memory of rings (kernels/plan/exchange/rings.h) lies apart. FCC_TEST_SEED=N repeats a run.
 */
#include <stdlib.h>

#include "kernels/plan/compute/gemm_tiles.h"
#include "kernels/plan/exchange/rings.h"
#include "tests/bed/harness.h"

static uint64_t state;

static uint64_t draw(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

/* Adds 1 to each element of a box within rows of n elements. */
static void box_count(unsigned char *seen, uint32_t n, uint32_t row, uint32_t col, const struct landing_box *box)
{
    for (uint32_t r = 0; r < box->rows; r++)
        for (uint32_t c = 0; c < box->cols; c++)
            seen[(uint64_t)(row + box->row + r) * n + col + box->col + c]++;
}

static void part_check(const struct landing_parts *parts, uint32_t nranks, uint32_t part, uint32_t rows, uint32_t n,
                       uint32_t size, uint32_t granule, unsigned char *seen)
{
    const struct landing_box box = landing_part_at(parts, part, rows, n);

    CHECK(box.rows > 0 && box.cols > 0 && box.rows <= parts->rows && box.cols <= parts->cols);
    CHECK(box.row + box.rows <= rows && box.col + box.cols <= n);
    CHECK((uint64_t)box.rows * parts->cols * size <= landing_place_bytes(nranks));
    for (uint32_t i = 0; i < LANDING_PIECES; i++) {
        const struct landing_box piece = landing_piece_at(&box, i, granule);
        if (piece.rows == 0 || piece.cols == 0)
            continue;
        CHECK(piece.row + piece.rows <= box.rows && piece.col + piece.cols <= box.cols);
        CHECK(piece.col % granule == 0 && (piece.cols % granule == 0 || box.col + piece.col + piece.cols == n));
        box_count(seen, n, box.row, box.col, &piece);
    }
}

static void size_check(uint32_t nranks, uint32_t rows, uint32_t n, uint32_t size, uint32_t granule)
{
    const struct landing_parts parts = landing_parts_of(landing_place_bytes(nranks), rows, n, size, granule);
    unsigned char *seen = calloc((size_t)rows * n + 1, 1);

    CHECK(seen != NULL);
    CHECK((parts.count == 0) == (rows == 0 || n == 0));
    for (uint32_t part = 0; part < parts.count; part++)
        part_check(&parts, nranks, part, rows, n, size, granule, seen);
    for (uint64_t i = 0; i < (uint64_t)rows * n; i++)
        if (seen[i] != 1)
            check_failed(__FILE__, __LINE__, "%u ranks, %u rows, n %u, %u bytes, granule %u: element %lu is moved %u times",
                         nranks, rows, n, size, granule, (unsigned long)i, seen[i]);
    free(seen);
    if (parts.count == 0)
        return;
    CHECK(parts.cols % granule == 0);
    if (granule != LANDING_COLUMNS)
        return;
    /* A part's tiles side by side (kernels/gpu/plugin/product_puts.hip), where several ranks share a tile: none lies across two parts. */
    int64_t to[RINGS_RANKS];
    uint32_t tile_rows, tile_cols;
    for (uint32_t r = 0; r < nranks; r++)
        to[r] = rows;
    gemm_tile_choose(to, (int)nranks, n, size == 4, &tile_rows, &tile_cols);
    if (rows <= tile_rows)
        CHECK(parts.cols >= n || parts.cols % tile_cols == 0);
}

static void sizes(void)
{
    static const uint32_t special[] = {0, 1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1024, 1025};

    state = test_seed();
    for (int i = 0; i < test_rounds(600); i++) {
        const uint32_t nranks = 1 + (uint32_t)draw(RINGS_RANKS), size = draw(2) ? 4 : 2;
        const uint32_t rows = draw(2) ? special[draw(16)] : (uint32_t)draw(3000),
                       n = draw(2) ? special[draw(16)] : (uint32_t)draw(6000);
        size_check(nranks, rows, n, size, LANDING_COLUMNS);
        const uint32_t dim = draw(2) ? 1 + (uint32_t)draw(300) : 64u << draw(5), tables = (uint32_t)draw(20);
        size_check(nranks, rows, tables * dim, size, dim);
    }
    size_check(2, 65536, 64, 2, LANDING_COLUMNS);
    size_check(16, 1, 65536, 4, LANDING_COLUMNS);
    size_check(16, 3, 2 * RINGS_DIM_MOST, 4, RINGS_DIM_MOST); /* a place has room for one row of one table */
    size_check(16, 40, 3 * 5000, 4, 5000);
}

/* A place is used by one part after the other, and each flag by one part of one sender. */
static void words(void)
{
    for (uint32_t nranks = 1; nranks <= RINGS_RANKS; nranks++) {
        const uint32_t most = landing_parts_most(nranks);
        CHECK(landing_flag(nranks, nranks - 1, most - 1) < LANDING_FLAGS);
        for (uint32_t sender = 1; sender < nranks; sender++)
            CHECK(landing_flag(nranks, sender - 1, most - 1) < landing_flag(nranks, sender, 0));
        for (uint32_t own = 0; own < nranks; own++) { /* the others' slots follow each other */
            uint64_t at = 0;
            for (uint32_t sender = 0; sender < nranks; sender++) {
                if (sender == own)
                    continue;
                CHECK(landing_slot_at(nranks, own, sender) == at);
                at += (uint64_t)LANDING_PLACES * landing_place_bytes(nranks);
            }
            CHECK(at == landing_bytes(nranks) && at <= rings_landing_bytes(nranks) && at <= LANDING_BYTES);
        }
        CHECK(landing_taken_at(nranks - 1, most - 1, LANDING_PIECES - 1) < landing_taken_bytes(nranks));
        CHECK(rings_landing_at(nranks) % 256 == 0 && rings_taken_at(nranks) % 256 == 0 &&
              landing_place_bytes(nranks) % 256 == 0);
        for (uint32_t part = LANDING_PLACES; part < most; part++)
            CHECK(landing_taken(7, part) > landing_taken(7, part - LANDING_PLACES));
        CHECK(landing_taken(8, 0) > landing_taken(7, most - 1));
    }
    for (uint32_t part = 0; part < 2 * LANDING_PLACES; part++) /* the receivers', places' and pieces' words are all different */
        for (uint32_t piece = 0; piece < LANDING_PIECES; piece++)
            CHECK(landing_taken_at(1, part, piece) ==
                  ((LANDING_PLACES + part % LANDING_PLACES) * LANDING_PIECES + piece) * sizeof(uint64_t));
}

/* What lies in a rank's memory of rings lies apart, and the whole is no more than a program with many graphs has room for beside these. */
static void memory(void)
{
    for (uint32_t nranks = 1; nranks <= RINGS_RANKS; nranks++) {
        const uint64_t packets = 2 * (uint64_t)(nranks - 1) * rings_packet_bytes(nranks);
        const uint64_t steps = nranks > 2 ? RINGS_STEPS : 1,
                       pieces = steps * RINGS_CHANNELS * (nranks - 1) * RINGS_DEPTH * rings_piece_bytes(nranks);
        const uint64_t wave = (uint64_t)RINGS_LINES_DEPTH * RINGS_LINES_UNIT;
        CHECK(rings_pieces_at(nranks) == RINGS_PACKETS_AT + packets);
        CHECK(rings_lines_at(nranks, 0, 0) == rings_pieces_at(nranks) + pieces);
        for (uint32_t w = 0; w < RINGS_LINES_WAVES; w++) { /* each wave has a place in each half */
            CHECK(rings_lines_at(nranks, 2, w) == rings_lines_at(nranks, 0, 0) + w * wave);
            CHECK(rings_lines_at(nranks, 7, w) == rings_lines_at(nranks, 0, 0) + (RINGS_LINES_WAVES + w) * wave);
        }
        CHECK(rings_products_at(nranks) == rings_lines_at(nranks, 0, 0) + (nranks == 2 ? 2 * RINGS_LINES_WAVES * wave : 0));
        CHECK(rings_landing_at(nranks) == rings_products_at(nranks) + 2 * (uint64_t)RINGS_PRODUCT_BYTES);
        CHECK(rings_taken_at(nranks) == rings_landing_at(nranks) + rings_landing_bytes(nranks));
        CHECK(rings_rows_at(nranks) >= rings_taken_at(nranks) + landing_taken_bytes(nranks));
        CHECK(rings_arrivals_at(nranks) >= rings_rows_at(nranks) + 2 * (nranks - 1) * rings_rows_slot(nranks));
        CHECK(rings_bytes(nranks) == rings_arrivals_at(nranks) + RINGS_ARRIVALS_BYTES);
        CHECK(rings_lines_at(nranks, 0, 0) % 128 == 0 && rings_products_at(nranks) % 256 == 0);
    }
    CHECK(rings_bytes(2) <= 200u << 20);
    CHECK(RINGS_SCRATCH_BYTES - (32u << 20) >= rings_rows_slot(2) / 16 * 12);
}

int main(void)
{
    static const struct test tests[] = {{"sizes", sizes, 120}, {"words", words, 20}, {"memory", memory, 20}};

    return tests_run("landing", TESTS(tests));
}
