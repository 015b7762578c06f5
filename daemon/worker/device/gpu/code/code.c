/* SPDX-License-Identifier: MIT */
#include "daemon/worker/device/gpu/code/code.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/device/gpu/code/code_make.h"
#include "daemon/worker/device/gpu/gpus.h"
#include "kernels/plan/compute/step.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"

#define CODES_MOST 1024 /* of a worker: a job with more different steps has the interpreter for the rest */

/* A step on one GPU. The job is the threads' that make kernels until it is made; all else is the engine's. */
struct gpu_code_entry {
    LIST_ENTRY(gpu_code_entry) link;
    uint64_t hash;
    struct code_job job;
    bool taken;            /* what came of the job has been looked at: */
    struct gpu_code *code; /* NULL: the interpreter runs it */
    char text[FCC_TEXT_MAX];
    size_t bytes; /* of the shape */
    struct code_shape shape;
};

/* Whether the tensors of a request share memory, by a hash of its code, addresses and tables. */
struct share_note {
    uint64_t hash;
    bool is_there, share;
};
#define SHARE_NOTES 16

struct gpu_codes {
    LIST_HEAD(, gpu_code_entry) entries;
    struct share_note notes[SHARE_NOTES];
    unsigned n;
    struct code_maker *maker; /* NULL: no thread is needed yet, or none could be started */
};

/* ---- what a step is ---- */

static size_t shape_bytes(const struct code_shape *s)
{
    return offsetof(struct code_shape, words) + s->nwords * sizeof(s->words[0]);
}

static uint64_t shape_hash(const struct code_shape *s)
{
    const uint8_t *at = (const uint8_t *)s;
    uint64_t hash = UINT64_C(1469598103934665603); /* FNV-1a (Fowler, Noll, Vo) */

    for (size_t i = 0; i < shape_bytes(s); i++)
        hash = (hash ^ at[i]) * UINT64_C(1099511628211);
    return hash;
}

/* False: the request is no step, or one that only says its program's text. */
static bool shape_make(const struct op_args *args, int nranks, struct code_shape *out)
{
    size_t count = 0;
    const int64_t *words = op_is_step(args->op) ? op_attr(args, FCC_ATTR_CODE, &count) : NULL;

    if (!words || words[0] == CODE_TEXT || count > CODE_WORDS_MAX)
        return false;
    memset(out, 0, offsetof(struct code_shape, words));
    out->nranks = nranks;
    out->nwords = (uint32_t)count;
    memcpy(out->words, words, count * sizeof(words[0]));
    const struct code code = shape_code(out);
    struct code_instruction *all = (struct code_instruction *)(uintptr_t)code.instructions;
    for (int64_t i = 0; i < code.head->instructions; i++) {
        all[i].number = 0;
        all[i].key = 0;
    }
    if (code.begins) /* the source takes them from the call */
        memset((void *)(uintptr_t)code.begins, 0, ((size_t)code.head->tensors + 1) * sizeof(code.begins[0]));
    for (int64_t i = 0; i < code.head->operands; i++)
        out->dtypes[code.operands[i].tensor] = (uint8_t)step_tensor_dtype(args, &code.operands[i]);
    if (code_reduces(&code))
        out->in = (uint8_t)args->tensors[STEP_IN].dtype;
    if (code_has_result(&code))
        out->dtypes[CODE_OUT] = (uint8_t)args->tensors[STEP_OUT].dtype;
    return true;
}

static struct gpu_code_entry *entry_find(const struct gpu_codes *codes, const struct code_shape *shape, int gpu, bool is_bound)
{
    const uint64_t hash = shape_hash(shape);
    struct gpu_code_entry *entry;

    if (codes)
        LIST_FOREACH(entry, &codes->entries, link)
            if (entry->hash == hash && entry->job.gpu == gpu && entry->job.is_bound == is_bound &&
                entry->bytes == shape_bytes(shape) && !memcmp(&entry->shape, shape, entry->bytes))
                return entry;
    return NULL;
}

/* ---- making it ---- */

/* Notes a step, and lets its kernel be made. NULL: no memory. */
static struct gpu_code_entry *entry_make(struct gpus *g, int gpu, const struct code_shape *shape, bool is_bound)
{
    const size_t bytes = shape_bytes(shape);
    struct gpu_code_entry *entry = malloc(offsetof(struct gpu_code_entry, shape) + bytes);
    struct error e = {0};

