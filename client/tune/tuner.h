/* SPDX-License-Identifier: MIT
 *
 * tuner.h - a program that is being tuned. Tuning is a collective: whatever decides what comes next has been made the same on all ranks before
 * (ranks_most()), so all ranks call the same operators in the same order, and one choice comes of it.
 */
#ifndef FCC_CLIENT_TUNE_TUNER_H
#define FCC_CLIENT_TUNE_TUNER_H

#include "client/core/context.h"
#include "kernels/tune/schedules.h"

#define BOARD 8     /* numbers that ranks compare at a time */
#define FINALISTS 5 /* candidates that are timed in rounds, the program as written among them */
#define ROUNDS 15   /* at most */

struct tuner {
    fcc_comm *comm;
    const char *text;
    size_t length;
    const struct fcc_program_size *sizes;
    int nsizes;
    struct program *written; /* bound, its schedule carried out: parameters, and their layouts */
    struct candidates candidates;
    struct fcc_tune_row rows[CANDIDATES_MAX];
    struct cost_model model;
    bool has_model;
    fcc_buffer *mine, *most;                    /* [BOARD] doubles */
    fcc_buffer *memory[PROGRAM_PARAMETERS_MAX]; /* of the parameters */
    void *want[PROGRAM_PARAMETERS_MAX];         /* what the program as written makes of them */
};

/* values[i] = the largest of all ranks' values[i]; n <= BOARD. */
int ranks_most(struct tuner *t, double values[], int n);
/* Memory for the parameters, on all ranks or on none. */
int memory_make(struct tuner *t);
void memory_free(struct tuner *t);
int memory_fill(struct tuner *t); /* of what the program updates, again */
/* Opens candidate i with the memory for its tensors. */
int candidate_open(struct tuner *t, int i, fcc_program **out);
/* Seconds of one run, which begins on all ranks at once, of this rank. */
int candidate_run(struct tuner *t, fcc_program *p, double *seconds);
/* Where steps of programs become kernels while the interpreter runs them: waits until all that have been run have theirs, or `end` (clock_ns()) has come. Each rank by
 * itself. */
void kernels_await(const struct tuner *t, uint64_t end);
int results_keep(struct tuner *t);
bool results_agree(const struct tuner *t);
/* What the device and its links do: short programs, timed on all ranks (calibrate.c). end: no kernel is waited for after that. */
int model_measure(struct tuner *t, uint64_t end);

#endif
