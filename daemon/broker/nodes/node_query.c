/* SPDX-License-Identifier: MIT
 *
 * node_query.c - fccctl nodes, as JSON.
 */

#include "daemon/broker/nodes/node.h"
#include "proto/base/json_fd.h"

static double seconds_since(uint64_t then_ns)
{
    return (double)(clock_ns() - then_ns) / 1e9;
}

static struct json_object *own_describe(const struct broker *b)
{
    return JSON_OBJECT({"address", json_text(b->nodes->own)}, {"state", json_text("here")},
                       {"since_s", json_double(seconds_since(b->started_ns))});
}

static struct json_object *node_describe(const struct node *n)
{
    struct json_object *o = JSON_OBJECT({"address", json_text(n->address)}, {"state", json_text(node_state_name(n->state))},
                                        {"why", json_text(n->why)}, {"since_s", json_double(seconds_since(n->since_ns))});
    if (n->state == NODE_CONNECTED && n->round_trip_ns)
        JSON_ADD(o, {"round_trip_us", json_double((double)n->round_trip_ns / 1e3)});
    JSON_ADD(o, {"bytes_in", json_int(n->bytes_in)}, {"bytes_out", json_int(n->bytes_out)}, {"errors", json_int(n->errors)},
             {"configured", json_object_new_boolean(n->configured)});
    return o;
}

struct json_object *nodes_describe(const struct broker *b)
{
    struct json_object *list = json_object_new_array();
    const struct nodes *ns = b->nodes;
    const struct node *n;

    struct json_object *o = JSON_OBJECT({"address", json_text(ns ? ns->own : "")}, {"nodes", list});
    if (!ns)
        return o;
    JSON_ADD(o, {"refused", json_int(ns->refused)}, {"peers_in", json_int(ns->peers_in)},
             {"peers_out", json_int(ns->peers_out)});
    json_object_array_add(list, own_describe(b));
    TAILQ_FOREACH(n, &ns->list, link)
        json_object_array_add(list, node_describe(n));
    return o;
}
