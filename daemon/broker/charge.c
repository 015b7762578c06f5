/* SPDX-License-Identifier: MIT
 *
 * charge.c - what each user's jobs have of the node's memory, and may have: MEMORY_PER_USER_MB.
 */
#include <errno.h>

#include "broker.h"
#include "msg.h"

/* More messages than a worker's socket holds: what had been sent before is heard, and a worker that never stops is not waited for. */
#define HEARD_MAX 1024

int64_t user_memory(const struct broker *b, uid_t uid)
{
    const struct job *j;
    int64_t sum = 0;

    LIST_FOREACH(j, &b->jobs, link)
        if (j->uid == uid)
            sum += j->memory_bytes;
    return sum;
}

/* The answer to what the worker asks, as things stand. */
static struct control_charge charge_judge(const struct job *j)
{
    struct control_charge r = {.msg = {.type = CONTROL_CHARGE | FCC_REPLY, .id = j->asked.msg.id},
                               .bytes = j->asked.bytes,
                               .used = (uint64_t)user_memory(j->broker, j->uid),
                               .limit = config_memory_per_user(&j->broker->config)};

    if ((uint64_t)r.bytes > r.limit || r.used > r.limit - (uint64_t)r.bytes)
        r.status = -ENOMEM;
    return r;
}

static void charge_answer(struct job *j)
{
    struct control_charge r = charge_judge(j);

    if (!r.status)
        j->memory_bytes += r.bytes;
    j->asks = false;
    if (j->control >= 0 && msg_send(j->control, &r.msg, sizeof(r), NULL, 0))
        job_disconnect(j);
}

void charge_handle(struct job *j, const struct control_charge *m)
{
    static const struct timeval at_once;

    if (m->bytes < 0) {
        j->memory_bytes = j->memory_bytes + m->bytes > 0 ? j->memory_bytes + m->bytes : 0;
        return;
    }
    j->asked = *m;
    j->asks = true;
    if (!charge_judge(j).status || event_add(j->broker->charges_event, &at_once))
        charge_answer(j);
}

/* A worker tells of memory that it has released before it tells its client, so whoever then asks for that memory, through another
 * worker, asks later. But their sockets may be read in any order, one message at a time: before a charge is refused, everything that
 * was sent before it is heard. */
void charges_judge(evutil_socket_t sock, short what, void *broker)
{
    struct broker *b = broker;
    struct job *j;

    (void)sock, (void)what;
    LIST_FOREACH(j, &b->jobs, link)
        for (int n = 0; n < HEARD_MAX && job_hear(j); n++)
            continue;
    LIST_FOREACH(j, &b->jobs, link)
        if (j->asks)
            charge_answer(j);
}
