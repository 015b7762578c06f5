/* SPDX-License-Identifier: MIT
 *
 * moves.c - elements that go to another place on their rank: slices, and, around exchanges of slices along another dimension than 0, what makes one piece
 * of each rank's part before, or the whole of the pieces behind it. Exchanges themselves move rows of the first dimension.
 */
#include "kernels/program/inside.h"
#include "kernels/program/steps/inside.h"

/* A tensor as [before][size][after], of which a part along the middle dimension is copied. */
struct cut {
    int64_t before, size, after;
};

static struct cut cut_of(const struct value *v, int dimension)
{
    struct cut c = {.before = 1, .size = v->shape[dimension], .after = 1};

    for (int d = 0; d < v->ndim; d++) {
        c.before *= d < dimension ? v->shape[d] : 1;
        c.after *= d > dimension ? v->shape[d] : 1;
    }
    return c;
}

/* Copies `part` indices of the middle dimension from `from`, whose rows are as long as the whole, or as long as the part (`dense`), to `to`, whose rows are
 * the other. rows: the size of the first dimension, if that is spread over the ranks; 0: it is not. */
static int part_copy(struct stepping *s, int32_t node, const struct cut *c, int64_t part, int64_t rows,
                     const struct step_place *from, const struct step_place *to, bool gathers)
{
    const int32_t line = s->p->nodes[node].line;
    const int64_t length = part * c->after, elements = c->before * length;
    const struct code_head head = {.kind = CODE_ELEMENTS,
                                   .rows = rows ? rows : elements,
                                   .inner = rows ? elements / rows : 1,
                                   .sliced = rows > 0,
                                   .result = CODE_NO_RESULT,
                                   .operands = 2,
                                   .instructions = 2};
    const struct code_operand whole = {.tensor = !gathers, .index = CODE_PART, .div = c->size * c->after, .length = length},
                              dense = {.tensor = gathers, .index = CODE_OWN, .div = 1, .length = 1};
    const struct code_operand operands[] = {gathers ? whole : dense, gathers ? dense : whole};
    const struct code_instruction code[] = {{.op = CODE_LOAD, .line = line}, {.op = CODE_STORE, .from = {0, 1}, .line = line}};

    if (elements == 0)
        return 0;
    struct program_step *step = step_write(s, node, &head, operands, code);
    if (!step)
        return s->e->status;
    step->t[0] = *from;
    step->t[1] = *to;
    step->ntensors = 2;
    return 0;
}

/* ---- slices ---- */

/* Where nothing stores while others read, a slice of rows that lie one behind the other is where it is. */
static bool slice_is_there(const struct stepping *s, const struct node *n, int32_t from, const struct cut *c)
{
    const struct node *source = &s->p->nodes[from];

    return c->before <= 1 && (source->op != OP_PARAMETER || s->p->parameters[source->parameter].update < 0) &&
           n->value.layout != LAYOUT_SLICED;
}

int slice_make(struct stepping *s, int32_t node)
{
    const struct node *n = &s->p->nodes[node];
    const int32_t from = step_source(s->p, n->arg[0]);
    const struct value *v = &s->p->nodes[n->arg[0]].value;
    const struct cut c = cut_of(v, (int)n->integer[0]);
    struct step_place place = s->place[from];

    if (!place.kind)
        return step_refuse(n, "of a value that has no memory: nothing runs it yet", s->e);
    if (s->p->nodes[from].value.layout != v->layout)
        return step_refuse(n, "of as_slice: allowed is as_slice of the slice", s->e);
    if (v->layout == LAYOUT_SLICED && v->sliced != 0)
        return step_refuse(n, "of slices along another dimension than 0: nothing runs it yet", s->e);
    if (table_in(s, node, false, &place))
        return s->e->status;
    place.offset += n->integer[1] * c.after;
    if (slice_is_there(s, n, from, &c)) {
        s->place[node] = place;
        return 0;
    }
    return stored_place(s, node) ? s->e->status
                                 : part_copy(s, node, &c, n->integer[2] - n->integer[1],
                                             v->layout == LAYOUT_SLICED ? v->shape[0] : 0, &place, &s->place[node], true);
}

