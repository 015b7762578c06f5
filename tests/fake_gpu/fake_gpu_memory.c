/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_memory.c - the fake GPUs' memory, and the contract about it: what a launch in a queue, or a copy on its way, touches is known
 * and stays.
 *
 * Copies into a GPU's memory come late: another thread does them (fake_gpu_side.c), which looks at where they come from only then. It
 * reads the file behind that memory, not the memory: a copy engine is no thread of the program, and takes what is there. A copy that
 * nobody stands behind any more, of an operator that has failed, may find that newer data has begun to come to the same place; then a
 * newer copy follows it, before any kernel looks.
 */
#include "tests/fake_gpu/fake_gpu_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRANULARITY 65536u /* FAKE_GRANULARITY */

/* A piece of memory that GPUs may use. */
struct range {
    struct range *next;
    uint64_t begin, bytes;
    bool host;
    bool pinned; /* host memory that GPUs see as any other */
    int file;    /* what it is a mapping of; -1: it is the program's */
};
static struct range *ranges;
static pthread_mutex_t ranges_lock = PTHREAD_MUTEX_INITIALIZER; /* changes are the engine's */

/* ---- what is known ---- */

static bool lies_in(uint64_t address, uint64_t begin, uint64_t bytes)
{
    return address >= begin && address - begin < bytes;
}

enum place { ON_GPU, ON_HOST, ANYWHERE };

static bool is_place(const struct range *r, enum place place)
{
    return r->pinned || place == ANYWHERE || r->host == (place == ON_HOST);
}

/* Where an address lies; 0 lies nowhere, which is not wrong. */
static struct range range_check(uint64_t address, enum place place, const char *what)
{
    struct range found = {.file = -1};

    (void)pthread_mutex_lock(&ranges_lock);
    const struct range *r = ranges;
    while (r && !(is_place(r, place) && lies_in(address, r->begin, r->bytes)))
        r = r->next;
    wrong(address && !r, what);
    if (r)
        found = *r;
    (void)pthread_mutex_unlock(&ranges_lock);
    return found;
}

/* The device addresses of one run's inputs. */
static int inputs_of(unsigned compute, const struct gpu_input *in, uint64_t out[7])
{
    int n = 0;

    if (compute == COMPUTE_BAG) {
        out[n++] = in->embedding.tables;
        out[n++] = in->embedding.indices;
        out[n++] = in->embedding.offsets;
        out[n++] = in->embedding.weights;
    } else if (compute == COMPUTE_GEMV) {
        out[n++] = in->gemv.x;
        out[n++] = in->gemv.w;
    } else if (compute == COMPUTE_GEMM) {
        out[n++] = in->gemm.a;
        out[n++] = in->gemm.b;
        out[n++] = in->gemm.gathered;
    }
    out[n++] = in->bias;
    out[n++] = in->residual;
    return n;
}

/* Call use(address, where it has to lie, argument) for everything that a task touches. */
static void task_visit(const struct task *t, void (*use)(uint64_t, enum place, void *), void *argument)
{
    const struct gpu_fixed *fixed = &t->launch->fixed;
    uint64_t in[7];

    use(t->call.end.done, ON_HOST, argument);
    if (t->call.nodes.remote) {
        use(t->call.nodes.fifo.head, ON_GPU, argument);
        use(t->call.nodes.fifo.tail, ON_HOST, argument);
        use(t->call.nodes.fifo.slots, ON_HOST, argument);
    }
    for (int i = 0; i < t->waits.count; i++)
        use(t->waits.words[i], ANYWHERE, argument);
    for (uint32_t i = 0; i < t->call.end.nwords; i++)
        use(t->call.end.words[i], ANYWHERE, argument);
    for (uint32_t i = 0; i < t->call.end.npeers; i++)
        use(t->call.end.peers[i], ON_GPU, argument);
    for (uint32_t r = 0; r < fixed->shape.nranks; r++) {
        use(fixed->flags[r], ON_GPU, argument);
        use(fixed->staging[r], ON_GPU, argument);
        use(fixed->slots[r], ON_GPU, argument);
        use(t->call.out[r].data, ON_GPU, argument);
    }
    for (uint32_t i = 0; i < t->call.nruns; i++) {
        use(t->call.in[i].failure, ON_HOST, argument);
        for (int k = inputs_of(fixed->shape.compute, &t->call.in[i], in); k > 0; k--)
            use(in[k - 1], ON_GPU, argument);
    }
}

