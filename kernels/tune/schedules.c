/* SPDX-License-Identifier: MIT
 *
 * schedules.c - enumerates schedules: each all_reduce as it is, split, or split and reordered; parameters sliced as in the program as written; and
 * statements not fused, fused where they are pointwise, or fused with their exchanges, too. Groups are made greedily, each try checked by the
 * transformation itself. What the program as written does before it fuses is one of the ways.
 */
#include "kernels/tune/schedules.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REDUCES_MAX 3  /* all_reduces that are split each for itself; of more all or none */
#define TEXT_MAX 16384 /* bytes of a schedule */
#define MISSES_MAX 16  /* statements that may fail to join a group before it is closed */

enum { KEPT, SPLIT, REORDERED, WAYS };
enum fusing { FUSE_NOTHING, FUSE_POINTS, FUSE_ALL, FUSINGS };

struct making {
    const struct program *written; /* with its own schedule carried out */
    struct program *plain;         /* without a schedule */
    struct candidates *out;
    struct error *e;
};

static uint64_t hashed(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;

    for (size_t i = 0; i < n; i++)
        hash = (hash ^ at[i]) * UINT64_C(1099511628211); /* FNV-1a (Fowler, Noll, Vo) */
    return hash;
}
#define HASHED(hash, object) hashed((hash), &(object), sizeof(object))

static uint64_t steps_hash(const struct program_steps *s)
{
    uint64_t hash = 1469598103934665603u;

    for (uint32_t i = 0; i < s->nsteps; i++) {
        const struct program_step *step = &s->steps[i];
        const struct node *n = &s->program->nodes[step->node];
        hash = HASHED(hash, step->kind);
        hash = step->kind == STEP_OF_CODE ? hash : HASHED(hash, n->op);
        hash = HASHED(hash, step->in);
        hash = HASHED(hash, step->out);
        hash = HASHED(hash, step->b);
        hash = HASHED(hash, step->overlaps);
        hash = hashed(hash, step->t, (size_t)step->ntensors * sizeof(step->t[0]));
        hash = hashed(hash, step->words, step->nwords * sizeof(step->words[0]));
    }
    for (uint32_t i = 0; i < s->ntemporaries; i++)
        hash = HASHED(hash, s->temporaries[i].symmetric);
    return hash;
}

bool parameters_equal(const struct program *a, const struct program *b)
{
    bool equal = a->nparameters == b->nparameters;

    for (uint32_t i = 0; equal && i < a->nparameters; i++) {
        const struct value *v = &a->parameters[i].value, *w = &b->parameters[i].value;
        equal = v->dtype == w->dtype && v->layout == w->layout && v->ndim == w->ndim &&
                (v->layout != LAYOUT_SLICED || v->sliced == w->sliced) &&
                memcmp(v->shape, w->shape, (size_t)v->ndim * sizeof(v->shape[0])) == 0;
    }
    return equal;
}

int schedule_apply(struct program *p, const char *schedule, struct error *e)
{
    char *copy = strdup(schedule), *rest = copy;
    int status = copy ? 0 : error_set(e, -ENOMEM, "out of memory");

    p->ndirectives = p->ndirective_names = 0;
    for (char *one; status == 0 && (one = strsep(&rest, "\n"));)
        if (*one)
            status = program_transform(p, one, e);
    free(copy);
    return status;
}

char *schedule_text(const struct program *p)
{
    char *text = program_print(p), *at = text ? strstr(text, "\nschedule\n") : NULL, *out;

    if (!text)
        return NULL;
    out = strdup(at ? at + strlen("\nschedule\n") : "");
    free(text);
    return out;
}

char *text_with_schedule(const char *text, size_t length, const char *schedule)
{
    size_t end = length;
    char *out;

    for (size_t at = 0; at < length;) { /* the line that says only `schedule`: names cannot be that word */
        const char *line = text + at, *stop = memchr(line, '\n', length - at);
        const size_t n = stop ? (size_t)(stop - line) : length - at, blank = strspn(line, " \t");
        if (blank + 8 <= n && memcmp(line + blank, "schedule", 8) == 0 &&
            (blank + 8 == n || strchr(" \t\r#", line[blank + 8]))) {
            end = at;
            break;
        }
        at += n + 1;
    }
    if (asprintf(&out, "%.*s%sschedule\n%s", (int)end, text, end && text[end - 1] == '\n' ? "" : "\n", schedule) < 0)
        return NULL;
    return out;
}

