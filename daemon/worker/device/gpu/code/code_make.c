/* SPDX-License-Identifier: MIT
 *
 * code_make.c - threads for all GPUs of the worker, which make different code side by side; each one that is there and idle takes the next job, and as long as
 * none is idle another one is started, up to one for each core. Programs, and GPUs of one chip, that need the same code get it from one compilation: a job whose key
 * a thread is at is left to that thread, and a later one finds the newest image of a thread, or the file. (Workers of other jobs may compile the same at the same
 * time: who is last replaces the file by the same bytes.)
 *
 * Locks. `lock` guards the list of jobs, `stop`, and what threads are at and have: a thread changes its own `key` and `newest` with the lock held, and so may read
 * them without it. It is not held while something is made. `finding` is held while the plug-in looks for its compiler, which it does the first time; before that
 * nothing compiles. Nobody takes both.
 */
#include "daemon/worker/device/gpu/code/code_make.h"

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
#define THREADS_MOST 64

/* What a thread has made last, for the other GPUs of its chip. key is NULL: nothing. */
struct code_image {
    char *key;
    void *image;
    size_t bytes;
};

struct code_thread {
    struct code_maker *maker;
    pthread_t thread;
    char *key;                    /* that is being made; NULL: none */
    STAILQ_HEAD(, code_job) same; /* jobs of this key, that have come meanwhile */
    struct code_image newest;
};

struct code_maker {
    const struct gpu_plugin *plugin;
    const char *kind;
    char compiler[sizeof(((struct config *)0)->gpu_compiler)],
        cache[sizeof(((struct config *)0)->code_cache)]; /* as configured */
    pthread_mutex_t lock, finding;
    pthread_cond_t given;
    STAILQ_HEAD(, code_job) jobs;
    bool stop;
    _Atomic bool cache_told; /* the log says already that the cache on disk cannot be used */
    unsigned waiting;        /* jobs of the list */
    unsigned idle;           /* threads that wait for one */
    unsigned n, most;        /* threads that there are, and may be */
    struct code_thread threads[THREADS_MOST];
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
    if (!atomic_exchange_explicit(&m->cache_told, true, memory_order_relaxed))
        log_warning("generated code is not %s disk: %s", what, e->text);
}

/* The image of a key: from the disk, or compiled now. To be freed. */
static int image_make(struct code_maker *m, int gpu, const char *key, const char *source, struct code_image *out,
                      struct error *e)
{
    struct error cache_error = {0};
    char directory[300], path[DISK_CACHE_PATH];
    const struct disk_cache cache = cache_of(m, directory);
    const uint64_t begin = clock_ns();

    out->image = disk_cache_read(&cache, key, &out->bytes, &cache_error);
    if (out->image)
        return 0;
    if (cache_error.status != -ENOENT)
        cache_tell(m, "taken from", &cache_error);
    if (m->plugin->code_compile(gpu, source, &out->image, &out->bytes, e))
        return e->status;
    log_info("%s GPU %d: compiled a program's step in %.1f ms", m->kind, gpu, (double)(clock_ns() - begin) / 1e6);
    if (disk_cache_write(&cache, key, out->image, out->bytes, path, &cache_error))
        cache_tell(m, "kept on", &cache_error);
    return 0;
}

/* A copy of an image: each GPU's entry has its own until it is loaded. */
static void image_copy(const struct code_image *from, struct code_job *job)
{
    job->image = malloc(from->bytes + 1);
    if (!job->image) {
        (void)error_set(&job->error, -ENOMEM, "out of memory");
        return;
    }
    memcpy(job->image, from->image, from->bytes);
    job->bytes = from->bytes;
}

static void job_end(const struct code_maker *m, struct code_job *job)
{
    const int gpu = job->gpu;
    const bool made = job->image != NULL;

    if (!made)
        log_warning("%s GPU %d: %s: %s", m->kind, gpu,
                    job->is_bound ? "a program's step cannot be bound" : "the interpreter runs a program's step",
                    job->error.text);
    atomic_store_explicit(&job->made, true, memory_order_release); /* from here on the job is the engine's */
    if (made)
        log_debug("%s GPU %d: a program's step has its kernel", m->kind, gpu);
}

/* What a job's kernel follows from: the compiler with all that it depends on, and *source. Both to be freed; NULL: the job's error says why. */
static char *key_make(struct code_maker *m, struct code_job *job, char **source)
{
    char text[GPU_COMPILER_TEXT], *key = NULL;

    *source = source_make(job->shape, &job->error);
    if (!*source)
        return NULL;
    (void)pthread_mutex_lock(&m->finding);
    const int status = m->plugin->compiler(job->gpu, strcmp(m->compiler, "auto") != 0 ? m->compiler : NULL, text, &job->error);
    (void)pthread_mutex_unlock(&m->finding);
    if (status == 0 && asprintf(&key, "%s\n%s", text, *source) < 0) {
        key = NULL;
        (void)error_set(&job->error, -ENOMEM, "out of memory");
    }
    return key;
}

/* Who has to make a job's key. */
enum maker_of { MAKER_SELF, MAKER_OTHER, MAKER_NONE };

/* MAKER_SELF: the thread is at it from now on. OTHER: the job is left to a thread that is at it. NONE: the job has its image. */
static enum maker_of key_take(struct code_thread *t, char *key, struct code_job *job)
{
    struct code_maker *m = t->maker;
    enum maker_of found = MAKER_SELF;

