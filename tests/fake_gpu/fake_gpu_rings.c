/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_rings.c - collectives and products through rings on fake GPUs: launches, and a run's begin, headers and end.
 *
 * All words are sequentially consistent, which is more than the kernels have. What is tested is the client that launches the runs and reads
 * what they say, and the worker that watches them.
 */
#include "tests/fake_gpu/fake_gpu_rings.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/plan/plan.h"

static struct rings_head *own_head(const struct rings *r)
{
    return r->heads[r->rank];
}

static bool must_leave(const struct rings_run *run)
{
    return atomic_load(run->rings->failures[run->rings->rank]) >= run->number;
}

bool rings_nap(struct rings_run *run)
{
    const struct rings *r = run->rings;

    if (!run->told) {
        atomic_store(r->begun, (uint64_t)run->what->op << 32 | (uint32_t)run->number);
        atomic_store(r->ended, (uint64_t)(uint32_t)(run->number - 1));
        run->told = true;
    }
    gpu_stand(&run->rings->gpu);
    gpu_nap();
    return !must_leave(run);
}

/* By words: the client may copy what a later run overwrites, and looks at its number then. The number, which comes first, is stored last. */
static void failure_store(struct rings_failure *to, const struct rings_failure *failure)
{
    uint64_t words[sizeof(*failure) / sizeof(uint64_t)];

    memcpy(words, failure, sizeof(words));
    for (size_t i = sizeof(words) / sizeof(words[0]); i-- > 0;)
        atomic_store(rings_word((uint64_t *)to + i), words[i]);
}
static_assert(offsetof(struct rings_failure, run) == 0 && sizeof(struct rings_failure) % sizeof(uint64_t) == 0, "words");

static void failure_raise(_Atomic uint64_t *word, uint64_t run)
{
    uint64_t seen = atomic_load(word);

    while (seen < run && !atomic_compare_exchange_weak(word, &seen, run))
        continue;
}

/* ---- headers ---- */

/* What this rank says to rank `to`. */
static struct rings_header header_make(const struct rings_run *run, uint32_t to)
{
    const struct gpu_collective *w = run->what;
    const bool is_root = w->root == run->rings->rank;
    struct rings_header h = {.what = (uint64_t)w->numbers << 32 | rings_what(w->op, w->dtype, w->reduction, w->root),
                             .whole = RINGS_UNKNOWN,
                             .wants = RINGS_UNKNOWN};

    if (run->product) {
        h.what = rings_what_product(w->op, run->product->dtype, run->product->stages, run->product->numbers,
                                    rings_product_root(run->product));
        h.what |= (run->product->copies && !run->product->puts) || run->product->library
                      ? rings_rows_root(run->product->reduction)
                      : 0;
        h.whole = (uint64_t)run->product->n;
        h.own = (uint64_t)(run->product->puts ? run->product->rows[to] : run->product->m);
        if (run->product->puts && run->product->expected[to] >= 0)
            h.wants = (uint64_t)run->product->expected[to];
        if (run->product->bags.table_rows) {
            h.whole = rings_bags_whole((uint64_t)run->product->m, (uint64_t)run->product->bags.dim);
            h.own = rings_bags_own(h.own, run->product->bags.ntables);
        }
        return h;
    }
    if (w->in_share == VECTOR_ALL || (w->in_share == VECTOR_ROOT && is_root))
        h.whole = (uint64_t)w->in_elements;
    else if (w->out_share == VECTOR_ALL || (w->out_share == VECTOR_ROOT && is_root))
        h.whole = (uint64_t)w->out_elements;
    else if (w->row_elements)
        h.whole = (uint64_t)w->row_elements;
    if (w->in_share == VECTOR_OWN)
        h.own = (uint64_t)w->in_elements;
    else if (w->out_share == VECTOR_OWN)
        h.own = (uint64_t)w->out_elements;
    else
        h.own = w->in_share == VECTOR_COUNTED ? (uint64_t)w->send[to] : w->rows;
    if (w->in_share == VECTOR_COUNTED && w->expected[to] >= 0)
        h.wants = (uint64_t)w->expected[to];
    return h;
}

