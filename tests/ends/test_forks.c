/* SPDX-License-Identifier: MIT
 *
 * test_forks.c - whose objects a function is given: nobody's (NULL), or those of the process from which this one was forked. Both are
 * refused by every function, and what a child does with them its parent does not notice. And processes that end while a child of theirs
 * has their connection.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bed/harness.h"

/* ---- every function that is given an object ---- */

struct objects {
    fcc_context *context;
    fcc_comm *comm;
    fcc_buffer *local, *symmetric;
    fcc_request *request;
    fcc_tracker *tracker;
    struct fcc_unique_id id;
};

/* Functions that do not return a status return this, and their error is the last one. */
static int nothing_or(int nothing, int status)
{
    return nothing ? status : 1;
}

#define CALLS(X)                                                                                                               \
    X(device_count, fcc_device_count(o->context))                                                                              \
    X(get_unique_id, fcc_get_unique_id(o->context, &id))                                                                       \
    X(comm_init, fcc_comm_init(o->context, &o->id, 1, 0, NULL, &comm))                                                         \
    X(comm_init_env, fcc_comm_init_env(o->context, NULL, &comm))                                                               \
    X(comm_abort, fcc_comm_abort(o->comm, "no"))                                                                               \
    X(comm_rank, fcc_comm_rank(o->comm))                                                                                       \
    X(comm_size, fcc_comm_size(o->comm))                                                                                       \
    X(comm_device, fcc_comm_device(o->comm))                                                                                   \
    X(comm_device_kind, (int)fcc_comm_device_kind(o->comm))                                                                    \
    X(comm_status, fcc_comm_status(o->comm, &word))                                                                            \
    X(comm_error, fcc_comm_error(o->comm))                                                                                     \
    X(comm_error_wait, fcc_comm_error_wait(o->comm, -1))                                                                       \
    X(comm_triggers, fcc_comm_triggers(o->comm, &triggers))                                                                    \
    X(buffer_alloc, fcc_buffer_alloc(o->comm, FCC_BUFFER_LOCAL, 64, &buffer))                                                  \
    X(buffer_alloc_symmetric, fcc_buffer_alloc(o->comm, FCC_BUFFER_SYMMETRIC, 64, &buffer))                                    \
    X(buffer_data, nothing_or(!fcc_buffer_data(o->local), status))                                                             \
    X(buffer_size, nothing_or(!fcc_buffer_size(o->local), status))                                                             \
    X(buffer_find, nothing_or(!fcc_buffer_find(o->context, &number), status))                                                  \
    X(buffer_write, fcc_buffer_write(o->local, 0, &number, sizeof(number)))                                                    \
    X(buffer_read, fcc_buffer_read(o->local, 0, &number, sizeof(number)))                                                      \
    X(buffer_peer, fcc_buffer_peer(o->symmetric, 1, &address))                                                                 \
    X(pool_open, fcc_pool_open(o->comm, 1))                                                                                    \
    X(put_register, fcc_put_register(o->comm, &put, &number))                                                                  \
    X(put_trigger, fcc_put_trigger(o->comm, 1, 1))                                                                             \
    X(map_granularity, fcc_map_granularity(o->comm, &bytes))                                                                   \
    X(map_create, fcc_map_create(o->comm, &piece, 1, &map))                                                                    \
    X(map_stride, fcc_map_stride(o->comm, 4096, 1, 1, &stride))                                                                \
    X(tracker_create, fcc_tracker_create(o->comm, &tracker))                                                                   \
    X(tracker_rule, fcc_tracker_rule(o->tracker, &rule, &number))                                                              \
    X(tracker_add, fcc_tracker_add(o->tracker, 0, 1))                                                                          \
    X(tracker_count, nothing_or(!fcc_tracker_count(o->tracker, 0), status))                                                    \
    X(tracker_wait, fcc_tracker_wait(o->tracker, 0, 1, -1))                                                                    \
    X(signal_wait, fcc_signal_wait(o->comm, &stride, 1, -1))                                                                   \
    X(noop, fcc_noop(o->comm))                                                                                                 \
    X(noop_start, fcc_noop_start(o->comm, &request))                                                                           \
    X(noop_enqueue, fcc_noop_enqueue(o->comm, NULL, NULL))                                                                     \
    X(gemv, fcc_gemv_all_reduce(o->comm, &gemv))                                                                               \
    X(gemv_start, fcc_gemv_all_reduce_start(o->comm, &gemv, &request))                                                         \
    X(gemv_enqueue, fcc_gemv_all_reduce_enqueue(o->comm, &gemv, NULL, NULL))                                                   \
    X(gemv_prepare, fcc_gemv_all_reduce_prepare(o->comm, &gemv, &prepared))                                                    \
    X(gemm, fcc_gemm_all_to_all(o->comm, &gemm))                                                                               \
    X(gemm_start, fcc_gemm_all_to_all_start(o->comm, &gemm, &request))                                                         \
    X(gemm_enqueue, fcc_gemm_all_to_all_enqueue(o->comm, &gemm, NULL, NULL))                                                   \
    X(gemm_prepare, fcc_gemm_all_to_all_prepare(o->comm, &gemm, &prepared))                                                    \
    X(embedding, fcc_embedding_all_to_all(o->comm, &embedding))                                                                \
    X(embedding_start, fcc_embedding_all_to_all_start(o->comm, &embedding, &request))                                          \
    X(embedding_enqueue, fcc_embedding_all_to_all_enqueue(o->comm, &embedding, NULL, NULL))                                    \
    X(request_test, fcc_request_test(o->request, &done))                                                                       \
    X(request_wait, fcc_request_wait(o->request, -1))                                                                          \
    X(request_wait_no_time, fcc_request_wait(o->request, 0))

