/* SPDX-License-Identifier: MIT
 *
 * product_rows.hip - rows that the ranks add up: launches, which need no plan. They are those of x (all_reduce with an epilogue), or of
 * products that the vendor's library makes, or a kernel for e4m3, in the rank's landing memory: nobody else stores there before this rank begins another run, which
 * it does behind this one. Rows whose packets do not fit into the memory for them at a time are made in parts, which are runs of their own.
 */
#include "kernels/gpu/plugin/product.h"
#include "kernels/gpu/plugin/whole_rows.h"

void rows_part(const struct gpu_rows *all, int64_t row, int64_t most, struct gpu_rows *out)
{
    const uint64_t at = (uint64_t)row * (all->dtype == FCC_F32 ? 4 : 2);

    *out = *all;
    out->m = all->m - row < most ? all->m - row : most;
    out->y += at * (uint64_t)all->y_stride;
    out->sum += all->sum ? at * (uint64_t)all->sum_stride : 0;
    out->residual += all->residual ? at * (uint64_t)all->residual_stride : 0;
    out->gate += all->gate ? at * (uint64_t)all->gate_stride : 0;
    out->quantized += all->quantized ? (uint64_t)row * (uint64_t)all->quantized_stride : 0;
    if (all->quantization == FCC_QUANTIZED_BY_ROW)
        out->quantized_scale += (uint64_t)row * (uint64_t)all->scale_stride * sizeof(float);
}

/* The rows from `row` on, of those that are done with in one run. */
static void rows_from(struct rings_rows_call *call, const struct rings_product *what, const struct gpu_rows *all, int64_t row,
                      int64_t most)
{
    const uint64_t size = all->dtype == FCC_F32 ? 4 : 2;
    struct gpu_rows *r = &call->rows;

    rows_part(all, row, most, r);
    call->elements = r->m * r->n;
    call->parts = call->cluster = 0; /* anew: the last part may have fewer rows */
    call->x = what->x + (uint64_t)row * size * (uint64_t)what->x_stride;
}

/* Landing memory: rows of products, then the library's workspace. */
static const uint64_t landing_rows = RINGS_SCRATCH_BYTES - LIBRARY_WORKSPACE;

uint64_t sums_workspace(const struct rings_call *rings)
{
    return rings->rings[rings->rank] + rings_landing_at(rings->nranks) + landing_rows;
}

/* The most rows that are done with in one run; 0: not even one fits. */
static int64_t rows_most(const struct rings_call *rings, const struct rings_product *what, uint32_t size)
{
    const uint64_t packets = rings_row_packets(what->n, size) * sizeof(struct gpu_stamped_twelve);
    const uint64_t fit = rings->nranks > 1 ? rings_rows_slot(rings->nranks) / packets : INT64_MAX,
                   lie = !what->copies ? landing_rows / ((uint64_t)what->n * size) : INT64_MAX;

    return (int64_t)(fit < lie ? fit : lie);
}

bool sums_made_first(const struct rings_product *what)
{
    return (what->factors & FACTORS_F8) && !(what->factors & FACTORS_BATCH_INVARIANT) && !what->puts &&
           what->m > FCC_GEMV_MAX_M;
}

/* The part's term, where it is a product. */
static int product_make(const struct products *products, int gpu, const struct rings_call *rings,
                        const struct rings_product *what, int64_t row, struct rings_rows_call *call, hipStream_t stream,
                        struct error *e)
{
    if (what->copies)
        return 0;
    call->x = rings->rings[rings->rank] + rings_landing_at(rings->nranks);
    call->x_stride = what->n;
    if (!what->library)
        return factor_rows_product(gpu, what, row, call->rows.m, call->x, stream, e);
    return library_product(products->library, gpu, what, row, call->rows.m, call->x, stream, e);
}

static void places_set(struct rings_rows_call *call, uint32_t nranks)
{
    const uint32_t size = call->rows.dtype == FCC_F32 ? 4 : 2;

    call->packets_at = rings_rows_at(nranks);
    call->slot = rings_rows_slot(nranks);
    call->packets = (uint32_t)rings_row_packets(call->rows.n, size);
}

