/* SPDX-License-Identifier: MIT
 *
 * costs.c - what the work of a rank's part of an operator takes on its device, as far as it is known before it begins: rates of its workgroups, what caches
 * have of what it touches, and what a GPU's tiles of a product take.
 */
#include "kernels/sim/inside.h"

/* e^-x by products and sums alone, which are the same everywhere. x: 0 or more. */
static double decay(double x)
{
    const double part = x / 1024;
    double out = 1 - part * (1 - part / 2 * (1 - part / 3));

    if (!(x < 700))
        return 0;
    for (int i = 0; i < 10; i++)
        out *= out;
    return out;
}

/* Which part of what an operator touches, the same bytes in the same order as the time before, a cache still has. All of it has room: everything. Otherwise
 * a line that is missed displaces any other one, so after the misses of a round a line is still there with the probability e^(-misses / lines): the part that is
 * found is a solution of found = e^(-(1 - found) touched / room). */
static double part_found(double touched, double room)
{
    double found = 0;

    if (touched <= room)
        return 1;
    for (int i = 0; i < 100; i++) /* from below it comes ever nearer to the least solution */
        found = decay((1 - found) * touched / room);
    return found;
}

/* Ranks whose bytes are in the cache that a rank reads and writes by. Cores of a node share one, unless it is said how many do. */
static double cache_shared_by(const struct sim *s)
{
    const int ranks = s->m.node.ranks, said = s->m.device.cache_ranks;

    return s->m.device.target != PLAN_CPU ? 1 : said > 0 && said < ranks ? said : ranks;
}

/* Of a byte, what it counts on memory. What the near cache has is a part of what both have. */
static double part_of_memory(const struct sim *s, const struct operator* op, double touched)
{
    const struct sim_device *d = &s->m.device;
    const double shared = cache_shared_by(s),
                 here = op->is_inline ? s->m.node.ranks : 1; /* inline, one core computes for all */

    if (!(d->cache_bytes > 0) || !(d->cache_bytes_s > 0) || !(touched > 0))
        return 1;
    const double found = part_found(touched * (shared > here ? shared : here), d->cache_bytes);
    const double all_near = d->near_bytes > 0 ? part_found(touched * here, d->near_bytes) : 0;
    const double near = all_near < found ? all_near : found, near_s = near > 0 ? near / d->near_bytes_s : 0;
    return (near_s + (found - near) / d->cache_bytes_s) * d->memory_bytes_s + 1 - found;
}

/* What of an embedding's rows is read again, and found: in a cache of tables, or else in the one that a rank has for all. What it touches counts each row once. */
static void caches_look(const struct sim *s, const struct operator* op, struct task *t)
{
    const struct sim_device *d = &s->m.device;
    const struct cost_tables c = cost_tables(t->costs.problem, t->place, op->said.table_rows);
    const bool computes = t->costs.reads_tables;

    t->of_memory = 1;
    if (d->cache_bytes > 0)
        t->of_memory = part_of_memory(s, op, cost_touched(&t->costs) * (computes ? 1 - c.again : 1));
    if (!computes || !(c.table > 0))
        return;
    if (d->table_cache_bytes > 0) {
        t->found = c.again * (d->table_cache_bytes < c.table ? d->table_cache_bytes / c.table : 1);
    } else if (d->cache_bytes > 0) {
        const double room = d->cache_bytes / cache_shared_by(s), kept = room < c.table ? room / c.table : 1;
        const double near = d->memory_bytes_s / d->cache_bytes_s;
        t->of_memory = (1 - c.again * kept) * t->of_memory + c.again * kept * (near < t->of_memory ? near : t->of_memory);
    }
}

/* Products of a GPU whose tiles are described. */
static void tiles_look(const struct sim *s, const struct operator* op, struct task *t)
{
    const struct sim_device *d = &s->m.device;

    t->stored_more = 1;
    if (!(d->tile_bytes_s > 0))
        return;
    const struct cost_tile c = cost_tile(t->costs.problem, t->plan, op->workgroups);
    if (!(c.flops > 0))
        return;
    const double computing = t->flops_s > 0 ? c.flops / t->flops_s : 0, loading = c.loaded / d->tile_bytes_s;
    t->tile_s = ((computing > loading ? computing : loading) + (d->tile_sums_bytes_s > 0 ? c.sums / d->tile_sums_bytes_s : 0)) *
                c.rounds;
    t->stored_more = d->tile_store_bytes_s > 0 ? s->m.node.link_bytes_s / d->tile_store_bytes_s : 1;
}

void task_costs(const struct sim *s, const struct operator* op, const struct problem *problem, struct task *t)
{
    const struct sim_device *d = &s->m.device;

    slice_costs_begin(problem, t->plan, &t->costs);
    t->flops_s = d->flops_s[op_spec(problem->op)->compute] / d->workgroups;
    t->adds_s = d->flops_s[COMPUTE_VECTOR] / d->workgroups;
    caches_look(s, op, t);
    tiles_look(s, op, t);
}
