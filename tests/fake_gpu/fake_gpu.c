/* SPDX-License-Identifier: MIT
 *
 * fake_gpu.c - a GPU plug-in without a GPU, for the tests of the worker: it is built as cuda.so into a directory of the
 * tests, and is never installed. It is a double for order and for failures, and computes nothing: results stay as they are.
 *
 * But over nodes: there a gemv_all_reduce adds up partial sums that say which ranks they are of (fake_partial()), and each element of the other operators'
 * results, in f32, is the number of the rank that it comes from and one. So results show whether all has come, and in which order it was added.
 *
 * What it does do: device memory is a memfd, whose address is the CPU's; a GPU is a thread with a queue. A launch waits there
 * until its words have come, runs its plan's waits and signals (so that it depends on the other GPUs' kernels as a real one
 * does), looks at its failure epochs meanwhile, leaves when they say so, and then tells the host and the clients' streams, in
 * the order of kernels/gpu/device/execute.h. The rest is contract: what the worker must not do (kernels/gpu/abi.h) is counted in fake_gpus.wrong, above
 * all to free memory that a launch in a queue may still touch.
 */
#include "tests/fake_gpu/fake_gpu_inside.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/gpu/step.h"
#include "tests/fake_gpu/fake_driver.h"

struct fake_gpus *control;
pthread_t engine;
struct gpu gpus[GPU_MAX_GPUS];

/* ---- the contract ---- */

void wrong(bool yes, const char *what)
{
    if (yes && atomic_fetch_add(&control->wrong, 1) == 0)
        (void)snprintf(control->what_is_wrong, sizeof(control->what_is_wrong), "%s", what);
}

void called(void)
{
    wrong(!pthread_equal(engine, pthread_self()), "a call from another thread than the engine");
}

int lost_error(int gpu, struct error *e)
{
    return control->lost >> gpu & 1u ? error_set(e, -EIO, "cuda GPU %d: its context is lost: made to be", gpu) : 0;
}

/* Launches may be started, and code may be compiled, by other threads, too; what a client does is its own affair. */
int call_check(enum fake_call call, int gpu, const char *what, struct error *e)
{
    uint32_t expected = call;

    if (call != FAKE_LAUNCH_START && call != FAKE_COMPILER && call != FAKE_CODE_COMPILE && call < FAKE_PREPARED_OPEN)
        called();
    if (lost_error(gpu, e))
        return -EIO;
    if (control->fail_gpu != (uint32_t)gpu || !atomic_compare_exchange_strong(&control->fail, &expected, FAKE_NONE))
        return 0;
    return error_set(e, call == FAKE_MEMORY_ALLOC ? -ENOMEM : -EIO, "cuda GPU %d: %s: made to fail", gpu, what);
}

/* ---- what there is ---- */

int control_open(struct error *e)
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
        .memory_bytes = UINT64_C(1) << 30,
        .multiprocessors = 4,
        .stream_memory_operations = !control->no_stream_waits,
        .lanes = GPU_LANES,
        .words_in_memory = !control->no_stream_waits && !control->no_gpu_words,
    };
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
        STAILQ_INIT(&g->copies);
        STAILQ_INIT(&g->tasks);
        STAILQ_INIT(&g->stores);
        STAILQ_INIT(&g->rules);
        (void)pthread_mutex_init(&g->lock, NULL);
        (void)pthread_cond_init(&g->changed, NULL);
        (void)pthread_create(&g->thread, NULL, gpu_main, g);
        (void)pthread_create(&g->copier, NULL, gpu_copier_main, g);
        (void)pthread_create(&g->side, NULL, side_main, g);
        (void)pthread_create(&g->ruler, NULL, ruler_main, g);
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
        wrong(!STAILQ_EMPTY(&g->copies), "the GPUs are closed while a copy is on its way");
        wrong(!STAILQ_EMPTY(&g->rules), "the GPUs are closed while a rule's run is under way");
        while (!STAILQ_EMPTY(&g->tasks))
            (void)pthread_cond_wait(&g->changed, &g->lock);
        g->end = true;
        (void)pthread_cond_broadcast(&g->changed);
        (void)pthread_mutex_unlock(&g->lock);
        (void)pthread_join(g->thread, NULL);
        (void)pthread_join(g->copier, NULL);
        (void)pthread_join(g->side, NULL);
        (void)pthread_join(g->ruler, NULL);
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
        memcpy(plan->sets, r->sets, sizeof(plan->sets));
        plan->slices = address_of(copy_of(r->slices, r->first[GPU_PHASES], sizeof(r->slices[0])));
        plan->groups = address_of(copy_of(r->groups, r->ngroups, sizeof(r->groups[0])));
        plan->counters = address_of(copy_of(NULL, r->ngroups, sizeof(uint32_t)));
        plan->times = address_of(copy_of(NULL, r->first[GPU_PHASES], sizeof(struct slice_time)));
    }
    (void)atomic_fetch_add(&control->launches, 1);
    *out = l;
    return 0;
}

void launch_idle_check(const struct gpu_launch *l, const char *what)
{
    struct gpu *g = &gpus[l->gpu];
    const struct task *t;

    (void)pthread_mutex_lock(&g->lock);
    STAILQ_FOREACH(t, &g->tasks, link)
        wrong(t->launch == l, what);
    (void)pthread_mutex_unlock(&g->lock);
}

