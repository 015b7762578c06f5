/* SPDX-License-Identifier: MIT
 *
 * generated.h - what the source of a program's step is written with (kernels/generate/generate.c): its kernel, and the loop over slices; generated_values.h
 * has loads, stores and operations. The slices, and so the memory order, are those of the interpreter (kernels/gpu/device/compute/step.hip).
 *
 * A source has one struct, Step, which has
 *
 *     WIDTH, RANKS, SUMS     elements of a thread at a time; the ranks; 1: their inputs are added up
 *     GIVES                  1: all ranks get a result
 *     index                  the integer that counts elements
 *     sum_type, out_type     dtypes of the inputs that are added up, and of the result
 *     begin(step, code)      takes a run's addresses and numbers, which then are in registers for all slices
 *     wide(e)                whether WIDTH elements from e on, a multiple of WIDTH, and from others behind it may be loaded and stored at once. Not with a
 *                            table: each load and store looks (ANY)
 *     loaded<WIDE>, load<WIDE, ANY>(e, loaded)      what is loaded of the elements from e on: WIDTH of them, or 1
 *     run<WIDE, ANY>(e, sum, loaded, result, terms) works on them, and stores; `terms` are what is added to the step's own sums
 *     LANES, EACH            how many such sums it has, and of how many elements each (0: of a table's tensors, or there are none): step_sums.h
 *     sum_store(sum, at, total)          stores what follows from a sum
 *     TABLE                  1: the elements are those of a table's tensors, and segment(step, number) goes to a tensor of it
 */
#ifndef FCC_KERNELS_GPU_DEVICE_GENERATED_H
#define FCC_KERNELS_GPU_DEVICE_GENERATED_H

#include "kernels/gpu/device/exchange/step_sums.h"
#include "kernels/gpu/device/generated_values.h"
#include "kernels/gpu/step.h"

/* Threads of a workgroup, and workgroups of a multiprocessor: as many workgroups in all as a plan has tiles where there is much to do (VECTOR_GPU_TILES in
 * kernels/plan/compute/vector.h). */
#ifndef GENERATED_THREADS
#define GENERATED_THREADS STEP_THREADS
#define GENERATED_RESIDENT 2
#endif

/* ---- slices ---- */

template <typename Step, bool ANY> struct generated_sums;

