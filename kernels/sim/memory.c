/* SPDX-License-Identifier: MIT
 *
 * memory.c - the workgroups of a device share its memory's bandwidth.
 *
 * A job is a slice's bytes to be read and written. It has a rate that it cannot exceed: what its workgroup can move, or what it computes of these bytes. Jobs
 * with the same such rate are a class: at any time all of a class have the same rate, so they end in the order of `served` plus their bytes, and
 * only the first end of a memory is an event. What flows of the links take is taken first, as adapters and other ranks' stores do not wait, but for a fair
 * share of the jobs: each gets at least what it would get if flows were jobs.
 */
#include <float.h>
#include <stdlib.h>

#include "kernels/sim/inside.h"

void memory_touch(struct sim *s, uint32_t i)
{
    if (s->memories[i].dirty)
        return;
    s->memories[i].dirty = true;
    s->dirty_memories[s->ndirty_memories++] = i;
}

static void memory_advance(const struct sim *s, struct memory *m)
{
    if (m->since == s->now)
        return;
    const double seconds = seconds_from(m->since, s->now);
    for (uint32_t c = 0; c < m->n; c++)
        m->classes[c].served += m->classes[c].rate * seconds;
    m->since = s->now;
}

static bool ends_before(const struct job *a, const struct job *b)
{
    return a->end < b->end || (a->end == b->end && a->order < b->order);
}

static struct job *job_at(const struct job_class *c, uint32_t i)
{
    return &c->jobs[(c->first + i) & (c->room - 1)];
}

/* Most jobs of a class have as many bytes as those before them, and so end after all others. */
static bool job_push(struct job_class *c, struct job job)
{
    uint32_t i = c->n;

    if (!ring_room(&c->jobs, c->first, c->n, &c->room, sizeof(job)))
        return false;
    for (c->n++; i > 0 && ends_before(&job, job_at(c, i - 1)); i--)
        *job_at(c, i) = *job_at(c, i - 1);
    *job_at(c, i) = job;
    return true;
}

static struct job job_pop(struct job_class *c)
{
    const struct job job = *job_at(c, 0);

    c->first = (c->first + 1) & (c->room - 1);
    c->n--;
    return job;
}

/* What would end within two picoseconds has ended: times are rounded up. */
static bool first_has_ended(const struct job_class *c)
{
    return c->n && job_at(c, 0)->end <= c->served + c->rate * 2e-12 + job_at(c, 0)->end * 1e-13;
}

static struct job_class *class_get(struct memory *m, double most)
{
    struct job_class *empty = NULL;

    for (uint32_t i = 0; i < m->n; i++) {
        if (m->classes[i].most == most)
            return &m->classes[i];
        empty = m->classes[i].n == 0 ? &m->classes[i] : empty;
    }
    if (!empty) {
        if (!array_room(&m->classes, m->n, &m->room, sizeof(*m->classes)))
            return NULL;
        empty = &m->classes[m->n++];
        *empty = (struct job_class){.n = 0};
    }
    empty->most = most;
    empty->rate = empty->served = 0;
    return empty;
}

bool job_begin(struct sim *s, uint32_t memory, double bytes, double most, uint32_t workgroup)
{
    struct memory *m = &s->memories[memory];

    memory_advance(s, m);
    struct job_class *c = class_get(m, most);
    if (!c) {
        s->failed = true;
        return false;
    }
    if (c->n == 0)
        c->served = 0;
    m->njobs++;
    memory_touch(s, memory);
    s->failed |= !job_push(c, (struct job){.end = c->served + bytes, .workgroup = workgroup, .order = m->order++});
    return !s->failed;
}

bool memory_ended(struct sim *s, uint32_t memory)
{
    struct memory *m = &s->memories[memory];

    memory_advance(s, m);
    memory_touch(s, memory);
    for (uint32_t c = 0; c < m->n; c++) {
        while (first_has_ended(&m->classes[c])) {
            const struct job job = job_pop(&m->classes[c]);
            m->njobs--;
            workgroup_go(s, job.workgroup); /* may begin jobs, and so move the classes */
            m = &s->memories[memory];
        }
    }
    return !s->failed;
}

/* Shares what is left: jobs of classes that cannot take as much have less. */
static void rates_share(struct memory *m)
{
    const double fair = m->bytes_s * m->njobs / (m->njobs + m->nflows), rest = m->bytes_s - m->taken;
    double left = rest > fair ? rest : fair, level = DBL_MAX;

    for (uint32_t above = m->njobs, counted = above + 1; above > 0 && above < counted;) {
        const double share = left / above;
        counted = above;
        level = share;
        left = rest > fair ? rest : fair;
        above = 0;
        for (uint32_t c = 0; c < m->n; c++) {
            if (m->classes[c].most > level)
                above += m->classes[c].n;
            else
                left -= m->classes[c].most * m->classes[c].n;
        }
    }
    m->found = m->taken;
    m->wanted = 0;
    m->full = false;
    for (uint32_t c = 0; c < m->n; c++) {
        m->classes[c].rate = m->classes[c].most < level ? m->classes[c].most : level;
        m->wanted += m->classes[c].most * m->classes[c].n;
        m->full |= m->classes[c].n && m->classes[c].rate < m->classes[c].most;
    }
}

bool memories_settle(struct sim *s)
{
    while (s->ndirty_memories) {
        const uint32_t i = s->dirty_memories[--s->ndirty_memories];
        struct memory *m = &s->memories[i];
        double first = DBL_MAX;

        m->dirty = false;
        memory_advance(s, m);
        rates_share(m);
        for (uint32_t c = 0; c < m->n; c++) {
            const struct job_class *k = &m->classes[c];
            if (k->n == 0)
                continue;
            const double seconds = (job_at(k, 0)->end - k->served) / k->rate; /* rates are more than 0 */
            first = seconds < first ? seconds : first;
        }
        if (!event_move(s, EVENT_MEMORY, i, m->njobs ? ps_after(s->now, first > 0 ? ps_of(first) : 0) : NEVER))
            return false;
    }
    return true;
}
