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

#if defined(__CUDACC__)
/* While a stream is under capture, a thread may not allocate, unless it says that this is meant to be no part of it. */
struct outside_captures {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;

    outside_captures()
    {
        (void)cudaThreadExchangeStreamCaptureMode(&mode);
    }
    ~outside_captures()
    {
        (void)cudaThreadExchangeStreamCaptureMode(&mode);
    }
};
#else
struct outside_captures {
    outside_captures()
    {
    }
};
#endif

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

void products_free(struct products *products)
{
    struct product_launch *l;

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
    out->what = rings_what_product(what->op, what->dtype, what->stages, what->numbers);
    out->whole = what->bags.table_rows ? rings_bags_whole((uint64_t)what->m, (uint64_t)what->bags.dim) : (uint64_t)what->n;
    out->nranks = rings->nranks;
    out->number = what->number;
}

/* The columns of a product from `col` on; of one whose rows are put, all. */
static void call_fill(struct gpu_call *call, const struct rings_call *rings, const struct rings_product *what,
                      const struct product_launch *l, int64_t col)
{
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
    else
        sums_call_fill(call, rings, what, col, l->shape.n);
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

static int part_start(struct product_launch *l, int gpu, const struct rings_call *rings, const struct rings_product *what,
                      int64_t col, hipStream_t stream, struct error *e)
{
    struct gpu_waits waits = {};
    struct gpu_call call;

    call_fill(&call, rings, what, l, col);
    void *params = launch_complete(l->launch, &call, &waits);
    l->fixed = call.fixed;
    hipError_t result = launch_enqueue(l->launch, &call, params, stream, gpus[gpu].follows && gpu_graphs_follow());
    l->runs += result == hipSuccess;
    return result == hipSuccess ? 0 : gpu_error(e, gpu, "launching a product", result);
}

int product_start(struct products *products, int gpu, const struct rings_call *rings, const struct rings_product *called,
                  hipStream_t stream, struct error *e)
{
    if ((called->copies && !called->puts) || called->library)
        return sums_rows_start(products, gpu, rings, called, stream, e);

    struct rings_product wide;
    const bool widened = !called->puts && !called->bags.table_rows && sums_widen(rings, called, &wide);
    const struct rings_product *what = widened ? &wide : called;
    const int64_t most = what->puts ? what->n : sums_columns(rings, what);
    const int64_t last = what->puts ? what->n : (what->n - 1) % most + 1;
    struct product_launch *whole = NULL, *end = NULL;
    int64_t col = 0;
    /* All that could fail is made before the first part begins, because all ranks must run the same parts. */
    int status = what->n > last ? part_get(products, gpu, rings, what, most, &whole, e) : 0;

    if (status == 0)
        status = part_get(products, gpu, rings, what, last, &end, e);
    for (; col < what->n - last && status == 0; col += most)
        status = part_start(whole, gpu, rings, what, col, stream, e);
    if (status == 0)
        status = part_start(end, gpu, rings, what, col, stream, e);
    return status ? status : rows_start(gpu, &what->whole_rows, stream, e);
}
