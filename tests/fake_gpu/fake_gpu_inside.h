/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_inside.h - what the files of the fake GPU plug-in offer each other.
 *
 *   fake_gpu.c          the plug-in: what it has, what it is told, and whether that is allowed
 *   fake_gpu_memory.c   its memory, and who may touch it
 *   fake_gpu_kernel.c   a GPU's thread, which runs what is in its queue
 *   fake_gpu_side.c     another one, of its side stream: stores in passing
 *   fake_gpu_rules.c    another one, of its queue of rules; what clients' streams do for rules; and what runs note, and its reading
 *   fake_gpu_code.c     the compiler of programs' steps, and what it makes
 *   fake_gpu_nodes.c    what kernels do besides over several nodes
 *   fake_gpu_vector.c   collectives
 *   fake_gpu_gather.c   all_gather_gemm
 *   fake_gpu_prepared.c kernels that a client's process runs by itself
 *   fake_gpu_rings.c    ... collectives, whose parts fake_gpu_rings_parts.c moves, and products, which fake_gpu_products.c and
 *                       fake_gpu_pieces.c compute
 */
#ifndef FAKE_GPU_INSIDE_H
#define FAKE_GPU_INSIDE_H

#include <pthread.h>
#include <sys/queue.h>

#include "kernels/gpu/bound.h"
#include "tests/fake_gpu/fake_gpu.h"

extern struct fake_gpus *control;
/* Map the file beside this plug-in, once. */
int control_open(struct error *e);

extern pthread_t engine; /* who counted: the one thread that may call */

/* Counts what the contract forbids. */
void wrong(bool yes, const char *what);
/* ... and any other thread than the engine. */
void called(void);
int lost_error(int gpu, struct error *e);
/* Is this call to fail? */
int call_check(enum fake_call call, int gpu, const char *what, struct error *e);

/* What a client's process needs of its driver. */
struct client_driver {
    int (*function_push)(void *stream, void (*function)(void *), void *argument);
    int (*capturing)(void *stream, int *status);
};

struct gpu_launch {
    int gpu, nruns;
    uint32_t epoch;         /* of the last call */
    uint32_t phase;         /* ... and the one after those that it has run */
    struct gpu_fixed fixed; /* its plans' addresses are of copies */
    int64_t *numbers[GPU_MAX_RUNS];
    const struct gpu_code *code;
    bool computes; /* fake_gpu_prepared.c: of f32 */
};

/* A launch in a GPU's queue. */
struct task {
    STAILQ_ENTRY(task) link; /* gpu.tasks */
    struct gpu_launch *launch;
    struct gpu_call call;
    struct gpu_waits waits;
    uint64_t copies; /* that it stands behind */
};

/* A copy into a GPU's memory that has been enqueued. */
struct copy {
    STAILQ_ENTRY(copy) link; /* gpu.copies */
    uint64_t to, from, row_bytes, stride;
    uint32_t rows;
    int file; /* where it reads: `from` is this file's byte file_at */
    uint64_t file_at;
};

struct gpu {
    int number;
    _Atomic bool open; /* true: the rest is there */
    pthread_t thread, copier;
    pthread_mutex_t lock;                  /* what follows */
    STAILQ_HEAD(, copy) copies;            /* the first one is being done */
    uint64_t copies_enqueued, copies_done; /* numbers */
    pthread_cond_t changed;                /* a task came or went, or the end */
    STAILQ_HEAD(, task) tasks;             /* the first one runs */
    bool end;                              /* when the queue is empty */
    pthread_t side;                        /* its thread, of stores in passing */
    STAILQ_HEAD(, side_store) stores;      /* the first one is next */
    pthread_t ruler;                       /* its thread, of rules and looks */
    STAILQ_HEAD(, rule_task) rules;        /* the first one is being done */
};
extern struct gpu gpus[GPU_MAX_GPUS];

/* A run of a rule, or a look at words, under way. */
struct rule_task {
    STAILQ_ENTRY(rule_task) link; /* gpu.rules */
    struct gpu_rule_run run;
    uint64_t *words, *to; /* a look: n words, and where they come; run.done and run.run say that it has been done */
    uint32_t n;
};
/* Counts it if the launch is in a queue, or, of queues_check(), if anything is in any GPU's. */
void launch_idle_check(const struct gpu_launch *l, const char *what);
void queues_check(const char *what);
int fake_compiler(int gpu, const char *path, char text[GPU_COMPILER_TEXT], struct error *e);
int fake_code_compile(int gpu, const char *source, void **image, size_t *bytes, struct error *e);
int fake_code_load(int gpu, const void *image, size_t bytes, struct gpu_code **out, struct error *e);
void fake_code_free(struct gpu_code *code);
/* The same in a client's process. */
int fake_code_take(int gpu, const void *image, size_t bytes, struct gpu_code **out);
void fake_code_drop(struct gpu_code *code);
int fake_launch_code(struct gpu_launch *l, const struct gpu_code *code, struct error *e);
int fake_rule_start(const struct gpu_rule_run *run, struct error *e);
int fake_words_look(int gpu, const uint64_t words[], uint32_t n, uint64_t to[], uint64_t *done, uint64_t number,
                    struct error *e);
