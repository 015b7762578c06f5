/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker.c - the worker's side of GPUs and the client's streams, with the real daemon and the real library on fake
 * GPUs: who may join, the order of operators and streams, and what fccctl shows. The same on real GPUs is in test_gpu_ranks.c
 * and test_gpu_stream.c; here it runs under the sanitizers.
 */
#include <json-c/json.h>
#include <pthread.h>

#include "fake_gpu_bed.h"

/* ---- what fccctl shows ---- */

static struct json_object *field(struct json_object *o, const char *name)
{
    struct json_object *value = NULL;

    if (!json_object_object_get_ex(o, name, &value))
        check_failed(__FILE__, __LINE__, "no \"%s\" in %s", name, json_object_to_json_string(o));
    return value;
}

static bool field_is(struct json_object *o, const char *name, const char *text)
{
    return !strcmp(json_object_get_string(field(o, name)), text);
}

static struct json_object *fccctl_json(const char *verb)
{
    static char text[1 << 20];
    int code = program_run(text, sizeof(text), fccctl_binary(), (const char *const[]){verb, "--json", NULL});
    struct json_object *o = json_tokener_parse(text);

    if (code || !o)
        check_failed(__FILE__, __LINE__, "fccctl %s: %d: %s", verb, code, text);
    return o;
}

/* A worker is in its first client's MPS server; one that comes from another is told of in the log. */
static void another_mps(void)
{
    struct test_daemon d;
    fcc_context *first, *other;

    fake_start(&d, GPUS, NULL);
    (void)setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent/one", 1);
    OK(fcc_connect(NULL, &first));
    CHECK(!daemon_logged(&d, "its CUDA_MPS_PIPE_DIRECTORY is", 0));
    (void)setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent/two", 1);
    OK(fcc_connect(NULL, &other));
    CHECK(daemon_logged(&d, "its CUDA_MPS_PIPE_DIRECTORY is \"/nonexistent/two\"", 5000));
    fcc_disconnect(other);
    fcc_disconnect(first);
    fake_stop(&d);
}

static void devices(void)
{
    struct test_daemon d;
    int n = 0;

    (void)setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent/mps", 1);
    fake_start(&d, GPUS, NULL);
    CHECK(daemon_logged(&d, "no MPS control daemon at /nonexistent/mps/control", 5000));
    struct json_object *o = fccctl_json("devices"), *list = field(o, "devices");
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        struct json_object *device = json_object_array_get_idx(list, i);
        if (!field_is(device, "kind", "cuda"))
            continue;
        if (n == 1)
            CHECK(field_is(device, "name", "Fake GPU 1") && field_is(device, "peers", "[ 0, 2 ]") &&
                  field_is(device, "links", "[ \"NVLink\", \"PCIe\" ]") &&
                  field_is(device, "uuid", "a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1") && field_is(device, "pci", "0000:02:00.0"));
        CHECK(json_object_get_int(field(device, "device")) == n++);
    }
    CHECK(n == GPUS);
    (void)json_object_put(o);
    daemon_stop(&d);
}

/* ---- joining ---- */

static int join(fcc_context *context, const struct ranks *all, int rank, int device, enum fcc_device_kind kind, fcc_comm **out)
{
    const struct fcc_comm_options options = {.device = device, .device_kind = kind};

    return fcc_comm_init(context, &all->id, all->n, rank, &options, out);
}

static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm;

    (void)argument;
    FAILS(join(context, all, 0, 0, FCC_DEVICE_HIP, &comm), -ENODEV, "rank 0", "hip: not allowed by GPUS=cuda");
    FAILS(join(context, all, 0, GPUS, FCC_DEVICE_CUDA, &comm), -ENOENT, "rank 0: device: 3: allowed are -1 to 2");
    FAILS(join(context, all, 0, -2, FCC_DEVICE_GPU, &comm), -EINVAL, "rank 0: device: -2: allowed are -1 to 2");
    FAILS(join(context, all, 0, 0, FCC_DEVICE_HIP, &comm), -ENODEV, "this job uses cuda");
    OK(join(context, all, rank, GPUS - 1, FCC_DEVICE_GPU, &comm)); /* any kind: the one that there is */
    CHECK(fcc_comm_device(comm) == GPUS - 1 && fcc_comm_device_kind(comm) == FCC_DEVICE_CUDA);
    OK(fcc_noop(comm));
    fcc_disconnect(context);
}

