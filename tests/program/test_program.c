/* SPDX-License-Identifier: MIT
 *
 * test_program.c - the language: what parses, how it prints, what each error says and where, and that a text of any size or shape ends in one.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "kernels/program/code.h"
#include "kernels/program/steps.h"
#include "tests/program/reference.h"

static struct program *parsed(const char *text)
{
    struct program *p;
    struct error e = {0};

    if (program_parse(text, strlen(text), &p, &e))
        fail_msg("%s", e.text);
    return p;
}

static struct program *bound(const char *text, int ranks)
{
    struct program *p = parsed(text);
    struct error e = {0};

    if (program_bind(p, ranks, NULL, 0, &e))
        fail_msg("%s", e.text);
    return p;
}

/* The error of a text that is parsed, bound for 2 ranks and scheduled; "": none. */
static void expect_error(const char *text, const char *expected)
{
    struct program *p = NULL;
    struct error e = {0};

    if (program_parse(text, strlen(text), &p, &e) == 0 && program_bind(p, 2, NULL, 0, &e) == 0)
        (void)program_schedule(p, &e);
    program_free(p);
    if (!strstr(e.text, expected) || (!*expected && *e.text))
        fail_msg("\"%s\", expected is \"%s\" of\n%s", e.text, expected, text);
}

#define HEAD "program t(N = 8, M = 4)\n"
#define TENSORS HEAD "in a, b: f32[N] local\nin r: f32[N]\nin s: f32[N] sliced(0)\nout y: f32[N]\n"

