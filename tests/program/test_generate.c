/* SPDX-License-Identifier: MIT
 *
 * test_generate.c - the source that is generated of programs' steps: compiled for a cpu, it gives each element the interpreter's bits, in all cases of
 * program_cases.h and on zeros, tiny and huge numbers, infinities and NaN; and what cannot be generated is said.
 */
#include <dlfcn.h>
#include <malloc.h>

#include "kernels/cpu/step.h"
#include "kernels/generate/generate.h"
#include "kernels/gpu/step.h"
#include "kernels/program/steps.h"
#include "tests/program/generated_on_cpu_call.h"
#include "tests/program/program_cases.h"
#include "tests/program/sums_on_cpu_call.h"

enum { RANKS_MOST = 3 };

/* ---- conversions ---- */

static float from_half(uint16_t bits, enum fcc_dtype dtype)
{
    float x;

    dtype_to_f32(&x, &bits, dtype, 1);
    return x;
}

static uint16_t to_half(float x, enum fcc_dtype dtype)
{
    uint16_t bits;

    dtype_from_f32(&bits, &x, dtype, 1);
    return bits;
}

static float from_f16(uint16_t bits)
{
    return from_half(bits, FCC_F16);
}

static float from_bf16(uint16_t bits)
{
    return from_half(bits, FCC_BF16);
}

static uint16_t to_f16(float x)
{
    return to_half(x, FCC_F16);
}

static uint16_t to_bf16(float x)
{
    return to_half(x, FCC_BF16);
}

/* ---- a step's memory ---- */

/* Tensors of a table lie in the reverse order, apart, and at no multiple of anything. */
struct step_memory {
    int64_t elements; /* of each tensor, so many that any operand has enough */
    int64_t places[PROGRAM_TABLE_MAX];
    bool in_table[CODE_TENSORS + 1]; /* tensors that have a table */
    unsigned char *tensor[CODE_TENSORS + 1], *in[RANKS_MOST];
};

/* All kinds of numbers, the usual ones mostly. */
static float number_at(uint64_t i)
{
    static const float odd[] = {0, -0.0f, 1, -1, 1e-30f, -1e-38f, 1e-44f, 3e38f, -2e20f, INFINITY, -INFINITY, NAN};
    const uint64_t x = (i + 1) * UINT64_C(0x9e3779b97f4a7c15) >> 32;

    if (x % 16 == 0)
        return odd[x / 16 % (sizeof(odd) / sizeof(odd[0]))];
    return (float)((int32_t)(x & 0xffff) - 0x7000) / 4096;
}

static unsigned char *memory_make(int64_t n, enum fcc_dtype dtype, uint64_t seed)
{
    unsigned char *bytes = aligned_alloc(64, ((size_t)n * 4 + 127) / 64 * 64);

    CHECK(bytes != NULL);
    for (int64_t i = 0; i < n; i++) {
        const float x = number_at(seed * 1000003 + (uint64_t)i);
        dtype_from_f32(bytes + (size_t)i * dtype_size(dtype), &x, dtype, 1);
    }
    return bytes;
}

static struct step_memory memories_make(const struct generate *g)
{
    const struct code *code = g->code;
    struct step_memory m = {.elements = code->head->rows * code->head->inner + 1};
    int64_t place = 1;

    for (int64_t i = 0; i < code->head->operands; i++) {
        const struct code_operand *o = &code->operands[i];
        const int64_t n = code_operand_elements(code, o, code->head->rows * code->head->inner);
        m.elements = n > m.elements ? n : m.elements;
        m.in_table[o->tensor] |= code->begins && (o->index == CODE_WHOLE || (o->index == CODE_OWN && !code->head->sliced));
    }
    m.in_table[CODE_OUT] |= code->begins && code_has_result(code);
    m.elements = code->head->tensors > m.elements ? code->head->tensors : m.elements;
    for (int64_t k = code->head->tensors - 1; k >= 0; k--) {
        m.places[k] = place;
        place += code->begins[k + 1] - code->begins[k] + 3;
    }
    m.elements = place > m.elements ? place : m.elements;
    for (int i = 0; i <= CODE_TENSORS; i++)
        m.tensor[i] = memory_make(m.elements, g->dtypes[i], (uint64_t)i);
    for (int r = 0; r < g->nranks; r++)
        m.in[r] = memory_make(m.elements, g->in, 100 + (uint64_t)r);
    return m;
}

