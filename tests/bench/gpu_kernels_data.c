/* SPDX-License-Identifier: MIT
 *
 * gpu_kernels_data.c - inputs that the GPU and the CPU both know, and results in double precision.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/plan/dtype.h"
#include "tests/bench/gpu_kernels.h"

#define NUMBERS 16777213u /* primes, so that no row's length divides them */
#define IDS 4194301u
#define RANK_STEP 1000003u /* how far one rank's sequence begins behind another's */

enum { CHECKED = 256 }; /* elements of each rank's result */

static struct {
    enum fcc_dtype dtype; /* 0: none yet */
    void *stored;         /* [NUMBERS], in the dtype */
    float *values;        /* [NUMBERS], what is stored */
} numbers;

static struct {
    int64_t rows; /* 0: none yet */
    double zipf;
    int64_t *ids; /* [IDS] */
} drawn;

/* splitmix64's mixing of a counter. */
uint64_t random_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Nearly normal, with variance 1: the sum of four uniform numbers. */
static float normal_at(uint64_t seed, uint64_t i)
{
    uint64_t x = random_mix(random_mix(seed) + i);
    int64_t sum = (int64_t)((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48));

    return (float)((double)(sum - 2 * 65535) * 1.7320508 / 65536);
}

int numbers_open(uint64_t seed, enum fcc_dtype dtype, struct error *e)
{
    if (numbers.dtype == dtype)
        return 0;
    if (!numbers.values) {
        numbers.values = malloc(NUMBERS * sizeof(float));
        numbers.stored = malloc(NUMBERS * sizeof(float));
    }
    if (!numbers.values || !numbers.stored)
        return error_set(e, -ENOMEM, "no memory for %u numbers", NUMBERS);
    for (uint32_t i = 0; i < NUMBERS; i++)
        numbers.values[i] = normal_at(seed, i);
    dtype_from_f32(numbers.stored, numbers.values, dtype, NUMBERS);
    dtype_to_f32(numbers.values, numbers.stored, dtype, NUMBERS);
    numbers.dtype = dtype;
    return 0;
}

static uint64_t place_of(int rank, uint64_t index, uint64_t length)
{
    return ((uint64_t)rank * RANK_STEP + index) % length;
}

const void *numbers_piece(int rank, uint64_t index, uint64_t *count)
{
    uint64_t at = place_of(rank, index, NUMBERS);

    *count = NUMBERS - at;
    return (const char *)numbers.stored + at * dtype_size(numbers.dtype);
}

static double number_at(int rank, uint64_t index)
{
    return (double)numbers.values[place_of(rank, index, NUMBERS)];
}

/* Zipf's law by the inverse of the density x^-s on [1, rows + 1). Frequent ids are no neighbours: a prime spreads them. */
static int64_t id_draw(double u, int64_t rows, double zipf)
{
    double n = (double)rows, x;

    if (zipf <= 0)
        return (int64_t)(u * n);
    x = fabs(zipf - 1) < 1e-9 ? pow(n + 1, u) : pow(1 + u * (pow(n + 1, 1 - zipf) - 1), 1 / (1 - zipf));
    int64_t id = (int64_t)x - 1;
    id = id < 0 ? 0 : id >= rows ? rows - 1 : id;
    return (int64_t)((uint64_t)id * 2654435761u % (uint64_t)rows);
}

int ids_open(uint64_t seed, int64_t rows, double zipf, struct error *e)
{
    if (drawn.rows == rows && drawn.zipf == zipf)
        return 0;
    if (!drawn.ids)
        drawn.ids = malloc(IDS * sizeof(int64_t));
    if (!drawn.ids)
        return error_set(e, -ENOMEM, "no memory for %u ids", IDS);
    for (uint32_t i = 0; i < IDS; i++)
        drawn.ids[i] = id_draw((double)(random_mix(random_mix(~seed) + i) >> 11) * 0x1p-53, rows, zipf);
    drawn.rows = rows;
    drawn.zipf = zipf;
    return 0;
}

const void *ids_piece(int rank, uint64_t index, uint64_t *count)
{
    uint64_t at = place_of(rank, index, IDS);

    *count = IDS - at;
    return drawn.ids + at;
}

static int64_t id_at(int rank, uint64_t index)
{
    return drawn.ids[place_of(rank, index, IDS)];
}

/* ---- references ---- */