/* Adds what a schedule makes, if it runs and nothing that runs the same is there. Takes `program` and nothing else; not an error if it does not run. */
static int candidate_add(struct making *m, const struct program *p, const char *schedule, bool must)
{
    struct program_steps steps;
    struct error why = {.status = 0};
    const int status = program_steps(p, &steps, &why);

    if (status)
        return must || status == -ENOMEM ? error_set(m->e, status, "%s", why.text) : 0;
    struct candidate c = {.work = steps_work(&steps), .steps = steps.nsteps, .runs = steps_hash(&steps)};
    program_steps_free(&steps);
    m->out->legal++;
    for (int i = 0; i < m->out->n; i++)
        if (m->out->candidate[i].runs == c.runs)
            return 0;
    if (m->out->n == CANDIDATES_MAX)
        return 0;
    c.schedule = strdup(schedule);
    if (!c.schedule)
        return error_set(m->e, -ENOMEM, "out of memory");
    m->out->candidate[m->out->n++] = c;
    return 0;
}

static const char *statement_name(const struct program *p, const struct node *n)
{
    return program_name_of(p, n->op == OP_UPDATE ? p->parameters[n->parameter].name : n->name);
}

/* Appends a statement to a schedule and carries it out; false: it is refused, or there is no room. */
static bool statement_try(struct program *p, char *schedule, const char *statement)
{
    const size_t used = strlen(schedule);

    if (used + strlen(statement) + 2 > TEXT_MAX || program_transform(p, statement, NULL))
        return false;
    (void)snprintf(schedule + used, TEXT_MAX - used, "%s\n", statement);
    return true;
}

static bool may_join(const struct program *p, int32_t i, enum fusing fusing)
{
    const struct node *n = &p->nodes[i];

    return node_is_statement(n) && n->group < 0 && n->value.dtype != DTYPE_PLAIN &&
           (fusing == FUSE_ALL || node_spec(n)->kind != OPERATION_EXCHANGE);
}

/* The group that begins with a statement, as `fuse a, b, ...` in `line`; false: nothing joins it. */
static bool group_grow(const struct program *p, int32_t first, enum fusing fusing, char line[TEXT_MAX])
{
    int members = 1, misses = 0;

    (void)snprintf(line, TEXT_MAX, "fuse %s", statement_name(p, &p->nodes[first]));
    for (int32_t i = first + 1; i < (int32_t)p->nnodes && misses < MISSES_MAX; i++) {
        if (!may_join(p, i, fusing))
            continue;
        const size_t used = strlen(line);
        struct program *tried = program_copy(p);
        (void)snprintf(line + used, TEXT_MAX - used, ", %s", statement_name(p, &p->nodes[i]));
        if (tried && used + 64 < TEXT_MAX && program_transform(tried, line, NULL) == 0) {
            members++;
        } else {
            line[used] = '\0';
            misses++;
        }
        program_free(tried);
    }
    return members > 1;
}

/* `overlap` of each statement whose pieces an exchange can have while later ones are made. False: there is none, or there is no room. */
static bool overlaps_try(struct program *p, char *schedule)
{
    char line[2 * PROGRAM_NAME_MAX + 16];
    bool any = false;

    for (int32_t i = 0; i < (int32_t)p->nnodes; i++) {
        const struct node *n = &p->nodes[i], *made = node_spec(n)->kind == OPERATION_EXCHANGE ? &p->nodes[n->arg[0]] : NULL;
        if (!made || (node_spec(made)->kind != OPERATION_PRODUCT && node_spec(made)->kind != OPERATION_LOOKUP) ||
            !node_is_statement(made))
            continue;
        (void)snprintf(line, sizeof(line), "overlap %s, %s", statement_name(p, made),
                       statement_name(p, &p->nodes[n->statement]));
        any |= statement_try(p, schedule, line);
    }
    return any;
}

/* Fuses what can be; a copy of `p` is added with the schedule. */
static int fused_add(struct making *m, const struct program *p, const char *before, enum fusing fusing)
{
    struct program *fused = program_copy(p);
    char *schedule = malloc(TEXT_MAX), *line = malloc(TEXT_MAX);
    const bool there = fused && schedule && line;
    int status = there ? 0 : error_set(m->e, -ENOMEM, "out of memory");

    if (there) {
        (void)snprintf(schedule, TEXT_MAX, "%s", before);
        for (int32_t i = 0; i < (int32_t)fused->nnodes && fusing != FUSE_NOTHING; i++)
            if (may_join(fused, i, fusing) && group_grow(fused, i, fusing, line) && statement_try(fused, schedule, line))
                i = -1; /* operations have moved */
        status = candidate_add(m, fused, schedule, false);
        if (status == 0 && overlaps_try(fused, schedule))
            status = candidate_add(m, fused, schedule, false);
    }
    program_free(fused);
    free(schedule);
    free(line);
    return status;
}

