/* SPDX-License-Identifier: MIT
 *
 * groups.c - looks up the supplementary groups of a user whose worker is to be started. The name service may take seconds, or
 * not answer at all. So a child process asks it, and only visitors that need this worker wait. Visitors of the same user and
 * group share one look-up. LOOKUPS_AT_ONCE run at a time, others wait in order. A look-up may take LOOKUP_LIMIT_S, its waiting
 * included, which is less than a client waits.
 */
#include <errno.h>
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
#define ANSWER_MAX (sizeof(struct answer) + NGROUPS_MAX * sizeof(gid_t))

struct lookup {
    TAILQ_ENTRY(lookup) link; /* broker.lookups, in the order of their arrival */
    struct broker *broker;
    uid_t uid;
    gid_t gid;
    struct child *child; /* NULL: not started yet */
    struct event limit;
};

static gid_t gids[NGROUPS_MAX]; /* the child's result; in the broker, which has one thread, the answer that is handled */

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
    event_stop(&l->limit);
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

static void on_answer(void *owner, const void *bytes, size_t n, int wait_status)
{
    struct lookup *l = owner;
    struct broker *b = l->broker;
    struct answer answer = {0};

    (void)wait_status;
    l->child = NULL;
    if (n >= sizeof(answer))
        memcpy(&answer, bytes, sizeof(answer));
    struct groups groups = {.n = answer.n, .gids = gids};
    if (n < sizeof(answer)) {
        lookup_fail(l, -EIO, "gave no answer");
    } else if (answer.status) {
        lookup_fail(l, answer.status, strerror(-answer.status));
    } else if (n > ANSWER_MAX) {
        lookup_fail(l, -EIO, "says too much");
    } else if (n != sizeof(answer) + answer.n * sizeof(gids[0])) {
        lookup_fail(l, -EIO, "gave half an answer");
    } else {
        memcpy(gids, (const unsigned char *)bytes + sizeof(answer), n - sizeof(answer));
        lookup_end(l, &groups, NULL);
    }
    lookups_go_on(b);
}

/* Starts the look-up's child. Returns 0 or -errno. */
static int lookup_begin(struct lookup *l)
{
    return child_start(l->broker, groups_find, l, ANSWER_MAX, on_answer, l, &l->child);
}

/* Do the limits allow a child for this look-up now? */
static bool lookup_may_begin(const struct lookup *l)
{
    const struct lookup *other;
    unsigned n = 0;

    TAILQ_FOREACH(other, &l->broker->lookups, link)
        n += other->uid == l->uid && other->child;
    return children_count(l->broker, groups_find) < LOOKUPS_AT_ONCE && n < LOOKUPS_OF_USER;
}

void lookups_go_on(struct broker *b)
{
    struct lookup *l, *next;

    TAILQ_FOREACH_SAFE(l, &b->lookups, link, next) {
        int status = !l->child && lookup_may_begin(l) ? lookup_begin(l) : 0;
        if (status)
            lookup_fail(l, status, strerror(-status));
    }
}

static struct lookup *lookup_new(struct broker *b, uid_t uid, gid_t gid)
{
    struct lookup *l = calloc(1, sizeof(*l));

    if (!l)
        return NULL;
    *l = (struct lookup){.broker = b, .uid = uid, .gid = gid};
    TAILQ_INSERT_TAIL(&b->lookups, l, link);
    (void)evtimer_assign(&l->limit, b->base, on_limit, l);
    (void)event_add_ms(&l->limit, LOOKUP_LIMIT_S * 1000);
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
