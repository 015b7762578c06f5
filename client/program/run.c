/* SPDX-License-Identifier: MIT
 *
 * run.c - a program's steps as operators.
 */
#include "client/program/program.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/submission.h"

/* ---- all ranks have one program ---- */

uint64_t program_hash(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;

    for (size_t i = 0; i < n; i++)
        hash = (hash ^ at[i]) * UINT64_C(1099511628211); /* FNV-1a (Fowler, Noll, Vo) */
    return hash;
}

/* Lines of a text whose hashes fit into a step's words; several lines have one hash if there are many. */
int program_agree(struct fcc_comm *comm, const char *text, size_t length, const struct program *p, bool of_one_node)
{
    enum { HEAD = sizeof(struct code_head) / sizeof(int64_t), HASHES = CODE_WORDS_MAX - HEAD };
    int64_t lines = 1, line = 0, words[CODE_WORDS_MAX] = {CODE_TEXT};
    uint64_t sizes = PROGRAM_HASH_BEGIN;

    for (size_t i = 0; i < length; i++)
        lines += text[i] == '\n';
    const int64_t each = (lines + HASHES - 1) / HASHES, hashes = (lines + each - 1) / each;
    for (uint32_t i = 0; i < p->nsymbols; i++)
        sizes = program_hash(sizes, &p->symbols[i].value, sizeof(p->symbols[i].value));
    words[1] = each;
    words[2] = (int64_t)sizes;
    words[offsetof(struct code_head, result) / sizeof(words[0])] = of_one_node ? CODE_TEXT_SHARES : 0;
    for (size_t i = 0; i < length; i++) {
        words[HEAD + line / each] = (int64_t)program_hash((uint64_t)words[HEAD + line / each] + 1, text + i, 1);
        line += text[i] == '\n';
    }
    const struct fcc_program_step_args args = {.code = words, .words = (int32_t)(HEAD + hashes)};
    return operator_call(comm, FCC_PROGRAM_STEP, &args);
}

/* ---- steps ---- */

static struct fcc_tensor place_whole(const struct fcc_program *p, const struct step_place *place)
{
    if (place->kind == PLACE_PARAMETER)
        return p->tensors[place->index];
    const struct step_temporary *t = &p->steps.temporaries[place->index];
    const struct value *v = &t->value;
    if (t->stands_for && !temporary_is_needed(p, t))
        return p->tensors[t->stands_for - 1];
    return fcc_tensor_1d(p->temporaries[place->index], 0, (enum fcc_dtype)v->dtype, value_elements_of(v, p->nranks, p->rank));
}

struct fcc_tensor program_tensor_at(const struct fcc_program *p, const struct step_place *place)
{
    if (place->kind == PLACE_NONE)
        return (struct fcc_tensor){.buffer = NULL};
    const struct fcc_tensor whole = place_whole(p, place);
    const int64_t rows = slice_begin(place->rows, p->nranks, p->rank + 1) - slice_begin(place->rows, p->nranks, p->rank),
                  at = place->offset + rows * place->each, n = place->length ? place->length : whole.shape[0] - at;
    return at || place->length
               ? fcc_tensor_1d(whole.buffer, whole.offset + (size_t)at * fcc_dtype_size((enum fcc_dtype)whole.dtype),
                               (enum fcc_dtype)whole.dtype, n)
               : whole;
}

bool temporary_is_needed(const struct fcc_program *p, const struct step_temporary *t)
{
    return p->places[t->stands_for - 1] && (!t->by_code || p->copies);
}

/* Where the tensors of a place's table lie; NULL: one behind the other. */
static const int64_t *places_of(const struct fcc_program *p, const struct step_place *place)
{
    if (place->kind == PLACE_PARAMETER)
        return p->places[place->index];
    const struct step_temporary *t = place->kind == PLACE_TEMPORARY ? &p->steps.temporaries[place->index] : NULL;
    return t && t->stands_for && !temporary_is_needed(p, t) ? p->places[t->stands_for - 1] : NULL;
}

/* code_places(): the words' first is set, and those of a tensor of the step are added. */
static void tables_add(const struct fcc_program *p, const struct step_place *place, int tensor, int64_t *words, int32_t *n)
{
    const int64_t *places = places_of(p, place);

    if (!places)
        return;
    words[0] |= INT64_C(1) << tensor;
    for (int64_t i = 0; i < p->program->tensors && *n < CODE_TABLES_MAX; i++)
        words[(*n)++] = places[i];
}

/* A copy between a table's tensors and memory that stands for them, which nothing needs now. */
static bool is_left_out(const struct fcc_program *p, const struct program_step *step)
{
    bool needed = false;

    for (int i = 0; step->copies && i < step->ntensors; i++)
        needed |= step->t[i].kind == PLACE_TEMPORARY && temporary_is_needed(p, &p->steps.temporaries[step->t[i].index]);
    return step->copies && !needed;
}

bool step_copies(struct fcc_program *p, const struct program_step *step, int status)
{
    const bool first = status == -EOPNOTSUPP && !p->copies && step->kind == STEP_OF_CODE && (step->in.kind || step->out.kind);

    p->copies |= first;
    return first;
}

#define TILE_LEAST 64 /* elements: tiles are multiples of it, so that they begin where cache lines do */