static int fusings_add(struct making *m, const struct program *p, const char *schedule)
{
    uint32_t statements = 0;
    int status = 0;

    if (!parameters_equal(p, m->written))
        return 0;
    for (uint32_t i = 0; i < p->nnodes; i++)
        statements += node_is_statement(&p->nodes[i]);
    for (int fusing = 0; fusing < FUSINGS && status == 0; fusing++)
        if (fusing == FUSE_NOTHING || statements <= TUNED_STATEMENTS_MAX)
            status = fused_add(m, p, schedule, (enum fusing)fusing);
    return status;
}

/* The statements of the schedule as written, of a verb or of all but fuse, overlap and chunk. */
static bool own_try(const struct making *m, struct program *p, char *schedule, bool slices_only)
{
    char *own = schedule_text(m->plain), *rest = own;
    bool all = own != NULL;

    for (char *one; all && (one = strsep(&rest, "\n"));) {
        const bool slice = strncmp(one, "as_slice ", 9) == 0,
                   moves = strncmp(one, "split ", 6) == 0 || strncmp(one, "reorder ", 8) == 0;
        if (slice || (moves && !slices_only))
            all = statement_try(p, schedule, one);
    }
    free(own);
    return all;
}

/* way: of each all_reduce by its digit in base WAYS; -1: as in the program as written. */
static int way_add(struct making *m, char *const reduces[], int n, int way)
{
    struct program *p = program_copy(m->plain);
    char *schedule = calloc(1, TEXT_MAX), line[2 * PROGRAM_NAME_MAX];
    const bool there = p && schedule;
    int status = there ? 0 : error_set(m->e, -ENOMEM, "out of memory"), digits = way;
    bool legal = true;

    if (there)
        p->ndirectives = p->ndirective_names = 0;
    for (int i = 0; there && i < n && way >= 0; i++, digits = n > REDUCES_MAX ? digits : digits / WAYS) {
        (void)snprintf(line, sizeof(line), "split %s", reduces[i]);
        legal &= digits % WAYS == KEPT || statement_try(p, schedule, line);
        (void)snprintf(line, sizeof(line), "reorder %s", reduces[i]);
        legal &= digits % WAYS != REORDERED || statement_try(p, schedule, line);
    }
    if (there && legal && own_try(m, p, schedule, way >= 0))
        status = fusings_add(m, p, schedule);
    program_free(p);
    free(schedule);
    return status;
}

static int ways_add(struct making *m)
{
    char *reduces[TUNED_STATEMENTS_MAX];
    int n = 0, ways = 1, status = way_add(m, NULL, 0, -1);

    for (uint32_t i = 0; i < m->plain->nnodes && n < TUNED_STATEMENTS_MAX; i++) {
        const struct node *node = &m->plain->nodes[i];
        if (node->op == OP_ALL_REDUCE && node->name >= 0)
            reduces[n++] = (char *)(uintptr_t)program_name_of(m->plain, node->name);
    }
    for (int i = 0; i < n && i < REDUCES_MAX; i++)
        ways *= WAYS;
    ways = n > REDUCES_MAX ? WAYS : ways;
    for (int way = 0; way < ways && status == 0; way++)
        status = way_add(m, reduces, n, way);
    return status;
}

int candidates_make(const struct program *p, struct candidates *out, struct error *e)
{
    struct program *written = program_copy(p), *plain = program_copy(p);
    struct making m = {.written = written, .plain = plain, .out = out, .e = e};
    char *own = schedule_text(p);
    const bool there = written && plain && own;
    int status = there ? 0 : error_set(e, -ENOMEM, "out of memory");

    *out = (struct candidates){.n = 0};
    if (there) {
        status = program_schedule(written, e);
        if (status == 0)
            status = candidate_add(&m, written, own, true);
        if (status == 0)
            status = ways_add(&m);
    }
    program_free(written);
    program_free(plain);
    free(own);
    if (status)
        candidates_free(out);
    return status;
}

void candidates_free(struct candidates *c)
{
    for (int i = 0; i < c->n; i++)
        free(c->candidate[i].schedule);
    c->n = 0;
}

uint64_t candidates_hash(const struct candidates *c)
{
    uint64_t hash = 1469598103934665603u;

    for (int i = 0; i < c->n; i++)
        hash = hashed(hash, c->candidate[i].schedule, strlen(c->candidate[i].schedule) + 1);
    return hash & ((UINT64_C(1) << 48) - 1); /* a double has it exactly */
}