template <typename Step> struct generated_run {
    typedef typename Step::index index;
    Step step;
    const struct gpu_step *of = NULL; /* the run of which `step` has the addresses and numbers */
    uint64_t reached;                 /* ranks that get the slice's result: a bit each */

    uint64_t in_at[Step::TABLE && Step::SUMS ? Step::RANKS : 1], out_at[Step::TABLE && Step::GIVES ? Step::RANKS : 1];
    const struct gpu_call *call;
    uint32_t rank;

    enum { LANES = Step::LANES ? Step::LANES : 1 };

    /* What a thread has loaded of its elements. */
    template <int WIDE> struct loaded {
        floats<WIDE> in[Step::SUMS ? Step::RANKS : 1];
        typename Step::template loaded<WIDE> own;
    };

    /* Where a rank's input is, and its result, for elements of the tensor at hand. */
    __device__ __forceinline__ const typename Step::sum_type *in_of(int r) const
    {
        return (const typename Step::sum_type *)(Step::TABLE ? in_at[r] : call->out[r].in);
    }
    __device__ __forceinline__ typename Step::out_type *out_of(uint32_t r) const
    {
        return (typename Step::out_type *)(Step::TABLE ? out_at[r] : call->out[r].data);
    }

    template <int WIDE, bool ANY> __device__ __forceinline__ void load(index e, loaded<WIDE> &to) const
    {
#pragma unroll
        for (int r = 0; Step::SUMS && r < Step::RANKS; r++)
            to.in[r] = generated_load_at<WIDE, ANY>(in_of(r) + e);
        step.template load<WIDE, ANY>(e, to.own);
    }

    /* The elements from e on: the sum in rank order, the step, and the result to all ranks, beginning with the next one. */
    template <int WIDE, bool ANY>
    __device__ __forceinline__ void work(index e, const loaded<WIDE> &from, floats<WIDE> (&terms)[LANES]) const
    {
        floats<WIDE> sum = from.in[0], result;

#pragma unroll
        for (int r = 1; Step::SUMS && r < Step::RANKS; r++)
            sum = step_add(sum, from.in[r]);
        step.template run<WIDE, ANY>(e, sum, from.own, result, terms);
#pragma unroll
        for (uint32_t r = 0; Step::GIVES && r < Step::RANKS; r++) {
            const uint32_t dst = gpu_rank_at(r, rank, Step::RANKS);
            if (!(reached >> dst & 1u))
                continue;
            generated_store_at<WIDE, ANY>(out_of(dst) + e, result);
        }
    }

    template <int WIDE> __device__ __forceinline__ void elements(index e) const
    {
        loaded<WIDE> some;
        floats<WIDE> terms[LANES];

        load<WIDE, Step::TABLE != 0>(e, some);
        work<WIDE, Step::TABLE != 0>(e, some, terms);
    }

    __device__ __forceinline__ bool is_wide(index e) const
    {
        if constexpr (Step::TABLE) {
            return true;
        } else {
            bool wide = step.wide(e);
            for (int r = 0; Step::SUMS && r < Step::RANKS; r++)
                wide = wide && generated_is_wide<Step::WIDTH>(in_of(r) + e);
            for (uint32_t r = 0; Step::GIVES && r < Step::RANKS; r++)
                wide = wide && generated_is_wide<Step::WIDTH>(out_of(r) + e);
            return wide;
        }
    }

    __device__ __forceinline__ void begin(const struct gpu_call &of_call, const struct gpu_plan *plan, uint32_t run,
                                          const struct slice &s)
    {
        const struct gpu_step *now = (const struct gpu_step *)of_call.in[run].vector.parts;
        const struct code_head *head = step_head(now);

        if (now != of)
            step.begin(*now, (const struct code_instruction *)((const struct code_operand *)(head + 1) + head->operands));
        of = now;
        call = &of_call;
        rank = plan->rank;
        reached = 0;
        for (uint32_t dst = 0; Step::GIVES && dst < Step::RANKS; dst++)
            reached |= (uint64_t)gpu_plan_reaches(plan, s.dst, dst) << dst;
    }

    /* Elements [from, end), of one tensor if there is a table; WIDTH at a time from a multiple of it behind `origin` on. */
    __device__ __forceinline__ void range(int64_t from, int64_t to, int64_t origin) const
    {
        const index end = (index)to, first = (index)(origin + (from - origin + Step::WIDTH - 1) / Step::WIDTH * Step::WIDTH);
        index e = (index)from + threadIdx.x;
        if (Step::WIDTH > 1 && first + Step::WIDTH <= end && is_wide(first)) {
            if (e < first)
                elements<1>(e);
            const index last = first + (end - first) / Step::WIDTH * Step::WIDTH;
            for (e = first + threadIdx.x * Step::WIDTH; e < last; e += blockDim.x * Step::WIDTH)
                elements<Step::WIDTH>(e);
            e = last + threadIdx.x;
        }
        for (; e < end; e += blockDim.x)
            elements<1>(e);
    }

    /* ---- for generated_sums ---- */

    __device__ __forceinline__ void segment_take(int64_t number)
    {
        if constexpr (Step::TABLE) {
            step.segment(*of, number);
#pragma unroll
            for (int r = 0; Step::SUMS && r < Step::RANKS; r++)
                in_at[r] =
                    call->out[r].in + (uint64_t)step_shift(of, GPU_STEP_IN + r, number) * sizeof(typename Step::sum_type);
#pragma unroll
            for (int r = 0; Step::GIVES && r < Step::RANKS; r++)
                out_at[r] =
                    call->out[r].data + (uint64_t)step_shift(of, GPU_STEP_OUT + r, number) * sizeof(typename Step::out_type);
        }
    }

    template <bool ANY, typename Lanes> __device__ __forceinline__ void whole(int64_t e, Lanes &to) const
    {
        floats<Step::WIDTH> terms[LANES];
        loaded<Step::WIDTH> some;

        load<Step::WIDTH, ANY>((index)e, some);
        work<Step::WIDTH, ANY>((index)e, some, terms);
#pragma unroll
        for (int j = 0; j < LANES; j++)
            for (int u = 0; u < Step::WIDTH; u++)
                to.at[j][u] += (double)terms[j].at[u];
    }

    template <bool ANY, typename Lanes>
    __device__ __forceinline__ void add(int64_t e, int64_t lower, int64_t upper, Lanes &to) const
    {
        if (e >= lower && e + Step::WIDTH <= upper) {
            whole<ANY>(e, to);
            return;
        }
#pragma unroll
        for (int u = 0; u < STEP_OWN; u++) {
            if (e + u < lower || e + u >= upper)
                continue;
            floats<1> terms[LANES];
            loaded<1> some;
            load<1, ANY>((index)(e + u), some);
            work<1, ANY>((index)(e + u), some, terms);
            for (int j = 0; j < LANES; j++)
                to.at[j][u] += (double)terms[j].at[0];
        }
    }

    /* Sums of EACH elements, [from, to) of the rank's own. */
    __device__ __forceinline__ void sums_each(int64_t from, int64_t to);

    __device__ __forceinline__ bool slice(const struct gpu_call &of_call, uint32_t run, const struct slice &s)
    {
        const struct gpu_plan *plan = gpu_plan_of(of_call, run);
        const struct gpu_shape &shape = of_call.fixed->shape;

        begin(of_call, plan, run, s);
        if constexpr (Step::LANES > 0 && Step::EACH == 0) {
            generated_sums<Step, true> op = {*this};
            if (s.kind == SLICE_PUT)
                step_sums_tensors(of, step_pieces(of_call, rank), op);
            else
                step_sums_pieces(of, s.col, (int64_t)s.col + s.cols, step_pieces(of_call, rank), op);
            return true;
        }
        const struct vector_piece piece =
            Step::SUMS || Step::GIVES
                ? vector_piece_reduced(shape, plan->rank, s)
                : vector_piece_make(shape, of->begin + (int64_t)s.col * shape.unit, s.cols, of->begin + of->count);
        if constexpr (Step::LANES > 0)
            sums_each(piece.at - of->begin, piece.at - of->begin + piece.count);
        else if constexpr (Step::TABLE != 0)
            step_segments(of, piece.at, piece.at + piece.count, *this,
                          [&](int64_t from, int64_t to, int64_t origin) { range(from, to, origin); });
        else
            range(piece.at, piece.at + piece.count, 0);
        return true;
    }
};

