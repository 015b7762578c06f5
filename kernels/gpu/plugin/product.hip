/* SPDX-License-Identifier: MIT
 *
 * product.hip - products through rings (kernels/gpu/rings.h): plans and launches that a rank makes by itself.
 *
 * A launch is made when a shape comes for the first time. It has no addresses of tensors, and takes about 100 KiB of the GPU's memory. The
 * launches that were used last are kept. One that a graph has captured is kept as long as the rings are.
 */
#include <stdlib.h>

#include "kernels/gpu/plugin/product.h"
#include "kernels/plan/exchange/packet_sizes.h"

enum { KEPT_MOST = 128 /* launches of a communicator that no graph has captured */ };

/* What a launch is made for. All of it is compared as bytes, so there are no gaps. */
struct product_shape {
    int64_t m, n, k;
    uint32_t dtype, stages;
};

struct product_launch {
    struct product_launch *next;
    struct product_shape shape;
    struct gpu_launch *launch;
    uint64_t runs; /* that were enqueued, if it was never captured */
    bool captured;
};

/* ---- a shape's plan: one step (kernels/plan/exchange/reduce_packets.c) ---- */

static uint32_t slices_of(int64_t n, int64_t columns)
{
    return (uint32_t)((n + columns - 1) / columns);
}

static void slices_fill(struct slice *out, const struct product_shape *s, int64_t columns, struct slice like)
{
    like.group = SLICE_NO_GROUP;
    like.rows = (uint32_t)s->m;
    for (int64_t col = 0; col < s->n; col += columns) {
        like.col = like.dst_col = (uint32_t)col;
        like.cols = (uint32_t)(s->n - col < columns ? s->n - col : columns);
        *out++ = like;
    }
}

static void shape_fill(struct gpu_shape *out, const struct product_shape *s, uint32_t nranks)
{
    *out = {};
    out->compute = COMPUTE_GEMV;
    out->exchange = EXCHANGE_REDUCE;
    out->dtype = s->dtype;
    out->stages = s->stages;
    out->nranks = nranks;
    out->m = s->m;
    out->n = s->n;
    out->k = s->k > 1 ? s->k : 1;
    out->slot_bytes = rings_product_slot(nranks);
}

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
    const int64_t line = s->dtype == FCC_F32 ? 16 : 32, tile = gemv_packets_tile(s->m, s->n, s->k);
    const int64_t reduced = packets_reduced(s->m, s->n, line, false);
    const uint32_t computes = slices_of(s->n, tile), all = computes + slices_of(s->n, reduced);
    struct slice *slices = (struct slice *)calloc(all, sizeof(slices[0])), like = {};
    struct gpu_run run = {};
    struct gpu_shape shape;

    if (!slices)
        return error_set(e, -ENOMEM, "%s GPU %d: no memory for a plan of %u slices", GPU_KIND, gpu, all);
    shape_fill(&shape, s, rings->nranks);
    like.kind = SLICE_COMPUTE_PUT;
    like.dst = SLICE_DST_ALL;
    slices_fill(slices, s, tile, like);
    like.kind = SLICE_REDUCE;
    like.dst = (uint16_t)rings->rank;
    slices_fill(slices + computes, s, reduced, like);
    run.rank = (int)rings->rank;
    run.slices = slices;
    for (int phase = GPU_PHASE_FREE + 1; phase <= GPU_PHASES; phase++)
        run.first[phase] = phase <= GPU_PHASE_REDUCE ? computes : all;
    int status = launch_make(gpu, &shape, rings->area, &run, 1, out, e);
    free(slices);
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
    free(l);
}

/* Frees the launch that was used the longest ago, of those whose runs have all ended; but not the first one, which the call may use. */
static void oldest_drop(struct products *products)
{
    struct product_launch **oldest = NULL, *l;
    struct error ignored = {};
    uint32_t ended;

    if (!products->launches)
        return;
    for (struct product_launch **at = &products->launches->next; *at; at = &(*at)->next)
        if (!(*at)->captured && !launch_runs(((*at)->launch), &ended, &ignored) && ended == (uint32_t)(*at)->runs)
            oldest = at;
    if (!oldest)
        return;
    l = *oldest;
    *oldest = l->next;
    products->n--;
    launch_drop(l);
}

/* The launch of a shape, which becomes the first one. */
static int launch_get(struct products *products, int gpu, const struct rings_call *rings, const struct product_shape *s,
                      struct product_launch **out, struct error *e)
{
    struct product_launch **at = &products->launches, *l;

