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

#include "kernels/gpu/device/exchange/rings_run.h"
#include "kernels/gpu/device/whole_rows.h"

/* The kernel's argument. */
struct rings_rows_call {
    struct rings_call rings;
    struct gpu_rows rows; /* wide: 0. What is added is in added_bias and residual */
    uint64_t x;           /* [rows.m][rows.n]: this rank's term; the address in this process */
    int64_t x_stride;
    uint32_t aligned;   /* 1: all rows begin at multiples of 4 bytes */
    uint32_t reduction; /* enum fcc_reduction */
};

/* The packets of a row. */
RINGS_FUNCTION uint64_t rings_row_packets(int64_t n, uint32_t element_bytes)
{
    const uint64_t length = sizeof(((struct gpu_stamped_twelve *)0)->data) / element_bytes;

    return ((uint64_t)n + length - 1) / length;
}

/* A rank's rows. ALIGNED: at multiples of 4 bytes. */
template <typename T, bool ALIGNED> struct rings_rows {
    typedef struct gpu_piece<T, sizeof(((struct gpu_stamped_twelve *)0)->data)> piece;
    enum { LENGTH = piece::LENGTH };
    union words {
        typename piece::moved moved;
        uint32_t at[3];
    };
    const struct rings_rows_call &call;
    struct rings_run &run;

    /* Those of rank `from` at rank `at`, from element `element` of a row on. */
    __device__ __forceinline__ struct gpu_stamped_twelve *packet(uint32_t at, uint32_t from, int64_t row, int64_t element) const
    {
        const struct rings_call &c = call.rings;
        const uint64_t half = run.number % 2 * (uint64_t)RINGS_ROWS_BYTES;
        const uint64_t slot = (from - (from > at)) * rings_rows_slot(c.nranks);

        return (struct gpu_stamped_twelve *)(c.rings[at] + rings_rows_at(c.nranks) + half + slot) +
               (uint64_t)row * rings_row_packets(call.rows.n, sizeof(T)) + (uint64_t)element / LENGTH;
    }

    __device__ __forceinline__ union words load(int64_t row, int64_t at) const
    {
        const T *from = (const T *)call.x + row * call.x_stride + at;
        const int64_t valid = call.rows.n - at;
        union words w = {};

        if (ALIGNED && valid >= LENGTH) {
            w.moved = *(const typename piece::moved *)from;
        } else {
#pragma unroll
            for (int i = 0; i < LENGTH; i++)
                if (i < valid)
                    w.moved.at[i] = from[i];
        }
        return w;
    }

    __device__ __forceinline__ void send(int64_t row) const
    {
        const struct rings_call &c = call.rings;

        for (int64_t at = (int64_t)threadIdx.x * LENGTH; at < call.rows.n; at += (int64_t)blockDim.x * LENGTH) {
            const union words w = load(row, at);
            for (uint32_t k = 1; k < c.nranks; k++)
                gpu_twelve_store(packet(gpu_rank_at(k - 1, c.rank, c.nranks), c.rank, row, at), w.at, (uint32_t)run.number);
        }
    }

    /* What this thread will load of the row when the others' packets have come. */
    __device__ __forceinline__ void touch(int64_t number, int64_t at) const
    {
        const struct gpu_row<T> row(call.rows, number, at);

        if (row.residual)
            gpu_touch(row.residual);
        if (row.added_bias)
            gpu_touch(row.added_bias);
        if (row.weight)
            gpu_touch(row.weight);
        if (row.bias)
            gpu_touch(row.bias);
        if (row.gate)
            gpu_touch(row.gate);
    }

    /* Adds up COUNT pieces of a row, `distance` elements apart, of which those below n are there. False: leave. */
    template <int COUNT>
    __device__ __forceinline__ bool add_up(int64_t row, int64_t first, int64_t distance, float (&v)[COUNT][LENGTH]) const
    {
        const struct rings_call &c = call.rings;
        union words own[COUNT];

#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (first + i * distance < call.rows.n)
                own[i] = load(row, first + i * distance);
        for (uint32_t r = 0; r < c.nranks; r++) {
            union words term[COUNT];
            if (r != c.rank && !take<COUNT>(r, row, first, distance, term))
                return false;
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                float next[LENGTH];
#pragma unroll
                for (int j = 0; j < LENGTH; j++)
                    next[j] = gpu_to_f32(r == c.rank ? own[i].moved.at[j] : term[i].moved.at[j]);
                if (r > 0)
                    combine(call.reduction, v[i], next);
#pragma unroll
                for (int j = 0; j < LENGTH && r == 0; j++)
                    v[i][j] = next[j];
            }
        }
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            combine_end(call.reduction, c.nranks, v[i]);
        return true;
    }

    /* Waits for rank r's packets. All loads are on their way before one is looked at. */
    template <int COUNT>
    __device__ __forceinline__ bool take(uint32_t r, int64_t row, int64_t first, int64_t distance, union words (&out)[COUNT]) const
    {
        const struct gpu_stamped_twelve *from = packet(call.rings.rank, r, row, first);
        struct gpu_stamped_twelve packets[COUNT];
        uint32_t missing = 0;

#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            packets[i] = {};
            missing |= first + i * distance < call.rows.n ? 1u << i : 0;
        }
        for (uint32_t spins = 1; missing; spins++) {
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                gpu_twelve_load(missing >> i & 1, from + i * (distance / LENGTH), &packets[i]);
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                missing &= packets[i].stamp == (uint32_t)run.number ? ~(1u << i) : ~0u;
            if (missing && spins % GPU_LOOK_SPINS == 0 && rings_look(call.rings, run))
                return false;
        }
#pragma unroll
        for (int i = 0; i < COUNT; i++)
#pragma unroll
            for (int j = 0; j < 3; j++)
                out[i].at[j] = packets[i].data[j];
        return true;
    }
};

/* Where gpu_long_row_maker gets a row's sums: it adds them up anew for each pass that needs them. What has come stays until the run after the next. */
template <typename T> struct rings_rows_source {
    const struct rings_rows<T, false> &rows;

    __device__ __forceinline__ bool adds(const struct gpu_rows &) const
    {
        return true;
    }

    /* Once the run was given up, the numbers do not matter. */
    template <typename P, bool ALIGNED>
    __device__ __forceinline__ void load(const struct gpu_rows &p, int64_t number, int64_t at, float (&v)[P::LENGTH]) const
    {
        float sums[1][P::LENGTH] = {};

        if (!rows.run.leave)
            (void)rows.template add_up<1>(number, at, P::LENGTH, sums);
#pragma unroll
        for (int i = 0; i < P::LENGTH; i++)
            v[i] = sums[0][i];
        gpu_row_add<P, false>(p, gpu_row<T>(p, number, at), v, p.n - at);
    }
};

#endif