/* The runtime does not start, and would not in this process any more: the next connection gets another worker. */
static void not_now(void)
{
    struct test_daemon d;
    struct ranks all = {.n = 1};
    fcc_comm *comm;

    fake_start(&d, GPUS, NULL);
    fake->gpus = FAKE_NOT_NOW;
    fcc_context *context = client_connect(NULL);
    OK(fcc_get_unique_id(context, &all.id));
    FAILS(join(context, &all, 0, 0, FCC_DEVICE_CUDA, &comm), -EAGAIN, "rank 0", "does not start", "connect again");
    fake->gpus = GPUS;
    FAILS(fcc_get_unique_id(context, &all.id), -EAGAIN, "does not start", "connect again");
    fcc_disconnect(context);
    context = client_connect(NULL);
    OK(fcc_get_unique_id(context, &all.id));
    OK(join(context, &all, 0, 0, FCC_DEVICE_CUDA, &comm));
    OK(fcc_noop(comm));
    fcc_disconnect(context);
    daemon_stop_unclean(&d); /* the log has the error that was wanted */
    fake_check();
}

static void refused(void)
{
    fake_ranks_run(1, refused_rank, NULL);
}

/* Both want what does not go together. Who comes second hears it, and gives way. */
struct clash {
    enum fcc_device_kind kind[2];
    int device[2];
    int status;
    const char *says[2];
    _Atomic int refused;
};

static void clash_rank(int rank, const struct ranks *all, void *argument)
{
    struct clash *clash = argument;
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm;
    int status = join(context, all, rank, clash->device[rank], clash->kind[rank], &comm);

    if (status) {
        check_error(__FILE__, __LINE__, "fcc_comm_init", status, clash->status,
                    (const char *const[]){rank ? "rank 1: device" : "rank 0: device", clash->says[rank], NULL});
        clash->refused++;
        OK(join(context, all, rank, clash->device[!rank], clash->kind[!rank], &comm));
    }
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void clash_run(const struct clash *clash)
{
    struct clash *shared = shared_memory(sizeof(*shared));
    struct test_daemon d;
    struct ranks r;

    *shared = *clash;
    fake_start(&d, GPUS, NULL);
    fake->lonely = 4;
    ranks_start(&r, 2, clash_rank, shared);
    ranks_join(&r);
    CHECK(shared->refused == 1);
    fake_stop(&d);
}

static void kinds_differ(void)
{
    clash_run(&(struct clash){
        .kind = {FCC_DEVICE_CPU, FCC_DEVICE_CUDA},
        .status = -EINVAL,
        .says = {"cpu: the ranks that joined before are on cuda", "cuda: the ranks that joined before are on cpu"}});
}

static void no_peers(void)
{
    clash_run(&(struct clash){.kind = {FCC_DEVICE_CUDA, FCC_DEVICE_CUDA},
                              .device = {1, 2},
                              .status = -EXDEV,
                              .says = {"cuda 1 and cuda 2, which rank 1 has, cannot address each other's memory",
                                       "cuda 2 and cuda 1, which rank 0 has, cannot address each other's memory"}});
}

/* Nine ranks want GPU 0, which has room for eight of a communicator. */
static void crowd_rank(int rank, const struct ranks *all, void *argument)
{
    _Atomic int *turned_away = argument;
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm;
    int status = join(context, all, rank, 0, FCC_DEVICE_CUDA, &comm);

    if (status) {
        check_error(__FILE__, __LINE__, "fcc_comm_init", status, -EINVAL,
                    (const char *const[]){"device: cuda 0 has 8 ranks of the communicator: allowed are 8", NULL});
        (*turned_away)++;
        OK(join(context, all, rank, 1, FCC_DEVICE_CUDA, &comm));
    }
    struct product p = product_open(comm);
    OK(fcc_gemv_all_reduce(comm, &p.args));
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void too_many_on_one(void)
{
    _Atomic int *turned_away = shared_memory(sizeof(*turned_away));

    fake_ranks_run(GPU_MAX_RUNS + 1, crowd_rank, turned_away);
    CHECK(*turned_away == 1);
}

static void foreign_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_context *context = client_connect(NULL);
    const struct fcc_unique_id *second = argument;
    fcc_comm *on_cpu, *on_gpu;

    OK(fcc_comm_init(context, second, all->n, rank, NULL, &on_cpu));
    on_gpu = client_join(context, &all->id, all->n, rank, 0);
    struct product p = product_open(on_cpu), q = product_open(on_gpu), mixed = q;
    mixed.args.w = p.args.w;
    FAILS(fcc_gemv_all_reduce(on_gpu, &mixed.args), -EINVAL, "rank 0", "w: buffer",
          "lies in the memory of cpu: the communicator's ranks are on cuda");
    mixed.args = p.args;
    mixed.args.x = q.args.x;
    FAILS(fcc_gemv_all_reduce(on_cpu, &mixed.args), -EINVAL, "rank 0", "x: buffer",
          "lies in the memory of cuda: the communicator's ranks are on cpu");
    FAILS(fcc_noop_enqueue(on_cpu, NULL, NULL), -EINVAL, "rank", "is on a cpu device");
    OK(fcc_gemv_all_reduce(on_gpu, &q.args));
    OK(fcc_gemv_all_reduce(on_cpu, &p.args));
    fcc_comm_destroy(on_cpu);
    fcc_disconnect(context);
}

static void foreign_buffers(void)
{
    struct fcc_unique_id *second = shared_memory(sizeof(*second));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    *second = id_make();
    ranks_start(&r, 2, foreign_rank, second);
    ranks_join(&r);
    fake_stop(&d);
}

/* Joining is refused, and the worker serves on. */
static void join_refused_rank(int rank, const struct ranks *all, void *argument)
{
    static const enum fake_call calls[] = {FAKE_OPEN, FAKE_HOST_REGISTER, FAKE_MEMORY_ALLOC};
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm;

    (void)argument;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        fake->fail = calls[i];
        FAILS(join(context, all, rank, 0, FCC_DEVICE_CUDA, &comm), calls[i] == FAKE_MEMORY_ALLOC ? -ENOMEM : -EIO,
              "made to fail");
        CHECK(fake->fail == FAKE_NONE);
        await_less(&fake->registered, calls[i] == FAKE_MEMORY_ALLOC); /* the session's; the answer comes before the end */
    }
    OK(join(context, all, rank, 0, FCC_DEVICE_CUDA, &comm));
    OK(fcc_noop(comm));
    fcc_disconnect(context);
}