static void memories_free(struct step_memory *m)
{
    for (int i = 0; i <= CODE_TENSORS; i++)
        free(m->tensor[i]);
    for (int r = 0; r < RANKS_MOST; r++)
        free(m->in[r]);
}

/* ---- the interpreter ---- */

/* The tables of all tensors that have one. */
static void tables_give(const struct code *code, const struct step_memory *m, int64_t attrs[], struct op_args *args)
{
    size_t n = 2;

    attrs[1] = 0;
    for (int slot = 0; slot < STEP_TENSOR + CODE_TENSORS; slot++) {
        if (slot == STEP_IN || !m->in_table[slot == STEP_OUT ? CODE_OUT : slot - STEP_TENSOR])
            continue;
        attrs[1] |= INT64_C(1) << slot;
        memcpy(attrs + n, m->places, (size_t)code->head->tensors * sizeof(*attrs));
        n += (size_t)code->head->tensors;
    }
    attrs[0] = (int64_t)FCC_ATTR_TABLES << 32 | (int64_t)(n - 1);
    args->attrs = attrs;
    args->nattrs = attrs[1] ? n : 0;
}

static void interpret(const struct generate *g, struct step_memory *m, int64_t begin, int64_t end)
{
    static struct step core;
    static int64_t attrs[2 + CODE_TABLES_MAX];
    struct op_args args = {.op = FCC_PROGRAM_STEP, .ntensors = STEP_TENSOR + CODE_TENSORS};
    const bool reduces = code_reduces(g->code);
    float x[COMBINE_BLOCK];
    size_t n;

    for (int i = 0; i <= CODE_OUT; i++)
        args.tensors[i == CODE_OUT ? STEP_OUT : STEP_TENSOR + i] =
            (struct tensor){.data = m->tensor[i], .dtype = g->dtypes[i], .ndim = 1, .shape = {m->elements}};
    tables_give(g->code, m, attrs, &args);
    step_begin(&core, &args, *g->code, begin, end);
    for (int64_t at = begin; at < end; at += (int64_t)n) {
        const int64_t tensor = g->code->begins ? code_tensor_of(g->code, at) : 0,
                      lies = g->code->begins ? m->places[tensor] + at - g->code->begins[tensor] : at;
        n = step_block_size(&core, at, end - at);
        for (int r = 0; r < g->nranks && reduces; r++) {
            dtype_to_f32(x, m->in[r] + (size_t)lies * dtype_size(g->in), g->in, n);
            for (size_t i = 0; i < n; i++)
                core.block[0][i] = r ? core.block[0][i] + x[i] : x[i];
        }
        step_block(&core, at, n);
        if (code_has_result(g->code))
            dtype_from_f32(m->tensor[CODE_OUT] + (size_t)lies * dtype_size(g->dtypes[CODE_OUT]), step_result(&core),
                           g->dtypes[CODE_OUT], n);
    }
}

/* ---- the generated code ---- */

/* What a GPU is told of a step: daemon/worker/device/gpu/call.c. */
struct told {
    struct gpu_step step;
    int64_t shifts[PROGRAM_TABLE_MAX];
};

static void told_make(const struct code *code, const struct step_memory *m, int64_t begin, int64_t end, int nranks,
                      struct told *out)
{
    out->step = (struct gpu_step){.begin = begin, .count = end - begin};
    for (int64_t k = 0; k < code->head->tensors; k++)
        out->shifts[k] = m->places[k] - code->begins[k];
    for (int i = 0; i <= CODE_OUT; i++) {
        out->step.tensor[i] = (uint64_t)(uintptr_t)m->tensor[i];
        out->step.places[i] = m->in_table[i] ? GPU_STEP_NUMBERS : 0;
    }
    for (int r = 0; r < nranks && code->begins; r++)
        out->step.places[GPU_STEP_IN + r] = out->step.places[GPU_STEP_OUT + r] = GPU_STEP_NUMBERS;
}

