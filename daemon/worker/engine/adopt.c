/* SPDX-License-Identifier: MIT */
#include "daemon/worker/engine/adopt.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/engine/channel.h"
#include "daemon/worker/engine/engine.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"

/* The most questions that are kept: more are asked in vain if the broker dies over them. A peer has one for each rail and one for messages. */
#define QUESTIONS_MAX 256
#define ENDING_NS UINT64_C(5000000000) /* from the end of a process's descriptors to its own, on however busy a machine */

/* A CONNECT without an answer, or a DENY whose time is not over. */
struct question {
    TAILQ_ENTRY(question) link; /* worker.questions, the oldest first */
    uint64_t until_ns;
    size_t length;
    union {
        struct fcc_msg msg;
        struct control_connect connect;
        struct control_deny deny;
    } m;
};

/* ---- questions ---- */

static void question_free(struct worker *w, struct question *q)
{
    TAILQ_REMOVE(&w->questions, q, link);
    w->nquestions--;
    free(q);
}

static void questions_expire(struct worker *w)
{
    struct question *q, *next;
    uint64_t now = clock_ns();

    TAILQ_FOREACH_SAFE(q, &w->questions, link, next)
        if (now >= q->until_ns)
            question_free(w, q);
}

void question_keep(struct worker *w, const struct fcc_msg *m, size_t length)
{
    bool connect = m->type == CONTROL_CONNECT && length == sizeof(struct control_connect);
    bool deny = m->type == CONTROL_DENY && length == sizeof(struct control_deny);

    if (!w->adoptable || (!connect && !deny))
        return;
    questions_expire(w);
    struct question *q = w->nquestions < QUESTIONS_MAX ? malloc(sizeof(*q)) : NULL;
    if (!q)
        return;
    q->length = length;
    memcpy(&q->m, m, length);
    q->until_ns = clock_ns() + (connect ? q->m.connect.limit_ms : q->m.deny.limit_ms) * UINT64_C(1000000);
    TAILQ_INSERT_TAIL(&w->questions, q, link);
    w->nquestions++;
}

void question_answered(struct worker *w, uint64_t id)
{
    struct question *q, *next;

    TAILQ_FOREACH_SAFE(q, &w->questions, link, next)
        if (q->m.msg.type == CONTROL_CONNECT && q->m.msg.id == id)
            question_free(w, q);
}

static void questions_repeat(struct worker *w)
{
    struct question *q, *next;
    uint64_t now = clock_ns();

    TAILQ_FOREACH_SAFE(q, &w->questions, link, next) {
        if (now >= q->until_ns) {
            question_free(w, q);
            continue;
        }
        uint32_t left_ms = (uint32_t)((q->until_ns - now) / 1000000) + 1;
        if (q->m.msg.type == CONTROL_CONNECT)
            q->m.connect.limit_ms = left_ms;
        else
            q->m.deny.limit_ms = left_ms;
        (void)control_say(w, &q->m.msg, q->length); /* if this fails, the channel has ended, which the next read reports */
    }
}

/* ---- without a broker ---- */

void drain_within(struct worker *w, const char *why)
{
    (void)alarm((w->config.drain_ms + CONTROL_LEAVE_MS) / 1000 + 1);
    w->channel_ops->drain(w, why);
}

static void on_nobody(evutil_socket_t sock, short what, void *arg)
{
    struct worker *w = arg;
    char why[sizeof(w->ending)];

    (void)sock, (void)what;
    (void)snprintf(why, sizeof(why), "fccd has ended, and in %u s (ADOPT_SECONDS) no other has taken this job over",
                   w->config.adopt_seconds);
    log_warning("%s: draining", why);
    drain_within(w, why);
}

static void process_forget(struct worker *w)
{
    event_drop(&w->broker_event);
    fd_close(&w->broker);
}

/* Nobody keeps the channel of a broker that has ended: nobody will come. */
static void on_stopped(struct worker *w)
{
    log_info("fccd was stopped, and no other one will come: draining");
    drain_within(w, "fccd was stopped");
}

static void on_broker_ended(evutil_socket_t process, short what, void *arg)
{
    struct worker *w = arg;

    (void)process, (void)what;
    process_forget(w);
    if (w->control < 0) {
        if (clock_ns() < w->over_ns + ENDING_NS)
            on_stopped(w);
        return;
    }
    log_info("the broker has ended; serving on for another one, at most %u s", w->config.adopt_seconds);
    if (!w->adopt_event || event_add_ms(w->adopt_event, w->config.adopt_seconds * UINT64_C(1000)))
        on_nobody(-1, 0, w);
}

void broker_forget(struct worker *w)
{
    struct question *q, *next;

    process_forget(w);
    event_drop(&w->adopt_event);
    TAILQ_FOREACH_SAFE(q, &w->questions, link, next)
        question_free(w, q);
}

void channel_over(struct worker *w)
{
    struct pollfd process = {.fd = w->broker, .events = POLLIN};
    bool dropped = w->adoptable && (w->broker < 0 || poll(&process, 1, 0) == 1);
    struct event *watch = w->broker_event;
    int broker = w->broker;

    if (!dropped) { /* not control_close()'s to forget */
        w->broker_event = NULL;
        w->broker = -1;
    }
    control_close(w);
    if (dropped) {
        on_stopped(w);
        return;
    }
    /* Either it has closed the channel because it has no use for this worker any more, or it is ending: a process's descriptors are closed a
     * moment before its end can be seen. */
    w->broker_event = watch;
    w->broker = broker;
    w->over_ns = clock_ns();
    log_warning("the broker is gone; serving on until the last client has left");
}

/* ---- another broker ---- */

/* The version that both speak; 0: there is none. */
static uint32_t version_agreed(const struct control_adopt *m)
{
    uint32_t version = m->version < CONTROL_VERSION ? m->version : CONTROL_VERSION;

    return version < CONTROL_OLDEST || version < m->oldest ? 0 : version;
}

void broker_adopts(struct worker *w, const struct control_adopt *m, int process)
{
    struct control_adopted answer = {.msg = {.type = CONTROL_ADOPTED, .id = m->msg.id},
                                     .version = version_agreed(m),
                                     .draining = w->draining,
                                     .sessions = w->nclients,
                                     .controls = w->ncontrols,
                                     .arrivals = w->arrivals,
                                     .got = w->sessions_got,
                                     .handed = w->handed};
    bool another = w->adoptable;

    process_forget(w);
    w->adoptable = true;
    w->broker = process;
    for (int whose = 0; whose < ACCOUNT_WHOSE; whose++)
        memcpy(w->limits.of[whose], m->limits[whose], sizeof(w->limits.of[whose]));
    if (!w->adopt_event)
        w->adopt_event = evtimer_new(w->base, on_nobody, w);
    else
        (void)event_del(w->adopt_event);
    w->broker_event = event_new(w->base, process, EV_READ, on_broker_ended, w);
    if (!w->broker_event || event_add(w->broker_event, NULL))
        log_warning("no memory to watch the broker: its end is not noticed");
    if (control_say(w, &answer.msg, sizeof(answer)))
        return; /* the channel has ended, which the next read reports */
    if (!another)
        return;
    log_info("fccd %d has taken this job over", m->pid);
    w->trouble[0] = '\0';
    if (w->arrivals != m->answered)
        w->channel_ops->doubt(w);
    w->channel_ops->adopted(w);
    if (!answer.version)
        drain_within(w, "another version of fccd was started, which cannot take this job over");
    else
        questions_repeat(w);
}
