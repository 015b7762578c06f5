/* SPDX-License-Identifier: MIT
 *
 * program_verb.c - the verb program: checks a program's text, carries out its schedule, and says what runs.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/fccctl/fccctl.h"
#include "client/fccctl/field.h"
#include "client/fccctl/program_verb.h"
#include "kernels/generate/generate.h"

struct program_options {
    const char *sizes, *schedule;
    int64_t ranks;
    bool written, steps, code;
};

/* A file's text, to be freed; NULL with call->exit. */
char *program_file_read(struct call *call, const char *path, size_t *length)
{
    char *text = malloc(PROGRAM_TEXT_MAX + 2);
    FILE *f = text ? fopen(path, "r") : NULL;

    if (f)
        *length = fread(text, 1, PROGRAM_TEXT_MAX + 1, f);
    if (!f || ferror(f)) {
        call->exit = verb_error(call, EXIT_UNWELL, "%s: %s", path, strerror(text ? errno : ENOMEM));
        free(text);
        text = NULL;
    }
    if (f)
        (void)fclose(f);
    return text;
}

/* The sizes of `N=4,M=8`, whose names lie in `text` afterwards. */
bool program_sizes_parse(struct call *call, char *text, struct program_size sizes[PROGRAM_SIZES_MAX], size_t *n)
{
    for (char *rest = text, *one; (one = strsep(&rest, ","));) {
        char *value = strchr(one, '='), *end = NULL;
        errno = 0;
        const long long number = value ? strtoll(value + 1, &end, 10) : -1;
        if (!value || value == one || end == value + 1 || *end || errno || number < 0 || *n == PROGRAM_SIZES_MAX) {
            call->exit =
                verb_error(call, EXIT_USAGE, "-D: \"%s\": allowed are at most %u sizes as NAME=NUMBER, joined by commas", one,
                           PROGRAM_SIZES_MAX);
            return false;
        }
        *value = '\0';
        sizes[(*n)++] = (struct program_size){one, number};
    }
    return true;
}

static const char *kind_text(const struct program *p, const struct program_step *step)
{
    if (step->kind == STEP_OF_PRODUCT)
        return step->product == PRODUCT_ALONE     ? "matmul"
               : step->overlaps                   ? (step->product == PRODUCT_SCATTER ? "matmul + reduce_scatter, overlapped"
                                                                                      : "matmul + all_reduce, overlapped")
               : step->product == PRODUCT_SCATTER ? "matmul + reduce_scatter"
                                                  : "matmul + all_reduce";
    if (step->kind == STEP_OF_LOOKUP)
        return step->overlaps ? "embedding + all_to_all, overlapped" : "embedding + all_to_all";
    if (step->kind == STEP_OF_EXCHANGE)
        return operation_specs[p->nodes[step->node].op].name;
    return step->in.kind ? (step->out.kind ? "sum + elements + gather" : "sum + elements")
                         : (step->out.kind ? "elements + gather" : "elements");
}

static struct words place_text(const struct program_steps *s, const struct step_place *place)
{
    if (place->kind == PLACE_PARAMETER)
        return words("%s", program_name_of(s->program, s->program->parameters[place->index].name));
    return place->kind == PLACE_TEMPORARY ? words("temporary %d", place->index) : words("-");
}

static void steps_print(const struct program_steps *s)
{
    struct table *table = table_new(">STEP|>LINE|WHAT|FROM|TO|>INSTRUCTIONS");

    for (uint32_t i = 0; table && i < s->nsteps; i++) {
        const struct program_step *step = &s->steps[i];
        const struct code_head *head = (const struct code_head *)(const void *)step->words;
        table_cell(table, "%" PRIu32, i);
        table_cell(table, "%d", step->line);
        table_cell(table, "%s", kind_text(s->program, step));
        table_cell(table, "%s", place_text(s, &step->in).text);
        table_cell(table, "%s", place_text(s, &step->out).text);
        table_cell(table, "%" PRId64, head ? head->instructions : 0);
    }
    if (table)
        table_end(table, "");
}

/* ---- generated code ---- */

/* What a reader knows of a step: comments of its source. */
struct shown {
    const struct program_steps *steps;
    const struct program_step *step;
    const char *text; /* the program's file */
    size_t length;
};

static const char *shown_line(const void *context, int32_t line, size_t *length)
{
    const struct shown *s = context;
    const char *at = s->text, *end = s->text + s->length;

    for (int32_t i = 1; i < line && at; i++)
        if ((at = memchr(at, '\n', (size_t)(end - at))) != NULL)
            at++;
    if (!at || line < 1)
        return NULL;
    const char *stop = memchr(at, '\n', (size_t)(end - at));
    *length = (size_t)((stop ? stop : end) - at);
    return at;
}

static const char *shown_tensor(const void *context, int tensor)
{
    const struct shown *s = context;
    const struct step_place *place = tensor == CODE_OUT ? &s->step->out : &s->step->t[tensor];

    return place->kind == PLACE_PARAMETER ? program_name_of(s->steps->program, s->steps->program->parameters[place->index].name)
                                          : NULL;
}

