/* SPDX-License-Identifier: MIT */
#include "daemon/broker/share/law.h"

#include <stdlib.h>

#include "daemon/common/share.h"

#define WANTS_STEPS 2 /* a worker sees after a moment that it may launch again, and has used little of that step */
#define BUSY .9 /* of a step: more than that is nearly all the time. Between two kernels a worker takes some microseconds */

static double least(double a, double b)
{
    return a < b ? a : b;
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

static int by_occupied(const void *a, const void *b)
{
    double x = (*(struct share_part *const *)a)->occupied, y = (*(struct share_part *const *)b)->occupied;

    return (x > y) - (x < y);
}

static int by_demand(const void *a, const void *b)
{
    const struct share_part *x = *(struct share_part *const *)a, *y = *(struct share_part *const *)b;
    double p = x->demand / x->weight, q = y->demand / y->weight;

    return (p > q) - (p < q);
}

/* What each occupied in this step, and of that its charge. Had all overlapped as much as they can, the k-th shortest time were shared by all whose time is not
 * shorter, and the sum were the longest one. They have overlapped as much as the sum is longer than the step. Returns the sum. */
static double charge_all(struct share_part *parts[], unsigned n, double elapsed)
{
    double before = 0, charge = 0, sum = 0, overlap, most_overlap;

    for (unsigned i = 0; i < n; i++) {
        struct share_part *p = parts[i];
        double ahead = least((double)p->ahead_ns, (double)SHARE_DEBT_NS);
        p->owed_ns = least(p->owed_ns + (double)p->occupied_ns, (double)SHARE_DEBT_NS);
        p->owed_ns = most(p->owed_ns, -ahead); /* what has ended and was shorter, or was aborted, is paid */
        p->occupied = least(p->owed_ns + ahead, elapsed);
        p->owed_ns -= p->occupied;
        sum += p->occupied;
    }
    qsort((void *)parts, n, sizeof(struct share_part *), by_occupied);
    for (unsigned i = 0; i < n; i++) {
        charge += (parts[i]->occupied - before) / (n - i);
        before = parts[i]->occupied;
        parts[i]->charge = charge;
    }
    overlap = most(sum - elapsed, 0);
    most_overlap = sum - before; /* the last one's is the longest, and that is not more than the step */
    for (unsigned i = 0; i < n; i++) {
        struct share_part *p = parts[i];
        p->charge = p->occupied - (most_overlap > 0 ? (p->occupied - p->charge) * overlap / most_overlap : 0);
    }
    return sum;
}

/* Shares `room` out: who wants less than its part by weight gets what it wants, and the others share the rest. */
static void fill(struct share_part *parts[], unsigned n, double room)
{
    const double elapsed = room;
    double weights = 0;

    for (unsigned i = 0; i < n; i++) {
        struct share_part *p = parts[i];
        p->wants = (p->waits && p->limited) || (double)p->busy_ns >= BUSY * elapsed ? WANTS_STEPS : p->wants - (p->wants > 0);
        p->demand = p->wants ? room : p->occupied;
        weights += p->weight;
    }
    qsort((void *)parts, n, sizeof(struct share_part *), by_demand);
    for (unsigned i = 0; i < n; i++) {
        struct share_part *p = parts[i];
        p->part = least(p->demand, room * p->weight / weights);
        room -= p->part;
        weights -= p->weight;
    }
}

/* The GPU had nothing to do for most of the step: what was not charged yet is over, and debts are nobody's. */
static void forgive(struct share_part *p)
{
    if (!p->wants)
        return;
    p->owed_ns = least(p->owed_ns, 0);
    p->credit_ns = most(p->credit_ns, 0);
}

static void settle(struct share_part *p)
{
    p->credit_ns += p->part - p->charge;
    p->credit_ns = least(p->credit_ns, (double)SHARE_SAVED_NS);
    p->credit_ns = most(p->credit_ns, -(double)SHARE_DEBT_NS);
}

/* What it has left of its part. */
static double left_of(const struct share_part *p)
{
    return p->credit_ns - most(p->owed_ns, 0);
}

void share_step(struct share_part *parts[], unsigned n, uint64_t elapsed_ns)
{
    const double elapsed = (double)elapsed_ns;
    const struct share_part *first = NULL;
    double weights = 0;

    double occupied = charge_all(parts, n, elapsed);
    fill(parts, n, elapsed);
    for (unsigned i = 0; i < n; i++) {
        struct share_part *p = parts[i];
        settle(p);
        if (occupied < elapsed / 2)
            forgive(p);
        weights += p->weight;
        if (!first || left_of(p) / p->weight > left_of(first) / first->weight)
            first = p;
    }
    for (unsigned i = 0; i < n; i++) {
        struct share_part *p = parts[i];
        double may = left_of(p) + (double)SHARE_PERIOD_NS * p->weight / weights;
        p->limited = p != first && left_of(p) < (double)SHARE_SAVED_NS;
        if (!p->limited) /* more than it can occupy before the broker counts as silent */
            may = most(may, 0) + (double)SHARE_SILENT_NS;
        may += most(-p->owed_ns, 0); /* enqueued, and paid */
        p->allowed_ns = (uint64_t)most(may, 0);
    }
}
