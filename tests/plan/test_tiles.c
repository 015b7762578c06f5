/* SPDX-License-Identifier: MIT
 *
 * test_tiles.c - the order of tiles whose exchange goes on while a kernel computes (kernels/gpu/device/tiles/tiles_order.h), for sizes drawn at random: each tile
 * is multiplied once, and covers each element once; slots lie in the memory for arrivals; both ranks number their tiles alike; and two ranks whose workgroups, few or
 * many, come and wait in any order get to the end, without that a tile in a slot is overwritten before it was taken. FCC_TEST_SEED=N repeats a run.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/gpu/device/tiles/tiles_order.h"
#include "tests/bed/harness.h"

static uint64_t state;

static uint64_t draw(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

/* ---- one order ---- */

static void covers(const struct tiles_order *o, int64_t n)
{
    unsigned char *seen[2];
    uint32_t part, unit, row, col, found = 0;

    for (int p = 0; p < 2; p++) {
        seen[p] = calloc((size_t)(o->part[p].high + 1) * 2 * o->part[p].wide + 1, 1);
        CHECK(seen[p] != NULL);
    }
    for (uint32_t position = 0; position < o->positions; position++) {
        if (!tiles_unit(o, position, &part, &unit))
            continue;
        CHECK(tiles_is_there(o, part, 2 * unit));
        for (uint32_t i = 0; i < 2; i++) {
            if (!tiles_place(o, part, 2 * unit + i, &row, &col))
                continue;
            CHECK(row % TILES_ROWS == 0 && col % o->cols == 0 && row < o->part[part].rows && col < n);
            seen[part][row / TILES_ROWS * o->part[part].wide + col / o->cols]++;
        }
        found++;
    }
    CHECK(found == o->part[0].units + o->part[1].units);
    for (int p = 0; p < 2; p++) {
        const uint32_t tiles = (uint32_t)((o->part[p].rows + TILES_ROWS - 1) / TILES_ROWS) * o->part[p].wide;
        CHECK((int64_t)o->part[p].wide * o->cols >= n && 2 * o->part[p].units <= tiles + o->part[p].wide);
        for (uint32_t i = 0; i < tiles; i++)
            CHECK(seen[p][i] == 1);
        free(seen[p]);
    }
}

static void slots_fit(const struct tiles_order *o, uint32_t flows)
{
    CHECK(o->slots >= 4 * TILES_GROUP && o->slots % 2 == 0 && o->slots * flows <= TILES_WORDS);
    CHECK((uint64_t)o->slots * flows * tiles_slot_bytes(o->cols) <= TILES_ARRIVALS_BYTES);
    CHECK(o->ahead <= o->slots / 2 / TILES_GROUP);
}

/* ---- two ranks ---- */

enum { WORKERS = 5, JOBS = 3 };

/* A workgroup: positions that it has taken, the oldest first. Its sum's return is a tile of the second flow. */
struct worker {
    uint32_t part[JOBS], unit[JOBS], n;
};

struct side {
    struct tiles_order order;
    struct worker workers[WORKERS];
    uint32_t taken, moved;            /* positions; sums of the other rank's */
    uint32_t *come, *used;            /* of each slot of both flows: tiles that have come here; that the other rank has taken */
    bool *sent[2], *added, *is_moved; /* units */
};

static void side_open(struct side *s, int64_t theirs, int64_t own, int64_t n, uint32_t cols, uint32_t flows)
{
    *s = (struct side){.order = tiles_order_of(theirs, own, n, (int64_t)draw(2) * 4096, cols, TILES_BAND, flows)};
    s->come = calloc(TILES_WORDS, sizeof(*s->come));
    s->used = calloc(TILES_WORDS, sizeof(*s->used));
    s->sent[0] = calloc(s->order.part[0].units + 1, 1);
    s->sent[1] = calloc(s->order.part[1].units + 1, 1);
    s->added = calloc(s->order.part[1].units + 1, 1);
    s->is_moved = calloc(s->order.part[0].units + 1, 1);
    CHECK(s->come && s->used && s->sent[0] && s->sent[1] && s->added && s->is_moved);
}

static void side_close(struct side *s)
{
    free(s->come);
    free(s->used);
    free(s->sent[0]);
    free(s->sent[1]);
    free(s->added);
    free(s->is_moved);
}

static uint32_t slot_of(const struct tiles_order *o, uint32_t tile, uint32_t flow)
{
    return tile % o->slots + flow * o->slots;
}

static uint32_t uses_of(const struct tiles_order *o, uint32_t tile)
{
    CHECK(tiles_count(o, 7, tile) >> 16 == 7);
    return (uint32_t)(tiles_count(o, 0, tile) & 0xffff);
}