static void generated_run(void *library, int number, const struct generate *g, const int64_t *words, struct step_memory *m,
                          int64_t begin, int64_t end)
{
    static struct told told;
    struct generated_call call = {.step = &told.step,
                                  .words = words,
                                  .in = (const void *const *)m->in,
                                  .result = m->tensor[CODE_OUT],
                                  .begin = begin,
                                  .end = end,
                                  .conversions = {from_f16, from_bf16, to_f16, to_bf16}};
    void (*run)(const struct generated_call *);
    char name[32];

    told_make(g->code, m, begin, end, g->nranks, &told);
    (void)snprintf(name, sizeof(name), "generated_%d", number);
    *(void **)&run = dlsym(library, name);
    CHECK(run != NULL);
    run(&call);
}

/* ---- steps of all cases ---- */

/* What is done with each step of code of each case. */
typedef void step_do(const struct generate *g, const int64_t *words, const char *text, void *argument);

static void program_each(const struct program *p, const char *text, step_do *todo, void *argument)
{
    struct program_steps steps;
    double scalars[PROGRAM_PARAMETERS_MAX] = {0}, *numbers = calloc(p->nnodes + 1, sizeof(*numbers));
    int64_t begins[PROGRAM_TABLE_MAX + 1];
    struct error e = {0};

    CHECK(numbers && program_steps(p, &steps, &e) == 0);
    for (uint32_t i = 0; i < p->nparameters; i++)
        for (size_t k = 0; k < sizeof(givens) / sizeof(givens[0]); k++)
            if (strcmp(program_name_of(p, p->parameters[i].name), givens[k].name) == 0)
                scalars[i] = givens[k].value;
    program_numbers(p, scalars, numbers);
    for (int64_t k = 0; k <= p->tensors && p->tensors > 0; k++) /* the first ones may have no elements */
        begins[k] = (int64_t)((double)p->tensor_elements * (double)(k * k) / (double)(p->tensors * p->tensors));
    for (uint32_t i = 0; i < steps.nsteps; i++) {
        struct program_step *step = &steps.steps[i];
        struct code code;
        struct generate g = {.code = &code, .nranks = p->nranks, .in = step_place_dtype(&steps, &step->in)};
        if (step->kind != STEP_OF_CODE)
            continue;
        if (p->tensors > 0)
            step_begins_set(step, begins);
        CHECK(step_numbers_set(step, p, numbers, &e) == 0 && code_read(step->words, step->nwords, &code, &e) == 0);
        for (int t = 0; t < CODE_TENSORS; t++)
            g.dtypes[t] = step_place_dtype(&steps, &step->t[t]);
        g.dtypes[CODE_OUT] = step_place_dtype(&steps, &step->out);
        todo(&g, step->words, text, argument);
    }
    program_steps_free(&steps);
    free(numbers);
}

static void cases_each(step_do *todo, void *argument)
{
    for (int ranks = 1; ranks <= RANKS_MOST; ranks += 2)
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            if (!test_takes(i))
                continue;
            char *text = text_of(&cases[i]);
            if (!groups_bind(&cases[i], text, ranks)) {
                free(text);
                continue;
            }
            struct program *p = program_of(&cases[i], text, ranks);
            program_each(p, text, todo, argument);
            program_free(p);
            free(text);
        }
}

/* The sources, each of which is compiled once: many steps have the same. */
enum { SOURCES_MOST = 1024 };
struct sources {
    char *text[SOURCES_MOST];
    int count;
    void *library; /* what they were compiled to */
};

