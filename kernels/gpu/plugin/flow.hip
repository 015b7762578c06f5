/* SPDX-License-Identifier: MIT
 *
 * flow.hip - see flow.h.
 */
#include "kernels/gpu/plugin/flow.h"

#include <stdlib.h>

#include "kernels/gpu/device/exchange/rings_run.h"
#include "kernels/gpu/plugin/product.h"

enum { BEGIN_THREADS = 64 };
static_assert(FLOW_PLACES == 2, "events");

/* ---- kernels ---- */

static __global__ void __launch_bounds__(BEGIN_THREADS) flow_begin_kernel(GPU_PARAMETER struct rings_call c, bool goes_on)
{
    __shared__ struct rings_run run;

    gpu_follow();
    const bool begun = rings_begin(c, &run);
    for (uint32_t i = threadIdx.x; i <= RINGS_PIECES_MOST; i += BEGIN_THREADS)
        rings_head_of(c, c.rank)->counts[i] = rings_piece_count(run.number, i);
    if (begun)
        (void)rings_meet(c, &run, false, true);
    rings_end(c, run, goes_on);
}

/* The run that has begun last, and whether the communicator is over. */
GPU_DEVICE uint64_t flow_run(const struct rings_call &c, bool *over)
{
    uint64_t failed = 0, products = 0;

    gpu_load_relaxed_pair(true, rings_failure_of(c, c.rank), &failed, &products);
    *over = failed == UINT64_MAX;
    return gpu_load_relaxed(&rings_head_of(c, c.rank)->begun) / RINGS_UNITS + products;
}

static __global__ void flow_await_kernel(GPU_PARAMETER struct rings_call c, const uint64_t *word, uint32_t pieces, bool last)
{
    struct rings_run run = {};

    run.number = flow_run(c, &run.over);
    if (run.over)
        return;
    const bool come = rings_await(c, run, word, rings_piece_count(run.number, pieces));
    if (!come)
        gpu_store_relaxed((uint64_t *)c.failed, run.number);
    if (last || !come)
        rings_record_end(c, run.number, !come);
    if (run.told)
        gpu_store_relaxed((uint64_t *)c.ended, (uint64_t)(uint32_t)run.number);
}

const void *flows_kernel(void)
{
    return (const void *)flow_begin_kernel;
}

/* ---- streams, events and memory ---- */

int flows_open(int gpu, struct flows **out, struct error *e)
{
    struct flows *p = (struct flows *)calloc(1, sizeof(*p));
    int least = 0, most = 0;
    hipError_t status = hipDeviceGetStreamPriorityRange(&least, &most);

    if (!p)
        return error_set(e, -ENOMEM, "%s GPU %d: no memory for products in pieces", GPU_KIND, gpu);
    hipEvent_t *events[] = {&p->forked, &p->begun, &p->joined, &p->made[0], &p->made[1], &p->sent[0], &p->sent[1]};
    for (hipStream_t *stream : {&p->out, &p->in})
        if (status == hipSuccess)
            status = hipStreamCreateWithPriority(stream, hipStreamNonBlocking, most);
    for (hipEvent_t *event : events)
        if (status == hipSuccess)
            status = hipEventCreateWithFlags(event, hipEventDisableTiming);
    if (status != hipSuccess) {
        flows_close(p, gpu);
        return gpu_error(e, gpu, "streams for products in pieces", status);
    }
    *out = p;
    return 0;
}

void flows_close(struct flows *p, int gpu)
{
    if (!p)
        return;
    for (hipStream_t stream : {p->out, p->in})
        if (stream)
            (void)hipStreamDestroy(stream);
    for (hipEvent_t event : {p->forked, p->begun, p->joined, p->made[0], p->made[1], p->sent[0], p->sent[1]})
        if (event)
            (void)hipEventDestroy(event);
    if (p->own)
        (void)hipFreeAsync(p->own, gpus[gpu].side);
    free(p);
}

void flow_own(struct flow *f)
{
    if (f->status || f->p->own)
        return;
    struct outside_captures outside;
    flow_note(f, hipMallocAsync(&f->p->own, FLOW_OWN_BYTES, gpus[f->gpu].side), "memory for products in pieces");
    if (!f->status)
        flow_note(f, hipStreamSynchronize(gpus[f->gpu].side), "memory for products in pieces");
}

/* ---- pieces ---- */

int64_t flow_at(const struct flow_cut *cut, uint32_t piece)
{
    const int64_t at = cut->count ? cut->rows * piece / cut->count : 0;

    return piece < cut->count && cut->rows >= 2 * cut->tile * cut->count ? at / cut->tile * cut->tile : at;
}

int64_t flow_rows(const struct flow_cut *cut, uint32_t piece)
{
    return flow_at(cut, piece + 1) - flow_at(cut, piece);
}

bool flow_fits(const struct flow_cut *cut, uint64_t size)
{
    bool fits = true;

    for (uint32_t i = 0; i < cut->count; i++)
        fits &= (uint64_t)flow_rows(cut, i) * (uint64_t)cut->row * size <= cut->place_bytes;
    return fits;
}

