/* SPDX-License-Identifier: MIT
 *
 * metrics.c - all metrics as OpenMetrics text, version 1.0.0. The number of samples is bounded: labels are operators, schedules and reasons of
 * fixed lists, users who have jobs, the first USERS_MAX of them, and nodes that this broker knows.
 */
#include "daemon/broker/metrics/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/broker/metrics/families.h"
#include "daemon/broker/nodes/node.h"
#include "daemon/broker/share/share.h"
#include "proto/base/json_fd.h"
#include "proto/version.h"

#define X(NAME, name, type, unit, help) METRIC_##NAME,
enum metric { METRIC_FAMILIES(X) METRIC_COUNT };
#undef X

static const struct family {
    const char *name, *type, *unit, *help;
} families[] = {
#define X(NAME, name, type, unit, help) {#name, #type, #unit, help},
    METRIC_FAMILIES(X)
#undef X
};

static const char *const op_names[] = {
#define X(NAME, name, number) [number] = #name,
    FCC_OPERATORS(X)
#undef X
};
#define X(NAME, name) #name,
static const char *const schedule_names[] = {METER_SCHEDULES(X)}, *const abort_names[] = {METER_ABORTS(X)},
                         *const limit_names[] = {METER_LIMITS(X)};
#undef X
static_assert(sizeof(op_names) / sizeof(op_names[0]) == FCC_OP_COUNT, "each operator has a name");

/* ---- text ---- */

static void family_begin(FILE *out, enum metric m)
{
    const struct family *f = &families[m];

    (void)fprintf(out, "# TYPE %s %s\n", f->name, f->type);
    if (*f->unit)
        (void)fprintf(out, "# UNIT %s %s\n", f->name, f->unit);
    (void)fprintf(out, "# HELP %s %s\n", f->name, f->help);
}

/* One sample; `labels` is "" or "{...}". */
static void sample(FILE *out, enum metric m, const char *labels, uint64_t value)
{
    (void)fprintf(out, "%s%s%s %" PRIu64 "\n", families[m].name, strcmp(families[m].type, "counter") ? "" : "_total", labels,
                  value);
}

static void family_of_one(FILE *out, enum metric m, uint64_t value)
{
    family_begin(out, m);
    sample(out, m, "", value);
}

/* Labels: `{name="value"}`. Values that come from elsewhere are addresses, which have no character that must be escaped (address_check()). */
struct labels {
    char text[256];
};
static struct labels labels1(const char *name, const char *value)
{
    struct labels l;

    (void)snprintf(l.text, sizeof(l.text), "{%s=\"%s\"}", name, value);
    return l;
}
static struct labels labels2(const char *name, const char *value, const char *name2, const char *value2)
{
    struct labels l;

    (void)snprintf(l.text, sizeof(l.text), "{%s=\"%s\",%s=\"%s\"}", name, value, name2, value2);
    return l;
}

/* Of two numbers up to INT64_MAX, to which workers can drive any count. */
static uint64_t sum_bounded(uint64_t a, uint64_t b)
{
    return b > INT64_MAX - a ? INT64_MAX : a + b;
}

/* op: NULL: the histogram has no labels. */
static void histogram(FILE *out, enum metric m, const char *op, const struct meter_times *t)
{
    const char *name = families[m].name;
    char label[64] = "", own[72] = "";
    uint64_t sum = 0;

    if (op) {
        (void)snprintf(label, sizeof(label), "operator=\"%s\",", op);
        (void)snprintf(own, sizeof(own), "{operator=\"%s\"}", op);
    }
    for (int i = 0; i < METER_BUCKETS - 1; i++)
        (void)fprintf(out, "%s_bucket{%sle=\"%.9g\"} %" PRIu64 "\n", name, label, 1e-6 * (double)(1ull << 2 * i),
                      sum = sum_bounded(sum, t->count[i]));
    sum = sum_bounded(sum, t->count[METER_BUCKETS - 1]);
    (void)fprintf(out, "%s_bucket{%sle=\"+Inf\"} %" PRIu64 "\n", name, label, sum);
    (void)fprintf(out, "%s_count%s %" PRIu64 "\n%s_sum%s %.9f\n", name, own, sum, name, own, (double)t->sum_ns / 1e9);
}

