/* SPDX-License-Identifier: MIT
 *
 * fake_driver.c - a GPU driver without a GPU, for the tests of libfccclient: it is built as libcuda.so.1 and as
 * libamdhip64.so.5, and has what driver.h lists under both drivers' names. Device memory is the mapped descriptor, a device
 * address is the CPU's, and a stream is a thread that does one thing after the other.
 */
#include "tests/fake_gpu/fake_driver.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "client/device/driver.h"
#include "proto/proto.h"
#include "proto/session.h"

static void capture_begin(void);
static void *capture_end(void);
static void graph_launch(void *graph, void *stream);
static void graph_destroy(void *graph);

struct fake_driver fake_driver = {.fail = -1,
                                  .gpus = FAKE_GPUS,
                                  .hip_version = 50221153,
                                  .capture_begin = capture_begin,
                                  .capture_end = capture_end,
                                  .graph_launch = graph_launch,
                                  .graph_destroy = graph_destroy};

static _Thread_local int depth;   /* of CUDA's stack of contexts */
static _Thread_local int current; /* HIP's device; 0 is the default */
static _Thread_local int mode;    /* CUDA's of the thread, for captures */

/* A call that fails if it is told to, and does `expression` otherwise. */
#define FAKE(member, parameters, expression)                                                                                   \
    static int fake_##member parameters                                                                                        \
    {                                                                                                                          \
        return fake_driver.fail == DRIVER_##member ? FAKE_FAILURE : ((expression), 0);                                         \
    }
/* ... and that needs a current GPU. The tests' GPU is never number 0. */
#define FAKE_ON_GPU(member, parameters, expression) FAKE(member, parameters, (broken(!depth && !current), (expression)))

static void count(_Atomic int *what, int by)
{
    (void)atomic_fetch_add(what, by);
}

static void broken(bool yes)
{
    count(&fake_driver.broken, yes);
}

/* What a thread may not call while another one captures, unless it has said that it concerns no capture. */
static void unsafe(void)
{
    broken(fake_driver.capturing && mode != DRIVER_CAPTURE_RELAXED);
}

/* ---- streams ---- */

struct task {
    STAILQ_ENTRY(task) link; /* stream.tasks */
    enum { WRITE, WRITE_SHARED, WAIT_CYCLIC, WAIT_UNSIGNED, FUNCTION, CALLBACK } kind;
    _Atomic uint32_t *word;
    uint32_t value;
    void (*function)(void *);
    void (*callback)(void *stream, int status, void *argument);
    void *argument;
};

struct stream {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    STAILQ_HEAD(, task) tasks; /* the first one is being done */
    bool end;
    pthread_t thread;
};

static void task_run(struct task *t, struct stream *s)
{
    static const struct timespec moment = {.tv_nsec = 20000};
    uint32_t seen;

    switch (t->kind) {
    case WRITE:
        seen = atomic_exchange(t->word, t->value); /* the worker may have let its GPU pass */
        broken((int32_t)(t->value - seen) <= 0 && seen != fcc_stream_passed(t->value));
        break;
    case WRITE_SHARED: /* ... and may have made that good again before */
        seen = atomic_exchange(t->word, t->value);
        broken((int32_t)(t->value - seen) < 0 && seen != fcc_stream_passed(t->value));
        break;
    case WAIT_CYCLIC:
        while ((int32_t)(atomic_load(t->word) - t->value) < 0)
            (void)nanosleep(&moment, NULL);
        break;
    case WAIT_UNSIGNED:
        while (atomic_load(t->word) < t->value)
            (void)nanosleep(&moment, NULL);
        break;
    case FUNCTION:
        t->function(t->argument);
        break;
    case CALLBACK:
        t->callback(s, 0, t->argument);
    }
}

