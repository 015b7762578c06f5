/* SPDX-License-Identifier: MIT
 *
 * fuzz_program.c - the input is the text of a program. Whatever it is, it is refused with words, or it is checked, scheduled and printed, and what is
 * printed is the same program again.
 */
#include <errno.h>

#include "kernels/cpu/step.h"
#include "kernels/generate/generate.h"
#include "kernels/program/steps.h"
#include "tests/fuzz/fuzz.h"

#define RANKS 3

/* Binds the program; sizes that the text does not give are 6. */
static bool program_ready(struct program *p)
{
    struct program_size sizes[PROGRAM_SIZES_MAX];
    size_t n = 0;
    struct error e = {0};

    for (uint32_t i = 0; i < p->nsymbols; i++)
        if (p->symbols[i].value < 0)
            sizes[n++] = (struct program_size){program_name_of(p, p->symbols[i].name), 6};
    const int status = program_bind(p, RANKS, sizes, n, &e);
    FUZZ_CHECK(status == 0 || *e.text);
    return status == 0;
}

/* The program's text has the same text again. */
static void expect_text(const struct program *p, bool scheduled)
{
    char *text = program_print(p);
    struct program *q;
    struct error e = {0};

    FUZZ_CHECK(text);
    if (strlen(text) > PROGRAM_TEXT_MAX) { /* names and layouts that were left out stand in it */
        free(text);
        return;
    }
    if (program_parse(text, strlen(text), &q, &e))
        fuzz_failed(__FILE__, __LINE__, "%s\n%s", e.text, text);
    if (scheduled && (!program_ready(q) || program_schedule(q, &e)))
        fuzz_failed(__FILE__, __LINE__, "%s\n%s", e.text, text);
    char *again = program_print(q);
    if (strcmp(text, again) != 0)
        fuzz_failed(__FILE__, __LINE__, "printed\n%s\nand then\n%s", text, again);
    free(text);
    free(again);
    program_free(q);
}

/* ---- what a core follows ---- */

#define ELEMENTS_MOST 2000

/* Tensors that a step may have, each of exactly as many elements as the check asks for, so that a sanitizer sees one too many. */
static void tensors_make(struct op_args *args, const struct code *code, int rank)
{
    const int64_t all = code->head->rows * code->head->inner, own = step_count_of(code, RANKS, rank);
    int64_t needed[STEP_TENSOR + CODE_TENSORS] = {0};

    for (int64_t i = 0; i < code->head->operands; i++) {
        const struct code_operand *o = &code->operands[i];
        int64_t *to = &needed[o->tensor == CODE_OUT ? STEP_OUT : STEP_TENSOR + o->tensor];
        const int64_t n = code_operand_elements(code, o, own);
        *to = n > *to ? n : *to;
    }
    needed[STEP_IN] = code_reduces(code) ? all : needed[STEP_IN];
    needed[STEP_OUT] = code_has_result(code) ? all : needed[STEP_OUT];
    for (int i = 0; i < args->ntensors; i++)
        if (needed[i] && needed[i] <= ELEMENTS_MOST)
            args->tensors[i] = (struct tensor){.data = calloc((size_t)needed[i], sizeof(float)),
                                               .dtype = FCC_F32,
                                               .ndim = 1,
                                               .symmetric = i == STEP_OUT,
                                               .shape = {needed[i]},
                                               .stride = {1}};
}

/* Of whatever the worker's check takes a source is made, or it is said why not. */
static void source_try(const struct op_args *args, const struct code *code)
{
    struct generate g = {.code = code, .in = args->tensors[STEP_IN].dtype, .nranks = RANKS};
    struct error e = {0};

    for (int64_t i = 0; i <= CODE_OUT; i++)
        g.dtypes[i] = step_tensor(args, &(struct code_operand){.tensor = i})->dtype;
    char *source = code_generate(&g, &e);
    FUZZ_CHECK(source ? strstr(source, "GENERATED_KERNEL(") != NULL : e.status == -EOPNOTSUPP && *e.text);
    free(source);
}

/* Tensors of a table lie in the step's tensors from the last one on. 0: no tensor has the table. */
static size_t tables_make(const struct code *code, uint64_t which, int64_t *words)
{
    size_t n = 1;

    words[0] = (int64_t)(code->begins ? which : 0);
    for (int i = 0; i < STEP_TENSOR + CODE_TENSORS; i++)
        for (int64_t k = 0; (uint64_t)words[0] >> i & 1 && k < code->head->tensors && n < CODE_TABLES_MAX; k++)
            words[n++] = code->begins[code->head->tensors] - code->begins[k + 1];
    return words[0] ? n : 0;
}

