/* SPDX-License-Identifier: MIT
 *
 * fake_gpu.c - a GPU plug-in without a GPU, for the tests of the worker: it is built as cuda.so into a directory of the
 * tests, and is never installed. It is a double for order and for failures, and computes nothing: results stay as they are.
 *
 * What it does do: device memory is a memfd, whose address is the CPU's; a GPU is a thread with a queue. A launch waits there
 * until its words have come, runs its plan's waits and signals (so that it depends on the other GPUs' kernels as a real one
 * does), looks at its failure epochs meanwhile, leaves when they say so, and then tells the host and the clients' streams, in
 * the order of gpu_execute.h. The rest is contract: what the worker must not do (gpu.h) is counted in fake_gpus.wrong, above
 * all to free memory that a launch in a queue may still touch.
 */
#include "fake_gpu_inside.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_driver.h"

#define GRANULARITY 65536u

struct fake_gpus *control;
static pthread_t engine; /* who counted: the one thread that may call */
struct gpu gpus[GPU_MAX_GPUS];

/* A piece of memory that GPUs may use. */
struct range {
    struct range *next;
    uint64_t begin, bytes;
    bool host;
};
static struct range *ranges;

static uint64_t address_of(const void *p)
{
    return (uint64_t)(uintptr_t)p;
}

/* ---- the contract ---- */

void wrong(bool yes, const char *what)
{
    if (yes && atomic_fetch_add(&control->wrong, 1) == 0)
        (void)snprintf(control->what_is_wrong, sizeof(control->what_is_wrong), "%s", what);
}

static void called(void)
{
    wrong(!pthread_equal(engine, pthread_self()), "a call from another thread than the engine");
}

static int lost_error(int gpu, struct error *e)
{
    return control->lost >> gpu & 1u ? error_set(e, -EIO, "cuda GPU %d: its context is lost: made to be", gpu) : 0;
}

/* Is this call to fail? Launches may be started by other threads, too. */
static int call_check(enum fake_call call, int gpu, const char *what, struct error *e)
{
    uint32_t expected = call;

    if (call != FAKE_LAUNCH_START)
        called();
    if (lost_error(gpu, e))
        return -EIO;
    if (control->fail_gpu != (uint32_t)gpu || !atomic_compare_exchange_strong(&control->fail, &expected, FAKE_NONE))
        return 0;
    return error_set(e, call == FAKE_MEMORY_ALLOC ? -ENOMEM : -EIO, "cuda GPU %d: %s: made to fail", gpu, what);
}

static bool lies_in(uint64_t address, uint64_t begin, uint64_t bytes)
{
    return address >= begin && address - begin < bytes;
}

/* 0 is none. */
static void known_check(uint64_t address, bool host, const char *what)
{
    const struct range *r = ranges;

    while (r && (r->host != host || !lies_in(address, r->begin, r->bytes)))
        r = r->next;
    wrong(address && !r, what);
}

/* The device addresses of one run's inputs. */
static int inputs_of(enum fcc_op op, const struct gpu_input *in, uint64_t out[4])
{
    int n = 0;

    if (op == FCC_OP_EMBEDDING_ALL_TO_ALL) {
        out[n++] = in->embedding.tables;
        out[n++] = in->embedding.indices;
        out[n++] = in->embedding.offsets;
        out[n++] = in->embedding.weights;
    } else if (op == FCC_OP_GEMV_ALL_REDUCE) {
        out[n++] = in->gemv.x;
        out[n++] = in->gemv.w;
    } else if (op == FCC_OP_GEMM_ALL_TO_ALL) {
        out[n++] = in->gemm.a;
        out[n++] = in->gemm.b;
    }
    return n;
}