static void *stream_run(void *argument)
{
    struct stream *s = argument;
    struct task *t;

    (void)pthread_mutex_lock(&s->lock);
    while (!STAILQ_EMPTY(&s->tasks) || !s->end) {
        if (!(t = STAILQ_FIRST(&s->tasks))) {
            (void)pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&s->lock);
        task_run(t, s);
        (void)pthread_mutex_lock(&s->lock);
        STAILQ_REMOVE_HEAD(&s->tasks, link);
        free(t);
        (void)pthread_cond_broadcast(&s->changed);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- graphs: functions in a row ---- */

struct object {
    SLIST_ENTRY(object) link; /* graph.objects */
    void (*destroy)(void *argument);
    void *argument;
};

struct graph {
    uint64_t number;
    STAILQ_HEAD(, task) tasks;
    SLIST_HEAD(, object) objects; /* that it retains */
};

static struct graph *_Atomic captured; /* into it all streams are captured */

static void capture_begin(void)
{
    static _Atomic uint64_t captures;
    struct graph *g = calloc(1, sizeof(*g));

    g->number = ++captures;
    STAILQ_INIT(&g->tasks);
    SLIST_INIT(&g->objects);
    count(&fake_driver.graphs, 1);
    captured = g;
    fake_driver.capturing = true;
}

static void *capture_end(void)
{
    struct graph *g = captured;

    fake_driver.capturing = false;
    captured = NULL;
    return g;
}

static void graph_push(const struct task *task)
{
    struct graph *g = captured;
    struct task *t = malloc(sizeof(*t));

    *t = *task;
    broken(t->kind != FUNCTION); /* others wait for what comes once only */
    STAILQ_INSERT_TAIL(&g->tasks, t, link);
}

static void stream_push(void *stream, const struct task *task)
{
    struct stream *s = stream;
    struct task *t;

    if (captured) {
        graph_push(task);
        return;
    }
    t = malloc(sizeof(*t));
    *t = *task;
    (void)pthread_mutex_lock(&s->lock);
    STAILQ_INSERT_TAIL(&s->tasks, t, link);
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
}

static void graph_launch(void *graph, void *stream)
{
    const struct task *t;

    STAILQ_FOREACH(t, &((struct graph *)graph)->tasks, link)
        stream_push(stream, t);
}

static void graph_destroy(void *graph)
{
    struct graph *g = graph;
    struct object *o;
    struct task *t;

    while ((t = STAILQ_FIRST(&g->tasks))) {
        STAILQ_REMOVE_HEAD(&g->tasks, link);
        free(t);
    }
    while ((o = SLIST_FIRST(&g->objects))) {
        SLIST_REMOVE_HEAD(&g->objects, link);
        o->destroy(o->argument);
        free(o);
        count(&fake_driver.objects, -1);
    }
    free(g);
    count(&fake_driver.graphs, -1);
}

static void object_make(void **out, void *argument, void (*destroy)(void *))
{
    struct object *o = malloc(sizeof(*o));

    *o = (struct object){.destroy = destroy, .argument = argument};
    count(&fake_driver.objects, 1);
    *out = o;
}

static void object_end(void *object)
{
    struct object *o = object;

    o->destroy(o->argument);
    free(o);
    count(&fake_driver.objects, -1);
}

static void graph_keep(void *graph, void *object)
{
    struct object *o = object;

    SLIST_INSERT_HEAD(&((struct graph *)graph)->objects, o, link);
}

static void capture_tell(int *status, uint64_t *number, void **graph)
{
    struct graph *g = captured;

    *status = g ? DRIVER_CAPTURING : DRIVER_NOT_CAPTURING;
    *number = g ? g->number : 0;
    *graph = g;
}

static void mode_exchange(int *other)
{
    int mine = mode;

    mode = *other;
    *other = mine;
}

static void *stream_make(void)
{
    struct stream *s = calloc(1, sizeof(*s));

    STAILQ_INIT(&s->tasks);
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->changed, NULL);
    (void)pthread_create(&s->thread, NULL, stream_run, s);
    count(&fake_driver.streams, 1);
    return s;
}

static void stream_drain(void *stream)
{
    struct stream *s = stream;

    (void)pthread_mutex_lock(&s->lock);
    while (!STAILQ_EMPTY(&s->tasks))
        (void)pthread_cond_wait(&s->changed, &s->lock);
    (void)pthread_mutex_unlock(&s->lock);
}

static void stream_end(void *stream)
{
    struct stream *s = stream;

    (void)pthread_mutex_lock(&s->lock);
    s->end = true;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
    (void)pthread_join(s->thread, NULL);
    (void)pthread_mutex_destroy(&s->lock);
    (void)pthread_cond_destroy(&s->changed);
    free(s);
    count(&fake_driver.streams, -1);
}

static void stream_word(void *stream, int kind, uint64_t address, uint32_t value)
{
    stream_push(stream, &(struct task){.kind = kind, .word = (_Atomic uint32_t *)(uintptr_t)address, .value = value});
}

static void stream_batch(void *stream, unsigned n, const struct driver_operation *operations)
{
    broken(n < 1 || n > 256);
    for (unsigned i = 0; i < n; i++) {
        const struct driver_operation *o = &operations[i];
        bool waits = o->operation == DRIVER_BATCH_WAIT;
        broken((!waits && o->operation != DRIVER_BATCH_WRITE) || o->flags != 0 || o->value >> 32);
        stream_word(stream, waits ? WAIT_CYCLIC : WRITE_SHARED, o->address, (uint32_t)o->value);
    }
    count(&fake_driver.batches, 1);
}

/* Words in GPUs' memory are copied while streams wait for them and the worker's GPUs store them. What is longer than such words are is
 * data, of which nobody waits for a single one: ordered one by one, they would be most of a test's time under the thread sanitizer. */
static void words_copy(uint64_t to, const void *from, size_t bytes)
{
    enum { MOST_ORDERED = 64 };
    const _Atomic uint32_t *words = from;
    _Atomic uint32_t *at = (_Atomic uint32_t *)(uintptr_t)to;

    if (to % sizeof(words[0]) || bytes % sizeof(words[0]))
        memcpy((void *)(uintptr_t)to, from, bytes);
    else if (bytes / sizeof(words[0]) <= MOST_ORDERED)
        for (size_t i = 0; i < bytes / sizeof(words[0]); i++)
            atomic_store(&at[i], atomic_load_explicit(&words[i], memory_order_relaxed));
    else
        for (size_t i = 0; i < bytes / sizeof(words[0]); i++)
            atomic_store_explicit(&at[i], atomic_load_explicit(&words[i], memory_order_relaxed), memory_order_relaxed);
}

FAKE_ON_GPU(stream_create, (void **stream, unsigned flags), (broken(flags != DRIVER_STREAM_OWN_ORDER), *stream = stream_make()))
FAKE(stream_destroy, (void *stream), stream_end(stream))
FAKE(stream_synchronize, (void *stream), stream_drain(stream))
FAKE(capture_mode, (int *other), mode_exchange(other))
FAKE_ON_GPU(stream_capture,
            (void *stream, int *status, uint64_t *number, void **graph, const void **dependencies, size_t *ndependencies),
            (broken(!stream || dependencies || ndependencies), capture_tell(status, number, graph)))
FAKE(object_create, (void **object, void *argument, void (*destroy)(void *), unsigned references, unsigned flags),
     (broken(references != 1 || flags != DRIVER_OBJECT_UNSYNCHRONIZED), object_make(object, argument, destroy)))
FAKE(object_release, (void *object, unsigned references), (broken(references != 1), object_end(object)))
FAKE(graph_retain, (void *graph, void *object, unsigned references, unsigned flags),
     (broken(!graph || references != 1 || flags != DRIVER_OBJECT_MOVE), graph_keep(graph, object)))
FAKE_ON_GPU(stream_capturing, (void *stream, int *status), (broken(!stream), *status = fake_driver.capturing))
FAKE_ON_GPU(stream_write, (void *stream, uint64_t address, uint32_t value, unsigned flags),
            (broken(flags != 0), count(&fake_driver.writes, 1), stream_word(stream, WRITE, address, value)))
FAKE_ON_GPU(stream_fill, (uint64_t to, uint32_t value, size_t n, void *stream),
            (broken(n != 1), count(&fake_driver.fills, 1), stream_word(stream, WRITE, to, value)))
FAKE_ON_GPU(stream_wait, (void *stream, uint64_t address, uint32_t value, unsigned flags),
            (broken(flags != DRIVER_WAIT_REACHED), count(&fake_driver.waits, 1),
             stream_word(stream, WAIT_CYCLIC, address, value)))
FAKE_ON_GPU(stream_wait_masked, (void *stream, uint64_t address, uint32_t value, unsigned flags, uint32_t mask),
            (broken(flags != DRIVER_WAIT_REACHED || mask != UINT32_MAX), count(&fake_driver.waits, 1),
             stream_word(stream, WAIT_UNSIGNED, address, value)))
FAKE_ON_GPU(stream_batch, (void *stream, unsigned n, struct driver_operation *operations, unsigned flags),
            (broken(flags != 0), stream_batch(stream, n, operations)))
FAKE(stream_function, (void *stream, void (*function)(void *), void *argument),
     (count(&fake_driver.functions, 1),
      stream_push(stream, &(struct task){.kind = FUNCTION, .function = function, .argument = argument})))
FAKE(stream_callback,
     (void *stream, void (*function)(void *stream, int status, void *argument), void *argument, unsigned flags),
     (broken(flags != 0), count(&fake_driver.functions, 1),
      stream_push(stream, &(struct task){.kind = CALLBACK, .callback = function, .argument = argument})))

/* ---- devices: numbered from 10 in this process, so that nobody takes an ordinal or fccd's number for the device ---- */

FAKE(init, (unsigned flags), broken(flags != 0))
FAKE(device_count, (int *count), *count = fake_driver.gpus)
FAKE(device_get, (int *device, int ordinal), *device = ordinal + 10)
FAKE(device_uuid, (struct driver_uuid * uuid, int device), memset(uuid, FAKE_UUID(device - 10), sizeof(*uuid)))
FAKE(device_attribute, (int *value, int attribute, int device),
     (broken((attribute != 122 && attribute != 10013 && attribute != 75) || device < 10),
      *value = attribute == 75 ? 9 : !fake_driver.no_stream_words))
FAKE_ON_GPU(synchronize, (void), count(&fake_driver.synchronized, 1)) /* the tests' streams have finished by then */
FAKE(context_retain, (void **context, int device),
     (broken(device < 10), count(&fake_driver.contexts, 1), *context = &fake_driver))
FAKE(context_release, (int device), (broken(device < 10), count(&fake_driver.contexts, -1)))
FAKE(context_push, (void *context), (broken(!context), depth++))
FAKE(context_pop, (void **context), (broken(depth-- < 1), *context = NULL))
FAKE(device_set, (int device), current = device)
FAKE(device_current, (int *device), *device = current)
FAKE(runtime_version, (int *version), *version = fake_driver.hip_version)
FAKE(error_name, (int result, const char **text), *text = result == FAKE_FAILURE ? "FAKE_FAILURE" : NULL)
FAKE(error_text, (int result, const char **text), *text = result == FAKE_FAILURE ? "made to fail" : NULL)

static const char *fake_result_name(int result)
{
    return result == FAKE_FAILURE ? "FAKE_FAILURE" : NULL;
}

static const char *fake_result_text(int result)
{
    return result == FAKE_FAILURE ? "made to fail" : NULL;
}

/* ---- memory: without access until memory_access() ---- */

/* Lay something over reserved addresses. */
static void cover(uint64_t address, size_t bytes, int flags, int fd)
{
    broken(mmap((void *)(uintptr_t)address, bytes, PROT_NONE, flags | MAP_FIXED, fd, 0) == MAP_FAILED);
}

/* Which descriptor is mapped where: a handle can be had of an address. */
#define MAPPED_MAX 256
static pthread_mutex_t mapped_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint64_t address;
    int fd;
} mapped[MAPPED_MAX]; /* address 0: free */

