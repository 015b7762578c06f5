/* SPDX-License-Identifier: MIT
 *
 * nodes.c - the verbs nodes and ping: other nodes from the view of this node's broker.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/fccctl/control.h"
#include "client/fccctl/fccctl.h"
#include "client/fccctl/field.h"
#include "proto/base/error.h"

#define PING_MS 2000 /* time limit for each round trip, as in the broker */

static bool node_is_well(struct json_object *node)
{
    return !strcmp(field_text(node, "state"), "connected") || !strcmp(field_text(node, "state"), "here");
}

/* Prints the traffic between each job's worker and the job's workers on other nodes. "OVER" is the transport, and the adapters of
 * its links in the order of rails: "verbs mlx5_0, mlx5_1". */
static void links_print(struct json_object *answer)
{
    struct json_object *links = json_object_new_array();

    for (size_t w = 0; w < field_count(answer, "workers"); w++) {
        struct json_object *worker = field_at(answer, "workers", w);
        for (size_t i = 0; i < field_count(worker, "links"); i++) {
            struct json_object *link = json_object_get(field_at(worker, "links", i));
            JSON_ADD(link, {"job", json_text(field_text(worker, "job"))});
            (void)json_object_array_add(links, link);
        }
    }
    JSON_ADD(answer, {"links", links});
    if (field_count(answer, "links")) {
        printf("\n");
        table_of(answer, "links",
                 "JOB=job|NODE=node|STATE=state|>RAILS=rails|OVER=transport devices|>IN=bytes_in|>OUT=bytes_out|>WAITS=waits|"
                 ">ERRORS=errors",
                 "");
    }
    workers_silent_print(answer);
}

static void nodes_print(struct json_object *answer)
{
    if (!field_count(answer, "nodes")) {
        printf("this fccd speaks to no other node: NODE_LISTEN is empty\n");
        return;
    }
    table_of(answer, "nodes",
             "NODE=address|STATE=state|>SINCE=since_s|>ROUND TRIP=round_trip_us|>IN=bytes_in|>OUT=bytes_out|>ERRORS=errors|"
             "WHY=why",
             "");
    links_print(answer);
}

int verb_nodes(struct call *call)
{
    struct json_object *answer, *links;
    struct error e;
    bool well = true;

    if (!args_parse(call, NULL, 0, 0))
        return call->exit;
    if (control_ask_broker(call->socket, FCC_QUERY_NODES, &answer, &e))
        return control_fail(call, &e);
    if (field_count(answer, "nodes")) { /* the workers' answers are added to the broker's */
        if (workers_collect(call->socket, FCC_QUERY_NODES, -1, NULL, &links, &e)) {
            (void)json_object_put(answer);
            return control_fail(call, &e);
        }
        json_object_object_foreach(links, name, value) JSON_ADD(answer, {name, json_object_get(value)});
        (void)json_object_put(links);
    }
    for (size_t i = 0; i < field_count(answer, "nodes"); i++)
        well &= node_is_well(field_at(answer, "nodes", i));
    return control_show(call, answer, well && !field_count(answer, "silent"), nodes_print);
}

int verb_ping(struct call *call)
{
    int64_t count = 10;
    const struct arg args[] = {
        {"count", 0, ARG_INT, &count, 1, FCC_PINGS_MAX, NULL, "N", "how many round trips [10]"},
    };
    struct fcc_query query = {.what = FCC_QUERY_PING};
    struct control *control;
    struct json_object *answer;
    struct error e;

    if (!args_parse(call, args, sizeof(args) / sizeof(args[0]), 1))
        return call->exit;
    if (call->noperands != 1)
        return verb_error(call, EXIT_USAGE, "NODE is missing: which of 'fccctl nodes'?");
    if (strlen(call->operands[0]) >= FCC_NODE_MAX)
        return verb_error(call, EXIT_USAGE, "\"%s\": allowed are %d characters", call->operands[0], FCC_NODE_MAX - 1);
    query.comm = (uint32_t)count;
    (void)snprintf(query.text, sizeof(query.text), "%s", call->operands[0]);
    if (control_open(call->socket, 0, "", CONTROL_LIMIT_MS, &control, &e))
        return control_fail(call, &e);
    int status = control_query(control, &query, CONTROL_LIMIT_MS + (int)count * PING_MS, &answer, &e);
    control_close(control);
    if (status) /* not control_fail(): here -ECONNREFUSED, for example, is about the other node */
        return verb_error(call, status == -EHOSTDOWN ? EXIT_UNREACHABLE : EXIT_UNWELL, "%s", e.text);
    if (call->json) {
        json_print(answer, true);
    } else {
        print_clean("node %s: %" PRId64 " round trips: min %s, median %s, max %s\n", field_text(answer, "address"),
                    field_int(answer, "round_trips", 0), format_ns(field_double(answer, "min_us", 0) * 1e3).text,
                    format_ns(field_double(answer, "median_us", 0) * 1e3).text,
                    format_ns(field_double(answer, "max_us", 0) * 1e3).text);
    }
    (void)json_object_put(answer);
    return EXIT_WELL;
}
