/* SPDX-License-Identifier: MIT
 *
 * rings_lines.h - how large parts of vectors travel through rings (kernels/gpu/rings.h) between two GPUs that NVLink joins: as lines, of which 15
 * sixteenths are data. NCCL's protocol LL128 does the same.
 *
 * A line is 128 bytes, stored by eight lanes of a wave with 16 bytes each; the last 8 bytes are a stamp, which grows from unit to unit and from run to run. Data
 * needs no fence and no flag of its own, so it is used as soon as it is there. A unit is what a wave stores at a time, RINGS_LINES_UNIT bytes. Each wave has
 * a ring of units at the other rank, where the wave of the same number takes them. It stores units and takes units by turns, the latter LINES_LEAD units behind.
 * A unit is stored into the place of the one RINGS_LINES_DEPTH before it. Where a wave takes as many as it stores, it knows that this one has been taken: the
 * unit that it has taken last was stored behind that. Elsewhere `taken` says at the sender how many the other wave has taken.
 *
 * No wave waits for ever. Let a wave's step be its number of turns. Unit u is stored in step u, and there waits until unit u - RINGS_LINES_DEPTH has been taken
 * at the other rank, which is done in its step u - RINGS_LINES_DEPTH + LINES_LEAD, an earlier one. In step s unit s - LINES_LEAD is taken, which the other rank
 * stores in an earlier step. So whoever is in the earliest step of all waves can go on.
 *
 * Memory order.
 * - A line: PTX promises that 8 bytes are whole, not 128. But the GPU stores what the lanes of a wave store into a line by one instruction by one access, NVLink
 *   carries that whole, and a load by eight lanes of one instruction is one access, too. NCCL relies on the same where links are NVLink, and so are lines
 *   used only there (struct gpu_prepared_plan, lines). The comparisons in tests/gpu would find a line that is torn.
 * - `taken`, or the wave's next unit, is stored when the votes on the stamps are over, for which all lanes' loads have arrived. So a line is not stored into
 *   before it was loaded.
 * - Runs alternate between two halves of the memory: a rank begins a run when the other one has begun the run before, and so ended that which used the same
 *   half. Stamps of older runs are smaller ones.
 * - In place: a lane loads what it sends of a unit in an earlier step than that in which it stores the same vectors' sums.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_LINES_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_LINES_H

#include "kernels/gpu/device/exchange/rings_packets.h"

#if defined(__CUDACC__)

enum {
    LINES_LEAD = 1,
    LINES_OF = 8, /* lanes of a line */
    LINES_PAIRS = RINGS_LINES_UNIT / (2 * 16 * GPU_WAVE),
    LINES_PAIR_VECTORS = 60 /* of 16 bytes, in a pair of a wave's stores: two for each lane, but one for the last of a line */
};
static_assert(
    RINGS_LINES_DEPTH >= 2 * LINES_LEAD + 2,
    "in step s a wave has taken unit s - LEAD - 1, which the other one has stored behind taking the one LEAD + 1 before that");
static_assert(LINES_PAIRS * LINES_PAIR_VECTORS * 16 == RINGS_LINES_DATA, "a unit's data");

/* Up to 16 bytes at any place; missing ones are 0. */
GPU_DEVICE struct gpu_words sixteen_load(const char *at, int64_t bytes)
{
    const uint64_t most = bytes > 0 ? (uint64_t)bytes : 0;
    const uint64_t low = eight_load(at, most), high = eight_load(at + 8, most > 8 ? most - 8 : 0);

    return {{(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32)}};
}

GPU_DEVICE void sixteen_store(char *at, const struct gpu_words &v, int64_t bytes)
{
    const uint64_t most = bytes > 0 ? (uint64_t)bytes : 0;

    eight_store(at, (uint64_t)v.at[1] << 32 | v.at[0], most);
    eight_store(at + 8, (uint64_t)v.at[3] << 32 | v.at[2], most > 8 ? most - 8 : 0);
}

/* Sixteen bytes that are there. A plain load, not gpu_words_load(): sums may be stored in place during this kernel. */
GPU_DEVICE struct gpu_words vector_load(const char *at)
{
    const uint4 v = *(const uint4 *)at;

    return {{v.x, v.y, v.z, v.w}};
}

/* A wave's unit of a part: where it begins, and its bytes, RINGS_LINES_DATA or fewer. */
struct line_unit {
    char *at;
    int64_t bytes;