static void use_known(uint64_t address, enum place place, void *argument)
{
    (void)argument;
    (void)range_check(address, place,
                      place == ON_HOST ? "a launch with host memory that is not registered" : "a launch with unknown memory");
}

void task_check(const struct task *t)
{
    task_visit(t, use_known, NULL);
}

static void use_freed(uint64_t address, enum place place, void *argument)
{
    const struct range *r = argument;

    wrong(is_place(r, place) && lies_in(address, r->begin, r->bytes), "memory is freed that a launch in a queue touches");
}

static uint64_t rule_rows_bytes(const struct gpu_rule_run *r, uint64_t stride)
{
    return r->rows ? (r->rows - 1) * stride + r->row_bytes : 0;
}

void rule_task_check(const struct rule_task *t)
{
    const struct gpu_rule_run *r = &t->run;

    (void)range_check(r->done, ON_HOST, "a rule that tells memory that is not pinned");
    (void)range_check(r->signal, ON_GPU, "a rule's signal in unknown memory");
    for (uint32_t i = 0; i < t->n; i++)
        (void)range_check(t->words[i], ON_GPU, "a look at unknown memory");
    if (!r->rows)
        return;
    (void)range_check(r->from, ON_GPU, "a rule that reads unknown memory");
    (void)range_check(r->from + rule_rows_bytes(r, r->from_stride) - 1, ON_GPU, "a rule that reads unknown memory");
    (void)range_check(r->to, ON_GPU, "a rule that stores into unknown memory");
    (void)range_check(r->to + rule_rows_bytes(r, r->to_stride) - 1, ON_GPU, "a rule that stores into unknown memory");
}

static void rule_task_freed(const struct rule_task *t, const struct range *r)
{
    const struct gpu_rule_run *run = &t->run;
    bool touches = lies_in(run->done, r->begin, r->bytes) || lies_in(run->signal, r->begin, r->bytes) ||
                   (run->rows && (lies_in(run->from, r->begin, r->bytes) || lies_in(run->to, r->begin, r->bytes)));

    for (uint32_t i = 0; i < t->n; i++)
        touches |= lies_in(t->words[i], r->begin, r->bytes);
    wrong(touches, "memory is freed that a rule's run touches");
}

/* file: what it is a mapping of, from now on the range's; or -1. */
static void range_add(uint64_t begin, uint64_t bytes, bool host, int file)
{
    struct range *r = malloc(sizeof(*r));

    (void)pthread_mutex_lock(&ranges_lock);
    *r =
        (struct range){.next = ranges, .begin = begin, .bytes = bytes, .host = host, .pinned = host && file >= 0, .file = file};
    ranges = r;
    (void)pthread_mutex_unlock(&ranges_lock);
    (void)atomic_fetch_add(host ? &control->registered : &control->memories, 1);
}

/* Its bytes; 0 if there is none. */
static uint64_t range_remove(uint64_t begin, bool host)
{
    struct range **at = &ranges, *r;
    uint64_t bytes;

    (void)pthread_mutex_lock(&ranges_lock);
    while (*at && ((*at)->begin != begin || (*at)->host != host))
        at = &(*at)->next;
    wrong(!*at, "memory is freed that there is not");
    if ((r = *at))
        *at = r->next;
    (void)pthread_mutex_unlock(&ranges_lock);
    if (!r)
        return 0;
    for (int g = 0; g < GPU_MAX_GPUS; g++) {
        if (!gpus[g].open)
            continue;
        const struct task *t;
        const struct copy *c;
        const struct side_store *s;
        const struct rule_task *u;
        (void)pthread_mutex_lock(&gpus[g].lock);
        STAILQ_FOREACH(t, &gpus[g].tasks, link)
            task_visit(t, use_freed, r);
        STAILQ_FOREACH(c, &gpus[g].copies, link)
            wrong(lies_in(c->to, r->begin, r->bytes) || lies_in(c->from, r->begin, r->bytes),
                  "memory is freed that a copy touches");
        STAILQ_FOREACH(s, &gpus[g].stores, link)
            wrong(lies_in(s->address, r->begin, r->bytes), "memory is freed into which something is stored in passing");
        STAILQ_FOREACH(u, &gpus[g].rules, link)
            rule_task_freed(u, r);
        (void)pthread_mutex_unlock(&gpus[g].lock);
    }
    bytes = r->bytes;
    if (r->file >= 0)
        (void)close(r->file);
    free(r);
    (void)atomic_fetch_sub(host ? &control->registered : &control->memories, 1);
    return bytes;
}