/* What element `i` of rank's result should be; *scale is how large such elements are in the mean. */
static double gemv_want(const struct row *s, const struct input_set *set, int nranks, int64_t i, double *scale)
{
    uint64_t x = set->first + (uint64_t)(i / s->n * s->k), w = set->second + (uint64_t)(i % s->n * s->k);
    double sum = 0;

    for (int r = 0; r < nranks; r++)
        for (int64_t k = 0; k < s->k; k++)
            sum += number_at(r, x + (uint64_t)k) * number_at(r, w + (uint64_t)k);
    *scale = sqrt((double)(s->k * nranks));
    return sum;
}

/* Each source's share of the rows, one below the other. */
static double gemm_want(const struct row *s, const struct input_set *set, int nranks, int rank, int64_t i, double *scale)
{
    int64_t share = s->m / nranks, row = i / s->n, column = i % s->n;
    int source = (int)(row / share);
    uint64_t a = set->first + (uint64_t)((rank * share + row % share) * s->k), b = set->second + (uint64_t)column;
    double sum = 0;

    for (int64_t k = 0; k < s->k; k++)
        sum += number_at(source, a + (uint64_t)k) * number_at(source, b + (uint64_t)(k * s->n));
    *scale = sqrt((double)s->k);
    return sum;
}

static double embedding_want(const struct row *s, const struct input_set *set, int nranks, int rank, int64_t i, double *scale)
{
    int64_t share = s->batch / nranks, more = s->batch % nranks, all = s->tables * nranks;
    int64_t sample = rank * share + (rank < more ? rank : more) + i / (all * s->dim), table = i / s->dim % all, d = i % s->dim;
    int source = (int)(table / s->tables);
    double sum = 0;

    table %= s->tables;
    for (int64_t l = 0; l < s->ids; l++) {
        int64_t id = id_at(source, set->first + (uint64_t)((table * s->batch + sample) * s->ids + l));
        sum += number_at(source, (uint64_t)((table * s->rows + id) * s->dim + d));
    }
    *scale = sqrt((double)s->ids);
    return sum;
}

static bool is_poison(const void *result, size_t size, int64_t i)
{
    return size == 4 ? ((const uint32_t *)result)[i] == UINT32_MAX : ((const uint16_t *)result)[i] == UINT16_MAX;
}

/* How many there are; *first is the first one. Plain loops first: results have tens of millions of elements. */
static int64_t poison_count(const void *result, size_t size, int64_t count, int64_t *first)
{
    const uint32_t *words = result;
    const uint16_t *halves = result;
    int64_t n = 0;

    for (int64_t i = 0; i < count && size == 4; i++)
        n += words[i] == UINT32_MAX;
    for (int64_t i = 0; i < count && size == 2; i++)
        n += halves[i] == UINT16_MAX;
    for (*first = 0; n && !is_poison(result, size, *first);)
        ++*first;
    return n;
}

int64_t result_check(const struct row *row, const struct input_set *set, int nranks, int rank, const void *result,
                     int64_t count, uint64_t seed, char *what, size_t room)
{
    /* Of |want| plus the mean size: rounding once to the dtype, and sums in f32. tf32 would be found. */
    double limit = row->dtype == FCC_F32 ? 1e-4 : row->dtype == FCC_F16 ? 2e-3 : 1e-2;
    size_t size = dtype_size(row->dtype);
    int64_t first, wrong = poison_count(result, size, count, &first);

    if (wrong)
        (void)snprintf(what, room, "rank %d: element %" PRId64 " was not written", rank, first);
    for (int n = 0; n < CHECKED && count > 0; n++) {
        int64_t i = (int64_t)(random_mix(random_mix(seed + (uint64_t)rank) + (uint64_t)n) % (uint64_t)count);
        double want, scale;
        float got;
        dtype_to_f32(&got, (const char *)result + (size_t)i * size, row->dtype, 1);
        if (row->op == FCC_OP_GEMV_ALL_REDUCE)
            want = gemv_want(row, set, nranks, i, &scale);
        else if (row->op == FCC_OP_GEMM_ALL_TO_ALL)
            want = gemm_want(row, set, nranks, rank, i, &scale);
        else
            want = embedding_want(row, set, nranks, rank, i, &scale);
        if (is_poison(result, size, i) || fabs((double)got - want) <= limit * (fabs(want) + scale))
            continue; /* not written: counted already. NaN is never near enough. */
        if (wrong++ == 0)
            (void)snprintf(what, room, "rank %d: element %" PRId64 " is %g, should be %g", rank, i, (double)got, want);
    }
    return wrong;
}