static void join_refused(void)
{
    fake_ranks_run(1, join_refused_rank, NULL);
}

/* ---- the order of operators and streams ---- */

enum { COMMS = 2, ROUNDS = 500, AHEAD = 12 };

struct order {
    struct fcc_connect_options connect, of_one;
    bool no_stream_waits; /* of the GPUs */
    bool threads;         /* each communicator has a thread; otherwise one does both, the ranks in opposite orders */
    struct fcc_unique_id id[COMMS];
    _Atomic int came[COMMS][PAIR];   /* the round that each stream has come to */
    _Atomic int passed[COMMS][PAIR]; /* ... and the one whose operator is behind it */
};

/* One communicator of one rank, and what is on its stream. */
struct lane {
    struct order *order;
    int c, rank;
    struct product p;
    void *stream;
    fcc_request *requests[AHEAD];
};

static void step_before(void *argument)
{
    struct lane *l = argument;

    if (++l->order->came[l->c][l->rank] % 16 == 8 * l->rank) /* now one rank is late, now another */
        (void)usleep(300);
}

/* The operator is over: all streams had come to it. */
static void step_after(void *argument)
{
    struct lane *l = argument;
    int round = ++l->order->passed[l->c][l->rank];

    for (int r = 0; r < PAIR; r++)
        if (l->order->came[l->c][r] < round)
            check_failed(__FILE__, __LINE__, "comm %d, round %d: rank %d's stream went on before that of rank %d had come",
                         l->c, round, l->rank, r);
}

static void lane_step(struct lane *l, int round)
{
    fcc_request **request = &l->requests[round % AHEAD];

    if (*request)
        OK(fcc_request_wait(*request, -1));
    fcc_request_free(*request);
    CHECK(gpu.stream_function(l->stream, step_before, l) == 0);
    if (round % 2)
        OK(fcc_noop_enqueue(l->p.comm, l->stream, request));
    else
        product_enqueue(&l->p, l->stream, request);
    CHECK(gpu.stream_function(l->stream, step_after, l) == 0);
}

static void *lane_run(void *argument)
{
    for (int round = 0; round < ROUNDS; round++)
        lane_step(argument, round);
    return NULL;
}

static void lane_open(struct lane *l, fcc_context *context, struct order *order, int c, int rank)
{
    *l = (struct lane){.order = order, .c = c, .rank = rank, .stream = stream_open()};
    l->p = product_open(client_join(context, &order->id[c], PAIR, rank, 0));
}

static void lane_close(struct lane *l)
{
    stream_close(l->stream);
    for (int i = 0; i < AHEAD; i++) {
        OK(fcc_request_wait(l->requests[i], -1));
        fcc_request_free(l->requests[i]);
    }
    CHECK(l->order->passed[l->c][l->rank] == ROUNDS);
    fcc_comm_destroy(l->p.comm);
}

