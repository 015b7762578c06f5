/* SPDX-License-Identifier: MIT
 *
 * program_check.h - what a program makes of numbers of its tensors, element by element, against the same program in double precision
 * (tests/program/reference.h), which may be of smaller sizes: then each tensor is that of the smaller program again and again, and so are the results. That
 * holds for what is done element by element, and for norms where only their ratio counts, but not for dropout, which looks at an element's place.
 */
#ifndef FCC_BENCH_PROGRAM_CHECK_H
#define FCC_BENCH_PROGRAM_CHECK_H

#include <stdbool.h>
#include <stdio.h>

#include "kernels/plan/dtype.h"
#include "tests/bench/program_ranks.h"
#include "tests/program/reference.h"

enum { CHECK_PIECE = 1 << 16, CHECK_TEXT = 512 };

struct check {
    struct program *whole, *small;          /* the program that runs, and the one that is computed here */
    double *values[PROGRAM_PARAMETERS_MAX]; /* of `small`, before the run */
    double *want[PROGRAM_PARAMETERS_MAX];   /* ... and after it */
    double rms[PROGRAM_PARAMETERS_MAX];     /* of what is wanted */
    bool has_halves;                        /* a tensor has 16 bits for an element */
    bool compares;                          /* false: it only fills tensors */
};

/* What ranks find; shared by them. */
struct check_found {
    _Atomic int64_t elements, wrong;
    char first[CHECK_TEXT]; /* of the wrong ones, by the rank that finds one first */
};

