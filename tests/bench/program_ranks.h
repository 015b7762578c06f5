/* SPDX-License-Identifier: MIT
 *
 * program_ranks.h - the ranks of a communicator, each a process that measures runs of a program: how they meet, and what is printed of their times.
 */
#ifndef FCC_BENCH_PROGRAM_RANKS_H
#define FCC_BENCH_PROGRAM_RANKS_H

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/fccclient.h"

enum { RANKS_MOST = 64 };

/* Where ranks meet: memory that they share, at the begin of what the program shares besides. */
struct meeting {
    struct fcc_unique_id id;
    _Atomic int known;
};

static inline void must(int status)
{
    if (!status)
        return;
    (void)fprintf(stderr, "%s\n", fcc_last_error());
    exit(1);
}

static inline double now_us(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* The rank's communicator; *context is its connection. */
static inline fcc_comm *meeting_join(struct meeting *m, int rank, int ranks, const struct fcc_connect_options *options,
                                     const struct fcc_comm_options *kind, fcc_context **context)
{
    fcc_comm *comm;

    must(fcc_connect(options, context));
    if (rank == 0) {
        must(fcc_get_unique_id(*context, &m->id));
        atomic_store(&m->known, 1);
    }
    while (!atomic_load(&m->known))
        (void)usleep(1000);
    must(fcc_comm_init(*context, &m->id, ranks, rank, kind, &comm));
    return comm;
}

/* Memory of so many zeroed bytes, and behind it *us, the times [ranks][iters], which all ranks share; NULL: there is none. */
static inline void *ranks_share(size_t bytes, int ranks, int iters, double **us)
{
    const size_t times = (bytes + sizeof(double) - 1) / sizeof(double);
    double *all = mmap(NULL, (times + (size_t)ranks * (size_t)iters) * sizeof(double), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    *us = all + times;
    return all == MAP_FAILED ? NULL : all;
}

/* In the process that has made as many: 0, or 1 if one has failed. */
static inline int ranks_wait(int ranks)
{
    for (int r = 0, status; r < ranks; r++)
        if (wait(&status) < 0 || status)
            return 1;
    return 0;
}

/* Of each run the longest of the ranks' times, with commas between them. */
static inline void longest_print(const double *us, int ranks, int iters)
{
    for (int i = 0; i < iters; i++) {
        double longest = 0;
        for (int r = 0; r < ranks; r++)
            longest = us[r * iters + i] > longest ? us[r * iters + i] : longest;
        printf("%s%.1f", i ? ", " : "", longest);
    }
}

#endif
