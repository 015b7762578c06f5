/* SPDX-License-Identifier: MIT
 *
 * program_verb.h - what the verbs program and tune have in common: a program's file, and its sizes.
 */
#ifndef FCC_CLIENT_FCCCTL_PROGRAM_VERB_H
#define FCC_CLIENT_FCCCTL_PROGRAM_VERB_H

#include "client/fccctl/fccctl.h"
#include "kernels/program/steps.h"

/* A file's text, to be freed; NULL with call->exit. */
char *program_file_read(struct call *call, const char *path, size_t *length);
/* The sizes of `N=4,M=8`, whose names lie in `text` afterwards; false with call->exit. */
bool program_sizes_parse(struct call *call, char *text, struct program_size sizes[PROGRAM_SIZES_MAX], size_t *n);

#endif
