/* SPDX-License-Identifier: MIT
 *
 * node_trouble.c - which nodes of NODES this one does not reach, and why, as its own links find out: workers say so to who waits in vain. Nothing
 * that another node says of itself without having proven itself is in it, but for what its own address answers.
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
    (void)channel_send_newest(j, &m.msg, sizeof(m)); /* if the worker is gone, or memory is short: it is for a text only */
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
        if (j->control >= 0 && j->closed && !j->retired) /* others hear it with their START */
            trouble_send(j);
}

void trouble_tell(struct job *j)
{
    if (j->broker->nodes && *j->broker->nodes->trouble)
        trouble_send(j);
}