/* Call use(address, is host memory, argument) for everything that a task touches. */
static void task_visit(const struct task *t, void (*use)(uint64_t, bool, void *), void *argument)
{
    const struct gpu_fixed *fixed = &t->launch->fixed;
    uint64_t in[4];

    use(t->call.done, true, argument);
    use(t->call.span, true, argument);
    for (int i = 0; i < t->nwords; i++)
        use(t->words[i], true, argument);
    for (uint32_t r = 0; r < fixed->shape.nranks; r++) {
        use(fixed->flags[r], false, argument);
        use(fixed->staging[r], false, argument);
        use(fixed->slots[r], false, argument);
        use(t->call.out[r].data, false, argument);
    }
    for (uint32_t i = 0; i < t->call.nruns; i++) {
        use(t->call.in[i].failure, true, argument);
        use(t->call.in[i].stream_word, true, argument);
        for (int k = inputs_of((enum fcc_op)fixed->shape.op, &t->call.in[i], in); k > 0; k--)
            use(in[k - 1], false, argument);
    }
}

static void use_known(uint64_t address, bool host, void *argument)
{
    (void)argument;
    known_check(address, host, host ? "a launch with host memory that is not registered" : "a launch with unknown memory");
}

static void use_freed(uint64_t address, bool host, void *argument)
{
    const struct range *r = argument;

    wrong(r->host == host && lies_in(address, r->begin, r->bytes), "memory is freed that a launch in a queue touches");
}

static void range_add(uint64_t begin, uint64_t bytes, bool host)
{
    struct range *r = malloc(sizeof(*r));

    *r = (struct range){.next = ranges, .begin = begin, .bytes = bytes, .host = host};
    ranges = r;
    (void)atomic_fetch_add(host ? &control->registered : &control->memories, 1);
}

/* Its bytes; 0 if there is none. */
static uint64_t range_remove(uint64_t begin, bool host)
{
    struct range **at = &ranges, *r;
    uint64_t bytes;

    while (*at && ((*at)->begin != begin || (*at)->host != host))
        at = &(*at)->next;
    wrong(!*at, "memory is freed that there is not");
    if (!(r = *at))
        return 0;
    for (int g = 0; g < GPU_MAX_GPUS; g++) {
        if (!gpus[g].open)
            continue;
        (void)pthread_mutex_lock(&gpus[g].lock);
        for (const struct task *t = gpus[g].first; t; t = t->next)
            task_visit(t, use_freed, r);
        (void)pthread_mutex_unlock(&gpus[g].lock);
    }
    bytes = r->bytes;
    *at = r->next;
    free(r);
    (void)atomic_fetch_sub(host ? &control->registered : &control->memories, 1);
    return bytes;
}

/* ---- what there is ---- */

/* Map the file beside this plug-in, once. */
static int control_open(struct error *e)
{
    char path[4096];
    Dl_info here;

    if (control)
        return 0;
    if (!dladdr((const void *)&gpus, &here))
        return error_set(e, -ENODEV, "no GPU: where is this plug-in?");
    (void)snprintf(path, sizeof(path), "%s", here.dli_fname);
    (void)snprintf(strrchr(path, '/') + 1, sizeof(FAKE_GPU_CONTROL), "%s", FAKE_GPU_CONTROL);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *there = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int status = there == MAP_FAILED ? error_set(e, -ENODEV, "no GPU: %s: %s", path, strerror(errno)) : 0;
    if (fd >= 0)
        (void)close(fd);
    if (status == 0)
        control = there;
    return status;
}

static int fake_count(struct error *e)
{
    int status = control_open(e);

    if (status)
        return status;
    engine = pthread_self();
    if (control->gpus == FAKE_NOT_NOW)
        return error_set(e, -EAGAIN, "the GPUs' runtime does not start: the test has said so");
    return control->gpus ? (int)control->gpus : error_set(e, -ENODEV, "no GPU: the test has none");
}

