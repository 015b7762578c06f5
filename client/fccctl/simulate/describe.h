/* SPDX-License-Identifier: MIT
 *
 * describe.h - descriptions of machines and workloads: JSON with units, read and checked. Errors have the file, the line and the key.
 */
#ifndef FCC_CLIENT_FCCCTL_SIMULATE_DESCRIBE_H
#define FCC_CLIENT_FCCCTL_SIMULATE_DESCRIBE_H

#include "client/fccctl/bench/shape.h"
#include "kernels/sim/sim.h"

#define DESCRIBED_MAX 4096          /* operators, repeated ones counted each */
#define DESCRIPTION_BYTES (1 << 20) /* of a file */
#define CABLES_MAX 16384

/* One operator as it is described. */
struct described {
    struct sim_operator op; /* after: of entries; problem: made when it is run */
    enum fcc_op number;     /* FCC_OP_COUNT: each rank computes by itself */
    enum fcc_dtype dtype;
    struct {
        const char *name; /* of a size of the shape */
        int64_t value;
    } sizes[10];
    int nsizes, repeat, line;
    bool sequential_too; /* its schedule is not said: both are compared */
};
#define DESCRIPTION_NAME 128
struct description {
    char name[DESCRIPTION_NAME]; /* what it describes; "": it does not say */
    uint64_t seed;
    struct sim_machine machine;
    struct described *operators; /* sorted such that each comes after those that it waits for */
    int noperators;
};

/* Reads a text; `name` is what errors call it. 0 and *out, to be freed with description_free(); -EINVAL, -ENOMEM. */
int description_parse(const char *text, size_t length, const char *name, struct description *out, struct error *e);
/* Reads a file whose key "machine" may name another file, relative to it. */
int description_read(const char *path, struct description *out, struct error *e);
void description_free(struct description *d);

/* Numbers with units, as descriptions have them. 0, or -EINVAL with what is wrong. */
enum unit_kind { UNIT_RATE, UNIT_FLOPS_RATE, UNIT_TIME, UNIT_BYTES, UNIT_FLOPS, UNIT_PART };
int unit_parse(const char *text, enum unit_kind kind, double *out, struct error *e);
/* A value of four digits or more with the unit that another text has, or the usual one. unit_parse() reads it. */
struct words unit_text(double value, enum unit_kind kind, const char *like);

/* ---- places.c: the line of a value in a text that is known to be JSON ---- */

/* A value's place: the key or index in the object or array that `up` is the place of. */
struct place {
    const struct place *up;
    const char *key; /* NULL: an element of an array */
    size_t index;
};
int place_line(const char *text, const struct place *place);
/* The line of a key that an object has twice, and that key; 0: there is none. */
int places_twice(const char *text, char key[64]);
struct words place_text(const struct place *place); /* "workload[2].name" */

#endif
