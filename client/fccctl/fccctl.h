/* SPDX-License-Identifier: MIT
 *
 * fccctl.h - what the verbs of fccctl share: how one is called, its options, its exit codes.
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
    /* set by args_parse(): */
    int noperands;
    char **operands; /* what is not an option */
    int exit;        /* the exit code, if the verb must not go on */
};

/* One row of the table of verbs. The text of --help is made of this and of the verb's options. */
struct verb {
    const char *name;
    int (*run)(struct call *call); /* an exit_code */
    const char *summary;           /* one line */
    const char *usage;             /* what follows "fccctl NAME" */
};

int verb_abort(struct call *call);
int verb_bench(struct call *call);
int verb_comms(struct call *call);
int verb_devices(struct call *call);
int verb_doctor(struct call *call);
int verb_nodes(struct call *call);
int verb_ping(struct call *call);
int verb_plan(struct call *call);
int verb_status(struct call *call);
int verb_trace(struct call *call);
int verb_version(struct call *call);

enum arg_kind {
    ARG_FLAG,   /* target: bool */
    ARG_INT,    /* target: int64_t, from min to max */
    ARG_NUMBER, /* target: double, from min to max */
    ARG_TEXT,   /* target: const char *, not empty */
    ARG_CHOICE, /* target: int, the index in choices */
};

/* One option. `--socket`, `--json` and `--help` are added to every verb's. */
struct arg {
    const char *name;
    char letter; /* or 0 */
    enum arg_kind kind;
    void *target;
    int64_t min, max;
    const char *const *choices; /* NULL-terminated */
    const char *value;          /* what --help calls the value; NULL for a flag */
    const char *help;
};

/* Parse the call's arguments, of which at most max_operands are operands. True: go on. False: return call->exit, --help or what
 * is wrong has been printed. */
bool args_parse(struct call *call, const struct arg *args, size_t nargs, int max_operands);

/* "fccctl VERB: ..." and a hint at --help on stderr; returns EXIT_USAGE. */
int usage_error(const struct call *call, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "fccctl VERB: ..." on stderr; returns code. */
int verb_error(const struct call *call, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
