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

#include "daemon/net/frame.h"
#include "daemon/net/proxy_inside.h"
#include "proto/base/clock.h"

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

static int early_queue(struct net_link *l, struct proxy_early *early)
{
    early->head.length = 0;
    for (unsigned i = 0; i < early->n; i++)
        early->head.length += early->sends[i].bytes + sizeof(struct net_frame) * (early->sends[i].has_flag ? 2 : 1);
    int status = net_early(l, &early->head);
    for (unsigned i = 0; !status && i < early->n; i++) {
        const struct proxy_early_send *s = &early->sends[i];
        status = net_write(l, &s->to, s->from, &(struct net_area){.row_bytes = s->bytes, .stride = s->bytes, .rows = 1});
        if (!status && s->has_flag)
            status = net_flag(l, s->to.comm, s->to.rank, s->flag, s->epoch);
    }
    return status;
}

/* Nothing was queued before the message, so there is room, and one list holds all of it. What the kernel does not take at once is copied. */
static int early_send(struct proxy *p, struct net_link *l, struct proxy_early *early)
{
    int status = early_queue(l, early);

    if (!status) {
        p->now_ns = clock_ns();
        status = net_progress(l, p->now_ns);
    }
    if (status > 0)
        l->ops->settle(l);
    early->are_sent = status >= 0;
    return status < 0 ? status : 0;
}

/* With the turn. */
static int message_send(struct proxy *p, uint32_t index, const void *bytes, uint32_t length, struct proxy_early *early)
{
    struct node *node = &p->nodes[index];

    (void)arrivals_take(p); /* finds the link, which was added before */
    struct source *s = node->links[0];
    if (!s || !s->link->ops->has_messages)
        return -ENOTCONN;
    bool is_idle = s->link->queued == s->link->flushed;
    int status = TAILQ_EMPTY(&node->letters) ? net_message(s->link, bytes, length) : -EAGAIN;
    if (status == -EAGAIN)
        return letter_keep(node, bytes, length);
    if (!status && early && early->n && is_idle)
        status = early_send(p, s->link, early);
    if (status)
        link_failed(p, s);
    return status;
}

int proxy_message(struct proxy *p, uint32_t node, const void *bytes, uint32_t length, struct proxy_early *early)
{
    (void)pthread_mutex_lock(&p->turn);
    int status = message_send(p, node, bytes, length, early);
    bool is_led = proxy_is_led(p);
    (void)pthread_mutex_unlock(&p->turn);
    if (!is_led)
        proxy_look(p);
    return status;
}

int proxy_replay(struct proxy *p, const void *frames, uint64_t length, struct error *e)
{
    (void)pthread_mutex_lock(&p->turn); /* raise() is called by one thread at a time */
    int status = net_replay(&p->sink, frames, length, e);
    (void)pthread_mutex_unlock(&p->turn);
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