/* The source of a step's kernel, to be freed; NULL: *e says why there is none. */
static char *step_source(const struct shown *s, struct error *e)
{
    struct code code;
    struct generate g = {.code = &code,
                         .nranks = s->steps->program->nranks,
                         .in = step_place_dtype(s->steps, &s->step->in),
                         .line_text = shown_line,
                         .tensor_name = shown_tensor,
                         .context = s};

    if (s->step->kind != STEP_OF_CODE) {
        (void)error_set(e, -EOPNOTSUPP, "an operator of its own");
        return NULL;
    }
    for (int i = 0; i < CODE_TENSORS; i++)
        g.dtypes[i] = step_place_dtype(s->steps, &s->step->t[i]);
    g.dtypes[CODE_OUT] = step_place_dtype(s->steps, &s->step->out);
    return code_read(s->step->words, s->step->nwords, &code, e) ? NULL : code_generate(&g, e);
}

static void sources_print(const struct program_steps *steps, const char *text, size_t length)
{
    for (uint32_t i = 0; i < steps->nsteps; i++) {
        const struct shown s = {steps, &steps->steps[i], text, length};
        struct error e = {0};
        char *source = step_source(&s, &e);
        printf("%s/* step %" PRIu32 ", line %d: %s */\n", i ? "\n" : "", i, s.step->line, kind_text(steps->program, s.step));
        if (source)
            printf("%s", source);
        else
            printf("/* no code is generated: %s */\n", e.text);
        free(source);
    }
}

static void program_json(const struct program *p, const struct program_steps *s, const char *text, const char *why)
{
    struct json_object *o = json_object_new_object(), *steps = json_object_new_array();

    for (uint32_t i = 0; s && i < s->nsteps; i++)
        (void)json_object_array_add(steps, JSON_OBJECT({"line", json_int(s->steps[i].line)},
                                                       {"what", json_text(kind_text(p, &s->steps[i]))},
                                                       {"from", json_text(place_text(s, &s->steps[i].in).text)},
                                                       {"to", json_text(place_text(s, &s->steps[i].out).text)}));
    JSON_ADD(o, {"program", json_text(program_name_of(p, p->name))}, {"ranks", json_int(p->nranks)}, {"text", json_text(text)},
             {"steps", steps}, {"not_run", json_text(why)});
    json_print(o, true);
    (void)json_object_put(o);
}

/* The program, checked and scheduled as far as it is asked for; NULL with call->exit. */
static struct program *program_read(struct call *call, const struct program_options *o, const struct program_size sizes[],
                                    size_t n, const char *text, size_t length)
{
    struct program *p = NULL;
    struct error e = {0};
    int status = program_parse(text, length, &p, &e);

    if (status == 0)
        status = program_bind(p, (int)o->ranks, sizes, n, &e);
    if (status == 0 && !o->written)
        status = o->schedule ? program_transform(p, o->schedule, &e) : program_schedule(p, &e);
    if (status == 0)
        return p;
    program_free(p);
    call->exit = verb_error(call, EXIT_UNWELL, "%s: %s", call->operands[0], text_clean(e.text));
    return NULL;
}

static int program_show(struct call *call, const struct program_options *o, const struct program *p, const char *file,
                        size_t length)
{
    struct program_steps steps;
    struct error e = {0};
    char *text = program_print(p);
    const bool runs = text && program_steps(p, &steps, &e) == 0;

    if (!text)
        return verb_error(call, EXIT_UNWELL, "out of memory");
    if (call->json) {
        program_json(p, runs ? &steps : NULL, text, e.text);
    } else {
        if (!o->steps && !o->code)
            printf("%s", text);
        if (o->steps && runs)
            steps_print(&steps);
        if (o->code && runs)
            sources_print(&steps, file, length);
        if (!runs)
            printf("%s# fccd does not run this yet: %s\n", o->steps || o->code ? "" : "\n", e.text);
    }
    if (runs)
        program_steps_free(&steps);
    free(text);
    return EXIT_WELL;
}

int verb_program(struct call *call)
{
    struct program_options o = {.ranks = 2};
    struct program_size sizes[PROGRAM_SIZES_MAX];
    size_t n = 0;
    const struct arg args[] = {
        {NULL, 'D', ARG_TEXT, &o.sizes, 0, 0, NULL, "N=SIZE,...",
         "sizes of the program, where others are wanted than in the text"},
        {"ranks", 0, ARG_INT, &o.ranks, 1, FCC_MAX_RANKS, NULL, "N", "ranks of the communicator [2]"},
        {"schedule", 0, ARG_TEXT, &o.schedule, 0, 0, NULL, "STATEMENT", "one statement more of the schedule"},
        {"written", 0, ARG_FLAG, &o.written, 0, 0, NULL, NULL, "the program as it is written: its schedule is not carried out"},
        {"show-code", 0, ARG_FLAG, &o.code, 0, 0, NULL, NULL,
         "the source that GPUs run of each step, as it is compiled, with the program's lines as comments"},
        {"steps", 0, ARG_FLAG, &o.steps, 0, 0, NULL, NULL, "the steps that run, each an operator, instead of the text"},
    };

    if (!args_parse(call, args, sizeof(args) / sizeof(args[0]), 1))
        return call->exit;
    if (call->noperands != 1)
        return verb_error(call, EXIT_USAGE, "needed is the name of a program's file");
    size_t length = 0;
    char *given = strdup(o.sizes ? o.sizes : ""), *text = NULL;
    if (!given)
        return verb_error(call, EXIT_UNWELL, "out of memory");
    struct program *p = NULL;
    if ((!o.sizes || program_sizes_parse(call, given, sizes, &n)) &&
        (text = program_file_read(call, call->operands[0], &length)) != NULL)
        p = program_read(call, &o, sizes, n, text, length);
    if (p)
        call->exit = program_show(call, &o, p, text, length);
    program_free(p);
    free(text);
    free(given);
    return call->exit;
}
