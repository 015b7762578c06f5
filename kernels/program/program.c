/* SPDX-License-Identifier: MIT
 *
 * program.c - a program's memory: names, operations, copies.
 */
#include <stdio.h>

#include "kernels/program/inside.h"

const struct operation_spec operation_specs[OPERATIONS] = {
#define OPERATION(NAME, name_, arguments_, integers_, kind_)                                                                   \
    [OP_##NAME] = {.name = (name_), .arguments = (arguments_), .integers = (integers_), .kind = OPERATION_##kind_},
#include "kernels/program/operations.def"
#undef OPERATION
};

const char *const schedule_verbs[SCHEDULE_VERBS] = {
    [SCHEDULE_SPLIT] = "split", [SCHEDULE_REORDER] = "reorder", [SCHEDULE_AS_SLICE] = "as_slice",
    [SCHEDULE_FUSE] = "fuse",   [SCHEDULE_OVERLAP] = "overlap", [SCHEDULE_CHUNK] = "chunk"};

int program_fail(struct error *e, int32_t line, int32_t column, const char *format, ...)
{
    char text[FCC_TEXT_MAX];
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    if (line <= 0)
        return error_set(e, -EINVAL, "%s", text);
    return error_set(e, -EINVAL, "line %d, column %d: %s", line, column, text);
}

int program_no_memory(struct error *e)
{
    return error_set(e, -ENOMEM, "out of memory");
}

bool room_for(void **array, uint32_t count, uint32_t *capacity, size_t bytes)
{
    if (count < *capacity)
        return true;
    const uint32_t more = *capacity ? *capacity * 2 : 16;
    void *grown = realloc(*array, more * bytes);
    if (!grown)
        return false;
    *array = grown;
    *capacity = more;
    return true;
}

/* ---- names ---- */

static uint32_t hash_of(const char *text, size_t length)
{
    uint32_t hash = 2166136261u; /* FNV-1a (Fowler, Noll, Vo) */

    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    return hash;
}

const char *program_name_of(const struct program *p, int32_t name)
{
    return name >= 0 ? p->names_text + p->names[name] : "";
}

/* Where a name is in the table, or the free place where it belongs. */
static uint32_t name_place(const struct program *p, const char *text, size_t length)
{
    uint32_t at = hash_of(text, length) & (p->hash_size - 1);

    for (; p->hash[at] >= 0; at = (at + 1) & (p->hash_size - 1)) {
        const char *other = program_name_of(p, p->hash[at]);
        if (strlen(other) == length && memcmp(other, text, length) == 0)
            break;
    }
    return at;
}

int32_t name_find(const struct program *p, const char *text, size_t length)
{
    return p->hash_size ? p->hash[name_place(p, text, length)] : -1;
}

static bool hash_grow(struct program *p)
{
    const uint32_t size = p->hash_size ? p->hash_size * 2 : 64;
    int32_t *grown = malloc(size * sizeof(*grown));

    if (!grown)
        return false;
    memset(grown, 0xff, size * sizeof(*grown));
    free(p->hash);
    p->hash = grown;
    p->hash_size = size;
    for (uint32_t i = 0; i < p->nnames; i++) {
        const char *text = program_name_of(p, (int32_t)i);
        p->hash[name_place(p, text, strlen(text))] = (int32_t)i;
    }
    return true;
}

int32_t name_get(struct program *p, const char *text, size_t length)
{
    int32_t found = name_find(p, text, length);

    if (found >= 0)
        return found;
    if ((p->nnames + 1) * 2 > p->hash_size && !hash_grow(p))
        return -1;
    if (!room_for((void **)&p->names, p->nnames, &p->names_capacity, sizeof(*p->names)))
        return -1;
    if (p->names_bytes + length + 1 > p->names_room) {
        const size_t room = (p->names_room + length + 1) * 2;
        char *grown = realloc(p->names_text, room);
        if (!grown)
            return -1;
        p->names_text = grown;
        p->names_room = room;
    }
    p->hash[name_place(p, text, length)] = (int32_t)p->nnames;
    p->names[p->nnames] = (int32_t)p->names_bytes;
    memcpy(p->names_text + p->names_bytes, text, length);
    p->names_text[p->names_bytes + length] = '\0';
    p->names_bytes += length + 1;
    return (int32_t)p->nnames++;
}

/* Whether a value, a parameter or a size has the name. */
static bool name_is_used(const struct program *p, int32_t name)
{
    bool used = p->name == name;

    for (uint32_t i = 0; i < p->nnodes; i++)
        used |= p->nodes[i].name == name;
    for (uint32_t i = 0; i < p->nparameters; i++)
        used |= p->parameters[i].name == name;
    for (uint32_t i = 0; i < p->nsymbols; i++)
        used |= p->symbols[i].name == name;
    return used;
}

int32_t name_fresh(struct program *p, int32_t stem, const char *ending)
{
    char text[PROGRAM_NAME_MAX + 1];

    for (unsigned i = 1; i <= PROGRAM_OPERATIONS_MAX * 2; i++) {
        char number[16] = "";
        if (i > 1)
            (void)snprintf(number, sizeof(number), "%u", i);
        (void)snprintf(text, sizeof(text), "%.40s_%.6s%s", stem >= 0 ? program_name_of(p, stem) : "value", ending, number);
        const int32_t name = name_get(p, text, strlen(text));
        if (name < 0 || !name_is_used(p, name))
            return name;
    }
    return -1;
}

int32_t statement_by_name(const struct program *p, int32_t name)
{
    for (int32_t i = (int32_t)p->nnodes - 1; i >= 0; i--) {
        const struct node *n = &p->nodes[i];
        if (n->name == name || (n->op == OP_UPDATE && p->parameters[n->parameter].name == name))
            return i;
    }
    return -1;
}

int statement_missing(const struct program *p, int32_t name, struct error *e)
{
    char names[320] = "";
    size_t n = 0;

    for (uint32_t i = 0; i < p->nnodes; i++) {
        const struct node *node = &p->nodes[i];
        if (!node_is_statement(node))
            continue;
        if (n > sizeof(names) - PROGRAM_NAME_MAX - 8) {
            (void)snprintf(names + n, sizeof(names) - n, ", ...");
            break;
        }
        n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", n ? ", " : "",
                              program_name_of(p, node->op == OP_UPDATE ? p->parameters[node->parameter].name : node->name));
    }
    return program_fail(e, 0, 0, "`%s`: no statement has this name: allowed are %s", program_name_of(p, name), names);
}

