/* SPDX-License-Identifier: MIT
 *
 * builder.c - builds plans for the exchanges, and says how the ranks are distributed over nodes.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/plan/plan.h"

/* Grows an array if it has no room for one more element. */
static int array_grow(void *array, uint32_t used, uint32_t *room, size_t size)
{
    void **p = array, *grown;
    uint32_t more = *room ? 2 * *room : 32;

    if (used < *room)
        return 0;
    grown = realloc(*p, more * size);
    if (!grown)
        return -ENOMEM;
    *p = grown;
    *room = more;
    return 0;
}

uint32_t plan_add_group(struct plan_builder *b, unsigned dst, uint32_t flag)
{
    struct plan *plan = b->plan;

    if (b->sizes_only)
        return SLICE_NO_GROUP;
    if (b->status == 0 && plan->ngroups == PLAN_MAX_SLICES)
        b->status = -EINVAL;
    if (b->status == 0)
        b->status = array_grow(&plan->groups, plan->ngroups, &b->groups_room, sizeof(*plan->groups));
    if (b->status)
        return SLICE_NO_GROUP;
    plan->groups[plan->ngroups] = (struct signal_group){.dst = (uint16_t)dst, .flag = flag};
    return plan->ngroups++;
}

void plan_add_level(struct plan_builder *b, uint32_t level)
{
    struct plan *plan = b->plan;

    while (b->status == 0 && !b->sizes_only && plan->nlevels <= level) {
        b->status = array_grow(&plan->level_first, plan->nlevels, &b->levels_room, sizeof(*plan->level_first));
        if (b->status == 0)
            plan->level_first[plan->nlevels++] = plan->nslices;
    }
    assert(b->status || b->sizes_only || plan->nlevels == level + 1); /* levels never descend */
}

void plan_add_slice(struct plan_builder *b, struct slice slice)
{
    struct plan *plan = b->plan;

    if (b->sizes_only)
        return;
    if (b->status == 0 && plan->nslices == PLAN_MAX_SLICES)
        b->status = -EINVAL;
    if (b->status == 0)
        b->status = array_grow(&plan->slices, plan->nslices, &b->slices_room, sizeof(*plan->slices));
    if (b->status)
        return;
    plan->slices[plan->nslices++] = slice;
    if (slice.group != SLICE_NO_GROUP)
        plan->groups[slice.group].slices++;
}

void *plan_layout_new(struct plan_builder *b, size_t bytes)
{
    b->plan->layout = calloc(1, bytes);
    if (!b->plan->layout)
        b->status = -ENOMEM;
    return b->plan->layout;
}

/* A piece of scratch memory, behind this head. */
struct scratch {
    struct scratch *before;
    uint64_t zero; /* so that what follows is aligned for all types */
};

void *plan_scratch(struct plan_builder *b, size_t n, size_t size)
{
    struct scratch *s = calloc(1, sizeof(*s) + (n ? n : 1) * size);

    if (!s) {
        b->status = -ENOMEM;
        return NULL;
    }
    s->before = b->scratch;
    b->scratch = s;
    return s + 1;
}

void plan_scratch_free(struct plan_builder *b)
{
    for (struct scratch *s = b->scratch, *before; s; s = before) {
        before = s->before;
        free(s);
    }
    b->scratch = NULL;
}

void plan_destination_order(const struct problem *problem, int rank, int order[])
{
    int n = 0;

    for (int own_node = 0; own_node <= 1; own_node++) {
        for (int i = 1; i < problem->nranks; i++) {
            int r = (rank + i) % problem->nranks;
            if ((problem->node_of[r] == problem->node_of[rank]) == own_node)
                order[n++] = r;
        }
    }
    order[n] = rank;
}

/* Of `lines` blocks of ranks, in each of which one rank owns a line: the k-th begins with rank k * nranks / lines. */
static int64_t line_owner(int64_t lines, int nranks, int64_t node_ranks, int64_t k)
{
    const int64_t begin = k * nranks / lines, ranks = (k + 1) * nranks / lines - begin;

    return begin + (ranks >= node_ranks ? k % node_ranks : k * ranks / node_ranks % ranks);
}

int64_t plan_lines_before(int64_t lines, int nranks, int64_t node_ranks, int p)
{
    const int64_t each = lines / nranks, more = lines % nranks;

    if (each > 0 || lines == 0 || node_ranks == 0)
        return p * each + (p < more ? p : more);
    if (p == nranks)
        return lines;
    const int64_t block = ((p + 1) * lines + nranks - 1) / nranks - 1;
    return block + (line_owner(lines, nranks, node_ranks, block) < p);
}

bool plan_is_over_nodes(const struct problem *problem)
{
    for (int r = 1; r < problem->nranks; r++)
        if (problem->node_of[r] != problem->node_of[0])
            return true;
    return false;
}

/* The ranks of the largest node, if each node's ranks follow each other and nodes are numbered upwards; 0: they do not. */
static int adjacent_node_ranks(const struct problem *problem)
{
    int most = 1;

    for (int r = 1, n = 1; r < problem->nranks; r++) {
        if (problem->node_of[r] < problem->node_of[r - 1])
            return 0;
        n = problem->node_of[r] == problem->node_of[r - 1] ? n + 1 : 1;
        most = n > most ? n : most;
    }
    return most;
}

int plan_node_ranks(const struct problem *problem)
{
    int most = adjacent_node_ranks(problem);

    for (int r = 0, adjacent = most; !adjacent && r < problem->nranks; r++) {
        int n = 1, before = r - 1;
        while (before >= 0 && problem->node_of[before] != problem->node_of[r])
            before--;
        for (int q = r + 1; before < 0 && q < problem->nranks; q++) /* r is the first rank of its node */
            n += problem->node_of[q] == problem->node_of[r];
        most = n > most ? n : most;
    }
    return most < problem->nranks ? most : 1;
}

int64_t problem_longest_k(const struct problem *problem)
{
    int64_t k = 1;

    for (int r = 0; r < problem->nranks; r++)
        k = problem->rank_dim[DIM_K][r] > k ? problem->rank_dim[DIM_K][r] : k;
    return k;
}
