/* SPDX-License-Identifier: MIT
 *
 * gpu_bed.h - runs the cases of kernel_bed.h on GPUs, through a plug-in and without a daemon, so that the same assertions
 * hold on every device. FCC_TEST_DEVICE=cuda or hip asks for it; the ranks are dealt to the GPUs that there are.
 */
#ifndef FCC_TEST_GPU_BED_H
#define FCC_TEST_GPU_BED_H

#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#include "daemon/common/plugin.h"
#include "daemon/worker/device/gpu/call.h"

/* Of each rank: what the largest case needs of each. */
enum { BED_ARENA = 128 << 20, BED_SLOTS = 20 << 20, BED_PAGES = 1 << 16, BED_LIMIT_S = 20 };

struct bed_shared {
    _Atomic uint64_t done[GPU_MAX_GPUS];
    struct gpu_failure failures[RANKS];
};

static struct {
    const struct gpu_plugin *plugin;
    int ngpus;
    uint64_t epoch;
    struct bed_shared *shared;
    uint64_t shared_address;
    uint32_t stamp;
    struct gpu_memory flags[RANKS], arena[RANKS], slots[RANKS];
} bed;

static const char *bed_device(void)
{
    const char *kind = getenv("FCC_TEST_DEVICE");
    return kind && strcmp(kind, "cpu") ? kind : NULL;
}

