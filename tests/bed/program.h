/* SPDX-License-Identifier: MIT
 *
 * program.h - run another program and see what it says.
 */
#ifndef FCC_TEST_PROGRAM_H
#define FCC_TEST_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>

/* Run a program (NULL after its arguments, at most 60); its exit code, and what it printed on both outputs in text[room]. */
int program_run(char *text, size_t room, const char *path, const char *const arguments[]);
/* Is there such a program in PATH? */
bool program_found(const char *name);
/* The fccctl that is tested: $FCCCTL_BINARY, or build/bin/fccctl. */
const char *fccctl_binary(void);

#endif