/* The step of one rank whose code is these words, if the worker takes them. */
static void step_try(const int64_t *words, size_t n, int rank, uint64_t tables)
{
    static struct step step;
    static int64_t attr[2 + CODE_WORDS_MAX + CODE_TABLES_MAX];
    struct op_args all[RANKS];
    struct code code;
    struct error e = {0};

    if (code_read(words, n, &code, &e) || code.head->kind == CODE_TEXT || code.head->rows * code.head->inner > ELEMENTS_MOST)
        return;
    attr[0] = (int64_t)((uint64_t)FCC_ATTR_CODE << 32 | n);
    memcpy(attr + 1, words, n * sizeof(*words));
    const size_t more = tables_make(&code, tables % (UINT64_C(1) << (STEP_TENSOR + CODE_TENSORS)), attr + 2 + n);
    attr[1 + n] = (int64_t)((uint64_t)FCC_ATTR_TABLES << 32 | more);
    struct op_args args = {
        .op = FCC_PROGRAM_STEP, .attrs = attr, .nattrs = 1 + n + (more ? 1 + more : 0), .ntensors = STEP_TENSOR + CODE_TENSORS};
    tensors_make(&args, &code, rank);
    struct problem *problem = problem_new(RANKS);
    FUZZ_CHECK(problem && problem_begin(problem, FCC_PROGRAM_STEP) == 0);
    for (int r = 0; r < RANKS; r++)
        all[r] = args;
    if (op_check(&args, RANKS, rank, &e) == 0 && op_match(all, RANKS, problem, &e) == 0) {
        const int64_t begin = problem->rank_dim[DIM_N][rank], end = begin + problem->rank_dim[DIM_K][rank];
        source_try(&args, &code);
        step_begin(&step, &args, step_code(&args), begin, end);
        for (int64_t at = begin, count; at < end; at += count) {
            count = (int64_t)step_block_size(&step, at, end - at);
            for (int i = code_reduces(&code) ? STEP_IN : STEP_OUT; i <= (code_has_result(&code) ? STEP_OUT : STEP_IN); i++)
                /* what the exchange reads and stores */
                (void)*(volatile const unsigned char *)&step_place(&step, &args, i, at)[(size_t)count * sizeof(float) - 1];
            step_block(&step, at, (size_t)count);
        }
    }
    problem_free(problem);
    for (int i = 0; i < args.ntensors; i++)
        free(args.tensors[i].data);
}

/* The worker's check takes the code that is made; and whatever else it takes, a core can execute. */
static void codes_try(const struct program *p, const uint8_t *data, size_t size)
{
    struct program_steps steps;
    struct code code;
    struct error e = {0};

    if (program_steps(p, &steps, &e)) {
        FUZZ_CHECK(*e.text);
        return;
    }
    for (uint32_t i = 0; i < steps.nsteps; i++) {
        struct program_step *step = &steps.steps[i];
        if (!step->words)
            continue;
        if (code_read(step->words, step->nwords, &code, &e))
            fuzz_failed(__FILE__, __LINE__, "%s", e.text);
        step_try(step->words, step->nwords, (int)i % RANKS, size ? UINT64_C(1) << data[0] % (STEP_TENSOR + CODE_TENSORS) : 0);
        for (size_t k = 0; k + 9 < size && k < 9 * 64; k += 9) {
            int64_t *word = &step->words[data[k] % step->nwords];
            const int64_t before = *word;
            *word = data[k + 2] & 1 ? before ^ (int64_t)(UINT64_C(1) << data[k + 1] % 64) : (int64_t)data[k + 1];
            step_try(step->words, step->nwords, (int)i % RANKS,
                     data[k + 2] & 4 ? 1u << data[k + 3] % (STEP_TENSOR + CODE_TENSORS) : 0);
            *word = data[k + 2] & 2 ? before : *word;
        }
    }
    program_steps_free(&steps);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct program *p;
    struct error e = {0};

    if (program_parse((const char *)data, size, &p, &e)) {
        FUZZ_CHECK(*e.text);
        return 0;
    }
    expect_text(p, false);
    if (program_ready(p)) {
        const int status = program_schedule(p, &e);
        FUZZ_CHECK(status == 0 || *e.text);
        if (status == 0) {
            expect_text(p, true);
            codes_try(p, data, size);
        }
    }
    program_free(p);
    return 0;
}