static int fake_describe(int gpu, struct gpu_description *out, struct error *e)
{
    int count = fake_count(e);

    if (gpu < 0 || gpu >= count)
        return error_set(e, -ENOENT, "cuda GPU %d: there are %d", gpu, count);
    *out = (struct gpu_description){
        .memory_bytes = UINT64_C(1) << 30, .multiprocessors = 4, .stream_memory_operations = !control->no_stream_waits};
    (void)snprintf(out->name, sizeof(out->name), "Fake GPU %d", gpu);
    (void)snprintf(out->pci, sizeof(out->pci), "0000:%02x:00.0", gpu + 1);
    memset(out->uuid, FAKE_UUID(gpu), sizeof(out->uuid));
    for (int p = 0; p < count; p++) {
        if (p == gpu || (control->lonely >> p & 1u) || (control->lonely >> gpu & 1u))
            continue;
        out->peers |= 1u << p;
        (void)snprintf(out->links[p], sizeof(out->links[p]), "%s", p + gpu == 1 ? "NVLink" : "PCIe");
    }
    return 0;
}

static int fake_open(uint32_t mask, bool ipc, struct error *e)
{
    wrong(ipc, "the fake GPUs share by descriptors only");
    for (int i = 0; i < GPU_MAX_GPUS; i++) {
        struct gpu *g = &gpus[i];
        if (!(mask & 1u << i) || g->open)
            continue;
        int status = call_check(FAKE_OPEN, i, "making a context", e);
        if (status)
            return status;
        g->number = i;
        g->end = false;
        (void)pthread_mutex_init(&g->lock, NULL);
        (void)pthread_cond_init(&g->changed, NULL);
        (void)pthread_create(&g->thread, NULL, gpu_main, g);
        g->open = true;
        (void)atomic_fetch_add(&control->contexts, 1);
    }
    return 0;
}

/* Mappings of session memory in this process. */
static int sessions_count(void)
{
    FILE *f = fopen("/proc/self/maps", "re");
    char line[4096];
    int n = 0;

    while (f && fgets(line, sizeof(line), f))
        n += strstr(line, "fccd-session") != NULL;
    if (f)
        (void)fclose(f);
    return f ? n : -1;
}

static void fake_close(void)
{
    called();
    for (int i = 0; i < GPU_MAX_GPUS; i++) {
        struct gpu *g = &gpus[i];
        if (!g->open)
            continue;
        (void)pthread_mutex_lock(&g->lock);
        while (g->first)
            (void)pthread_cond_wait(&g->changed, &g->lock);
        g->end = true;
        (void)pthread_cond_broadcast(&g->changed);
        (void)pthread_mutex_unlock(&g->lock);
        (void)pthread_join(g->thread, NULL);
        (void)pthread_mutex_destroy(&g->lock);
        (void)pthread_cond_destroy(&g->changed);
        g->open = false;
        (void)atomic_fetch_sub(&control->contexts, 1);
    }
    control->sessions = sessions_count();
    (void)atomic_fetch_add(&control->closed, 1);
}

/* The watching thread's, and only its. */
static int fake_health(int gpu, struct error *e)
{
    wrong(pthread_equal(engine, pthread_self()), "health() on the engine's thread");
    return lost_error(gpu, e);
}

/* ---- memory ---- */

static int fake_memory_alloc(int gpu, uint64_t bytes, struct gpu_memory *out, int *fd, struct error *e)
{
    int status = call_check(FAKE_MEMORY_ALLOC, gpu, "allocating memory", e);
    uint64_t whole = (bytes + GRANULARITY - 1) / GRANULARITY * GRANULARITY;

    wrong(!gpus[gpu].open, "memory of a GPU that is not open");
    if (status)
        return status;
    int memory = memfd_create("fake-gpu", MFD_CLOEXEC);
    void *at = memory < 0 || ftruncate(memory, (off_t)whole) ? MAP_FAILED
                                                             : mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (at == MAP_FAILED)
        status = error_set(e, -ENOMEM, "cuda GPU %d: %llu bytes: %s", gpu, (unsigned long long)whole, strerror(errno));
    if (fd && status == 0)
        *fd = memory;
    else if (memory >= 0)
        (void)close(memory);
    if (status)
        return status;
    range_add(address_of(at), whole, false);
    *out = (struct gpu_memory){.address = address_of(at), .bytes = whole, .gpu = gpu, .kind = FCC_MEMORY_GPU_FD};
    return 0;
}

