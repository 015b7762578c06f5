/* SPDX-License-Identifier: MIT
 *
 * code_make.c - one thread for all GPUs of the worker, so two programs that need the same code get it from one compilation: the second finds the newest
 * image, or the file, of the first. (Workers of other jobs may compile the same at the same time: who is last replaces the file by the same bytes.)
 *
 * Locks. `lock` guards the list of jobs and `stop`. It is not held while something is made. The plug-in's compiler is called by this thread alone.
 */
#include "daemon/worker/device/gpu/code_make.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/worker/device/gpu/gpus.h"
#include "kernels/generate/generate.h"
#include "proto/base/clock.h"
#include "proto/base/disk_cache.h"
#include "proto/base/log.h"

#define CACHE_FILE_BYTES (8u << 20)
#define CACHE_FILES 1024
#define CLOSE_SECONDS 20 /* a step takes about half a second, the longest that there can be some */

struct code_maker {
    const struct gpu_plugin *plugin;
    const char *kind;
    char compiler[sizeof(((struct config *)0)->gpu_compiler)],
        cache[sizeof(((struct config *)0)->code_cache)]; /* as configured */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t given;
    STAILQ_HEAD(, code_job) jobs;
    bool stop;
    /* The thread's: the newest image, for the other GPUs of its chip. */
    char *key;
    void *image;
    size_t bytes;
    bool cache_told; /* the log says already that the cache on disk cannot be used */
};

struct code shape_code(const struct code_shape *s)
{
    struct code code = {.head = (const struct code_head *)(const void *)s->words};

    code.operands = (const struct code_operand *)(const void *)(code.head + 1);
    code.instructions = (const struct code_instruction *)(const void *)(code.operands + code.head->operands);
    code.begins = code.head->tensors ? (const int64_t *)(const void *)(code.instructions + code.head->instructions) : NULL;
    return code;
}

/* ---- making it ---- */

static char *source_make(const struct code_shape *shape, struct error *e)
{
    const struct code code = shape_code(shape);
    struct generate g = {.code = &code, .in = (enum fcc_dtype)shape->in, .nranks = shape->nranks};

    for (int i = 0; i <= CODE_TENSORS; i++)
        g.dtypes[i] = (enum fcc_dtype)shape->dtypes[i];
    return code_generate(&g, e);
}

/* The user's cache: below CODE_CACHE, or in the user's home. */
static struct disk_cache cache_of(const struct code_maker *m, char directory[300])
{
    if (m->cache[0])
        (void)snprintf(directory, 300, "%s/%u", m->cache, (unsigned)geteuid());
    return (struct disk_cache){.directory = m->cache[0] ? directory : NULL,
                               .name = "fccd-code",
                               .bytes_most = CACHE_FILE_BYTES,
                               .files_most = CACHE_FILES};
}

static void cache_tell(struct code_maker *m, const char *what, const struct error *e)
{
    if (!m->cache_told)
        log_warning("generated code is not %s disk: %s", what, e->text);
    m->cache_told = true;
}

/* Makes the maker's newest image that of a key: from the disk, or compiled now. */
static int image_get(struct code_maker *m, int gpu, const char *key, const char *source, struct error *e)
{
    struct error cache_error = {0};
    char directory[300], path[DISK_CACHE_PATH];
    const struct disk_cache cache = cache_of(m, directory);
    const uint64_t begin = clock_ns();
    void *image;
    size_t bytes = 0;

    if (m->key && !strcmp(m->key, key))
        return 0;
    image = disk_cache_read(&cache, key, &bytes, &cache_error);
    const bool was_there = image != NULL;
    if (!image && cache_error.status != -ENOENT)
        cache_tell(m, "taken from", &cache_error);
    if (!image && m->plugin->code_compile(gpu, source, &image, &bytes, e))
        return e->status;
    if (!was_there) {
        log_info("%s GPU %d: compiled a program's step in %.1f ms", m->kind, gpu, (double)(clock_ns() - begin) / 1e6);
        if (disk_cache_write(&cache, key, image, bytes, path, &cache_error))
            cache_tell(m, "kept on", &cache_error);
    }
    free(m->key);
    free(m->image);
    m->key = strdup(key);
    m->image = image;
    m->bytes = bytes;
    return m->key ? 0 : error_set(e, -ENOMEM, "out of memory");
}

