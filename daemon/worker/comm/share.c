/* SPDX-License-Identifier: MIT
 *
 * share.c - holds a communicator's next operator back, until its job may launch again.
 *
 * The engine looks again after LOOK_MS, by a timer, and whenever it advances the communicator. An operator is never held back for longer than
 * SHARE_HOLD_NS: so weights are kept as far as one operator is not worth more than that of other jobs' time. Where other nodes may wait it is
 * SHARE_HOLD_NODES_NS. Each node holds operators back by its own GPUs' shares, one node after the other in the worst case, so what a communicator over many
 * nodes loses stays small; of weights it keeps what fits into two periods for each operator. Its operators are counted like all others.
 */
#include "daemon/worker/comm/share.h"

#include "daemon/worker/comm/comm.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/engine/meter.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"

#define LOOK_MS 1

static bool look_again(struct comm *c, event_callback_fn again)
{
    if (!c->hold_event)
        c->hold_event = evtimer_new(c->worker->base, again, c);
    if (c->hold_event && (evtimer_pending(c->hold_event, NULL) || !event_add_ms(c->hold_event, LOOK_MS)))
        return true;
    log_warning("comm %u: no memory to wait for its share of a GPU: it goes on", c->number);
    return false;
}

bool comm_has_share(const struct comm *c)
{
    return c->dev.ops->number == FCC_DEVICE_CPU || c->worker->draining || !gpus_share_is_used_up(&c->dev);
}

bool comm_hold(struct comm *c, event_callback_fn again)
{
    uint64_t now = clock_ns(), most = c->nodes ? SHARE_HOLD_NODES_NS : SHARE_HOLD_NS;
    uint64_t limit = c->dev.time_limit_ms * UINT64_C(1000000);

    most = most < limit / 4 ? most : limit / 4; /* ranks that wait must not take this for one that has not come */
    if ((c->held_ns && now - c->held_ns >= most) || !look_again(c, again)) {
        comm_hold_end(c);
        return false;
    }
    if (!c->held_ns) {
        c->held_ns = now;
        gpus_share_wait(&c->dev, true);
    }
    return true;
}

void comm_hold_end(struct comm *c)
{
    if (!c->held_ns)
        return;
    gpus_share_wait(&c->dev, false);
    if (c->worker->meters) {
        meter_add(&c->worker->meters->counters.held, 1);
        meter_add(&c->worker->meters->counters.held_ns, clock_ns() - c->held_ns);
    }
    c->held_ns = 0;
    (void)event_del(c->hold_event);
}
