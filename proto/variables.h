/* SPDX-License-Identifier: MIT
 *
 * variables.h - the environment variables that fccd's programs and its library read, and which of a process's look like one of
 * them but are none: a misspelt name is otherwise a setting that silently does nothing.
 */
#ifndef FCC_PROTO_VARIABLES_H
#define FCC_PROTO_VARIABLES_H

#include <stddef.h>

/* Of names[n], the one that `name` becomes with the least insertions, replacements, deletions and swaps of neighbours, which weigh more
 * in this order; NULL if n is 0. */
const char *name_nearest(const char *name, const char *const names[], size_t n);

/* Every variable FCC_* and FCCD_* that something of fccd reads; *n of them. Those of the daemon's configuration are FCCD_ and the key. */
const char *const *variables_known(size_t *n);

/* Calls found() for each FCC_* and FCCD_* variable of this process that nothing reads, with the nearest known one. FCC_TEST_* are
 * left to test suites. Reads the environment: nothing may change it meanwhile. */
void variables_check(void (*found)(const char *name, const char *nearest));

#endif
