/* SPDX-License-Identifier: MIT
 *
 * gemv_row_host.h - the host's side of gemv_row.h: for which calls its kernel is used, and its arguments. Part of gemv.hip.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMV_ROW_HOST_H
#define FCC_KERNELS_GPU_DEVICE_COMPUTE_GEMV_ROW_HOST_H

#include "kernels/gpu/device/compute/gemv_row.h"

/* Whether slices [first, end) cover columns 0 to n in order, each with `cols` columns, one row and no flag. */
static bool row_slices_fit(const struct slice *slices, uint32_t first, uint32_t end, int kind, uint32_t n, uint32_t *each)
{
    uint32_t col = 0;

    *each = end > first ? slices[first].cols : 0;
    for (uint32_t i = first; i < end; i++, col += *each) {
        const struct slice *s = &slices[i];
        uint32_t cols = n - col < *each ? n - col : *each;
        if (s->kind != kind || s->col != col || s->cols != cols || s->group != SLICE_NO_GROUP || s->wait_count)
            return false;
    }
    return *each > 0 && col >= n;
}

/* Whether the kernel can execute these plans; if so, their slices' sizes. */
static bool row_plans_fit(const struct gpu_shape *shape, const struct gpu_run runs[], int nruns, uint32_t *tile,
                          uint32_t *reduced)
{
    for (int i = 0; i < nruns; i++) {
        const struct gpu_run *r = &runs[i];
        if (r->first[GPU_PHASE_PUT] != r->first[GPU_PHASE_REDUCE] || r->first[GPU_PHASE_WAIT] != r->first[GPU_PHASES] ||
            !row_slices_fit(r->slices, 0, r->first[GPU_PHASE_PUT], SLICE_COMPUTE_PUT, (uint32_t)shape->n, tile) ||
            !row_slices_fit(r->slices, r->first[GPU_PHASE_REDUCE], r->first[GPU_PHASE_WAIT], SLICE_REDUCE, (uint32_t)shape->n,
                            reduced) ||
            r->slices[0].dst != SLICE_DST_ALL)
            return false;
    }
    return true;
}

static struct row_deal row_deal_make(uint32_t all, uint32_t parts)
{
    return {all / parts, all % parts};
}

template <typename T> static struct gpu_kernel gemv_row_kernel_get(const struct gpu_shape *shape, int nruns, uint32_t most)
{
    uint32_t parts = ((uint32_t)shape->n + ROW_LEAST - 1) / ROW_LEAST, fit = most / (uint32_t)nruns;
    uint64_t x_bytes = (uint64_t)shape->k * sizeof(T) / 16 * 16, least = ROW_X_LEAST, room = x_bytes < least ? least : x_bytes;
    struct gpu_kernel k = {(const void *)gemv_row_kernel<T>, ROW_THREADS, ROW_RING + room, 1};

    k.workgroups = (uint32_t)nruns * (parts < fit ? parts : fit > 0 ? fit : 1);
    if (room > ROW_X_MOST || /* the attribute belongs to the function: as much as any shape needs */
        hipFuncSetAttribute(k.function, hipFuncAttributeMaxDynamicSharedMemorySize, ROW_RING + ROW_X_MOST) != hipSuccess)
        k.function = NULL;
    return k;
}

/* Fills in the kernel's second argument for a call. False: the kernel cannot execute the call. `workgroups`: those of the
 * kernel. */
static bool gemv_row_fill(struct gemv_row *row, const struct gpu_choice *choice, const struct gpu_call *call,
                          const struct gpu_fixed *fixed)
{
    const struct gpu_shape *shape = &fixed->shape;
    uint64_t size = shape->dtype == FCC_F32 ? 4 : 2;

    row->parts = choice->kernel.workgroups / call->nruns;
    row->nranks = shape->nranks;
    row->n = (uint32_t)shape->n;
    row->cols = row_deal_make(row->n, row->parts);
    row->quads = row_deal_make((row->n + GEMV_QUAD - 1) / GEMV_QUAD, row->parts);
    row->tile = choice->tile;
    row->reduced = choice->reduced;
    row->slot_bytes = shape->slot_bytes;
    for (uint32_t r = 0; r < shape->nranks; r++)
        row->slots[r] = fixed->slots[r] + (call->series.numbered ? 0 : call->slots_at);
    for (uint32_t i = 0; i < call->nruns; i++) {
        const struct gpu_input *in = &call->in[i];
        uint64_t whole = (uint64_t)in->gemv.k * size / 16 * 16, pitch = (uint64_t)in->gemv.w_stride * size;
        if (in->gemv.x % 16 || in->gemv.w % 16 || (pitch % 16 && in->gemv.n > 1))
            return false;
        row->runs[i] = {in->gemv.x, in->gemv.w, pitch, (uint32_t)whole, call->plans[i].rank};
    }
    return true;
}

#endif
