/* SPDX-License-Identifier: MIT
 *
 * cost.c - the time of counted work by a measured model.
 *
 * A workgroup that runs instructions waits for memory meanwhile, so the times of both add up. A product reads its factors while it multiplies, so it takes the longer
 * of both times (cost_pace()), in this sum as in the simulation of its slices. What other hardware does meanwhile is the link, where it works alone. Of what is computed and sent in n pieces, the last piece is sent when all is computed.
 */
#include "kernels/plan/cost.h"

#include <stddef.h>

enum { MEMORY, INSTRUCTIONS, LINK, FLOPS, KINDS };

static double amount(const struct cost_work *w, int kind)
{
    const double amounts[KINDS] = {
        [MEMORY] = w->bytes, [INSTRUCTIONS] = w->instructions, [LINK] = w->link_bytes, [FLOPS] = w->flops};

    return amounts[kind];
}

static double rate(const struct cost_model *m, int kind)
{
    const double rates[KINDS] = {
        [MEMORY] = m->memory_bytes_s, [INSTRUCTIONS] = m->instructions_s, [LINK] = m->link_bytes_s, [FLOPS] = m->flops_s};

    return rates[kind];
}

double cost_time(const struct cost_model *m, const struct cost_work *w)
{
    double times[KINDS] = {0};

    for (int kind = 0; kind < KINDS; kind++) {
        if (amount(w, kind) <= 0)
            continue;
        if (!(rate(m, kind) > 0))
            return -1;
        times[kind] = amount(w, kind) / rate(m, kind);
    }
    if (w->worked_bytes > 0) {
        if (!(m->memory_bytes_s > 0))
            return -1;
        times[FLOPS] = w->worked_bytes / cost_pace(w->worked_bytes, times[FLOPS], m->memory_bytes_s, 0);
    }
    const double compute = times[MEMORY] + times[INSTRUCTIONS] + times[FLOPS], link = times[LINK];
    if (m->link_works_alone && w->pieces > 1) {
        const double longer = compute > link ? compute : link, shorter = compute + link - longer;
        return w->operators * m->launch_s + longer + shorter / w->pieces;
    }
    return w->operators * m->launch_s + compute + link;
}

struct cost_work cost_exchange(enum cost_exchange kind, int nranks, double in, double out)
{
    struct cost_work w = {.operators = 1};
    const double others = (double)(nranks - 1) / nranks;

    switch (kind) {
    case COST_ALL_REDUCE:
        w.link_bytes = others * (in + out);
        w.bytes = (in + out) / nranks;
        w.instructions = in / sizeof(float);
        break;
    case COST_REDUCE_SCATTER:
        w.link_bytes = others * in;
        w.bytes = in / nranks + out;
        w.instructions = in / sizeof(float);
        break;
    case COST_ALL_GATHER:
        w.link_bytes = others * out;
        w.bytes = in * nranks + in; /* it is read for each rank, and stored here once */
        break;
    case COST_SEND:
        w.link_bytes = out > in ? out : in;
        w.bytes = in;
        break;
    }
    return w;
}

struct cost_work cost_product(enum cost_sums sums, int nranks, double elements, double k, double factors, double result)
{
    struct cost_work w = {.operators = 1, .flops = 2 * elements * k, .worked_bytes = factors};
    const double others = (double)(nranks - 1) / nranks, partial = elements * sizeof(float);

    if (sums == COST_ALONE) {
        w.worked_bytes += result;
        return w;
    }
    /* an owner stores its own partial sums, reads those of all ranks, adds them up, and stores what comes of that */
    w.flops += elements;
    w.worked_bytes += partial / nranks + partial + result / nranks;
    w.link_bytes = others * partial + (sums == COST_ALL_SUMS ? others * result : 0);
    return w;
}

void cost_add(struct cost_work *sum, const struct cost_work *one)
{
    sum->bytes += one->bytes;
    sum->flops += one->flops;
    sum->worked_bytes += one->worked_bytes;
    sum->instructions += one->instructions;
    sum->link_bytes += one->link_bytes;
    sum->operators += one->operators;
}

bool cost_fit(const struct cost_row rows[], int n, struct cost_model *out)
{
    struct cost_model m = {.launch_s = 0};
    double *const to[KINDS] = {
        [MEMORY] = &m.memory_bytes_s, [INSTRUCTIONS] = &m.instructions_s, [LINK] = &m.link_bytes_s, [FLOPS] = &m.flops_s};
    bool fits = true;

    for (int i = 0; i < n; i++) {
        const struct cost_work *w = &rows[i].work;
        struct cost_work known = *w;
        int unknown = -1;
        for (int kind = 0; kind < KINDS; kind++)
            if (amount(w, kind) > 0 && *to[kind] == 0)
                unknown = kind;
        if (unknown < 0) {
            if (w->operators > 0 && m.launch_s == 0)
                m.launch_s = rows[i].seconds / w->operators;
            continue;
        }
        known.bytes = unknown == MEMORY ? 0 : known.bytes;
        known.instructions = unknown == INSTRUCTIONS ? 0 : known.instructions;
        known.link_bytes = unknown == LINK ? 0 : known.link_bytes;
        known.flops = unknown == FLOPS ? 0 : known.flops;
        known.worked_bytes = unknown == FLOPS ? 0 : known.worked_bytes; /* all of its time is at least what the flops took */
        const double rest = rows[i].seconds - cost_time(&m, &known);
        *to[unknown] = rest > 0 ? amount(w, unknown) / rest : -1;
        fits &= rest > 0;
    }
    *out = m;
    return fits;
}
