/* SPDX-License-Identifier: MIT
 *
 * unwatched.h - for functions that compute with memory that no other thread knows: the thread sanitizer does not watch what they load and store,
 * which would take most of a test's time.
 */
#ifndef FCC_TEST_UNWATCHED_H
#define FCC_TEST_UNWATCHED_H

#define UNWATCHED __attribute__((no_sanitize("thread"), noinline))

#endif