static void test_errors(void **state)
{
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"", "line 1, column 1: the text is empty"},
        {"in x: f32[2]\n", "line 1, column 1: `in`: expected is `program NAME(SIZES)`"},
        {HEAD "y = \x01\n", "line 2, column 5"},
        {HEAD "out y: f32[N]\ny = 1 +\n", "line 3, column 8: the line ends: expected is a name, a number, an operation or `(`"},
        {HEAD "out y: f64[N]\n", "line 2, column 8: `f64`: expected is a dtype: f32, f16 or bf16"},
        {HEAD "out y: f32[N] somewhere\n", "expected is a layout: local, replicated or sliced(DIMENSION)"},
        {HEAD "out y: f32[K]\n", "`K`: expected is a size: an integer, `ranks`, or a name of the program's sizes"},
        {HEAD "out max: f32[N]\n", "`max`: expected is a name that is no word of the language"},
        {HEAD "in x: f32[N]\nout x: f32[N]\n", "`x` is declared twice"},
        {HEAD "out y: f32[N]\ny = q\n", "`q`: expected is a value of a line above"},
        {HEAD "out y: f32[N]\ny = y\n", "this `out` has none before it is assigned"},
        {HEAD "in x: f32[N]\nout y: f32[N]\nx = 1\ny = x\n",
         "`x` is declared `in` in line 2: allowed to be assigned are `out` and `inout`"},
        {HEAD "out y: f32[N]\ny = 1\ny = 2\n", "`y` is assigned a second time, after line 3"},
        {HEAD "out y: f32[N]\nz = 1\nz = 2\ny = z\n", "`z` has a value already, of line 3"},
        {HEAD "out y, z: f32[N]\ny = 1\n", "`z` is declared `out` and never assigned"},
        {HEAD "in x: f32[N]\nout y: f32[N]\ny = 1\n", "`x` is never used"},
        {HEAD "out y: f32[N]\nz = 1\ny = 1\n", "line 3, column 1: `z` is never used"},
        {HEAD "in x: f32[N]\n", "`x` is never used"},
        {TENSORS "y = all_reduce(a + b + r) + s\n", "line 6, column 22: +: the result of + (line 6) is local, `r` is "
                                                    "replicated: ranks have different values of one of them"},
        {TENSORS "y = all_gather(s) + r + a + b\n",
         "line 6, column 23: +: the result of + (line 6) is replicated, `a` is local"},
        {TENSORS "y = r + s + all_reduce(a + b)\n",
         "`y` is declared as f32[8] replicated, what is assigned is f32[8] sliced(0)"},
        {TENSORS "y = all_reduce(r) + all_reduce(a+b) + all_gather(s)\n",
         "all_reduce: of a replicated tensor: allowed are local ones"},
        {TENSORS "y = r + f16(r) + all_reduce(a+b) + all_gather(s)\n", "one argument is f32, the other f16"},
        {TENSORS "y = r + (r < 1) + all_reduce(a+b) + all_gather(s)\n", "argument 2 is the result of a comparison"},
        {HEAD "in x: f32[N]\nin z: f32[M]\nout y: f32[N]\ny = x + z\n", "one argument has 8 where another has 4"},
        {HEAD "in x: f32[M, N]\nout y: f32[M, N]\ny = matmul(x, x)\n", "matmul: of 2 and 2 dimensions, 8 columns and 4 rows"},
        {HEAD "in x: f32[M, N] sliced(1)\nout y: f32[M, 1] sliced(1)\ny = row_sum(x)\n",
         "row_sum: rows are sliced over the ranks"},
        {HEAD "in x: f32[N]\nout y: f32[N]\ny = dropout(x, 1, 0, 0)\n",
         "line 4, column 5: dropout: probability 1: allowed are 0 to less than 1"},
        {HEAD "in x: f32[N/3]\nout y: f32[N]\ny = x\n", "8 is not divisible by 3"},
        {"program t(N)\nout y: f32[N]\ny = 1\n", "size N: not given"},
        {HEAD "in x: f32[N] local\nout y: f32[N]\ny = broadcast(x, 2)\n", "broadcast: rank 2: allowed are 0 to 1"},
        {HEAD "out y: f32[M*N*281474976710656]\ny = 1\n", "a size of more than"},
        {HEAD "out y: f32[281474976710656, 2]\ny = 1\n", "a tensor of more than"},
        {TENSORS "z = all_reduce(a + b)\ny = z + r + all_gather(s)\nschedule\nsplit q\n",
         "line 9, column 1: split: `q`: no statement has this name"},
        {TENSORS "z = all_reduce(a + b)\ny = z + r + all_gather(s)\nschedule\nreorder z\n",
         "is made by all_reduce: allowed is all_gather"},
        {TENSORS "z = all_reduce(a + b)\ny = z + r + all_gather(s)\nschedule\ncut z\n",
         "expected is split, reorder, as_slice, fuse, overlap or chunk"},
        {HEAD "in x: f32[N]\nout y: f32[N]\nn = norm(x)\nu = x * 2\ny = u / n\nschedule\nfuse n, y\n",
         "/ (line 6) needs what norm (line 4) makes of the whole tensor in the same group, which is a barrier"},
        {HEAD "in x: f32[N]\nout y: f32[N]\nu = x * 2\nn = norm(u)\ny = u / n\nschedule\nfuse u, y\n",
         "`y` (line 6) needs n (line 5), which is outside of the group and needs `u` (line 4) of the group"},
        {HEAD "in x: f32[N]\nout y: f32[N]\nu = x * 2\nn = norm(u)\ny = u / n\nschedule\noverlap u, n\n",
         "by norm needs the whole of `u` (line 4), which is a barrier"},
        {HEAD "in x: f32[N] local\nout y: f32[N]\nu = all_reduce(x)\ny = u * 2\nschedule\nsplit u\nfuse u_part, u, y\n",
         "needs the whole of what all_gather (line 4) gathers in the same group"},
        {HEAD "in x: f32[N] local\nout y: f32[N]\nu = all_reduce(x)\ny = u * 2\nschedule\nchunk u 9\n",
         "9 pieces: allowed are 1 to 8"},
        {HEAD "in x: f32[N] local\ninout m: f32[N]\nu = all_reduce(x)\nm = u + m\nschedule\nas_slice m\n",
         "what is stored into `m` (line 5) is made by +, on all ranks: allowed is all_gather"},
        {HEAD "in x: f32[N] local\nin m: f32[N]\nout y: f32[]\nout z: f32[N]\nu = all_reduce(x)\ny = norm(m)\nz = "
              "u\nschedule\nas_slice m\n",
         "norm (line 7) needs the whole of `m`"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_error(cases[i].text, cases[i].error);
}

/* Programs that use everything, and read back as they are printed. */
#define LOOKUP                                                                                                                 \
    HEAD "in t: f32[4, N, 3] sliced(0)\nin i: i32[N] local\nin o: i32[2*M + 1] local\nout y: f32[M, 4, 3] sliced(0)\n"

