/* SPDX-License-Identifier: MIT
 *
 * gpu_kernels_prepare.c - GPUs, memory, plans and launches, as the daemon's worker has them (daemon/worker/device/gpu/device.c).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/common/plugin.h"
#include "daemon/worker/device/gpu/call.h"
#include "tests/bench/gpu_kernels.h"

enum {
    SHARED_BYTES = 1 << 16,
    CACHE_BYTES = 50 << 20, /* of the largest of these GPUs */
    CACHES_TO_PASS = 4,     /* inputs are taken in turns until so many have gone by */
    SETS_MOST = 4096,
    ATTRS = 8,
};
static_assert(sizeof(struct shared) <= SHARED_BYTES, "its room");

struct bench bench;

/* ---- GPUs ---- */

static int plugin_choose(const struct options *o, struct error *e)
{
    char text[FCC_TEXT_MAX / 2] = "";
    size_t n = 0;

    for (int i = 0; i < PLUGIN_KINDS; i++) {
        struct error why = {0};
        if (o->device && strcmp(o->device, plugin_kinds[i]) != 0)
            continue;
        const struct gpu_plugin *plugin = plugin_load(plugin_kinds[i], o->plugin_dir, &why);
        int count = plugin ? plugin->count(&why) : why.status;
        if (count > 0) {
            bench.plugin = plugin;
            return count;
        }
        if (count != -ENODEV && count != -ENOENT)
            return error_set(e, count, "%s", why.text);
        if (n < sizeof(text))
            n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s: %s", n ? "; " : "", plugin_kinds[i], why.text);
    }
    return error_set(e, -ENODEV, "%s", text);
}

