/* SPDX-License-Identifier: MIT
 *
 * cache.h - bringing memory that another process wrote or read last nearer before it is needed, so that its cache lines come at the
 * same time, and while there is something else to do. Hints: they change nothing but times.
 */
#ifndef FCC_PROTO_BASE_CACHE_H
#define FCC_PROTO_BASE_CACHE_H

#include <stddef.h>

#define CACHE_LINE 64u
#define CACHE_FETCH_MOST 512u /* bytes of a ring that are worth it: what a record with some tensors takes */

/* To be read. */
static inline void cache_fetch(const void *p)
{
    __builtin_prefetch(p);
}

/* To be written: no other core has it then. */
static inline void cache_own(void *p)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(char *)p)); /* the built-in makes it only where all x86 processors have it */
#else
    __builtin_prefetch(p, 1);
#endif
}

#endif
