/* SPDX-License-Identifier: MIT
 *
 * fuzz_program.c - the input is the text of a program. Whatever it is, it is refused with words, or it is checked, scheduled and printed, and what is
 * printed is the same program again.
 */
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

/* What a core would follow: the worker's check takes the code that is made, and ends, whatever stands in it. */
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
        for (size_t k = 0; k + 9 < size; k += 9) {
            step->words[data[k] % step->nwords] ^= (int64_t)(UINT64_C(1) << data[k + 1] % 64);
            (void)code_read(step->words, step->nwords, &code, &e);
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