/* Stores a unit in the other rank's slots. False: they are not free. */
static bool leaves(struct side *from, struct side *to, uint32_t unit, uint32_t flow)
{
    uint32_t before;

    for (uint32_t tile = 2 * unit; tile < 2 * unit + 2; tile++)
        if (tiles_is_there(&from->order, flow, tile) && tiles_before(&from->order, flow, tile, &before) &&
            from->used[slot_of(&from->order, tile, flow)] < uses_of(&from->order, before))
            return false;
    for (uint32_t tile = 2 * unit; tile < 2 * unit + 2; tile++) {
        const uint32_t slot = slot_of(&from->order, tile, flow);
        if (!tiles_is_there(&from->order, flow, tile))
            continue;
        CHECK(to->come[slot] == from->used[slot] && to->come[slot] < uses_of(&from->order, tile)); /* what is there was taken */
        to->come[slot] = uses_of(&from->order, tile);
    }
    from->sent[flow][unit] = true;
    return true;
}

/* part: whose tiles the unit's are, as the rank that takes them counts. */
static bool comes(struct side *here, struct side *there, uint32_t part, uint32_t unit, uint32_t flow)
{
    const struct tiles_order *o = &here->order;

    for (uint32_t tile = 2 * unit; tile < 2 * unit + 2; tile++)
        if (tiles_is_there(o, part, tile) && here->come[slot_of(o, tile, flow)] < uses_of(o, tile))
            return false;
    for (uint32_t tile = 2 * unit; tile < 2 * unit + 2; tile++) {
        const uint32_t slot = slot_of(o, tile, flow);
        if (!tiles_is_there(o, part, tile))
            continue;
        CHECK(here->come[slot] == uses_of(o, tile) && there->sent[flow][unit]);
        there->used[slot] = uses_of(o, tile);
    }
    return true;
}

/* A workgroup's oldest job, if it need not wait. An own tile first takes what has come, and then, as it returns, waits for room. */
static bool job_end(struct side *s, struct side *other, struct worker *w, bool returns)
{
    const uint32_t unit = w->unit[0];
    bool ends;

    if (w->part[0] == 0) {
        ends = leaves(s, other, unit, 0);
    } else {
        if (!s->added[unit])
            s->added[unit] = comes(s, other, 1, unit, 0);
        ends = s->added[unit] && (!returns || leaves(s, other, unit, 1));
    }
    for (uint32_t i = 1; i < w->n && ends; i++) {
        w->part[i - 1] = w->part[i];
        w->unit[i - 1] = w->unit[i];
    }
    w->n -= ends;
    return ends;
}

static bool worker_runs(struct side *s, struct side *other, struct worker *w, bool returns)
{
    if (w->n < JOBS && s->taken < s->order.positions && (w->n == 0 || draw(2))) {
        w->n += tiles_unit(&s->order, s->taken++, &w->part[w->n], &w->unit[w->n]);
        return true;
    }
    return w->n && job_end(s, other, w, returns);
}

static bool moves(struct side *s, struct side *other)
{
    if (s->moved >= s->order.part[0].units || !comes(s, other, 0, s->moved, 1))
        return false;
    s->is_moved[s->moved++] = true;
    return true;
}

static bool is_over(const struct side *s, bool returns)
{
    bool over = s->taken >= s->order.positions && (!returns || s->moved == s->order.part[0].units);

    for (int i = 0; i < WORKERS; i++)
        over = over && s->workers[i].n == 0;
    return over;
}

/* The workgroups of both ranks run in an order that is drawn; all that can have their turn before it is said that none can. */
static void both_run(struct side sides[2], uint32_t workers[2], bool returns)
{
    uint32_t idle = 0;

    while (!is_over(&sides[0], returns) || !is_over(&sides[1], returns)) {
        uint32_t at = (uint32_t)draw(2), which = (uint32_t)draw(workers[at] + 1);
        struct side *s = &sides[at], *other = &sides[at ^ 1];
        const bool ran = which == workers[at] ? returns && moves(s, other) : worker_runs(s, other, &s->workers[which], returns);
        idle = ran ? 0 : idle + 1;
        if (idle < 1000)
            continue;
        for (at = 0; at < 2 && idle; at++) {
            for (which = 0; which < workers[at] && idle; which++)
                idle = worker_runs(&sides[at], &sides[at ^ 1], &sides[at].workers[which], returns) ? 0 : idle;
            idle = idle && returns && moves(&sides[at], &sides[at ^ 1]) ? 0 : idle;
        }
        CHECK(idle == 0);
    }
}

static void sums(void)
{
    static const int64_t rows[] = {0, 1, 128, 129, 544, 4096, 8192, 20000}, ns[] = {8, 136, 1024, 3072, 12288, 20480};

    for (int i = 0; i < test_rounds(300); i++) {
        const int64_t first = rows[draw(8)], second = draw(2) ? first : rows[draw(8)], n = ns[draw(6)];
        const uint32_t cols = 128 + 64 * (uint32_t)draw(3), flows = 1 + (uint32_t)draw(2);
        uint32_t workers[2] = {1 + (uint32_t)draw(WORKERS), 1 + (uint32_t)draw(WORKERS)};
        struct side sides[2];
        side_open(&sides[0], second, first, n, cols, flows);
        side_open(&sides[1], first, second, n, cols, flows);
        covers(&sides[0].order, n);
        slots_fit(&sides[0].order, flows);
        CHECK(sides[0].order.part[0].units == sides[1].order.part[1].units && sides[0].order.slots == sides[1].order.slots);
        both_run(sides, workers, flows == 2);
        for (uint32_t u = 0; u < sides[0].order.part[1].units; u++)
            CHECK(sides[0].added[u] && (flows == 1 || sides[1].is_moved[u]));
        side_close(&sides[0]);
        side_close(&sides[1]);
    }
}

