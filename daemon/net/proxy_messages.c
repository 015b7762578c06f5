/* SPDX-License-Identifier: MIT
 *
 * proxy_messages.c - messages of the owner, which go over a node's rail 0 between the data: one system call sends both, and one receives
 * them.
 *
 * Order. All messages to a node are queued on one link, in the order of calls. A message that finds the link's queue full waits in the node's
 * list, and later ones behind it, until a turn finds room.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/net/proxy_inside.h"

#define PROXY_LETTERS_BYTES (16u << 20) /* messages that wait for a node, at most */
#define PROXY_LAST_TURNS 64             /* turns of proxy_flush(), at most */

void node_letters_free(struct node *node)
{
    struct letter *letter;

    while ((letter = TAILQ_FIRST(&node->letters))) {
        TAILQ_REMOVE(&node->letters, letter, entry);
        free(letter);
    }
    node->letters_bytes = 0;
}

bool node_letters_send(struct proxy *p, uint32_t index)
{
    struct node *node = &p->nodes[index];
    struct letter *letter;
    bool any = false;

    while ((letter = TAILQ_FIRST(&node->letters)) && node->links[0]) {
        int status = net_message(node->links[0]->link, letter->bytes, letter->length);
        if (status == -EAGAIN)
            break;
        any = true;
        if (status) { /* frees them all */
            link_failed(p, node->links[0]);
            break;
        }
        TAILQ_REMOVE(&node->letters, letter, entry);
        node->letters_bytes -= letter->length;
        free(letter);
    }
    return any;
}

static int letter_keep(struct node *node, const void *bytes, uint32_t length)
{
    struct letter *letter = node->letters_bytes + length <= PROXY_LETTERS_BYTES ? malloc(sizeof(*letter) + length) : NULL;

    if (!letter)
        return -ENOBUFS;
    letter->length = length;
    memcpy(letter->bytes, bytes, length);
    TAILQ_INSERT_TAIL(&node->letters, letter, entry);
    node->letters_bytes += length;
    return 0;
}

/* With the turn. */
static int message_send(struct proxy *p, uint32_t index, const void *bytes, uint32_t length)
{
    struct node *node = &p->nodes[index];

    (void)arrivals_take(p); /* finds the link, which was added before */
    struct source *s = node->links[0];
    if (!s || !s->link->ops->has_messages)
        return -ENOTCONN;
    int status = TAILQ_EMPTY(&node->letters) ? net_message(s->link, bytes, length) : -EAGAIN;
    if (status == -EAGAIN)
        return letter_keep(node, bytes, length);
    if (status)
        link_failed(p, s);
    return status;
}

int proxy_message(struct proxy *p, uint32_t node, const void *bytes, uint32_t length)
{
    (void)pthread_mutex_lock(&p->turn);
    int status = message_send(p, node, bytes, length);
    bool is_led = proxy_is_led(p);
    (void)pthread_mutex_unlock(&p->turn);
    if (!is_led)
        proxy_look(p);
    return status;
}

bool proxy_is_sending(struct proxy *p, uint32_t node)
{
    (void)pthread_mutex_lock(&p->turn);
    const struct source *s = p->nodes[node].links[0];
    bool is_sending = !TAILQ_EMPTY(&p->nodes[node].letters) || (s && s->link->queued != s->link->flushed);
    (void)pthread_mutex_unlock(&p->turn);
    return is_sending;
}

void proxy_flush(struct proxy *p)
{
    (void)pthread_mutex_lock(&p->turn);
    for (int turns = 0; turns < PROXY_LAST_TURNS && proxy_turn(p); turns++)
        ;
    (void)pthread_mutex_unlock(&p->turn);
}