    __device__ __forceinline__ bool is_whole() const
    {
        return bytes >= (int64_t)RINGS_LINES_DATA && (uint64_t)at % 16 == 0;
    }
};

/* What the lanes of a wave have of a unit: of each pair of stores two vectors, `has_second` only where a lane is not a line's last. */
struct line_lane {
    const uint32_t lane, team, of;

    __device__ __forceinline__ line_lane()
        : lane(threadIdx.x % GPU_WAVE), team(threadIdx.x % GPU_WAVE / LINES_OF), of(threadIdx.x % LINES_OF)
    {
    }

    __device__ __forceinline__ bool is_last() const
    {
        return of == LINES_OF - 1;
    }

    /* Bytes from the unit's begin to the first and the second vector of a pair. */
    __device__ __forceinline__ uint32_t first(uint32_t pair) const
    {
        return 16 * (LINES_PAIR_VECTORS * pair + (is_last() ? 56 + team : 7 * team + of));
    }
    __device__ __forceinline__ uint32_t second(uint32_t pair) const
    {
        return 16 * (LINES_PAIR_VECTORS * pair + 28 + 7 * team + of);
    }
};

/* Two vectors of each pair. */
GPU_DEVICE void unit_load(const struct line_lane &l, const struct line_unit &u, struct gpu_words (&v)[2 * LINES_PAIRS])
{
    const bool whole = u.is_whole();

#pragma unroll
    for (uint32_t p = 0; p < LINES_PAIRS; p++) {
        const char *first = u.at + l.first(p), *second = u.at + l.second(p);
        v[2 * p + 1] = {{0, 0, 0, 0}};
        if (whole) {
            v[2 * p] = vector_load(first);
            if (!l.is_last())
                v[2 * p + 1] = vector_load(second);
        } else {
            v[2 * p] = sixteen_load(first, u.bytes - l.first(p));
            if (!l.is_last())
                v[2 * p + 1] = sixteen_load(second, u.bytes - l.second(p));
        }
    }
}

GPU_DEVICE void unit_store(const struct line_lane &l, const struct line_unit &u, const struct gpu_words (&v)[2 * LINES_PAIRS])
{
    const bool whole = u.is_whole();

#pragma unroll
    for (uint32_t p = 0; p < LINES_PAIRS; p++) {
        char *first = u.at + l.first(p), *second = u.at + l.second(p);
        if (whole) {
            gpu_words_store(first, v[2 * p]);
            if (!l.is_last())
                gpu_words_store(second, v[2 * p + 1]);
        } else {
            sixteen_store(first, v[2 * p], u.bytes - l.first(p));
            if (!l.is_last())
                sixteen_store(second, v[2 * p + 1], u.bytes - l.second(p));
        }
    }
}

/* A wave's lines to and from the other one of two ranks. */
struct lines {
    const struct rings_call &c;
    struct rings_run &run;
    const struct line_lane lane;
    const uint32_t wave, waves;
    const uint64_t sends, gets; /* units */

    __device__ __forceinline__ lines(const struct rings_call &call, struct rings_run &r, int64_t sent, int64_t got)
        : c(call), run(r), wave((uint32_t)(rings_thread(0) / GPU_WAVE)), waves((uint32_t)(rings_threads(0) / GPU_WAVE)),
          sends(count(sent)), gets(count(got))
    {
    }

    __device__ __forceinline__ uint32_t other() const
    {
        return 1 - c.rank;
    }

    __device__ __forceinline__ struct line_unit unit_of(const void *part, int64_t bytes, uint64_t number) const
    {
        const uint64_t at = (number * waves + wave) * RINGS_LINES_DATA;

        return {(char *)part + at, bytes - (int64_t)at};
    }

    /* Units of the wave in a part. */
    __device__ __forceinline__ uint64_t count(int64_t bytes) const
    {
        const uint64_t units = ((uint64_t)bytes + RINGS_LINES_DATA - 1) / RINGS_LINES_DATA;

        return units > wave ? (units - wave - 1) / waves + 1 : 0;
    }

    __device__ __forceinline__ uint64_t stamp(uint64_t number) const
    {
        return run.number << 24 | (number + 1);
    }

    /* This lane's place in a unit at `rank`. */
    __device__ __forceinline__ uint64_t *place(uint32_t rank, uint64_t number) const
    {
        return (uint64_t *)(c.rings[rank] + rings_lines_at(c.nranks, run.number, wave) +
                            number % RINGS_LINES_DEPTH * RINGS_LINES_UNIT + 16 * lane.lane);
    }

