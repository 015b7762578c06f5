/* SPDX-License-Identifier: MIT
 *
 * fit.h - descriptions fitted to measurements: what was measured, what of a machine may be fitted, and the search.
 *
 * measured.c reads what `fccctl bench --json` and tests/bench/compare_gpu have written. parameters.c has the rates and times of a machine that may be
 * fitted. fit.c is the search, of numbers alone. calibrate.c joins them: it is what `fccctl simulate --fit` and `--compare` do.
 */
#ifndef FCC_CLIENT_FCCCTL_SIMULATE_FIT_H
#define FCC_CLIENT_FCCCTL_SIMULATE_FIT_H

#include "client/fccctl/simulate/simulate.h"

struct json_object;

/* ---- measured.c ---- */

#define MEASURED_MAX 4096
#define MEASURED_BYTES (16u << 20) /* of a file */
#define MANNER_MAX 80

/* One time: one schedule of one shape. */
struct measured {
    struct described entry;
    const char *file, *schedule; /* not owned; schedule: as bench calls it */
    int line, ranks, nodes;
    double seconds;
    double spread; /* how far apart the quartiles of several rounds are, as a part of it; less than 0: not known */
};
struct measurements {
    struct measured *rows;
    int n, room;
    int left_out;            /* times that no simulation says anything about: auto, any order, what is no operator */
    char manner[MANNER_MAX]; /* how all were launched: one after the other, or on a stream; "": nothing has been read */
};
/* Adds what a file has, and checks it against the machine. `path` must outlive *all. 0, or an error that names the file and the line. */
int measured_read(const char *path, const struct sim_machine *m, struct measurements *all, struct error *e);
/* The same of a text. */
int measured_parse(const char *text, size_t length, const char *name, const struct sim_machine *m, struct measurements *all,
                   struct error *e);
void measurements_free(struct measurements *all);
/* The machine that a measurement was made on: as described, with as many nodes and ranks. */
struct sim_machine measured_machine(const struct sim_machine *m, const struct measured *w);
struct words measured_sizes(const struct measured *w); /* "m 1 n 4096 k 4096" */

/* ---- parameters.c ---- */

#define PARAMETERS_MAX 34
enum fit_group {
    FIT_TIMES,
    FIT_BYTES,
    FIT_FLOPS,
    FIT_GROUPS
}; /* what is like each other: rates of memory and links, of computing */

/* The i-th rate or time that may be fitted: "device.rates.gemm"; NULL: there are no more. */
const char *parameter_name(int i);
double *parameter_at(struct sim_machine *m, int i);
/* Within which factor of what is described it is looked for. */
double parameter_reach(int i, double value); /* a part of something is never more than all of it */
enum fit_group parameter_group(int i);
/* A value as a description has it, of four digits, in the unit that the description has. `machine`: its JSON. */
struct words parameter_text(struct json_object *machine, int i, double value);
/* What parameter_text() writes, read again. */
double parameter_rounded(struct json_object *machine, int i, double value);
/* Puts it into the description. */
void parameter_put(struct json_object *machine, int i, double value);

/* ---- fit.c ---- */

enum fit_state {
    FIT_HELD,    /* it was asked for, or there is nothing to fit */
    FIT_FITTED,  /* the times say what it is */
    FIT_UNSEEN,  /* no time depends on it */
    FIT_SHADOWED /* times depend on it as on another one, which was fitted */
};
struct fit_parameter {
    double value, reach; /* more than 0; it stays within value / reach and value * reach */
    enum fit_group group;
    bool hold;
    /* What comes out */
    double fitted;
    enum fit_state state;
    int shadow;   /* SHADOWED: by which one */
    double error; /* FITTED: its standard error, as a part of it */
};
struct fit {
    int n, p;                /* times, parameters */
    const double *seconds;   /* [n] measured */
    const double *spread;    /* [n] how far apart the rounds of each are, as a part of it; less than 0: not known */
    struct fit_parameter *q; /* [p] */
    /* Simulates all times at `many` points of p values each, into out[many][n]. 0 or a negative errno */
    int (*simulate)(void *context, const double *points, int many, double *out);
    void *context;
    int rounds; /* how many all searches took */
};
/* Least squares of the logarithms of simulated by measured times. Those whose rounds are far apart count less, and so do those that are far off (Huber). 0, what `simulate` returned, -ENOMEM;
 * -ERANGE: there are not more times than parameters that they depend on, which `rounds` then counts. */
int fit_do(struct fit *f);

/* ---- calibrate.c ---- */

struct calibrate_options {
    const char *fit, *hold; /* NULL: not asked for */
    bool split;
    int64_t seed, jobs;
};
/* Compares, and fits if asked. Returns an exit code. */
int calibrate(const struct call *call, const struct calibrate_options *o, const atomic_bool *stop);

#endif
