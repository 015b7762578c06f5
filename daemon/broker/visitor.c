/* SPDX-License-Identifier: MIT
 *
 * visitor.c - visitors: connections from accept() until they are handed over or closed, and which of them makes room for
 * another.
 *
 * There are visitors_max places, of which a user may take a quarter. If a user has reached that share, one of his own visitors
 * makes room for his next one. If all places are taken, a visitor of the user with the most visitors makes room (of the same
 * user, if nobody has more). Of a user's visitors the oldest that has sent no HELLO goes first, then the connection of fccctl
 * that has been idle for the longest time. Before a visitor is closed, its unread messages are handled: it must be late, not
 * the broker. Visitors that wait for the broker's answer stay; each such wait has a time limit of its own.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/broker/broker.h"
#include "proto/base/log.h"
#include "proto/msg.h"

#define ACCEPTS_AT_ONCE 16
#define ACCEPT_PAUSE_MS 200 /* how long to accept nothing when no descriptor is left */
#define HEARD_FIRST_MAX 8 /* messages handled before one visitor is closed in any case, so that sending does not keep a place */

/* ---- places ---- */

/* The user with the most visitors; of several, user `uid` if he is among them. NULL: there are no visitors. */
static struct user *user_largest(const struct broker *b, uid_t uid)
{
    struct user *u, *largest = NULL;

    LIST_FOREACH(u, &b->users, link)
        if (!largest || u->visitors > largest->visitors || (u->visitors == largest->visitors && u->uid == uid))
            largest = u;
    return largest;
}

static unsigned user_share(const struct broker *b)
{
    return b->visitors_max / 4 ? b->visitors_max / 4 : 1;
}

static unsigned askers_share(const struct broker *b)
{
    return b->visitors_max / 16 > 4 ? b->visitors_max / 16 : 4;
}

static bool visitor_waits(const struct visitor *v)
{
    return v->waits || v->ping || v->lookup;
}

/* The user's visitor that is to make room (with `askers` only one of fccctl's). NULL: there is none, or all wait for an
 * answer. */
static struct visitor *visitor_idlest(const struct broker *b, const struct user *u, bool askers)
{
    struct visitor *v, *found = NULL;

    LIST_FOREACH(v, &b->visitors, link) {
        if (v->user != u || visitor_waits(v) || (askers && !v->control))
            continue;
        if (!found || v->control < found->control || (v->control == found->control && v->heard_ns < found->heard_ns))
            found = v;
    }
    return found;
}