/* Of groups of ranks, and of what chooses rows of tables. */
static void test_errors_apart(void **state)
{
    static const char *const wrong[][2] = {
        {HEAD "groups 2\ngroups 2\nout y: f32[2]\ny = 1\n", "line 3, column 1: `groups` stands a second time, after line 2"},
        {HEAD "groups M\nout y: f32[2]\ny = 1\n", "line 2, column 1: 4 groups of 2 ranks: allowed are numbers that divide"},
        {HEAD "groups 0\nout y: f32[2]\ny = 1\n", "line 2, column 1: 0 groups of 2 ranks"},
        {HEAD "groups x\nout y: f32[2]\ny = 1\n", "`x`: expected is a size"},
        {HEAD "in s: f32[N] sliced(0)\nout y: f32[N] sliced(0)\ny = send(s, 1)\n",
         "send: of a sliced(0) tensor: allowed are local ones, and with `groups` all"},
        {HEAD "groups ranks\nin s: f32[N] sliced(0)\nout y: f32[N]\ny = all_gather(send(s, 1))\n", ""},
        {LOOKUP "y = all_to_all(embedding(t, i, o), 0)\n", ""},
        {LOOKUP "y = embedding(t, i, i) + embedding(t, i, o)\n", "8 offsets, 2 tables on each rank, of 3 columns: allowed are"},
        {LOOKUP "y = embedding(t, o, i * 2)\n",
         "*: argument 1 is a tensor of integers: allowed are such as indices and offsets of embedding"},
        {LOOKUP "y = sqrt(i) + embedding(t, i, o)\n", "sqrt: argument 1 is a tensor of integers"},
        {LOOKUP "y = all_reduce(o) + embedding(t, i, o)\n", "all_reduce: argument 1 is a tensor of integers"},
        {LOOKUP "y = embedding(o, i, o) + all_reduce(t)\n", "embedding: argument 1 is a tensor of integers"},
        {LOOKUP "y = embedding(t, t, o) + embedding(t, i, o)\n",
         "embedding: argument 2 is f32[4, 8, 3] sliced(0): allowed are indices, i32 or i64 [N] local"},
        {HEAD "in t: f32[3, N, 3] sliced(0)\nin i, o: i64[N] local\nout y: f32[M]\ny = embedding(t, i, o)\n",
         "embedding: argument 1 is f32[3, 8, 3] sliced(0): allowed are tables [T, rows, D] sliced(0), as many on each of 2 "
         "ranks"},
        {HEAD "in t: f32[2, N, 3] sliced(0)\nin i: i64[N] local\nin o: i32[N] local\nout y: f32[M]\ny = embedding(t, i, o)\n",
         "embedding: indices are i64, offsets i32: allowed are equal dtypes"},
        {HEAD "out y: i32[M]\ny = 3\n",
         "line 3, column 1: `y` is a tensor of integers: allowed to be assigned are f32, f16 and bf16"},
        {HEAD "out y: f32[M + N]\ny = 3\n", "`N`: expected is an integer that is added to the size"},
        {HEAD "out y: f32[M + 900000000000000]\ny = 3\n", "a size of more than 281474976710656"},
        {LOOKUP "b = embedding(t, i, o)\ny = all_to_all(b, 0)\nschedule\nfuse b, y\n", "it reads rows that integers choose"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        expect_error(wrong[i][0], wrong[i][1]);
}

static void test_print(void **state)
{
    static const char *const texts[] = {
        HEAD "in x, w: bf16[M, N] sliced(1)\nscalar seed, step\nout y: f32[M, N] sliced(1)\n# a comment\nz = (f32(x) - 1) * "
             "-(f32(w) + 2.5e-7) / (3 - (4 - seed))\n"
             "y = select(z <= -0.5, max(z, 0), dropout(gelu(z), 0.1, seed,\n   step))\n",
        HEAD
        "in x: f16[M, N] local\nin v: f16[N]\nout y: f16[M, N]\nout n: f16[]\nout q: f16[M, 1] local\nu = broadcast(x, 1)\n"
        "y = all_gather(all_to_all(reduce_scatter(send(reduce(x), 1), 0), 1)) * v\nn = sum(u) + mean(as_slice(u, 1)) + "
        "norm(u)\nq = row_norm(x) - row_mean(x) + row_sum(as_local(u))\n",
        HEAD "in a: f32[M, N] sliced(1)\nin b: f32[N, M*2/ranks] sliced(0)\nout y: f32[M, N/2]\ny = all_reduce(matmul(a, "
             "b))\nschedule\n",
        HEAD "in a: f32[M, N]\nout y: f32[M, 3]\ny = slice(pow(a, 2) - -a, 1, 2, 5)\n",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct program *p = bound(texts[i], 2);
        char *text = program_print(p);
        struct program *q = bound(text, 2);
        char *again = program_print(q);
        assert_string_equal(text, again);
        assert_int_equal(p->nnodes, q->nnodes);
        free(text);
        free(again);
        program_free(p);
        program_free(q);
    }
}

/* Signs bind as everywhere. */
static void test_precedence(void **state)
{
    static const struct {
        const char *expression;
        double value;
    } cases[] = {
        {"2 - 3 - 4", -5},    {"2 - (3 - 4)", 3}, {"2 + 3 * 4", 14},   {"(2 + 3) * 4", 20}, {"12 / 3 / 2", 2},
        {"12 / (3 / 2)", 8},  {"-2 * -3", 6},     {"- - 2", 2},        {"1 + 1 < 3", 1},    {"pow(2, 3) - max(1, 4)", 4},
        {"1e3 + .5", 1000.5}, {"-(1 + 2)", -3},   {"sqrt(16) / 2", 2}, {"2 * 3 == 6", 1},   {"select(1 > 2, 5, 7)", 7}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[256];
        double y[1] = {0}, *parameters[] = {y};
        (void)snprintf(text, sizeof(text), "program t()\nout y: f32[1]\ny = %s\n", cases[i].expression);
        struct program *p = bound(text, 1);
        char *printed = program_print(p);
        struct program *q = bound(printed, 1);
        reference_run(p, parameters);
        assert_float_equal(y[0], cases[i].value, 0);
        reference_run(q, parameters);
        assert_float_equal(y[0], cases[i].value, 0);
        free(printed);
        program_free(p);
        program_free(q);
    }
}

/* A program of `n` statements, each of which uses the one before. */
static char *long_text(int n)
{
    char *text = malloc(64 * (size_t)n + 256);
    int at = sprintf(text, "program long(N = 16)\nin x: f32[N]\nout y: f32[N]\nv0 = x * 1\n");
    for (int i = 1; i < n; i++)
        at += sprintf(text + at, "v%d = v%d + x\n", i, i - 1);
    (void)sprintf(text + at, "y = v%d\n", n - 1);
    return text;
}

static void test_long(void **state)
{
    char *text = long_text(10000);
    struct program *p = bound(text, 2);
    struct error e = {0};

    (void)state;
    assert_true(p->nnodes > 10000);
    assert_int_equal(program_transform(p, "fuse v1, v2, v3, v4 as first", &e), 0);
    char *printed = program_print(p);
    struct program *q = bound(printed, 2);
    assert_int_equal(program_schedule(q, &e), 0);
    assert_true(program_equal(p, q));
    free(printed);
    free(text);
    program_free(p);
    program_free(q);
    text = long_text(40000);
    expect_error(text, "more than 32768 operations");
    free(text);
}

/* Programs of ten thousand operations of one kind, as they are written and in one group: cut into steps, or refused with a reason. */
static void test_long_steps(void **state)
{
    static const struct {
        const char *type, *line;
        uint32_t steps; /* 0: refused */
    } kinds[] = {
        {"f32[4]", "v%d = v%d + 1\n", 10000},
        {"f32[4] local", "v%d = as_local(all_reduce(v%d))\n", 10000},
        {"f32[4, 4]", "v%d = matmul(v%d, x)\n", 10000},
        {"f32[4, 4]", "v%d = v%d / norm(x)\n", 20000},
        {"f32[4]", "v%d = select(v%d > 0, x, -x) * 2 + exp(x)\n", 0}, /* more operations than a program has */
    };

    (void)state;
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        char *text = NULL;
        size_t length;
        FILE *f = open_memstream(&text, &length);
        struct program *p;
        struct program_steps steps;
        struct error e = {0};
        assert_non_null(f);
        (void)fprintf(f, "program long()\nin x: %s\nout y: %s\nv0 = x * 2\n", kinds[k].type, kinds[k].type);
        for (int i = 0; i < 10000; i++)
            (void)fprintf(f, kinds[k].line, i + 1, i);
        (void)fprintf(f, "y = v10000\n");
        (void)fclose(f);
        if (kinds[k].steps == 0) {
            expect_error(text, "more than 32768 operations");
            free(text);
            continue;
        }
        p = bound(text, 2);
        assert_int_equal(program_steps(p, &steps, &e), 0);
        assert_in_range(steps.nsteps, kinds[k].steps, 3 * kinds[k].steps);
        program_steps_free(&steps);
        program_free(p);
        free(text);
    }
}

/* One group of as many: a step has not so many instructions, and that is said. */
static void test_long_group(void **state)
{
    char *text = NULL;
    size_t length;
    FILE *f = open_memstream(&text, &length);
    struct program_steps steps;
    struct error e = {0};

    (void)state;
    assert_non_null(f);
    (void)fprintf(f, "program long()\nin x: f32[4]\nout y: f32[4]\nv0 = x * 2\n");
    for (int i = 0; i < 10000; i++)
        (void)fprintf(f, "v%d = v%d + x\n", i + 1, i);
    (void)fprintf(f, "y = v10000\nschedule\nfuse v0");
    for (int i = 0; i < 10000; i++)
        (void)fprintf(f, ", v%d", i + 1);
    (void)fprintf(f, "\n");
    (void)fclose(f);
    struct program *p = bound(text, 2);
    assert_int_equal(program_schedule(p, &e), 0);
    assert_int_equal(program_steps(p, &steps, &e), -95);
    assert_non_null(strstr(e.text, "its group has too many operations"));
    program_free(p);
    free(text);
}

/* Texts that want a deep stack, or much memory. */
static void test_hostile(void **state)
{
    static char text[PROGRAM_TEXT_MAX + 2];
    const char *signs[] = {"(", "-", "max(1,", "1+", "sqrt(", "1<", "[", "x", "1e", "\n", "#", "y=", "in x,"};
    struct program *p;
    struct error e = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++) {
        size_t at = (size_t)sprintf(text, "program t()\nout y: f32[1]\ny = ");
        while (at + strlen(signs[i]) < 200000)
            at += (size_t)sprintf(text + at, "%s", signs[i]);
        assert_int_equal(program_parse(text, at, &p, &e), -22);
        assert_true(*e.text);
    }
    memset(text, ' ', sizeof(text));
    assert_int_equal(program_parse(text, sizeof(text), &p, &e), -22);
    assert_non_null(strstr(e.text, "allowed are at most 1048576"));
}

