/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/epilogue.h"

#include "kernels/plan/dtype.h"
#include "kernels/plan/epilogue.h"
#include "kernels/plan/tensor.h"

enum { PIECE = 256 }; /* elements */

const struct epilogue *epilogue_at(const struct run *run, const struct slice *s, struct epilogue *out)
{
    const struct op_args *args = &run->args[run->rank];

    if (!run->problem->stages)
        return NULL;
    const struct tensor *bias = epilogue_tensor(args, STAGE_BIAS), *residual = epilogue_tensor(args, STAGE_RESIDUAL);
    *out = (struct epilogue){.dtype = run->problem->dtype};
    if (bias)
        out->bias = bias->data + s->col * dtype_size(out->dtype);
    if (residual) {
        out->residual = tensor_at(residual, s->row, s->col);
        out->residual_ld = residual->stride[0];
    }
    return out;
}

static void add(float *sums, const unsigned char *from, enum fcc_dtype dtype, size_t n)
{
    float piece[PIECE];

    for (size_t done = 0; done < n; done += PIECE) {
        size_t count = n - done < PIECE ? n - done : PIECE;
        dtype_to_f32(piece, from + done * dtype_size(dtype), dtype, count);
        for (size_t i = 0; i < count; i++)
            sums[done + i] += piece[i];
    }
}

void epilogue_add(const struct epilogue *p, int64_t row, int64_t col, float *sums, size_t n)
{
    int64_t size = (int64_t)dtype_size(p->dtype);

    if (p->bias)
        add(sums, p->bias + col * size, p->dtype, n);
    if (p->residual)
        add(sums, p->residual + (row * p->residual_ld + col) * size, p->dtype, n);
}
