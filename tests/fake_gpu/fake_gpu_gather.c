/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_gather.c - the slices of all_gather_gemm: rows of any dtype are copied, tiles of f32 computed, with bias and residual.
 */
#include <string.h>

#include "tests/fake_gpu/fake_gpu_inside.h"

static const unsigned char *at(uint64_t begin, int64_t row, int64_t stride, size_t size)
{
    return (const unsigned char *)pointer(begin) + (size_t)(row * stride) * size;
}

static void rows_copy_to(uint64_t to, int64_t stride, const unsigned char *from, int64_t from_stride, const struct slice *s,
                         size_t size)
{
    for (uint32_t i = 0; i < s->rows; i++)
        memcpy((unsigned char *)pointer(to) + (s->row + i) * (size_t)stride * size, from + i * (size_t)from_stride * size,
               s->cols * size);
}

static void tile_compute(const struct task *t, const struct gpu_plan *plan, const struct slice *s, const float *a,
                         int64_t stride)
{
    const struct gpu_input *in = &t->call.in[plan - t->launch->fixed.plans];
    const struct gpu_output *out = &t->call.out[plan->rank];
    const float *b = pointer(in->gemm.b), *bias = pointer(in->bias), *residual = pointer(in->residual);

    for (uint32_t i = 0; i < s->rows; i++)
        for (uint32_t j = s->col; j < s->col + s->cols; j++) {
            float sum = 0;
            for (int64_t q = 0; q < in->gemm.k; q++)
                sum += a[i * stride + q] * b[q * in->gemm.b_stride + j];
            sum += bias ? bias[j] : 0;
            sum += residual ? residual[(s->row + i) * in->residual_stride + j] : 0;
            ((float *)pointer(out->data))[(s->row + i) * out->stride[0] + j] = sum;
        }
}

void gather_slice_run(const struct task *t, const struct gpu_plan *plan, const struct slice *s)
{
    const struct gpu_fixed *fixed = &t->launch->fixed;
    const struct gpu_input *in = &t->call.in[plan - fixed->plans];
    const size_t size = fixed->shape.dtype == FCC_F32 ? 4 : 2;
    const bool own = s->slot == plan->rank;
    const int64_t stride = own ? in->gemm.a_stride : fixed->shape.k;
    const unsigned char *rows = own ? at(in->gemm.a, s->row - fixed->shape.first[plan->rank], stride, size)
                                    : at(fixed->staging[plan->rank], s->row, stride, size);

    if (s->kind == SLICE_PUT)
        rows_copy_to(fixed->staging[s->dst], fixed->shape.k, rows, stride, s, size);
    else if (s->kind == SLICE_FORWARD)
        rows_copy_to(in->gemm.gathered, in->gemm.gathered_stride, rows, stride, s, size);
    else if (s->kind == SLICE_COMPUTE_PUT && fixed->shape.dtype == FCC_F32)
        tile_compute(t, plan, s, (const float *)(const void *)rows, stride);
}