bool socket_is_unheard(int sock)
{
    char byte;

    return recv(sock, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}

static void visitor_evict(struct visitor *v)
{
    struct error e;

    (void)error_set(&e, -EUSERS, "uid %u has %u connections to fccd that %s: this one makes room for another", v->uid,
                    v->control ? v->user->askers : v->user->visitors,
                    v->control ? "ask about it" : "are in no job yet, and this one has said nothing");
    visitor_refuse(v, 0, &e);
}

/* Closes one of the user's visitors, or handles its unread message. Returns false if there is none to close. May free any of
 * his visitors. */
static bool user_make_room(struct broker *b, const struct user *u, bool askers, unsigned *heard)
{
    struct visitor *v = visitor_idlest(b, u, askers);

    if (!v)
        return false;
    if (*heard < HEARD_FIRST_MAX && socket_is_unheard(v->sock)) {
        ++*heard;
        visitor_read(v->sock, EV_READ, v);
    } else {
        visitor_evict(v);
    }
    return true;
}

/* The user one of whose visitors must make room before user `uid` can have one more. NULL: there is room. */
static struct user *user_crowded(const struct broker *b, uid_t uid)
{
    struct user *own = user_find(b, uid);

    if (own && own->visitors >= user_share(b))
        return own;
    return b->nvisitors >= b->visitors_max ? user_largest(b, uid) : NULL;
}

static bool places_make(struct broker *b, uid_t uid)
{
    unsigned heard = 0;
    struct user *u;

    while ((u = user_crowded(b, uid)))
        if (!user_make_room(b, u, false, &heard))
            return false;
    return true;
}

bool visitor_may_ask(struct visitor *v)
{
    unsigned heard = HEARD_FIRST_MAX; /* handle no other message: this is called while one is being handled */

    if (v->user->askers >= askers_share(v->broker) && !user_make_room(v->broker, v->user, true, &heard))
        return false;
    v->user->askers++;
    v->control = true;
    return true;
}

/* ---- life ---- */

void visitor_free(struct visitor *v)
{
    struct broker *b = v->broker;

    LIST_REMOVE(v, link);
    b->nvisitors--;
    v->user->visitors--;
    v->user->askers -= v->control;
    user_put(v->user);
    if (v->ping)
        ping_forget(v->ping);
    event_stop(&v->event);
    if (v->handed_over)
        (void)close(v->sock);
    else
        msg_close(v->sock);
    free(v);
}

static int visitor_new(struct broker *b, int sock, const struct ucred *who)
{
    struct visitor *v = calloc(1, sizeof(*v));
    struct user *u = v ? user_get(b, who->uid) : NULL;

    if (!u) {
        free(v);
        return -ENOMEM;
    }
    *v = (struct visitor){.broker = b, .sock = sock, .uid = who->uid, .gid = who->gid, .pid = who->pid, .user = u};
    v->heard_ns = clock_ns();
    (void)event_assign(&v->event, b->base, sock, EV_READ | EV_PERSIST, visitor_read, v);
    if (event_add(&v->event, &visitor_limit)) {
        user_put(u);
        free(v);
        return -ENOMEM;
    }
    LIST_INSERT_HEAD(&b->visitors, v, link);
    b->nvisitors++;
    u->visitors++;
    return 0;
}

/* Refuses a connection that does not become a visitor. */
static void stranger_refuse(struct broker *b, int sock, uint32_t uid, int status)
{
    struct fcc_reply reply = {.msg = {.type = FCC_MSG_ERROR}, .status = status};
    struct error e;

    if (status == -EUSERS)
        (void)error_set(&e, status, "uid %u has as many connections to fccd that wait for an answer as a user may have: %u",
                        uid, user_share(b));
    else
        (void)error_set(&e, status, "%s", strerror(-status));
    log_about(LOG_LEVEL_WARNING, log_user(uid), "refused a connection of uid %u: %s", uid, e.text);
    text_copy(reply.text, sizeof(reply.text), e.text);
    (void)msg_send(sock, &reply.msg, sizeof(reply), NULL, 0);
    b->refused++;
    msg_close(sock);
}

/* ---- accept ---- */

void visitors_again(evutil_socket_t sock, short what, void *arg)
{
    struct broker *b = arg;

    (void)sock, (void)what;
    if (!b->draining)
        (void)event_add(&b->listen_event, NULL);
}

/* accept() has failed for want of a descriptor or of memory; the connection stays in the kernel's queue. An idle visitor makes
 * room for it. If there is none, accepting pauses for a while, as the broker would only spin. */
static void accept_failed(struct broker *b, int error)
{
    struct user *u = user_largest(b, (uid_t)-1);
    unsigned heard = 0;

    if (error == EAGAIN || error == ECONNABORTED || error == EINTR)
        return;
    log_warning("accept: %s", strerror(error));
    if (error == EMFILE && u && user_make_room(b, u, false, &heard))
        return;
    (void)event_del(&b->listen_event);
    (void)event_add_ms(&b->listen_again, ACCEPT_PAUSE_MS);
}

/* Accepts one connection. Returns false if there is none, or none can be accepted now. */
static bool accept_one(struct broker *b, int listen_sock)
{
    struct ucred who = {.uid = (uid_t)-1};
    socklen_t size = sizeof(who);
    int sock = accept4(listen_sock, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), status = 0;

    if (sock < 0) {
        accept_failed(b, errno);
        return false;
    }
    b->connections++;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &who, &size))
        status = -errno;
    else if (!places_make(b, who.uid))
        status = -EUSERS;
    else
        status = visitor_new(b, sock, &who);
    if (status)
        stranger_refuse(b, sock, who.uid, status);
    return true;
}

/* Between two calls of this function the event loop may answer every visitor once. A user who connects and asks without end has
 * many connections in the queue before another user's one. So each call accepts several. */
void visitor_accept(evutil_socket_t listen_sock, short what, void *arg)
{
    (void)what;
    for (int i = 0; i < ACCEPTS_AT_ONCE && accept_one(arg, listen_sock); i++) {
    }
}
