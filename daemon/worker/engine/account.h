/* SPDX-License-Identifier: MIT
 *
 * account.h - the memory that the worker takes, charged to its user before it is allocated.
 */
#ifndef FCC_DAEMON_WORKER_ENGINE_ACCOUNT_H
#define FCC_DAEMON_WORKER_ENGINE_ACCOUNT_H

#include <stdint.h>

#include "proto/base/error.h"

struct worker;

/* Charge `bytes` to the user's account. 0, or -ENOMEM with the reason: MEMORY_PER_USER_MB is reached, or the control group has no more. */
int worker_memory_charge(struct worker *w, uint64_t bytes, struct error *e);
void worker_memory_release(struct worker *w, uint64_t bytes);
/* Charge and release small, frequent amounts, such as queued requests: the account itself is rarely read. */
int worker_small_charge(struct worker *w, uint64_t bytes, struct error *e);
void worker_small_release(struct worker *w, uint64_t bytes);

#endif