    if (!entry)
        return NULL;
    memset((void *)entry, 0, offsetof(struct gpu_code_entry, shape));
    entry->job.is_bound = is_bound; /* ranks' own processes load it, and the image stays; the worker does not */
    entry->hash = shape_hash(shape);
    entry->bytes = bytes;
    memcpy((void *)&entry->shape, shape, bytes);
    entry->job.gpu = gpu;
    entry->job.shape = &entry->shape;
    LIST_INSERT_HEAD(&g->codes->entries, entry, link);
    g->codes->n++;
    const bool none = strcmp(g->worker->config.gpu_compiler, "none") == 0;
    if (!none && !g->codes->maker && code_maker_open(g->worker, g->plugin, g->ops.kind, &g->codes->maker, &e) && !is_bound)
        log_warning("%s GPU %d: the interpreter runs a program's step: %s", g->ops.kind, gpu, e.text);
    if (none || !g->codes->maker) {
        (void)snprintf(entry->text, sizeof(entry->text), "interpreted: %.480s", none ? "GPU_COMPILER=none" : e.text);
        entry->taken = true;
    } else {
        log_debug("%s GPU %d: a program's step is to have a kernel", g->ops.kind, gpu);
        code_maker_give(g->codes->maker, &entry->job);
    }
    return entry;
}

/* Whether a kernel has been made that is not loaded yet. */
static bool is_to_be_loaded(const struct gpu_code_entry *entry)
{
    return !entry->taken && atomic_load_explicit(&entry->job.made, memory_order_acquire) && entry->job.image;
}

/* Looks at what has been made, and loads it. */
static void entry_take(struct gpus *g, struct gpu_code_entry *entry)
{
    struct code_job *job = &entry->job;

    entry->taken = true;
    if (job->image && g->plugin->code_load(job->gpu, job->image, job->bytes, &entry->code, &job->error)) {
        entry->code = NULL;
        log_warning("%s GPU %d: the interpreter runs a program's step: %s", g->ops.kind, job->gpu, job->error.text);
    }
    free(job->image);
    job->image = NULL;
    (void)snprintf(entry->text, sizeof(entry->text), entry->code ? "generated" : "interpreted: %.480s", job->error.text);
}

/* ---- launches ---- */

/* step_tensors_share(), noted: a step of many tensors mostly comes with the addresses of the run before. */
static bool tensors_share_noted(struct gpu_codes *codes, const struct op_args *args)
{
    size_t count = 0;
    const int64_t *tables = op_attr(args, FCC_ATTR_TABLES, &count), *words;
    uint64_t hash = UINT64_C(1469598103934665603);

    if (!count || !codes)
        return step_tensors_share(args);
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ (uint64_t)tables[i]) * UINT64_C(1099511628211) + (hash >> 29);
    words = op_attr(args, FCC_ATTR_CODE, &count);
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ (uint64_t)words[i]) * UINT64_C(1099511628211) + (hash >> 29);
    for (int i = 0; i < args->ntensors; i++)
        hash = (hash ^ (uint64_t)(uintptr_t)args->tensors[i].data) * UINT64_C(1099511628211) + (hash >> 29);
    struct share_note *note = &codes->notes[hash % SHARE_NOTES];
    if (note->hash != hash || !note->is_there)
        *note = (struct share_note){.hash = hash, .is_there = true, .share = step_tensors_share(args)};
    return note->share;
}

/* Why the interpreter runs a part in any case; NULL: a generated kernel may. One kernel runs all ranks of the GPU. */
static const char *part_refuse(const struct launch *l, const struct launch_part *p, struct gpu_codes *codes,
                               const struct code_shape *shape)
{
    struct code_shape other;

    for (int i = 0; i < p->nruns; i++) {
        const struct op_args *args = &l->args[p->ranks[i]];
        if (i && (!shape_make(args, l->nranks, &other) || shape_bytes(&other) != shape_bytes(shape) ||
                  memcmp(&other, shape, shape_bytes(shape)) != 0))
            return "interpreted: ranks of one GPU have tensors of different dtypes";
        if (tensors_share_noted(codes, args))
            return "interpreted: tensors of the step share memory";
    }
    return NULL;
}

static bool codes_have(struct gpus *g)
{
    if (!g->codes && (g->codes = calloc(1, sizeof(*g->codes))) != NULL)
        LIST_INIT(&g->codes->entries);
    return g->codes != NULL;
}

/* The entry of a step whose kernel is known, or is known not to be; NULL: *why says why the interpreter runs it this time. */
static struct gpu_code_entry *part_entry(struct gpus *g, int gpu, const struct code_shape *shape, const char **why)
{
    struct gpu_code_entry *entry = entry_find(g->codes, shape, gpu, false);