/* ---- exchanges ---- */

/* Which dimension an exchange slices, or gathers, besides 0; 0: none. */
static int other_dimension(const struct value *from, const struct value *to)
{
    return from->layout == LAYOUT_SLICED && from->sliced ? from->sliced
           : to->layout == LAYOUT_SLICED && to->sliced   ? to->sliced
                                                         : 0;
}

bool exchange_is_along(const struct program *p, int32_t node)
{
    const struct node *n = &p->nodes[node];

    return n->op == OP_ALL_TO_ALL || (n->op != OP_SEND && other_dimension(&p->nodes[n->arg[0]].value, &n->value));
}

/* Copies between a tensor and each rank's piece of it, which lie one behind the other. */
static int pieces_copy(struct stepping *s, int32_t node, const struct value *v, int dimension, const struct step_place *whole,
                       const struct step_place *pieces, bool gathers)
{
    const struct cut c = cut_of(v, dimension);
    const bool spread = s->p->nodes[node].op == OP_ALL_TO_ALL; /* the first dimension is over the ranks meanwhile */
    const int64_t each = c.before / (spread && v->shape[0] ? v->shape[0] : 1) * c.after;
    int status = 0;

    for (int r = 0; r < s->p->nranks && status == 0; r++) {
        const int64_t begin = slice_begin(c.size, s->p->nranks, r), part = slice_begin(c.size, s->p->nranks, r + 1) - begin;
        struct step_place in_whole = *whole, piece = *pieces;
        in_whole.offset += begin * c.after;
        piece.offset += spread ? 0 : begin * each;
        piece.rows = spread ? v->shape[0] : 0;
        piece.each = spread ? begin * each : 0;
        status = part_copy(s, node, &c, part, spread ? v->shape[0] : 0, gathers ? &in_whole : &piece,
                           gathers ? &piece : &in_whole, gathers);
    }
    return status;
}

/* Where this rank stores the whole of what it has got: in a parameter, if that is all that is done with it. */
static int whole_place(struct stepping *s, int32_t node)
{
    const struct node *n = &s->p->nodes[node], *root = &s->p->nodes[n->statement];

    if (node_is_statement(n) || root->op != OP_UPDATE || root->arg[0] != node || s->p->parameters[root->parameter].value.table)
        return stored_place(s, node);
    s->place[node] = (struct step_place){.kind = PLACE_PARAMETER, .index = root->parameter};
    s->stored[n->statement] = true;
    return 0;
}

int exchange_along_make(struct stepping *s, int32_t node)
{
    const struct node *n = &s->p->nodes[node];
    const struct value *v = &s->p->nodes[n->arg[0]].value;
    const int dimension = other_dimension(v, &n->value);
    const bool packs = n->value.layout == LAYOUT_SLICED && n->value.sliced; /* before the exchange; otherwise behind it */
    struct step_place in = s->place[step_source(s->p, n->arg[0])], packed, out;

    if (n->op == OP_ALL_TO_ALL && (n->value.sliced == v->sliced || (n->value.sliced && v->sliced)))
        return step_refuse(n, "allowed are slices along dimension 0 that become such along another one, and back", s->e);
    if (table_in(s, node, false, &in))
        return s->e->status;
    struct value pieces = n->op == OP_ALL_GATHER ? n->value : *v;
    if (n->op == OP_ALL_TO_ALL)
        pieces.sliced = 0; /* as many elements as there are of slices along dimension 0, on each side of it */
    if (packs && (temporary_new(s, &pieces, false, &packed) || pieces_copy(s, node, v, dimension, &in, &packed, true)))
        return s->e->status;
    if (packs ? result_place(s, node) : temporary_new(s, &pieces, true, &out))
        return s->e->status;
    if (packs)
        out = s->place[node];
    struct program_step *step = step_add(s, STEP_OF_EXCHANGE, node);
    if (!step)
        return s->e->status;
    step->in = packs ? packed : in;
    step->out = out;
    if (packs)
        return result_stored(s, node);
    return whole_place(s, node) ? s->e->status : pieces_copy(s, node, v, dimension, &s->place[node], &out, false);
}
