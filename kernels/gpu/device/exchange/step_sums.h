/* SPDX-License-Identifier: MIT
 *
 * step_sums.h - sums of a step's elements, and the tensors of its table, for the interpreter (compute/step.hip) and for generated code (generated.h).
 *
 * A sum's order is code.h's (CODE_SUM_LANES), so it has the same bits in all runs, on all ranks, and on a cpu. A thread has STEP_OWN neighbouring lanes, so a
 * workgroup of STEP_THREADS threads has all of them; a sum of fewer elements has a *team* of as many threads as have its lanes, and a workgroup works on
 * several such sums side by side. Pairs of lanes of STEP_WAVE neighbouring threads are added by exchange of registers, those of the waves in the workgroup's
 * memory, and at last a thread's own.
 *
 * Tensors of a table have pieces (CODE_SUM_PIECE). A slice has some pieces of the rank's tensors, by their numbers, and stores their sums into the rank's
 * staging memory; one more slice, which waits for all of these, adds them up, tensor by tensor. Memory order: execute.h's for slices of one signal group; the
 * waiting slice's workgroup reads the pieces' sums behind its acquire of the group's flag.
 *
 * An operator has
 *
 *     LANES, KNOWN                        the most sums that it can have; 1: as many as it has
 *     sums()                              how many there are
 *     segment_take(number)                goes to a tensor of the table: from here on addresses are of its elements
 *     add(e, lower, upper, lanes)         works on those of the elements e ... e + STEP_OWN - 1 that are in [lower, upper), which are of one tensor, and adds
 *                                         their terms to the thread's lanes
 *     whole(e, lanes)                     the same, where all of those elements are
 *     store(sum, index, total)            stores what follows from a total as element `index` of the sum's tensor
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_STEP_SUMS_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_STEP_SUMS_H

#include "kernels/gpu/device/vector_parts.h"
#include "kernels/gpu/step.h"

enum { STEP_THREADS = 512, STEP_OWN = 4, STEP_WAVE = 32, STEP_WAVES = STEP_THREADS / STEP_WAVE };
static_assert(STEP_THREADS * STEP_OWN == CODE_SUM_LANES && STEP_WAVE == CODE_SUM_PIECES, "a thread for each");

/* ---- what a step is told ---- */

GPU_DEVICE const struct code_head *step_head(const struct gpu_step *step)
{
    return (const struct code_head *)(step + 1);
}

/* The first elements of the table's tensors, and the end. */
GPU_DEVICE const int64_t *step_begins(const struct gpu_step *step)
{
    const struct code_head *head = step_head(step);

    return (const int64_t *)((const struct code_instruction *)((const struct code_operand *)(head + 1) + head->operands) +
                             head->instructions);
}

/* How much further element e of the table's tensor lies than e elements behind the begin. */
GPU_DEVICE int64_t step_shift(const struct gpu_step *step, int place, int64_t tensor)
{
    return step->places[place] ? ((const int64_t *)step)[step->places[place] + tensor] : 0;
}

/* The last of n numbers, which do not fall, that is not above `number`; the first one is not. */
GPU_DEVICE int64_t step_last_of(const int64_t *numbers, int64_t n, int64_t number)
{
    int64_t low = 0, high = n;

    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (numbers[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    return low;
}

GPU_DEVICE int64_t step_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

GPU_DEVICE int64_t step_most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Calls range(begin, end, origin) for the parts of [begin, end) that are each in one tensor, which the operator has gone to; the tensor's first element is
 * element `origin`. */
template <typename Operator, typename Range>
GPU_DEVICE void step_segments(const struct gpu_step *step, int64_t begin, int64_t end, Operator &op, const Range &range)
{
    const int64_t *begins = step_begins(step);
    int64_t tensor = step_last_of(begins, step_head(step)->tensors, begin);

    for (int64_t to; begin < end; begin = to, tensor++) {
        to = step_least(begins[tensor + 1], end);
        if (to <= begin)
            continue; /* it has no elements */
        op.segment_take(tensor);
        range(begin, to, begins[tensor]);
    }
}

/* ---- lanes ---- */

template <int SUMS> struct step_lanes {
    double at[SUMS][STEP_OWN];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int j = 0; j < SUMS; j++)
            for (int u = 0; u < STEP_OWN; u++)
                at[j][u] = 0;
    }
};

