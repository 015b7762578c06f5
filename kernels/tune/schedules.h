/* SPDX-License-Identifier: MIT
 *
 * schedules.h - the schedules of a program that are legal and worth a measurement, and the choice among what was measured. Pure functions of a
 * program: all ranks that have the same program get the same list in the same order.
 */
#ifndef FCC_KERNELS_TUNE_SCHEDULES_H
#define FCC_KERNELS_TUNE_SCHEDULES_H

#include "kernels/plan/cost.h"
#include "kernels/program/steps.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CANDIDATES_MAX 64
#define TUNED_STATEMENTS_MAX 128 /* of more statements than this no groups are made: each try checks the whole program */

struct candidate {
    char *schedule; /* statements, each with a newline; "": none */
    struct cost_work work;
    uint32_t steps;
    uint64_t runs; /* a hash of what its steps are */
};
/* candidate[0] is the program as written, with its own schedule. */
struct candidates {
    struct candidate candidate[CANDIDATES_MAX];
    int n;
    int legal; /* schedules that were found legal and run, those among them that run what an earlier one runs */
};

/* The candidates of a bound program whose schedule has not been carried out. All have the parameters of the program as written, in the same layouts: who
 * calls the program notices no difference but time. 0, to be freed with candidates_free(); -EINVAL, -EOPNOTSUPP: the program as written is wrong, or
 * does not run; -ENOMEM. */
int candidates_make(const struct program *p, struct candidates *out, struct error *e);
void candidates_free(struct candidates *c);
/* A hash of all of them, by which ranks notice that they have different ones. */
uint64_t candidates_hash(const struct candidates *c);

/* Carries out a schedule's text, a statement on each line. The program's own must not have been carried out, and is left out. 0, or -EINVAL; the program
 * may then be half scheduled. */
int schedule_apply(struct program *p, const char *schedule, struct error *e);
/* A program's own schedule as text, to be freed; NULL: no memory. */
char *schedule_text(const struct program *p);
/* Do all parameters of both have the same dtypes, shapes and layouts? */
bool parameters_equal(const struct program *a, const struct program *b);
/* The text of `p`'s program with another schedule: what stands before its own, and then this one. To be freed; NULL: no memory. */
char *text_with_schedule(const char *text, size_t length, const char *schedule);

/* What a step is counted as (work.c). */
struct cost_work step_work(const struct program_steps *s, const struct program_step *step);
/* The sum of a program's steps. */
struct cost_work steps_work(const struct program_steps *s);

/* The choice: seconds[i * rounds + k] of candidate i in round k, of the slowest rank. The candidate of the smallest median, if in most rounds it took less
 * than candidate 0, the program as written, and by its median at least `margin` less (0.02: two in a hundred); otherwise 0. */
int candidates_choose(const double seconds[], int n, int rounds, double margin);
double median_of(const double values[], int n); /* n > 0 */

#ifdef __cplusplus
}
#endif
#endif
