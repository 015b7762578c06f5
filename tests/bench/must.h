/* SPDX-License-Identifier: MIT
 *
 * must.h - what cannot go on otherwise.
 */
#ifndef FCC_BENCH_MUST_H
#define FCC_BENCH_MUST_H

#include <stdio.h>
#include <stdlib.h>

/* Ends the program unless it is ok; errno says why. */
static inline void must(int ok, const char *what)
{
    if (ok)
        return;
    perror(what);
    exit(1);
}

#endif
