/* SPDX-License-Identifier: MIT
 *
 * operator_bed.h - a rank's buffers for the cases of operator_cases.h, and how its results are compared.
 */
#ifndef FCC_TEST_OPERATOR_BED_H
#define FCC_TEST_OPERATOR_BED_H

#include <stdlib.h>
#include <string.h>

#include "tests/bed/harness.h"
#include "tests/bed/value.h"
#include "tests/demo/reference.h"

#define ELEMENTS_MAX 16384
#define RANKS 8
#define DTYPES 3

static const struct type {
    enum fcc_dtype fcc;
    enum reference_type reference;
    size_t size;
} types[DTYPES] = {{FCC_F32, REFERENCE_F32, 4}, {FCC_F16, REFERENCE_F16, 2}, {FCC_BF16, REFERENCE_BF16, 2}};

/* A buffer, and an image of it in host memory. */
struct array {
    fcc_buffer *buffer;
    unsigned char *host;
};

/* One rank with buffers that all its cases use. */
struct bed {
    fcc_comm *comm;
    int rank, n, first; /* first: of the ranks that share memory */
    size_t dtypes;
    struct array in[3], out;
    double *expected;
    unsigned char *shared; /* ELEMENTS_MAX * 4 bytes: the first one's result, for the others to compare bits with */
};

static int array_alloc(fcc_comm *comm, enum fcc_buffer_kind kind, size_t bytes, struct array *out)
{
    out->host = malloc(bytes);
    CHECK(out->host != NULL);
    return fcc_buffer_alloc(comm, kind, bytes, &out->buffer);
}

/* Its first bytes, from the image to the device. */
static void array_send(const struct array *a, size_t bytes)
{
    OK(fcc_buffer_write(a->buffer, 0, a->host, bytes));
}

static void array_fetch(struct array *a, size_t bytes)
{
    OK(fcc_buffer_read(a->buffer, 0, a->host, bytes));
}

static void fill(const struct type *t, const struct array *a, unsigned seed, int64_t n)
{
    CHECK(n <= ELEMENTS_MAX);
    for (int64_t i = 0; i < n; i++)
        value_store(t->fcc, a->host, i, value(seed, i));
    array_send(a, (size_t)n * t->size);
}

/* Every byte 0xff: a NaN in all dtypes, and so an error unless it is overwritten. */
static void poison(const struct array *a)
{
    memset(a->host, 0xff, fcc_buffer_size(a->buffer));
    array_send(a, fcc_buffer_size(a->buffer));
}

/* Fetches the result. */
static void compare(struct bed *bed, const struct type *t, int64_t n, const char *what, int c)
{
    int64_t first = 0;
    array_fetch(&bed->out, (size_t)n * t->size);
    int64_t wrong = reference_compare(t->reference, bed->out.host, bed->expected, n, &first);
    if (wrong)
        check_failed(__FILE__, __LINE__,
                     "%s, case %d, rank %d of %d, dtype %d: %ld of %ld wrong, first [%ld] = %g, expected %g", what, c,
                     bed->rank, bed->n, (int)t->fcc, (long)wrong, (long)n, (long)first,
                     reference_element(t->reference, bed->out.host, first), bed->expected[first]);
}

#endif