static void mapped_note(uint64_t address, int fd)
{
    int i = 0;

    (void)pthread_mutex_lock(&mapped_lock);
    while (i < MAPPED_MAX && mapped[i].address)
        i++;
    broken(i == MAPPED_MAX);
    if (i < MAPPED_MAX) {
        mapped[i].address = address;
        mapped[i].fd = dup(fd);
    }
    (void)pthread_mutex_unlock(&mapped_lock);
}

static void mapped_forget(uint64_t address)
{
    (void)pthread_mutex_lock(&mapped_lock);
    for (int i = 0; i < MAPPED_MAX; i++)
        if (mapped[i].address == address) {
            (void)close(mapped[i].fd);
            mapped[i].address = 0;
        }
    (void)pthread_mutex_unlock(&mapped_lock);
}

/* A new handle of what is mapped from that address on. */
static uint64_t mapped_handle(const void *memory)
{
    int fd = -1;

    (void)pthread_mutex_lock(&mapped_lock);
    for (int i = 0; i < MAPPED_MAX; i++)
        if (mapped[i].address == (uintptr_t)memory)
            fd = dup(mapped[i].fd);
    (void)pthread_mutex_unlock(&mapped_lock);
    broken(fd < 0);
    return (uint64_t)fd;
}

/* As real drivers have it, an allocation is mapped as a whole. */
static bool is_whole(uint64_t handle, size_t bytes)
{
    struct stat st;

    return !fstat((int)handle, &st) && (size_t)st.st_size == bytes;
}