/* Whether the rank gives the run up as soon as it has begun. */
static bool refuses(const struct rings_run *run)
{
    return run->what->refusal[0] || run->wrong < run->rings->nranks;
}

static void header_send(const struct rings_run *run, uint32_t to)
{
    struct rings_header h = header_make(run, to);
    uint64_t *words = (uint64_t *)&run->rings->heads[to]->header[run->number % 2][run->rings->rank];

    if (refuses(run))
        h.what = rings_what(RINGS_REFUSES, 0, 0, 0);
    atomic_store(rings_word(words + 3), run->number << 48 | (h.wants & RINGS_UNKNOWN));
    atomic_store(rings_word(words + 2), run->number << 48 | (h.own & RINGS_UNKNOWN));
    atomic_store(rings_word(words + 1), run->number << 48 | (h.whole & RINGS_UNKNOWN));
    atomic_store(rings_word(words), run->number << 48 | (h.what & RINGS_UNKNOWN));
}

/* False: it is not there yet. */
static bool header_look(const struct rings_run *run, uint32_t from, struct rings_header *out)
{
    uint64_t *words = (uint64_t *)&own_head(run->rings)->header[run->number % 2][from], seen[4];

    for (int i = 0; i < 4; i++) {
        seen[i] = atomic_load(rings_word(words + i));
        if ((uint16_t)(seen[i] >> 48) != (uint16_t)run->number)
            return false;
    }
    *out = (struct rings_header){seen[0] & RINGS_UNKNOWN, seen[1] & RINGS_UNKNOWN, seen[2] & RINGS_UNKNOWN,
                                 seen[3] & RINGS_UNKNOWN};
    return true;
}

/* ---- giving up ---- */

/* Says why, to all ranks, and lets them leave once all have begun the run: so a rank that leaves a run has finished the one before, as the
 * others have. The first reason that this rank has is told. */
static void give_up(struct rings_run *run, struct rings_failure why)
{
    struct rings *r = run->rings;
    struct rings_header h;

    if (atomic_exchange(rings_word(&own_head(r)->given_up), run->number) == run->number)
        return;
    why.run = run->number;
    if (why.why == RINGS_REFUSED)
        memcpy(why.text, run->what->refusal, sizeof(why.text));
    for (uint32_t p = 0; p < r->nranks; p++)
        failure_store(&r->heads[p]->failure[r->rank], &why);
    for (uint32_t p = 0; p < r->nranks && why.why != RINGS_TWICE; p++)
        while (p != r->rank && !header_look(run, p, &h))
            if (!rings_nap(run))
                return; /* another rank lets them leave, or the communicator is over */
    for (uint32_t p = 0; p < r->nranks; p++)
        failure_raise(r->failures[p], run->number);
}

/* Compares a rank's header with what this one does. False: the run is given up. */
static bool header_check(struct rings_run *run, uint32_t from, const struct rings_header *h)
{
    const struct gpu_collective *w = run->what;
    const struct rings_header mine = header_make(run, from);
    const uint64_t dtypes = UINT64_C(0xff) << 16, asked = h->what & dtypes && mine.what & dtypes ? UINT64_MAX : ~dtypes;
    struct rings_failure why = {.why = RINGS_WELL, .rank = from, .by = run->rings->rank, .theirs = *h, .mine = mine};

    if (h->what == rings_what(RINGS_REFUSES, 0, 0, 0) ||
        (run->product && run->product->puts && h->what == mine.what && h->whole == mine.whole && h->wants != RINGS_UNKNOWN &&
         h->wants != mine.own)) { /* that rank says why, and lets all leave */
        while (rings_nap(run))
            continue;
        return false;
    }
    if ((h->what ^ mine.what) & asked || (h->whole != mine.whole && h->whole != RINGS_UNKNOWN && mine.whole != RINGS_UNKNOWN) ||
        (((run->product && !run->product->puts) || w->rows) && h->own != mine.own)) {
        why.why = RINGS_OTHER;
    } else if (run->product && run->product->bags.table_rows) {
        why.mine.own = rings_bags_own((uint64_t)run->product->rows[run->rings->rank], 0);
        why.why = h->own >> RINGS_TABLES_BITS == why.mine.own >> RINGS_TABLES_BITS ? RINGS_WELL : RINGS_SPLIT;
        run->tables[from] = rings_bags_tables(h->own);
    } else if (run->product && run->product->puts && run->product->expected[from] >= 0 &&
               (int64_t)h->own != run->product->expected[from]) {
        why.why = RINGS_COUNT;
        why.mine.own = (uint64_t)run->product->expected[from];
    } else if (w->in_share == VECTOR_COUNTED && w->expected[from] >= 0 && (int64_t)h->own != w->expected[from] &&
               !run->product) {
        why.why = RINGS_COUNT;
        why.mine.own = (uint64_t)w->expected[from];
    } else if (w->in_share == VECTOR_COUNTED && h->wants != RINGS_UNKNOWN && h->wants != mine.own) {
        why = (struct rings_failure){.why = RINGS_COUNT, .rank = run->rings->rank, .by = from, .theirs = mine, .mine = *h};
        why.mine.own = h->wants;
    }
    if (why.why != RINGS_WELL)
        give_up(run, why);
    return why.why == RINGS_WELL;
}

