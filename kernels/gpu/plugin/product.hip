/* SPDX-License-Identifier: MIT
 *
 * product.hip - products through rings (kernels/gpu/rings.h): launches that a rank makes by itself. Their plans: product_sums.hip,
 * product_puts.hip, product_bags.hip; rows that are added up, without a plan: product_rows.hip.
 *
 * A launch is made when a shape comes for the first time. It has no addresses of tensors, and takes about 100 KiB of the GPU's memory. The
 * launches that were used last are kept. One that a graph has captured is kept as long as the rings are.
 */
#include <stdlib.h>

#include "kernels/gpu/plugin/product.h"
#include "kernels/gpu/plugin/whole_rows.h"

enum { KEPT_MOST = 128 /* launches of a communicator that no graph has captured */ };

struct product_launch {
    struct product_launch *next;
    struct product_shape shape;
    struct gpu_launch *launch;
    const struct gpu_fixed *fixed; /* in the GPU's memory; NULL: it was never launched */
    uint64_t runs;                 /* that were enqueued, if it was never captured */
    bool captured;
    int64_t *table_rows; /* of bags: [shape.ntables] */
    uint64_t first_rows; /* bags_first_rows() */
};

/* The packet memory of all ranks, and this rank's flags. Nothing is staged. */
static int launch_place(struct gpu_launch *l, const struct rings_call *rings, struct error *e)
{
    uint64_t staging[GPU_MAX_RANKS] = {0}, slots[GPU_MAX_RANKS] = {0};

    for (uint32_t r = 0; r < rings->nranks; r++)
        slots[r] = rings->rings[r] + rings_products_at(rings->nranks);
    return launch_addresses(l, staging, slots, e);
}

static int launch_new(int gpu, const struct rings_call *rings, const struct product_shape *s, struct gpu_launch **out,
                      struct error *e)
{
    struct gpu_run run = {};
    struct gpu_shape shape = {};
    int status = (s->dim ? bags_plan : s->puts ? puts_plan : sums_plan)(s, rings, gpu, &run, &shape, e);

    run.rank = (int)rings->rank;
    if (status == 0)
        status = launch_make(gpu, &shape, rings->area, &run, 1, out, e);
    free((void *)run.slices);
    free((void *)run.groups);
    if (status)
        return status;
    status = launch_place(*out, rings, e);
    if (status)
        launch_free(*out);
    return status;
}

/* ---- the launches ---- */

static void launch_drop(struct product_launch *l)
{
    launch_free(l->launch);
    free(l->table_rows);
    free(l);
}

static bool is_of(const struct product_launch *l, const struct product_shape *s, const struct rings_product *what)
{
    return !memcmp(&l->shape, s, sizeof(*s)) &&
           (!s->ntables || !memcmp(l->table_rows, what->bags.table_rows, (size_t)s->ntables * sizeof(l->table_rows[0])));
}

/* Fills in the launch of a new shape. */
static int launch_fill(struct product_launch *l, int gpu, const struct rings_call *rings, const struct product_shape *s,
                       const struct rings_product *what, struct error *e)
{
    const size_t bytes = (size_t)s->ntables * sizeof(l->table_rows[0]);

    l->shape = *s;
    if (bytes) {
        l->table_rows = (int64_t *)malloc(bytes);
        if (!l->table_rows)
            return error_set(e, -ENOMEM, "%s GPU %d: no memory for a launch", GPU_KIND, gpu);
        memcpy(l->table_rows, what->bags.table_rows, bytes);
    }
    int status = launch_new(gpu, rings, s, &l->launch, e);
    if (status || !s->dim)
        return status;
    status = bags_first_rows(l->launch, gpu, what, &l->first_rows, e);
    if (status)
        launch_free(l->launch);
    return status;
}

/* Whether all runs of a launch have ended. Waits for no kernel. */
static bool is_idle(const struct product_launch *l, int gpu)
{
    struct error ignored = {};
    uint32_t ended = 0;

    return !l->fixed ||
           (!memory_copy(&ended, gpu, (uint64_t)&l->fixed->runs, sizeof(ended), &ignored) && ended == (uint32_t)l->runs);
}

/* Frees the launch that was used the longest ago, if its runs have all ended; but not the first one, which the call may use. */
static void oldest_drop(struct products *products, int gpu)
{
    struct product_launch **oldest = NULL, *l;

    if (!products->launches)
        return;
    for (struct product_launch **at = &products->launches->next; *at; at = &(*at)->next)
        if (!(*at)->captured)
            oldest = at;
    if (!oldest || !is_idle(*oldest, gpu))
        return;
    l = *oldest;
    *oldest = l->next;
    products->n--;
    launch_drop(l);
}

