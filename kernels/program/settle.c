/* SPDX-License-Identifier: MIT
 *
 * settle.c - the order of a program's operations, after its text was parsed or a transformation has changed it.
 *
 * The unit of the order is a statement with all operations of its expression, or a group of statements. A unit comes behind those whose values it
 * uses, and one that updates a parameter behind those that read the value before. Among units that need not wait the order is the one before.
 */
#include "kernels/program/inside.h"

/* What is computed from a statement's or a group's point of view: an unfinished depth-first search. */
struct settling {
    struct program *p;
    struct node *out;
    uint32_t nout;
    int32_t *to;      /* [nnodes]: where an operation is in `out`; -1: not yet */
    int32_t *tree;    /* operations in the order in which expressions are evaluated: each statement's, one after the other */
    uint32_t *first;  /* [nnodes + 1]: a statement's operations are tree[first[s], first[s] + length[s]) */
    uint32_t *length; /* [nnodes]: of statements that are used; 0: of all others */
    uint32_t ntree;
    int32_t *readers; /* statements that read a parameter, by parameter: readers[reader_first[i], reader_first[i + 1]) */
    uint32_t *reader_first;
    uint8_t *color;   /* [nnodes + ngroups]: by unit: 0 untouched, 1 its needs are being placed, 2 placed */
    int32_t *members; /* statements of groups, by group: members[member_first[g], member_first[g + 1]) */
    uint32_t *member_first;
    int32_t *stack; /* of units */
    uint32_t nstack, stack_capacity;
    struct error *e;
};

static bool is_leaf(const struct node *n)
{
    return n->op == OP_PARAMETER || n->op == OP_SCALAR;
}

static int32_t unit_of(const struct settling *s, int32_t statement)
{
    const int32_t group = s->p->nodes[statement].group;

    return group >= 0 ? (int32_t)s->p->nnodes + group : statement;
}

static int push(struct settling *s, int32_t unit)
{
    if (!room_for((void **)&s->stack, s->nstack, &s->stack_capacity, sizeof(*s->stack)))
        return program_no_memory(s->e);
    s->stack[s->nstack++] = unit;
    return 0;
}

/* Lists the operations of a statement's expression. Recursion is bounded by the expression's depth, which transformations raise by few. */
static int tree_list(struct settling *s, int32_t node, int32_t statement, int depth)
{
    struct node *n = &s->p->nodes[node];
    uint8_t below = 0;

    if (depth > 2 * PROGRAM_DEPTH || s->ntree == s->p->nnodes)
        return program_fail(s->e, n->line, n->column,
                            "an expression of too many operations on each other: allowed is to give a part of it a name");
    for (int a = 0; a < node_spec(n)->arguments; a++) {
        struct node *arg = &s->p->nodes[n->arg[a]];
        if (is_leaf(arg) || node_is_statement(arg))
            continue;
        if (tree_list(s, n->arg[a], statement, depth + 1))
            return s->e->status;
        below = arg->depth > below ? arg->depth : below;
    }
    n->depth = (uint8_t)(below + 1);
    n->statement = statement;
    s->tree[s->ntree++] = node;
    return 0;
}

/* Finds the statements that results are made of, and lists their operations. */
static int statements_list(struct settling *s)
{
    struct program *p = s->p;

    for (uint32_t i = 0; i < p->nnodes; i++)
        if (p->nodes[i].op == OP_UPDATE && push(s, (int32_t)i))
            return s->e->status;
    while (s->nstack) {
        const int32_t statement = s->stack[--s->nstack];
        if (s->length[statement])
            continue;
        s->first[statement] = s->ntree;
        if (tree_list(s, statement, statement, 0))
            return s->e->status;
        s->length[statement] = s->ntree - s->first[statement];
        for (uint32_t i = s->first[statement]; i < s->ntree; i++) {
            const struct node *n = &p->nodes[s->tree[i]];
            for (int a = 0; a < node_spec(n)->arguments; a++)
                if (node_is_statement(&p->nodes[n->arg[a]]) && !s->length[n->arg[a]] && push(s, n->arg[a]))
                    return s->e->status;
        }
    }
    return 0;
}

/* The parameter whose memory an operand is, by itself or as a view: a view is no copy, so who uses it reads the parameter. -1: another value. */
static int32_t parameter_read(const struct program *p, const struct node *n)
{
    while (n->op == OP_AS_SLICE || n->op == OP_AS_LOCAL)
        n = &p->nodes[n->arg[0]];
    return n->op == OP_PARAMETER ? n->parameter : -1;
}

