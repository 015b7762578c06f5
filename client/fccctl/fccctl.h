/* SPDX-License-Identifier: MIT
 *
 * fccctl.h - shared by the verbs of fccctl: calls, options, exit codes.
 */
#ifndef FCC_CLIENT_FCCCTL_FCCCTL_H
#define FCC_CLIENT_FCCCTL_FCCCTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum exit_code { EXIT_WELL = 0, EXIT_UNWELL = 1, EXIT_USAGE = 2, EXIT_UNREACHABLE = 3 };

struct verb;

/* One call of a verb. */
struct call {
    const struct verb *verb;
    int argc; /* argv[0] is the verb */
    char **argv;
    const char *socket; /* --socket, or $FCCD_SOCKET, or the default */
    bool json;
    /* The fields from here on are set by args_parse(). */
    int noperands;
    char **operands; /* arguments that are not options */
    int exit;        /* the exit code, if args_parse() returned false */
};

/* One row of the table of verbs. --help prints this and the verb's options. */
struct verb {
    const char *name;
    int (*run)(struct call *call); /* returns an exit_code */
    const char *summary;           /* one line */
    const char *usage;             /* the arguments after "fccctl NAME" */
};

int verb_abort(struct call *call);
int verb_bench(struct call *call);
int verb_comms(struct call *call);
int verb_devices(struct call *call);
int verb_doctor(struct call *call);
int verb_drain(struct call *call);
int verb_flight(struct call *call);
int verb_metrics(struct call *call);
int verb_nodes(struct call *call);
int verb_ping(struct call *call);
int verb_plan(struct call *call);
int verb_program(struct call *call);
int verb_report(struct call *call);
int verb_simulate(struct call *call);
int verb_status(struct call *call);
int verb_trace(struct call *call);
int verb_track(struct call *call);
int verb_tune(struct call *call);
int verb_version(struct call *call);

enum arg_kind {
    ARG_FLAG,   /* target: bool */
    ARG_INT,    /* target: int64_t, from min to max */
    ARG_NUMBER, /* target: double, from min to max */
    ARG_TEXT,   /* target: const char *, not empty */
    ARG_CHOICE, /* target: int, the index in choices */
};

/* One option of a verb. Every verb also has `--socket`, `--json` and `--help`. */
struct arg {
    const char *name;
    char letter; /* the short option; 0: none */
    enum arg_kind kind;
    void *target;
    int64_t min, max;
    const char *const *choices; /* NULL-terminated */
    const char *value;          /* the value's name for --help; NULL for a flag */
    const char *help;
};

/* Parses the call's arguments; at most max_operands may be operands. Returns false after printing --help or an error: then the
 * verb returns call->exit. */
bool args_parse(struct call *call, const struct arg *args, size_t nargs, int max_operands);

/* Prints "fccctl VERB: ..." to stderr; with EXIT_USAGE also a hint at --help. Returns code. */
int verb_error(const struct call *call, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
