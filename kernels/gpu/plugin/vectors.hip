/* SPDX-License-Identifier: MIT
 *
 * vectors.hip - large all_reduces, reduce_scatters and all_gathers of two ranks: copy engines take the pieces to the other rank (flow.h), which
 * needs no multiprocessors and keeps the link busy; what has come is combined, or copied, piece by piece meanwhile. The halves of a vector are a flow each,
 * by a stream of its own, so that one moves while the other begins.
 *
 * Everything else is as of any collective through rings: the run, the headers and what they are compared for, the order in which terms are combined. A
 * rank's piece is overwritten in place only when it has been sent.
 */
#include "kernels/gpu/device/exchange/combine_group.h"
#include "kernels/gpu/device/registry.h"
#include "kernels/gpu/plugin/flow.h"
#include "kernels/gpu/plugin/product.h"

enum { THREADS = 512, AT_ONCE = 2, WORKGROUPS = 264, SPAN = 4096 /* elements: workgroups have a multiple of so many */ };
#define PIECE_BYTES (UINT64_C(8) << 20) /* of most pieces */
#define LEAST_BYTES (UINT64_C(4) << 20) /* that a rank sends */

/* ---- two terms ---- */

template <typename T>
static __global__ void __launch_bounds__(THREADS) combine_kernel(GPU_PARAMETER struct combine_vectors terms, int64_t count)
{
    __shared__ struct combine_vectors v;
    const int64_t spans = (count + SPAN - 1) / SPAN, first = spans * blockIdx.x / gridDim.x * SPAN,
                  next = spans * (blockIdx.x + 1) / gridDim.x * SPAN, end = next < count ? next : count;

    if (threadIdx.x == 0) {
        v = terms;
        for (uint32_t i = 0; i < v.nterms; i++)
            v.term[i] += (uint64_t)first * sizeof(T);
        v.result[0] += (uint64_t)first * sizeof(T);
    }
    __syncthreads();
    if (first < end)
        combine_group<T, AT_ONCE>{v}.run(end - first);
}

template <typename T> static const void *kernel_of()
{
    return (const void *)combine_kernel<T>;
}

static const void *combine_kernel_of(uint32_t dtype)
{
    switch (dtype) {
    case FCC_U8:
        return kernel_of<uint8_t>();
    case FCC_I8:
        return kernel_of<int8_t>();
    case FCC_I32:
        return kernel_of<int32_t>();
    case FCC_I64:
        return kernel_of<int64_t>();
    case FCC_F64:
        return kernel_of<double>();
    default:
        return GPU_BY_DTYPE(dtype, kernel_of);
    }
}

const void *vectors_kernel(void)
{
    return combine_kernel_of(FCC_F32);
}

/* ---- a call ---- */

/* Half of what is exchanged. */
struct part {
    struct flow_cut out, in;
    uint64_t from;    /* what is sent */
    uint64_t own, to; /* what it is combined with here, 0: nothing; where that goes */
    hipStream_t by;
};

static struct flow_cut cut_of(int64_t elements, uint64_t size, uint32_t number)
{
    const uint64_t room = RINGS_ARRIVALS_BYTES / RINGS_FLOWS;
    struct flow_cut cut = {elements, 1, 0, (int64_t)(256 / size), room / FLOW_PLACES, number * room};

    if (elements)
        cut.count = (uint32_t)(((uint64_t)elements * size + PIECE_BYTES - 1) / PIECE_BYTES);
    return cut;
}

/* Sends a piece of a half, if there is one. */
static void part_send(struct flow *f, const struct part *h, uint32_t number, uint32_t i)
{
    if (i >= h->out.count)
        return;
    /* The elements of a piece are one row. */
    flow_send(f, &h->out, number, i, h->from + (uint64_t)flow_at(&h->out, i) * f->size, 1, 1, h->by);
    flow_record(f, f->p->sent[number * FLOW_PLACES + i % FLOW_PLACES], h->by);
}

static void part_take(struct flow *f, const struct part *h, uint32_t number, uint32_t i)
{
    if (i >= h->in.count)
        return;
    const uint64_t at = (uint64_t)flow_at(&h->in, i) * f->size, come = flow_place(f, f->rings.rank, &h->in, i);
    int64_t count = flow_rows(&h->in, i);

    flow_come(f, number, i);
    if (h->own) {
        if (i < h->out.count)
            flow_follow(f, f->p->sent[number * FLOW_PLACES + i % FLOW_PLACES], f->stream);
        struct combine_vectors v = {};
        v.term[f->rings.rank] = h->own + at;
        v.term[f->other] = come;
        v.result[0] = h->to + at;
        v.nterms = v.nranks = 2;
        v.nresults = 1;
        v.reduction = f->rings.what.reduction;
        void *arguments[] = {&v, &count};
        if (!f->status)
            flow_note(
                f,
                gpu_kernel_launch(combine_kernel_of(f->rings.what.dtype), WORKGROUPS, THREADS, arguments, 0, f->stream, false),
                "combining a vector");
    } else {
        flow_copy(f, h->to + at, 1, come, 1, count, 1, f->stream);
    }
    flow_used(f, &h->in, number, i, f->stream);
}