static void fake_memory_free(struct gpu_memory *m)
{
    called();
    uint64_t bytes = range_remove(m->address, false);
    wrong(bytes != m->bytes, "memory is freed with another size");
    if (bytes)
        (void)munmap(pointer(m->address), bytes);
}

static int fake_memory_copy(void *to, int gpu, uint64_t from, uint64_t bytes, struct error *e)
{
    called();
    known_check(from, false, "a copy from unknown memory");
    memcpy(to, pointer(from), bytes);
    return lost_error(gpu, e);
}

static int fake_memory_write(int gpu, uint64_t to, const void *from, uint64_t bytes, struct error *e)
{
    called();
    known_check(to, false, "a copy to unknown memory");
    memcpy(pointer(to), from, bytes);
    return lost_error(gpu, e);
}

static int fake_host_register(void *memory, size_t bytes, uint64_t *address, struct error *e)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int status = call_check(FAKE_HOST_REGISTER, 0, "registering host memory", e);

    wrong(address_of(memory) % page || bytes % page || !bytes, "host memory is registered that is not whole pages");
    if (status)
        return status;
    range_add(address_of(memory), bytes, true);
    *address = address_of(memory);
    return 0;
}

static void fake_host_unregister(void *memory)
{
    called();
    (void)range_remove(address_of(memory), true);
}

static int fake_word_store(int gpu, uint64_t address, uint64_t value, struct error *e)
{
    called();
    known_check(address, false, "a word in unknown memory");
    atomic_store_explicit((_Atomic uint64_t *)pointer(address), value, memory_order_release);
    return lost_error(gpu, e);
}

/* ---- launches ---- */

static void *copy_of(const void *from, size_t n, size_t size)
{
    void *to = calloc(n + 1, size);

    if (from)
        memcpy(to, from, n * size);
    return to;
}

static int fake_launch_make(int gpu, const struct gpu_shape *shape, const uint64_t flags[], const struct gpu_run runs[],
                            int nruns, struct gpu_launch **out, struct error *e)
{
    int status = call_check(FAKE_LAUNCH_MAKE, gpu, "preparing an operator", e);
    struct gpu_launch *l;

    wrong(nruns < 1 || nruns > GPU_MAX_RUNS || shape->nranks > FCC_MAX_RANKS, "a launch with too many ranks");
    if (status)
        return status;
    l = calloc(1, sizeof(*l));
    l->gpu = gpu;
    l->nruns = nruns;
    l->fixed.shape = *shape;
    memcpy(l->fixed.flags, flags, shape->nranks * sizeof(flags[0]));
    for (int i = 0; i < nruns; i++) {
        const struct gpu_run *r = &runs[i];
        struct gpu_plan *plan = &l->fixed.plans[i];
        *plan = (struct gpu_plan){.ngroups = r->ngroups, .rank = (uint32_t)r->rank};
        memcpy(plan->first, r->first, sizeof(plan->first));
        plan->slices = address_of(copy_of(r->slices, r->first[GPU_PHASES], sizeof(r->slices[0])));
        plan->groups = address_of(copy_of(r->groups, r->ngroups, sizeof(r->groups[0])));
        plan->counters = address_of(copy_of(NULL, r->ngroups, sizeof(uint32_t)));
        plan->times = address_of(copy_of(NULL, r->first[GPU_PHASES], sizeof(struct slice_time)));
    }
    (void)atomic_fetch_add(&control->launches, 1);
    *out = l;
    return 0;
}

static void idle_check(const struct gpu_launch *l, const char *what)
{
    struct gpu *g = &gpus[l->gpu];

    (void)pthread_mutex_lock(&g->lock);
    for (const struct task *t = g->first; t; t = t->next)
        wrong(t->launch == l, what);
    (void)pthread_mutex_unlock(&g->lock);
}

static void fake_launch_free(struct gpu_launch *l)
{
    called();
    idle_check(l, "a launch is freed that is in a queue");
    for (int i = 0; i < l->nruns; i++) {
        const struct gpu_plan *plan = &l->fixed.plans[i];
        free(pointer(plan->slices));
        free(pointer(plan->groups));
        free(pointer(plan->counters));
        free(pointer(plan->times));
        free(l->tables[i]);
    }
    free(l);
    (void)atomic_fetch_sub(&control->launches, 1);
}

