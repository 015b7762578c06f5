/* SPDX-License-Identifier: MIT
 *
 * args.c - a verb's options. One table serves both getopt_long() and --help.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/fccctl/fccctl.h"
#include "client/fccctl/field.h"
#include "kernels/plan/spec.h"
#include "proto/base/error.h"

#define ARGS_MAX 40
#define HELP_COLUMNS 100

int verb_error(const struct call *call, int code, const char *format, ...)
{
    struct words w; /* parts may come from the daemon or from other users, so it is cleaned */
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(w.text, sizeof(w.text), format, ap);
    va_end(ap);
    (void)fprintf(stderr, "fccctl %s: %s\n", call->verb->name, text_clean(w.text));
    if (code == EXIT_USAGE)
        (void)fprintf(stderr, "'fccctl help %s' tells more.\n", call->verb->name);
    return code;
}

static void help_line(const struct arg *arg)
{
    struct words left = {""};

    if (arg->letter)
        words_add(&left, "-%c", arg->letter);
    if (arg->name)
        words_add(&left, "%s--%s", arg->letter ? ", " : "", arg->name);
    if (arg->value)
        words_add(&left, " %s", arg->value);
    printf("  %-32s %s\n", left.text, arg->help);
}

/* In lines that a terminal shows whole. */
static void operators_print(void)
{
    char operators[512], *rest;
    int column = printf("Operators:");

    (void)op_names(BIND_NEVER, ", ", operators, sizeof(operators));
    for (char *name = strtok_r(operators, " ", &rest); name; name = strtok_r(NULL, " ", &rest)) {
        if (column + (int)strlen(name) >= HELP_COLUMNS)
            column = printf("\n          ");
        column += printf(" %s", name);
    }
    printf("\n\n");
}

static void help_print(const struct verb *verb, const struct arg *args, size_t nargs)
{
    static const struct arg common[] = {
        {.name = "socket", .value = "PATH", .help = "where fccd listens [$FCCD_SOCKET, or /run/fccd/fccd.sock]"},
        {.name = "json", .help = "print JSON"},
        {.name = "help", .letter = 'h', .help = "print this"},
    };

    printf("usage: fccctl %s%s%s\n\n%s.\n\n", verb->name, *verb->usage ? " " : "", verb->usage, verb->summary);
    if (!strncmp(verb->usage, "OPERATOR", 8))
        operators_print();
    for (size_t i = 0; i < nargs; i++)
        help_line(&args[i]);
    for (size_t i = 0; i < sizeof(common) / sizeof(common[0]); i++)
        help_line(&common[i]);
}

static struct words arg_label(const struct arg *arg)
{
    return arg->name ? words("--%s", arg->name) : words("-%c", arg->letter);
}

static int set_choice(const struct call *call, const struct arg *arg, const char *text)
{
    struct words allowed = {""};

    for (int i = 0; arg->choices[i]; i++) {
        if (strcmp(arg->choices[i], text) == 0) {
            *(int *)arg->target = i;
            return 0;
        }
        words_add(&allowed, "%s%s", i ? ", " : "", arg->choices[i]);
    }
    return verb_error(call, EXIT_USAGE, "%s: \"%s\": allowed are %s", arg_label(arg).text, text, allowed.text);
}

/* ARG_INT and ARG_NUMBER */
static int set_number(const struct call *call, const struct arg *arg, const char *text)
{
    char *end;
    bool is_int = arg->kind == ARG_INT;

    errno = 0;
    long long whole = is_int ? strtoll(text, &end, 10) : 0;
    double number = is_int ? (double)whole : strtod(text, &end);
    if (errno || end == text || *end || !(number >= (double)arg->min && number <= (double)arg->max))
        return verb_error(call, EXIT_USAGE, "%s: \"%s\": allowed are %snumbers from %" PRId64 " to %" PRId64,
                          arg_label(arg).text, text, is_int ? "whole " : "", arg->min, arg->max);
    if (is_int)
        *(int64_t *)arg->target = whole;
    else
        *(double *)arg->target = number;
    return 0;
}

/* Sets an option's target. Returns 0 or EXIT_USAGE. */
static int arg_set(const struct call *call, const struct arg *arg, const char *text)
{
    switch (arg->kind) {
    case ARG_FLAG:
        *(bool *)arg->target = true;
        return 0;
    case ARG_INT:
    case ARG_NUMBER:
        return set_number(call, arg, text);
    case ARG_TEXT:
        if (!*text)
            return verb_error(call, EXIT_USAGE, "%s: must not be empty", arg_label(arg).text);
        *(const char **)arg->target = text;
        return 0;
    case ARG_CHOICE:
        return set_choice(call, arg, text);
    }
    return EXIT_USAGE;
}

enum { OPTION_SOCKET = 1000, OPTION_JSON, OPTION_ARGS };

/* Handles one option from getopt_long(). Returns true to go on. */
static bool option_take(struct call *call, const struct arg *args, size_t nargs, int option)
{
    switch (option) {
    case 'h':
        help_print(call->verb, args, nargs);
        call->exit = EXIT_WELL;
        return false;
    case OPTION_SOCKET:
        call->socket = optarg;
        return true;
    case OPTION_JSON:
        call->json = true;
        return true;
    case ':':
        call->exit = verb_error(call, EXIT_USAGE, "%s needs a value", call->argv[optind - 1]);
        return false;
    case '?':
        if (optopt && !strncmp(call->argv[optind - 1], "--", 2) && strchr(call->argv[optind - 1], '='))
            call->exit = verb_error(call, EXIT_USAGE, "%.*s takes no value", (int)strcspn(call->argv[optind - 1], "="),
                                    call->argv[optind - 1]);
        else if (optopt && optopt < 256)
            call->exit = verb_error(call, EXIT_USAGE, "-%c: no such option", optopt);
        else
            call->exit = verb_error(call, EXIT_USAGE, "%s: no such option", call->argv[optind - 1]);
        return false;
    default:
        break;
    }
    for (size_t i = 0; i < nargs; i++) {
        if (option == OPTION_ARGS + (int)i || (args[i].letter && option == args[i].letter)) {
            call->exit = arg_set(call, &args[i], optarg);
            return call->exit == 0;
        }
    }
    return false;
}

bool args_parse(struct call *call, const struct arg *args, size_t nargs, int max_operands)
{
    struct option longs[ARGS_MAX + 4] = {
        {"socket", required_argument, NULL, OPTION_SOCKET},
        {"json", no_argument, NULL, OPTION_JSON},
        {"help", no_argument, NULL, 'h'},
    };
    char shorts[2 * ARGS_MAX + 4] = ":h", *p = shorts + 2;
    size_t n = 3;
    int option;

    for (size_t i = 0; i < nargs && i < ARGS_MAX; i++) {
        int needs = args[i].kind == ARG_FLAG ? no_argument : required_argument;
        if (args[i].name)
            longs[n++] = (struct option){args[i].name, needs, NULL, OPTION_ARGS + (int)i};
        if (args[i].letter) {
            *p++ = args[i].letter;
            if (needs == required_argument)
                *p++ = ':';
        }
    }
    opterr = 0;
    optind = 0; /* restarts glibc's getopt_long() */
    while ((option = getopt_long(call->argc, call->argv, shorts, longs, NULL)) != -1) {
        if (!option_take(call, args, nargs, option))
            return false;
    }
    call->operands = call->argv + optind;
    call->noperands = call->argc - optind;
    if (call->noperands > max_operands) {
        call->exit = verb_error(call, EXIT_USAGE, "\"%s\": not expected here", call->operands[max_operands]);
        return false;
    }
    return true;
}