static void order_rank(int rank, const struct ranks *all, void *argument)
{
    struct order *order = argument;
    struct lane lanes[COMMS];
    pthread_t threads[COMMS];

    (void)all;
    driver_use();
    fcc_context *context = client_connect(&order->connect);
    for (int c = 0; c < COMMS; c++)
        lane_open(&lanes[c], context, order, c, rank);
    for (int c = 0; c < COMMS && order->threads; c++)
        CHECK(pthread_create(&threads[c], NULL, lane_run, &lanes[c]) == 0);
    for (int c = 0; c < COMMS && order->threads; c++)
        CHECK(pthread_join(threads[c], NULL) == 0);
    for (int round = 0; round < ROUNDS && !order->threads; round++)
        for (int turn = 0; turn < COMMS; turn++)
            lane_step(&lanes[(turn + rank) % COMMS], round);
    for (int c = 0; c < COMMS; c++)
        lane_close(&lanes[c]);
    client_end(context);
}

static void order_run(const struct order *how)
{
    struct order *order = shared_memory(sizeof(*order));
    struct test_daemon d;
    struct ranks r;

    memcpy(order, how, sizeof(*order));
    fake_start(&d, GPUS, NULL);
    fake->no_stream_waits = how->no_stream_waits;
    for (int c = 0; c < COMMS; c++)
        order->id[c] = id_make();
    ranks_start(&r, PAIR, order_rank, order);
    ranks_join(&r);
    fake_stop(&d);
}

static void opposite_orders(void)
{
    order_run(&(struct order){.threads = false});
}

static void opposite_orders_by_functions(void)
{
    order_run(&(struct order){.connect = {.no_stream_memory_operations = 1}, .no_stream_waits = true});
}

static void threads_enqueue(void)
{
    order_run(&(struct order){.threads = true});
}

/* One communicator: the GPU itself waits for the streams. */
static void one_comm_rank(int rank, const struct ranks *all, void *argument)
{
    struct order *order = argument;
    struct lane lane;

    driver_use();
    fcc_context *context = client_connect(rank ? &order->of_one : NULL);
    order->id[0] = all->id;
    lane_open(&lane, context, order, 0, rank);
    (void)lane_run(&lane);
    lane_close(&lane);
    client_end(context);
}

static void one_comm(void)
{
    fake_ranks_run(PAIR, one_comm_rank, shared_memory(sizeof(struct order)));
}

/* ... by words in the host's memory. */
static void one_comm_host_words(void)
{
    struct order *order = shared_memory(sizeof(*order));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    fake->no_gpu_words = 1;
    ranks_start(&r, PAIR, one_comm_rank, order);
    ranks_join(&r);
    fake_stop(&d);
}

/* ... and where one rank's streams do it so, because its program wants that. */
static void one_comm_both_words(void)
{
    struct order *order = shared_memory(sizeof(*order));

    order->of_one = (struct fcc_connect_options){.no_stream_memory_operations = 1};
    fake_ranks_run(PAIR, one_comm_rank, order);
}