static hipError_t rows_launch(struct rings_rows_call *call, int gpu, hipStream_t stream)
{
    const struct rings_launch l = rings_rows_launch_of(call, gpus[gpu].follows);
    void *arguments[] = {call};

    return gpu_kernel_launch(l.kernel, l.workgroups, l.threads, arguments, l.shared_bytes, stream,
                             gpus[gpu].follows && gpu_graphs_follow(), l.cluster);
}

/* ---- all_reduce ---- */

/* Two ranks send as much in one step as in two. What decides is the same on all ranks: not where a rank's tensors lie. */
bool sums_vector_suits(const struct rings_call *rings)
{
    const struct gpu_collective *w = &rings->what;
    const uint64_t bytes = (uint64_t)w->in_elements * w->element_bytes;
    const bool small = rings->lines ? bytes <= rings_packets_most(2) /* beyond, lines take less: 13.9 us for 17 of 2 MB */
                       : rings->nranks == 2 ? bytes <= rings_rows_slot(2) / 16 * 12
                                            : rings_at_once(rings->nranks, bytes);

    return w->reduces && w->in_share == VECTOR_ALL && w->out_share == VECTOR_ALL && !w->refusal[0] && small && bytes > 0 &&
           bytes % 4 == 0 && rings->nranks > 1 && (w->dtype == FCC_F32 || w->dtype == FCC_F16 || w->dtype == FCC_BF16);
}

hipError_t sums_vector_start(int gpu, const struct rings_call *rings, hipStream_t stream)
{
    const struct gpu_collective *w = &rings->what;
    struct rings_rows_call call = {};

    call.rings = *rings;
    call.rows.y = w->out;
    call.rows.dtype = w->dtype;
    call.rows.scale = 1.0f;
    call.rows.is_there = 1;
    call.x = w->in;
    call.aligned = w->in % 4 == 0 && w->out % 4 == 0;
    call.reduction = w->reduction;
    rings_rows_of_vector(&call, w->in_elements);
    call.rows.y_stride = call.x_stride = call.rows.n;
    places_set(&call, rings->nranks);
    return rows_launch(&call, gpu, stream);
}

/* ---- rows ---- */

int sums_rows_start(const struct products *products, int gpu, const struct rings_call *rings, const struct rings_product *what,
                    hipStream_t stream, struct error *e)
{
    struct gpu_rows all = what->whole_rows;
    struct rings_rows_call call = {};
    struct rings_call *c = &call.rings;
    int status = 0;
    int64_t row = 0;

    sums_rows_fill(what, &all);
    const uint32_t size = what->dtype == FCC_F32 ? 4 : 2;
    const int64_t most = rows_most(rings, what, size);
    if (what->library && !products->library)
        return error_set(e, -EOPNOTSUPP, "%s GPU %d: cuBLAS is not there on all ranks", GPU_KIND, gpu);
    if (most == 0)
        return error_set(e, -EOPNOTSUPP, "%s GPU %d: rows of %lld elements: allowed with an epilogue are %llu", GPU_KIND, gpu,
                         (long long)what->n, (unsigned long long)(rings_rows_slot(rings->nranks) / 16 * 12 / size));
    *c = *rings;
    c->what = {};
    c->what.op = what->op;
    c->what.dtype = what->dtype;
    c->what.reduction = what->stages;
    c->what.root = rings_rows_root(what->reduction) | rings_product_root(what);
    c->what.numbers = what->numbers;
    c->what.in_share = c->what.out_share = VECTOR_ALL;
    c->what.element_bytes = size;
    c->what.number = what->number;
    c->what.rows = (uint32_t)what->m;
    c->what.in_elements = c->what.out_elements = what->n;
    call.x_stride = what->x_stride;
    call.reduction = what->reduction;
    call.batch_invariant = what->factors & FACTORS_BATCH_INVARIANT;
    call.aligned =
        rows_are_aligned(&all, size, 4) && (!what->copies || rows_tensor_is_aligned(what->x, what->x_stride, what->m, size, 4));
    do {
        rows_from(&call, what, &all, row, most);
        status = product_make(products, gpu, rings, what, row, &call, stream, e);
        if (status)
            return status;
        places_set(&call, rings->nranks);
        c->what.continues = what->continues || row > 0;
        const hipError_t result = rows_launch(&call, gpu, stream);
        if (result != hipSuccess)
            return gpu_error(e, gpu, "launching rows that are added up", result);
        row += call.rows.m;
    } while (row < what->m);
    return 0;
}