static void histogram_family(FILE *out, enum metric m, const struct meter_times all[FCC_OP_COUNT])
{
    family_begin(out, m);
    for (int op = 0; op < FCC_OP_COUNT; op++) {
        uint64_t n = 0;
        for (int i = 0; i < METER_BUCKETS; i++)
            n |= all[op].count[i];
        if (n)
            histogram(out, m, op_names[op], &all[op]);
    }
}

/* ---- the broker ---- */

static void broker_print(FILE *out, const struct broker *b)
{
    struct json_object *gpus = NULL;
    uint64_t queued = 0;
    const struct job *j;

    LIST_FOREACH(j, &b->jobs, link)
        queued += j->queued;
    family_begin(out, METRIC_BUILD);
    (void)fprintf(out, "%s_info%s 1\n", families[METRIC_BUILD].name, labels1("version", VERSION_TEXT).text);
    family_begin(out, METRIC_START);
    (void)fprintf(out, "%s %.3f\n", families[METRIC_START].name, b->started_s);
    family_of_one(out, METRIC_CONNECTIONS, b->connections);
    family_of_one(out, METRIC_REFUSED, b->refused);
    family_of_one(out, METRIC_VISITORS, b->nvisitors);
    family_of_one(out, METRIC_HANDOVERS, queued);
    family_of_one(out, METRIC_WORKERS_STARTED, b->workers_started);
    family_of_one(out, METRIC_WORKERS_ADOPTED, b->workers_adopted);
    family_of_one(out, METRIC_WORKERS_DIED, b->workers_died);
    family_begin(out, METRIC_DEVICES);
    sample(out, METRIC_DEVICES, labels1("kind", "cpu").text, b->config.cpu_devices);
    (void)json_object_object_get_ex(b->probe.gpus, "gpus", &gpus);
    sample(out, METRIC_DEVICES, labels1("kind", "gpu").text, json_object_array_length(gpus));
}

/* ---- users ---- */

/* What a user has: jobs, connections, and then what accounts have. */
enum usage_kind { USAGE_JOBS, USAGE_CONNECTIONS, USAGE_ACCOUNT, USAGES = USAGE_ACCOUNT + ACCOUNT_COUNT };
struct usage {
    uint64_t of[USAGES];
};

/* The families of what users have, and of its limits. */
static const struct {
    enum metric user, limit;
} usages[USAGES] = {[USAGE_JOBS] = {METRIC_USER_JOBS, METRIC_LIMIT_JOBS},
                    [USAGE_CONNECTIONS] = {METRIC_USER_CONNECTIONS, METRIC_LIMIT_CONNECTIONS},
#define X(NAME, user, job, text) [USAGE_ACCOUNT + ACCOUNT_##NAME] = {METRIC_USER_##NAME, METRIC_LIMIT_##NAME},
                    ACCOUNT_KINDS(X)
#undef X
};

static struct usage user_usage(const struct broker *b, uid_t uid)
{
    struct usage u = {0};
    const struct job *j;

    LIST_FOREACH(j, &b->jobs, link) {
        if (j->uid != uid)
            continue;
        u.of[USAGE_JOBS] += !j->retired;
        u.of[USAGE_CONNECTIONS] += j->retired ? 0 : j->sessions;
        for (int kind = 0; kind < ACCOUNT_COUNT; kind++) {
            uint64_t *sum = &u.of[USAGE_ACCOUNT + kind];
            *sum = sum_bounded(*sum, job_used(j, (enum account_kind)kind));
        }
    }
    return u;
}

static bool is_shown(const struct user *u, uid_t asks)
{
    return u->jobs && (u->uid == asks || asks == 0 || asks == geteuid());
}

