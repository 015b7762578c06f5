/* SPDX-License-Identifier: MIT */
#ifndef FCC_DAEMON_COMMON_EVENTS_H
#define FCC_DAEMON_COMMON_EVENTS_H

#include <event2/event.h>
#include <event2/event_struct.h>

#include "proto/base/fd.h"
#include "proto/base/list.h"

/* Adds the event with a time limit of `ms`. Returns 0 or -1, as event_add(). */
static inline int event_add_ms(struct event *event, uint64_t ms)
{
    return event_add(event, &(struct timeval){.tv_sec = (time_t)(ms / 1000), .tv_usec = (suseconds_t)(ms % 1000 * 1000)});
}

/* Stops an event that lies in a larger struct. One that was never assigned (its bytes are 0) is left alone. */
static inline void event_stop(struct event *event)
{
    if (event_initialized(event))
        (void)event_del(event);
}

/* Frees the event, unless it is NULL, and sets it to NULL. */
static inline void event_drop(struct event **event)
{
    if (*event)
        event_free(*event);
    *event = NULL;
}

#endif
