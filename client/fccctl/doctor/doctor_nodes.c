/* SPDX-License-Identifier: MIT
 *
 * doctor_nodes.c - checks the connections to other nodes.
 */
#include <string.h>

#include "client/fccctl/control.h"
#include "client/fccctl/doctor/doctor.h"
#include "client/fccctl/field.h"
#include "client/fccctl/format.h"
#include "proto/base/error.h"

#define COMING_S 10 /* nodes that are started at the same time connect sooner than this */

/* The remedy for a node in that state. */
static const char *node_remedy(const char *state)
{
    if (!strcmp(state, "refused"))
        return "both nodes need the same bytes in CLUSTER_KEY, the same version of fccd, and the name by which they call each "
               "other "
               "(NODE_ADDRESS); the other's log says more";
    if (!strcmp(state, "lost"))
        return "is fccd running there, and does the network between the nodes work? 'fccctl ping NODE' tries it at once";
    return "is fccd running there, at that address? does a firewall let its port through? NODES in fccd.conf names it";
}

/* Returns true if the node is connected or is this node; otherwise adds a finding. */
static bool check_node(struct doctor *d, struct json_object *node)
{
    const char *state = field_text(node, "state"), *why = field_text(node, "why");
    char since[FORMAT_ROOM];
    double since_s = field_double(node, "since_s", -1);

    if (!strcmp(state, "connected") || !strcmp(state, "here"))
        return true;
    /* A node that was never connected may still be starting, which is not an error. */
    bool is_coming = !strcmp(state, "connecting") && since_s < COMING_S;
    finding_add(d, is_coming ? FINDING_WARN : FINDING_BAD, "nodes", node_remedy(state), "%s: %s for %s%s%s",
                field_text(node, "address"), state, format_duration(since_s, since), *why ? ": " : "", why);
    return false;
}

void doctor_nodes(struct doctor *d)
{
    struct json_object *answer;
    struct error e;
    size_t well = 0, n;

    if (!d->status)
        return;
    if (control_ask_broker(d->socket, FCC_QUERY_NODES, &answer, &e)) {
        finding_add(d, FINDING_BAD, "nodes", DOCTOR_LOG, "%s", e.text);
        return;
    }
    n = field_count(answer, "nodes");
    for (size_t i = 0; i < n; i++)
        well += check_node(d, field_at(answer, "nodes", i));
    if (!n)
        finding_add(d, FINDING_OK, "nodes", "", "this fccd speaks to no other node: NODE_LISTEN is empty");
    else if (well == n)
        finding_add(d, FINDING_OK, "nodes", "", "%zu other nodes, all connected", n - 1);
    (void)json_object_put(answer);
}
