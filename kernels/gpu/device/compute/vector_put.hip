/* SPDX-License-Identifier: MIT
 *
 * vector_put.hip - collectives that only move: a slice is a piece of what a rank has for another, which is stored into that rank's
 * result. Elements keep their bits, so all dtypes are bytes here.
 */
#include "kernels/gpu/device/exchange/group_copy.h"
#include "kernels/gpu/device/registry.h"
#include "kernels/gpu/device/vector_parts.h"

enum { THREADS = 512, RESIDENT = 2 };

struct vector_put {
    __device__ __forceinline__ bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        const struct gpu_shape &shape = call.fixed->shape;
        const int64_t *parts = (const int64_t *)call.in[run].vector.parts;
        const struct vector_piece piece = vector_piece_moved(shape, parts, s);
        const char *from = (const char *)call.in[run].vector.in + (parts[s.dst] + piece.at) * shape.element_bytes;
        char *to = (char *)call.out[s.dst].data + (parts[shape.nranks + s.dst] + piece.at) * shape.element_bytes;

        if (from != to) /* in place, a rank's own part is where it belongs */
            group_copy(to, from, (uint64_t)piece.count * shape.element_bytes);
        return true;
    }
};

static __global__ void __launch_bounds__(THREADS, RESIDENT) vector_put_kernel(GPU_PARAMETER struct gpu_call call)
{
    struct vector_put op;

    gpu_execute(call, op);
}

static __global__ void __launch_bounds__(THREADS, RESIDENT) vector_put_over_nodes_kernel(GPU_PARAMETER struct gpu_call call)
{
    struct vector_put op;

    gpu_execute_over_nodes(call, op);
}

bool gpu_vector_put_fits(const struct gpu_shape *shape, int, const struct gpu_run[], int, struct gpu_choice *out)
{
    out->kernel = {shape->over_nodes ? (const void *)vector_put_over_nodes_kernel : (const void *)vector_put_kernel, THREADS, 0,
                   0};
    return true;
}
