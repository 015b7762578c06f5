/* SPDX-License-Identifier: MIT */
#include "daemon/worker/device/gpu/code.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/device/gpu/gpus.h"
#include "kernels/plan/compute/step.h"
#include "kernels/generate/generate.h"
#include "proto/base/clock.h"
#include "proto/base/disk_cache.h"
#include "proto/base/log.h"

#define CODES_MOST 1024 /* of a worker: a job with more different steps has the interpreter for the rest */
#define CACHE_FILE_BYTES (8u << 20)
#define CACHE_FILES 1024

/* What a step's source follows from. */
struct code_shape {
    int32_t nranks;
    uint8_t in, dtypes[CODE_TENSORS + 1];
    uint32_t nwords;
    int64_t words[CODE_WORDS_MAX]; /* numbers and keys that a run may have anew are 0 */
};

/* A step on one GPU. */
struct gpu_code_entry {
    LIST_ENTRY(gpu_code_entry) link;
    uint64_t hash;
    int gpu;
    struct gpu_code *code; /* NULL: the interpreter runs it */
    char text[FCC_TEXT_MAX];
    size_t bytes; /* of the shape */
    struct code_shape shape;
};

struct gpu_codes {
    LIST_HEAD(, gpu_code_entry) entries;
    unsigned n;
    bool cache_told; /* the log says already that the cache on disk cannot be used */
    /* The newest image, for the other GPUs of its chip. */
    char *key;
    void *image;
    size_t bytes;
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

/* The code whose words are a shape's. */
static struct code shape_code(struct code_shape *s)
{
    struct code code = {.head = (const struct code_head *)(void *)s->words};

    code.operands = (const struct code_operand *)(const void *)(code.head + 1);
    code.instructions = (const struct code_instruction *)(const void *)(code.operands + code.head->operands);
    return code;
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
    for (int64_t i = 0; i < code.head->operands; i++)
        out->dtypes[code.operands[i].tensor] = (uint8_t)step_tensor(args, &code.operands[i])->dtype;
    if (code.head->kind == CODE_REDUCE) {
        out->in = (uint8_t)args->tensors[STEP_IN].dtype;
        out->dtypes[CODE_OUT] = (uint8_t)args->tensors[STEP_OUT].dtype;
    }
    return true;
}

static struct gpu_code_entry *entry_find(const struct gpu_codes *codes, const struct code_shape *shape, int gpu)
{
    const uint64_t hash = shape_hash(shape);
    struct gpu_code_entry *entry;

    if (codes)
        LIST_FOREACH(entry, &codes->entries, link)
            if (entry->hash == hash && (gpu < 0 || entry->gpu == gpu) && entry->bytes == shape_bytes(shape) &&
                !memcmp(&entry->shape, shape, entry->bytes))
                return entry;
    return NULL;
}

/* ---- making it ---- */

static char *source_make(struct code_shape *shape, struct error *e)
{
    const struct code code = shape_code(shape);
    struct generate g = {.code = &code, .in = (enum fcc_dtype)shape->in, .nranks = shape->nranks};

    for (int i = 0; i <= CODE_TENSORS; i++)
        g.dtypes[i] = (enum fcc_dtype)shape->dtypes[i];
    return code_generate(&g, e);
}

/* The user's cache: below CODE_CACHE, or in the user's home. */
static struct disk_cache cache_of(const struct worker *w, char directory[300])
{
    if (w->config.code_cache[0])
        (void)snprintf(directory, 300, "%s/%u", w->config.code_cache, (unsigned)geteuid());
    return (struct disk_cache){.directory = w->config.code_cache[0] ? directory : NULL,
                               .name = "fccd-code",
                               .bytes_most = CACHE_FILE_BYTES,
                               .files_most = CACHE_FILES};
}

static void cache_tell(struct gpu_codes *codes, const char *what, const struct error *e)
{
    if (!codes->cache_told)
        log_warning("generated code is not %s disk: %s", what, e->text);
    codes->cache_told = true;
}

/* The image of a key: what was compiled last, from the disk, or compiled now. It belongs to `codes`. */
static int image_get(struct gpus *g, int gpu, const char *key, const char *source, struct error *e)
{
    struct gpu_codes *codes = g->codes;
    struct error cache_error = {0};
    char directory[300], path[DISK_CACHE_PATH];
    const struct disk_cache cache = cache_of(g->worker, directory);
    const uint64_t begin = clock_ns();
    void *image;
    size_t bytes = 0;

    if (codes->key && !strcmp(codes->key, key))
        return 0;
    image = disk_cache_read(&cache, key, &bytes, &cache_error);
    const bool was_there = image != NULL;
    if (!image && cache_error.status != -ENOENT)
        cache_tell(codes, "taken from", &cache_error);
    if (!image && g->plugin->code_compile(gpu, source, &image, &bytes, e))
        return e->status;
    if (!was_there) {
        log_info("%s GPU %d: compiled a program's step in %.1f ms", g->ops.kind, gpu, (double)(clock_ns() - begin) / 1e6);
        if (disk_cache_write(&cache, key, image, bytes, path, &cache_error))
            cache_tell(codes, "kept on", &cache_error);
    }
    free(codes->key);
    free(codes->image);
    codes->key = strdup(key);
    codes->image = image;
    codes->bytes = bytes;
    return codes->key ? 0 : error_set(e, -ENOMEM, "out of memory");
}

/* A kernel of a step on a GPU. */
static struct gpu_code *code_make(struct gpus *g, int gpu, struct code_shape *shape, struct error *e)
{
    const char *given = g->worker->config.gpu_compiler;
    char text[GPU_COMPILER_TEXT], *key = NULL;
    struct gpu_code *code = NULL;

