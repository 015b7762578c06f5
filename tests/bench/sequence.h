/* SPDX-License-Identifier: MIT
 *
 * sequence.h - what `fccctl bench` measures, done the usual way: compute everything, then let Open MPI communicate it.
 *
 * mpi_sequence.c parses, measures and reports; mpi_operators.c has the operators, some of them in several variants, of which
 * the fastest one counts. Options, shapes, inputs and the check of results are those of fccctl bench (client/fccctl/).
 */
#ifndef FCC_SEQUENCE_H
#define FCC_SEQUENCE_H

#include <mpi.h>

#include "client/fccctl/bench/bench.h"
#include "kernels/cpu/execute.h"

#define SEQUENCE_VARIANTS 4

struct sequence;

struct variant {
    const char *name;
    void (*compute)(struct sequence *s);     /* NULL: nothing to compute */
    void (*communicate)(struct sequence *s); /* then the result is in s->out */
    bool gathers;                            /* communicates first, and computes then */
};

/* One rank's problem and memory. */
struct sequence {
    struct bench bench; /* shape, iters, warmup, check, json */
    int rank, nranks;
    struct variant variants[SEQUENCE_VARIANTS];
    int nvariants;

    float *x, *w;               /* gemv: x and w; gemm: a and b; embedding: w is the tables */
    void *indices, *offsets;    /* embedding */
    float *computed, *received; /* what is sent, in the order of the ranks; what comes, in the order of the ranks */
    float *out;
    size_t out_elements;
    int send_counts[FCC_MAX_RANKS], send_starts[FCC_MAX_RANKS];       /* elements */
    int receive_counts[FCC_MAX_RANKS], receive_starts[FCC_MAX_RANKS]; /* elements */

    /* embedding: the daemon's own pooling, as a plan that only computes */
    struct problem *problem;
    struct op_args *args; /* [nranks], of which only the own one is filled in */
    int64_t *attrs;
    struct plan *plan;
    struct workgroup workgroup;
    int one_each[FCC_MAX_RANKS], send_bytes[FCC_MAX_RANKS], receive_bytes[FCC_MAX_RANKS];
    MPI_Datatype send_types[FCC_MAX_RANKS], receive_types[FCC_MAX_RANKS];
};

/* Allocate, fill the inputs and list the variants. What goes wrong ends the program. */
void sequence_setup(struct sequence *s);

/* The BLAS in use: its file and what it says of itself. Returns out. */
const char *sequence_blas(char *out, size_t room);

/* Print "mpi_sequence: rank R: ..." and end all ranks. */
void sequence_fail(const struct sequence *s, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));

#endif
