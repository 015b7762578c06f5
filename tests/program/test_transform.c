/* SPDX-License-Identifier: MIT
 *
 * test_transform.c - transformations keep a program's meaning: random programs under random transformations give the same bits in double precision
 * as the program as written, over all ranks, and every program that they make reads back from its text. A program that is changed on purpose does not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/bed/random.h"
#include "tests/program/reference.h"

#define TEXT_ROOM 16384
#define NAMES 64

/* A program that is being written: names of values of each layout, all of one shape. */
struct author {
    char text[TEXT_ROOM];
    size_t at;
    char name[2][NAMES][16]; /* local, replicated */
    bool used[2][NAMES];
    int count[2];
    int statements;
    bool groups; /* of ranks */
};

static void write_text(struct author *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void write_text(struct author *w, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    w->at += (size_t)vsnprintf(w->text + w->at, TEXT_ROOM - w->at, format, ap);
    va_end(ap);
    assert_true(w->at < TEXT_ROOM);
}

static const char *any_name(struct author *w, int layout)
{
    const int i = (int)random_below(w->count[layout]);

    w->used[layout][i] = true;
    return w->name[layout][i];
}

static void write_operand(struct author *w, int layout, int depth)
{
    static const char *const unary[] = {"relu", "tanh", "abs", "silu", "gelu", "sigmoid", "-"};
    static const char *const binary[] = {"+", "-", "*"};

    switch (depth > 0 ? random_below(6) : 5) {
    case 0:
        write_text(w, "%s(", unary[random_below(7)]);
        write_operand(w, layout, depth - 1);
        write_text(w, ")");
        break;
    case 1:
    case 2:
        write_text(w, "(");
        write_operand(w, layout, depth - 1);
        write_text(w, " %s ", binary[random_below(3)]);
        write_operand(w, layout, depth - 1);
        write_text(w, ")");
        break;
    case 3:
        write_text(w, "dropout(");
        write_operand(w, layout, depth - 1);
        write_text(w, ", 0.25, seed, step)");
        break;
    case 4:
        write_text(w, "select(");
        write_operand(w, layout, depth - 1);
        write_text(w, " < 0.5, ");
        write_operand(w, layout, depth - 1);
        write_text(w, ", bias * k)");
        break;
    default:
        write_text(w, "%s", any_name(w, layout));
    }
}

/* A local operand meets the replicated bias only where it is made local. */
static void write_statement(struct author *w)
{
    const int kind = (int)random_below(w->groups ? 6 : 5);
    const int to = kind <= 1 ? 1 : (int)random_below(2);

    if (w->count[to] == NAMES)
        return;
    char *name = w->name[to][w->count[to]];
    (void)snprintf(name, 16, "v%d", w->statements++);
    write_text(w, "%s = ", name);
    if (kind <= 1) {
        write_text(w, "all_reduce(%s)", any_name(w, 0));
    } else if (kind == 5) {
        write_text(w, "send(%s, %d)", any_name(w, to), 1 + (int)random_below(3));
    } else if (to == 0) {
        write_text(w, "%s * %s + k", any_name(w, 0), any_name(w, 0));
    } else {
        write_operand(w, 1, 3);
        write_text(w, " + bias");
    }
    write_text(w, "\n");
    w->used[to][w->count[to]++] = false;
}

/* All values end in a result, so none is unused. */
static void write_end(struct author *w)
{
    write_text(w, "m = %s * 0.5 + m\n", any_name(w, 1));
    for (int i = 0; i < w->count[0]; i++)
        if (!w->used[0][i]) {
            (void)snprintf(w->name[1][w->count[1]], 16, "w%d", i);
            write_text(w, "w%d = all_reduce(%s)\n", i, w->name[0][i]);
            w->used[1][w->count[1]++] = false;
        }
    write_text(w, "e0 = m + bias + a + b * k + c * seed + step\n");
    int n = 0;
    for (int i = 0; i < w->count[1]; i++)
        if (!w->used[1][i]) {
            write_text(w, "e%d = e%d + %s\n", n + 1, n, w->name[1][i]);
            n++;
        }
    write_text(w, "y = e%d\n", n);
}

static void write_program(struct author *w, int ranks)
{
    const int groups = 1 + (int)random_below((uint32_t)ranks);

    *w = (struct author){.count = {2, 2}, .name = {{"g", "h"}, {"a", "b"}}, .used = {{true, true}, {true, true}}};
    write_text(w, "program random()\n");
    if ((w->groups = ranks % groups == 0))
        write_text(w, "groups %d\n", groups);
    write_text(w, "in g, h: f32[5, 3] local\nin a, b, c: f32[5, 3]\nin bias: f32[3]\n"
                  "inout m: f32[5, 3]\nout y: f32[5, 3]\nscalar k, seed, step\n");
    for (int i = 0, n = 1 + (int)random_size(9); i < n; i++)
        write_statement(w);
    write_end(w);
}

/* g and h must be used: the text begins with statements that do. */
static struct program *random_program(struct author *w, int ranks)
{
    struct program *p;
    struct error e = {0};

    for (;;) {
        write_program(w, ranks);
        const int status = program_parse(w->text, w->at, &p, &e);
        if (status == 0)
            break;
        if (!strstr(e.text, "is never used"))
            fail_msg("%s\n%s", e.text, w->text);
    }
    if (program_bind(p, ranks, NULL, 0, &e))
        fail_msg("%s\n%s", e.text, w->text);
    return p;
}

/* ---- values ---- */

/* A parameter's value when a program begins, by its name: the same under all layouts that transformations give it. */
static double *parameter_fill(const struct program *p, const struct parameter *t)
{
    const size_t count = reference_count(p, &t->value) * (size_t)p->rank_groups;
    double *v = calloc(count + 1, sizeof(*v));
    uint32_t x = 7;

    for (const char *c = program_name_of(p, t->name); *c; c++)
        x = x * 31 + (unsigned char)*c;
    for (size_t i = 0; i < count; i++) {
        x = x * 1664525u + 1013904223u;
        v[i] = (double)(int32_t)x / 0x1p31;
    }
    return v;
}

/* All results one after the other; *n numbers. */
static double *results(const struct program *p, size_t *n)
{
    double *parameters[PROGRAM_PARAMETERS_MAX], *out = NULL;

    for (uint32_t i = 0; i < p->nparameters; i++)
        parameters[i] = parameter_fill(p, &p->parameters[i]);
    reference_run(p, parameters);
    *n = 0;
    for (uint32_t i = 0; i < p->nparameters; i++) {
        const size_t count = reference_count(p, &p->parameters[i].value) * (size_t)p->rank_groups;
        if (p->parameters[i].update >= 0) {
            double *grown = realloc(out, (*n + count + 1) * sizeof(*out));
            assert_non_null(grown);
            out = grown;
            memcpy(out + *n, parameters[i], count * sizeof(*out));
            *n += count;
        }
        free(parameters[i]);
    }
    return out;
}

/* A NaN is the same as itself here, and -0 is another number than 0. */
static uint64_t double_bits(double number)
{
    uint64_t bits;

    memcpy(&bits, &number, sizeof(bits));
    return bits;
}

static void expect_same(const struct program *p, const double *expected, size_t n, const char *what)
{
    size_t count;
    double *got = results(p, &count);

    assert_int_equal(count, n);
    for (size_t i = 0; i < n; i++)
        if (double_bits(got[i]) != double_bits(expected[i])) {
            char *text = program_print(p);
            fail_msg("after %s number %zu is %.17g, expected is %.17g:\n%s", what, i, got[i], expected[i], text);
        }
    free(got);
}

/* The text reads back to the program. */
static void expect_text(const struct program *p, int ranks)
{
    char *text = program_print(p);
    struct program *q;
    struct error e = {0};

    if (program_parse(text, strlen(text), &q, &e) || program_bind(q, ranks, NULL, 0, &e) || program_schedule(q, &e))
        fail_msg("%s\n%s", e.text, text);
    char *again = program_print(q);
    assert_string_equal(text, again);
    free(again);
    free(text);
    program_free(q);
}

static const char *any_statement(const struct program *p)
{
    for (;;) {
        const struct node *n = &p->nodes[random_below(p->nnodes)];
        if (node_is_statement(n))
            return program_name_of(p, n->op == OP_UPDATE ? p->parameters[n->parameter].name : n->name);
    }
}

static void any_directive(const struct program *p, char out[512])
{
    const char *a = any_statement(p), *b = any_statement(p), *c = any_statement(p);

    switch (random_below(8)) {
    case 0:
    case 1:
        (void)snprintf(out, 512, "split %s", a);
        break;
    case 2:
    case 3:
        (void)snprintf(out, 512, "reorder %s", a);
        break;
    case 4:
        (void)snprintf(out, 512, "reorder %s past %s, %s", a, b, c);
        break;
    case 5:
        (void)snprintf(out, 512, "as_slice %s", random_below(2) ? "m" : "c");
        break;
    case 6:
        (void)snprintf(out, 512, random_below(2) ? "fuse %s, %s" : "fuse %s, %s, %s", a, b, c);
        break;
    default:
        (void)snprintf(out, 512, random_below(2) ? "overlap %s, %s" : "chunk %s 3", a, b);
    }
}

/* Carries out random statements of a schedule, and counts by their verbs those that were legal. */
static void transform_randomly(struct program *p, int ranks, const double *expected, size_t n, int done[SCHEDULE_VERBS])
{
    for (int i = 0; i < 40; i++) {
        char directive[512], *before = program_print(p);
        struct error e = {0};
        any_directive(p, directive);
        if (program_transform(p, directive, &e)) {
            char *after = program_print(p);
            assert_true(*e.text);
            assert_string_equal(before, after); /* refused: as it was */
            free(after);
        } else {
            for (int v = 0; v < SCHEDULE_VERBS; v++)
                done[v] += strncmp(directive, schedule_verbs[v], strlen(schedule_verbs[v])) == 0;
            expect_same(p, expected, n, directive);
            expect_text(p, ranks);
        }
        free(before);
    }
}

static void test_meaning(void **state)
{
    static struct author w;
    int done[SCHEDULE_VERBS] = {0};

    (void)state;
    random_state = 43;
    for (int round = 0; round < 400; round++) {
        const int ranks = 1 + (int)random_below(4);
        struct program *p = random_program(&w, ranks);
        size_t n;
        double *expected = results(p, &n);
        expect_text(p, ranks);
        transform_randomly(p, ranks, expected, n, done);
        free(expected);
        program_free(p);
    }
    for (int v = 0; v < SCHEDULE_VERBS; v++)
        if (done[v] < 20)
            fail_msg("only %d times a legal %s", done[v], schedule_verbs[v]);
}

/* The comparison sees what it is for: an operation that was exchanged, or an operand. */
static void test_mutants(void **state)
{
    static struct author w;
    int seen = 0, all = 0;

    (void)state;
    random_state = 44;
    for (int round = 0; round < 200; round++) {
        struct program *p = random_program(&w, 2);
        size_t n, count;
        double *expected = results(p, &n);
        int32_t at = (int32_t)random_below(p->nnodes);
        while (p->nodes[at].op != OP_ADD)
            at = (at + 1) % (int32_t)p->nnodes;
        p->nodes[at].op = OP_SUB;
        double *got = results(p, &count);
        all++;
        seen += memcmp(got, expected, n * sizeof(*got)) != 0;
        free(got);
        free(expected);
        program_free(p);
    }
    assert_true(seen > all * 9 / 10);
}

/* The paper's example: what split, reorder and as_slice make of an optimiser's step. */
static void test_optimiser(void **state)
{
    static const char text[] = "program sgd(N = 10)\nin g: f32[N] local\ninout p, m: f32[N]\nscalar lr\n"
                               "s = all_reduce(g)\nm = 0.9 * m + s\np = p - lr * m\n"
                               "schedule\nsplit s\nreorder s\nas_slice m\nfuse s_part, m_part, m, p as step\n";
    static const char expected[] =
        "program sgd(N = 10)\nin g: f32[N] local\ninout p: f32[N] replicated\ninout m: f32[N] sliced(0)\nscalar lr\n\n"
        "s_part = reduce_scatter(g, 0)\nm_part = 0.9 * m + s_part\nm = m_part\np = all_gather(p - lr * m_part)\n\n"
        "schedule\nfuse s_part, m_part, m, p as step\n";
    struct program *p;
    struct error e = {0};

    (void)state;
    assert_int_equal(program_parse(text, strlen(text), &p, &e), 0);
    assert_int_equal(program_bind(p, 3, NULL, 0, &e), 0);
    if (program_schedule(p, &e))
        fail_msg("%s", e.text);
    char *printed = program_print(p);
    assert_string_equal(printed, expected);
    free(printed);
    program_free(p);
}

/* Every shipped program is right, scheduled or not; what fccd does not run yet, too. */
static void test_shipped(void **state)
{
    static const char *const names[] = {"sgd",       "adam",      "lamb",      "lamb_tensors", "mlp",     "mlp_slices",
                                        "mlp_whole", "attention", "embedding", "epilogue",     "pipeline"};

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[64], text[4096];
        struct program *p;
        struct error e = {0};
        (void)snprintf(path, sizeof(path), "client/programs/%s.fcc", names[i]);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        const size_t length = fread(text, 1, sizeof(text), f);
        (void)fclose(f);
        const struct program_size small = {"N", 13};
        if (program_parse(text, length, &p, &e) ||
            program_bind(p, 4, &small, strchr(text, 'N') && strstr(text, "(N") ? 1 : 0, &e))
            fail_msg("%s: %s", path, e.text);
        size_t n;
        double *expected = results(p, &n);
        if (program_schedule(p, &e))
            fail_msg("%s: %s", path, e.text);
        expect_same(p, expected, n, path);
        expect_text(p, 4);
        free(expected);
        program_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_meaning),
        cmocka_unit_test(test_mutants),
        cmocka_unit_test(test_optimiser),
        cmocka_unit_test(test_shipped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