/* ---- memory ---- */

int fake_memory_alloc(int gpu, uint64_t bytes, struct gpu_memory *out, int *fd, struct error *e)
{
    int status = call_check(FAKE_MEMORY_ALLOC, gpu, "allocating memory", e);
    uint64_t whole = (bytes + GRANULARITY - 1) / GRANULARITY * GRANULARITY;

    wrong(!gpus[gpu].open, "memory of a GPU that is not open");
    if (status)
        return status;
    (void)usleep(control->alloc_ms * 1000);
    int memory = memfd_create("fake-gpu", MFD_CLOEXEC);
    void *at = memory < 0 || ftruncate(memory, (off_t)whole) ? MAP_FAILED
                                                             : mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (at == MAP_FAILED)
        status = error_set(e, -ENOMEM, "cuda GPU %d: %llu bytes: %s", gpu, (unsigned long long)whole, strerror(errno));
    if (status == 0 && fd && (*fd = fcntl(memory, F_DUPFD_CLOEXEC, 0)) < 0)
        status = error_set(e, -ENOMEM, "cuda GPU %d: a descriptor: %s", gpu, strerror(errno));
    if (status) {
        if (memory >= 0)
            (void)close(memory);
        return status;
    }
    range_add(address_of(at), whole, false, memory);
    *out = (struct gpu_memory){.address = address_of(at), .bytes = whole, .gpu = gpu, .kind = FCC_MEMORY_GPU_FD};
    return 0;
}

void fake_memory_free(struct gpu_memory *m)
{
    called();
    uint64_t bytes = range_remove(m->address, false);
    wrong(bytes != m->bytes, "memory is freed with another size");
    if (bytes)
        (void)munmap(pointer(m->address), bytes);
}

void memory_check(uint64_t at, uint64_t bytes)
{
    const struct range r = range_check(at, ON_GPU, "records in unknown memory");

    wrong(bytes == 0 || bytes % sizeof(uint64_t) || bytes > r.begin + r.bytes - at, "records beyond their memory");
}

int fake_memory_copy(void *to, int gpu, uint64_t from, uint64_t bytes, struct error *e)
{
    called();
    (void)range_check(from, ON_GPU, "a copy from unknown memory");
    side_finish(&gpus[gpu]);
    memcpy(to, pointer(from), bytes);
    return lost_error(gpu, e);
}

int fake_memory_write(int gpu, uint64_t to, const void *from, uint64_t bytes, struct error *e)
{
    called();
    (void)range_check(to, ON_GPU, "a copy to unknown memory");
    side_finish(&gpus[gpu]);
    memcpy(pointer(to), from, bytes);
    return lost_error(gpu, e);
}

int fake_host_register(void *memory, size_t bytes, uint64_t *address, struct error *e)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int status = call_check(FAKE_HOST_REGISTER, 0, "registering host memory", e);

    wrong(address_of(memory) % page || bytes % page || !bytes, "host memory is registered that is not whole pages");
    if (status)
        return status;
    range_add(address_of(memory), bytes, true, -1);
    *address = address_of(memory);
    return 0;
}

void fake_host_unregister(void *memory)
{
    called();
    (void)range_remove(address_of(memory), true);
}

int fake_word_store(int gpu, uint64_t address, uint64_t value, struct error *e)
{
    called();
    (void)range_check(address, ON_GPU, "a word in unknown memory");
    int status = lost_error(gpu, e);
    if (status == 0)
        side_store(&gpus[gpu], address, value);
    return status;
}

/* ---- over several nodes ---- */

int fake_host_alloc(uint64_t bytes, void **memory, struct error *e)
{
    int status = call_check(FAKE_HOST_ALLOC, 0, "allocating host memory", e);

    wrong(!bytes || bytes % (uint64_t)sysconf(_SC_PAGESIZE), "host memory is allocated that is not whole pages");
    if (status)
        return status;
    int file = memfd_create("fake-pinned", MFD_CLOEXEC);
    void *at =
        file < 0 || ftruncate(file, (off_t)bytes) ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) {
        status = error_set(e, -ENOMEM, "%llu bytes: %s", (unsigned long long)bytes, strerror(errno));
        if (file >= 0)
            (void)close(file);
        return status;
    }
    range_add(address_of(at), bytes, true, file);
    *memory = at;
    return 0;
}