/* The operator of step_sums.h. ANY: elements that are worked on together may begin anywhere. */
template <typename Step, bool ANY> struct generated_sums {
    enum { LANES = generated_run<Step>::LANES, KNOWN = 1 };
    generated_run<Step> &run;

    static __device__ __forceinline__ constexpr int sums()
    {
        return Step::LANES;
    }
    __device__ __forceinline__ void segment_take(int64_t number)
    {
        run.segment_take(number);
    }
    template <typename Lanes> __device__ __forceinline__ void add(int64_t e, int64_t lower, int64_t upper, Lanes &to) const
    {
        run.template add<ANY>(e, lower, upper, to);
    }
    template <typename Lanes> __device__ __forceinline__ void whole(int64_t e, Lanes &to) const
    {
        run.template whole<ANY>(e, to);
    }
    __device__ __forceinline__ void store(int sum, int64_t at, double total) const
    {
        if constexpr (Step::LANES > 0)
            run.step.sum_store(sum, at, total);
    }
};

template <typename Step> __device__ __forceinline__ void generated_run<Step>::sums_each(int64_t from, int64_t to)
{
    if constexpr (Step::TABLE == 0 && Step::EACH % Step::WIDTH == 0) { /* all elements that a thread begins with are alike */
        if (of->begin % Step::WIDTH == 0 && is_wide((index)of->begin)) {
            generated_sums<Step, false> op = {*this};
            step_sums_each<false>(of, Step::EACH, from, to, op);
            return;
        }
    }
    generated_sums<Step, true> op = {*this};
    step_sums_each<Step::TABLE != 0>(of, Step::EACH, from, to, op);
}

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
