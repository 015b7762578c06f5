/* SPDX-License-Identifier: MIT
 *
 * generated.h - what the source of a program's step is written with (kernels/generate/generate.c): its kernel, and the loop over slices; generated_values.h
 * has loads, stores and operations. The slices, and so the memory order, are those of the interpreter (kernels/gpu/device/compute/step.hip).
 *
 * A source has one struct, Step, which has
 *
 *     WIDTH, RANKS, SUMS     elements of a thread at a time; ranks whose inputs are added up; 1: there is such a sum, and a result
 *     index                  the integer that counts elements
 *     sum_type, out_type     dtypes of the inputs that are added up, and of the result
 *     begin(step, code)      takes a run's addresses and numbers, which then are in registers for all slices
 *     wide(e)                whether WIDTH elements from e on may be loaded and stored at once
 *     loaded<WIDE>, load(e, loaded)      what is loaded of the elements from e on: WIDTH of them, or 1
 *     run(e, sum, loaded, result)        works on them, and stores
 */
#ifndef FCC_KERNELS_GPU_DEVICE_GENERATED_H
#define FCC_KERNELS_GPU_DEVICE_GENERATED_H

#include "kernels/gpu/device/generated_values.h"
#include "kernels/gpu/device/vector_parts.h"
#include "kernels/gpu/step.h"

/* Threads of a workgroup, and workgroups of a multiprocessor: as many workgroups in all as a plan has tiles where there is much to do (GPU_TILES in
 * kernels/plan/compute/vector.c). */
#ifndef GENERATED_THREADS
#define GENERATED_THREADS 512
#define GENERATED_RESIDENT 2
#endif

/* ---- slices ---- */

template <typename Step> struct generated_run {
    typedef typename Step::index index;
    Step step;
    const struct gpu_step *of = NULL; /* the run of which `step` has the addresses and numbers */
    uint64_t reached;                 /* ranks that get the slice's result: a bit each */

    /* What a thread has loaded of its elements. */
    template <int WIDE> struct loaded {
        floats<WIDE> in[Step::SUMS ? Step::RANKS : 1];
        typename Step::template loaded<WIDE> own;
    };

    template <int WIDE> __device__ __forceinline__ void load(const struct gpu_call &call, index e, loaded<WIDE> &to) const
    {
#pragma unroll
        for (int r = 0; Step::SUMS && r < Step::RANKS; r++)
            to.in[r] = generated_load<WIDE>(((const typename Step::sum_type *)call.out[r].in) + e);
        step.load(e, to.own);
    }

    /* The elements from e on: the sum in rank order, the step, and the result to all ranks, beginning with the next one. */
    template <int WIDE>
    __device__ __forceinline__ void work(const struct gpu_call &call, uint32_t rank, index e, const loaded<WIDE> &from) const
    {
        floats<WIDE> sum = from.in[0], result;

#pragma unroll
        for (int r = 1; Step::SUMS && r < Step::RANKS; r++)
            sum = step_add(sum, from.in[r]);
        step.run(e, sum, from.own, result);
#pragma unroll
        for (uint32_t r = 0; Step::SUMS && r < Step::RANKS; r++) {
            const uint32_t dst = gpu_rank_at(r, rank, Step::RANKS);
            if (reached >> dst & 1u)
                generated_store<WIDE>(((typename Step::out_type *)call.out[dst].data) + e, result);
        }
    }

    template <int WIDE> __device__ __forceinline__ void elements(const struct gpu_call &call, uint32_t rank, index e) const
    {
        loaded<WIDE> some;

        load(call, e, some);
        work(call, rank, e, some);
    }

    __device__ __forceinline__ bool is_wide(const struct gpu_call &call, index e) const
    {
        bool wide = step.wide(e);

        if constexpr (Step::SUMS)
            for (int r = 0; r < Step::RANKS; r++)
                wide = wide && generated_is_wide<Step::WIDTH>(((const typename Step::sum_type *)call.out[r].in) + e) &&
                       generated_is_wide<Step::WIDTH>(((const typename Step::out_type *)call.out[r].data) + e);
        return wide;
    }

    __device__ __forceinline__ void begin(const struct gpu_call &call, const struct gpu_plan *plan, uint32_t run,
                                          const struct slice &s)
    {
        const struct gpu_step *now = (const struct gpu_step *)call.in[run].vector.parts;
        const struct code_head *head = (const struct code_head *)(now + 1);

        if (now != of)
            step.begin(*now, (const struct code_instruction *)((const struct code_operand *)(head + 1) + head->operands));
        of = now;
        reached = 0;
        for (uint32_t dst = 0; Step::SUMS && dst < Step::RANKS; dst++)
            reached |= (uint64_t)gpu_plan_reaches(plan, s.dst, dst) << dst;
    }

    __device__ __forceinline__ bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        const struct gpu_plan *plan = gpu_plan_of(call, run);
        const struct gpu_shape &shape = call.fixed->shape;

        begin(call, plan, run, s);
        const struct vector_piece piece =
            Step::SUMS ? vector_piece_reduced(shape, plan->rank, s)
                       : vector_piece_make(shape, of->begin + (int64_t)s.col * shape.unit, s.cols, of->begin + of->count);
        const index end = (index)(piece.at + piece.count),
                    first = (index)((piece.at + Step::WIDTH - 1) / Step::WIDTH * Step::WIDTH);
        index e = (index)piece.at + threadIdx.x;
        if (Step::WIDTH > 1 && first + Step::WIDTH <= end && is_wide(call, first)) {
            if (e < first)
                elements<1>(call, plan->rank, e);
            const index last = first + (end - first) / Step::WIDTH * Step::WIDTH;
            for (e = first + threadIdx.x * Step::WIDTH; e < last; e += blockDim.x * Step::WIDTH)
                elements<Step::WIDTH>(call, plan->rank, e);
            e = last + threadIdx.x;
        }
        for (; e < end; e += blockDim.x)
            elements<1>(call, plan->rank, e);
        return true;
    }
};

/* The kernel, whose name the plug-in asks for. */
#define GENERATED_KERNEL(Step)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(GENERATED_THREADS, GENERATED_RESIDENT)                                        \
        fcc_generated_step(GPU_PARAMETER struct gpu_call call)                                                                 \
    {                                                                                                                          \
        struct generated_run<Step> op;                                                                                         \
                                                                                                                               \
        gpu_execute(call, op);                                                                                                 \
    }
#endif