/* ---- a call ---- */

struct flow flow_of(struct flows *flows, int gpu, const struct rings_call *rings, uint64_t size, hipStream_t stream,
                    struct error *e)
{
    return {flows, *rings, stream, gpu, rings->rank ^ 1u, size, e, 0};
}

void flow_note(struct flow *f, hipError_t status, const char *doing)
{
    if (!f->status && status != hipSuccess)
        f->status = gpu_error(f->e, f->gpu, doing, status);
}

void flow_record(struct flow *f, hipEvent_t event, hipStream_t stream)
{
    if (!f->status)
        flow_note(f, hipEventRecord(event, stream), "products in pieces");
}

void flow_follow(struct flow *f, hipEvent_t event, hipStream_t stream)
{
    if (!f->status)
        flow_note(f, hipStreamWaitEvent(stream, event, 0), "products in pieces");
}

void flow_behind(struct flow *f, hipEvent_t event, hipStream_t first, hipStream_t second)
{
    flow_record(f, event, first);
    flow_follow(f, event, second);
}

static void kernel(struct flow *f, const void *function, uint32_t threads, void *arguments[], hipStream_t stream)
{
    if (!f->status)
        flow_note(f, gpu_kernel_launch(function, 1, threads, arguments, 0, stream, false), "products in pieces");
}

static struct rings_head *head(const struct flow *f, uint32_t rank)
{
    return (struct rings_head *)f->rings.rings[rank];
}

/* What the caller's stream does next needs so many pieces of this rank's word. last: it is the run's last such wait. */
static void await(struct flow *f, const uint64_t *word, uint32_t pieces, bool last)
{
    void *arguments[] = {&f->rings, &word, &pieces, &last};

    kernel(f, (const void *)flow_await_kernel, 1, arguments, f->stream);
}

/* The other rank's word, behind what the stream has been given. */
static void tell(struct flow *f, hipStream_t stream, uint64_t *word, uint32_t pieces)
{
    if (!f->status)
        flow_note(f,
                  hipMemcpyAsync(word, &head(f, f->rings.rank)->counts[pieces], sizeof(*word), hipMemcpyDeviceToDevice, stream),
                  "a word");
}

void flow_copy(struct flow *f, uint64_t to, int64_t to_stride, uint64_t from, int64_t from_stride, int64_t rows, int64_t row,
               hipStream_t stream)
{
    const uint64_t wide = (uint64_t)row * f->size;

    if (f->status || rows == 0 || row == 0)
        return;
    if (rows == 1 || (to_stride == row && from_stride == row))
        flow_note(f, hipMemcpyAsync((void *)to, (const void *)from, wide * (uint64_t)rows, hipMemcpyDeviceToDevice, stream),
                  "a copy");
    else
        flow_note(f,
                  hipMemcpy2DAsync((void *)to, (uint64_t)to_stride * f->size, (const void *)from,
                                   (uint64_t)from_stride * f->size, wide, (uint64_t)rows, hipMemcpyDeviceToDevice, stream),
                  "a copy");
}

uint64_t flow_place(const struct flow *f, uint32_t rank, const struct flow_cut *cut, uint32_t piece)
{
    return f->rings.rings[rank] + rings_arrivals_at(f->rings.nranks) + cut->at + piece % FLOW_PLACES * cut->place_bytes;
}

void flow_tell_come(struct flow *f, hipStream_t stream, uint32_t flow, uint32_t pieces)
{
    tell(f, stream, &head(f, f->other)->come[flow], pieces);
}

void flow_send(struct flow *f, const struct flow_cut *cut, uint32_t flow, uint32_t piece, uint64_t from, int64_t from_stride,
               int64_t row)
{
    if (piece >= FLOW_PLACES)
        await(f, &head(f, f->rings.rank)->used[flow], piece - FLOW_PLACES + 1, false);
    flow_behind(f, f->p->made[piece % FLOW_PLACES], f->stream, f->p->out);
    flow_copy(f, flow_place(f, f->other, cut, piece), cut->row, from, from_stride, flow_rows(cut, piece), row, f->p->out);
    flow_tell_come(f, f->p->out, flow, piece + 1);
}

void flow_come(struct flow *f, uint32_t flow, uint32_t piece, bool last)
{
    await(f, &head(f, f->rings.rank)->come[flow], piece + 1, last);
}

void flow_used(struct flow *f, const struct flow_cut *cut, uint32_t flow, uint32_t piece, hipStream_t stream)
{
    if (piece + FLOW_PLACES < cut->count)
        tell(f, stream, &head(f, f->other)->used[flow], piece + 1);
}

void flow_begin(struct flow *f, bool goes_on)
{
    void *arguments[] = {&f->rings, &goes_on};

    flow_behind(f, f->p->forked, f->stream, f->p->out);
    kernel(f, (const void *)flow_begin_kernel, BEGIN_THREADS, arguments, f->p->out);
    flow_record(f, f->p->begun, f->p->out);
}
