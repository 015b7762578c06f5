/* SPDX-License-Identifier: MIT
 *
 * env.h - what launchers say: the job, the rank, where to meet.
 */
#ifndef FCC_CLIENT_LAUNCHERS_ENV_H
#define FCC_CLIENT_LAUNCHERS_ENV_H

#include "proto/proto.h"

/* The job's id: what `option` says, or FCCD_JOB, or the launcher; the same for all ranks of a launcher. -EINVAL. */
int job_find(const char *option, char job[FCC_JOB_MAX]);
/* fcc_env_find() for that job. */
int env_find(const char *job, struct fcc_env *out);

#endif
