/* SPDX-License-Identifier: MIT
 *
 * fuzz_describe.c - the input is a description. Whatever it is, it is refused with words that name a line, or all that it says is within its bounds; and if it
 * is small it is simulated, which ends with times or with words.
 */
#include "client/fccctl/simulate/simulate.h"
#include "tests/fuzz/fuzz.h"

#define RANKS_MOST 16
#define SIZE_MOST 4096

static bool is_small(const struct description *d)
{
    bool small =
        d->machine.nodes * d->machine.node.ranks <= RANKS_MOST && d->noperators <= 4 && d->machine.device.workgroups <= 64;

    for (int i = 0; i < d->noperators; i++) {
        small &= d->operators[i].repeat <= 2;
        for (int k = 0; k < d->operators[i].nsizes; k++)
            small &= d->operators[i].sizes[k].value <= SIZE_MOST;
    }
    return small;
}

static void expect_bounds(const struct description *d)
{
    const struct sim_machine *m = &d->machine;

    FUZZ_CHECK(m->nodes >= 1 && m->nodes <= SIM_MAX_NODES && m->node.ranks >= 1 && m->nodes * m->node.ranks <= SIM_MAX_RANKS);
    FUZZ_CHECK(m->device.memory_bytes_s > 0 && m->device.workgroups >= 1 && m->fabric.in_flight >= 1);
    FUZZ_CHECK(d->noperators >= 1 && d->noperators <= DESCRIBED_MAX);
    for (int i = 0; i < d->noperators; i++)
        for (int k = 0; k < d->operators[i].op.nafter; k++)
            FUZZ_CHECK(d->operators[i].op.after[k] >= 0 && d->operators[i].op.after[k] < i);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    struct description d;
    struct error e = {0};

    FUZZ_CHECK(text);
    memcpy(text, data, size);
    text[size] = '\0';
    if (description_parse(text, size, "input", &d, &e)) {
        FUZZ_CHECK(e.status < 0 && !strncmp(e.text, "input", 5));
        free(text);
        return 0;
    }
    expect_bounds(&d);
    if (is_small(&d)) {
        struct outcome out = {.variant = {.nodes = d.machine.nodes, .route = -1, .slice_rows = -1, .slice_cols = -1}};
        variant_run(&d, d.seed, -1, NULL, &out, NULL);
        FUZZ_CHECK(out.done != (out.error.status != 0) && (out.done || *out.error.text));
        free(out.times);
    }
    description_free(&d);
    free(text);
    return 0;
}
