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
#include "client/fccctl/print.h"
#include "client/fccctl/workers.h"
#include "proto/base/error.h"

#define PING_MS 2000 /* time limit for each round trip, as in the broker */

static bool node_is_well(struct json_object *node)
{
    return !strcmp(field_text(node, "state"), "connected") || !strcmp(field_text(node, "state"), "here");
}

/* "verbs mlx5_0, mlx5_1": the transport, and the adapters of its links in the order of rails. */
static void over_cell(struct table *table, struct json_object *link)
{
    const char *transport = field_text(link, "transport");
    char devices[256];

    (void)field_list(link, "devices", devices, sizeof(devices));
    table_cell(table, "%s%s%s", *transport ? transport : "-", *devices ? " " : "", devices);
}

/* Prints the traffic between each job's worker and the job's workers on other nodes. */
static void links_print(struct json_object *answer)
{
    struct table *table = table_new("JOB|NODE|STATE|>RAILS|OVER|>IN|>OUT|>WAITS|>ERRORS");
    char text[FORMAT_ROOM];
    size_t rows = 0;

    for (size_t w = 0; w < field_count(answer, "workers"); w++) {
        struct json_object *worker = field_at(answer, "workers", w);
        for (size_t i = 0; i < field_count(worker, "links"); i++, rows++) {
            struct json_object *l = field_at(worker, "links", i);
            table_cell(table, "%s", field_text(worker, "job"));
            table_cell(table, "%s", field_text(l, "node"));
            table_cell(table, "%s", field_text(l, "state"));
            table_cell(table, "%" PRId64, field_int(l, "rails", 0));
            over_cell(table, l);
            table_cell(table, "%s", format_bytes(field_double(l, "bytes_in", 0), text));
            table_cell(table, "%s", format_bytes(field_double(l, "bytes_out", 0), text));
            table_cell(table, "%" PRId64, field_int(l, "waits", 0));
            table_cell(table, "%" PRId64, field_int(l, "errors", 0));
        }
    }
    if (rows) {
        printf("\n");
        (void)table_print(table, "", stdout);
    }
    table_free(table);
    workers_silent_print(answer);
}

static void nodes_print(struct json_object *answer)
{
    struct table *table;
    char text[FORMAT_ROOM];

    if (!field_count(answer, "nodes")) {
        printf("this fccd speaks to no other node: NODE_LISTEN is empty\n");
        return;
    }
    table = table_new("NODE|STATE|>SINCE|>ROUND TRIP|>IN|>OUT|>ERRORS|WHY");
    for (size_t i = 0; i < field_count(answer, "nodes"); i++) {
        struct json_object *n = field_at(answer, "nodes", i);
        bool here = !strcmp(field_text(n, "state"), "here");
        double round_trip = field_double(n, "round_trip_us", -1);
        table_cell(table, "%s", field_text(n, "address"));
        table_cell(table, "%s", field_text(n, "state"));
        table_cell(table, "%s", format_duration(field_double(n, "since_s", -1), text));
        table_cell(table, "%s", round_trip < 0 ? "-" : format_ns(round_trip * 1e3, text));
        table_cell(table, "%s", here ? "-" : format_bytes(field_double(n, "bytes_in", 0), text));
        table_cell(table, "%s", here ? "-" : format_bytes(field_double(n, "bytes_out", 0), text));
        table_number(table, here ? -1 : field_int(n, "errors", 0));
        table_text(table, field_text(n, "why"));
    }
    (void)table_print(table, "", stdout);
    table_free(table);
    links_print(answer);
}

/* Adds the workers' answers to the broker's. */
static int links_collect(const char *socket, struct json_object *answer, struct error *e)
{
    static const char *const keys[] = {"workers", "silent"};
    struct json_object *links;
    int status = workers_collect(socket, FCC_QUERY_NODES, -1, NULL, &links, e);

    if (status)
        return status;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        JSON_ADD(answer, {keys[i], json_object_get(json_object_object_get(links, keys[i]))});
    (void)json_object_put(links);
    return 0;
}

int verb_nodes(struct call *call)
{
    struct json_object *answer;
    struct error e;
    int code = EXIT_WELL;

    if (!args_parse(call, NULL, 0, 0))
        return call->exit;
    if (control_ask_broker(call->socket, FCC_QUERY_NODES, &answer, &e))
        return verb_error(call, control_exit(&e), "%s", e.text);
    if (field_count(answer, "nodes") && links_collect(call->socket, answer, &e)) {
        (void)json_object_put(answer);
        return verb_error(call, control_exit(&e), "%s", e.text);
    }
    for (size_t i = 0; i < field_count(answer, "nodes"); i++)
        if (!node_is_well(field_at(answer, "nodes", i)))
            code = EXIT_UNWELL;
    if (field_count(answer, "silent"))
        code = EXIT_UNWELL;
    control_show(call, answer, nodes_print);
    return code;
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
    char min[FORMAT_ROOM], median[FORMAT_ROOM], max[FORMAT_ROOM];
    struct error e;

    if (!args_parse(call, args, sizeof(args) / sizeof(args[0]), 1))
        return call->exit;
    if (call->noperands != 1)
        return usage_error(call, "NODE is missing: which of 'fccctl nodes'?");
    if (strlen(call->operands[0]) >= FCC_NODE_MAX)
        return usage_error(call, "\"%s\": allowed are %d characters", call->operands[0], FCC_NODE_MAX - 1);
    query.comm = (uint32_t)count;
    (void)snprintf(query.text, sizeof(query.text), "%s", call->operands[0]);
    if (control_open(call->socket, 0, "", &control, &e))
        return verb_error(call, control_exit(&e), "%s", e.text);
    int status = control_query(control, &query, CONTROL_LIMIT_MS + (int)count * PING_MS, &answer, &e);
    control_close(control);
    if (status) /* not control_exit(): here -ECONNREFUSED, for example, is about the other node */
        return verb_error(call, status == -EHOSTDOWN ? EXIT_UNREACHABLE : EXIT_UNWELL, "%s", e.text);
    if (call->json) {
        json_print(answer, true);
    } else {
        print_clean("node %s: %" PRId64 " round trips: min %s, median %s, max %s\n", field_text(answer, "address"),
                    field_int(answer, "round_trips", 0), format_ns(field_double(answer, "min_us", 0) * 1e3, min),
                    format_ns(field_double(answer, "median_us", 0) * 1e3, median),
                    format_ns(field_double(answer, "max_us", 0) * 1e3, max));
    }
    (void)json_object_put(answer);
    return EXIT_WELL;
}
