/* SPDX-License-Identifier: MIT */
#ifndef FCC_DAEMON_COMMON_EVENTS_H
#define FCC_DAEMON_COMMON_EVENTS_H

#include <event2/event.h>

#include "proto/base/fd.h"
#include "proto/base/list.h"

/* Frees the event, unless it is NULL, and sets it to NULL. */
static inline void event_drop(struct event **event)
{
    if (*event)
        event_free(*event);
    *event = NULL;
}

#endif
