/* SPDX-License-Identifier: MIT
 *
 * drain.c - ends the jobs gently that fccctl drain names.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/broker/broker.h"
#include "proto/base/json_fd.h"
#include "proto/base/log.h"

/* A worker that has been told by this message kills itself if it has not ended CONTROL_LEAVE_MS after DRAIN_MS. */
static int job_drain(struct job *j, const char *who)
{
    struct control_drain m = {.msg = {.type = CONTROL_DRAIN}};

    text_copy(m.text, sizeof(m.text), who);
    int status = channel_send(j, &m.msg, sizeof(m), -1);
    if (!status)
        j->leaves = j->retired = true; /* the job's next connection gets another worker */
    return status;
}

static bool job_is_asked(const struct job *j, const struct fcc_query *q, uid_t asks)
{
    bool may = j->uid == asks || asks == 0 || asks == geteuid();

    return may && !j->retired && j->control >= 0 && (q->comm == UINT32_MAX || q->comm == j->uid) &&
           (!q->text[0] || !strcmp(q->text, j->name));
}

int jobs_drain_asked(struct broker *b, const struct fcc_query *q, const struct visitor *v, struct error *e)
{
    struct json_object *jobs = json_object_new_array();
    char who[sizeof(((struct control_drain *)0)->text)];
    struct job *j;

    (void)snprintf(who, sizeof(who), "uid %u (pid %d) has drained this job (fccctl drain)", v->uid, v->pid);
    LIST_FOREACH(j, &b->jobs, link) {
        if (!memchr(q->text, 0, sizeof(q->text)) || !job_is_asked(j, q, v->uid))
            continue;
        int status = job_drain(j, who);
        if (status) {
            (void)json_object_put(jobs);
            return error_set(e, status, "job %u/%s: its worker (pid %d) cannot be told: %s", j->uid, j->name, j->pid,
                             strerror(-status));
        }
        job_log(LOG_LEVEL_INFO, j, "worker %d drains: %s", j->pid, who);
        json_object_array_add(jobs,
                              JSON_OBJECT({"uid", json_int(j->uid)}, {"job", json_text(j->name)}, {"pid", json_int(j->pid)}));
    }
    if (!json_object_array_length(jobs) && q->text[0]) {
        (void)json_object_put(jobs);
        return error_set(e, -ENOENT, "job %.63s: there is none of that name that is yours to drain", q->text);
    }
    return json_to_fd(JSON_OBJECT({"jobs", jobs}, {"limit_ms", json_int(b->config.drain_ms + CONTROL_LEAVE_MS)}), e);
}