/* What each rank sends and gets. */
static void parts_find(const struct flow *f, struct part parts[RINGS_FLOWS])
{
    const struct gpu_collective *w = &f->rings.what;
    const bool scatters = w->out_share == VECTOR_OWN, gathers = w->in_share == VECTOR_OWN;
    const int64_t own = scatters ? w->out_elements : w->in_elements, other = scatters  ? w->in_elements - own
                                                                             : gathers ? w->out_elements - own
                                                                                       : own;
    const int64_t out = scatters ? other : own, in = scatters ? own : gathers ? other : own;
    const int64_t send_at = scatters && !f->rings.rank ? own : 0, own_at = scatters && f->rings.rank ? other : 0,
                  to_at = gathers && !f->rings.rank ? own : 0;

    for (uint32_t i = 0; i < RINGS_FLOWS; i++) {
        const int64_t tile = (int64_t)(256 / f->size), out_first = i ? out / 2 / tile * tile : 0,
                      in_first = i ? in / 2 / tile * tile : 0;
        struct part *h = &parts[i];
        h->out = cut_of((i ? out : out / 2 / tile * tile) - out_first, f->size, i);
        h->in = cut_of((i ? in : in / 2 / tile * tile) - in_first, f->size, i);
        h->from = w->in + (uint64_t)(send_at + out_first) * f->size;
        h->own = gathers ? 0 : w->in + (uint64_t)(own_at + in_first) * f->size;
        h->to = w->out + (uint64_t)(to_at + in_first) * f->size;
        h->by = i ? f->p->in : f->p->out;
    }
}

bool vectors_suit(const struct products *products, const struct rings_call *rings)
{
    const struct gpu_collective *w = &rings->what;
    const uint64_t size = w->element_bytes;
    const bool reduces = w->reduces && w->in_share == VECTOR_ALL && (w->out_share == VECTOR_ALL || w->out_share == VECTOR_OWN),
               gathers = !w->reduces && w->in_share == VECTOR_OWN && w->out_share == VECTOR_ALL;
    const uint64_t whole = (uint64_t)(gathers ? w->out_elements : w->in_elements) * size,
                   sent = w->out_share == VECTOR_ALL && w->reduces ? whole : whole / 2;

    /* All that decides is the same on both ranks. A rank's pieces are few enough to be counted, also if it has all of the vector. */
    return products->flows && rings->nranks == 2 && !w->refusal[0] && (reduces || gathers) && sent >= LEAST_BYTES &&
           whole <= PIECE_BYTES * RINGS_PIECES_MOST;
}

int vectors_start(const struct products *products, int gpu, const struct rings_call *rings, hipStream_t stream, struct error *e)
{
    struct flow f = flow_of(products->flows, gpu, rings, rings->what.element_bytes, stream, e);
    struct part parts[RINGS_FLOWS] = {};
    const struct gpu_collective *w = &rings->what;
    const uint64_t own_at =
        w->out + (uint64_t)(w->in_share == VECTOR_OWN && rings->rank ? w->out_elements - w->in_elements : 0) * f.size;

    parts_find(&f, parts);
    flow_begin(&f);
    flow_follow(&f, f.p->begun, f.stream);
    flow_follow(&f, f.p->begun, f.p->in);
    for (uint32_t i = 0; i < FLOW_PLACES; i++)
        for (uint32_t h = 0; h < RINGS_FLOWS; h++)
            part_send(&f, &parts[h], h, i);
    for (uint32_t i = 0; i < parts[1].out.count + FLOW_PLACES || i < parts[1].in.count; i++)
        for (uint32_t h = 0; h < RINGS_FLOWS; h++) {
            part_take(&f, &parts[h], h, i);
            part_send(&f, &parts[h], h, i + FLOW_PLACES);
            if (i == 0 && h == 0 && w->in_share == VECTOR_OWN && own_at != w->in) /* while more is on its way */
                flow_copy(&f, own_at, w->in_elements, w->in, w->in_elements, 1, w->in_elements, f.stream);
        }
    flow_behind(&f, f.p->joined, f.p->out, f.stream);
    flow_behind(&f, f.p->forked, f.p->in, f.stream);
    return f.status;
}