/* A rank's stream that is closed: nothing begins on any GPU, and no call waits. */
static void closed_rank(int rank, const struct ranks *all, void *argument)
{
    _Atomic int *gate = argument; /* [3]: open, enqueued, heard */
    fcc_request *request;
    int done;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    void *stream = stream_open();
    if (rank)
        stream_gate(stream, &gate[0]);
    product_enqueue(&p, stream, &request);
    gate[1]++;
    await(&gate[1], all->n);
    (void)usleep(20000);
    OK(fcc_request_test(request, &done));
    CHECK(!done && fake->begun == 0);
    gate[2]++;
    await(&gate[2], all->n);
    gate[0] = 1;
    stream_close(stream);
    OK(fcc_request_wait(request, -1));
    CHECK(fake->ended == all->n);
    fcc_request_free(request);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void closed_stream(void)
{
    fake_ranks_run(PAIR, closed_rank, shared_memory(3 * sizeof(_Atomic int)));
}

/* ---- a stream that comes to one communicator's operator by the result of another's, which was submitted later ---- */

struct chain {
    struct fcc_unique_id second;
    _Atomic int submitted, done;
};

static void chain_end(void *argument)
{
    ((struct chain *)argument)->done = 1;
}

/* If a GPU waited for the first operator's streams, the second one, behind it in its queue, would never run. */
static void chain_rank(int rank, const struct ranks *all, void *argument)
{
    struct chain *chain = argument;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product first = product_open(client_join(context, &all->id, PAIR, rank, 5000));
    struct product second = product_open(client_join(context, &chain->second, PAIR, rank, 5000));
    void *streams[] = {stream_open(), stream_open()};
    fcc_request *requests[2];
    if (rank)
        stream_gate(streams[0], &chain->done);
    product_enqueue(&first, streams[0], &requests[0]);
    chain->submitted++;
    await(&chain->submitted, PAIR);
    product_enqueue(&second, streams[1], &requests[1]);
    if (rank)
        CHECK(gpu.stream_function(streams[1], chain_end, chain) == 0);
    for (int i = 1; i >= 0; i--) {
        OK(fcc_request_wait(requests[i], -1));
        fcc_request_free(requests[i]);
        stream_close(streams[i]);
    }
    fcc_comm_destroy(first.comm);
    fcc_comm_destroy(second.comm);
    client_end(context);
}

static void chained(void)
{
    struct chain *chain = shared_memory(sizeof(*chain));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    chain->second = id_make();
    ranks_start(&r, PAIR, chain_rank, chain);
    ranks_join(&r);
    fake_stop(&d);
}

/* ---- trace ---- */

/* All slices of both ranks are there, in order in time. */
static void trace_check(struct json_object *o)
{
    struct json_object *ranks = field(o, "ranks");

    CHECK(field_is(o, "op", "gemv_all_reduce") && json_object_array_length(ranks) == 2);
    for (size_t r = 0; r < 2; r++) {
        struct json_object *rank = json_object_array_get_idx(ranks, r), *workgroups = field(rank, "workgroups");
        CHECK(field_is(rank, "kind", "cuda") && json_object_get_int(field(rank, "device")) == (int)r);
        CHECK(json_object_array_length(workgroups) == 1);
        struct json_object *events = field(json_object_array_get_idx(workgroups, 0), "events");
        int64_t last = 0, duration = json_object_get_int64(field(o, "duration_ns"));
        CHECK(json_object_array_length(events) > 2);
        for (size_t i = 0; i < json_object_array_length(events); i++) {
            struct json_object *event = json_object_array_get_idx(events, i);
            int64_t start = json_object_get_int64(field(event, "start_ns")),
                    end = json_object_get_int64(field(event, "end_ns"));
            CHECK(last <= start && start <= end && end <= duration);
            last = end;
        }
    }
}

struct trace {
    _Atomic int run, stop;
};

static void trace_rank(int rank, const struct ranks *all, void *argument)
{
    struct trace *trace = argument;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    void *stream = stream_open();
    p.args.schedule = FCC_SCHEDULE_FUSED;
    for (int i = 0; i < 2; i++) {
        product_enqueue(&p, stream, NULL);
        stream_sync(stream);
        OK(fcc_noop(p.comm)); /* the worker knows that the operator has ended */
        trace->run++;
        await(&trace->stop, i + 1);
    }
    stream_close(stream);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void traced(void)
{
    struct trace *trace = shared_memory(sizeof(*trace));
    struct test_daemon d;
    char text[4096];
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    ranks_start(&r, 2, trace_rank, trace);
    await(&trace->run, 2);
    struct json_object *o = fccctl_json("trace");
    trace_check(o);
    (void)json_object_put(o);
    fake->fail = FAKE_LAUNCH_TIMES;
    CHECK(program_run(text, sizeof(text), fccctl_binary(), (const char *const[]){"trace", NULL}) != 0 &&
          strstr(text, "made to fail"));
    fake->hold = ALL_GPUS; /* the same operator once more, which will overwrite its times: it is waited for */
    trace->stop = 1;
    await(&fake->begun, 6);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        (void)usleep(100000);
        fake->hold = 0;
        _exit(0);
    }
    o = fccctl_json("trace");
    CHECK(fake->hold == 0);
    trace_check(o);
    (void)json_object_put(o);
    CHECK(waitpid(pid, NULL, 0) == pid);
    await(&trace->run, 4);
    trace->stop = 2;
    ranks_join(&r);
    fake_stop(&d);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"devices", devices, 0},
        {"another_mps", another_mps, 0},
        {"refused", refused, 0},
        {"not_now", not_now, 0},
        {"kinds_differ", kinds_differ, 0},
        {"no_peers", no_peers, 0},
        {"too_many_on_one", too_many_on_one, 0},
        {"join_refused", join_refused, 0},
        {"foreign_buffers", foreign_buffers, 0},
        {"one_comm", one_comm, 0},
        {"one_comm_host_words", one_comm_host_words, 0},
        {"one_comm_both_words", one_comm_both_words, 0},
        {"closed_stream", closed_stream, 0},
        {"opposite_orders", opposite_orders, 0},
        {"opposite_orders_by_functions", opposite_orders_by_functions, 0},
        {"threads_enqueue", threads_enqueue, 0},
        {"chained", chained, 0},
        {"traced", traced, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker", TESTS(tests));
}