/* A step of very many elements that no tensor bounds would hold the worker's threads. */
static void test_code(void **state)
{
    struct {
        struct code_head head;
        struct code_instruction instructions[CODE_INSTRUCTIONS_MAX];
    } words = {.head = {.kind = CODE_ELEMENTS,
                        .rows = PROGRAM_ELEMENTS_MAX,
                        .inner = 1,
                        .result = CODE_NO_RESULT,
                        .instructions = CODE_INSTRUCTIONS_MAX}};
    struct code code;
    struct error e = {0};

    (void)state;
    words.instructions[0].op = CODE_NUMBER;
    for (int i = 1; i < CODE_INSTRUCTIONS_MAX; i++)
        words.instructions[i].op = OP_POW;
    assert_int_equal(code_read((const int64_t *)(const void *)&words, sizeof(words) / sizeof(int64_t), &code, &e), -EINVAL);
    assert_string_equal(e.text, "code: it stores nothing: allowed is that with 0 rows");
    words.head.rows = 0;
    words.instructions[0].from[0] = 128; /* a number reads no register */
    assert_int_equal(code_read((const int64_t *)(const void *)&words, sizeof(words) / sizeof(int64_t), &code, &e), -EINVAL);
    assert_non_null(strstr(e.text, "register 128, which it does not read: allowed is 0"));
    words.instructions[0].from[0] = 0;
    assert_int_equal(code_read((const int64_t *)(const void *)&words, sizeof(words) / sizeof(int64_t), &code, &e), 0);
}