/* The launch of a shape, which becomes the first one. */
static int launch_get(struct products *products, int gpu, const struct rings_call *rings, const struct product_shape *s,
                      const struct rings_product *what, struct product_launch **out, struct error *e)
{
    struct product_launch **at = &products->launches, *l;

    while (*at && !is_of(*at, s, what))
        at = &(*at)->next;
    l = *at;
    if (l) {
        *at = l->next;
    } else {
        struct outside_captures outside;
        if (products->n >= KEPT_MOST)
            oldest_drop(products, gpu);
        l = (struct product_launch *)calloc(1, sizeof(*l));
        if (!l)
            return error_set(e, -ENOMEM, "%s GPU %d: no memory for a launch", GPU_KIND, gpu);
        int status = launch_fill(l, gpu, rings, s, what, e);
        if (status) {
            free(l->table_rows);
            free(l);
            return status;
        }
        products->n++;
    }
    l->next = products->launches;
    products->launches = l;
    *out = l;
    return 0;
}

void products_free(struct products *products, int gpu)
{
    struct product_launch *l;

    flows_close(products->flows, gpu);
    library_close(products->library);
    while ((l = products->launches)) {
        products->launches = l->next;
        launch_drop(l);
    }
}

/* ---- runs ---- */

uint32_t product_stages(const struct rings_product *what)
{
    const bool each = what->gate || what->activation || what->scale != 0.0f;

    return (what->bias ? 1u << STAGE_BIAS : 0) | (what->residual ? 1u << STAGE_RESIDUAL : 0) | (each ? 1u << STAGE_GATE : 0);
}

static void rings_fill(struct gpu_in_rings *out, const struct rings_call *rings, const struct rings_product *what)
{
    for (uint32_t r = 0; r < rings->nranks; r++)
        out->heads[r] = rings->rings[r];
    out->failed = rings->failed;
    out->what = rings_what_product(what->op, what->dtype, what->stages, what->numbers, rings_product_root(what));
    out->whole = what->bags.table_rows ? rings_bags_whole((uint64_t)what->m, (uint64_t)what->bags.dim) : (uint64_t)what->n;
    out->nranks = rings->nranks;
    out->number = what->number;
}

/* A run of a product: its rows, of `m` altogether, and columns. */
struct product_part {
    const struct rings_product *what; /* of the rows */
    int64_t m, row, col;
};

/* The columns of a product from part->col on; of one whose rows are put, all. scales: room, until the launch has started. */
static void call_fill(struct gpu_call *call, const struct rings_call *rings, const struct product_part *part,
                      const struct product_launch *l, struct gpu_factor_scales *scales)
{
    const struct rings_product *what = part->what;

    *call = {};
    call->end.done = rings->ended;
    call->end.begun = rings->begun;
    call->end.in_stream = GPU_IN_STREAM;
    call->nodes.phase_next = GPU_PHASES;
    call->series.word = rings->area[rings->rank] + GPU_FLAG_RUN * sizeof(uint64_t);
    call->series.clash = rings->clash;
    call->series.slots_bytes = RINGS_PRODUCT_BYTES;
    call->series.numbered = 1;
    rings_fill(&call->rings, rings, what);
    if (l->shape.dim)
        bags_call_fill(call, rings, what, l->first_rows);
    else if (what->puts)
        puts_call_fill(call, rings, what);
    else {
        sums_call_fill(call, rings, what, part->col, l->shape.n, scales);
        call->rings.own = (uint64_t)part->m;
    }
    call->rings.continues = what->continues || part->row > 0 || part->col > 0;
}

static struct product_shape shape_of(const struct rings_call *rings, const struct rings_product *what, int64_t cols)
{
    struct product_shape shape = {};

    shape.m = what->m;
    shape.n = cols;
    shape.k = what->k;
    shape.dtype = what->dtype;
    shape.stages = product_stages(what);
    shape.puts = what->puts;
    shape.factors = what->factors;
    if (what->bags.table_rows) {
        shape.k = bags_depth(what);
        shape.dim = what->bags.dim;
        shape.ntables = what->bags.ntables;
    }
    if (what->puts)
        memcpy(shape.rows, what->rows, rings->nranks * sizeof(shape.rows[0]));
    else
        shape.two_steps = sums_in_two_steps(rings, what);
    return shape;
}

/* The launch of a part of a product. */
static int part_get(struct products *products, int gpu, const struct rings_call *rings, const struct rings_product *what,
                    int64_t cols, struct product_launch **out, struct error *e)
{
    const struct product_shape shape = shape_of(rings, what, cols);
    int status = launch_get(products, gpu, rings, &shape, what, out, e);

    if (status == 0 && what->captured && !(*out)->captured) {
        (*out)->captured = true;
        products->n--;
    }
    return status;
}

