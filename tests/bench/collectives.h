/* SPDX-License-Identifier: MIT
 *
 * collectives.h - times collectives of vectors, size by size, whoever does them: collectives_fcc.c and mpi_collectives.c give the functions.
 *
 * A program is called with COLLECTIVE BYTES ITERS and prints {"collective": ..., "bytes": ..., "ranks": ..., "us": [...]}: for each of ITERS
 * iterations the time of the slowest rank. An iteration begins when all ranks have come (a barrier). BYTES counts as nccl-tests does: the
 * whole vector. Elements are f32. Every rank has the same share of the whole.
 */
#ifndef FCC_BENCH_COLLECTIVES_H
#define FCC_BENCH_COLLECTIVES_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A rank's input and result: of `whole` elements, or of whole / ranks. */
struct collective {
    const char *name;
    int in_is_share, out_is_share;
};
static const struct collective collectives[] = {{"all_reduce", 0, 0}, {"reduce_scatter", 0, 1}, {"all_gather", 1, 0},
                                                {"all_to_all", 0, 0}, {"broadcast", 0, 0},      {"reduce", 0, 0},
                                                {"gather", 1, 0},     {"scatter", 0, 1}};
#define COLLECTIVES ((int)(sizeof(collectives) / sizeof(collectives[0])))

static inline double now_us(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static inline int collective_find(const char *name)
{
    for (int i = 0; i < COLLECTIVES; i++)
        if (!strcmp(name, collectives[i].name))
            return i;
    (void)fprintf(stderr, "%s: no such collective\n", name);
    exit(2);
}

/* Element i of a rank's input: sums of up to 8 ranks are exact. */
static inline float element_of(int rank, int64_t i)
{
    return (float)((i * 7 + rank * 3) % 64);
}

/* The number of wrong elements of a rank's result. Root is rank 0. */
static inline int64_t result_wrong(int which, int rank, int ranks, int64_t whole, const float *out)
{
    const struct collective *c = &collectives[which];
    int64_t share = whole / ranks, n = c->out_is_share ? share : whole, wrong = 0;
    int rooted = !strcmp(c->name, "reduce") || !strcmp(c->name, "gather");

    for (int64_t i = 0; i < n && (!rooted || rank == 0); i++) {
        float want = 0;
        int64_t source = i / (share ? share : 1), at = i % (share ? share : 1);
        if (strstr(c->name, "reduce"))
            for (int r = 0; r < ranks; r++)
                want += element_of(r, c->out_is_share ? rank * share + i : i);
        else if (strstr(c->name, "gather"))
            want = element_of((int)source, at);
        else if (!strcmp(c->name, "all_to_all"))
            want = element_of((int)source, rank * share + at);
        else
            want = element_of(0, c->out_is_share ? rank * share + i : i);
        wrong += out[i] != want;
    }
    return wrong;
}

static inline void collective_print(int which, int ranks, int64_t bytes, const double *us, int iters)
{
    printf("{\"collective\": \"%s\", \"bytes\": %lld, \"ranks\": %d, \"us\": [", collectives[which].name, (long long)bytes,
           ranks);
    for (int i = 0; i < iters; i++)
        printf("%s%.3f", i ? ", " : "", us[i]);
    printf("]}\n");
}

#endif