    /* Waits until all lanes say that it is over, now and then looking whether the run is. `spins`: how many times a wave has asked. False: leave. */
    template <typename Over> __device__ __forceinline__ bool await(uint32_t &spins, const Over &over) const
    {
        do {
            if (++spins % GPU_LOOK_SPINS == 0 && gpu_wave_vote(lane.lane == 0 && rings_look(c, run)))
                return false;
        } while (gpu_wave_vote(!over()));
        return true;
    }

    /* The wave: sends a unit. False: leave. */
    __device__ __forceinline__ bool send(const struct line_unit &u, uint64_t number) const
    {
        const uint64_t *taken = &rings_head_of(c, c.rank)->taken[wave];
        const uint64_t room = number < RINGS_LINES_DEPTH || sends == gets ? 0 : stamp(number - RINGS_LINES_DEPTH),
                       mine = stamp(number);
        uint64_t *to = place(other(), number);
        struct gpu_words v[2 * LINES_PAIRS];
        uint32_t spins = 0;

        unit_load(lane, u, v);
        const uint64_t apart = (uint64_t)waves * RINGS_LINES_DATA; /* of the wave's next unit, where that is a whole one */
        if (u.bytes >= (int64_t)(apart + RINGS_LINES_DATA) && lane.lane < RINGS_LINES_DATA / 128)
            gpu_prefetch(u.at + apart + 128 * lane.lane);
        if (room && !await(spins, [&] { return gpu_load_relaxed(taken) >= room; }))
            return false;
#pragma unroll
        for (uint32_t p = 0; p < LINES_PAIRS; p++) {
            const struct gpu_words &a = v[2 * p], &b = v[2 * p + 1];
            const uint64_t low = (uint64_t)a.at[1] << 32 | a.at[0], high = (uint64_t)a.at[3] << 32 | a.at[2];
            const uint64_t next = lane.is_last() ? high : (uint64_t)b.at[1] << 32 | b.at[0];
            gpu_store_relaxed_pair(to + 2 * p * 2 * GPU_WAVE, low, lane.is_last() ? mine : high);
            gpu_store_relaxed_pair(to + (2 * p + 1) * 2 * GPU_WAVE, next,
                                   lane.is_last() ? mine : (uint64_t)b.at[3] << 32 | b.at[2]);
        }
        return true;
    }

    /* The wave: waits for a unit. False: leave. */
    __device__ __forceinline__ bool take(uint64_t number, struct gpu_words (&v)[2 * LINES_PAIRS]) const
    {
        const uint64_t mine = stamp(number);
        const uint64_t *from = place(c.rank, number);

        for (uint32_t spins = 0;;) {
            uint64_t words[4 * LINES_PAIRS];
            bool here = true;
#pragma unroll
            for (uint32_t i = 0; i < 2 * LINES_PAIRS; i++)
                gpu_load_relaxed_pair(true, from + i * 2 * GPU_WAVE, &words[2 * i], &words[2 * i + 1]);
#pragma unroll
            for (uint32_t i = 0; i < 2 * LINES_PAIRS; i++)
                here = here && (!lane.is_last() || words[2 * i + 1] == mine);
            if (gpu_wave_vote(!here) == 0) {
#pragma unroll
                for (uint32_t p = 0; p < LINES_PAIRS; p++) {
                    const uint64_t *w = words + 4 * p, second = lane.is_last() ? w[2] : w[1];
                    v[2 * p] = {{(uint32_t)w[0], (uint32_t)(w[0] >> 32), (uint32_t)second, (uint32_t)(second >> 32)}};
                    v[2 * p + 1] = {{(uint32_t)w[2], (uint32_t)(w[2] >> 32), (uint32_t)w[3], (uint32_t)(w[3] >> 32)}};
                }
                break;
            }
            /* What is stored last comes last, most likely: only that is asked for until it is there. */
            const uint64_t *last = from + (2 * LINES_PAIRS - 1) * 2 * GPU_WAVE + 1;
            if (!await(spins, [&] { return !lane.is_last() || gpu_load_relaxed(last) == mine; }))
                return false;
        }
        if (lane.lane == 0 && sends != gets)
            gpu_store_relaxed(&rings_head_of(c, other())->taken[wave], mine);
        return true;
    }
};

/* ---- what a wave does ---- */