static int shared_open(struct error *e)
{
    bench.shared = mmap(NULL, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (bench.shared == MAP_FAILED)
        return error_set(e, -ENOMEM, "no memory for what is shared with the GPUs");
    return bench.plugin->host_register(bench.shared, SHARED_BYTES, &bench.address, e);
}

int bench_open(const struct options *o, struct error *e)
{
    struct gpu_description description;
    int count = plugin_choose(o, e), status;

    if (count < 0)
        return count;
    bench.nranks = o->nranks ? o->nranks : count;
    bench.ngpus = bench.nranks < count ? bench.nranks : count;
    if (bench.nranks > bench.ngpus * GPU_MAX_RUNS || bench.nranks > FCC_MAX_RANKS)
        return error_set(e, -EINVAL, "%d ranks: %d GPUs take at most %d", bench.nranks, bench.ngpus,
                         bench.ngpus * GPU_MAX_RUNS);
    status = bench.plugin->open((1u << bench.ngpus) - 1, false, e);
    for (int g = 0; g < bench.ngpus && status == 0; g++) {
        status = bench.plugin->describe(g, &description, e);
        if (status == 0 && o->gated && !description.stream_memory_operations)
            status = error_set(e, -ENOTSUP, "GPU %d cannot wait for a word: --gated is not possible", g);
    }
    if (status == 0)
        status = shared_open(e);
    for (int r = 0; r < bench.nranks && status == 0; r++) {
        bench.ranks[r].gpu = r % bench.ngpus;
        status =
            bench.plugin->memory_alloc(bench.ranks[r].gpu, GPU_FLAG_WORDS * sizeof(uint64_t), &bench.ranks[r].flags, NULL, e);
    }
    if (status == 0)
        (void)snprintf(bench.name, sizeof(bench.name), "%s", description.name);
    return status;
}

void bench_close(void)
{
    for (int r = 0; r < bench.nranks; r++) {
        struct rank_memory *m = &bench.ranks[r];
        struct gpu_memory *const all[] = {&m->numbers, &m->ids, &m->offsets, &m->out, &m->staging, &m->slots, &m->flags};
        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
            if (all[i]->bytes)
                bench.plugin->memory_free(all[i]);
    }
    bench.plugin->host_unregister(bench.shared);
    bench.plugin->close();
}

/* ---- memory ---- */

/* At least so many bytes; *fresh says that what was in it is gone. */
static int memory_grow(int gpu, struct gpu_memory *m, uint64_t bytes, bool *fresh, struct error *e)
{
    *fresh = m->bytes < bytes;
    if (!*fresh)
        return 0;
    if (m->bytes)
        bench.plugin->memory_free(m);
    *m = (struct gpu_memory){0};
    return bench.plugin->memory_alloc(gpu, bytes, m, NULL, e);
}

/* Elements [from, to) of a rank's sequence, to where element 0 is `address`. */
static int sequence_write(int rank, const void *(*piece)(int, uint64_t, uint64_t *), uint64_t address, uint64_t from,
                          uint64_t to, size_t size, struct error *e)
{
    int status = 0;

    while (from < to && status == 0) {
        uint64_t count;
        const void *data = piece(rank, from, &count);
        count = count < to - from ? count : to - from;
        status = bench.plugin->memory_write(bench.ranks[rank].gpu, address + from * size, data, count * size, e);
        from += count;
    }
    return status;
}

static int numbers_fill(int rank, enum fcc_dtype dtype, uint64_t count, struct error *e)
{
    struct rank_memory *m = &bench.ranks[rank];
    bool fresh;
    int status = memory_grow(m->gpu, &m->numbers, count * dtype_size(dtype), &fresh, e);

    if (fresh || m->numbers_dtype != dtype)
        m->numbers_filled = 0;
    m->numbers_dtype = dtype;
    if (status || m->numbers_filled >= count)
        return status;
    status = sequence_write(rank, numbers_piece, m->numbers.address, m->numbers_filled, count, dtype_size(dtype), e);
    m->numbers_filled = status ? 0 : count;
    return status;
}

static int ids_fill(int rank, const struct row *row, uint64_t count, struct error *e)
{
    struct rank_memory *m = &bench.ranks[rank];
    bool fresh;
    int status = memory_grow(m->gpu, &m->ids, count * sizeof(int64_t), &fresh, e);

    if (fresh || m->ids_rows != row->rows || m->ids_zipf != row->zipf)
        m->ids_filled = 0;
    m->ids_rows = row->rows;
    m->ids_zipf = row->zipf;
    if (status || m->ids_filled >= count)
        return status;
    status = sequence_write(rank, ids_piece, m->ids.address, m->ids_filled, count, sizeof(int64_t), e);
    m->ids_filled = status ? 0 : count;
    return status;
}

static int offsets_fill(int rank, int64_t bags, int64_t each, struct error *e)
{
    struct rank_memory *m = &bench.ranks[rank];
    int64_t *offsets = malloc((size_t)(bags + 1) * sizeof(int64_t));
    bool fresh;

    if (!offsets)
        return error_set(e, -ENOMEM, "no memory for %" PRId64 " offsets", bags + 1);
    for (int64_t i = 0; i <= bags; i++)
        offsets[i] = i * each;
    int status = memory_grow(m->gpu, &m->offsets, (uint64_t)(bags + 1) * sizeof(int64_t), &fresh, e);
    if (status == 0)
        status = bench.plugin->memory_write(m->gpu, m->offsets.address, offsets, (uint64_t)(bags + 1) * sizeof(int64_t), e);
    free(offsets);
    return status;
}

int memory_fill(int gpu, uint64_t address, uint64_t bytes, int byte, struct error *e)
{
    static unsigned char block[16 << 20];
    int status = 0;

    memset(block, byte, sizeof(block));
    for (uint64_t done = 0; done < bytes && status == 0; done += sizeof(block)) {
        uint64_t n = bytes - done < sizeof(block) ? bytes - done : sizeof(block);
        status = bench.plugin->memory_write(gpu, address + done, block, n, e);
    }
    return status;
}

/* ---- preparing a row ---- */

static int64_t share_of(int64_t total, int rank)
{
    return total / bench.nranks + (rank < total % bench.nranks);
}

int64_t result_elements(const struct row *row, int rank)
{
    if (row->op == FCC_OP_EMBEDDING_ALL_TO_ALL)
        return share_of(row->batch, rank) * row->tables * bench.nranks * row->dim;
    return row->m * row->n;
}

static uint64_t aligned(int64_t elements)
{
    return ((uint64_t)elements + 255) / 256 * 256;
}

/* How many sets of inputs there are, where they begin, and how much of its sequences a rank needs. */
static int sets_place(struct prepared *p, uint64_t *numbers, uint64_t *ids, struct error *e)
{
    const struct row *s = p->row;
    bool embedding = s->op == FCC_OP_EMBEDDING_ALL_TO_ALL;
    int64_t first = embedding ? s->tables * s->batch * s->ids : s->m * s->k, second = embedding ? 0 : s->n * s->k;
    uint64_t read = (uint64_t)(embedding ? first * s->dim : first + second) * dtype_size(s->dtype),
             each = aligned(first) + aligned(second);
    uint64_t sets = read ? ((uint64_t)CACHES_TO_PASS * CACHE_BYTES + read - 1) / read : 1;

    p->nsets = (int)(s->kind == FCC_SCHEDULE_COMM_ONLY || !read ? 1 : sets < 2 ? 2 : sets > SETS_MOST ? SETS_MOST : sets);
    p->sets = calloc((size_t)p->nsets, sizeof(p->sets[0]));
    p->args = calloc((size_t)p->nsets * (size_t)bench.nranks, sizeof(p->args[0]));
    if (!p->sets || !p->args)
        return error_set(e, -ENOMEM, "no memory for %d sets of inputs", p->nsets);
    for (int i = 0; i < p->nsets; i++)
        p->sets[i] = (struct input_set){.first = (uint64_t)i * each, .second = (uint64_t)i * each + aligned(first)};
    *numbers = embedding ? (uint64_t)(s->tables * s->rows * s->dim) : (uint64_t)p->nsets * each;
    *ids = embedding ? (uint64_t)p->nsets * each : 0;
    return 0;
}

static struct tensor tensor_make(uint64_t address, enum fcc_dtype dtype, int ndim, int64_t n0, int64_t n1, int64_t n2)
{
    struct tensor t = {.data = (unsigned char *)(uintptr_t)address, .dtype = dtype, .ndim = ndim, .shape = {n0, n1, n2}};
    int64_t stride = 1;

    for (int i = ndim - 1; i >= 0; i--) {
        t.stride[i] = stride;
        stride *= t.shape[i] > 0 ? t.shape[i] : 1;
    }
    return t;
}

static void args_make(const struct prepared *p, const struct input_set *set, int rank, struct op_args *a)
{
    const struct row *s = p->row;
    const struct rank_memory *m = &bench.ranks[rank];
    uint64_t size = dtype_size(s->dtype), first = m->numbers.address + set->first * size,
             second = m->numbers.address + set->second * size;
    struct tensor *t = a->tensors;

    *a = (struct op_args){
        .op = s->op, .schedule = s->kind, .ntensors = op_spec(s->op)->ntensors, .attrs = p->attrs, .nattrs = p->nattrs};
    switch (s->op) {
    case FCC_OP_GEMV_ALL_REDUCE:
        t[FCC_GEMV_X] = tensor_make(first, s->dtype, 2, s->m, s->k, 0);
        t[FCC_GEMV_W] = tensor_make(second, s->dtype, 2, s->n, s->k, 0);
        t[FCC_GEMV_Y] = tensor_make(m->out.address, s->dtype, 2, s->m, s->n, 0);
        break;
    case FCC_OP_GEMM_ALL_TO_ALL:
    case FCC_OP_GEMM_ALL_REDUCE:
        t[FCC_GEMM_A] = tensor_make(first, s->dtype, 2, s->m, s->k, 0);
        t[FCC_GEMM_B] = tensor_make(second, s->dtype, 2, s->k, s->n, 0);
        t[FCC_GEMM_C] = tensor_make(m->out.address, s->dtype, 2, s->m, s->n, 0);
        break;
    case FCC_OP_EMBEDDING_ALL_TO_ALL:
        t[FCC_EMB_TABLES] = tensor_make(m->numbers.address, s->dtype, 2, s->tables * s->rows, s->dim, 0);
        t[FCC_EMB_INDICES] =
            tensor_make(m->ids.address + set->first * sizeof(int64_t), FCC_I64, 1, s->tables * s->batch * s->ids, 0, 0);
        t[FCC_EMB_OFFSETS] = tensor_make(m->offsets.address, FCC_I64, 1, s->tables * s->batch + 1, 0, 0);
        t[FCC_EMB_OUT] = tensor_make(m->out.address, s->dtype, 3, share_of(s->batch, rank), s->tables * bench.nranks, s->dim);
        break;
    default: /* without tensors */
        break;
    }
    for (int i = 0; i < a->ntensors; i++)
        a->tensors[i].symmetric = true;
}

static int64_t attr_word(enum fcc_attr key, uint32_t count)
{
    return (int64_t)((uint64_t)key << 32 | count);
}

static int attrs_make(struct prepared *p, struct error *e)
{
    const struct row *s = p->row;
    size_t n = 0;

    if (s->op != FCC_OP_EMBEDDING_ALL_TO_ALL)
        return 0;
    p->attrs = calloc((size_t)s->tables + ATTRS, sizeof(p->attrs[0]));
    if (!p->attrs)
        return error_set(e, -ENOMEM, "no memory for %" PRId64 " tables", s->tables);
    p->attrs[n++] = attr_word(FCC_ATTR_TABLE_ROWS, (uint32_t)s->tables);
    for (int64_t t = 0; t < s->tables; t++)
        p->attrs[n++] = s->rows;
    p->attrs[n++] = attr_word(FCC_ATTR_POOLING, 1);
    p->attrs[n++] = FCC_POOLING_SUM;
    p->attrs[n++] = attr_word(FCC_ATTR_BATCH, 1);
    p->attrs[n++] = s->batch;
    p->nattrs = n;
    return 0;
}

/* All ranks' inputs and room for their results. */
static int inputs_make(struct prepared *p, struct error *e)
{
    const struct row *s = p->row;
    uint64_t nnumbers = 0, nids = 0;
    bool fresh;
    int status = sets_place(p, &nnumbers, &nids, e);

    if (status == 0 && nnumbers)
        status = numbers_open(p->options->seed, s->dtype, e);
    if (status == 0 && nids)
        status = ids_open(p->options->seed, s->rows, s->zipf, e);
    if (status == 0)
        status = attrs_make(p, e);
    for (int r = 0; r < bench.nranks && status == 0; r++) {
        struct rank_memory *m = &bench.ranks[r];
        if (nnumbers)
            status = numbers_fill(r, s->dtype, nnumbers, e);
        if (status == 0 && nids)
            status = ids_fill(r, s, nids, e);
        if (status == 0 && nids)
            status = offsets_fill(r, s->tables * s->batch, s->ids, e);
        if (status == 0 && result_elements(s, r))
            status = memory_grow(m->gpu, &m->out, (uint64_t)result_elements(s, r) * dtype_size(s->dtype), &fresh, e);
        for (int i = 0; i < p->nsets && status == 0; i++)
            args_make(p, &p->sets[i], r, &p->args[i * bench.nranks + r]);
    }
    return status;
}

static int plans_make(struct prepared *p, struct error *e)
{
    const struct row *s = p->row;
    struct schedule schedule = {
        .kind = s->kind, .target = PLAN_GPU, .slice_rows = (uint32_t)s->slice_rows, .slice_cols = (uint32_t)s->slice_cols};
    int status = 0;

    p->problem = problem_new(bench.nranks);
    if (!p->problem || problem_begin(p->problem, s->op))
        return error_set(e, -ENOMEM, "no memory for a problem");
    for (int r = 0; r < bench.nranks && status == 0; r++)
        status = op_check(&p->args[r], bench.nranks, r, e);
    if (status == 0)
        status = op_match(p->args, bench.nranks, p->problem, e);
    for (int r = 0; r < bench.nranks && status == 0; r++)
        status = plan_make(p->problem, r, &schedule, &p->plans[r], e);
    return status;
}

/* What comm_only sends is numbers too: sums of the gemv are f32 before they are added. */
static int staging_make(struct prepared *p, struct error *e)
{
    enum fcc_dtype dtype = p->row->op == FCC_OP_GEMV_ALL_REDUCE ? FCC_F32 : p->row->dtype;
    int status = 0;

    for (int r = 0; r < bench.nranks && status == 0; r++) {
        struct rank_memory *m = &bench.ranks[r];
        uint64_t bytes = p->plans[r]->staging_bytes;
        bool fresh;
        if (bytes == 0)
            continue;
        status = memory_grow(m->gpu, &m->staging, bytes, &fresh, e);
        if (status == 0 && p->row->kind == FCC_SCHEDULE_COMM_ONLY)
            status = numbers_open(p->options->seed, dtype, e);
        if (status == 0 && p->row->kind == FCC_SCHEDULE_COMM_ONLY)
            status = sequence_write(r, numbers_piece, m->staging.address, 0, bytes / dtype_size(dtype), dtype_size(dtype), e);
        p->staging[r] = m->staging.address;
    }
    return status;
}

/* Two halves for calls by turns, as the worker has them. */
static int slots_make(struct prepared *p, struct error *e)
{
    int status = 0;

    for (int r = 0; r < bench.nranks; r++)
        p->slots_bytes = p->plans[r]->packet_bytes > p->slots_bytes ? p->plans[r]->packet_bytes : p->slots_bytes;
    for (int r = 0; r < bench.nranks && p->slots_bytes && status == 0; r++) {
        struct rank_memory *m = &bench.ranks[r];
        bool fresh;
        status = memory_grow(m->gpu, &m->slots, 2 * p->slots_bytes, &fresh, e);
        p->slots[r] = m->slots.address;
    }
    return status;
}

static int launches_make(struct prepared *p, struct error *e)
{
    struct gpu_shape shape;
    uint64_t flags[FCC_MAX_RANKS];
    int status = 0;

    gpu_shape_make(p->problem, p->plans[0], &shape);
    for (int r = 0; r < bench.nranks; r++) {
        int g = bench.ranks[r].gpu;
        flags[r] = bench.ranks[r].flags.address;
        p->local[g][p->nlocal[g]++] = r;
    }
    for (int g = 0; g < bench.ngpus && status == 0; g++) {
        struct gpu_run runs[GPU_MAX_RUNS];
        for (int i = 0; i < p->nlocal[g] && status == 0; i++)
            status = gpu_run_make(p->plans[p->local[g][i]], &runs[i], e);
        if (status == 0)
            status = bench.plugin->launch_make(g, &shape, flags, runs, p->nlocal[g], &p->launches[g], e);
    }
    return status;
}

int prepared_make(struct prepared *p, struct error *e)
{
    int status = inputs_make(p, e);

    if (status == 0)
        status = plans_make(p, e);
    if (status == 0)
        status = staging_make(p, e);
    if (status == 0)
        status = slots_make(p, e);
    return status ? status : launches_make(p, e);
}

void prepared_free(struct prepared *p)
{
    for (int g = 0; g < bench.ngpus; g++)
        if (p->launches[g])
            bench.plugin->launch_free(p->launches[g]);
    for (int r = 0; r < bench.nranks; r++)
        plan_free(p->plans[r]);
    problem_free(p->problem);
    free(p->attrs);
    free(p->sets);
    free(p->args);
}