/* The number of the step's source, which is added if no step before had the same. */
static int source_of(struct sources *all, const struct generate *g, const char *text)
{
    struct error e = {0};
    char *source = code_generate(g, &e);
    int number = 0;

    if (!source)
        check_failed(__FILE__, __LINE__, "%s\n%s", e.text, text);
    while (number < all->count && strcmp(all->text[number], source) != 0)
        number++;
    CHECK(number < SOURCES_MOST);
    if (number < all->count)
        free(source);
    else
        all->text[all->count++] = source;
    return number;
}

static void source_collect(const struct generate *g, const int64_t *words, const char *text, void *argument)
{
    (void)words;
    (void)source_of(argument, g, text);
}

static void bits_compare(const struct generate *g, const int64_t *words, const char *text, void *argument)
{
    struct sources *all = argument;
    const int before = all->count, number = source_of(all, g, text);

    CHECK(all->count == before);
    if (number < 0)
        return;
    for (int rank = 0; rank < g->nranks; rank++) {
        const int64_t begin = step_begin_of(g->code, g->nranks, rank), end = begin + step_count_of(g->code, g->nranks, rank);
        struct step_memory a = memories_make(g), b = memories_make(g);
        interpret(g, &a, begin, end);
        generated_run(all->library, number, g, words, &b, begin, end);
        for (int t = 0; t <= CODE_OUT; t++)
            for (int64_t i = 0; i < a.elements; i++) {
                const size_t size = dtype_size(g->dtypes[t]);
                float x, y;
                dtype_to_f32(&x, a.tensor[t] + (size_t)i * size, g->dtypes[t], 1);
                dtype_to_f32(&y, b.tensor[t] + (size_t)i * size, g->dtypes[t], 1);
                if (memcmp(a.tensor[t] + (size_t)i * size, b.tensor[t] + (size_t)i * size, size) != 0 &&
                    !(isnan(x) && isnan(y)))
                    check_failed(__FILE__, __LINE__, "rank %d of %d: tensor %d, element %lld: %.9g, interpreted: %.9g\n%s",
                                 rank, g->nranks, t, (long long)i, (double)y, (double)x, text);
            }
        memories_free(&a);
        memories_free(&b);
    }
}

/* All sources are compiled in one file. */
static void same_bits(void)
{
    static struct sources all;
    char source[256], object[256], command[1024];

    if (system("c++ --version >/dev/null 2>&1") != 0)
        test_skip("no C++ compiler");
    (void)snprintf(source, sizeof(source), "%s/steps.cc", test_directory());
    (void)snprintf(object, sizeof(object), "%s/steps.so", test_directory());
    FILE *f = fopen(source, "w");
    CHECK(f != NULL);
    cases_each(source_collect, &all);
    for (int i = 0; i < all.count; i++)
        (void)fprintf(f, "#undef GENERATED_NUMBER\n#define GENERATED_NUMBER %d\nnamespace n%d {\n%s}\n", i, i, all.text[i]);
    CHECK(fclose(f) == 0);
    (void)snprintf(
        command, sizeof(command),
        "c++ -std=c++17 -O0 -ffp-contract=off -fPIC -shared -w -D_GNU_SOURCE -I. -include tests/program/generated_on_cpu.h "
        "'%s' -o '%s'",
        source, object);
    CHECK(system(command) == 0);
    all.library = dlopen(object, RTLD_NOW | RTLD_LOCAL);
    if (!all.library)
        check_failed(__FILE__, __LINE__, "%s", dlerror());
    cases_each(bits_compare, &all);
    (void)dlclose(all.library);
    for (int i = 0; i < all.count; i++)
        free(all.text[i]);
    CHECK(unlink(source) == 0 && unlink(object) == 0);
}

/* ---- sums, by a GPU's workgroup ---- */

enum { SUM_TENSORS = 7, SUM_ELEMENTS = 40 * CODE_SUM_PIECE };

