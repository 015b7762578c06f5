/* SPDX-License-Identifier: MIT
 *
 * products.c - products of matrices as steps: with the sum over the ranks behind them, which all ranks get or each its rows of, and what a group does
 * with that as far as the operators' epilogues do the same; and alone.
 */
#include "kernels/program/inside.h"
#include "kernels/program/steps/inside.h"

/* A product, the sum of it over the ranks (-1: none), and what is done with that up to `result`. */
struct product {
    int32_t matmul, head, result;
    int32_t bias, residual; /* -1: none */
    int activation;         /* an operation; 0: none */
};

static bool is_thin(const struct program *p, int32_t matmul)
{
    return p->nodes[p->nodes[matmul].arg[1]].op == OP_TRANSPOSE;
}

static int32_t group_of(const struct program *p, int32_t node)
{
    return p->nodes[node].statement >= 0 ? p->nodes[p->nodes[node].statement].group : -1;
}

/* Whether the sum of a product is made with it; a group that is one step with its sum has this for itself. */
static bool is_summed(const struct stepping *s, int32_t head)
{
    const struct node *n = &s->p->nodes[head];

    if (s->fused[head] && group_of(s->p, head) != group_of(s->p, n->arg[0]))
        return false;
    return (n->op == OP_ALL_REDUCE || (n->op == OP_REDUCE_SCATTER && n->value.sliced == 0)) &&
           s->p->nodes[n->arg[0]].op == OP_MATMUL && s->uses[n->arg[0]] == 1;
}

bool product_is_summed(const struct stepping *s, int32_t matmul)
{
    bool summed = false;

    for (uint32_t i = (uint32_t)matmul + 1; i < s->p->nnodes && s->uses[matmul] == 1; i++)
        summed |= node_spec(&s->p->nodes[i])->arguments > 0 && s->p->nodes[i].arg[0] == matmul && is_summed(s, (int32_t)i);
    return summed;
}

/* ---- groups ---- */

/* Whether an operand's elements are there for those of the result on each rank: all of them, or the rank's own. */
static bool fits(const struct program *p, int32_t node, const struct value *result, int sliced)
{
    const struct value *v = &p->nodes[node].value, *source = &p->nodes[step_source(p, node)].value;

    if (result->layout != LAYOUT_SLICED)
        return v->layout == result->layout;
    return (v->layout == LAYOUT_REPLICATED || (v->layout == LAYOUT_SLICED && v->sliced == sliced)) &&
           (source->layout == LAYOUT_REPLICATED || (source->layout == LAYOUT_SLICED && source->sliced == sliced));
}

/* An operand that is added to the result so far, from outside of the group. */
static bool added_take(const struct program *p, struct product *q, int32_t node)
{
    const struct value *v = &p->nodes[q->result].value, *w = &p->nodes[node].value;

    if (q->activation || w->dtype != FCC_F32)
        return false;
    if (w->ndim == 1 && w->shape[0] == v->shape[v->ndim - 1] && q->bias < 0 && q->residual < 0) {
        const bool columns = v->layout == LAYOUT_SLICED && v->sliced == v->ndim - 1;
        q->bias = node;
        return v->layout == LAYOUT_SLICED && !columns ? w->layout == LAYOUT_REPLICATED : fits(p, node, v, 0);
    }
    if (w->ndim != v->ndim || memcmp(w->shape, v->shape, (size_t)v->ndim * sizeof(v->shape[0])) != 0 || q->residual >= 0)
        return false;
    q->residual = node;
    return fits(p, node, v, v->sliced);
}

/* The next operation behind `q->result`. */
static bool point_take(const struct program *p, struct product *q, int32_t node, int32_t begin)
{
    const struct node *n = &p->nodes[node];

    if (n->value.dtype != FCC_F32)
        return false;
    if (n->op == OP_ADD && (n->arg[0] == q->result) != (n->arg[1] == q->result)) {
        const int32_t other = n->arg[0] == q->result ? n->arg[1] : n->arg[0];
        return step_source(p, other) < begin && added_take(p, q, other);
    }
    if ((n->op != OP_RELU && n->op != OP_GELU && n->op != OP_SILU) || n->arg[0] != q->result || q->activation)
        return false;
    q->activation = n->op;
    return true;
}

/* On GPUs what follows a product that is sent in pieces is elements behind it: ranks launch both themselves then. */
static bool fits_gpus(const struct program *p, const struct product *q)
{
    const bool pieces = q->head >= 0 && !is_thin(p, q->matmul);

    return !p->on_gpus || !pieces || q->result == q->head;
}

/* Whether the operations [begin, end) of a group are one product with its epilogue. Values are f32: those of 16 bits are rounded after each
 * operation, which epilogues do not. */