/* Once, before the tests. Without a GPU it says so and ends the program well. */
static int bed_setup(void **state)
{
    struct error e = {0};

    (void)state;
    const struct gpu_plugin *plugin =
        plugin_load(bed_device(), getenv("FCC_TEST_PLUGIN_DIR") ? getenv("FCC_TEST_PLUGIN_DIR") : "", &e);
    int count = plugin ? plugin->count(&e) : e.status;
    if (count == -ENODEV) {
        (void)printf("skipped: no GPU (%s)\n", e.text);
        exit(EXIT_SUCCESS);
    }
    int status = count < 0 ? count : plugin->open((1u << count) - 1, getenv("FCC_TEST_IPC") != NULL, &e);
    bed.ngpus = count;
    bed.shared = mmap(NULL, BED_PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    assert_true(bed.shared != MAP_FAILED);
    if (status == 0)
        status = plugin->host_register(bed.shared, BED_PAGES, &bed.shared_address, &e);
    for (int r = 0; r < RANKS && status == 0; r++) {
        status = plugin->memory_alloc(r % count, GPU_FLAG_WORDS * sizeof(uint64_t), &bed.flags[r], NULL, &e);
        if (status == 0)
            status = plugin->memory_alloc(r % count, BED_ARENA, &bed.arena[r], NULL, &e);
        if (status == 0)
            status = plugin->memory_alloc(r % count, 2 * BED_SLOTS, &bed.slots[r], NULL, &e);
    }
    if (status)
        (void)fprintf(stderr, "%s\n", e.text);
    bed.plugin = plugin;
    return status;
}

/* The next free place in a rank's arena. */
static uint64_t bed_place(uint64_t *used, int r, size_t bytes, size_t shift)
{
    uint64_t at = bed.arena[r].address + *used + shift;

    *used = (*used + shift + bytes + 255) / 256 * 256;
    assert_true(*used <= BED_ARENA);
    return at;
}

/* The rank's tensors to its GPU; out->tensors then point there. Inputs are put at addresses that are aligned to their
 * elements only. */
static void bed_upload(const struct test_case *c, int r, struct op_args *out, uint64_t *used)
{
    struct error e = {0};

    *out = c->args[r];
    for (int i = 0; i < out->ntensors; i++) {
        const struct memory *m = &c->memory[r][i];
        if (!c->args[r].tensors[i].data || (c->in_place && i == out->ntensors - STAGES + STAGE_RESIDUAL))
            continue;
        size_t shift = case_regular || random_below(2) ? 0 : (size_t)random_below(16) * dtype_size(out->tensors[i].dtype);
        uint64_t at = bed_place(used, r, m->bytes, shift);
        if (m->bytes && bed.plugin->memory_write(r % bed.ngpus, at, m->base, m->bytes, &e))
            fail_msg("%s", e.text);
        out->tensors[i].data = (unsigned char *)(uintptr_t)(at + (uint64_t)(c->args[r].tensors[i].data - m->base));
    }
    if (c->in_place)
        out->tensors[out->ntensors - STAGES + STAGE_RESIDUAL].data = out->tensors[c->result].data;
}

static uint64_t bed_staging(int r, uint64_t bytes, int poison, uint64_t *used)
{
    uint64_t at = bed_place(used, r, bytes, 0);
    unsigned char *image = must(malloc(bytes ? bytes : 1));
    struct error e = {0};

    memset(image, poison, bytes);
    if (bytes && bed.plugin->memory_write(r % bed.ngpus, at, image, bytes, &e))
        fail_msg("%s", e.text);
    free(image);
    return at;
}

static void bed_await(struct gpu_launch *const launches[])
{
    time_t limit = time(NULL) + BED_LIMIT_S;
    struct error e = {0};

    for (int g = 0; g < bed.ngpus; g++) {
        while (launches[g] && !gpu_done_reached(atomic_load(&bed.shared->done[g]), bed.epoch)) {
            if (bed.plugin->health(g, &e))
                fail_msg("%s: %s", case_text, e.text);
            if (time(NULL) > limit)
                fail_msg("%s: GPU %d does not end", case_text, g);
        }
    }
}

/* The launch of one GPU with the ranks there; NULL if there are none. */
static struct gpu_launch *bed_start(const struct test_case *c, struct plan *const plans[], const struct op_args args[],
                                    const uint64_t staging[], int gpu)
{
    uint64_t flags[RANKS], slots[RANKS], at = bed.shared_address;
    struct gpu_run runs[GPU_MAX_RUNS];
    struct gpu_launch *launch;
    struct gpu_factor_scales scales[GPU_MAX_RUNS];
    struct gpu_call call = {.epoch = bed.epoch, .stamp = bed.stamp, .slots_at = bed.stamp % 2 * (uint64_t)BED_SLOTS};
    struct gpu_waits waits = {.count = 0};
    struct gpu_shape shape;
    struct error e = {0};
    int ranks[GPU_MAX_RUNS], n = 0;

    for (int r = 0; r < c->nranks; r++) {
        flags[r] = bed.flags[r].address;
        slots[r] = bed.slots[r].address;
    }
    for (int r = gpu; r < c->nranks; r += bed.ngpus) {
        if (gpu_run_make(plans[r], &runs[n], &e))
            fail_msg("%s: rank %d: %s", case_text, r, e.text);
        call.in[n].failure = at + offsetof(struct bed_shared, failures) + (uint64_t)r * sizeof(struct gpu_failure);
        ranks[n++] = r;
    }
    if (n == 0)
        return NULL;
    call.end.done = at + offsetof(struct bed_shared, done) + (uint64_t)gpu * sizeof(uint64_t);
    gpu_shape_make(c->problem, plans[0], &shape);
    if (bed.plugin->launch_make(gpu, &shape, flags, runs, n, &launch, &e) ||
        gpu_call_fill(bed.plugin, launch, c->problem, args, ranks, n, scales, &call, &e) ||
        bed.plugin->launch_start(launch, &call, staging, slots, &waits, 0, &e))
        fail_msg("%s: GPU %d: %s", case_text, gpu, e.text);
    return launch;
}

/* An output comes back, with what is around it. */
static void bed_fetch(const struct test_case *c, int r, const struct op_args *args, int tensor)
{
    const struct memory *m = &c->memory[r][tensor];
    struct error e = {0};

    if (m->bytes &&
        bed.plugin->memory_copy(m->base, r % bed.ngpus, (uint64_t)(uintptr_t)args->tensors[tensor].data - (uint64_t)m->before,
                                m->bytes, &e))
        fail_msg("%s: rank %d: %s", case_text, r, e.text);
}

/* Runs the plans of all ranks, with poisoned outputs in the case's memory; brings the outputs back. */
static int bed_execute(struct test_case *c, struct plan *const plans[], enum fcc_schedule_kind kind, struct error *e)
{
    struct gpu_launch *launches[GPU_MAX_GPUS] = {NULL};
    uint64_t staging[RANKS], used[RANKS] = {0};
    struct op_args args[RANKS];
    int status = 0;

    for (int r = 0; r < c->nranks; r++) {
        bed_upload(c, r, &args[r], &used[r]);
        assert_true(plans[r]->packet_bytes <= BED_SLOTS);
        staging[r] = bed_staging(r, plans[r]->staging_bytes, kind == FCC_SCHEDULE_COMM_ONLY ? 0 : POISON, &used[r]);
    }
    bed.epoch++;
    bed.stamp++;
    memset(bed.shared->failures, 0, sizeof(bed.shared->failures));
    for (int g = 0; g < bed.ngpus; g++)
        launches[g] = bed_start(c, plans, args, staging, g);
    bed_await(launches);
    for (int g = 0; g < bed.ngpus; g++)
        if (launches[g])
            bed.plugin->launch_free(launches[g]);
    for (int r = 0; r < c->nranks; r++) {
        if (status == 0)
            status = gpu_failure_explain(&bed.shared->failures[r], e);
        if (c->args[r].ntensors)
            bed_fetch(c, r, &args[r], c->result);
        if (c->more)
            bed_fetch(c, r, &args[r], c->more);
    }
    return status;
}

#endif