void fake_host_free(void *memory, uint64_t bytes)
{
    called();
    wrong(range_remove(address_of(memory), true) != bytes, "host memory is freed with another size");
    (void)munmap(memory, bytes);
}

/* The proxy's thread. */
int fake_copy_in(int gpu, uint64_t to, const void *from, uint64_t row_bytes, uint64_t stride, uint32_t rows, struct error *e)
{
    struct gpu *g = &gpus[gpu];
    struct copy *c = calloc(1, sizeof(*c));
    uint64_t end = (rows - 1) * stride + row_bytes - 1;

    wrong(pthread_equal(engine, pthread_self()), "a copy from the engine's thread");
    wrong(!rows || !row_bytes, "a copy of nothing");
    (void)range_check(to, ON_GPU, "a copy to unknown memory");
    (void)range_check(to + end, ON_GPU, "a copy to unknown memory");
    struct range r = range_check(address_of(from), ON_HOST, "a copy from unknown memory");
    wrong(r.file < 0 || !lies_in(address_of(from) + end, r.begin, r.bytes), "a copy from memory that is not pinned");
    *c = (struct copy){.to = to,
                       .from = address_of(from),
                       .file = r.file,
                       .file_at = address_of(from) - r.begin,
                       .row_bytes = row_bytes,
                       .stride = stride,
                       .rows = rows};
    (void)pthread_mutex_lock(&g->lock);
    STAILQ_INSERT_TAIL(&g->copies, c, link);
    g->copies_enqueued++;
    (void)pthread_cond_broadcast(&g->changed);
    (void)pthread_mutex_unlock(&g->lock);
    return lost_error(gpu, e);
}

int fake_copies_await(int gpu, struct error *e)
{
    struct gpu *g = &gpus[gpu];

    called();
    (void)pthread_mutex_lock(&g->lock);
    for (uint64_t all = g->copies_enqueued; g->copies_done < all;)
        (void)pthread_cond_wait(&g->changed, &g->lock);
    (void)pthread_mutex_unlock(&g->lock);
    return lost_error(gpu, e);
}

int fake_memory_export(int gpu, uint64_t address, uint64_t bytes, int *fd, uint64_t *offset, struct error *e)
{
    struct range r = range_check(address, false, "unknown memory is exported");

    called();
    wrong(!bytes || bytes % (uint64_t)sysconf(_SC_PAGESIZE) || !lies_in(address + bytes - 1, r.begin, r.bytes),
          "memory is exported that is not whole pages of one allocation");
    if (!control->exports)
        return error_set(e, -EOPNOTSUPP, "cuda GPU %d: the test has no descriptor for adapters", gpu);
    *fd = control->exports == FAKE_EXPORTS_MEMORY ? fcntl(r.file, F_DUPFD_CLOEXEC, 0) : eventfd(0, EFD_CLOEXEC);
    if (*fd < 0)
        return error_set(e, -ENOMEM, "cuda GPU %d: a descriptor: %s", gpu, strerror(errno));
    *offset = address - r.begin;
    (void)atomic_fetch_add(&control->exported, 1);
    return 0;
}

int fake_memory_share(const struct gpu_memory *m, int *fd, struct error *e)
{
    struct range r = range_check(m->address, ON_GPU, "unknown memory is shared");

    called();
    wrong(r.begin != m->address || m->kind != FCC_MEMORY_GPU_FD, "memory is shared that was not allocated");
    *fd = fcntl(r.file, F_DUPFD_CLOEXEC, 0);
    return *fd < 0 ? error_set(e, -ENOMEM, "cuda GPU %d: a descriptor: %s", m->gpu, strerror(errno)) : 0;
}

/* The proxy's thread. */
int fake_writes_flush(int gpu, struct error *e)
{
    wrong(pthread_equal(engine, pthread_self()), "a flush from the engine's thread");
    (void)atomic_fetch_add(&control->flushed, 1);
    return lost_error(gpu, e);
}
