/* SPDX-License-Identifier: MIT
 *
 * cache.h - prefetch hints for memory that another process used last. Its cache lines are then fetched in parallel, while this
 * core does other work.
 */
#ifndef FCC_PROTO_BASE_CACHE_H
#define FCC_PROTO_BASE_CACHE_H

#define CACHE_LINE 64u
#define CACHE_FETCH_MOST 512u /* bytes of a ring that are worth prefetching: a record with some tensors */

/* Prefetches a cache line to be read. */
static inline void cache_fetch(const void *p)
{
    __builtin_prefetch(p);
}

/* Prefetches a cache line to be written: takes it from the other cores. */
static inline void cache_own(void *p)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(char *)p)); /* the built-in emits prefetchw only with -mprfchw */
#else
    __builtin_prefetch(p, 1);
#endif
}

#endif