/* HIP takes the descriptor's address up to version 7.0. */
FAKE_ON_GPU(memory_import, (uint64_t * handle, void *from, int type),
            (unsafe(), broken(type != DRIVER_HANDLE_FD), count(&fake_driver.handles, 1),
             *handle = (uint64_t)dup(current && fake_driver.hip_version < 70100000 ? *(int *)from : (int)(intptr_t)from)))
FAKE(memory_release, (uint64_t handle), (count(&fake_driver.handles, -1), broken(close((int)handle))))
FAKE_ON_GPU(memory_retain, (uint64_t * handle, void *memory), (count(&fake_driver.handles, 1), *handle = mapped_handle(memory)))
FAKE_ON_GPU(memory_granularity, (size_t * bytes, const struct driver_allocation *what, int option),
            (broken(what->type != DRIVER_ALLOCATION_PINNED || what->handles != DRIVER_HANDLE_FD ||
                    what->location_type != DRIVER_LOCATION_DEVICE || what->location_device < 10 ||
                    option != DRIVER_GRANULARITY_MINIMUM),
             *bytes = FAKE_GRANULARITY))
FAKE_ON_GPU(address_reserve, (uint64_t * address, size_t bytes, size_t alignment, uint64_t wish, unsigned long long flags),
            (broken(alignment || wish || flags), count(&fake_driver.addresses, 1),
             *address = (uintptr_t)mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)))