/* Counts or, the second time, lists by parameter who reads it, and by group its statements. */
static void lists_fill(struct settling *s, bool count)
{
    const struct program *p = s->p;

    for (uint32_t i = 0; i < p->nnodes; i++) {
        if (!s->length[i])
            continue;
        const int32_t group = p->nodes[i].group;
        if (group >= 0 && count)
            s->member_first[group + 1]++;
        else if (group >= 0)
            s->members[s->member_first[group]++] = (int32_t)i;
        for (uint32_t t = s->first[i]; t < s->first[i] + s->length[i]; t++) {
            const struct node *n = &p->nodes[s->tree[t]];
            for (int a = 0; a < node_spec(n)->arguments; a++) {
                const int32_t parameter = parameter_read(p, &p->nodes[n->arg[a]]);
                if (parameter >= 0 && count)
                    s->reader_first[parameter + 1]++;
                else if (parameter >= 0)
                    s->readers[s->reader_first[parameter]++] = (int32_t)i;
            }
        }
    }
}

static void firsts_sum(uint32_t *first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        first[i + 1] += first[i];
}

static void firsts_restore(uint32_t *first, uint32_t n)
{
    memmove(first + 1, first, n * sizeof(*first));
    first[0] = 0;
}

/* Calls `need` with the unit of each statement that must come before this one. 0, or the first status that is not 0. */
static int needs_each(struct settling *s, int32_t statement, int (*need)(struct settling *, int32_t needed, int32_t by))
{
    const struct program *p = s->p;
    const struct node *root = &p->nodes[statement];

    if (root->op == OP_UPDATE)
        for (uint32_t i = s->reader_first[root->parameter]; i < s->reader_first[root->parameter + 1]; i++)
            if (s->readers[i] != statement && need(s, s->readers[i], statement))
                return 1;
    for (uint32_t t = s->first[statement] + s->length[statement]; t-- > s->first[statement];) {
        const struct node *n = &p->nodes[s->tree[t]];
        for (int a = node_spec(n)->arguments; a-- > 0;)
            if (node_is_statement(&p->nodes[n->arg[a]]) && need(s, n->arg[a], statement))
                return 1;
    }
    return 0;
}

static int need_push(struct settling *s, int32_t needed, int32_t by)
{
    const int32_t unit = unit_of(s, needed);
    char text[2][96];

    if (unit == unit_of(s, by) && s->p->nodes[by].group >= 0)
        return 0;
    if (s->color[unit] == 1)
        return program_fail(s->e, 0, 0, "%s and %s would need each other in a circle: not allowed",
                            node_text(s->p, by, text[0]), node_text(s->p, needed, text[1]));
    return s->color[unit] == 0 ? push(s, unit) : 0;
}

static int need_is_placed(struct settling *s, int32_t needed, int32_t by)
{
    return unit_of(s, needed) == unit_of(s, by) && s->to[needed] < 0;
}

static void statement_place(struct settling *s, int32_t statement)
{
    for (uint32_t t = s->first[statement]; t < s->first[statement] + s->length[statement]; t++) {
        s->to[s->tree[t]] = (int32_t)s->nout;
        s->out[s->nout++] = s->p->nodes[s->tree[t]];
    }
}

/* Places a group's statements, whose needs outside of it are placed. */
static int group_place(struct settling *s, int32_t group)
{
    const uint32_t first = s->member_first[group], end = s->member_first[group + 1];

    for (uint32_t left = end - first, before = left + 1; left > 0;) {
        if (left == before)
            return program_fail(s->e, 0, 0, "the statements of a group need each other in a circle: not allowed");
        before = left;
        for (uint32_t i = first; i < end; i++) {
            if (s->to[s->members[i]] >= 0 || needs_each(s, s->members[i], need_is_placed))
                continue;
            statement_place(s, s->members[i]);
            left--;
        }
    }
    return 0;
}

static int unit_needs(struct settling *s, int32_t unit)
{
    const int32_t group = unit - (int32_t)s->p->nnodes;

    if (group < 0)
        return needs_each(s, unit, need_push);
    for (uint32_t i = s->member_first[group + 1]; i-- > s->member_first[group];)
        if (needs_each(s, s->members[i], need_push))
            return 1;
    return 0;
}