/* All threads: sends `sent` bytes from `in` to the other rank, and puts what comes from it, `got` bytes, to `out`, while it copies what the rank has for itself. */
GPU_DEVICE void lines_move(const struct rings_call &c, struct rings_run &run, const char *in, int64_t sent, char *out,
                           int64_t got, const char *own_in, char *own_out, int64_t own)
{
    const struct lines l(c, run, sent, got);
    const uint64_t copies = own_in == own_out ? 0 : l.count(own);
    struct gpu_words v[2 * LINES_PAIRS];

    for (uint64_t step = 0; step < l.sends || step < l.gets + LINES_LEAD || step < copies; step++) {
        if (step < l.sends && !l.send(l.unit_of(in, sent, step), step))
            return;
        if (step < copies) {
            unit_load(l.lane, l.unit_of(own_in, own, step), v);
            unit_store(l.lane, l.unit_of(own_out, own, step), v);
        }
        if (step >= LINES_LEAD && step - LINES_LEAD < l.gets) {
            if (!l.take(step - LINES_LEAD, v))
                return;
            unit_store(l.lane, l.unit_of(out, got, step - LINES_LEAD), v);
        }
    }
}

template <typename T, enum fcc_reduction REDUCTION>
GPU_DEVICE void unit_combine(const struct rings_call &c, struct gpu_words (&mine)[2 * LINES_PAIRS],
                             const struct gpu_words (&theirs)[2 * LINES_PAIRS])
{
    typedef combine_words<T> words;

#pragma unroll
    for (uint32_t i = 0; i < 2 * LINES_PAIRS; i++) {
        typename words::S sum[words::LENGTH], next[words::LENGTH];
        words::load(sum, c.rank == 0 ? mine[i] : theirs[i]);
        words::load(next, c.rank == 0 ? theirs[i] : mine[i]);
        combine_all<REDUCTION>(sum, next);
        combine_end(c.what.reduction, c.nranks, sum);
        mine[i] = words::store(sum);
    }
}

/* In rank order, into `mine`. The switch stands around the whole unit: it is the same for all. */
template <typename T>
GPU_DEVICE void units_combine(const struct rings_call &c, struct gpu_words (&mine)[2 * LINES_PAIRS],
                              const struct gpu_words (&theirs)[2 * LINES_PAIRS])
{
    const uint32_t reduction = c.what.reduction;

    if (reduction == FCC_SUM || reduction == FCC_AVERAGE)
        return unit_combine<T, FCC_SUM>(c, mine, theirs);
    if (reduction == FCC_PRODUCT)
        return unit_combine<T, FCC_PRODUCT>(c, mine, theirs);
    if (reduction == FCC_MIN)
        return unit_combine<T, FCC_MIN>(c, mine, theirs);
    if (reduction == FCC_MAX)
        return unit_combine<T, FCC_MAX>(c, mine, theirs);
    if constexpr (!combine_is_float<typename combine_in<T>::type>()) { /* floats have no bitwise reductions */
        if (reduction == FCC_AND)
            return unit_combine<T, FCC_AND>(c, mine, theirs);
        if (reduction == FCC_OR)
            return unit_combine<T, FCC_OR>(c, mine, theirs);
        unit_combine<T, FCC_XOR>(c, mine, theirs);
    }
}

/* All threads: sends `sent` bytes from `in` to the other rank, and combines what comes from it with `reduced` bytes of `own`, in rank order, to `out`. */
template <typename T>
GPU_DEVICE void lines_reduce(const struct rings_call &c, struct rings_run &run, const char *in, int64_t sent, const char *own,
                             char *out, int64_t reduced)
{
    const struct lines l(c, run, sent, reduced);

    for (uint64_t step = 0; step < l.sends || step < l.gets + LINES_LEAD; step++) {
        if (step < l.sends && !l.send(l.unit_of(in, sent, step), step))
            return;
        if (step < LINES_LEAD || step - LINES_LEAD >= l.gets)
            continue;
        struct gpu_words mine[2 * LINES_PAIRS], theirs[2 * LINES_PAIRS];
        unit_load(l.lane, l.unit_of(own, reduced, step - LINES_LEAD), mine);
        if (!l.take(step - LINES_LEAD, theirs))
            return;
        units_combine<T>(c, mine, theirs);
        unit_store(l.lane, l.unit_of(out, reduced, step - LINES_LEAD), mine);
    }
}

#endif
#endif
