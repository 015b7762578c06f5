/* SPDX-License-Identifier: MIT
 *
 * slurm.h - a cluster of Slurm on this machine for a test: munged, slurmctld, and a slurmd for each of two nodes, a1 and a2, in the
 * test's directory and on ports of their own.
 */
#ifndef FCC_TEST_SLURM_H
#define FCC_TEST_SLURM_H

#include <sys/types.h>

struct slurm {
    char directory[96];
    pid_t munged, slurmctld, slurmd[2];
};

/* Start it and wait until its nodes are idle; sets SLURM_CONF. Ends the test as skipped, with the reason, where that cannot be. */
void slurm_start(struct slurm *s);
void slurm_stop(struct slurm *s);

#endif
