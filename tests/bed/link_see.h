/* SPDX-License-Identifier: MIT
 *
 * link_see.h - what fccctl nodes says of the first node's only job and the second node.
 */
#ifndef FCC_TEST_LINK_SEE_H
#define FCC_TEST_LINK_SEE_H

#include <json-c/json.h>
#include <string.h>

#include "tests/bed/harness.h"
#include "tests/bed/program.h"

struct link_seen {
    char state[16], transport[16], devices[128]; /* "rxe0 rxe1" */
    int64_t rails, bytes_in, bytes_out, errors;
};

static inline struct json_object *link_member(struct json_object *o, const char *name)
{
    struct json_object *value;

    if (!json_object_object_get_ex(o, name, &value))
        check_failed(__FILE__, __LINE__, "no \"%s\" in %s", name, json_object_to_json_string(o));
    return value;
}

static inline struct link_seen link_see(const struct test_daemon *d)
{
    static char text[1 << 16];
    struct link_seen s = {.errors = -1};
    const char *arguments[] = {"--socket", d->node[0].socket, "nodes", "--json", NULL};

    (void)program_run(text, sizeof(text), fccctl_binary(), arguments);
    struct json_object *o = json_tokener_parse(text);
    if (!o)
        check_failed(__FILE__, __LINE__, "fccctl nodes: not JSON: %s", text);
    struct json_object *workers = link_member(o, "workers");
    CHECK(json_object_array_length(workers) == 1 && json_object_array_length(link_member(o, "silent")) == 0);
    struct json_object *worker = json_object_array_get_idx(workers, 0), *links = link_member(worker, "links");
    CHECK(strcmp(json_object_get_string(link_member(worker, "job")), "test") == 0 && json_object_array_length(links) == 1);
    struct json_object *l = json_object_array_get_idx(links, 0);
    CHECK(strcmp(json_object_get_string(link_member(l, "node")), d->node[1].address) == 0);
    (void)snprintf(s.state, sizeof(s.state), "%s", json_object_get_string(link_member(l, "state")));
    (void)snprintf(s.transport, sizeof(s.transport), "%s", json_object_get_string(link_member(l, "transport")));
    struct json_object *devices = link_member(l, "devices");
    for (size_t i = 0, n = 0; i < json_object_array_length(devices) && n < sizeof(s.devices); i++)
        n += (size_t)snprintf(s.devices + n, sizeof(s.devices) - n, "%s%s", i ? " " : "",
                              json_object_get_string(json_object_array_get_idx(devices, i)));
    s.rails = json_object_get_int64(link_member(l, "rails"));
    s.bytes_in = json_object_get_int64(link_member(l, "bytes_in"));
    s.bytes_out = json_object_get_int64(link_member(l, "bytes_out"));
    s.errors = json_object_get_int64(link_member(l, "errors"));
    (void)json_object_put(o);
    return s;
}

#endif
