/* SPDX-License-Identifier: MIT
 *
 * variables.h - the environment variables that fccd's programs and its library read. A misspelt name would silently do nothing,
 * so variables_check() finds variables of this process that look like one of fccd's but are not.
 */
#ifndef FCC_PROTO_VARIABLES_H
#define FCC_PROTO_VARIABLES_H

#include <stddef.h>

/* The one of names[n] with the smallest weighted edit distance from `name`; NULL if n is 0. A swap of neighbours or an
 * insertion weighs 1, a replacement 2, a deletion 3. */
const char *name_nearest(const char *name, const char *const names[], size_t n);

/* All *n variables FCC_* and FCCD_* that fccd reads. Those of the daemon's configuration are FCCD_ and the key. */
const char *const *variables_known(size_t *n);

/* Calls found() for each FCC_* and FCCD_* variable of this process that fccd does not read, with the nearest known name.
 * FCC_TEST_* are the test suite's and skipped. No other thread may change the environment meanwhile. */
void variables_check(void (*found)(const char *name, const char *nearest));

#endif
