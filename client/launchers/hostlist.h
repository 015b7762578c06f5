/* SPDX-License-Identifier: MIT
 *
 * hostlist.h - Slurm's compressed lists: hosts, and the number of tasks on each host.
 */
#ifndef FCC_CLIENT_LAUNCHERS_HOSTLIST_H
#define FCC_CLIENT_LAUNCHERS_HOSTLIST_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/error.h"

#define HOSTLIST_MAX (1u << 24) /* the most hosts of one list, so that products of counts do not overflow */

/* Writes host number `index` of a list such as "a[1-3,07],b2" into host[room]. *count: the number of hosts. `what` names
 * the list in the error's text. -EINVAL if the list is malformed or has no such host. */
int hostlist_find(const char *what, const char *list, uint32_t index, char *host, size_t room, uint32_t *count,
                  struct error *e);

/* Finds the number of tasks of host number `index` in a list such as "2(x3),1". *count: the number of hosts; *sum: the
 * tasks of all hosts. Errors as hostlist_find(). */
int tasklist_find(const char *what, const char *list, uint32_t index, uint32_t *tasks, uint32_t *count, uint32_t *sum,
                  struct error *e);

#endif
