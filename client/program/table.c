/* SPDX-License-Identifier: MIT
 *
 * table.c - parameters that are many tensors: how long these are, and where they lie.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/program/program.h"

int fcc_program_table(fcc_program *p, const int64_t elements[], int n)
{
    if (!p || !elements)
        return last_error_set(-EINVAL, "%s: NULL: not allowed", p ? "elements" : "program");
    const struct program *q = p->program;
    int64_t at = 0;
    if (q->tensors < 0 || n != q->tensors)
        return last_error_set(
            -EINVAL, "rank %d: program `%s`: a table of %d tensors: %s %" PRId64, p->comm->rank, program_name_of(q, q->name), n,
            q->tensors < 0 ? "none of its tensors is scattered:" : "allowed are", q->tensors < 0 ? 0 : q->tensors);
    int64_t *begins = calloc((size_t)n + 1, sizeof(*begins));
    if (!begins)
        return last_error_set(-ENOMEM, "out of memory");
    for (int i = 0; i < n && at >= 0; i++) {
        begins[i] = at;
        at = elements[i] < 0 || elements[i] > q->tensor_elements - at ? -1 : at + elements[i];
    }
    if (at != q->tensor_elements) {
        free(begins);
        return last_error_set(-EINVAL,
                              "rank %d: program `%s`: elements of its table: allowed are 0 and more, together %" PRId64,
                              p->comm->rank, program_name_of(q, q->name), q->tensor_elements);
    }
    begins[n] = at;
    const bool same = p->begins && memcmp(p->begins, begins, ((size_t)n + 1) * sizeof(*begins)) == 0;
    for (uint32_t i = 0; i < q->nparameters && !same; i++) {
        if (p->places[i])
            p->tensors[i] = (struct fcc_tensor){.buffer = NULL};
        free(p->places[i]);
        p->places[i] = NULL;
    }
    free(p->begins);
    p->begins = begins;
    p->is_moved |= !same;
    for (uint32_t i = 0; i < p->steps.nsteps; i++)
        step_begins_set(&p->steps.steps[i], begins);
    return 0;
}

/* A tensor of the table, as it is sorted by its place. */
struct piece {
    uint64_t at, end;
    int index;
};

static int piece_order(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;

    return x->at < y->at ? -1 : x->at > y->at ? 1 : (x->end > y->end) - (x->end < y->end);
}

/* What is wrong with one of the tensors, or 0. *buffer: of those before. */
static int piece_check(const struct fcc_program *p, const char *name, const struct value *v, const struct fcc_tensor *t, int i,
                       fcc_buffer **buffer)
{
    const int64_t needed = p->begins[i + 1] - p->begins[i], n = t->ndim <= FCC_MAX_DIMS ? dense_elements(t) : -1;

    if (n < 0 || t->dtype != v->dtype || n != needed)
        return last_error_set(-EINVAL,
                              "rank %d: program: `%s`: tensor %d: dtype %u, %" PRId64
                              " elements: allowed is a dense one, %s, %" PRId64 " elements",
                              p->comm->rank, name, i, t->dtype, n, value_dtype_name(v->dtype), needed);
    if (n == 0)
        return 0;
    if (!t->buffer || (*buffer && *buffer != t->buffer) || t->offset % fcc_dtype_size((enum fcc_dtype)v->dtype))
        return last_error_set(-EINVAL, "rank %d: program: `%s`: tensor %d: %s", p->comm->rank, name, i,
                              !t->buffer ? "no buffer: not allowed"
                              : *buffer && *buffer != t->buffer
                                  ? "another buffer than the tensors before it: allowed is one for all of a parameter"
                                  : "its offset: allowed are multiples of an element's size");
    *buffer = t->buffer;
    return 0;
}

/* The tensors lie apart, in [*begin, *end) of their buffer. */
static int pieces_check(const struct fcc_program *p, const char *name, struct piece pieces[], int n, uint64_t *begin,
                        uint64_t *end)
{
    qsort(pieces, (size_t)n, sizeof(*pieces), piece_order);
    *begin = n ? pieces[0].at : 0;
    *end = n ? pieces[n - 1].end : 0;
    for (int i = 1; i < n; i++)
        if (pieces[i].at < pieces[i - 1].end)
            return last_error_set(-EINVAL, "rank %d: program: `%s`: tensors %d and %d overlap: allowed are such that lie apart",
                                  p->comm->rank, name, pieces[i - 1].index, pieces[i].index);
    return 0;
}

static int places_set(struct fcc_program *p, int parameter, const struct fcc_tensor tensors[], struct piece pieces[],
                      int64_t *places)
{
    const struct value *v = &p->program->parameters[parameter].value;
    const char *name = program_name_of(p->program, p->program->parameters[parameter].name);
    const size_t size = fcc_dtype_size((enum fcc_dtype)v->dtype);
    fcc_buffer *buffer = NULL;
    uint64_t begin, end;
    int n = 0;

    assert(size > 0);
    for (int i = 0; i < p->program->tensors; i++) {
        if (piece_check(p, name, v, &tensors[i], i, &buffer))
            return -EINVAL;
        const uint64_t bytes = (uint64_t)(p->begins[i + 1] - p->begins[i]) * size;
        if (bytes)
            pieces[n++] = (struct piece){tensors[i].offset, tensors[i].offset + bytes, i};
    }
    if (!buffer)
        return last_error_set(-EINVAL, "rank %d: program: `%s`: tensors without elements: allowed is fcc_program_tensor()",
                              p->comm->rank, name);
    if (pieces_check(p, name, pieces, n, &begin, &end))
        return -EINVAL;
    for (int i = 0; i < p->program->tensors; i++) {
        places[i] = p->begins[i + 1] == p->begins[i] ? 0 : (int64_t)((tensors[i].offset - begin) / size);
    }
    p->tensors[parameter] = fcc_tensor_1d(buffer, begin, (enum fcc_dtype)v->dtype, (int64_t)((end - begin) / size));
    return 0;
}

int fcc_program_tensors(fcc_program *p, const char *name, const struct fcc_tensor tensors[], int n)
{
    if (!p || !tensors)
        return last_error_set(-EINVAL, "%s: NULL: not allowed", p ? "tensors" : "program");
    const int i = program_parameter(p, name);
    if (i < 0)
        return i;
    const struct value *v = &p->program->parameters[i].value;
    if (v->table != TABLE_OF_ELEMENTS || v->layout == LAYOUT_SLICED)
        return last_error_set(-EINVAL, "rank %d: program: `%s`: %s: allowed is fcc_program_tensor()", p->comm->rank, name,
                              v->table ? "slices of scattered tensors" : "not scattered");
    if (!p->begins || n != p->program->tensors)
        return last_error_set(-EINVAL, "rank %d: program: `%s`: %d tensors: allowed are %" PRId64 ", after fcc_program_table()",
                              p->comm->rank, name, n, p->program->tensors);
    struct piece *pieces = calloc((size_t)n + 1, sizeof(*pieces));
    int64_t *places = calloc((size_t)n + 1, sizeof(*places));
    const struct fcc_tensor was = p->tensors[i];
    const int status = pieces && places ? places_set(p, i, tensors, pieces, places) : last_error_set(-ENOMEM, "out of memory");
    free(pieces);
    if (status) {
        free(places);
        return status;
    }
    p->is_moved |= !places || !p->places[i] || was.buffer != p->tensors[i].buffer || was.offset != p->tensors[i].offset ||
                   memcmp(places, p->places[i], (size_t)n * sizeof(*places)) != 0;
    free(p->places[i]);
    p->places[i] = places;
    return 0;
}