static int fake_launch_tables(struct gpu_launch *l, int run, const int64_t first[], uint32_t ntables, uint64_t *address,
                              struct error *e)
{
    idle_check(l, "the tables of a launch in a queue change");
    free(l->tables[run]);
    l->tables[run] = copy_of(first, (size_t)ntables + 1, sizeof(first[0]));
    *address = address_of(l->tables[run]);
    return lost_error(l->gpu, e);
}

static int fake_launch_start(struct gpu_launch *l, struct gpu_call *call, const uint64_t staging[], const uint64_t slots[],
                             const uint64_t words[], const uint32_t values[], int nwords, struct error *e)
{
    int status = call_check(FAKE_LAUNCH_START, l->gpu, "launching an operator", e);
    struct gpu *g = &gpus[l->gpu];
    struct task *t;

    idle_check(l, "a launch is started that is in a queue");
    wrong(call->epoch <= l->epoch, "a launch's epoch does not grow");
    if (status)
        return status;
    l->epoch = (uint32_t)call->epoch;
    memcpy(l->fixed.staging, staging, l->fixed.shape.nranks * sizeof(staging[0]));
    memcpy(l->fixed.slots, slots, l->fixed.shape.nranks * sizeof(slots[0]));
    call->fixed = &l->fixed;
    call->nruns = (uint32_t)l->nruns;
    t = calloc(1, sizeof(*t));
    t->launch = l;
    t->call = *call;
    t->nwords = nwords;
    wrong(nwords > (int)GPU_MAX_WORDS, "a launch with too many words");
    if (nwords) {
        memcpy(t->words, words, (size_t)nwords * sizeof(words[0]));
        memcpy(t->values, values, (size_t)nwords * sizeof(values[0]));
    }
    task_visit(t, use_known, NULL);
    (void)atomic_fetch_add(&control->enqueued, 1);
    (void)pthread_mutex_lock(&g->lock);
    if (g->first)
        g->last->next = t;
    else
        g->first = t;
    g->last = t;
    (void)pthread_cond_broadcast(&g->changed);
    (void)pthread_mutex_unlock(&g->lock);
    return 0;
}

static int fake_launch_times(struct gpu_launch *l, int run, struct slice_time out[], struct error *e)
{
    const struct gpu_plan *plan = &l->fixed.plans[run];
    const struct slice_time *times = pointer(plan->times);
    int status = call_check(FAKE_LAUNCH_TIMES, l->gpu, "reading an operator's times", e);

    idle_check(l, "the times of a launch in a queue are read");
    if (status)
        return status;
    for (uint32_t i = 0; i < plan->first[GPU_PHASES]; i++) {
        out[i] = times[i].epoch == l->epoch ? times[i] : (struct slice_time){0};
        out[i].epoch = 0;
    }
    return 0;
}

static uint32_t fake_launch_workgroups(const struct gpu_launch *l)
{
    (void)l;
    return 1;
}

const struct gpu_plugin *gpu_plugin(void)
{
    static const struct gpu_plugin plugin = {
        .abi = GPU_PLUGIN_ABI,
        .kind = "cuda",
        .count = fake_count,
        .describe = fake_describe,
        .open = fake_open,
        .close = fake_close,
        .memory_alloc = fake_memory_alloc,
        .memory_free = fake_memory_free,
        .memory_copy = fake_memory_copy,
        .memory_write = fake_memory_write,
        .host_register = fake_host_register,
        .host_unregister = fake_host_unregister,
        .launch_make = fake_launch_make,
        .launch_free = fake_launch_free,
        .launch_tables = fake_launch_tables,
        .launch_start = fake_launch_start,
        .word_store = fake_word_store,
        .health = fake_health,
        .launch_times = fake_launch_times,
        .launch_workgroups = fake_launch_workgroups,
    };
    return &plugin;
}
