/* SPDX-License-Identifier: MIT */
#ifndef FCC_DAEMON_COMMON_EVENTS_H
#define FCC_DAEMON_COMMON_EVENTS_H

#include <event2/event.h>

#include "proto/base/fd.h"
#include "proto/base/list.h"

/* Adds the event with a time limit of `ms`. Returns 0 or -1, as event_add(). */
static inline int event_add_ms(struct event *event, uint64_t ms)
{
    return event_add(event, &(struct timeval){.tv_sec = (time_t)(ms / 1000), .tv_usec = (suseconds_t)(ms % 1000 * 1000)});
}

/* Frees the event, unless it is NULL, and sets it to NULL. */
static inline void event_drop(struct event **event)
{
    if (*event)
        event_free(*event);
    *event = NULL;
}

#endif