/* What the users in front of the list have together, which are those that came last: the others have rows of their own. */
static struct usage usage_of_rest(const struct broker *b, uid_t asks, unsigned rest)
{
    struct usage sum = {0};
    const struct user *u;

    LIST_FOREACH(u, &b->users, link) {
        if (!rest)
            break;
        if (!is_shown(u, asks))
            continue;
        struct usage usage = user_usage(b, u->uid);
        for (int k = 0; k < USAGES; k++)
            sum.of[k] = sum_bounded(sum.of[k], usage.of[k]);
        rest--;
    }
    return sum;
}

static void users_print(FILE *out, const struct broker *b, uid_t asks)
{
    const struct user *u;
    unsigned shown = 0;

    LIST_FOREACH(u, &b->users, link)
        shown += is_shown(u, asks);
    const unsigned rest = shown > USERS_MAX ? shown - USERS_MAX : 0;
    const struct usage together = usage_of_rest(b, asks, rest);
    for (int k = 0; k < USAGES; k++) {
        unsigned skip = rest;
        family_begin(out, usages[k].user);
        LIST_FOREACH(u, &b->users, link) {
            char uid[16];
            if (!is_shown(u, asks) || (skip && skip--))
                continue;
            struct usage usage = user_usage(b, u->uid);
            (void)snprintf(uid, sizeof(uid), "%u", u->uid);
            sample(out, usages[k].user, labels1("uid", uid).text, usage.of[k]);
        }
        if (rest)
            sample(out, usages[k].user, labels1("uid", "other").text, together.of[k]);
    }
}

/* The limits of each user. One that there is not has no sample. */
static void limits_print(FILE *out, const struct broker *b, const struct counters *c)
{
    const struct account_limits limits = config_limits(&b->config);

    for (int k = 0; k < USAGES; k++) {
        uint64_t limit = k == USAGE_JOBS          ? b->config.jobs_per_user
                         : k == USAGE_CONNECTIONS ? b->config.connections_per_user
                                                  : limits.of[ACCOUNT_USER][k - USAGE_ACCOUNT];
        family_begin(out, usages[k].limit);
        if (limit != INT64_MAX)
            sample(out, usages[k].limit, "", limit);
    }
    family_begin(out, METRIC_LIMIT_REFUSALS);
    for (int whose = 0; whose < ACCOUNT_WHOSE; whose++)
        for (int kind = 0; kind < ACCOUNT_COUNT; kind++)
            sample(out, METRIC_LIMIT_REFUSALS,
                   labels1("limit", account_key((enum account_whose)whose, (enum account_kind)kind)).text,
                   c->refused[whose][kind]);
}

/* ---- workers ---- */

/* What workers say of themselves now, added up; what cannot be is left out. */
struct gauges {
    uint64_t communicators, queued, running, gpus, mps_gpus;
};

static uint64_t believable(const uint64_t *gauge)
{
    uint64_t n = meter_get(gauge);

    return n <= UINT32_MAX ? n : 0;
}

static struct gauges gauges_sum(const struct broker *b)
{
    struct gauges g = {0};
    const struct job *j;

    LIST_FOREACH(j, &b->jobs, link) {
        const struct meters *m = job_meters(j);
        if (!m)
            continue;
        uint64_t gpus = believable(&m->gpus);
        g.communicators += believable(&m->communicators);
        g.queued += believable(&m->queued);
        g.running += believable(&m->running);
        g.gpus += gpus;
        g.mps_gpus += meter_get(&m->mps) ? gpus : 0;
    }
    return g;
}

static void operators_print(FILE *out, const struct counters *c, const struct gauges *g)
{
    family_begin(out, METRIC_OPERATORS);
    for (int op = 0; op < FCC_OP_COUNT; op++)
        for (int s = 0; s < METER_SCHEDULE_COUNT; s++)
            if (c->operators[op][s])
                sample(out, METRIC_OPERATORS, labels2("operator", op_names[op], "schedule", schedule_names[s]).text,
                       c->operators[op][s]);
    family_begin(out, METRIC_FAILED);
    for (int op = 0; op < FCC_OP_COUNT; op++)
        if (c->failed[op])
            sample(out, METRIC_FAILED, labels1("operator", op_names[op]).text, c->failed[op]);
    family_of_one(out, METRIC_QUEUED, g->queued);
    family_of_one(out, METRIC_RUNNING, g->running);
    histogram_family(out, METRIC_RUN, c->run);
    histogram_family(out, METRIC_WAIT, c->wait);
}

