/* SPDX-License-Identifier: MIT
 *
 * account.h - what the worker has of what is limited, charged to its user and its job. Memory is charged before it is allocated.
 */
#ifndef FCC_DAEMON_WORKER_ENGINE_ACCOUNT_H
#define FCC_DAEMON_WORKER_ENGINE_ACCOUNT_H

#include <stdint.h>

#include "daemon/common/account.h"
#include "proto/base/error.h"

struct worker;

/* Charge `bytes`. 0, or -ENOMEM with the reason, which names the limit: of the user, of the job, or of a control group. */
int worker_memory_charge(struct worker *w, uint64_t bytes, struct error *e);
void worker_memory_release(struct worker *w, uint64_t bytes);
/* The same of a GPU's memory. */
int worker_gpu_memory_charge(struct worker *w, uint64_t bytes, struct error *e);
void worker_gpu_memory_release(struct worker *w, uint64_t bytes);
/* One more, or one less, of communicators, operators or streams. 0, or -EUSERS with the reason, which names the limit. Of
 * operators and streams the account is rarely read: a part of what was given back stays charged. */
int worker_count_take(struct worker *w, enum account_kind kind, struct error *e);
void worker_count_give(struct worker *w, enum account_kind kind);
/* Charge and release small, frequent amounts, such as queued requests: the account itself is rarely read. */
int worker_small_charge(struct worker *w, uint64_t bytes, struct error *e);
void worker_small_release(struct worker *w, uint64_t bytes);

#endif
