/* SPDX-License-Identifier: MIT
 *
 * show.c - what errors and fccctl say of rules.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/track/inside.h"
#include "proto/base/clock.h"
#include "proto/base/json_fd.h"

const char *const rule_actions[FCC_RULE_ADD + 1] = {
    [FCC_RULE_SIGNAL] = "signal", [FCC_RULE_STORE] = "store", [FCC_RULE_ADD] = "add"};

/* What the next run of a rule waits for, as "its count is 17 of 20, and awaits[0], the word at byte 64, is 4 of 5". Returns false if it waits for
 * nothing: its rows are being moved. */
static bool waits_say(const struct tracker *t, const struct rule *r, char *text, size_t room)
{
    const uint64_t run = r->done + 1, count = rule_count(t, r);
    size_t at = 0;

    *text = '\0';
    if (count / r->need < run && !rule_is_in_stream(t, r))
        at += (size_t)snprintf(text, room, "its count is %" PRIu64 " of %" PRIu64, count - r->done * r->need, r->need);
    for (int i = 0; i < FCC_RULE_AWAITS && at < room; i++) {
        const struct rule_word *w = &r->awaits[i];
        uint64_t value = rule_word_value(t, w);
        if (w->buffer && value + w->lag < run)
            at +=
                (size_t)snprintf(text + at, room - at, "%sawaits[%d], the word at byte %" PRIu64 ", is %" PRIu64 " of %" PRIu64,
                                 at ? ", and " : "", i, w->offset, value, run - w->lag);
    }
    return at > 0;
}

void rule_say(const struct tracker *t, const struct rule *r, char *text, size_t room)
{
    char waits[256];

    if (!waits_say(t, r, waits, sizeof(waits)))
        (void)snprintf(waits, sizeof(waits), "it waits for the %s", t->words ? "GPU" : "proxy");
    (void)snprintf(text, room, "rank %d: rule %u%s%s%s (%s to rank %d): run %" PRIu64 ": %s", t->member->rank, r->number,
                   *r->name ? " \"" : "", r->name, *r->name ? "\"" : "", rule_actions[r->action], r->rank, r->done + 1, waits);
}

static const char *state_of(const struct tracker *t, const struct rule *r, bool waits)
{
    if (r->status)
        return "freed";
    if (t->ended)
        return "ended";
    return !r->since_ns                                                      ? "idle"
           : !waits                                                          ? "moving"
           : rule_count(t, r) / r->need > r->done || rule_is_in_stream(t, r) ? "waiting"
                                                                             : "counting";
}

static struct json_object *rule_describe(const struct tracker *t, const struct rule *r)
{
    char waits[256];
    const bool any = waits_say(t, r, waits, sizeof(waits));
    struct json_object *o =
        JSON_OBJECT({"comm", json_int(t->member->comm->number)}, {"rank", json_int(t->member->rank)},
                    {"rule", json_int(r->number)}, {"name", json_text(r->name)}, {"action", json_text(rule_actions[r->action])},
                    {"to", json_int(r->rank)}, {"count", json_int((int64_t)rule_count(t, r))},
                    {"need", json_int((int64_t)r->need)}, {"done", json_int((int64_t)r->done)},
                    {"state", json_text(state_of(t, r, any))}, {"waits_for", json_text(r->status ? "" : waits)});

    if (r->since_ns && !r->status)
        JSON_ADD(o, {"since_ms", json_double((double)(clock_ns() - r->since_ns) / 1e6)});
    return o;
}

struct json_object *track_describe(struct worker *w)
{
    struct json_object *rules = json_object_new_array();
    struct tracker *t;

    if (w->tracking) {
        tracking_lock(w->tracking);
        LIST_FOREACH(t, &w->tracking->trackers, link)
            for (uint32_t i = 0; i < t->nrules; i++)
                json_object_array_add(rules, rule_describe(t, t->rules[i]));
        tracking_unlock(w->tracking);
    }
    return JSON_OBJECT({"uid", json_int(w->uid)}, {"job", json_text(w->job)}, {"pid", json_int(getpid())}, {"rules", rules});
}
