/* SPDX-License-Identifier: MIT
 *
 * mps.h - jobs each of which has an MPS server of its own, or none: the environment of the job's processes.
 */
#ifndef FCC_TEST_MPS_H
#define FCC_TEST_MPS_H

#include <stdbool.h>
#include <sys/types.h>

struct mps_domain {
    const char *job;
    char pipe[64], log[160];
    pid_t guard; /* 0: no MPS */
    int guard_end;
};

/* Starts an MPS control daemon for the job, if it is to have one; without one the job uses none, even if the machine has one. Skips the test where
 * there is no such program. The process of a test. */
void mps_domain_open(struct mps_domain *m, const char *job, bool mps);
/* The processes that this one starts from now on are the job's. */
void mps_domain_enter(const struct mps_domain *m);
/* The job's processes, which are there, do use its MPS server. */
void mps_domain_check(const struct mps_domain *m);
/* Ends the control daemon. It ends, too, when the test's process and all that it forked have ended. */
void mps_domain_close(const struct mps_domain *m);

/* An MPS control daemon answers, at $CUDA_MPS_PIPE_DIRECTORY. */
bool mps_answers(void);

#endif