/* The order of code.h. `least` is where pairs begin. */
static double lanes_total(double lanes[], int n, int least)
{
    for (int d = least; d < n; d *= 2)
        for (int k = 0; k < n; k++)
            if (!(k & d))
                lanes[k] += lanes[k + d];
    for (int d = least / 2; d > 0; d /= 2)
        for (int k = 0; k < d; k++)
            lanes[k] += lanes[k + d];
    return lanes[0];
}

/* Of elements [from, to), of which element i of the sum is at from + i - first. */
static double wanted_sum(const float *x, int64_t first, int64_t from, int64_t to, bool squares)
{
    static double lanes[CODE_SUM_LANES];

    memset(lanes, 0, sizeof(lanes));
    for (int64_t e = from; e < to; e++)
        lanes[(e - first) % CODE_SUM_LANES] += squares ? (double)(x[e] * x[e]) : (double)x[e];
    return lanes_total(lanes, CODE_SUM_LANES, 4);
}

static double wanted_tensor(const float *x, int64_t begin, int64_t lower, int64_t upper, bool squares)
{
    double pieces[CODE_SUM_PIECES] = {0};

    for (int64_t piece = (lower - begin) / CODE_SUM_PIECE, from;
         lower < upper && (from = begin + piece * CODE_SUM_PIECE) < upper; piece++) {
        const int64_t end = from + CODE_SUM_PIECE < upper ? from + CODE_SUM_PIECE : upper;
        pieces[piece % CODE_SUM_PIECES] += wanted_sum(x, from, lower > from ? lower : from, end, squares);
    }
    return lanes_total(pieces, CODE_SUM_PIECES, 1);
}

/* What a GPU is told, of a step without operands and instructions. */
struct sums_told {
    struct gpu_step step;
    struct code_head head;
    int64_t begins[SUM_TENSORS + 1], numbers[SUM_TENSORS + 1];
};

/* Tensors of several pieces, of one element, and of none; the rank's elements begin and end within some. */
static void sums_tell(struct sums_told *told, bool table, int64_t begin, int64_t count)
{
    static const int64_t lengths[SUM_TENSORS] = {5, 40000, 0, 1, CODE_SUM_PIECE, 0, 33 * CODE_SUM_PIECE + 77};
    int64_t pieces = 0;

    *told = (struct sums_told){.step = {.begin = begin, .count = count}, .head = {.tensors = table ? SUM_TENSORS : 0}};
    told->step.pieces = offsetof(struct sums_told, numbers) / sizeof(int64_t);
    for (int t = 0; t < SUM_TENSORS; t++) {
        told->begins[t + 1] = told->begins[t] + lengths[t];
        const int64_t lower = begin > told->begins[t] ? begin : told->begins[t],
                      upper = begin + count < told->begins[t + 1] ? begin + count : told->begins[t + 1];
        for (int64_t piece = 0; piece * CODE_SUM_PIECE < lengths[t]; piece++)
            pieces += upper > lower && told->begins[t] + piece * CODE_SUM_PIECE < upper &&
                      told->begins[t] + (piece + 1) * CODE_SUM_PIECE > lower;
        told->numbers[t + 1] = pieces;
    }
}

static void sums_check(void (*run)(const struct sums_call *), const float *x, bool table, int64_t each, int64_t begin,
                       int64_t count)
{
    static double totals[2][SUM_ELEMENTS], pieces[64 * CODE_SUMS_MAX];
    static const int64_t shifts[SUM_TENSORS];
    struct sums_told told;

    sums_tell(&told, table, begin, count);
    const struct sums_call call = {.step = &told,
                                   .each = each,
                                   .x = x,
                                   .shift = table ? shifts : NULL,
                                   .totals = {totals[0], totals[1]},
                                   .pieces = pieces};
    run(&call);
    for (int64_t i = 0; i < (each ? (count + each - 1) / each : SUM_TENSORS); i++)
        for (int squares = 0; squares < 2; squares++) {
            const int64_t from = each                     ? begin + i * each
                                 : begin > told.begins[i] ? begin
                                                          : told.begins[i],
                          end = each ? from + each : told.begins[i + 1], to = end < begin + count ? end : begin + count;
            const double wanted =
                each ? wanted_sum(x, from, from, to, squares) : wanted_tensor(x, told.begins[i], from, to, squares);
            uint64_t bits[2];
            memcpy(&bits[0], &wanted, sizeof(bits[0]));
            memcpy(&bits[1], &totals[squares][i], sizeof(bits[1]));
            if (bits[0] != bits[1])
                check_failed(__FILE__, __LINE__, "%s, each %lld, from %lld, %lld elements: sum %lld: %.17g, expected is %.17g",
                             table ? "table" : "no table", (long long)each, (long long)begin, (long long)count, (long long)i,
                             totals[squares][i], wanted);
        }
}