static void all_refuse(const struct objects *o, int status, const char *words)
{
    struct fcc_embedding_all_to_all_args embedding = {.batch = 0};
    struct fcc_gemv_all_reduce_args gemv = {.schedule = 0};
    struct fcc_gemm_all_to_all_args gemm = {.schedule = 0};
    const struct fcc_map_piece piece = {.rank = 0};
    const struct fcc_rule rule = {.count = 1};
    struct fcc_put put = {.rank = 0};
    fcc_tracker *tracker;
    uint64_t stride = 0;
    fcc_map *map;
    size_t bytes;
    struct fcc_triggers triggers;
    struct fcc_unique_id id;
    fcc_prepared *prepared;
    fcc_request *request;
    fcc_buffer *buffer;
    const int32_t *word;
    uint32_t number = 0;
    void *address;
    fcc_comm *comm;
    int done;

#define X(name, call)                                                                                                          \
    do {                                                                                                                       \
        FAILS(fcc_group_end(), -EINVAL, "no group"); /* so that the last error is another one */                               \
        check_error(__FILE__, __LINE__, #name, (call), status, (const char *const[]){words, NULL});                            \
    } while (0);
    CALLS(X)
#undef X
}

/* Of NULL and of a parent's objects. */
static void all_free(const struct objects *o)
{
    fcc_request_free(o->request);
    fcc_tracker_free(o->tracker);
    fcc_buffer_free(o->local);
    fcc_buffer_free(o->symmetric);
    fcc_comm_destroy(o->comm);
    fcc_disconnect(o->context);
}

static void nothing(void)
{
    const struct objects none = {.context = NULL};

    all_refuse(&none, -EINVAL, "NULL");
    all_free(&none);
    fcc_prepared_free(NULL);
    FAILS(fcc_prepared_enqueue(NULL, NULL), -EINVAL, "prepared: NULL");
    FAILS(fcc_connect(NULL, NULL), -EINVAL, "out: NULL");
    FAILS(fcc_env_find(NULL), -EINVAL, "out: NULL");
    CHECK(!fcc_pool_alloc(64, 1, NULL));
    fcc_pool_free(NULL, 0, 1, NULL);
}

/* Objects that are there, and arguments beside them that are not. */
static void nothing_beside(void)
{
    struct test_daemon d;
    fcc_context *context;
    fcc_request *request;
    fcc_buffer *buffer;
    struct fcc_unique_id id;
    struct fcc_put put = {.rank = 0};
    uint32_t number;
    fcc_comm *comm;

    daemon_start(&d, NULL);
    OK(fcc_connect(NULL, &context));
    FAILS(fcc_get_unique_id(context, NULL), -EINVAL, "out: NULL");
    OK(fcc_get_unique_id(context, &id));
    FAILS(fcc_comm_init(context, NULL, 1, 0, NULL, &comm), -EINVAL, "id: NULL");
    FAILS(fcc_comm_init(context, &id, 1, 0, NULL, NULL), -EINVAL, "out: NULL");
    FAILS(fcc_comm_init_env(context, NULL, NULL), -EINVAL, "out: NULL");
    OK(fcc_comm_init(context, &id, 1, 0, NULL, &comm));
    FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 64, NULL), -EINVAL, "out: NULL");
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 64, &buffer));
    FAILS(fcc_buffer_peer(buffer, 0, NULL), -EINVAL, "out: NULL");
    FAILS(fcc_buffer_write(buffer, 0, NULL, 1), -EINVAL, "from: NULL");
    FAILS(fcc_buffer_read(buffer, 0, NULL, 1), -EINVAL, "to: NULL");
    FAILS(fcc_comm_status(comm, NULL), -EINVAL, "out: NULL");
    FAILS(fcc_comm_triggers(comm, NULL), -EINVAL, "out: NULL");
    FAILS(fcc_put_register(comm, NULL, &number), -EINVAL, "put: NULL");
    FAILS(fcc_put_register(comm, &put, NULL), -EINVAL, "number: NULL");
    FAILS(fcc_put_trigger(comm, 0, 1), -EINVAL, "number: 0");
    FAILS(fcc_noop_start(comm, NULL), -EINVAL, "out: NULL");
    OK(fcc_noop_start(comm, &request));
    FAILS(fcc_request_test(request, NULL), -EINVAL, "done: NULL");
    OK(fcc_request_wait(request, -1));
    fcc_request_free(request);
    fcc_disconnect(context);
    daemon_stop(&d);
}