/* Waits until all ranks have begun the run before this one. False: leave. */
static bool before_await(struct rings_run *run)
{
    const uint16_t least = (uint16_t)(run->number - 1);

    for (uint32_t p = 0; p < run->rings->nranks; p++) {
        uint64_t *word = &own_head(run->rings)->header[least % 2][p].what;
        while (p != run->rings->rank && (int16_t)((uint16_t)(atomic_load(rings_word(word)) >> 48) - least) < 0)
            if (!rings_nap(run))
                return false;
    }
    return true;
}

/* The elements that a header's `own` stands for. */
static int64_t own_of(const struct rings_run *run, uint64_t own)
{
    if (run->product && run->product->bags.table_rows)
        return run->product->rows[run->rings->rank] * run->product->bags.dim * rings_bags_tables(own);
    return !run->product ? (int64_t)own : run->product->puts ? (int64_t)own * run->product->n : run->what->in_elements;
}

bool rings_headers_meet(struct rings_run *run)
{
    const struct rings *r = run->rings;
    uint32_t met = 1u << r->rank;
    struct rings_header h;

    for (uint32_t p = 0; p < r->nranks; p++) /* of a sum of products each rank's is the same */
        run->other[p] = run->what->in_elements;
    run->other[r->rank] = own_of(run, header_make(run, r->rank).own);
    while (met != (1u << r->nranks) - 1) {
        bool news = false;
        for (uint32_t p = 0; p < r->nranks; p++) {
            if (met >> p & 1u || !header_look(run, p, &h))
                continue;
            if (!header_check(run, p, &h))
                return false;
            run->other[p] = own_of(run, h.own);
            met |= 1u << p;
            news = true;
        }
        if (!news && !rings_nap(run))
            return false;
    }
    return true;
}

/* ---- what goes where ---- */

static void sends_find(struct rings_run *run)
{
    const struct gpu_collective *w = run->what;
    const bool has = w->in_share != VECTOR_ROOT || run->rings->rank == w->root;
    int64_t counted = 0, at = 0;

    for (uint32_t r = 0; r < run->rings->nranks; r++) {
        run->send_at[r] = w->in_share == VECTOR_COUNTED ? counted : w->out_share == VECTOR_OWN ? at : 0;
        run->send[r] = w->in_share == VECTOR_COUNTED ? w->send[r]
                       : !has                        ? 0
                       : w->out_share == VECTOR_OWN  ? run->other[r]
                       : rings_gets_all(run, r)      ? w->in_elements
                                                     : 0;
        counted += w->send[r];
        at += run->other[r];
    }
}

