/* SPDX-License-Identifier: MIT
 *
 * epilogue.h - a program's epilogue (struct fcc_epilogue) as the wire has it.
 */
#ifndef FCC_CLIENT_CORE_EPILOGUE_H
#define FCC_CLIENT_CORE_EPILOGUE_H

#include <stddef.h>

#include "kernels/plan/spec.h"
#include "proto/base/error.h"

#define EPILOGUE_ATTR_WORDS (1 + EPILOGUE_NUMBERS) /* FCC_ATTR_EPILOGUE, with its head */

/* How many of the epilogue's tensors a request has: up to the last one that is there. NULL: 0. */
int epilogue_tensors(const struct fcc_epilogue *p);
static inline const struct fcc_tensor *epilogue_arg(const struct fcc_epilogue *p, int stage)
{
    return (const struct fcc_tensor *)(const void *)((const unsigned char *)p + epilogue_specs[stage].at);
}
/* Whether it does anything. */
bool epilogue_does(const struct fcc_epilogue *p);
/* Fills in the attribute. Returns its words: 0 if all numbers are 0, and it is left out. */
size_t epilogue_attr(const struct fcc_epilogue *p, int64_t words[EPILOGUE_ATTR_WORDS]);
/* 0, or -EINVAL with the reason. */
int epilogue_reserved_check(const struct fcc_epilogue *p, struct error *e);

#endif