    while (*at && memcmp(&(*at)->shape, s, sizeof(*s)))
        at = &(*at)->next;
    l = *at;
    if (l) {
        *at = l->next;
    } else {
        struct outside_captures outside;
        if (products->n >= KEPT_MOST)
            oldest_drop(products);
        l = (struct product_launch *)calloc(1, sizeof(*l));
        if (!l)
            return error_set(e, -ENOMEM, "%s GPU %d: no memory for a launch", GPU_KIND, gpu);
        l->shape = *s;
        int status = launch_new(gpu, rings, s, &l->launch, e);
        if (status) {
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

    while ((l = products->launches)) {
        products->launches = l->next;
        launch_drop(l);
    }
}

/* ---- runs ---- */

static uint32_t stages_of(const struct rings_product *what)
{
    return (what->bias ? 1u << STAGE_BIAS : 0) | (what->residual ? 1u << STAGE_RESIDUAL : 0);
}

static void rings_fill(struct gpu_in_rings *out, const struct rings_call *rings, const struct rings_product *what)
{
    for (uint32_t r = 0; r < rings->nranks; r++)
        out->heads[r] = rings->rings[r];
    out->failed = rings->failed;
    out->what = rings_what(what->op, what->dtype, stages_of(what), 0);
    out->whole = (uint64_t)what->n;
    out->own = (uint64_t)what->m;
    out->nranks = rings->nranks;
    out->number = what->number;
}

/* The columns of a product from `col` on. */
static void call_fill(struct gpu_call *call, const struct rings_call *rings, const struct rings_product *what, int64_t col,
                      int64_t cols)
{
    const uint64_t size = what->dtype == FCC_F32 ? 4 : 2, at = (uint64_t)col * size;
    struct gpu_input *in = &call->in[0];

    *call = {};
    call->end.done = rings->ended;
    call->end.begun = rings->begun;
    call->end.in_stream = GPU_IN_STREAM;
    call->nodes.phase_next = GPU_PHASES;
    in->gemv.x = what->x;
    in->gemv.w = what->w ? what->w + at * (uint64_t)what->w_stride : 0;
    in->gemv.x_stride = what->x_stride;
    in->gemv.w_stride = what->w_stride;
    in->gemv.m = what->m;
    in->gemv.n = cols;
    in->gemv.k = what->k;
    in->bias = what->bias ? what->bias + at : 0;
    in->residual = what->residual ? what->residual + at : 0;
    in->residual_stride = what->residual_stride;
    call->out[rings->rank].data = what->y + at;
    call->out[rings->rank].stride[0] = what->y_stride;
    call->series.word = rings->area[rings->rank] + GPU_FLAG_RUN * sizeof(uint64_t);
    call->series.clash = rings->clash;
    call->series.slots_bytes = RINGS_PRODUCT_BYTES;
    call->series.numbered = 1;
    rings_fill(&call->rings, rings, what);
    call->rings.continues = col > 0;
}

/* The launch of a part of a product. */
static int part_get(struct products *products, int gpu, const struct rings_call *rings, const struct rings_product *what,
                    int64_t cols, struct product_launch **out, struct error *e)
{
    const struct product_shape shape = {what->m, cols, what->k, what->dtype, stages_of(what)};
    int status = launch_get(products, gpu, rings, &shape, out, e);

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

    call_fill(&call, rings, what, col, l->shape.n);
    void *params = launch_complete(l->launch, &call, &waits);
    hipError_t result = launch_enqueue(l->launch, &call, params, stream, gpus[gpu].follows && gpu_graphs_follow());
    l->runs += result == hipSuccess;
    return result == hipSuccess ? 0 : gpu_error(e, gpu, "launching a product", result);
}

int product_start(struct products *products, int gpu, const struct rings_call *rings, const struct rings_product *what,
                  hipStream_t stream, struct error *e)
{
    const int64_t most = (int64_t)rings_product_columns(rings->nranks, (uint64_t)what->m), last = (what->n - 1) % most + 1;
    struct product_launch *whole = NULL, *end = NULL;
    int64_t col = 0;
    /* All that could fail is made before the first part begins, because all ranks must run the same parts. */
    int status = what->n > last ? part_get(products, gpu, rings, what, most, &whole, e) : 0;

    if (status == 0)
        status = part_get(products, gpu, rings, what, last, &end, e);
    for (; col < what->n - last && status == 0; col += most)
        status = part_start(whole, gpu, rings, what, col, stream, e);
    return status ? status : part_start(end, gpu, rings, what, col, stream, e);
}
