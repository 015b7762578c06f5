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
    uint64_t two_steps; /* 1: each rank reduces some of the columns, its chunk; 0: all */
};

struct product_launch {
    struct product_launch *next;
    struct product_shape shape;
    struct gpu_launch *launch;
    const struct gpu_fixed *fixed; /* in the GPU's memory; NULL: it was never launched */
    uint64_t runs;                 /* that were enqueued, if it was never captured */
    bool captured;
};

/* ---- a shape's plan: one step, or two (kernels/plan/exchange/reduce_packets.c), but that results travel as packets, too ---- */

enum { BLOCK = 8 /* columns whose packets stand together: device/exchange/packets.h */ };

/* A plan under construction. */
struct product_plan {
    struct slice *slices; /* [room] */
    uint32_t count, room;
    int64_t first[GPU_MAX_GPUS + 1]; /* columns of each rank's chunk; in one step all are 0, but the end */
};

static int64_t line_of(const struct product_shape *s)
{
    return s->dtype == FCC_F32 ? 16 : 32;
}

/* Chunks are whole cache lines of y; the first is the longest. */
static void chunks_find(struct product_plan *p, const struct product_shape *s, uint32_t nranks)
{
    const int64_t line = line_of(s), lines = (s->n + line - 1) / line;

    for (uint32_t r = 0; r <= nranks; r++) {
        const int64_t before = (lines / nranks * r + (r < lines % nranks ? r : lines % nranks)) * line;
        p->first[r] = !s->two_steps ? 0 : before < s->n ? before : s->n;
    }
    p->first[nranks] = s->n;
}

static void slices_add(struct product_plan *p, const struct product_shape *s, int64_t col, int64_t end, int64_t columns,
                       struct slice like)
{
    like.group = SLICE_NO_GROUP;
    like.rows = (uint32_t)s->m;
    for (; col < end; col += columns) {
        like.col = like.dst_col = (uint32_t)col;
        like.cols = (uint32_t)(end - col < columns ? end - col : columns);
        p->slices[p->count++] = like;
    }
}

/* The chunks of all ranks in the order in which this one serves them: beginning with the next one. In one step all is one chunk, of all ranks. */
static void computes_add(struct product_plan *p, const struct product_shape *s, const struct rings_call *rings)
{
    const int64_t tile = gemv_packets_tile(s->m, s->n, s->k);
    struct slice like = {};

    like.kind = SLICE_COMPUTE_PUT;
    like.dst = SLICE_DST_ALL;
    if (!s->two_steps)
        slices_add(p, s, 0, s->n, tile, like);
    for (uint32_t i = 1; i <= rings->nranks && s->two_steps; i++) {
        like.dst = (uint16_t)((rings->rank + i) % rings->nranks);
        slices_add(p, s, p->first[like.dst], p->first[like.dst + 1], tile, like);
    }
}

static void reduces_add(struct product_plan *p, const struct product_shape *s, const struct rings_call *rings, int64_t reduced)
{
    struct slice like = {};

    like.kind = SLICE_REDUCE;
    like.dst = s->two_steps ? SLICE_DST_ALL : (uint16_t)rings->rank;
    if (s->two_steps)
        slices_add(p, s, p->first[rings->rank], p->first[rings->rank + 1], reduced, like);
    else
        slices_add(p, s, 0, s->n, reduced, like);
}

static void takes_add(struct product_plan *p, const struct product_shape *s, const struct rings_call *rings, int64_t reduced)
{
    struct slice like = {};

    like.kind = SLICE_TAKE;
    like.dst = (uint16_t)rings->rank;
    for (uint32_t i = 1; i < rings->nranks && s->two_steps; i++) {
        like.slot = (uint16_t)((rings->rank + i) % rings->nranks);
        slices_add(p, s, p->first[like.slot], p->first[like.slot + 1], reduced, like);
    }
}

