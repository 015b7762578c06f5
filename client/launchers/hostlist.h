/* SPDX-License-Identifier: MIT
 *
 * hostlist.h - Slurm's lists in brackets and braces: which hosts, and how many tasks on each.
 */
#ifndef FCC_CLIENT_LAUNCHERS_HOSTLIST_H
#define FCC_CLIENT_LAUNCHERS_HOSTLIST_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/error.h"

#define HOSTLIST_MAX (1u << 24) /* hosts of one list: a sane bound for numbers that are multiplied */

/* The host number `index` of a list such as "a[1-3,07],b2": host[room]. *count: how many hosts there are. `what` names the list
 * in the error's text. -EINVAL if it cannot be read or has no such host. */
int hostlist_find(const char *what, const char *list, uint32_t index, char *host, size_t room, uint32_t *count,
                  struct error *e);

/* The same of a list of numbers of tasks, such as "2(x3),1". *sum: of all of them. */
int tasklist_find(const char *what, const char *list, uint32_t index, uint32_t *tasks, uint32_t *count, uint32_t *sum,
                  struct error *e);

#endif