static bool product_find(const struct stepping *s, int32_t begin, int32_t end, struct product *out)
{
    const struct program *p = s->p;
    bool well = true;

    *out = (struct product){-1, -1, -1, -1, -1, 0};
    for (int32_t i = begin; i < end && well; i++) {
        const struct node *n = &p->nodes[i];
        if (n->op == OP_MATMUL) {
            well = out->matmul < 0 && n->value.dtype == FCC_F32;
            out->matmul = out->result = i;
        } else if (n->op == OP_TRANSPOSE) {
            well = out->matmul < 0;
        } else if (node_spec(n)->kind == OPERATION_EXCHANGE) {
            well = out->head < 0 && n->arg[0] == out->matmul && out->result == out->matmul && is_summed(s, i);
            out->head = out->result = i;
        } else if (n->op == OP_UPDATE) { /* the last, of what has no other name */
            well = i == end - 1 && n->arg[0] == out->result && !node_is_statement(&p->nodes[n->arg[0]]);
        } else if (node_spec(n)->kind == OPERATION_POINT) {
            well = out->result >= 0 && s->uses[out->result] == 1 && point_take(p, out, i, begin);
            out->result = i;
        } else {
            well = n->op == OP_AS_SLICE && n->arg[0] < begin;
        }
    }
    if (well && !fits_gpus(p, out))
        return false;
    return well && out->matmul >= 0 && (out->head >= 0 || (out->result != out->matmul && !is_thin(p, out->matmul)));
}

bool product_is_group(const struct stepping *s, int32_t begin, int32_t end)
{
    struct product found;

    return product_find(s, begin, end, &found);
}

/* ---- steps ---- */

static int place_check(const struct stepping *s, const struct node *n, int32_t node)
{
    return s->place[step_source(s->p, node)].kind ? 0 : step_refuse(n, "of values without memory: nothing runs it yet", s->e);
}

static int kind_check(const struct stepping *s, const struct product *q)
{
    const struct program *p = s->p;
    const struct node *m = &p->nodes[q->matmul];
    const int64_t columns = m->value.shape[m->value.ndim - 1], rows = columns ? value_elements(&m->value) / columns : 1;

    if (is_thin(p, q->matmul) && (q->head < 0 || p->nodes[q->head].op != OP_ALL_REDUCE || rows < 1 || rows > FCC_GEMV_MAX_M))
        return step_refuse(m, "with transpose: allowed is an all_reduce of it, of 1 to 64 rows", s->e);
    if (q->head < 0 && m->value.layout == LAYOUT_SLICED && m->value.sliced == m->value.ndim - 1 && columns % p->nranks)
        return step_refuse(m, "of columns that are not as many on each rank: nothing runs it yet", s->e);
    return 0;
}

/* The memory of a factor or of what is added. */
static struct step_place source_place(const struct stepping *s, int32_t node)
{
    return node >= 0 ? s->place[step_source(s->p, node)] : (struct step_place){.kind = PLACE_NONE};
}

static int make(struct stepping *s, const struct product *q)
{
    const struct program *p = s->p;
    const struct node *m = &p->nodes[q->matmul];
    const bool thin = is_thin(p, q->matmul);
    const int32_t second = thin ? p->nodes[m->arg[1]].arg[0] : m->arg[1];

    if (kind_check(s, q) || place_check(s, m, m->arg[0]) || place_check(s, m, second) ||
        (q->bias >= 0 && place_check(s, m, q->bias)) || (q->residual >= 0 && place_check(s, m, q->residual)))
        return s->e->status;
    struct program_step *step = step_add(s, STEP_OF_PRODUCT, q->result);
    if (!step || result_place(s, q->result))
        return s->e->status;
    step->product = q->head < 0                                 ? PRODUCT_ALONE
                    : thin                                      ? PRODUCT_THIN
                    : p->nodes[q->head].op == OP_REDUCE_SCATTER ? PRODUCT_SCATTER
                                                                : PRODUCT_REDUCE;
    step->overlaps = q->head >= 0 && overlap_is_asked(p, q->matmul, p->nodes[q->head].statement);
    step->a = m->arg[0];
    step->second = second;
    step->residual = q->residual;
    step->activation = q->activation;
    step->in = source_place(s, m->arg[0]);
    step->b = source_place(s, second);
    step->out = s->place[q->result];
    step->t[0] = source_place(s, q->bias);
    step->t[1] = source_place(s, q->residual);
    step->ntensors = 2;
    return result_stored(s, q->result);
}

int product_make(struct stepping *s, int32_t matmul, int32_t head)
{
    return make(s, &(struct product){matmul, head, head < 0 ? matmul : head, -1, -1, 0});
}

int product_group_make(struct stepping *s, int32_t begin, int32_t end)
{
    struct product found;

    (void)product_find(s, begin, end, &found); /* it is one */
    if (make(s, &found))
        return s->e->status;
    for (int32_t i = begin; i < end; i++)
        if (s->p->nodes[i].op == OP_UPDATE)
            s->place[i] = (struct step_place){.kind = PLACE_PARAMETER, .index = s->p->nodes[i].parameter};
    return 0;
}