static void workers_print(FILE *out, const struct counters *c, const struct gauges *g)
{
    family_of_one(out, METRIC_COMMS_FORMED, c->formed);
    family_of_one(out, METRIC_COMMS_SHRUNK, c->shrunk);
    family_of_one(out, METRIC_COMMS, g->communicators);
    operators_print(out, c, g);
    family_begin(out, METRIC_ABORTS);
    for (int i = 0; i < METER_ABORT_COUNT; i++)
        sample(out, METRIC_ABORTS, labels1("reason", abort_names[i]).text, c->aborts[i]);
    family_begin(out, METRIC_TIME_LIMITS);
    for (int i = 0; i < METER_LIMIT_COUNT; i++)
        sample(out, METRIC_TIME_LIMITS, labels1("what", limit_names[i]).text, c->limits[i]);
}

/* ---- other nodes ---- */

static void nodes_print(FILE *out, const struct broker *b)
{
    const struct node *n;

    family_begin(out, METRIC_NODE_UP);
    if (b->nodes)
        TAILQ_FOREACH(n, &b->nodes->list, link)
            sample(out, METRIC_NODE_UP, labels1("node", n->address).text, n->state == NODE_CONNECTED);
    family_begin(out, METRIC_NODE_FLAPS);
    if (b->nodes)
        TAILQ_FOREACH(n, &b->nodes->list, link)
            sample(out, METRIC_NODE_FLAPS, labels1("node", n->address).text, n->losses);
    for (int k = 0; k < LINK_COUNTS; k++) {
        enum metric m = METRIC_LINK_SENT + (unsigned)k;
        family_begin(out, m);
        for (unsigned i = 0; i < b->ledgers->nlinks; i++) {
            const struct link_total *l = &b->ledgers->links[i];
            sample(out, m, labels2("node", l->node, "transport", l->transport).text, l->n[k]);
        }
    }
}
static_assert(METRIC_LINK_LOSSES - METRIC_LINK_SENT == LINK_LOST, "both lists have the counts of links in one order");

static void shares_print(FILE *out, const struct broker *b, const struct counters *c)
{
    family_of_one(out, METRIC_GPU_HELD, c->held);
    family_begin(out, METRIC_GPU_HELD_SECONDS);
    (void)fprintf(out, "%s_total %.9f\n", families[METRIC_GPU_HELD_SECONDS].name, (double)c->held_ns / 1e9);
    family_of_one(out, METRIC_GPU_SHARED, shares_count(b));
}

char *metrics_text(const struct broker *b, uid_t asks, size_t *length)
{
    const struct counters *c = &b->ledgers->sum;
    char *text = NULL;
    FILE *out = open_memstream(&text, length);

    if (!out)
        return NULL;
    ledgers_take(b);
    struct gauges g = gauges_sum(b);
    broker_print(out, b);
    users_print(out, b, asks);
    limits_print(out, b, c);
    workers_print(out, c, &g);
    nodes_print(out, b);
    family_begin(out, METRIC_PROXY_LAG);
    histogram(out, METRIC_PROXY_LAG, NULL, &c->proxy_lag);
    family_begin(out, METRIC_GPUS);
    sample(out, METRIC_GPUS, labels1("mps", "yes").text, g.mps_gpus);
    sample(out, METRIC_GPUS, labels1("mps", "no").text, g.gpus - g.mps_gpus);
    shares_print(out, b, c);
    (void)fputs("# EOF\n", out);
    bool failed = ferror(out);
    if (fclose(out) || failed) {
        free(text);
        return NULL;
    }
    return text;
}
