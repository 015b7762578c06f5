/* SPDX-License-Identifier: MIT
 *
 * rails.h - "done" messages between nodes (daemon/worker/nodes/rails.c). A node tells over each rail that its ranks use how
 * many of its turns have ended. Such a number counts when it has arrived over all these rails, because then all earlier sends
 * on any of them have arrived.
 */
#ifndef FCC_DAEMON_NET_RAILS_H
#define FCC_DAEMON_NET_RAILS_H

#include "daemon/net/net.h"

#define DONE_OF_NODE (NET_RAILS_MAX * NET_RAILS_MAX) /* flag numbers of one node's "done" messages */

/* The flag number of node `node`'s "done" message over rail `rail` of the `rails` rails that it uses. */
static inline uint32_t done_number(uint32_t node, uint32_t rails, uint32_t rail)
{
    return node * DONE_OF_NODE + (rails - 1) * NET_RAILS_MAX + rail;
}

static inline uint32_t done_node(uint32_t number)
{
    return number / DONE_OF_NODE;
}

/* Records a "done" message: flag number `number` has the value `turns`. ended[] has the last value from each of the sender's
 * rails. Have all its rails reached `turns` now? Any number is allowed, as it comes from another node. */
static inline bool done_by_all(uint64_t ended[NET_RAILS_MAX], uint32_t number, uint64_t turns)
{
    uint32_t rails = number % DONE_OF_NODE / NET_RAILS_MAX + 1;

    ended[number % NET_RAILS_MAX] = turns;
    for (uint32_t i = 0; i < rails; i++)
        if (ended[i] < turns)
            return false;
    return true;
}

#endif
