/* SPDX-License-Identifier: MIT
 *
 * product_sums.hip - products through rings whose partial sums the ranks add up (gemv_all_reduce): their plans and calls.
 */
#include <stdlib.h>

#include "kernels/gpu/plugin/product.h"
#include "kernels/plan/exchange/packet_sizes.h"

/* ---- the plan: one step, or two (kernels/plan/exchange/reduce_packets.c), but that results travel as packets, too ---- */

enum { BLOCK = 8 /* columns whose packets stand together: device/exchange/packets.h */ };

/* A plan under construction. */
struct sums_plan {
    struct slice *slices; /* [room] */
    uint32_t count, room;
    int64_t first[GPU_MAX_GPUS + 1]; /* columns of each rank's chunk; in one step all are 0, but the end */
};

static int64_t line_of(const struct product_shape *s)
{
    return s->dtype == FCC_F32 ? 16 : 32;
}

/* Chunks are whole cache lines of y; the first is the longest. */
static void chunks_find(struct sums_plan *p, const struct product_shape *s, uint32_t nranks)
{
    const int64_t line = line_of(s), lines = (s->n + line - 1) / line;

    for (uint32_t r = 0; r <= nranks; r++) {
        const int64_t before = (lines / nranks * r + (r < lines % nranks ? r : lines % nranks)) * line;
        p->first[r] = !s->two_steps ? 0 : before < s->n ? before : s->n;
    }
    p->first[nranks] = s->n;
}

static void slices_add(struct sums_plan *p, const struct product_shape *s, int64_t col, int64_t end, int64_t columns,
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
static void computes_add(struct sums_plan *p, const struct product_shape *s, const struct rings_call *rings)
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

static void reduces_add(struct sums_plan *p, const struct product_shape *s, const struct rings_call *rings, int64_t reduced)
{
    struct slice like = {};

    like.kind = SLICE_REDUCE;
    like.dst = s->two_steps ? SLICE_DST_ALL : (uint16_t)rings->rank;
    if (s->two_steps)
        slices_add(p, s, p->first[rings->rank], p->first[rings->rank + 1], reduced, like);
    else
        slices_add(p, s, 0, s->n, reduced, like);
}

static void takes_add(struct sums_plan *p, const struct product_shape *s, const struct rings_call *rings, int64_t reduced)
{
    struct slice like = {};

    like.kind = SLICE_TAKE;
    like.dst = (uint16_t)rings->rank;
    for (uint32_t i = 1; i < rings->nranks && s->two_steps; i++) {
        like.slot = (uint16_t)((rings->rank + i) % rings->nranks);
        slices_add(p, s, p->first[like.slot], p->first[like.slot + 1], reduced, like);
    }
}

static int plan_make(struct sums_plan *p, const struct product_shape *s, const struct rings_call *rings, int gpu,
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
    run->slices = p->slices;
    return 0;
}

static void shape_fill(struct gpu_shape *out, const struct product_shape *s, const struct sums_plan *p, uint32_t nranks)
{
    *out = {};
    out->compute = COMPUTE_GEMV;
    out->exchange = EXCHANGE_REDUCE;
    out->dtype = s->dtype;
    out->stages = s->stages;
    out->factors = s->factors;
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

int sums_plan(const struct product_shape *s, const struct rings_call *rings, int gpu, struct gpu_run *run,
              struct gpu_shape *shape, struct error *e)
{
    struct sums_plan plan;
    int status = plan_make(&plan, s, rings, gpu, run, e);

    if (status == 0)
        shape_fill(shape, s, &plan, rings->nranks);
    return status;
}

/* ---- calls ---- */

uint64_t factor_bytes(const struct rings_product *what, int factor)
{
    return what->factors >> factor & FACTORS_FIRST_F8 ? 1 : what->dtype == FCC_F32 ? 4 : 2;
}

void sums_call_fill(struct gpu_call *call, const struct rings_call *rings, const struct rings_product *what, int64_t col,
                    int64_t cols, struct gpu_factor_scales *scales)
{
    const uint64_t size = what->dtype == FCC_F32 ? 4 : 2, at = (uint64_t)col * size;
    struct gpu_input *in = &call->in[0];

    in->gemv.x = what->x;
    in->gemv.w = what->w ? what->w + (uint64_t)col * factor_bytes(what, 1) * (uint64_t)what->w_stride : 0;
    scales->of[0] = what->scales.of[0];
    scales->of[1] = gpu_scales_from(&what->scales.of[1], col);
    call->scales = what->factors & FACTORS_F8 ? scales : NULL;
    in->gemv.x_stride = what->x_stride;
    in->gemv.w_stride = what->w_stride;
    in->gemv.m = what->m;
    in->gemv.n = cols;
    in->gemv.k = what->k;
    in->bias = what->bias ? what->bias + at : 0;
    in->residual = what->residual ? what->residual + at : 0;
    in->residual_stride = what->residual_stride;
    call->each.gate = what->gate ? what->gate + at : 0;
    call->each.gate_stride = what->gate_stride;
    call->each.activation = what->activation;
    call->each.scale = what->scale;
    call->each.wide = what->whole_rows.wide != 0;
    call->out[rings->rank].data = what->whole_rows.wide ? what->y + (uint64_t)col * sizeof(float) : what->y + at;
    call->out[rings->rank].stride[0] = what->y_stride;
}

void sums_rows_fill(const struct rings_product *what, struct gpu_rows *rows)
{
    if (!rows->is_there) {
        rows->y = what->y;
        rows->y_stride = what->y_stride;
        rows->m = what->m;
        rows->n = what->n;
        rows->dtype = what->dtype;
        rows->is_there = 1;
    }
    if (!rows->rounds_first) {
        rows->gate = what->gate;
        rows->gate_stride = what->gate_stride;
        rows->activation = what->activation;
        rows->scale = what->scale != 0.0f ? what->scale : 1.0f;
    }
    rows->added_bias = what->bias;
    rows->residual = what->residual;
    rows->residual_stride = what->residual_stride;
}

/* In one step, what follows the sums is done by a kernel behind the product's, which so is one without an epilogue, a specialised one where there is
 * one, and leaves f32 sums. They lie in this rank's landing memory: nobody else stores there before this rank begins another run, which it does
 * behind that kernel. A product that continues a run may be none itself, which that kernel would not know, so its own kernel does all. */
bool sums_widen(const struct rings_call *rings, const struct rings_product *what, struct rings_product *out)
{
    const bool each = what->bias || what->residual || what->gate || what->activation || what->scale != 0.0f;
    struct gpu_rows *rows = &out->whole_rows;

    if ((!each && !what->whole_rows.is_there) || what->continues || sums_in_two_steps(rings, what) ||
        (uint64_t)(what->m * what->n) > RINGS_SCRATCH_BYTES / sizeof(float))
        return false;
    *out = *what;
    sums_rows_fill(what, rows);
    rows->wide = rings->rings[rings->rank] + rings_landing_at(rings->nranks);
    out->bias = out->residual = out->gate = 0;
    out->activation = 0;
    out->scale = 0.0f;
    out->y = rows->wide;
    out->y_stride = what->n;
    return true;
}

bool sums_in_two_steps(const struct rings_call *rings, const struct rings_product *what)
{
    return rings_product_in_two_steps(rings->nranks, (uint64_t)what->m, (uint64_t)what->n);
}

int64_t sums_columns(const struct rings_call *rings, const struct rings_product *what)
{
    return (int64_t)rings_product_columns(rings->nranks, (uint64_t)what->m, sums_in_two_steps(rings, what));
}
