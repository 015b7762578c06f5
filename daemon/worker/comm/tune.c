/* SPDX-License-Identifier: MIT
 *
 * tune.c - which schedule `auto` takes: the one that measured faster.
 *
 * Problems of about the same size share their measurements, so that sizes which change from call to call (as in a mixture of
 * experts) are learned too. Each schedule's figure is the median of its last SAMPLES times. A size that is new tries them in
 * turn; then the faster one runs, and the other is tried again now and then while it is close, because machines change.
 */
#include "daemon/worker/comm/tune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/device/launch.h"
#include "kernels/plan/compute/vector.h"

#define ENTRIES 64
#define SAMPLES 8
#define WARM_UP 1         /* first times of a schedule, which do not count: pages and caches are cold */
#define RETRY_EVERY 128   /* choices after which the slower schedule is tried again */
#define RETRY_WITHIN 1.25 /* if its time is within this factor of the faster one's */
#define CLEARLY                                                                                                                \
    1.05 /* schedules whose times differ by less than this factor may change places the next time they are measured */

struct candidate {
    uint64_t ns[SAMPLES];
    unsigned count; /* number of times recorded, including the warm-up */
    double median;  /* of ns[], once it is full */
};

struct entry {
    struct tune_class class;
    uint64_t choices; /* number of choices made. 0: the entry is unused */
    uint64_t used;    /* value of the tuner's clock at the last use; the smallest is replaced first */
    struct candidate fused, sequential;
};

struct tune {
    uint64_t clock;
    struct entry *latest; /* the entry used last. NULL: none */
    struct entry entries[ENTRIES];
};

struct tune *tune_new(void)
{
    return calloc(1, sizeof(struct tune));
}

static int size_class(double x)
{
    return x < 1 ? 0 : (int)(2 * log2(x) + 0.5);
}

struct tune_class tune_class_of(const struct problem *p)
{
    struct work sum = {0};

    for (int r = 0; r < p->nranks; r++) {
        struct work w = plan_work(p, r);
        sum.bytes += w.bytes;
        sum.flops += w.flops;
    }
    return (struct tune_class){.op = (uint16_t)p->op,
                               .factors = (uint16_t)p->factors,
                               .dtype = p->dtype,
                               .bytes = size_class(sum.bytes),
                               .flops = size_class(sum.flops)};
}

static bool is_of(const struct entry *e, const struct tune_class *class)
{
    return e->choices && !memcmp(&e->class, class, sizeof(*class));
}

/* The entry of a class. NULL: there is none. */
static struct entry *entry_find(struct tune *t, const struct tune_class *class)
{
    if (t->latest && is_of(t->latest, class))
        return t->latest;
    for (int i = 0; i < ENTRIES; i++)
        if (is_of(&t->entries[i], class))
            return &t->entries[i];
    return NULL;
}

/* A new entry, which replaces the least recently used one. */
static struct entry *entry_add(struct tune *t, const struct tune_class *class)
{
    struct entry *oldest = &t->entries[0];

    for (int i = 1; i < ENTRIES; i++)
        if (t->entries[i].used < oldest->used)
            oldest = &t->entries[i];
    *oldest = (struct entry){.class = *class};
    return oldest;
}

static struct entry *entry_get(struct tune *t, const struct tune_class *class)
{
    struct entry *e = entry_find(t, class);

    if (!e)
        e = entry_add(t, class);
    e->used = ++t->clock;
    return t->latest = e;
}

static double median_ns(const struct candidate *c)
{
    uint64_t sorted[SAMPLES];

    memcpy(sorted, c->ns, sizeof(sorted));
    for (int i = 1, at; i < SAMPLES; i++) { /* insertion sort: few elements, once per operator */
        uint64_t ns = sorted[i];
        for (at = i; at > 0 && sorted[at - 1] > ns; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = ns;
    }
    uint64_t sum = sorted[SAMPLES / 2 - 1] + sorted[SAMPLES / 2];
    return (double)sum / 2;
}

/* The choice of this number in an entry's sequence. */
static enum fcc_schedule_kind choice(const struct entry *e, uint64_t number)
{
    if (e->fused.count < SAMPLES + WARM_UP || e->sequential.count < SAMPLES + WARM_UP)
        return e->fused.count <= e->sequential.count ? FCC_SCHEDULE_FUSED : FCC_SCHEDULE_SEQUENTIAL;
    double fused = e->fused.median, sequential = e->sequential.median;
    bool retry = number % RETRY_EVERY == 0 && fused < RETRY_WITHIN * sequential && sequential < RETRY_WITHIN * fused;
    return (fused <= sequential) != retry ? FCC_SCHEDULE_FUSED : FCC_SCHEDULE_SEQUENTIAL;
}

enum fcc_schedule_kind tune_choose(struct tune *t, const struct tune_class *class)
{
    struct entry *e = op_is_vector(class->op) ? NULL : entry_get(t, class);

    if (!e)
        return FCC_SCHEDULE_FUSED; /* where nothing is computed all schedules are the same */
    return choice(e, ++e->choices);
}

bool tune_best(struct tune *t, const struct tune_class *class, enum fcc_schedule_kind *out)
{
    const struct entry *e = entry_find(t, class);

    *out = FCC_SCHEDULE_FUSED;
    if (op_is_vector(class->op))
        return true;
    if (!e || e->fused.count < SAMPLES + WARM_UP || e->sequential.count < SAMPLES + WARM_UP)
        return false;
    *out = e->fused.median < CLEARLY * e->sequential.median ? FCC_SCHEDULE_FUSED : FCC_SCHEDULE_SEQUENTIAL;
    return true;
}

enum fcc_schedule_kind tune_expect(struct tune *t, const struct tune_class *class)
{
    const struct entry *e = entry_find(t, class);

    return e ? choice(e, e->choices + 1) : FCC_SCHEDULE_FUSED;
}

void tune_record(struct tune *t, const struct tune_sample *sample)
{
    struct entry *e = entry_get(t, &sample->class);
    struct candidate *c = sample->kind == FCC_SCHEDULE_FUSED ? &e->fused : &e->sequential;

    if (c->count >= WARM_UP)
        c->ns[(c->count - WARM_UP) % SAMPLES] = sample->ns;
    c->count++;
    if (c->count >= SAMPLES + WARM_UP)
        c->median = median_ns(c);
}
