/* SPDX-License-Identifier: MIT
 *
 * node_trouble.c - which nodes of NODES cannot be reached, and why, as this node's links find out. Workers add it to the errors
 * of ranks that time out. A node that has not proven itself cannot influence this text, except by what it answers at its own
 * address.
 */
#include <stdio.h>
#include <string.h>

#include "daemon/broker/nodes/node.h"

static void trouble_find(const struct nodes *ns, char text[CONTROL_TROUBLE_MAX])
{
    const struct node *n, *first = NULL;
    char others[32] = "";
    unsigned count = 0;

    TAILQ_FOREACH(n, &ns->list, link) {
        if (!n->configured || n->state == NODE_CONNECTED || !*n->why)
            continue;
        count++;
        if (!first || (n->state == NODE_REFUSED && first->state != NODE_REFUSED))
            first = n;
    }
    text[0] = '\0';
    if (count > 1)
        (void)snprintf(others, sizeof(others), " (and %u others)", count - 1);
    if (first)
        (void)snprintf(text, CONTROL_TROUBLE_MAX, "node %s: %.128s%s", first->address, first->why, others);
}

static void trouble_send(struct job *j)
{
    const struct nodes *ns = j->broker->nodes;
    struct control_trouble m = {.msg = {.type = CONTROL_TROUBLE}};

    memcpy(m.text, ns->trouble, sizeof(m.text));
    (void)channel_send_newest(j, &m.msg, sizeof(m)); /* failure does not matter: this is only for an error text */
}

void trouble_update(struct nodes *ns)
{
    char text[CONTROL_TROUBLE_MAX] = "";
    struct job *j;

    trouble_find(ns, text);
    if (!strcmp(text, ns->trouble))
        return;
    memcpy(ns->trouble, text, sizeof(text));
    LIST_FOREACH(j, &ns->broker->jobs, link)
        if (j->control >= 0 && j->closed && !j->retired) /* a worker without START yet gets it after START */
            trouble_send(j);
}

void trouble_tell(struct job *j)
{
    if (j->broker->nodes && *j->broker->nodes->trouble)
        trouble_send(j);
}