/* False: the parts do not add up, and the run is given up. */
static bool gets_find(struct rings_run *run)
{
    const struct gpu_collective *w = run->what;
    const uint32_t rank = run->rings->rank;
    struct rings_failure why = {.why = RINGS_WELL, .rank = rank, .by = rank, .mine = header_make(run, rank)};
    const bool moves_nothing = w->op == FCC_PROGRAM_STEP; /* ranks compare what they are about to run: `own` is no length */
    int64_t at = 0, own_at = 0;

    for (uint32_t r = 0; r < run->rings->nranks; r++) {
        const bool from_root = w->in_share == VECTOR_ROOT;
        own_at += r < rank ? run->other[r] : 0;
        run->get_at[r] = from_root ? 0 : at;
        run->get[r] = moves_nothing                                                ? 0
                      : from_root                                                  ? (r == w->root ? w->out_elements : 0)
                      : w->in_share == VECTOR_COUNTED || rings_gets_all(run, rank) ? run->other[r]
                                                                                   : 0;
        at += run->other[r];
    }
    why.theirs.own = (uint64_t)at;
    if (w->counts && w->expected[rank] >= 0 && w->send[rank] != w->expected[rank]) { /* no other rank sees that */
        why.why = RINGS_COUNT;
        why.theirs = why.mine;
        why.mine.own = (uint64_t)w->expected[rank];
    } else if ((w->in_share == VECTOR_OWN || w->out_share == VECTOR_OWN) && why.mine.whole != RINGS_UNKNOWN &&
               (uint64_t)at != why.mine.whole) {
        why.why = RINGS_SUM;
    } else if (w->place && w->place - 1 != own_at) {
        why.why = RINGS_PLACE;
        why.theirs.own = (uint64_t)own_at;
        why.mine.own = (uint64_t)(w->place - 1);
    } else if (run->product && run->product->bags.table_rows) {
        why.mine.own = (uint64_t)run->product->bags.tables;
        why.theirs.own = 0;
        for (uint32_t r = 0; r < run->rings->nranks; r++)
            why.theirs.own += (uint64_t)run->tables[r];
        why.why = why.theirs.own == why.mine.own ? RINGS_WELL : RINGS_ROOM;
    } else if (w->in_share == VECTOR_COUNTED && at > w->out_elements) {
        why.why = RINGS_ROOM;
        why.mine.own = (uint64_t)w->out_elements;
        if (run->product) {
            why.theirs.own /= (uint64_t)run->product->n;
            why.mine.own = (uint64_t)run->product->room;
        }
    }
    if (why.why != RINGS_WELL)
        give_up(run, why);
    return why.why == RINGS_WELL;
}

/* ---- a run ---- */

/* As rings_record_begin(). */
static void record_begin(const struct rings_run *run)
{
    const struct gpu_collective *w = run->what;
    const uint64_t elements = (uint64_t)(w->in_elements > w->out_elements ? w->in_elements : w->out_elements);

    fake_record_begin(own_head(run->rings)->records, RUN_RECORDS_RINGS, run->number,
                      run_record_what(run->number, RUN_RECORDS_RINGS, w->op, run->product ? run->product->dtype : w->dtype,
                                      run->product || w->rows ? 0 : elements * w->element_bytes));
}

/* False: it does nothing, or leaves. A run that had ended here when another rank gave it up is told to the host by the next one. */
static bool run_begin(struct rings_run *run)
{
    struct rings *r = run->rings;
    const uint64_t failed = atomic_load(r->failures[r->rank]),
                   inside = atomic_fetch_add(rings_word(&own_head(r)->inside), UINT64_C(1) << RINGS_INSIDE | 1);

    run->number = atomic_load(rings_word(&own_head(r)->begun)) / RINGS_UNITS + atomic_load(r->products);
    run->over = failed == UINT64_MAX;
    if (run->what->continues && failed >= run->number) /* the run before was given up, and so is this one */
        return false;
    run->number = atomic_fetch_add(rings_word(&own_head(r)->begun), RINGS_UNITS) / RINGS_UNITS + atomic_load(r->products) + 1;
    run->noted = !run->over;
    if (run->noted)
        record_begin(run);
    if (failed + 1 == run->number)
        atomic_store(r->failed, failed);
    if (failed >= run->number)
        return false;
    if (inside) {
        atomic_store(r->clash, run->number);
        give_up(run,
                (struct rings_failure){.why = RINGS_TWICE, .rank = r->rank, .by = r->rank, .mine = header_make(run, r->rank)});
        return false;
    }
    (void)atomic_fetch_add(&control->runs, 1);
    for (uint32_t p = 0; p < r->nranks; p++)
        if (p != r->rank)
            header_send(run, p);
    if (control->busy_us && control->busy_gpu == (uint32_t)r->gpu.number)
        (void)usleep(control->busy_us);
    if (!before_await(run))
        return false;
    if (refuses(run)) {
        struct rings_failure why = {.why = RINGS_REFUSED, .rank = r->rank, .by = r->rank, .mine = header_make(run, r->rank)};
        if (!run->what->refusal[0]) {
            why.why = RINGS_SENDS;
            why.rank = run->wrong;
            why.mine.own = ((const uint64_t *)pointer(run->what->counts))[run->wrong];
            why.mine.whole = (uint64_t)run->what->rows_most;
        }
        give_up(run, why);
        return false;
    }
    return true;
}