/* The elements of a tile, if the schedule says into how many pieces the step is cut: the same on all ranks. */
static int64_t step_tile(const struct fcc_program *p, const struct program_step *step)
{
    const struct code_head *h = (const struct code_head *)(const void *)step->words;
    const int64_t pieces = step->pieces * (h->sliced ? p->comm->nranks : 1), each = h->rows * h->inner / (pieces + !pieces);

    return pieces ? (each + !each + TILE_LEAST - 1) / TILE_LEAST * TILE_LEAST : 0;
}

bool code_call_make(const struct fcc_program *p, const struct program_step *step, struct code_call *out)
{
    struct fcc_program_step_args *args = &out->args;

    if (is_left_out(p, step))
        return false;
    memset(out->tables, 0, sizeof(out->tables));
    out->tile = step_tile(p, step);
    *args = (struct fcc_program_step_args){.in = program_tensor_at(p, &step->in),
                                           .out = program_tensor_at(p, &step->out),
                                           .code = step->words,
                                           .words = (int32_t)step->nwords,
                                           .tile = &out->tile,
                                           .tile_words = out->tile > 0,
                                           .tables = out->tables,
                                           .table_words = 1};
    tables_add(p, &step->in, 0, out->tables, &args->table_words);
    tables_add(p, &step->out, 1, out->tables, &args->table_words);
    for (int i = 0; i < step->ntensors; i++) {
        args->t[i] = program_tensor_at(p, &step->t[i]);
        tables_add(p, &step->t[i], 2 + i, out->tables, &args->table_words);
    }
    if (!out->tables[0])
        args->table_words = 0;
    return true;
}

static int code_run(struct fcc_program *p, const struct program_step *step)
{
    struct code_call call;

    return code_call_make(p, step, &call) ? operator_call(p->group, FCC_PROGRAM_STEP, &call.args) : 0;
}

/* ---- collectives: run, or, with a stream's address, enqueued ---- */

#define COLLECTIVE(name, comm, ...)                                                                                            \
    (on ? fcc_##name##_enqueue(comm, &(struct fcc_##name##_args){__VA_ARGS__}, *on, NULL)                                      \
        : fcc_##name(comm, &(struct fcc_##name##_args){__VA_ARGS__}))

/* What others send to this rank comes from the rank so many before it; with groups from that at its place, so many groups before its own. */
static int send_run(struct fcc_program *p, int64_t distance, struct fcc_tensor in, struct fcc_tensor out, void *const *on)
{
    const int64_t ranks = p->comm->nranks, rank = p->comm->rank, each = program_has_groups(p->program) ? p->nranks : 1,
                  way = distance % (ranks / each) * each;

    return COLLECTIVE(send_receive, p->comm, .in = in, .out = out, .destination = (int32_t)((rank + way) % ranks),
                      .source = (int32_t)((rank - way + ranks) % ranks));
}

/* Rows of the first dimension, or of each rank's piece, go to the ranks: as many as these have of the slices' dimensions. */
static int all_to_all_run(struct fcc_program *p, const struct node *n, struct fcc_tensor in, struct fcc_tensor out,
                          void *const *on)
{
    const struct value *from = &p->program->nodes[n->arg[0]].value, *to = &n->value;
    const int64_t mine = value_elements_of(from, p->nranks, p->rank), size = to->shape[to->sliced];
    int64_t counts[FCC_MAX_RANKS];

    for (int r = 0; r < p->nranks; r++)
        counts[r] = size ? mine / size * (slice_begin(size, p->nranks, r + 1) - slice_begin(size, p->nranks, r)) : 0;
    return COLLECTIVE(all_to_all, p->group, .in = in, .send_counts = counts, .out = out);
}

int exchange_run(struct fcc_program *p, const struct program_step *step, void *const *on)
{
    const struct node *n = &p->program->nodes[step->node];
    const struct fcc_tensor in = program_tensor_at(p, &step->in), out = program_tensor_at(p, &step->out),
                            none = {.buffer = NULL};
    const int32_t root = (int32_t)n->integer[0];
    const bool is_root = root == p->rank;

    switch (n->op) {
    case OP_ALL_REDUCE:
        return COLLECTIVE(all_reduce, p->group, .in = in, .out = out);
    case OP_REDUCE_SCATTER:
        return COLLECTIVE(reduce_scatter, p->group, .in = in, .out = out);
    case OP_ALL_GATHER:
        return COLLECTIVE(all_gather, p->group, .in = in, .out = out);
    case OP_ALL_TO_ALL:
        return all_to_all_run(p, n, in, out, on);
    case OP_BROADCAST:
        return COLLECTIVE(broadcast, p->group, .in = is_root ? in : none, .out = out, .root = root);
    case OP_REDUCE:
        return COLLECTIVE(reduce, p->group, .in = in, .out = is_root ? out : none, .root = root);
    default:
        return send_run(p, n->integer[0], in, out, on);
    }
}

int program_step_error(const struct fcc_program *p, const struct program_step *step, int status)
{
    char text[FCC_TEXT_MAX];

    text_copy(text, sizeof(text), fcc_last_error());
    return last_error_set(status, "%s (line %d of program `%s`)", text, step->line,
                          program_name_of(p->program, p->program->name));
}

int program_step_run(struct fcc_program *p, struct program_step *step)
{
    const int status = step->kind == STEP_OF_CODE      ? code_run(p, step)
                       : step->kind == STEP_OF_PRODUCT ? product_run(p, step, NULL, false)
                       : step->kind == STEP_OF_LOOKUP  ? lookup_run(p, step, NULL, false)
                                                       : exchange_run(p, step, NULL);

    return status ? program_step_error(p, step, status) : 0;
}