    if (!strcmp(given, "none")) {
        (void)error_set(e, -EOPNOTSUPP, "GPU_COMPILER=none");
        return NULL;
    }
    char *source = source_make(shape, e);
    if (source && !g->plugin->compiler(gpu, strcmp(given, "auto") != 0 ? given : NULL, text, e) &&
        asprintf(&key, "%s\n%s", text, source) < 0) {
        key = NULL;
        (void)error_set(e, -ENOMEM, "out of memory");
    }
    if (key && image_get(g, gpu, key, source, e) == 0 && g->plugin->code_load(gpu, g->codes->image, g->codes->bytes, &code, e))
        code = NULL;
    free(key);
    free(source);
    return code;
}

/* Notes what runs a step; NULL: no memory. */
static struct gpu_code_entry *entry_make(struct gpus *g, int gpu, struct code_shape *shape)
{
    const size_t bytes = shape_bytes(shape);
    struct gpu_code_entry *entry = malloc(offsetof(struct gpu_code_entry, shape) + bytes);
    struct error e = {0};

    if (!entry)
        return NULL;
    entry->hash = shape_hash(shape);
    entry->gpu = gpu;
    entry->bytes = bytes;
    memcpy((void *)&entry->shape, shape, bytes);
    entry->code = code_make(g, gpu, shape, &e);
    (void)snprintf(entry->text, sizeof(entry->text), entry->code ? "generated" : "interpreted: %.480s", e.text);
    if (!entry->code && strcmp(g->worker->config.gpu_compiler, "none") != 0)
        log_warning("%s GPU %d: the interpreter runs a program's step: %s", g->ops.kind, gpu, e.text);
    LIST_INSERT_HEAD(&g->codes->entries, entry, link);
    g->codes->n++;
    return entry;
}

/* ---- launches ---- */

static bool overlap(const struct tensor *a, const struct tensor *b)
{
    const unsigned char *a_end = a->data + (size_t)a->shape[0] * dtype_size(a->dtype),
                        *b_end = b->data + (size_t)b->shape[0] * dtype_size(b->dtype);

    return a->data < b_end && b->data < a_end;
}

/* Whether a tensor that the step stores into shares memory with another one that it uses: the kernel loads everything before it stores, the interpreter
 * instruction by instruction. */
static bool tensors_share(const struct op_args *args, struct code_shape *shape)
{
    const struct code code = shape_code(shape);
    const uint32_t stores = code_stores(&code), used = stores | code_loads(&code);

    for (int64_t a = 0; a < CODE_TENSORS; a++)
        for (int64_t b = 0; stores >> a & 1 && b <= CODE_OUT; b++)
            if (a != b && used >> b & 1 &&
                overlap(step_tensor(args, &(struct code_operand){.tensor = a}),
                        step_tensor(args, &(struct code_operand){.tensor = b})))
                return true;
    return false;
}

/* Why the interpreter runs a part in any case; NULL: a generated kernel may. One kernel runs all ranks of the GPU. */
static const char *part_refuse(const struct launch *l, const struct launch_part *p, struct code_shape *shape)
{
    struct code_shape other;

    for (int i = 0; i < p->nruns; i++) {
        const struct op_args *args = &l->args[p->ranks[i]];
        if (i && (!shape_make(args, l->nranks, &other) || shape_bytes(&other) != shape_bytes(shape) ||
                  memcmp(&other, shape, shape_bytes(shape)) != 0))
            return "interpreted: ranks of one GPU have tensors of different dtypes";
        if (tensors_share(args, shape))
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

/* The entry of a step that may run a generated kernel; NULL: *why says why the interpreter runs it this time. */
static struct gpu_code_entry *part_entry(struct gpus *g, int gpu, struct code_shape *shape, const char **why)
{
    struct gpu_code_entry *entry = entry_find(g->codes, shape, gpu);

    if (entry)
        return entry;
    *why = "interpreted: other operators run now";
    if (g->in_flight > 1)
        return NULL;
    *why = "interpreted: the job has more steps than the worker keeps code of";
    if (g->codes && g->codes->n >= CODES_MOST)
        return NULL;
    *why = "interpreted: out of memory";
    return codes_have(g) ? entry_make(g, gpu, shape) : NULL;
}

void gpu_code_choose(struct launch *l, struct launch_part *p)
{
    struct gpus *g = l->worker->gpus;
    struct code_shape shape;
    struct gpu_code_entry *entry = NULL;
    struct error e = {0};

    p->code_text = NULL;
    if (!shape_make(&l->args[p->ranks[0]], l->nranks, &shape))
        return;
    p->code_text = part_refuse(l, p, &shape);
    if (!p->code_text && (entry = part_entry(g, p->device->index, &shape, &p->code_text)) != NULL)
        p->code_text = entry->text;
    if (g->plugin->launch_code(p->gpu, entry ? entry->code : NULL, &e)) {
        log_warning("%s GPU %d: the interpreter runs a program's step: %s", g->ops.kind, p->device->index, e.text);
        p->code_text = "interpreted: its kernel does not fit on the GPU";
    }
}

bool gpu_code_is_known(const struct gpus *g, const struct op_args *args, int nranks)
{
    struct code_shape shape;

    return !shape_make(args, nranks, &shape) || (g->codes && g->codes->n >= CODES_MOST) || entry_find(g->codes, &shape, -1);
}

void gpu_codes_free(struct gpus *g)
{
    struct gpu_codes *codes = g->codes;
    struct gpu_code_entry *entry;

    while (codes && (entry = LIST_FIRST(&codes->entries)) != NULL) {
        LIST_REMOVE(entry, link);
        if (entry->code)
            g->plugin->code_free(entry->code);
        free(entry);
    }
    if (codes) {
        free(codes->key);
        free(codes->image);
    }
    free(codes);
    g->codes = NULL;
}