/* ---- what is gathered ---- */

static void gathered(void)
{
    for (int i = 0; i < test_rounds(300); i++) {
        const int64_t own = (int64_t)draw(9000), theirs = (int64_t)draw(9000), n = 1 + (int64_t)draw(6000);
        const struct tiles_order o = tiles_order_of(own, theirs, n, 64, tiles_columns(own, theirs, n), TILES_GATHER_BAND, 0);
        const int64_t row = tiles_row(n), each = tiles_come_rows(theirs, row), step = 2 * TILES_ROWS;
        covers(&o, n);
        CHECK(each * row * 2 >= (int64_t)TILES_COME_BYTES &&
              (each == step || (each - step) * row * 2 < (int64_t)TILES_COME_BYTES ||
               (theirs + each - step - 1) / (each - step) > TILES_COME_MOST));
        CHECK(each % (2 * TILES_ROWS) == 0 && (theirs + each - 1) / each <= TILES_COME_MOST &&
              (theirs + each - 1) / each <= RINGS_PIECES_MOST);
        CHECK(row >= n && row < n + 8 && row % 8 == 0);
        for (uint32_t p = 0, part, unit, before = 0; p < o.positions; p++)
            if (tiles_unit(&o, p, &part, &unit)) {
                CHECK(part >= before); /* own rows first */
                before = part;
            }
    }
}

static void limits(void)
{
    CHECK(tiles_can(4096, 18432, 2) && !tiles_can(4096, 18433, 2) && !tiles_can(4096, 18432, 4));
    CHECK(!tiles_can(0, 64, 2) && !tiles_can(64, 0, 2));
    CHECK(tiles_gather_runs(4092, 8192) == 1 && tiles_gather_runs(4093, 8192) == 2 && tiles_gather_runs(0, 8) == 1);
    for (int i = 0; i < 1000; i++) {
        const int64_t rows = (int64_t)draw(100000), row = 8 + 8 * (int64_t)draw(30000), runs = tiles_gather_runs(rows, row);
        for (int64_t run = 0; run < runs; run++)
            CHECK((uint64_t)(rows * (run + 1) / runs - rows * run / runs) * (uint64_t)row * 2 <= TILES_ARRIVALS_BYTES);
    }
    CHECK(tiles_pay(1024, 4u << 20, true) && !tiles_pay(511, 4u << 20, false) && !tiles_pay(1024, 1000, false));
    CHECK(tiles_fit(512, 512) && !tiles_fit(544, 544) && tiles_fit(300, 300) && tiles_fit(2696, 2696) &&
          tiles_fit(1328, 1328) && !tiles_fit(1300, 1300) && tiles_fit(0, 4096));
    CHECK(tiles_pay(1024, 2u << 20, false) && !tiles_pay(1024, 2u << 20, true));
    CHECK(tiles_columns(4096, 4096, 18432) == 256 && tiles_columns(256, 256, 3072) == 128 &&
          tiles_columns(768, 768, 13376) == 256 && tiles_columns(1024, 1024, 4256) == 192);
    for (uint32_t cols = 128; cols <= 256; cols += 64)
        for (uint32_t flows = 1; flows <= 2; flows++) {
            const struct tiles_order fit = tiles_order_of(2048, 2048, 12 * cols, 4096, cols, TILES_BAND, flows),
                                     many = tiles_order_of(20000, 20000, 20480, 4096, cols, TILES_BAND, flows);
            CHECK(fit.ahead == tiles_groups(&fit.part[0])); /* all of what is sent comes first */
            CHECK(many.ahead == TILES_AHEAD);
            CHECK(tiles_order_of(4096, 2048, 12 * cols, 64, cols, TILES_BAND, flows).ahead == TILES_AHEAD);
        }
}

/* Each 16 bytes of a tile have a place of their own in its slot, and rows of 8 stay together. */
static void slots(void)
{
    static bool taken[TILES_ROWS * 256 / 8];

    for (uint32_t cols = 128; cols <= 256; cols += 64) {
        memset(taken, 0, sizeof(taken));
        for (uint32_t row = 0; row < TILES_ROWS; row++)
            for (uint32_t chunk = 0; chunk < cols / 8; chunk++) {
                const uint32_t at = tiles_place_in_slot(row, chunk);
                CHECK(at % 16 == 0 && at < tiles_slot_bytes(cols) && !taken[at / 16]);
                CHECK(at / 1024 == tiles_place_in_slot(row / 8 * 8, chunk / 8 * 8) / 1024);
                taken[at / 16] = true;
            }
    }
}

int main(void)
{
    static const struct test tests[] = {
        {"sums", sums, 300}, {"gathered", gathered, 100}, {"limits", limits, 10}, {"slots", slots, 10}};

    state = test_seed();
    return tests_run("tiles", TESTS(tests));
}