FAKE(address_free, (uint64_t address, size_t bytes),
     (count(&fake_driver.addresses, -1), munmap((void *)(uintptr_t)address, bytes)))
FAKE_ON_GPU(memory_map, (uint64_t address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags),
            (unsafe(), broken(offset || flags || !is_whole(handle, bytes)), count(&fake_driver.mappings, 1),
             mapped_note(address, (int)handle), cover(address, bytes, MAP_SHARED, (int)handle)))
FAKE(memory_unmap, (uint64_t address, size_t bytes),
     (unsafe(), count(&fake_driver.mappings, -1), mapped_forget(address),
      cover(address, bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1)))
FAKE_ON_GPU(memory_access, (uint64_t address, size_t bytes, const struct driver_access *access, size_t count),
            (broken(count != 1 || access->location_type != DRIVER_LOCATION_DEVICE || access->location_device < 10 ||
                    access->flags != DRIVER_ACCESS_READWRITE),
             mprotect((void *)(uintptr_t)address, bytes, PROT_READ | PROT_WRITE)))

/* The handle begins with the number of bytes. HIP 5.2 wants other flags than the others. */
static int fake_ipc_open(uint64_t *address, struct driver_ipc_handle handle, unsigned flags)
{
    size_t bytes;

    broken(!depth && !current);
    if (fake_driver.fail == DRIVER_ipc_open)
        return FAKE_FAILURE;
    if (flags != (current && fake_driver.hip_version < 60000000 ? 0 : 1))
        return DRIVER_INVALID_VALUE;
    memcpy(&bytes, handle.reserved, sizeof(bytes));
    count(&fake_driver.mappings, 1);
    *address = (uintptr_t)calloc(1, bytes);
    return 0;
}

FAKE(ipc_close, (uint64_t address), (count(&fake_driver.mappings, -1), free((void *)(uintptr_t)address)))
FAKE_ON_GPU(host_register, (void *memory, size_t bytes, unsigned flags),
            (broken(!memory || !bytes || flags != (DRIVER_HOST_PORTABLE | DRIVER_HOST_MAPPED)),
             count(&fake_driver.registered, 1)))
FAKE_ON_GPU(host_unregister, (void *memory), (broken(!memory), count(&fake_driver.registered, -1)))
FAKE_ON_GPU(host_address, (uint64_t * address, void *memory, unsigned flags),
            (broken(flags != 0 || fake_driver.registered < 1), *address = (uintptr_t)memory))
FAKE_ON_GPU(copy_in, (uint64_t to, const void *from, size_t bytes, void *stream),
            (unsafe(), broken(!stream), words_copy(to, from, bytes)))
FAKE_ON_GPU(copy_out, (void *to, uint64_t from, size_t bytes, void *stream),
            (broken(!stream), words_copy((uintptr_t)to, (const void *)(uintptr_t)from, bytes)))

/* ---- under the drivers' names ---- */

#define ALIAS(result, member, symbol, prefix, parameters)                                                                      \
    extern result prefix##member parameters __asm__(symbol) __attribute__((alias("fake_" #member)));
#define X(result, member, cuda, hip, parameters)                                                                               \
    ALIAS(result, member, cuda, cuda_, parameters) ALIAS(result, member, hip, hip_, parameters)
DRIVER_COMMON(X)
#undef X
#define X(result, member, cuda, hip, parameters) ALIAS(result, member, cuda, cuda_, parameters)
DRIVER_CUDA(X)
#undef X
#define X(result, member, cuda, hip, parameters) ALIAS(result, member, hip, hip_, parameters)
DRIVER_HIP(X)
#undef X
