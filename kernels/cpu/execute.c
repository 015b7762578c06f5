/* SPDX-License-Identifier: MIT
 *
 * execute.c - which functions execute an operator's slices, and a workgroup's scratch memory.
 */
#include "kernels/cpu/execute.h"
#include "kernels/cpu/epilogue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static cpu_compute *const computes[] = {[COMPUTE_BAG] = cpu_bag,
                                        [COMPUTE_GEMV] = cpu_gemv,
                                        [COMPUTE_GEMM] = cpu_gemm,
                                        [COMPUTE_VECTOR] = cpu_vector,
                                        [COMPUTE_STEP] = cpu_vector};
static const struct cpu_exchange *const exchanges[] = {
    [EXCHANGE_PUT] = &cpu_put, [EXCHANGE_REDUCE] = &cpu_reduce, [EXCHANGE_GATHER] = &cpu_gather};

/* Adds a tile to what other ranks have added. */
static int slice_add(const struct run *run, const struct slice *s, struct place *to, struct workgroup *wg, struct error *e)
{
    (void)pthread_mutex_lock(&to->tile->lock);
    to->adds = to->tile->added > 0;
    const int status = computes[op_spec(run->plan->op)->compute](run, s, to, wg, e);
    if (!status)
        to->tile->added = (to->tile->added + 1) % run->problem->nranks;
    (void)pthread_mutex_unlock(&to->tile->lock);
    return status;
}

int cpu_slice(const struct run *run, const struct slice *s, struct workgroup *wg, struct error *e)
{
    const struct op_spec *op = op_spec(run->plan->op);
    const struct cpu_exchange *x = exchanges[op->exchange];

    assert(x); /* who exchanges nothing only waits */
    if (s->kind == SLICE_COMPUTE_PUT || s->kind == SLICE_COMPUTE) {
        struct place to = x->place(run, s);
        if (to.tile)
            return slice_add(run, s, &to, wg, e);
        return computes[op->compute](run, s, &to, wg, e);
    }
    if (s->kind == SLICE_ROWS)
        return cpu_rows(run, s, wg, e);
    x->move(run, s);
    return 0;
}

uint32_t cpu_slices_together(const struct run *run, uint32_t first)
{
    const struct op_spec *op = op_spec(run->plan->op);

    return op->compute == COMPUTE_GEMM && op->exchange == EXCHANGE_PUT ? gemm_together(run, first) : 1;
}

int cpu_slices(const struct run *run, uint32_t first, uint32_t count, struct workgroup *wg, struct error *e)
{
    return count == 1 ? cpu_slice(run, &run->plan->slices[first], wg, e) : gemm_slices(run, first, count, wg, e);
}

void cpu_slice_area(const struct run *run, const struct slice *s, int dst, struct put_area *out)
{
    exchanges[op_spec(run->plan->op)->exchange]->area(run, s, dst, out);
}

void rows_copy(unsigned char *dst, size_t dst_stride, const unsigned char *src, size_t src_stride, uint32_t rows, size_t bytes)
{
    if (dst_stride == bytes && src_stride == bytes) {
        memcpy(dst, src, rows * bytes);
        return;
    }
    for (uint32_t i = 0; i < rows; i++)
        memcpy(dst + i * dst_stride, src + i * src_stride, bytes);
}

void *workgroup_scratch(struct workgroup *wg, size_t bytes)
{
    if (bytes > wg->scratch_bytes || !wg->scratch) {
        if (bytes > SIZE_MAX - 4096)
            return NULL;
        size_t room = (bytes + 4095) & ~(size_t)4095;
        void *memory = aligned_alloc(64, room ? room : 4096);
        if (!memory)
            return NULL;
        free(wg->scratch);
        wg->scratch = memory;
        wg->scratch_bytes = room ? room : 4096;
    }
    return wg->scratch;
}

void workgroup_release(struct workgroup *wg)
{
    free(wg->scratch);
    wg->scratch = NULL;
    wg->scratch_bytes = 0;
}