/* A copy of the newest image: each GPU's entry has its own until it is loaded. */
static int image_copy(const struct code_maker *m, struct code_job *job)
{
    job->image = malloc(m->bytes + 1);
    if (!job->image)
        return error_set(&job->error, -ENOMEM, "out of memory");
    memcpy(job->image, m->image, m->bytes);
    job->bytes = m->bytes;
    return 0;
}

static void job_do(struct code_maker *m, struct code_job *job)
{
    char text[GPU_COMPILER_TEXT], *key = NULL, *source = source_make(job->shape, &job->error);

    if (source && !m->plugin->compiler(job->gpu, strcmp(m->compiler, "auto") != 0 ? m->compiler : NULL, text, &job->error) &&
        asprintf(&key, "%s\n%s", text, source) < 0) {
        key = NULL;
        (void)error_set(&job->error, -ENOMEM, "out of memory");
    }
    if (key && !image_get(m, job->gpu, key, source, &job->error))
        (void)image_copy(m, job);
    free(key);
    free(source);
    if (!job->image)
        log_warning("%s GPU %d: %s: %s", m->kind, job->gpu,
                    job->is_bound ? "a program's step cannot be bound" : "the interpreter runs a program's step",
                    job->error.text);
    const int gpu = job->gpu;
    const bool made = job->image != NULL;
    atomic_store_explicit(&job->made, true, memory_order_release); /* from here on the job is the engine's */
    if (made)
        log_debug("%s GPU %d: a program's step has its kernel", m->kind, gpu);
}

/* ---- the thread ---- */

static void *maker_main(void *argument)
{
    struct code_maker *m = argument;

    (void)pthread_mutex_lock(&m->lock);
    while (!m->stop) {
        struct code_job *job = STAILQ_FIRST(&m->jobs);
        if (!job) {
            (void)pthread_cond_wait(&m->given, &m->lock);
            continue;
        }
        STAILQ_REMOVE_HEAD(&m->jobs, link);
        (void)pthread_mutex_unlock(&m->lock);
        job_do(m, job);
        (void)pthread_mutex_lock(&m->lock);
    }
    (void)pthread_mutex_unlock(&m->lock);
    return NULL;
}

int code_maker_open(const struct worker *w, const struct gpu_plugin *plugin, const char *kind, struct code_maker **out,
                    struct error *e)
{
    struct code_maker *m = calloc(1, sizeof(*m));

    if (!m)
        return error_set(e, -ENOMEM, "out of memory");
    *m = (struct code_maker){.plugin = plugin, .kind = kind};
    memcpy(m->compiler, w->config.gpu_compiler, sizeof(m->compiler));
    memcpy(m->cache, w->config.code_cache, sizeof(m->cache));
    STAILQ_INIT(&m->jobs);
    (void)pthread_mutex_init(&m->lock, NULL);
    (void)pthread_cond_init(&m->given, NULL);
    const int status = pthread_create(&m->thread, NULL, maker_main, m);
    if (status) {
        (void)pthread_cond_destroy(&m->given);
        (void)pthread_mutex_destroy(&m->lock);
        free(m);
        return error_set(e, -status, "cannot start a thread that compiles: %s", strerror(status));
    }
    *out = m;
    return 0;
}

void code_maker_give(struct code_maker *m, struct code_job *job)
{
    (void)pthread_mutex_lock(&m->lock);
    STAILQ_INSERT_TAIL(&m->jobs, job, link);
    (void)pthread_cond_signal(&m->given);
    (void)pthread_mutex_unlock(&m->lock);
}

bool code_maker_close(struct code_maker *m)
{
    struct timespec end;

    if (!m)
        return true;
    (void)pthread_mutex_lock(&m->lock);
    m->stop = true;
    (void)pthread_cond_signal(&m->given);
    (void)pthread_mutex_unlock(&m->lock);
    (void)clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += CLOSE_SECONDS;
    if (pthread_timedjoin_np(m->thread, NULL, &end)) {
        log_warning("the compiler for %s GPUs has not ended in %d s: the worker ends without it", m->kind, CLOSE_SECONDS);
        return false;
    }
    (void)pthread_cond_destroy(&m->given);
    (void)pthread_mutex_destroy(&m->lock);
    free(m->key);
    free(m->image);
    free(m);
    return true;
}