static int unit_place(struct settling *s, int32_t unit)
{
    if (push(s, unit))
        return s->e->status;
    while (s->nstack) {
        const int32_t at = s->stack[s->nstack - 1];
        if (s->color[at] == 0) {
            s->color[at] = 1;
            if (unit_needs(s, at))
                return s->e->status;
            continue;
        }
        s->nstack--;
        if (s->color[at] == 2)
            continue;
        s->color[at] = 2;
        if (at < (int32_t)s->p->nnodes)
            statement_place(s, at);
        else if (group_place(s, at - (int32_t)s->p->nnodes))
            return s->e->status;
    }
    return 0;
}

/* Parameters come first, in the order of their declarations. */
static void leaves_place(struct settling *s)
{
    for (uint32_t i = 0; i < s->p->nparameters; i++) {
        const int32_t node = s->p->parameters[i].node;
        s->to[node] = (int32_t)s->nout;
        s->out[s->nout++] = s->p->nodes[node];
    }
}

/* The program gets the new order. */
static void order_take(struct settling *s)
{
    struct program *p = s->p;
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->nout; i++) {
        for (int a = 0; a < node_spec(&s->out[i])->arguments; a++)
            s->out[i].arg[a] = s->to[s->out[i].arg[a]];
        if (s->out[i].statement >= 0)
            s->out[i].statement = s->to[s->out[i].statement];
    }
    for (uint32_t i = 0; i < p->nparameters; i++) {
        p->parameters[i].node = s->to[p->parameters[i].node];
        if (p->parameters[i].update >= 0)
            p->parameters[i].update = s->to[p->parameters[i].update];
    }
    for (uint32_t i = 0; i < p->noverlaps; i++) {
        const struct overlap o = {s->to[p->overlaps[i].producer], s->to[p->overlaps[i].consumer]};
        if (o.producer >= 0 && o.consumer >= 0)
            p->overlaps[n++] = o;
    }
    p->noverlaps = n;
    n = 0;
    for (uint32_t i = 0; i < p->nchunks; i++) {
        const int32_t at = s->to[p->chunks[i].statement];
        if (at >= 0)
            p->chunks[n++] = (struct chunks){at, p->chunks[i].count};
    }
    p->nchunks = n;
    memcpy(p->nodes, s->out, s->nout * sizeof(*s->out));
    p->nnodes = s->nout;
}

static bool settling_begin(struct settling *s)
{
    const size_t n = s->p->nnodes + 1, groups = s->p->ngroups + 1, parameters = s->p->nparameters + 1;

    s->out = malloc(n * sizeof(*s->out));
    s->to = malloc(n * sizeof(*s->to));
    s->tree = malloc(n * sizeof(*s->tree));
    s->first = calloc(n, sizeof(*s->first));
    s->length = calloc(n, sizeof(*s->length));
    s->readers = malloc(n * PROGRAM_ARGUMENTS * sizeof(*s->readers));
    s->reader_first = calloc(parameters + 1, sizeof(*s->reader_first));
    s->members = malloc(n * sizeof(*s->members));
    s->member_first = calloc(groups + 1, sizeof(*s->member_first));
    s->color = calloc(n + groups, 1);
    if (s->to)
        memset(s->to, 0xff, n * sizeof(*s->to));
    return s->out && s->to && s->tree && s->first && s->length && s->readers && s->reader_first && s->members &&
           s->member_first && s->color;
}

static void settling_end(struct settling *s)
{
    free(s->out);
    free(s->to);
    free(s->tree);
    free(s->first);
    free(s->length);
    free(s->readers);
    free(s->reader_first);
    free(s->members);
    free(s->member_first);
    free(s->color);
    free(s->stack);
}

int program_settle(struct program *p, struct error *e)
{
    struct error none = {.status = 0};
    struct settling s = {.p = p, .e = e ? e : &none};
    int status = settling_begin(&s) ? 0 : program_no_memory(e);

    if (status == 0)
        status = statements_list(&s);
    if (status == 0) {
        lists_fill(&s, true);
        firsts_sum(s.reader_first, p->nparameters);
        firsts_sum(s.member_first, p->ngroups);
        lists_fill(&s, false);
        firsts_restore(s.reader_first, p->nparameters);
        firsts_restore(s.member_first, p->ngroups);
        leaves_place(&s);
    }
    for (uint32_t i = 0; i < p->nnodes && status == 0; i++)
        if (s.length[i] && s.color[unit_of(&s, (int32_t)i)] == 0)
            status = unit_place(&s, unit_of(&s, (int32_t)i));
    if (status == 0)
        order_take(&s);
    settling_end(&s);
    return status;
}