/* ---- operations ---- */

int32_t node_add(struct program *p, enum operation op, int32_t line, int32_t column, struct error *e)
{
    if (p->nnodes == PROGRAM_OPERATIONS_MAX) {
        (void)program_fail(e, line, column, "the program has more than %u operations: allowed are at most so many",
                           PROGRAM_OPERATIONS_MAX);
        return -1;
    }
    if (!room_for((void **)&p->nodes, p->nnodes, &p->nodes_capacity, sizeof(*p->nodes))) {
        (void)program_no_memory(e);
        return -1;
    }
    p->nodes[p->nnodes] = (struct node){.op = (uint8_t)op,
                                        .line = line,
                                        .column = column,
                                        .name = -1,
                                        .arg = {-1, -1, -1, -1},
                                        .parameter = -1,
                                        .group = -1,
                                        .statement = -1};
    return (int32_t)p->nnodes++;
}

uint32_t *uses_count(const struct program *p)
{
    uint32_t *uses = calloc(p->nnodes ? p->nnodes : 1, sizeof(*uses));

    for (uint32_t i = 0; uses && i < p->nnodes; i++)
        for (int a = 0; a < node_spec(&p->nodes[i])->arguments; a++)
            uses[p->nodes[i].arg[a]]++;
    return uses;
}

const char *node_text(const struct program *p, int32_t node, char out[96])
{
    const struct node *n = &p->nodes[node];

    if (n->parameter >= 0)
        (void)snprintf(out, 96, "`%s`", program_name_of(p, p->parameters[n->parameter].name));
    else if (n->name >= 0)
        (void)snprintf(out, 96, "`%s`", program_name_of(p, n->name));
    else
        (void)snprintf(out, 96, "the result of %s (line %d)", operation_specs[n->op].name, n->line);
    return out;
}

/* ---- the whole ---- */

void program_free(struct program *p)
{
    if (!p)
        return;
    free(p->names_text);
    free(p->names);
    free(p->hash);
    free(p->nodes);
    free(p->parameters);
    free(p->directives);
    free(p->directive_names);
    free(p->groups);
    free(p->overlaps);
    free(p->chunks);
    free(p);
}

static void *bytes_copy(const void *from, size_t bytes, bool *whole)
{
    void *to = malloc(bytes ? bytes : 1);

    if (to && bytes)
        memcpy(to, from, bytes);
    *whole &= to != NULL;
    return to;
}

struct program *program_copy(const struct program *from)
{
    struct program *p = malloc(sizeof(*p));
    bool whole = true;

    if (!p)
        return NULL;
    *p = *from;
    p->names_room = p->names_bytes;
    p->names_capacity = p->nnames;
    p->nodes_capacity = p->nnodes;
    p->directive_names_capacity = p->ndirective_names;
    p->names_text = bytes_copy(from->names_text, from->names_bytes, &whole);
    p->names = bytes_copy(from->names, from->nnames * sizeof(*p->names), &whole);
    p->hash = bytes_copy(from->hash, from->hash_size * sizeof(*p->hash), &whole);
    p->nodes = bytes_copy(from->nodes, from->nnodes * sizeof(*p->nodes), &whole);
    p->parameters = bytes_copy(from->parameters, from->nparameters * sizeof(*p->parameters), &whole);
    p->directives = bytes_copy(from->directives, from->ndirectives * sizeof(*p->directives), &whole);
    p->directive_names = bytes_copy(from->directive_names, from->ndirective_names * sizeof(*p->directive_names), &whole);
    p->groups = bytes_copy(from->groups, from->ngroups * sizeof(*p->groups), &whole);
    p->overlaps = bytes_copy(from->overlaps, from->noverlaps * sizeof(*p->overlaps), &whole);
    p->chunks = bytes_copy(from->chunks, from->nchunks * sizeof(*p->chunks), &whole);
    if (!whole) {
        program_free(p);
        return NULL;
    }
    return p;
}

bool program_equal(const struct program *a, const struct program *b)
{
    char *text_a = program_print(a), *text_b = program_print(b);
    const bool equal = text_a && text_b && strcmp(text_a, text_b) == 0;

    free(text_a);
    free(text_b);
    return equal;
}
