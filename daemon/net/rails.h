/* SPDX-License-Identifier: MIT
 *
 * rails.h - what a node tells over all the rails that its ranks use (daemon/worker/nodes/rails.c): how many of its turns have ended. It counts when all of
 * them have told it, for then what was sent before over any of them is here.
 */
#ifndef FCC_DAEMON_NET_RAILS_H
#define FCC_DAEMON_NET_RAILS_H

#include "daemon/net/net.h"

#define DONE_OF_NODE (NET_RAILS_MAX * NET_RAILS_MAX) /* numbers by which a node tells it */

/* The number by which node `node` tells it over rail number `rail` of the `rails` that it uses. */
static inline uint32_t done_number(uint32_t node, uint32_t rails, uint32_t rail)
{
    return node * DONE_OF_NODE + (rails - 1) * NET_RAILS_MAX + rail;
}

static inline uint32_t done_node(uint32_t number)
{
    return number / DONE_OF_NODE;
}

/* It has been told by that number, whatever it is, that `turns` have ended; told[] is what that node has told over each of its rails. Do all of
 * them say so now? */
static inline bool done_by_all(uint64_t told[NET_RAILS_MAX], uint32_t number, uint64_t turns)
{
    uint32_t rails = number % DONE_OF_NODE / NET_RAILS_MAX + 1;

    told[number % NET_RAILS_MAX] = turns;
    for (uint32_t i = 0; i < rails; i++)
        if (told[i] < turns)
            return false;
    return true;
}

#endif