void queues_check(const char *what)
{
    for (int i = 0; i < GPU_MAX_GPUS; i++) {
        struct gpu *g = &gpus[i];
        if (!g->open)
            continue;
        (void)pthread_mutex_lock(&g->lock);
        wrong(!STAILQ_EMPTY(&g->tasks), what);
        (void)pthread_mutex_unlock(&g->lock);
    }
}

static void fake_launch_free(struct gpu_launch *l)
{
    called();
    launch_idle_check(l, "a launch is freed that is in a queue");
    for (int i = 0; i < l->nruns; i++) {
        const struct gpu_plan *plan = &l->fixed.plans[i];
        free(pointer(plan->slices));
        free(pointer(plan->groups));
        free(pointer(plan->counters));
        free(pointer(plan->times));
        free(l->numbers[i]);
    }
    free(l);
    (void)atomic_fetch_sub(&control->launches, 1);
}

static int fake_launch_numbers(struct gpu_launch *l, int run, const int64_t numbers[], uint32_t count, uint64_t *address,
                               struct error *e)
{
    launch_idle_check(l, "the numbers of a launch in a queue change");
    free(l->numbers[run]);
    l->numbers[run] = copy_of(numbers, count, sizeof(numbers[0]));
    *address = address_of(l->numbers[run]);
    return lost_error(l->gpu, e);
}

/* As gemm's kernel for few tiles. */
static bool can_wait(const struct gpu_launch *l)
{
    const struct gpu_plan *plan = &l->fixed.plans[0];
    const struct slice *slices = pointer(plan->slices);

    return l->fixed.shape.compute == COMPUTE_GEMM && !l->fixed.shape.over_nodes && slices[0].kind == SLICE_COMPUTE_PUT;
}

static int fake_launch_start(struct gpu_launch *l, struct gpu_call *call, const uint64_t staging[], const uint64_t slots[],
                             struct gpu_waits *waits, uint32_t lane, struct error *e)
{
    int status = call_check(FAKE_LAUNCH_START, l->gpu, "launching an operator", e);
    struct gpu *g = &gpus[l->gpu];
    struct task *t;

    launch_idle_check(l, "a launch is started that is in a queue");
    wrong(call->epoch < l->epoch || (call->epoch == l->epoch && !l->fixed.shape.over_nodes), "a launch's epoch does not grow");
    wrong(call->epoch == l->epoch && call->nodes.phase_first < l->phase, "a launch's phases are run again");
    if (status)
        return status;
    l->epoch = (uint32_t)call->epoch;
    l->phase = call->nodes.phase_next;
    memcpy(l->fixed.staging, staging, l->fixed.shape.nranks * sizeof(staging[0]));
    memcpy(l->fixed.slots, slots, l->fixed.shape.nranks * sizeof(slots[0]));
    call->fixed = &l->fixed;
    call->nruns = (uint32_t)l->nruns;
    call->end.epoch = (uint32_t)call->epoch;
    t = calloc(1, sizeof(*t));
    t->launch = l;
    t->call = *call;
    wrong(waits->before > waits->count || waits->count > (int)GPU_MAX_WORDS, "a launch with too many words");
    waits->in_kernel = waits->before < waits->count && can_wait(l);
    t->waits = *waits;
    wrong(lane >= GPU_LANES, "a launch by a lane that is not there");
    if (lane)
        (void)atomic_fetch_add(&control->by_lanes, 1);
    task_check(t);
    if (l->fixed.shape.compute == COMPUTE_STEP && l->numbers[0][GPU_STEP_NUMBERS] != CODE_TEXT) /* the head's first word */
        (void)atomic_fetch_add(l->code ? &control->generated : &control->interpreted, 1);
    (void)atomic_fetch_add(&control->enqueued, 1);
    (void)pthread_mutex_lock(&g->lock);
    t->copies = g->copies_enqueued;
    STAILQ_INSERT_TAIL(&g->tasks, t, link);
    (void)pthread_cond_broadcast(&g->changed);
    (void)pthread_mutex_unlock(&g->lock);
    return 0;
}

static int fake_launch_times(struct gpu_launch *l, int run, struct slice_time out[], struct error *e)
{
    const struct gpu_plan *plan = &l->fixed.plans[run];
    const struct slice_time *times = pointer(plan->times);
    int status = call_check(FAKE_LAUNCH_TIMES, l->gpu, "reading an operator's times", e);

    launch_idle_check(l, "the times of a launch in a queue are read");
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
        .memory_share = fake_memory_share,
        .memory_copy = fake_memory_copy,
        .memory_write = fake_memory_write,
        .host_register = fake_host_register,
        .host_unregister = fake_host_unregister,
        .launch_make = fake_launch_make,
        .launch_free = fake_launch_free,
        .launch_numbers = fake_launch_numbers,
        .launch_start = fake_launch_start,
        .word_store = fake_word_store,
        .health = fake_health,
        .launch_times = fake_launch_times,
        .launch_workgroups = fake_launch_workgroups,
        .host_alloc = fake_host_alloc,
        .host_free = fake_host_free,
        .copy_in = fake_copy_in,
        .copies_await = fake_copies_await,
        .memory_export = fake_memory_export,
        .writes_flush = fake_writes_flush,
        .rule_start = fake_rule_start,
        .words_look = fake_words_look,
        .clock_read = fake_clock_read,
        .records_read = fake_records_read,
        .compiler = fake_compiler,
        .code_compile = fake_code_compile,
        .code_load = fake_code_load,
        .code_free = fake_code_free,
        .launch_code = fake_launch_code,
    };
    return &plugin;
}
