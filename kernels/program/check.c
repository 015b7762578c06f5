/* SPDX-License-Identifier: MIT
 *
 * check.c - sizes become numbers, and every operation's value is found; what is missing or never used is refused.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "kernels/program/inside.h"

uint64_t dropout_key(double seed, double step, int64_t stream)
{
    const double parts[] = {seed, step};
    uint64_t x = (uint64_t)stream * UINT64_C(0x2545f4914f6cdd1d) + 1;

    for (int i = 0; i < 2; i++) {
        uint64_t bits;
        memcpy(&bits, &parts[i], sizeof(bits));
        x = (x ^ bits) * UINT64_C(0xd6e8feb86659fd93);
        x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
        x ^= x >> 32;
    }
    return x;
}

/* ---- sizes ---- */

int size_find(const struct program *p, const struct size_text *size, int32_t line, int32_t column, int64_t *out,
              struct error *e)
{
    __int128 value = 1;

    for (int i = 0; i < size->count; i++) {
        const struct size_factor *f = &size->factor[i];
        const int64_t factor = f->symbol == SIZE_RANKS ? p->nranks : f->symbol >= 0 ? p->symbols[f->symbol].value : f->integer;
        if (f->divides && (factor == 0 || value % factor != 0))
            return program_fail(e, line, column,
                                "a size: %" PRId64 " is not divisible by %s%" PRId64 ": allowed are sizes that divide",
                                (int64_t)value, f->symbol == SIZE_RANKS ? "the number of ranks, " : "", factor);
        value = f->divides ? value / factor : value * factor;
        if (value > PROGRAM_ELEMENTS_MAX)
            return program_fail(e, line, column, "a size of more than %" PRId64 ": allowed are at most so many",
                                PROGRAM_ELEMENTS_MAX);
    }
    value += size->plus;
    if (value > PROGRAM_ELEMENTS_MAX)
        return program_fail(e, line, column, "a size of more than %" PRId64 ": allowed are at most so many",
                            PROGRAM_ELEMENTS_MAX);
    *out = (int64_t)value;
    return 0;
}

static int symbols_set(struct program *p, const struct program_size sizes[], size_t nsizes, struct error *e)
{
    for (size_t i = 0; i < nsizes; i++) {
        uint32_t s = 0;
        while (s < p->nsymbols && strcmp(program_name_of(p, p->symbols[s].name), sizes[i].name) != 0)
            s++;
        if (s == p->nsymbols)
            return program_fail(e, 0, 0, "size %.64s: the program `%s` has none of this name", sizes[i].name,
                                program_name_of(p, p->name));
        p->symbols[s].value = sizes[i].value;
    }
    for (uint32_t s = 0; s < p->nsymbols; s++) {
        if (p->symbols[s].value < 0)
            return program_fail(e, 0, 0, "size %s: %s: allowed are 0 to %" PRId64, program_name_of(p, p->symbols[s].name),
                                p->symbols[s].value == -1 ? "not given" : "negative", PROGRAM_ELEMENTS_MAX);
        if (p->symbols[s].value > PROGRAM_ELEMENTS_MAX)
            return program_fail(e, 0, 0, "size %s: %" PRId64 ": allowed are 0 to %" PRId64,
                                program_name_of(p, p->symbols[s].name), p->symbols[s].value, PROGRAM_ELEMENTS_MAX);
    }
    return 0;
}

static int elements_check(const struct value *v, int32_t line, int32_t column, struct error *e)
{
    __int128 n = 1;

    for (int d = 0; d < v->ndim; d++) {
        n *= v->shape[d] ? v->shape[d] : 1;
        if (n > PROGRAM_ELEMENTS_MAX)
            return program_fail(e, line, column, "a tensor of more than %" PRId64 " elements: allowed are at most so many",
                                PROGRAM_ELEMENTS_MAX);
    }
    return 0;
}

/* All scattered parameters have the elements of one table. */
static int table_set(struct program *p, const struct parameter *t, struct error *e)
{
    const char *name = program_name_of(p, t->name);
    int64_t n = 0;

    if (size_find(p, &t->tensors, t->line, t->column, &n, e))
        return e->status;
    if (n < 1 || n > PROGRAM_TABLE_MAX)
        return program_fail(e, t->line, t->column, "`%s`: scattered(%" PRId64 "): allowed are 1 to %d tensors", name, n,
                            PROGRAM_TABLE_MAX);
    if (p->tensors >= 0 && (p->tensors != n || p->tensor_elements != t->value.shape[0]))
        return program_fail(e, t->line, t->column,
                            "`%s`: %" PRId64 " elements, scattered(%" PRId64 "), another one has %" PRId64
                            " elements, scattered(%" PRId64 "): allowed is one table for all",
                            name, t->value.shape[0], n, p->tensor_elements, p->tensors);
    p->tensors = n;
    p->tensor_elements = t->value.shape[0];
    return 0;
}

static int sizes_set(struct program *p, struct error *e)
{
    p->tensors = p->tensor_elements = -1;
    for (uint32_t i = 0; i < p->nparameters; i++) {
        struct parameter *t = &p->parameters[i];
        for (int d = 0; d < t->value.ndim; d++)
            if (size_find(p, &t->size[d], t->line, t->column, &t->value.shape[d], e))
                return e->status;
        if (elements_check(&t->value, t->line, t->column, e) || (t->value.table && table_set(p, t, e)))
            return e->status;
    }
    for (uint32_t i = 0; i < p->nnodes; i++) {
        struct node *n = &p->nodes[i];
        for (int k = 0; k < node_spec(n)->integers; k++)
            if (size_find(p, &n->size[k], n->line, n->column, &n->integer[k], e))
                return e->status;
    }
    return 0;
}