/* Of the thread whose number differs in one bit, below STEP_WAVE. */
GPU_DEVICE double step_across(double value, uint32_t bit)
{
    union {
        double number;
        uint32_t words[2];
    } one;

    one.number = value;
#pragma unroll
    for (int i = 0; i < 2; i++)
#if defined(__CUDACC__)
        one.words[i] = __shfl_xor_sync(0xffffffffu, one.words[i], (int)bit);
#else
        one.words[i] = __shfl_xor(one.words[i], (int)bit, STEP_WAVE);
#endif
    return one.number;
}

GPU_DEVICE void step_across_add(double (&own)[STEP_OWN], uint32_t threads)
{
    for (uint32_t bit = 1; bit < threads; bit *= 2)
#pragma unroll
        for (int u = 0; u < STEP_OWN; u++)
            own[u] += step_across(own[u], bit);
}

/* All threads: the sum of a team's lanes, in its first thread. A team's threads are neighbours, whose first number is a multiple of their number. */
GPU_DEVICE double step_team_total(double (&own)[STEP_OWN], uint32_t team, double (&shared)[STEP_WAVES][STEP_OWN])
{
    const uint32_t wave = threadIdx.x / STEP_WAVE, waves = team / STEP_WAVE;

    step_across_add(own, team < STEP_WAVE ? team : STEP_WAVE);
    if (waves > 1) {
        if (threadIdx.x % STEP_WAVE == 0)
#pragma unroll
            for (int u = 0; u < STEP_OWN; u++)
                shared[wave][u] = own[u];
        __syncthreads();
        if (wave % waves == 0) {
            const uint32_t lane = threadIdx.x % STEP_WAVE;
#pragma unroll
            for (int u = 0; u < STEP_OWN; u++)
                own[u] = lane < waves ? shared[wave + lane][u] : 0;
            step_across_add(own, waves);
        }
        __syncthreads(); /* `shared` may be written again */
    }
    static_assert(STEP_OWN == 4, "the last two pairs");
    return (own[0] + own[2]) + (own[1] + own[3]);
}

/* Threads of a sum's team. */
GPU_DEVICE uint32_t step_team(int64_t elements)
{
    uint32_t team = 1;

    while (team < STEP_THREADS && (int64_t)team * STEP_OWN < elements)
        team *= 2;
    return team;
}

/* todo(number) of each sum. Where their number is known to the compiler, so are the lanes' places: registers. */
template <typename Operator, typename Do> GPU_DEVICE void step_sums_do(const Operator &op, const Do &todo)
{
    if constexpr (Operator::KNOWN) {
#pragma unroll
        for (int j = 0; j < Operator::LANES; j++)
            todo(j);
    } else {
        for (int j = 0; j < op.sums(); j++)
            todo(j);
    }
}

/* ---- sums of as many elements each ---- */

/* A thread's elements of a sum's [begin, end): STEP_OWN from e on, and from every `apart`-th one. With a table they may be of several tensors: the operator
 * goes to each of them. Otherwise the last ones, which may be fewer, are apart from the loop, whose registers they would take. */
template <bool TABLE, typename Operator, typename Lanes>
GPU_DEVICE void step_own_add(const struct gpu_step *step, int64_t e, int64_t apart, int64_t end, Operator &op, Lanes &lanes)
{
    if constexpr (TABLE) {
        for (; e < end; e += apart)
            step_segments(step, e, step_least(e + STEP_OWN, end), op,
                          [&](int64_t from, int64_t to, int64_t) { op.add(e, from, to, lanes); });
    } else {
        for (; e + STEP_OWN <= end; e += apart)
            op.whole(e, lanes);
        if (e < end)
            op.add(e, e, end, lanes);
    }
}

