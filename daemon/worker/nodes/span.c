/* SPDX-License-Identifier: MIT
 *
 * span.c - what comm/ asks of this folder (comm/span.h).
 */
#include "daemon/worker/comm/span.h"

#include "daemon/worker/comm/bounce.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/nodes/nodes.h"
#include "daemon/worker/nodes/puts.h"

static bool is_root(const struct comm *c)
{
    return !c->nodes->root;
}

static bool has_formed(const struct comm *c)
{
    return c->nodes->formed;
}

static const char *address(const struct member *m)
{
    return m->peer ? m->peer->address : "";
}

static int staging_make(struct member *m, uint64_t bytes, struct error *e)
{
    struct device_memory *staging = &m->dev->staging;
    struct comm *c = m->comm;

    if (m->remote) {
        bounce_free(staging);
        return bounce_make(c, bytes, staging, e);
    }
    if (staging->data)
        nodes_region_remove(c->worker, nodes_memory_here(c), m->rank, NET_STAGING);
    device_memory_free(m->dev->device, staging);
    int status = device_memory_alloc(m->dev->device, bytes, staging, NULL, e);
    return status ? status : nodes_region_add(c, m->rank, NET_STAGING, staging, staging->bytes, e);
}

static int buffer_open(struct member *m, const struct buffer *b, struct error *e)
{
    return nodes_region_add(m->comm, m->rank, b->handle, &b->memory, b->bytes, e);
}

static void buffer_freed(const struct comm *c, const struct buffer *b)
{
    nodes_buffer_freed(c, b->rank, b->handle);
}

static void buffer_close(const struct comm *c, const struct buffer *b)
{
    nodes_region_remove(c->worker, nodes_memory_here(c), b->rank, b->handle);
}

static void ends_well(struct comm *c)
{
    c->nodes->is_left = true;
}

const struct span_ops span_over_nodes = {
    .root = nodes_root,
    .deny = nodes_deny,
    .join = nodes_join,
    .form = nodes_form,
    .is_root = is_root,
    .has_formed = has_formed,
    .awaited = nodes_awaited,
    .address = address,
    .submitted = nodes_submit,
    .turn_ready = nodes_turn_ready,
    .tune = nodes_tune,
    .alloc = nodes_alloc,
    .turn_ended = nodes_turn_ended,
    .launch_open = nodes_launch_open,
    .launch_settle = nodes_early_settle,
    .staged = nodes_staged,
    .launch_started = nodes_launch_started,
    .launch_failed = nodes_launch_failed,
    .launch_close = nodes_launch_close,
    .measured = nodes_measured,
    .launch_ops = &nodes_launch_ops,
    .staging_make = staging_make,
    .buffer_open = buffer_open,
    .result_made = nodes_result_send,
    .buffer_freed = buffer_freed,
    .buffer_close = buffer_close,
    .left = nodes_left,
    .ends_well = ends_well,
    .aborted = nodes_aborted,
    .release = nodes_release,
    .puts_close = puts_close,
    .puts_buffer_freed = puts_buffer_freed,
    .puts_rank_gone = puts_rank_gone,
};