/* What runs have noted; by the reading thread. */
int fake_clock_read(int gpu, struct gpu_moment *out, struct error *e);
int fake_records_read(void *to, int gpu, uint64_t from, uint64_t bytes, struct error *e);
/* A fake GPU's clock, which has another beginning than CLOCK_MONOTONIC, and slower ticks. A run's record, as its kernel notes it. */
uint64_t fake_clock(void);
void fake_record_begin(struct run_record *records, uint32_t n, uint64_t run, uint64_t what);
void fake_record_end(struct run_record *records, uint32_t n, uint64_t run, bool given_up);
int fake_rule_add(const struct gpu_rule_words *words, uint64_t n, void *stream, struct error *e);
int fake_rule_await(const struct gpu_rule_words *words, void *stream, struct error *e);
int fake_rule_run(const struct gpu_rule_words *words, const struct gpu_rule_work *work, void *stream, struct error *e);
/* fake_gpu_memory.c: all that it touches is known. */
void memory_check(uint64_t at, uint64_t bytes);
void rule_task_check(const struct rule_task *t);
void *ruler_main(void *gpu);

/* A store in passing, under way. */
struct side_store {
    STAILQ_ENTRY(side_store) link; /* gpu.stores */
    uint64_t address, value, at_ns;
};
/* Store on the GPU's side stream; what was stored there before comes first. */
void side_store(struct gpu *g, uint64_t address, uint64_t value);
/* All of it has been stored. */
void side_finish(struct gpu *g);

static inline void *pointer(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static inline uint64_t address_of(const void *p)
{
    return (uint64_t)(uintptr_t)p;
}

/* All that it touches is known. */
void task_check(const struct task *t);

/* The plug-in's functions of these names: kernels/gpu/abi.h. */
int fake_memory_alloc(int gpu, uint64_t bytes, struct gpu_memory *out, int *fd, struct error *e);
void fake_memory_free(struct gpu_memory *m);
int fake_memory_copy(void *to, int gpu, uint64_t from, uint64_t bytes, struct error *e);
int fake_memory_write(int gpu, uint64_t to, const void *from, uint64_t bytes, struct error *e);
int fake_host_register(void *memory, size_t bytes, uint64_t *address, struct error *e);
void fake_host_unregister(void *memory);
int fake_word_store(int gpu, uint64_t address, uint64_t value, struct error *e);
int fake_host_alloc(uint64_t bytes, void **memory, struct error *e);
void fake_host_free(void *memory, uint64_t bytes);
int fake_copy_in(int gpu, uint64_t to, const void *from, uint64_t row_bytes, uint64_t stride, uint32_t rows, struct error *e);
int fake_copies_await(int gpu, struct error *e);
int fake_memory_export(int gpu, uint64_t address, uint64_t bytes, int *fd, uint64_t *offset, struct error *e);
int fake_memory_share(const struct gpu_memory *m, int *fd, struct error *e);
int fake_writes_flush(int gpu, struct error *e);

/* ---- kernels: kernels/gpu/device/execute.h. Who returns false says that it is to leave ---- */

bool task_must_leave(const struct task *t);
void gpu_nap(void);
uint64_t now_ns(void);
/* Before its phases: no slice has finished. */
void launch_groups_set(const struct gpu_launch *l);
void phases_run(const struct gpu *g, const struct task *t);
/* Flags are raised to the call's epoch, and awaited by a slice that says which. */
void flag_raise(const struct task *t, uint32_t rank, uint32_t flag);
bool slice_await(const struct gpu *g, const struct task *t, uint32_t rank, const struct slice *s);
/* A GPU whose context is lost stands still. */
void gpu_stand(const struct gpu *g);

/* As plan_reaches(). */
bool plan_goes_to(const struct gpu_plan *plan, uint32_t dst, uint32_t rank);
bool nodes_is_remote(const struct task *t, uint32_t rank);
#define FAKE_TRIGGER_PUT 0x40000000u
#define FAKE_TRIGGER_FLAG 0x80000000u
bool nodes_trigger_push(const struct gpu *g, const struct task *t, uint32_t rank, uint32_t dst, uint32_t what);
/* The slice's triggers; it has been run. */
bool nodes_slice_send(const struct gpu *g, const struct task *t, const struct gpu_plan *plan, const struct slice *s,
                      uint32_t index);
void nodes_slice_run(const struct task *t, const struct gpu_plan *plan, const struct slice *s);
void gather_slice_run(const struct task *t, const struct gpu_plan *plan, const struct slice *s);
void vector_slice_run(const struct task *t, const struct gpu_plan *plan, const struct slice *s);
/* A finished element of y, to the ranks that it goes to: number i of the slice. */
void result_store(const struct task *t, const struct gpu_plan *plan, const struct slice *s, uint32_t i, const void *element);

/* A launch that computes. A partial sum of gemv's; a slice of gemm's. */
float prepared_partial(const struct task *t, uint32_t row, uint32_t col);
void prepared_rows_put(const struct task *t, const struct slice *s);

/* A GPU's threads; their argument is the struct gpu. */
void *gpu_main(void *gpu);
void *gpu_copier_main(void *gpu);
void *side_main(void *gpu);

#endif