/* Elements [from, to) of the rank's own, which are whole sums of `each`, but for the rank's last one. */
template <bool TABLE, typename Operator>
GPU_DEVICE void step_sums_each(const struct gpu_step *step, int64_t each, int64_t from, int64_t to, Operator &op)
{
    __shared__ double shared[STEP_WAVES][STEP_OWN];
    const uint32_t team = step_team(each), teams = STEP_THREADS / team, lane = threadIdx.x % team;
    const int64_t last = (to + each - 1) / each;
    step_lanes<Operator::LANES> lanes;

    for (int64_t some = from / each; some < last; some += teams) { /* all threads, for the barriers' sake */
        const int64_t number = some + threadIdx.x / team;
        lanes.clear();
        if (number < last) {
            const int64_t begin = step->begin + number * each, end = step_least(begin + each, step->begin + to);
            step_own_add<TABLE>(step, begin + lane * STEP_OWN, (int64_t)team * STEP_OWN, end, op, lanes);
        }
        step_sums_do(op, [&](int j) {
            const double total = step_team_total(lanes.at[j], team, shared);
            if (lane == 0 && number < last)
                op.store(j, number, total);
        });
    }
}

/* ---- sums of tensors ---- */

/* Where the pieces' sums are: CODE_SUMS_MAX for each piece of the rank's. */
GPU_DEVICE double *step_pieces(const struct gpu_call &call, uint32_t rank)
{
    return (double *)call.fixed->staging[rank];
}

/* The first piece of a tensor of which the rank has elements, counted from the tensor's begin. */
GPU_DEVICE int64_t step_piece_first(const struct gpu_step *step, const int64_t *begins, int64_t tensor)
{
    return step_most(step->begin - begins[tensor], 0) / CODE_SUM_PIECE;
}

/* Pieces [first, end) of the rank's, by their numbers. */
template <typename Operator>
GPU_DEVICE void step_sums_pieces(const struct gpu_step *step, int64_t first, int64_t end, double *pieces, Operator &op)
{
    __shared__ double shared[STEP_WAVES][STEP_OWN];
    const int64_t tensors = step_head(step)->tensors, *begins = step_begins(step),
                  *numbers = (const int64_t *)step + step->pieces;
    step_lanes<Operator::LANES> lanes;

    end = step_least(end, numbers[tensors]);
    for (int64_t piece = first; piece < end; piece++) {
        const int64_t tensor = step_last_of(numbers, tensors, piece),
                      grid =
                          begins[tensor] + (step_piece_first(step, begins, tensor) + piece - numbers[tensor]) * CODE_SUM_PIECE,
                      lower = step_most(grid, step->begin),
                      upper = step_least(step_least(grid + CODE_SUM_PIECE, begins[tensor + 1]), step->begin + step->count);
        lanes.clear();
        op.segment_take(tensor);
        for (int64_t e = grid + threadIdx.x * STEP_OWN; e < upper; e += CODE_SUM_LANES)
            op.add(e, lower, upper, lanes);
        step_sums_do(op, [&](int j) {
            const double total = step_team_total(lanes.at[j], STEP_THREADS, shared);
            if (threadIdx.x == 0)
                pieces[piece * CODE_SUMS_MAX + j] = total;
        });
    }
}

/* The tensors' sums of their pieces', STEP_WAVE threads for each. Tensors that the rank has no element of have the sum 0. */
template <typename Operator> GPU_DEVICE void step_sums_tensors(const struct gpu_step *step, const double *pieces, Operator &op)
{
    const int64_t tensors = step_head(step)->tensors, *begins = step_begins(step),
                  *numbers = (const int64_t *)step + step->pieces;
    const int64_t lane = threadIdx.x % STEP_WAVE;

    for (int64_t tensor = threadIdx.x / STEP_WAVE; tensor < tensors; tensor += STEP_WAVES) {
        const int64_t grid = step_piece_first(step, begins, tensor), n = numbers[tensor + 1] - numbers[tensor];
        const int64_t first = (lane - grid % STEP_WAVE + STEP_WAVE) % STEP_WAVE;
        for (int j = 0; j < op.sums(); j++) {
            double total = 0;
            for (int64_t i = first; i < n; i += STEP_WAVE)
                total += pieces[(numbers[tensor] + i) * CODE_SUMS_MAX + j];
            for (uint32_t bit = 1; bit < STEP_WAVE; bit *= 2)
                total += step_across(total, bit);
            if (lane == 0)
                op.store(j, tensor, total);
        }
    }
}

#endif
