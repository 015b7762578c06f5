/* SPDX-License-Identifier: MIT
 *
 * env.h - the job, the rank and the meeting address that launchers' environment variables give.
 */
#ifndef FCC_CLIENT_LAUNCHERS_ENV_H
#define FCC_CLIENT_LAUNCHERS_ENV_H

#include "proto/proto.h"

/* The job's id, the same for all ranks of a launcher: from `option`, else FCCD_JOB, else the launcher. Returns 0 or
 * -EINVAL. */
int job_find(const char *option, char job[FCC_JOB_MAX]);
/* fcc_env_find() for that job. */
int env_find(const char *job, struct fcc_env *out);

#endif