    (void)pthread_mutex_lock(&m->lock);
    for (unsigned i = 0; i < m->n && found == MAKER_SELF; i++) {
        struct code_thread *other = &m->threads[i];
        if (other->key && !strcmp(other->key, key)) {
            STAILQ_INSERT_TAIL(&other->same, job, link);
            found = MAKER_OTHER;
        } else if (other->newest.key && !strcmp(other->newest.key, key)) {
            image_copy(&other->newest, job);
            found = MAKER_NONE;
        }
    }
    if (found == MAKER_SELF)
        t->key = key;
    (void)pthread_mutex_unlock(&m->lock);
    return found;
}

/* Makes the thread's key, for the job, and for all that have been left to the thread. */
static void key_do(struct code_thread *t, struct code_job *job, const char *source)
{
    struct code_maker *m = t->maker;
    struct code_image made = {.key = NULL}, before = {.key = NULL};
    struct error why = {0};
    struct code_job *other;

    const int status = image_make(m, job->gpu, t->key, source, &made, &why);
    (void)pthread_mutex_lock(&m->lock); /* who looks from now on finds the image, or makes it anew */
    made.key = t->key;
    t->key = NULL;
    if (status == 0) {
        before = t->newest;
        t->newest = made;
    } else {
        before = made;
    }
    STAILQ_INSERT_HEAD(&t->same, job, link);
    (void)pthread_mutex_unlock(&m->lock);
    while ((other = STAILQ_FIRST(&t->same)) != NULL) { /* nobody else touches the list while the thread has no key */
        STAILQ_REMOVE_HEAD(&t->same, link);
        if (status == 0)
            image_copy(&t->newest, other);
        else
            other->error = why;
        job_end(m, other);
    }
    free(before.key);
    free(before.image);
}

static void job_do(struct code_thread *t, struct code_job *job)
{
    char *source = NULL, *key = key_make(t->maker, job, &source);
    const enum maker_of by = key ? key_take(t, key, job) : MAKER_NONE;

    if (by == MAKER_SELF)
        key_do(t, job, source); /* the key is the thread's */
    else
        free(key);
    if (by == MAKER_NONE)
        job_end(t->maker, job);
    free(source);
}

/* ---- the threads ---- */

static void *thread_main(void *argument)
{
    struct code_thread *t = argument;
    struct code_maker *m = t->maker;

    (void)pthread_mutex_lock(&m->lock);
    while (!m->stop) {
        struct code_job *job = STAILQ_FIRST(&m->jobs);
        if (!job) {
            m->idle++;
            (void)pthread_cond_wait(&m->given, &m->lock);
            m->idle--;
            continue;
        }
        STAILQ_REMOVE_HEAD(&m->jobs, link);
        m->waiting--;
        (void)pthread_mutex_unlock(&m->lock);
        job_do(t, job);
        (void)pthread_mutex_lock(&m->lock);
    }
    (void)pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* lock held, or nobody else knows the maker. 0, or a positive errno value. */
static int thread_start(struct code_maker *m)
{
    struct code_thread *t = &m->threads[m->n];

    *t = (struct code_thread){.maker = m};
    STAILQ_INIT(&t->same);
    const int status = pthread_create(&t->thread, NULL, thread_main, t);
    m->n += status == 0;
    return status;
}

static void maker_free(struct code_maker *m)
{
    for (unsigned i = 0; i < m->n; i++) {
        free(m->threads[i].newest.key);
        free(m->threads[i].newest.image);
    }
    (void)pthread_cond_destroy(&m->given);
    (void)pthread_mutex_destroy(&m->finding);
    (void)pthread_mutex_destroy(&m->lock);
    free(m);
}

int code_maker_open(const struct worker *w, const struct gpu_plugin *plugin, const char *kind, struct code_maker **out,
                    struct error *e)
{
    struct code_maker *m = calloc(1, sizeof(*m));

    if (!m)
        return error_set(e, -ENOMEM, "out of memory");
    *m = (struct code_maker){
        .plugin = plugin, .kind = kind, .most = w->cores < THREADS_MOST ? (unsigned)w->cores : THREADS_MOST};
    memcpy(m->compiler, w->config.gpu_compiler, sizeof(m->compiler));
    memcpy(m->cache, w->config.code_cache, sizeof(m->cache));
    STAILQ_INIT(&m->jobs);
    (void)pthread_mutex_init(&m->lock, NULL);
    (void)pthread_mutex_init(&m->finding, NULL);
    (void)pthread_cond_init(&m->given, NULL);
    const int status = thread_start(m);
    if (status) {
        maker_free(m);
        return error_set(e, -status, "cannot start a thread that compiles: %s", strerror(status));
    }
    *out = m;
    return 0;
}

void code_maker_give(struct code_maker *m, struct code_job *job)
{
    (void)pthread_mutex_lock(&m->lock);
    STAILQ_INSERT_TAIL(&m->jobs, job, link);
    m->waiting++;
    /* Threads that have been woken, and have not come yet, are idle still, and their jobs wait still. A thread that cannot be started leaves the job to those that
     * there are. */
    if (m->waiting > m->idle && m->n < m->most)
        (void)thread_start(m);
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
    (void)pthread_cond_broadcast(&m->given);
    (void)pthread_mutex_unlock(&m->lock);
    (void)clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += CLOSE_SECONDS;
    for (unsigned i = 0; i < m->n; i++) /* one that is at it needs the maker, which stays */
        if (pthread_timedjoin_np(m->threads[i].thread, NULL, &end)) {
            log_warning("the compiler for %s GPUs has not ended in %d s: the worker ends without it", m->kind, CLOSE_SECONDS);
            return false;
        }
    maker_free(m);
    return true;
}