/* What ranks do together, in a step's words: a result where it is needed, something to do, and sums that tiles can have. */
static void test_shared_code(void **state)
{
    enum { LOADED, STORED, INSTRUCTIONS = 2 };
    struct {
        struct code_head head;
        struct code_operand operands[2];
        struct code_instruction instructions[INSTRUCTIONS];
    } words = {
        .head = {.kind = CODE_GATHER, .rows = 8, .inner = 1, .sliced = 1, .result = 1, .operands = 2, .instructions = 1},
        .operands = {{.tensor = 0, .index = CODE_OWN, .div = 1, .length = 1},
                     {.tensor = 1, .index = CODE_EACH, .div = 4, .length = 1}},
        .instructions = {{.op = CODE_LOAD, .to = 1, .from = {0, LOADED}}, {.op = CODE_SUM, .from = {1, STORED}, .number = 1}}};
    const int64_t *all = (const int64_t *)(const void *)&words;
    const size_t less = (sizeof(words) - sizeof(words.instructions[0])) / sizeof(int64_t),
                 whole = sizeof(words) / sizeof(int64_t);
    struct code code;
    struct error e = {0};

    (void)state;
    assert_int_equal(code_read(all, less, &code, &e), 0);
    assert_true(code_has_result(&code) && !code_reduces(&code) && code_is_of_one_node(&code));
    words.head.result = CODE_NO_RESULT;
    assert_int_equal(code_read(all, less, &code, &e), -EINVAL);
    assert_non_null(strstr(e.text, "code: result -1: allowed is a register that has a value, or, but for kind 4, -1"));
    words.head.sliced = 0;
    assert_int_equal(code_read(all, less, &code, &e), -EINVAL);
    assert_non_null(strstr(e.text, "code: sliced 0: allowed is 1, and without a sum or a result 0"));
    words.head.sliced = 1;
    words.head.kind = CODE_REDUCE;
    assert_int_equal(code_read(all, less, &code, &e), -EINVAL);
    assert_string_equal(e.text, "code: it stores nothing: allowed is that with 0 rows");
    words.head.instructions = INSTRUCTIONS;
    assert_int_equal(code_read(all, whole, &code, &e), 0);
    assert_true(code_reduces(&code) && !code_has_result(&code) && code_is_of_one_node(&code));
    words.head.result = 0; /* all_reduce's, beside which a sum needs one node, and without which it runs on several */
    assert_int_equal(code_read(all, whole, &code, &e), 0);
    assert_true(code_has_result(&code) && code_is_of_one_node(&code));
    words.head.instructions = 1;
    assert_int_equal(code_read(all, less, &code, &e), 0);
    assert_false(code_is_of_one_node(&code));
    words.operands[1].tensor = CODE_OUT;
    words.operands[1].index = CODE_WHOLE;
    words.head.result = CODE_NO_RESULT;
    assert_int_equal(code_read(all, less, &code, &e), -EINVAL);
    assert_non_null(strstr(e.text, "allowed are 0 to 10, and 11 with a result"));
}