/* ---- a child with its parent's objects ---- */

enum { N = 100, K = 16 };
/* The communicators' limit: a rank comes to an operator when the other's child has ended, which may take child_begins()'s time. */
enum { CHILDREN_MS = 240000 };

static void objects_make(const struct ranks *all, int rank, struct objects *o)
{
    *o = (struct objects){.id = all->id, .comm = comm_open(all, rank, CHILDREN_MS)};
    o->context = comm_context();
    OK(fcc_buffer_alloc(o->comm, FCC_BUFFER_LOCAL, (N + 1) * K * sizeof(float), &o->local));
    OK(fcc_buffer_alloc(o->comm, FCC_BUFFER_SYMMETRIC, N * sizeof(float), &o->symmetric));
    float *x = fcc_buffer_data(o->local);
    for (int i = 0; i < (N + 1) * K; i++)
        x[i] = i < K ? 1 : (float)(rank + 1);
}

/* y = sum over ranks of K * (rank + 1) */
static void sum_is_right(const struct objects *o, int nranks)
{
    struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(o->local, 0, FCC_F32, 1, K),
                                            .w = fcc_tensor_2d(o->local, K * sizeof(float), FCC_F32, N, K),
                                            .y = fcc_tensor_2d(o->symmetric, 0, FCC_F32, 1, N)};
    float *y = fcc_buffer_data(o->symmetric);

    memset(y, 0, N * sizeof(float));
    OK(fcc_gemv_all_reduce(o->comm, &args));
    for (int i = 0; i < N; i++)
        CHECK(y[i] == (float)(K * nranks * (nranks + 1)) / 2.0F);
}

static void child_ends_well(pid_t child)
{
    int status;

    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    if (status)
        check_failed(__FILE__, __LINE__, "the child ended with wait status 0x%x", status);
}

static void child_begins(void)
{
    (void)alarm((unsigned)((await_end() - now_ms()) / 1e3)); /* a call that waits for a lock that nobody will give back */
}

/* In a child: by itself, as any process. */
static void anew(void)
{
    fcc_context *context;
    fcc_comm *comm;
    fcc_buffer *buffer;
    struct fcc_unique_id id;

    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &id));
    OK(fcc_comm_init(context, &id, 1, 0, NULL, &comm));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 64, &buffer));
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void child_of_rank(const struct objects *o, float *x)
{
    child_begins();
    all_refuse(o, -ECHILD, "forked");
    CHECK(x[0] == 1); /* it may read what it can see */
    all_free(o);
    all_refuse(o, -ECHILD, "forked");
    anew();
    all_refuse(o, -ECHILD, "forked"); /* with a connection of its own, too */
    if (!fork()) {                    /* and a child of the child */
        child_begins();
        all_refuse(o, -ECHILD, "forked");
        anew();
        _exit(0);
    }
    int status;
    CHECK(wait(&status) > 0 && !status);
    _exit(0);
}

