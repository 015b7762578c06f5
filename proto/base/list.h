/* SPDX-License-Identifier: MIT
 *
 * list.h - lists (sys/queue.h), and walks whose body may remove and free the element that it has.
 */
#ifndef FCC_PROTO_BASE_LIST_H
#define FCC_PROTO_BASE_LIST_H

#include <stdbool.h>
#include <sys/queue.h>

#define LIST_FOREACH_SAFE(var, head, field, next)                                                                              \
    for ((var) = LIST_FIRST(head); (var) && ((next) = LIST_NEXT(var, field), true); (var) = (next))
#define TAILQ_FOREACH_SAFE(var, head, field, next)                                                                             \
    for ((var) = TAILQ_FIRST(head); (var) && ((next) = TAILQ_NEXT(var, field), true); (var) = (next))

#endif