static inline struct program *check_program(const char *text, size_t length, int ranks, const struct program_size sizes[],
                                            int n)
{
    struct program *p;
    struct error e = {.status = 0};

    if (program_parse(text, length, &p, &e) || program_bind(p, ranks, sizes, (size_t)n, &e) || program_schedule(p, &e)) {
        (void)fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
    return p;
}

/* Numbers that every dtype has: -2 to 2 in steps of 1/64, others in each tensor. Second moments (a tensor `v`) are far enough from 0. */
static inline double *check_values(const struct program *p, const struct parameter *t)
{
    const char *name = program_name_of(p, t->name);
    const size_t count = reference_count(p, &t->value);
    double *v = malloc((count + 1) * sizeof(*v));
    uint32_t x = 99;

    if (!v)
        exit(1);
    for (const char *c = name; *c; c++)
        x = x * 31 + (unsigned char)*c;
    for (size_t i = 0; i < count; i++) {
        x = x * 1664525u + 1013904223u;
        v[i] = (double)((int32_t)(x >> 24) - 128) / 64;
        v[i] = strcmp(name, "v") == 0 ? fabs(v[i]) + 0.5 : v[i];
    }
    return v;
}

static inline bool is_scalar(const struct parameter *t)
{
    return t->kind == PARAMETER_SCALAR;
}

/* Scalars are `values` by `names`; others are 0. */
static inline void check_scalars(struct check *c, char *const names[], char *const values[], int n)
{
    for (uint32_t i = 0; i < c->small->nparameters; i++) {
        if (!is_scalar(&c->small->parameters[i]))
            continue;
        c->values[i][0] = 0;
        for (int k = 0; k < n; k++)
            if (strcmp(names[k], program_name_of(c->small, c->small->parameters[i].name)) == 0)
                c->values[i][0] = atof(values[k]);
    }
}

/* The whole program is bound and its tensors are repetitions of the small one's. */
static inline void check_fits(const struct check *c)
{
    for (uint32_t i = 0; i < c->small->nparameters; i++) {
        const struct value *s = &c->small->parameters[i].value, *w = &c->whole->parameters[i].value;
        bool fits =
            is_scalar(&c->small->parameters[i]) || (value_elements(s) > 0 && value_elements(w) % value_elements(s) == 0);
        for (int d = 1; d < w->ndim && !is_scalar(&c->small->parameters[i]); d++)
            fits &= s->shape[d] == w->shape[d];
        if (fits)
            continue;
        (void)fprintf(stderr,
                      "`%s`: %lld elements are to be those of %lld again and again: allowed are sizes of which the first "
                      "dimension is a multiple\n",
                      program_name_of(c->small, c->small->parameters[i].name), (long long)value_elements(w),
                      (long long)value_elements(s));
        exit(2);
    }
}

/* The same of a text and both programs' sizes; and values for the tensors. */
static inline void check_make(struct check *c, const char *text, size_t length, int ranks, const struct program_size sizes[],
                              int n, const struct program_size small[], int nsmall)
{
    c->whole = check_program(text, length, ranks, sizes, n);
    c->small = check_program(text, length, ranks, small, nsmall);
    check_fits(c);
    for (uint32_t i = 0; i < c->small->nparameters; i++)
        c->values[i] = check_values(c->small, &c->small->parameters[i]);
}

/* Computes what is wanted; the values are there. */
static inline void check_compute(struct check *c)
{
    for (uint32_t i = 0; i < c->small->nparameters; i++) {
        const struct parameter *t = &c->small->parameters[i];
        const size_t count = reference_count(c->small, &t->value);
        c->want[i] = malloc((count + 1) * sizeof(double));
        if (!c->want[i])
            exit(1);
        memcpy(c->want[i], c->values[i], count * sizeof(double));
        c->has_halves |= !is_scalar(t) && fcc_dtype_size((enum fcc_dtype)t->value.dtype) == 2;
    }
    reference_run(c->small, c->want);
    for (uint32_t i = 0; i < c->small->nparameters; i++) {
        const size_t count = reference_count(c->small, &c->small->parameters[i].value);
        double squares = 0;
        for (size_t k = 0; k < count; k++)
            squares += c->want[i][k] * c->want[i][k];
        c->rms[i] = sqrt(squares / (double)(count + !count));
    }
}

/* Where `count` elements of the rank's part of a parameter, from `at` on, are among the small program's values. */
static inline void check_places(const struct check *c, uint32_t parameter, int rank, int64_t at, int64_t count,
                                int64_t places[])
{
    const struct value *w = &c->whole->parameters[parameter].value;
    const int64_t each = value_elements(&c->small->parameters[parameter].value);
    const bool local = w->layout == LAYOUT_LOCAL;

    if (w->layout == LAYOUT_SLICED && w->sliced > 0) {
        for (int64_t i = 0; i < count; i++)
            places[i] = reference_own(c->whole, w, rank, at + i) % each;
        return;
    }
    int64_t place = ((local ? 0 : reference_own(c->whole, w, rank, 0)) + at) % each;
    for (int64_t i = 0; i < count; i++, place = place + 1 == each ? 0 : place + 1)
        places[i] = (local ? rank * each : 0) + place;
}

static inline void check_fill(const struct check *c, uint32_t parameter, int rank, fcc_buffer *buffer)
{
    static float numbers[CHECK_PIECE];
    static unsigned char bytes[CHECK_PIECE * sizeof(float)];
    static int64_t places[CHECK_PIECE];
    const struct value *w = &c->whole->parameters[parameter].value;
    const int64_t n = value_elements_of(w, c->whole->nranks, rank);
    const size_t size = fcc_dtype_size((enum fcc_dtype)w->dtype);

    for (int64_t at = 0, count; at < n; at += count) {
        count = n - at < CHECK_PIECE ? n - at : CHECK_PIECE;
        check_places(c, parameter, rank, at, count, places);
        for (int64_t i = 0; i < count; i++)
            numbers[i] = (float)c->values[parameter][places[i]];
        dtype_from_f32(bytes, numbers, (enum fcc_dtype)w->dtype, (size_t)count);
        must(fcc_buffer_write(buffer, (uint64_t)at * size, bytes, (size_t)count * size));
    }
}

/* How far from what is wanted an element may be: by roundings of the dtype, of numbers as large as the tensor's are. */
static inline double check_allowed(const struct check *c, uint32_t parameter, double want)
{
    const bool half = fcc_dtype_size((enum fcc_dtype)c->whole->parameters[parameter].value.dtype) == 2;

    return (half ? 1e-2 : c->has_halves ? 2e-3 : 1e-4) * (1 + fabs(want) + c->rms[parameter]);
}

static inline void check_compare(const struct check *c, uint32_t parameter, int rank, const fcc_buffer *buffer,
                                 struct check_found *found)
{
    static float numbers[CHECK_PIECE];
    static unsigned char bytes[CHECK_PIECE * sizeof(float)];
    static int64_t places[CHECK_PIECE];
    const struct parameter *t = &c->whole->parameters[parameter];
    const int64_t n = value_elements_of(&t->value, c->whole->nranks, rank);
    const size_t size = fcc_dtype_size((enum fcc_dtype)t->value.dtype);

    for (int64_t at = 0, count; at < n; at += count) {
        count = n - at < CHECK_PIECE ? n - at : CHECK_PIECE;
        must(fcc_buffer_read(buffer, (uint64_t)at * size, bytes, (size_t)count * size));
        dtype_to_f32(numbers, bytes, (enum fcc_dtype)t->value.dtype, (size_t)count);
        check_places(c, parameter, rank, at, count, places);
        for (int64_t i = 0; i < count; i++) {
            const double want = c->want[parameter][places[i]];
            if (fabs((double)numbers[i] - want) <= check_allowed(c, parameter, want)) /* not so of NaN */
                continue;
            if (atomic_fetch_add(&found->wrong, 1) == 0)
                (void)snprintf(found->first, CHECK_TEXT, "rank %d: %s[%lld] is %.6g, and should be %.6g", rank,
                               program_name_of(c->whole, t->name), (long long)(at + i), (double)numbers[i], want);
        }
        (void)atomic_fetch_add(&found->elements, count);
    }
}

#endif
