/* SPDX-License-Identifier: MIT
 *
 * fuzz_describe.c - the input is a description. Whatever it is, it is refused with words that name a line, or all that it says is within its bounds; and if it
 * is small it is simulated, which ends with times or with words. The same input is also read as measured times, which are refused with words that name a line, or
 * are within their bounds.
 */
#include "client/fccctl/simulate/fit.h"
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

static void measured_try(const char *text, size_t size)
{
    for (int target = PLAN_CPU; target <= PLAN_GPU; target++) {
        const struct sim_machine m = {.device = {.target = (enum plan_target)target, .workgroups = 2, .memory_bytes_s = 1e9},
                                      .node = {.ranks = 2, .link = SIM_LINK_MEMORY, .rails = 1},
                                      .fabric = {.bytes_s = 1e9, .in_flight = 1},
                                      .nodes = 2};
        struct measurements all = {.n = 0};
        struct error e = {0};
        const int status = measured_parse(text, size, "input", &m, &all, &e);
        FUZZ_CHECK(status == e.status && (!status || !strncmp(e.text, "input", 5)) && (status || all.n > 0));
        for (int i = 0; i < all.n; i++) {
            const struct measured *w = &all.rows[i];
            const struct sim_machine on = measured_machine(&m, w);
            FUZZ_CHECK(w->seconds > 0 && w->seconds <= 1e3 && w->line >= 1 && w->entry.number < FCC_OP_COUNT);
            FUZZ_CHECK(on.nodes * on.node.ranks == w->ranks && w->ranks <= SIM_MAX_RANKS && on.node.rails <= on.node.ranks);
            for (int k = 0; k < w->entry.nsizes; k++)
                FUZZ_CHECK(w->entry.sizes[k].value >= 1);
        }
        measurements_free(&all);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    struct description d;
    struct error e = {0};

    FUZZ_CHECK(text);
    memcpy(text, data, size);
    text[size] = '\0';
    measured_try(text, size);
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