/* Makes the plan; its slices are to be freed. */
static int plan_make(struct product_plan *p, const struct product_shape *s, const struct rings_call *rings, int gpu,
                     struct gpu_run *run, struct error *e)
{
    *p = {};
    chunks_find(p, s, rings->nranks);
    const int64_t columns = s->two_steps ? p->first[1] : s->n,
                  reduced = packets_reduced(s->m, columns, line_of(s), s->two_steps);
    p->room = (uint32_t)(s->n / BLOCK + 1 + 2 * (s->n / reduced + 1) + 3 * (int64_t)rings->nranks);
    p->slices = (struct slice *)calloc(p->room, sizeof(p->slices[0]));
    if (!p->slices)
        return error_set(e, -ENOMEM, "%s GPU %d: no memory for a plan of %u slices", GPU_KIND, gpu, p->room);
    computes_add(p, s, rings);
    for (int phase = GPU_PHASE_FREE + 1; phase <= GPU_PHASE_REDUCE; phase++)
        run->first[phase] = p->count;
    reduces_add(p, s, rings, reduced);
    for (int phase = GPU_PHASE_REDUCE + 1; phase <= GPU_PHASE_WAIT; phase++)
        run->first[phase] = p->count;
    takes_add(p, s, rings, reduced);
    run->first[GPU_PHASES] = p->count;
    run->rank = (int)rings->rank;
    run->slices = p->slices;
    return 0;
}

static void shape_fill(struct gpu_shape *out, const struct product_shape *s, const struct product_plan *p, uint32_t nranks)
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
    for (uint32_t r = 0; r < nranks; r++)
        out->first[r] = p->first[r];
    out->slot_bytes = rings_product_slot(nranks);
    out->local_bytes =
        s->two_steps ? (uint64_t)(s->m * ((p->first[1] + BLOCK - 1) / BLOCK * BLOCK)) * sizeof(struct gpu_stamped) : 0;
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
    struct product_plan plan;
    struct gpu_run run = {};
    struct gpu_shape shape;
    int status = plan_make(&plan, s, rings, gpu, &run, e);

    if (status)
        return status;
    shape_fill(&shape, s, &plan, rings->nranks);
    status = launch_make(gpu, &shape, rings->area, &run, 1, out, e);
    free(plan.slices);
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
            oldest_drop(products, gpu);
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

uint32_t product_stages(const struct rings_product *what)
{
    return (what->bias ? 1u << STAGE_BIAS : 0) | (what->residual ? 1u << STAGE_RESIDUAL : 0);
}

static void rings_fill(struct gpu_in_rings *out, const struct rings_call *rings, const struct rings_product *what)
{
    for (uint32_t r = 0; r < rings->nranks; r++)
        out->heads[r] = rings->rings[r];
    out->failed = rings->failed;
    out->what = rings_what(what->op, what->dtype, product_stages(what), 0);
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

static bool in_two_steps(const struct rings_call *rings, const struct rings_product *what)
{
    return rings_product_in_two_steps(rings->nranks, (uint64_t)what->m, (uint64_t)what->n);
}

/* The launch of a part of a product. */
static int part_get(struct products *products, int gpu, const struct rings_call *rings, const struct rings_product *what,
                    int64_t cols, struct product_launch **out, struct error *e)
{
    const struct product_shape shape = {what->m, cols, what->k, what->dtype, product_stages(what), in_two_steps(rings, what)};
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
    l->fixed = call.fixed;
    hipError_t result = launch_enqueue(l->launch, &call, params, stream, gpus[gpu].follows && gpu_graphs_follow());
    l->runs += result == hipSuccess;
    return result == hipSuccess ? 0 : gpu_error(e, gpu, "launching a product", result);
}

int product_start(struct products *products, int gpu, const struct rings_call *rings, const struct rings_product *what,
                  hipStream_t stream, struct error *e)
{
    const int64_t most = (int64_t)rings_product_columns(rings->nranks, (uint64_t)what->m, in_two_steps(rings, what));
    const int64_t last = (what->n - 1) % most + 1;
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