    *why = "interpreted: the job has more steps than the worker keeps code of";
    if (!entry && g->codes && g->codes->n >= CODES_MOST)
        return NULL;
    *why = "interpreted: out of memory";
    if (!entry && (!codes_have(g) || !(entry = entry_make(g, gpu, shape, false))))
        return NULL;
    *why = "interpreted: its kernel is being made";
    if (!entry->taken && !atomic_load_explicit(&entry->job.made, memory_order_acquire))
        return NULL;
    *why = "interpreted: other operators run now";
    if (is_to_be_loaded(entry) && g->in_flight > 1)
        return NULL;
    if (!entry->taken)
        entry_take(g, entry);
    return entry;
}

void gpu_code_choose(struct launch *l, struct launch_part *p)
{
    struct gpus *g = l->worker->gpus;
    struct code_shape shape;
    struct gpu_code_entry *entry = NULL;
    struct error e = {0};
    const uint64_t begin = clock_ns();

    p->code_text = NULL;
    if (!shape_make(&l->args[p->ranks[0]], l->nranks, &shape))
        return;
    p->code_text = part_refuse(l, p, g->codes, &shape);
    if (!p->code_text && (entry = part_entry(g, p->device->index, &shape, &p->code_text)) != NULL)
        p->code_text = entry->text;
    l->span.started_ns += clock_ns() - begin; /* the operator's time limit is for its kernels */
    if (g->plugin->launch_code(p->gpu, entry ? entry->code : NULL, &e)) {
        log_warning("%s GPU %d: the interpreter runs a program's step: %s", g->ops.kind, p->device->index, e.text);
        p->code_text = "interpreted: its kernel does not fit on the GPU";
    }
}

bool gpu_code_may_follow(const struct gpus *g, const struct op_args *args, int nranks)
{
    struct code_shape shape;
    const struct gpu_code_entry *entry;

    if (!g->codes || !shape_make(args, nranks, &shape))
        return true;
    for (int gpu = 0; gpu < g->count; gpu++)
        if ((entry = entry_find(g->codes, &shape, gpu, false)) != NULL && is_to_be_loaded(entry))
            return false;
    return true;
}

/* ---- bound steps ---- */

int gpu_code_ask(struct gpus *g, int gpu, const struct op_args *args, int nranks, struct gpu_code_entry **out, struct error *e)
{
    struct code_shape shape;
    struct gpu_code_entry *entry;

    if (!shape_make(args, nranks, &shape))
        return error_set(e, -EINVAL, "a program's text: allowed is a step");
    if (!codes_have(g))
        return error_set(e, -ENOMEM, "out of memory");
    entry = entry_find(g->codes, &shape, gpu, true);
    if (!entry && g->codes->n >= CODES_MOST)
        return error_set(e, -ENOMEM, "the job has %u kernels of programs' steps: no more are allowed", g->codes->n);
    if (!entry && !(entry = entry_make(g, gpu, &shape, true)))
        return error_set(e, -ENOMEM, "out of memory");
    *out = entry;
    return 0;
}

int gpu_code_image(const struct gpu_code_entry *entry, const void **image, size_t *bytes, struct error *e)
{
    if (entry->taken) /* there is no compiler: "interpreted: why" */
        return error_set(e, -EOPNOTSUPP, "its kernel cannot be made: %s", strchr(entry->text, ' ') + 1);
    if (!atomic_load_explicit(&entry->job.made, memory_order_acquire))
        return error_set(e, -EAGAIN, "its kernel is being made");
    if (!entry->job.image)
        return error_set(e, -EOPNOTSUPP, "its kernel cannot be made: %s", entry->job.error.text);
    *image = entry->job.image;
    *bytes = entry->job.bytes;
    return 0;
}

bool gpu_codes_are_made(const struct gpus *g)
{
    const struct gpu_code_entry *entry;

    if (g && g->codes)
        LIST_FOREACH(entry, &g->codes->entries, link)
            if (!entry->taken && !atomic_load_explicit(&entry->job.made, memory_order_acquire))
                return true;
    return false;
}

void gpu_codes_free(struct gpus *g)
{
    struct gpu_codes *codes = g->codes;
    struct gpu_code_entry *entry;

    g->codes = NULL;
    if (!codes)
        return;
    const bool ended = code_maker_close(codes->maker);
    while ((entry = LIST_FIRST(&codes->entries)) != NULL) {
        LIST_REMOVE(entry, link);
        if (entry->code)
            g->plugin->code_free(entry->code);
        if (!ended) /* a thread may have its job */
            continue;
        free(entry->job.image);
        free(entry);
    }
    free(codes);
}