static void sums(void)
{
    static const int64_t each[] = {1, 3, 4, 7, 64, 100, 129, 1000, 2048, 5000};
    static float x[SUM_ELEMENTS + 64];
    char object[256], command[1024];
    void (*run)(const struct sums_call *);

    if (system("c++ --version >/dev/null 2>&1") != 0)
        test_skip("no C++ compiler");
    for (int64_t i = 0; i < SUM_ELEMENTS; i++)
        x[i] = (float)((i * 7919) % 1013 - 500) / 3;
    (void)snprintf(object, sizeof(object), "%s/sums.so", test_directory());
    (void)snprintf(
        command, sizeof(command),
        "c++ -std=c++17 -O1 -ffp-contract=off -fPIC -shared -w -D_GNU_SOURCE -I. -x c++ tests/program/sums_on_cpu.h -o '%s'",
        object);
    CHECK(system(command) == 0);
    void *library = dlopen(object, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        check_failed(__FILE__, __LINE__, "%s", dlerror());
    *(void **)&run = dlsym(library, "sums_run");
    CHECK(run != NULL);
    for (size_t i = 0; i < sizeof(each) / sizeof(each[0]); i++)
        for (int table = 0; table < 2; table++)
            sums_check(run, x, table, each[i], 3, 6001);
    sums_check(run, x, true, 0, 0, 34 * CODE_SUM_PIECE + 40083);
    sums_check(run, x, true, 0, 20001, 300000);
    sums_check(run, x, true, 0, 40006, CODE_SUM_PIECE);
    (void)dlclose(library);
    CHECK(unlink(object) == 0);
}

/* What other elements of a stored tensor are needed for has no order of loads before stores. */
static void refused(void)
{
    struct {
        struct code_head head;
        struct code_operand operands[2];
        struct code_instruction instructions[3];
    } words = {.head = {CODE_ELEMENTS, 4, 8, 0, CODE_NO_RESULT, 2, 3},
               .operands = {{0, CODE_OWN, 1, 1}, {0, CODE_STRETCHED, 1, 8}},
               .instructions = {{.op = CODE_LOAD, .to = 1, .from = {0, 0}, .line = 3},
                                {.op = CODE_STORE, .from = {1, 0}, .line = 4},
                                {.op = CODE_LOAD, .to = 2, .from = {0, 1}, .line = 5}}};
    struct code code;
    struct error e = {0};
    const struct generate g = {.code = &code, .nranks = 1, .in = FCC_F32, .dtypes = {FCC_F32}};

    CHECK(code_read((const int64_t *)(const void *)&words, sizeof(words) / sizeof(int64_t), &code, &e) == 0);
    CHECK(!code_generate(&g, &e) && e.status == -EOPNOTSUPP &&
          strcmp(e.text, "line 5: it needs other elements of what the step has stored") == 0);
}

/* What has been freed stays the process's: taking and clearing pages anew for each step would take most of the time. */
static void memory_keep(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, 1 << 25); /* a sanitizer has an allocator of its own, which does not */
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

int main(void)
{
    const struct test tests[] = {{"same_bits", same_bits, 300}, {"sums", sums, 120}, {"refused", refused, 0}};

    memory_keep();
    return tests_run("generate", TESTS(tests));
}