/* Texts are the same, and what their steps need is not. */
static void test_cut_otherwise(void **state)
{
    enum { BEFORE = sizeof(struct code_head) / sizeof(int64_t), ALL = BEFORE + 2 };
    const size_t shares = offsetof(struct code_head, result) / sizeof(int64_t);
    int64_t one[ALL] = {CODE_TEXT, 1}, other[ALL] = {CODE_TEXT, 1};
    struct error e = {0};

    (void)state;
    one[shares] = CODE_TEXT_SHARES;
    assert_int_equal(code_match(other, ALL, 1, one, ALL, &e), -EINVAL);
    assert_non_null(
        strstr(e.text, "rank 1's library cuts it into other steps than rank 0's: allowed is one version on all ranks"));
    other[ALL - 1] = 7;
    assert_int_equal(code_match(other, ALL, 1, one, ALL, &e), -EINVAL);
    assert_non_null(strstr(e.text, "rank 1 has another text than rank 0, from line 2 on"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors),      cmocka_unit_test(test_errors_apart),  cmocka_unit_test(test_print),
        cmocka_unit_test(test_precedence),  cmocka_unit_test(test_long),          cmocka_unit_test(test_long_steps),
        cmocka_unit_test(test_long_group),  cmocka_unit_test(test_hostile),       cmocka_unit_test(test_code),
        cmocka_unit_test(test_shared_code), cmocka_unit_test(test_cut_otherwise),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
