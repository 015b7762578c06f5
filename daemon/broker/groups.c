/* SPDX-License-Identifier: MIT
 *
 * groups.c - looks up the supplementary groups of a user whose worker is to be started. The name service may take seconds, or
 * not answer at all. So a child process asks it, and only visitors that need this worker wait. Visitors of the same user and
 * group share one look-up. LOOKUPS_AT_ONCE run at a time, others wait in order. A look-up may take LOOKUP_LIMIT_S, its waiting
 * included, which is less than a client waits.
 */
#include <errno.h>
#include <event2/buffer.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/broker/broker.h"

#define LOOKUPS_AT_ONCE 16
#define LOOKUPS_OF_USER 4 /* look-ups of one user at a time, who may connect with each of his groups */
#define LOOKUP_LIMIT_S 8

/* The header of the child's answer; n group ids follow it. */
struct answer {
    int32_t status; /* 0, or the name service's error as a negative errno value */
    uint32_t n;
};

struct lookup {
    TAILQ_ENTRY(lookup) link; /* broker.lookups, in the order of their arrival */
    struct broker *broker;
    uid_t uid;
    gid_t gid;
    struct child *child; /* NULL: not started yet, or ended */
    int fd;              /* the child's answer; -1: the child is not started yet */
    struct event *event, *limit;
    struct evbuffer *said;
};

/* ---- the child ---- */

static void write_all(int out, const void *bytes, size_t n)
{
    const char *at = bytes;

    while (n) {
        ssize_t done = write(out, at, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return; /* the broker has closed its end */
        at += done;
        n -= (size_t)done;
    }
}

/* Does this errno value of getpwuid() mean that the name service failed? If there is no such user, errno may have other
 * values. */
static bool lookup_failed(int error)
{
    return error == EIO || error == EMFILE || error == ENFILE || error == ENOMEM || error == EAGAIN || error == ETIMEDOUT;
}

static void groups_find(int out, const void *argument)
{
    static gid_t gids[NGROUPS_MAX];
    const struct lookup *l = argument;
    struct answer answer = {0};
    int n = NGROUPS_MAX;

    errno = 0;
    const struct passwd *user = getpwuid(l->uid);
    if (!user) {
        answer.status = lookup_failed(errno) ? -errno : 0; /* an unknown uid has no groups */
    } else {
        if (getgrouplist(user->pw_name, l->gid, gids, &n) < 0)
            n = NGROUPS_MAX; /* gids is full; the kernel does not support more */
        answer.n = (uint32_t)n;
    }
    write_all(out, &answer, sizeof(answer));
    write_all(out, gids, answer.n * sizeof(gids[0]));
}

/* ---- the broker ---- */

static void lookup_free(struct lookup *l)
{
    TAILQ_REMOVE(&l->broker->lookups, l, link);
    if (l->child)
        child_kill(l->child);
    event_drop(&l->event);
    event_drop(&l->limit);
    if (l->said)
        evbuffer_free(l->said);
    fd_close(&l->fd);
    free(l);
}

/* Gives the result to all visitors that wait for the look-up, and frees it. groups NULL: the error says why. */
static void lookup_end(struct lookup *l, const struct groups *groups, const struct error *e)
{
    struct visitor *v, *next;

    LIST_FOREACH_SAFE(v, &l->broker->visitors, link, next) {
        if (v->lookup == l)
            visitor_grouped(v, groups, e);
    }
    lookup_free(l);
}

static void lookup_fail(struct lookup *l, int status, const char *why)
{
    struct error e;

    (void)error_set(&e, status, "uid %u: its groups are not known, so its job cannot be started: the name service %s", l->uid,
                    why);
    lookup_end(l, NULL, &e);
}

static void on_limit(evutil_socket_t sock, short what, void *arg)
{
    char why[64];

    (void)sock, (void)what;
    (void)snprintf(why, sizeof(why), "has not answered within %d s", LOOKUP_LIMIT_S);
    lookup_fail(arg, -ETIMEDOUT, why);
}

/* Handles the child's complete answer. */
static void answer_take(struct lookup *l)
{
    size_t length = evbuffer_get_length(l->said);
    const unsigned char *bytes = evbuffer_pullup(l->said, -1);
    struct answer answer;

    if (length < sizeof(answer)) {
        lookup_fail(l, -EIO, "gave no answer");
        return;
    }
    memcpy(&answer, bytes, sizeof(answer));
    struct groups groups = {.n = answer.n};
    gid_t *gids = malloc(length);
    if (answer.status || answer.n > NGROUPS_MAX || length != sizeof(answer) + answer.n * sizeof(gids[0]) || !gids) {
        free(gids);
        lookup_fail(l, answer.status ? answer.status : -EIO, answer.status ? strerror(-answer.status) : "gave half an answer");
        return;
    }
    memcpy(gids, bytes + sizeof(answer), length - sizeof(answer));
    groups.gids = gids;
    lookup_end(l, &groups, NULL);
    free(gids);
}

static void on_answer(evutil_socket_t fd, short what, void *arg)
{
    struct lookup *l = arg;
    int n = evbuffer_read(l->said, fd, -1);

    (void)what;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0)
        answer_take(l);
    else if (evbuffer_get_length(l->said) > sizeof(struct answer) + NGROUPS_MAX * sizeof(gid_t))
        lookup_fail(l, -EIO, "says too much");
}