static void uses_parents_rank(int rank, const struct ranks *all, void *argument)
{
    struct objects o;

    (void)argument;
    objects_make(all, rank, &o);
    OK(fcc_tracker_create(o.comm, &o.tracker)); /* the library watches its worker by a thread, then */
    sum_is_right(&o, 2);
    for (int i = 0; i < 3; i++) {
        if (rank == i % 2) {
            OK(fcc_noop_start(o.comm, &o.request)); /* is in flight, as the other rank comes to it later */
            float *x = fcc_buffer_data(o.local);
            pid_t child = fork();
            if (!child)
                child_of_rank(&o, x);
            child_ends_well(child);
            OK(fcc_request_wait(o.request, -1));
            fcc_request_free(o.request);
        } else {
            OK(fcc_noop(o.comm));
        }
        sum_is_right(&o, 2);
    }
    fcc_comm_destroy(o.comm);
    fcc_disconnect(o.context);
}

static void uses_parents(void)
{
    ranks_run(2, uses_parents_rank, NULL);
}

/* A context of the child's own does not make its parent's buffers its own. */
static void parents_buffer(void)
{
    struct test_daemon d;
    struct ranks r = {.n = 1};
    struct objects o, mine;
    int status;

    daemon_start(&d, NULL);
    anew();
    OK(fcc_connect(NULL, &o.context));
    OK(fcc_get_unique_id(o.context, &r.id));
    fcc_disconnect(o.context);
    objects_make(&r, 0, &o);
    if (!fork()) {
        child_begins();
        OK(fcc_connect(NULL, &mine.context));
        OK(fcc_get_unique_id(mine.context, &r.id));
        fcc_disconnect(mine.context);
        objects_make(&r, 0, &mine);
        struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(o.local, 0, FCC_F32, 1, K),
                                                .w = fcc_tensor_2d(mine.local, K * sizeof(float), FCC_F32, N, K),
                                                .y = fcc_tensor_2d(mine.symmetric, 0, FCC_F32, 1, N)};
        FAILS(fcc_gemv_all_reduce(mine.comm, &args), -ENOENT, "x", "no such buffer");
        sum_is_right(&mine, 1);
        fcc_comm_destroy(mine.comm);
        fcc_disconnect(mine.context);
        _exit(0);
    }
    CHECK(wait(&status) > 0 && !status);
    sum_is_right(&o, 1);
    fcc_comm_destroy(o.comm);
    fcc_disconnect(o.context);
    daemon_stop(&d);
}

/* ---- forks while other threads are within the library ---- */

struct busy {
    struct objects o;
    _Atomic int stop;
};

static void *busy_thread(void *argument)
{
    struct busy *b = argument;
    fcc_buffer *buffer;

    while (!b->stop) {
        OK(fcc_noop(b->o.comm));
        OK(fcc_buffer_alloc(b->o.comm, FCC_BUFFER_LOCAL, 64, &buffer));
        fcc_buffer_free(buffer);
    }
    return NULL;
}

static void *pool_thread(void *argument)
{
    struct busy *b = argument;

    while (!b->stop) {
        void *memory = fcc_pool_alloc(4096, 5, NULL);
        CHECK(memory);
        fcc_pool_free(memory, 4096, 5, NULL);
    }
    return NULL;
}