static void run_end(const struct rings_run *run)
{
    struct rings *r = run->rings;

    (void)atomic_fetch_sub(rings_word(&own_head(r)->inside), UINT64_C(1) << RINGS_INSIDE | 1);
    if (run->over) /* the words in the session's memory may be another's by now */
        return;
    if (run->noted)
        fake_record_end(own_head(r)->records, RUN_RECORDS_RINGS, run->number, must_leave(run));
    if (must_leave(run))
        atomic_store(r->failed, run->number);
    if (run->told)
        atomic_store(r->ended, (uint64_t)(uint32_t)run->number);
}

bool rings_exchange(struct rings_run *run)
{
    sends_find(run);
    if (!gets_find(run))
        return false;
    rings_received_tell(run);
    return rings_parts_run(run);
}

static void bags_run(struct rings_run *run, struct gpu_collective *what)
{
    struct rings_failure why = {.why = RINGS_WELL, .rank = run->rings->rank, .by = run->rings->rank};
    void *memory = rings_bags_begin(run->product, what, run->rings->nranks, &why);

    run->tables[run->rings->rank] = run->product->bags.ntables;
    if (why.why != RINGS_WELL) {
        why.mine = header_make(run, run->rings->rank);
        give_up(run, why);
    } else if (rings_headers_meet(run) && rings_exchange(run)) {
        rings_bags_end(run->product, what->out, run->tables, run->rings->nranks, run->rings->rank);
    }
    free(memory);
}

/* `what`: the collective of the product's partial sums, or of its rows, which is the run's. */
static void product_run(struct rings_run *run, struct gpu_collective *what)
{
    const bool puts = run->product->puts;
    void *memory = puts ? rings_rows_begin(run->product, what, run->rings->nranks) : rings_product_begin(run->product, what);
    int64_t come = 0;

    if (!rings_headers_meet(run) || !rings_exchange(run)) { /* given up: what has come may be more than there is room for */
        free(memory);
        return;
    }
    for (uint32_t p = 0; p < run->rings->nranks; p++)
        come += run->get[p];
    if (!puts)
        rings_product_end(run->product, (const float *)(uintptr_t)what->out);
    else
        rings_rows_end(run->product, what->out, run->product->n ? come / run->product->n : 0);
    fake_rows(&run->product->whole_rows);
    free(memory);
}

void rings_call_run(void *argument)
{
    struct rings_call *call = argument;
    struct gpu_collective what = call->what;
    struct rings_run run = {.rings = call->rings,
                            .what = &what,
                            .moved = &what,
                            .product = call->multiplies ? &call->product : NULL,
                            .wrong = rings_counts_take(&what, call->rings->nranks)};

    if (run_begin(&run)) {
        if (run.product && run.product->bags.table_rows)
            bags_run(&run, &what);
        else if (run.product)
            product_run(&run, &what);
        else if (call->in_pieces)
            rings_pieces_run(&run, call);
        else if (rings_headers_meet(&run))
            (void)rings_exchange(&run);
    } else if (call->in_pieces && what.continues) {
        rings_pieces_left(call);
    }
    run_end(&run);
    if (call->is_captured) /* rings_close() frees it */
        return;
    (void)atomic_fetch_sub(&call->rings->enqueued, 1);
    free(call->table_rows);
    free(call);
}