/* Starts the look-up's child. Returns 0 or -errno. */
static int lookup_begin(struct lookup *l)
{
    int status = child_start(l->broker, groups_find, l, &l->child, &l->broker->nlookups, &l->fd);

    if (status) {
        l->fd = -1;
        return status;
    }
    l->said = evbuffer_new();
    l->event = event_new(l->broker->base, l->fd, EV_READ | EV_PERSIST, on_answer, l);
    return !l->said || !l->event || event_add(l->event, NULL) ? -ENOMEM : 0;
}

/* Do the limits allow a child for this look-up now? */
static bool lookup_may_begin(const struct lookup *l)
{
    const struct lookup *other;
    unsigned n = 0;

    TAILQ_FOREACH(other, &l->broker->lookups, link)
        n += other->uid == l->uid && other->child;
    return l->broker->nlookups < LOOKUPS_AT_ONCE && n < LOOKUPS_OF_USER;
}

void lookups_go_on(struct broker *b)
{
    struct lookup *l, *next;

    for (l = TAILQ_FIRST(&b->lookups); l && b->nlookups < LOOKUPS_AT_ONCE; l = next) {
        next = TAILQ_NEXT(l, link);
        int status = l->fd < 0 && lookup_may_begin(l) ? lookup_begin(l) : 0;
        if (status)
            lookup_fail(l, status, strerror(-status));
    }
}

static struct lookup *lookup_new(struct broker *b, uid_t uid, gid_t gid)
{
    struct lookup *l = calloc(1, sizeof(*l));

    if (!l)
        return NULL;
    *l = (struct lookup){.broker = b, .uid = uid, .gid = gid, .fd = -1};
    TAILQ_INSERT_TAIL(&b->lookups, l, link);
    l->limit = evtimer_new(b->base, on_limit, l);
    if (!l->limit || event_add_ms(l->limit, LOOKUP_LIMIT_S * 1000)) {
        lookup_free(l);
        return NULL;
    }
    return l;
}

int groups_ask(struct visitor *v, struct error *e)
{
    struct broker *b = v->broker;
    struct lookup *l;

    TAILQ_FOREACH(l, &b->lookups, link)
        if (l->uid == v->uid && l->gid == v->gid)
            break;
    if (!l) {
        l = lookup_new(b, v->uid, v->gid);
        int status = !l ? -ENOMEM : lookup_may_begin(l) ? lookup_begin(l) : 0;
        if (status) {
            if (l)
                lookup_free(l);
            return error_set(e, status, "uid %u: its groups cannot be looked up: %s", v->uid, strerror(-status));
        }
    }
    v->lookup = l;
    return 0;
}

void lookups_close(struct broker *b)
{
    struct lookup *l, *next;

    TAILQ_FOREACH_SAFE(l, &b->lookups, link, next)
        lookup_free(l);
}