static void while_busy(void)
{
    struct test_daemon d;
    struct ranks r = {.n = 1};
    pthread_t threads[3];
    struct busy b = {.stop = 0};
    void *pooled;

    daemon_start(&d, NULL);
    OK(fcc_connect(NULL, &b.o.context));
    OK(fcc_get_unique_id(b.o.context, &r.id));
    fcc_disconnect(b.o.context);
    objects_make(&r, 0, &b.o);
    OK(fcc_tracker_create(b.o.comm, &b.o.tracker));
    OK(fcc_noop_start(b.o.comm, &b.o.request));
    OK(fcc_pool_open(b.o.comm, 5));
    pooled = fcc_pool_alloc(64, 5, NULL);
    CHECK(pooled);
    for (int i = 0; i < 3; i++)
        CHECK(!pthread_create(&threads[i], NULL, i ? busy_thread : pool_thread, &b));
    for (int i = 0; i < test_rounds(40); i++) {
        pid_t child = fork();
        if (!child) {
            child_begins();
            all_refuse(&b.o, -ECHILD, "forked");
            CHECK(!fcc_pool_alloc(64, 5, NULL)); /* a pool that the child has not opened */
            fcc_pool_free(pooled, 64, 5, NULL);
            FAILS(fcc_pool_close(5), -ENOENT, "device 5");
            all_free(&b.o);
            anew();
            _exit(0);
        }
        child_ends_well(child);
    }
    b.stop = 1;
    for (int i = 0; i < 3; i++)
        (void)pthread_join(threads[i], NULL);
    sum_is_right(&b.o, 1);
    fcc_pool_free(pooled, 64, 5, NULL);
    OK(fcc_pool_close(5));
    OK(fcc_request_wait(b.o.request, -1));
    fcc_disconnect(b.o.context);
    daemon_stop(&d);
}

/* ---- who ends while a child of his has the connection ---- */

enum way { KILLED, EXITS, DISCONNECTS, KILLED_WITHOUT_RING, KILLED_CHILD_EXECS };

struct ending {
    enum way way;
    pid_t child; /* of rank 0: it lives until the test is over */
};

static void rank_ends(struct ending *e, fcc_context *context)
{
    pid_t child = fork();
    if (!child) {
        if (e->way == KILLED_CHILD_EXECS)
            (void)execlp("sleep", "sleep", "100", NULL);
        (void)sleep(100);
        _exit(0);
    }
    e->child = child;
    if (e->way == EXITS)
        exit(EXIT_SUCCESS);
    if (e->way == DISCONNECTS)
        fcc_disconnect(context);
    else
        (void)kill(getpid(), SIGKILL);
    (void)pause(); /* it stays, without a connection */
}

static void ends_rank(int rank, const struct ranks *all, void *argument)
{
    struct fcc_comm_options options = {.device = -1,
                                       .time_limit_ms = 60000}; /* longer than the test: it is not what ends the wait */
    struct ending *e = argument;
    struct fcc_connect_options connection = {.no_ring = e->way == KILLED_WITHOUT_RING};
    fcc_context *context;
    fcc_comm *comm;

    OK(fcc_connect(&connection, &context));
    OK(fcc_comm_init(context, &all->id, 2, rank, &options, &comm));
    OK(fcc_noop(comm));
    if (rank == 0)
        rank_ends(e, context);
    FAILS(fcc_noop(comm), -ECONNABORTED, "rank 0", "is gone");
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void child_has_connection(enum way way)
{
    struct ending *e = shared_memory(sizeof(*e));
    struct test_daemon d;
    struct ranks r;

    e->way = way;
    daemon_start(&d, NULL);
    ranks_start(&r, 2, ends_rank, e);
    CHECK(rank_wait(&r, 1) == 0);
    CHECK(e->child > 0 && !kill(e->child, 0)); /* it has it all the time */
    (void)kill(r.pid[0], SIGKILL);
    (void)rank_wait(&r, 0);
    (void)kill(e->child, SIGKILL);
    expect_alive(2);
    daemon_stop_unclean(&d);
}

static void killed(void)
{
    child_has_connection(KILLED);
}

static void killed_without_ring(void)
{
    child_has_connection(KILLED_WITHOUT_RING);
}

static void killed_child_execs(void)
{
    child_has_connection(KILLED_CHILD_EXECS);
}

static void exits(void)
{
    child_has_connection(EXITS);
}

static void disconnects(void)
{
    child_has_connection(DISCONNECTS);
}

int main(void)
{
    const struct test tests[] = {
        {"nothing", nothing, 0},
        {"nothing_beside", nothing_beside, 0},
        {"uses_parents", uses_parents, 60},
        {"parents_buffer", parents_buffer, 0},
        {"while_busy", while_busy, 60},
        {"killed", killed, 0},
        {"killed_without_ring", killed_without_ring, 0},
        {"killed_child_execs", killed_child_execs, 0},
        {"exits", exits, 0},
        {"disconnects", disconnects, 0},
    };
    return tests_run("forks", TESTS(tests));
}
