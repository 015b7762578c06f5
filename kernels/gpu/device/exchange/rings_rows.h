/* SPDX-License-Identifier: MIT
 *
 * rings_rows.h - how the ranks add up whole rows, through rings (kernels/gpu/rings.h): all_reduce with an epilogue. Each rank sends its rows to all
 * others, adds up all ranks' in rank order, in f32, and makes its results of the sums (device/whole_rows.h) before they leave its registers.
 *
 * A row travels as packets of 16 bytes: 12 of data and the run's stamp, which no load sees without the data (gpu_twelve_store()). Otherwise they are
 * as the packets of kernels/gpu/rings.h, in memory of their own. The thread that has a piece of the row here sends it, adds up what comes of
 * it and stores what becomes of it, so the result may lie where the rank's own row or the residual does.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_ROWS_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_ROWS_H

#include "kernels/gpu/device/exchange/rings_rows_call.h"
#include "kernels/gpu/device/whole_rows.h"

/* A rank's rows. ALIGNED: call.aligned. SUM: the reduction is FCC_SUM. */
template <typename T, bool ALIGNED, bool SUM> struct rings_rows {
    typedef struct gpu_piece<T, sizeof(((struct gpu_stamped_twelve *)0)->data)> piece;
    typedef typename piece::moved moved;
    enum { LENGTH = piece::LENGTH };
    const struct rings_rows_call &call;
    struct rings_run &run;

    /* Those of rank `from` at rank `at`, from element `element` of a row on. */
    __device__ __forceinline__ struct gpu_stamped_twelve *packet(uint32_t at, uint32_t from, int64_t row, int64_t element) const
    {
        const uint64_t half = run.number % 2 * (uint64_t)RINGS_ROWS_BYTES, slot = (from - (from > at)) * call.slot;

        return (struct gpu_stamped_twelve *)(call.rings.rings[at] + call.packets_at + half + slot) +
               (uint64_t)row * call.packets + (uint32_t)element / LENGTH;
    }

    /* Elements of a row. */
    __device__ __forceinline__ int64_t length(int64_t row) const
    {
        const int64_t n = call.rows.n, left = call.elements - row * n;

        return left < n ? left : n;
    }

    __device__ __forceinline__ const T *own(int64_t row, int64_t at) const
    {
        return (const T *)call.x + row * call.x_stride + at;
    }

    /* COUNT pieces of the rank's own row, from element `first` on, `distance` elements apart. */
    template <int COUNT>
    __device__ __forceinline__ void load(int64_t row, int64_t first, int64_t distance, moved (&out)[COUNT]) const
    {
        const T *from = own(row, first);
        const int64_t left = length(row) - first;

#pragma unroll
        for (int i = 0; i < COUNT; i++)
            out[i] = gpu_piece_load<piece, ALIGNED>(from + i * distance, left - i * distance);
    }

    /* Sends them to all others, as far as they are there. */
    template <int COUNT>
    __device__ __forceinline__ void send(int64_t row, int64_t first, int64_t distance, const moved (&pieces)[COUNT]) const
    {
        const struct rings_call &c = call.rings;
        const int64_t left = length(row) - first;

#pragma unroll 1
        for (uint32_t k = 1; k < c.nranks; k++) {
            struct gpu_stamped_twelve *to = packet(gpu_rank_at(k - 1, c.rank, c.nranks), c.rank, row, first);
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                if (i * distance < left)
                    gpu_twelve_store(to + i * ((uint32_t)distance / LENGTH), pieces[i].words, (uint32_t)run.number);
        }
    }

    /* Combines this rank's pieces with the others'. False: leave. */
    template <int COUNT>
    __device__ __forceinline__ bool add_up(int64_t row, int64_t first, int64_t distance, const moved (&mine)[COUNT],
                                           float (&v)[COUNT][LENGTH]) const
    {
        const struct rings_call &c = call.rings;

#pragma unroll 1
        for (uint32_t r = 0; r < c.nranks; r++) {
            moved term[COUNT] = {};
            if (r != c.rank && !take<COUNT>(r, row, first, distance, term))
                return false;
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                float next[LENGTH];
#pragma unroll
                for (int j = 0; j < piece::WORDS; j++)
                    term[i].words[j] = r == c.rank ? mine[i].words[j] : term[i].words[j];
                gpu_piece_to_f32<piece>(next, term[i]);
                if (r > 0)
                    combine(SUM ? (uint32_t)FCC_SUM : call.reduction, v[i], next);
#pragma unroll
                for (int j = 0; j < LENGTH; j++)
                    v[i][j] = r > 0 ? v[i][j] : next[j];
            }
        }
#pragma unroll
        for (int i = 0; i < COUNT && !SUM; i++)
            combine_end(call.reduction, c.nranks, v[i]);
        return true;
    }

    /* Waits for rank r's packets. All loads are on their way before one is looked at. */
    template <int COUNT>
    __device__ __forceinline__ bool take(uint32_t r, int64_t row, int64_t first, int64_t distance, moved (&out)[COUNT]) const
    {
        const struct gpu_stamped_twelve *from = packet(call.rings.rank, r, row, first);
        const uint32_t stamp = (uint32_t)run.number;
        const int64_t left = length(row) - first;
        struct gpu_stamped_twelve packets[COUNT];
        bool missing = true;

#pragma unroll
        for (int i = 0; i < COUNT; i++)
            packets[i] = {{0, 0, 0}, i * distance < left ? stamp - 1 : stamp};
        for (uint32_t spins = 1; missing; spins++) {
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                gpu_twelve_load(packets[i].stamp != stamp, from + i * ((uint32_t)distance / LENGTH), &packets[i]);
            missing = false;
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                missing |= packets[i].stamp != stamp;
            if (missing && spins % GPU_LOOK_SPINS == 0 && rings_look(call.rings, run))
                return false;
        }
#pragma unroll
        for (int i = 0; i < COUNT; i++)
#pragma unroll
            for (int j = 0; j < 3; j++)
                out[i].words[j] = packets[i].data[j];
        return true;
    }
};

/* Where gpu_long_row_maker gets a row's sums: it adds them up anew for each pass that needs them. What has come stays until the run after the next. */
template <typename T> struct rings_rows_source {
    const struct rings_rows<T, false, false> &rows;

    __device__ __forceinline__ bool adds(const struct gpu_rows &) const
    {
        return true;
    }

    /* Once the run was given up, the numbers do not matter. */
    template <typename P, bool ALIGNED, bool PLAIN>
    __device__ __forceinline__ void load(const struct gpu_rows &p, const struct gpu_row<T> &row, int64_t number,
                                         float (&v)[P::LENGTH], const struct gpu_some &some) const
    {
        float sums[1][P::LENGTH] = {};
        typename P::moved mine[1];

        rows.template load<1>(number, some.from, P::LENGTH, mine);
        if (!rows.run.leave)
            (void)rows.template add_up<1>(number, some.from, P::LENGTH, mine, sums);
#pragma unroll
        for (int i = 0; i < P::LENGTH; i++)
            v[i] = sums[0][i];
        gpu_row_add<P, false, false>(p, row, gpu_row_inputs_load<P, false>(p, row, some), v, some);
    }
};

#endif
