/* SPDX-License-Identifier: MIT
 *
 * peer_link.c - messages between workers that go over the first rail, between the data.
 *
 * A rank's request on its own connection costs a system call on either side, and a look of the event loop. On the rail it leaves with the data
 * that the proxy sends anyway, and comes with it.
 *
 * Order. A worker's messages to a peer have one order. Those before the rail was open went over the connection for messages. The last one there
 * is MOVED, and all later ones go over the rail, but for pings, which say nothing of any communicator. What comes over the rail before MOVED has
 * been read is held. So a peer handles all messages in the order in which they were sent.
 *
 * The thread that receives (the proxy's, or the engine in its stead) only keeps what comes; the engine handles it, after its clients' requests.
 * While the worker asks its broker whether it may end it handles none, as it reads none from the other connections.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/nodes/inside.h"

#define LETTERS_MOST (16u << 20) /* bytes of a peer's messages that the engine has not handled */

static_assert(PEER_MSG_MAX <= NET_MESSAGE_MAX, "a message fits into a frame");

void peers_letters_free(struct peer_letters *letters)
{
    struct peer_letter *letter;

    while ((letter = STAILQ_FIRST(letters))) {
        STAILQ_REMOVE_HEAD(letters, link);
        free(letter);
    }
}

int peers_message(void *nodes_data, uint32_t node, const void *bytes, uint32_t length)
{
    struct nodes_data *d = nodes_data;

    if (length < sizeof(struct peer_msg) || length > PEER_MSG_MAX)
        return -EPROTO;
    struct peer_letter *letter = aligned_alloc(_Alignof(struct peer_letter), (sizeof(*letter) + length + 15) / 16 * 16);
    if (!letter)
        return -ENOMEM;
    letter->node = node;
    letter->length = length;
    memcpy(letter->message, bytes, length);
    (void)pthread_mutex_lock(&d->letters_lock);
    bool has_room = d->letters_of[node] + length <= LETTERS_MOST;
    if (has_room) {
        d->letters_of[node] += length;
        STAILQ_INSERT_TAIL(&d->letters, letter, link);
    }
    (void)pthread_mutex_unlock(&d->letters_lock);
    if (!has_room) {
        free(letter);
        return -ENOBUFS;
    }
    nodes_news_post(d);
    return 0;
}

/* Handle a message and free it. */
static void letter_open(struct peer *p, struct peer_letter *letter)
{
    const struct peer_msg *m = (const struct peer_msg *)(const void *)letter->message;

    if (p->broken.status)
        ; /* what a lost peer has said is dropped */
    else if (m->length != letter->length || m->zero)
        peer_break(p, -EPROTO, "a message of %u bytes: it has %u", m->length, letter->length);
    else
        nodes_message(p, m);
    free(letter);
}

static void letter_hold(struct peer *p, struct peer_letter *letter)
{
    p->held_bytes += letter->length;
    if (p->held_bytes > LETTERS_MOST)
        peer_break(p, -EPROTO, "%llu bytes of messages before moved", (unsigned long long)p->held_bytes);
    STAILQ_INSERT_TAIL(&p->held, letter, link);
}

static void letter_take(const struct worker *w, struct peer_letter *letter)
{
    struct peer *p;

    LIST_FOREACH(p, &w->peers, link)
        if (p->index == letter->node)
            break;
    if (!p)
        free(letter); /* the peer has been given up */
    else if (p->moved)
        letter_open(p, letter);
    else
        letter_hold(p, letter);
}

void peers_take(struct worker *w)
{
    struct nodes_data *d = w->data;
    struct peer_letters taken = STAILQ_HEAD_INITIALIZER(taken);
    struct peer_letter *letter;

    if (w->retiring)
        return;
    (void)pthread_mutex_lock(&d->letters_lock);
    STAILQ_CONCAT(&taken, &d->letters);
    memset(d->letters_of, 0, sizeof(d->letters_of));
    (void)pthread_mutex_unlock(&d->letters_lock);
    while ((letter = STAILQ_FIRST(&taken))) {
        STAILQ_REMOVE_HEAD(&taken, link);
        letter_take(w, letter);
    }
}

void peer_move(struct peer *p)
{
    struct peer_msg m = {0};

    if (p->by_rail || atomic_load_explicit(&nodes_counts(p, true)->transport, memory_order_acquire) != net_tcp.name)
        return;
    peer_send(p, &m, 0, PEER_MOVED, sizeof(m));
    p->by_rail = true;
}

void peer_moved(struct peer *p)
{
    struct peer_letter *letter;

    if (p->moved)
        peer_break(p, -EPROTO, "moved: it has said so before");
    p->moved = true;
    while ((letter = STAILQ_FIRST(&p->held))) {
        STAILQ_REMOVE_HEAD(&p->held, link);
        letter_open(p, letter);
    }
}

void peer_send_by_rail(struct peer *p, const struct peer_msg *m, struct proxy_early *early)
{
    int status = proxy_message(p->worker->data->proxy, p->index, m, m->length, early);

    if (status == -ENOBUFS)
        peer_break(p, -ETIMEDOUT, "it does not take what it is sent");
    /* Of a rail that has failed the engine hears by nodes_data.lost. */
}