static int part_start(struct product_launch *l, int gpu, const struct rings_call *rings, const struct product_part *part,
                      hipStream_t stream, struct error *e)
{
    struct gpu_factor_scales scales;
    struct gpu_waits waits = {};
    struct gpu_call call;

    call_fill(&call, rings, part, l, &scales);
    void *params = launch_complete(l->launch, &call, &waits);
    l->fixed = call.fixed;
    hipError_t result = launch_enqueue(l->launch, &call, params, stream, gpus[gpu].follows && gpu_graphs_follow());
    l->runs += result == hipSuccess;
    return result == hipSuccess ? 0 : gpu_error(e, gpu, "launching a product", result);
}

/* ---- products in blocks of rows, and these in parts of columns, of which each is a run ---- */

/* Of a product whose partial sums are added up: what a kernel multiplies at a time. */
static const int64_t BLOCK_ROWS = FCC_GEMV_MAX_M;

/* The launches of a block, which are made for it if they are not there. whole: NULL: there is one part. */
struct block_launches {
    struct product_launch *whole, *end;
    int64_t most, last; /* columns of each part but the last, and of that */
};

static int block_get(struct products *products, int gpu, const struct rings_call *rings, const struct rings_product *what,
                     struct block_launches *out, struct error *e)
{
    *out = {};
    out->most = what->puts ? what->n : sums_columns(rings, what);
    out->last = what->puts ? what->n : (what->n - 1) % out->most + 1;
    int status = what->n > out->last ? part_get(products, gpu, rings, what, out->most, &out->whole, e) : 0;
    return status ? status : part_get(products, gpu, rings, what, out->last, &out->end, e);
}

/* The rows from `row` on. */
static void block_of(const struct rings_product *all, int64_t row, struct rings_product *out)
{
    const uint64_t at = (uint64_t)row * (all->dtype == FCC_F32 ? 4 : 2);

    *out = *all;
    out->m = all->m - row < BLOCK_ROWS ? all->m - row : BLOCK_ROWS;
    out->x += (uint64_t)row * factor_bytes(all, 0) * (uint64_t)all->x_stride;
    out->y += at * (uint64_t)all->y_stride;
    out->residual += all->residual ? at * (uint64_t)all->residual_stride : 0;
    out->gate += all->gate ? at * (uint64_t)all->gate_stride : 0;
    out->scales.of[0] = gpu_scales_from(&all->scales.of[0], row);
    if (all->whole_rows.is_there)
        rows_part(&all->whole_rows, row, BLOCK_ROWS, &out->whole_rows);
}

/* A block, of which the product has `m` rows altogether, and `row` before it. only: 1: its launches are made, and it is not started. */
static int block_start(struct products *products, int gpu, const struct rings_call *rings, const struct rings_product *called,
                       int64_t m, int64_t row, bool only, hipStream_t stream, struct error *e)
{
    struct rings_product wide;
    const bool widened = !called->puts && !called->bags.table_rows && sums_widen(rings, called, &wide);
    struct product_part part = {widened ? &wide : called, m, row, 0};
    struct block_launches launches;
    if (called->continues &&
        called->whole_rows.is_there) /* the kernel behind the product's does not know whether that was a run */
        return error_set(e, -EOPNOTSUPP, "%s GPU %d: stages of whole rows behind a product that continues a run", GPU_KIND,
                         gpu);
    int status = block_get(products, gpu, rings, part.what, &launches, e);

    if (status || only)
        return status;
    for (; part.col < called->n - launches.last && status == 0; part.col += launches.most)
        status = part_start(launches.whole, gpu, rings, &part, stream, e);
    if (status == 0)
        status = part_start(launches.end, gpu, rings, &part, stream, e);
    return status ? status : rows_start(gpu, &part.what->whole_rows, stream, e);
}

int product_start(struct products *products, int gpu, const struct rings_call *rings, const struct rings_product *what,
                  hipStream_t stream, struct error *e)
{
    const bool blocks = !what->puts && !what->bags.table_rows && what->m > BLOCK_ROWS;
    struct rings_product block;
    int status = 0;

    if ((what->copies && !what->puts) || what->library || sums_made_first(what))
        return sums_rows_start(products, gpu, rings, what, stream, e);
    if (!blocks)
        return block_start(products, gpu, rings, what, what->m, 0, false, stream, e);
    /* All that could fail is made before the first part begins, because all ranks must run the same parts. */
    for (int64_t last = (what->m - 1) / BLOCK_ROWS * BLOCK_ROWS, i = 0; i < 2 && status == 0; i++) {
        block_of(what, i ? last : 0, &block);
        status = block_start(products, gpu, rings, &block, what->m, 0, true, stream, e);
    }
    for (int64_t row = 0; row < what->m && status == 0; row += BLOCK_ROWS) {
        block_of(what, row, &block);
        status = block_start(products, gpu, rings, &block, what->m, row, false, stream, e);
    }
    return status;
}