int program_infer(struct program *p, struct error *e)
{
    for (uint32_t i = 0; i < p->nnodes; i++)
        if (node_infer(p, &p->nodes[i], e) || elements_check(&p->nodes[i].value, p->nodes[i].line, p->nodes[i].column, e))
            return e->status;
    return 0;
}

/* nranks: all ranks, which is what `ranks` means here. */
static int rank_groups_set(struct program *p, int nranks, struct error *e)
{
    int64_t n = 1;

    p->nranks = nranks;
    if (p->rank_groups_size.count && size_find(p, &p->rank_groups_size, p->rank_groups_line, p->rank_groups_column, &n, e))
        return e->status;
    if (n < 1 || nranks % n)
        return program_fail(e, p->rank_groups_line, p->rank_groups_column,
                            "%" PRId64 " groups of %d ranks: allowed are numbers that divide the number of ranks", n, nranks);
    p->rank_groups = (int)n;
    p->nranks = nranks / (int)n;
    return 0;
}

int program_bind(struct program *p, int nranks, const struct program_size sizes[], size_t nsizes, struct error *e)
{
    struct error none = {.status = 0};
    struct error *why = e ? e : &none;

    error_clear(why);
    if (nranks < 1 || nranks > FCC_MAX_RANKS)
        return program_fail(why, 0, 0, "%d ranks: allowed are 1 to %d", nranks, FCC_MAX_RANKS);
    if (symbols_set(p, sizes, nsizes, why) || rank_groups_set(p, nranks, why) || sizes_set(p, why) || program_infer(p, why))
        return why->status;
    p->bound = true;
    return 0;
}

/* ---- the whole ---- */

int program_check_whole(const struct program *p, struct error *e)
{
    uint32_t *uses = uses_count(p);
    int status = 0;
    bool stores = false;

    if (!uses)
        return program_no_memory(e);
    for (uint32_t i = 0; i < p->nparameters && status == 0; i++) {
        const struct parameter *t = &p->parameters[i];
        const char *name = program_name_of(p, t->name);
        stores |= t->update >= 0;
        if (t->kind == PARAMETER_OUT && t->update < 0)
            status = program_fail(e, t->line, t->column, "`%s` is declared `out` and never assigned", name);
        else if (t->kind == PARAMETER_INOUT && t->update < 0)
            status = program_fail(e, t->line, t->column, "`%s` is declared `inout` and never assigned: allowed is `in`", name);
        else if (t->kind != PARAMETER_OUT && uses[t->node] == 0 && t->kind != PARAMETER_INOUT)
            status = program_fail(e, t->line, t->column, "`%s` is never used", name);
    }
    for (uint32_t i = 0; i < p->nnodes && status == 0; i++)
        if (p->nodes[i].name >= 0 && uses[i] == 0)
            status = program_fail(e, p->nodes[i].line, p->nodes[i].column,
                                  "`%s` is never used: allowed are values that a result is made of",
                                  program_name_of(p, p->nodes[i].name));
    if (status == 0 && !stores)
        status = program_fail(e, 0, 0, "the program stores nothing: needed is at least one `out` or `inout`");
    free(uses);
    return status;
}

/* ---- transformations ---- */

static int (*const transforms[SCHEDULE_VERBS])(struct program *, const struct directive *, struct error *) = {
    [SCHEDULE_SPLIT] = transform_split, [SCHEDULE_REORDER] = transform_reorder, [SCHEDULE_AS_SLICE] = transform_as_slice,
    [SCHEDULE_FUSE] = transform_fuse,   [SCHEDULE_OVERLAP] = transform_overlap, [SCHEDULE_CHUNK] = transform_chunk};

static void program_swap(struct program *a, struct program *b)
{
    const struct program c = *a;

    *a = *b;
    *b = c;
}

/* Carries out a directive of a copy, which then is the program. */
static int directive_do(struct program *p, const struct directive *d, struct error *e)
{
    struct program *tried = program_copy(p);
    char text[FCC_TEXT_MAX];

    if (!tried)
        return program_no_memory(e);
    int status = transforms[d->verb](tried, d, e);
    if (status == 0)
        status = program_settle(tried, e);
    if (status == 0)
        status = program_infer(tried, e);
    if (status == 0)
        status = groups_check(tried, e);
    if (status == 0)
        program_swap(p, tried);
    program_free(tried);
    if (status && e) {
        text_copy(text, sizeof(text), e->text);
        status = program_fail(e, d->line, d->column, "%s: %.440s", schedule_verbs[d->verb], text);
    }
    return status;
}

int program_schedule(struct program *p, struct error *e)
{
    struct error none = {.status = 0};
    struct error *why = e ? e : &none;
    const uint32_t n = p->ndirectives;
    int status = 0;

    error_clear(why);
    if (!p->bound)
        return program_fail(why, 0, 0, "the program's sizes are not bound yet: allowed is program_bind() first");
    for (uint32_t i = 0; i < n && status == 0; i++) {
        const struct directive d = p->directives[i];
        status = directive_do(p, &d, why);
    }
    if (status == 0)
        p->ndirectives = p->ndirective_names = 0; /* they are carried out: what they made is the program now */
    return status;
}

int program_transform(struct program *p, const char *statement, struct error *e)
{
    struct error none = {.status = 0};
    struct error *why = e ? e : &none;
    struct program *tried = program_copy(p);

    error_clear(why);
    if (!tried)
        return program_no_memory(why);
    int status = directive_parse(tried, statement, why);
    if (status == 0)
        status = program_schedule(tried, why);
    if (status == 0)
        program_swap(p, tried);
    program_free(tried);
    return status;
}
