/* SPDX-License-Identifier: MIT
 *
 * node_query.c - fccctl nodes, as JSON.
 */
#include <json-c/json.h>
#include <string.h>

#include "daemon/broker/nodes/node.h"

static double seconds_since(uint64_t then_ns)
{
    return (double)(clock_ns() - then_ns) / 1e9;
}

static struct json_object *own_describe(const struct broker *b)
{
    struct json_object *o = json_object_new_object();

    json_object_object_add(o, "address", json_object_new_string(b->nodes->own));
    json_object_object_add(o, "state", json_object_new_string("here"));
    json_object_object_add(o, "since_s", json_object_new_double(seconds_since(b->started_ns)));
    return o;
}

static struct json_object *node_describe(const struct node *n)
{
    struct json_object *o = json_object_new_object();

    json_object_object_add(o, "address", json_object_new_string(n->address));
    json_object_object_add(o, "state", json_object_new_string(node_state_name(n->state)));
    json_object_object_add(o, "why", json_object_new_string(n->why));
    json_object_object_add(o, "since_s", json_object_new_double(seconds_since(n->since_ns)));
    if (n->state == NODE_CONNECTED && n->round_trip_ns)
        json_object_object_add(o, "round_trip_us", json_object_new_double((double)n->round_trip_ns / 1e3));
    json_object_object_add(o, "bytes_in", json_object_new_int64((int64_t)n->bytes_in));
    json_object_object_add(o, "bytes_out", json_object_new_int64((int64_t)n->bytes_out));
    json_object_object_add(o, "errors", json_object_new_int64((int64_t)n->errors));
    json_object_object_add(o, "configured", json_object_new_boolean(n->configured));
    return o;
}

struct json_object *nodes_describe(const struct broker *b)
{
    struct json_object *o = json_object_new_object(), *list = json_object_new_array();
    const struct nodes *ns = b->nodes;
    const struct node *n;

    json_object_object_add(o, "address", json_object_new_string(ns ? ns->own : ""));
    json_object_object_add(o, "nodes", list);
    if (!ns)
        return o;
    json_object_object_add(o, "refused", json_object_new_int64((int64_t)ns->refused));
    json_object_object_add(o, "peers_in", json_object_new_int64((int64_t)ns->peers_in));
    json_object_object_add(o, "peers_out", json_object_new_int64((int64_t)ns->peers_out));
    json_object_array_add(list, own_describe(b));
    TAILQ_FOREACH(n, &ns->list, link)
        json_object_array_add(list, node_describe(n));
    return o;
}
