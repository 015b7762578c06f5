/* SPDX-License-Identifier: MIT
 *
 * test_node_faults.c - communicators over two nodes (two daemons on this machine), and who dies: clients, workers, brokers, all of a
 * node, in the middle of operators; a node that is silent; one that begins anew. How long it took until the others heard is printed.
 *
 * test_node_faults --link FIRST COUNT OF ID ID NODE [SWITCH] is one of two machines, over a daemon that is there ($FCCD_SOCKET), on
 * which ranks FIRST to FIRST + COUNT - 1 of OF run; the others run on NODE. SWITCH: a program that pulls this one's cable (SWITCH off),
 * which is done in the middle of operators, and puts it back (SWITCH on). The ids, in hexadecimal digits, are of the communicator that
 * ends by that, and of the next.
 */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "tests/nodes/node_scene.h"

/* A worker may be silent for so long, whatever the environment says; and longer than that. */
static const char *const silence[] = {"--silence-ms", "2500", NULL};
enum { STOPPED_MS = 5000 };

static void broker_kill(struct test_daemon *d, int node)
{
    CHECK(kill(d->node[node].pid, SIGKILL) == 0 && waitpid(d->node[node].pid, NULL, 0) == d->node[node].pid);
    d->node[node].pid = 0;
    (void)unlink(d->node[node].socket);
}

static void client_killed(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = scene_open(&d, &r);
    char who[64];

    (void)snprintf(who, sizeof(who), "rank 1 (pid %d", r.pid[1]);
    double since = now_ms();
    CHECK(kill(r.pid[1], SIGKILL) == 0 && WIFSIGNALED(rank_wait(&r, 1)));
    ranks_join(&r);
    expect_told(scene, RANKS, since, who);
    expect_told(scene, RANKS, since, ") is gone: ");
    /* And where: in the brackets or behind it, as this node has heard first that the rank has left, or how that ended the other's turn. */
    CHECK(strstr(scene->text[0], d.node[1].address) != NULL);
    expect_alive(RANKS);
    daemon_stop(&d);
}

static void shown_by_fccctl(void)
{
    bool verbs = test_over_verbs();
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = scene_open(&d, &r);
    struct link_seen first = link_see(&d);

    rounds_await(scene, RANKS, 10);
    struct link_seen later = link_see(&d);
    printf("over %s %s: %lld bytes out, %lld in; 10 operators later %lld and %lld\n", first.transport, first.devices,
           (long long)first.bytes_out, (long long)first.bytes_in, (long long)later.bytes_out, (long long)later.bytes_in);
    CHECK(strcmp(first.transport, verbs ? "verbs" : "tcp") == 0 && verbs == (*first.devices != '\0') && first.rails == 1);
    /* Each operator sends some of the rows, in f32, either way. */
    CHECK(strcmp(first.state, "open") == 0 && first.bytes_out >= 20l * rows && first.bytes_in >= 20l * rows);
    CHECK(later.bytes_out >= first.bytes_out + 9l * rows && later.bytes_in >= first.bytes_in + 9l * rows && later.errors == 0);
    fcc_context *context; /* the first node's worker stays for it */
    OK(fcc_connect(NULL, &context));
    CHECK(kill(node_worker(&d, 1), SIGKILL) == 0);
    ranks_join(&r);
    later = link_see(&d);
    CHECK(strcmp(later.state, "closed") == 0 && later.errors == 1 && later.bytes_out >= first.bytes_out);
    fcc_disconnect(context);
    daemon_stop_unclean(&d);
}

static void worker_killed(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = scene_open(&d, &r);
    double since = now_ms();

    CHECK(kill(node_worker(&d, 1), SIGKILL) == 0);
    ranks_join(&r);
    expect_told(scene, RANKS, since, d.node[1].address);
    CHECK(scene->status[1] == -ECONNRESET && scene->status[3] == -ECONNRESET); /* their own worker's death */
    expect_alive(RANKS);
    daemon_stop_unclean(&d);
}

/* ---- who goes in good order ---- */

enum { LAST_BUFFERS = 256 }; /* whose ends are more bytes than a node reads at a time */

struct last_words {
    _Atomic int begun, stopped;
};

static void last_words_rank(int rank, const struct ranks *all, void *argument)
{
    struct last_words *words = argument;
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_buffer *buffers[LAST_BUFFERS];
    fcc_request *request;

    for (int i = 0; i < LAST_BUFFERS; i++)
        OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 64, &buffers[i]));
    if (rank == 0) {
        OK(fcc_noop_start(comm, &request));
        words->begun = 1;
        OK(fcc_request_wait(request, -1));
        fcc_request_free(request);
    } else {
        while (!words->stopped)
            (void)usleep(500);
        for (int i = 0; i < LAST_BUFFERS; i++)
            fcc_buffer_free(buffers[i]);
        OK(fcc_noop(comm));
    }
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

/* A node's ranks have finished and left, and its worker has ended, when another node's worker, which had no processor meanwhile, hears of
 * any of that: of all the ends of connections and of what was said last at the same time. Its rank finishes well, too. */
static void last_words(void)
{
    struct last_words *words = shared_memory(sizeof(*words));
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, NODES, NULL);
    ranks_start(&r, NODES, last_words_rank, words);
    while (!words->begun)
        (void)usleep(500);
    operator_await(&d, 1, 0);
    pid_t stops = node_worker(&d, 0), ends = node_worker(&d, 1);
    CHECK(kill(stops, SIGSTOP) == 0);
    words->stopped = 1;
    while (kill(ends, 0) == 0)
        (void)usleep(500);
    CHECK(kill(stops, SIGCONT) == 0);
    ranks_join(&r);
    daemon_stop(&d);
}

static void one_of_two(void)
{
    struct test_daemon d;
    struct ranks stays;
    struct scene *scene = scene_open(&d, &stays);

    one_of_two_run(&d, &stays, scene);
}

/* Of verbs: see verbs_faults.c. The adapter tells nobody on the other node. */
static void queue_pair_broken(int number, const char *whose)
{
    char directory[PATH_MAX];
    const char *options[] = {"--plugin-dir", directory, NULL};
    struct test_daemon d;
    struct ranks r;
    ssize_t n = readlink("/proc/self/exe", directory, sizeof(directory) - 32);

    if (!test_over_verbs())
        test_skip("skipped: FCCD_TRANSPORT is not verbs: there is no queue pair (make test-rdma has some)");
    CHECK(n > 0);
    directory[n] = '\0';
    (void)snprintf(strrchr(directory, '/'), 16, "/faulty_plugin");
    struct scene *scene = scene_open_with(&d, &r, options);
    pid_t worker = node_worker(&d, 1);
    double since = now_ms();
    CHECK(kill(worker, number) == 0);
    ranks_join(&r);
    CHECK(node_logged(&d.node[1], whose, false));
    expect_told(scene, RANKS, since, d.node[1].address);
    for (int i = 1; i < RANKS; i += NODES) {
        printf("rank %d heard after %.1f ms: %s\n", i, scene->heard_ms[i] - since, scene->text[i]);
        CHECK(scene->status[i] < 0 && strstr(scene->text[i], d.node[0].address) != NULL);
    }
    expect_alive(RANKS); /* the job goes on, with the same workers */
    CHECK(node_worker(&d, 1) == worker);
    daemon_stop(&d);
}

static void sender_broken(void)
{
    queue_pair_broken(SIGUSR2, "a sender's, is driven to error: 0");
}

static void receiver_broken(void)
{
    queue_pair_broken(SIGUSR1, "a receiver's, is driven to error: 0");
}

/* The workers need it no more: what runs goes on, with an error for nobody. */
static void broker_killed(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = scene_open(&d, &r);

    broker_kill(&d, 1);
    rounds_await(scene, RANKS, 50);
    scene->stop = 1;
    ranks_join(&r);
    for (int i = 0; i < RANKS; i++) /* who stops first leaves the others' operator */
        CHECK(scene->status[i] == 0 || scene->status[i] == -ECONNABORTED);
    expect_alive(1); /* the first node goes on by itself */
    daemon_stop_unclean(&d);
}

static void node_killed(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = scene_open(&d, &r);
    pid_t worker = node_worker(&d, 1);
    double since = now_ms();

    broker_kill(&d, 1);
    CHECK(kill(worker, SIGKILL) == 0);
    ranks_join(&r);
    expect_told(scene, RANKS, since, d.node[1].address);
    expect_alive(1);
    daemon_stop_unclean(&d);
}

/* A worker that is stopped closes nothing. */
static void silent(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = scene_open_with(&d, &r, silence);
    pid_t worker = node_worker(&d, 1);
    double since = now_ms(), until = await_end();

    CHECK(kill(worker, SIGSTOP) == 0);
    while (!scene->status[0] || !scene->status[2]) {
        CHECK(now_ms() < until);
        (void)usleep(1000);
    }
    CHECK(kill(worker, SIGCONT) == 0);
    ranks_join(&r);
    expect_told(scene, RANKS, since, d.node[1].address);
    /* It reads what came while it was stopped before it says anything of the other one, which was alive all the time. */
    for (int i = 1; i < RANKS; i += NODES) {
        printf("rank %d, of the one that was stopped: %s\n", i, scene->text[i]);
        CHECK(scene->status[i] < 0 && strstr(scene->text[i], d.node[0].address) != NULL);
        CHECK(!strstr(scene->text[i], "silent") && !strstr(scene->text[i], "nothing has come"));
    }
    expect_alive(RANKS);
    daemon_stop(&d);
}

/* Both are stopped, as with their machine, for longer than a peer may be silent: nobody has been dead, and what runs goes on. */
static void both_stopped(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = scene_open_with(&d, &r, silence);
    pid_t workers[NODES] = {node_worker(&d, 0), node_worker(&d, 1)};

    for (int i = 0; i < NODES; i++)
        CHECK(kill(workers[i], SIGSTOP) == 0);
    (void)usleep(STOPPED_MS * 1000);
    for (int i = 0; i < NODES; i++)
        CHECK(kill(workers[i], SIGCONT) == 0);
    rounds_await(scene, RANKS, 20);
    CHECK(node_worker(&d, 0) == workers[0] && node_worker(&d, 1) == workers[1]);
    scene->stop = 1;
    ranks_join(&r);
    for (int i = 0; i < RANKS; i++) /* who stops first leaves the others' operator */
        CHECK(scene->status[i] == 0 || scene->status[i] == -ECONNABORTED);
    daemon_stop(&d);
}

/* Its broker begins anew, while the old one's worker serves its job to the end. */
static void restarted(void)
{
    struct test_daemon d;
    struct ranks r;
    struct scene *scene = scene_open(&d, &r);

    broker_kill(&d, 1);
    node_restart(&d, 1);
    rounds_await(scene, RANKS, 20);
    scene->stop = 1;
    ranks_join(&r);
    expect_alive(RANKS);
    daemon_stop_unclean(&d);
}

/* The id was made on the second node, and no rank is there. */
static void met_elsewhere(void)
{
    struct test_daemon d;
    struct ranks r;
    fcc_context *context;
    struct fcc_unique_id id;
    struct fcc_connect_options there = {.socket_path = NULL};

    daemons_start(&d, NODES, NULL);
    there.socket_path = d.node[1].socket;
    OK(fcc_connect(&there, &context));
    OK(fcc_get_unique_id(context, &id));
    ranks_start(&r, 0, alive_rank, NULL);
    for (int rank = 0; rank < 3; rank++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            struct ranks all = {.n = 3, .id = id};
            alive_rank(rank, &all, NULL);
            exit(EXIT_SUCCESS);
        }
        r.pid[r.n++] = pid;
    }
    ranks_join(&r);
    fcc_disconnect(context);
    daemon_stop(&d);
}

/* The id names a node by another name than it has for itself: the first one, of whose ranks some are there, or the second one. */
static void met_by_another_name(void)
{
    struct test_daemon d;

    daemons_start(&d, NODES, NULL);
    for (int node = 0; node < NODES; node++) {
        struct ranks all = {.n = RANKS};
        const char *port = strrchr(d.node[node].address, ':');
        fcc_context *context;
        OK(fcc_connect(NULL, &context));
        OK(fcc_get_unique_id(context, &all.id));
        memset(all.id.bytes + 40, 0, sizeof(all.id.bytes) - 40);
        (void)snprintf((char *)all.id.bytes + 40, 64, "localhost%s", port);
        for (int rank = 0; rank < RANKS; rank++) {
            all.pid[rank] = fork();
            CHECK(all.pid[rank] >= 0);
            if (all.pid[rank] == 0) {
                (void)setenv("FCCD_SOCKET", d.node[rank % NODES].socket, 1);
                alive_rank(rank, &all, NULL);
                exit(EXIT_SUCCESS);
            }
        }
        ranks_join(&all);
        fcc_disconnect(context);
    }
    daemon_stop(&d);
}

static void nobody_there(void)
{
    struct test_daemon d;
    struct fcc_comm_options options = {.device = -1, .time_limit_ms = 300};
    struct fcc_unique_id id;
    fcc_context *context;
    fcc_comm *comm;

    daemons_start(&d, NODES, NULL);
    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &id));
    FAILS(fcc_comm_init(context, &id, 2, 0, &options, &comm), -ETIMEDOUT, "rank 1", "300 ms");
    /* nobody listens at port 1 */
    memset(id.bytes + 40, 0, sizeof(id.bytes) - 40);
    memcpy(id.bytes + 40, "127.0.0.1:1", 11);
    FAILS(fcc_comm_init(context, &id, 2, 0, &(struct fcc_comm_options){.device = -1}, &comm), -ECONNREFUSED, "127.0.0.1:1");
    fcc_disconnect(context);
    daemon_stop(&d);
}

/* ---- one of two machines ---- */

/* When the machines reach each other again a communicator forms, and works. */
static void again_rank(int rank, const struct ranks *all, void *argument)
{
    double until = await_end();
    fcc_context *context;
    fcc_comm *comm;

    (void)argument;
    OK(fcc_connect(NULL, &context));
    while (fcc_comm_init(context, &all->id, all->n, rank, &(struct fcc_comm_options){.device = -1}, &comm)) {
        if (now_ms() > until)
            check_failed(__FILE__, __LINE__, "rank %d: no communicator: %s", rank, fcc_last_error());
        (void)usleep(100000);
    }
    for (int i = 0; i < 5; i++)
        OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void cable(const char *program, const char *where)
{
    char text[256];

    if (program_run(text, sizeof(text), program, (const char *[]){where, NULL}))
        check_failed(__FILE__, __LINE__, "%s %s: %s", program, where, text);
}

static int link_part(char *argv[], const char *program)
{
    int first = atoi(argv[0]), count = atoi(argv[1]);
    struct scene *scene = shared_memory(sizeof(*scene));
    struct ranks r = {.n = atoi(argv[2]), .id = id_parse(argv[3])};
    double until = await_end();

    CHECK(first >= 0 && count >= 1 && r.n <= RANKS && first + count <= r.n);
    ranks_start_some(&r, first, count, rounds_rank, scene);
    while (scene->rounds[first] < 20) {
        if (now_ms() > until || scene->status[first])
            check_failed(__FILE__, __LINE__, "%ld operators have ended before the link went down: %s", scene->rounds[first],
                         scene->text[first]);
        (void)usleep(500);
    }
    if (program)
        cable(program, "off");
    ranks_join(&r);
    for (int i = first; i < first + count; i++) {
        printf("the link %s goes down: rank %d heard %.1f ms after its last operator had ended: %s\n",
               program ? "here" : "there", i, scene->heard_ms[i] - scene->ended_ms[i], scene->text[i]);
        CHECK(scene->status[i] < 0 && strstr(scene->text[i], argv[5]) != NULL);
    }
    if (program)
        cable(program, "on");
    double since = now_ms();
    r.id = id_parse(argv[4]);
    ranks_start_some(&r, first, count, again_rank, NULL);
    ranks_join(&r);
    printf("... and %.1f ms later a new communicator has done its work\n", now_ms() - since);
    return EXIT_SUCCESS;
}

/* ---- memory that is still sent ---- */

struct sent {
    _Atomic int first, begun, aborted, tested;
    _Atomic int early, last; /* rank 0: what its request was after the abort, and in the end */
};

enum { SENT = 64 << 20 }; /* bytes: more than sockets hold */

static void sent_rank(int rank, const struct ranks *all, void *argument)
{
    struct sent *words = argument;
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_buffer *in, *out;
    fcc_request *request;

    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, SENT, &in));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_RESULT, SENT, &out));
    struct fcc_broadcast_args args = {.out = fcc_tensor_1d(out, 0, FCC_U8, SENT)};
    if (rank == 0)
        args.in = fcc_tensor_1d(in, 0, FCC_U8, SENT);
    while (rank == 0 && words->first <= 0)
        (void)usleep(500);
    OK(fcc_broadcast_start(comm, &args, &request));
    if (rank == 0)
        words->begun = 1;
    else
        words->first = -1;
    while (!words->aborted)
        (void)usleep(500);
    if (rank == 0) {
        words->early = fcc_request_wait(request, 0);
        words->tested = 1;
        words->last = fcc_request_wait(request, -1);
    } else {
        CHECK(fcc_request_wait(request, -1) < 0);
    }
    fcc_request_free(request);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

/* The communicator is aborted while a node sends from a rank's memory, and the other node takes nothing meanwhile. The memory is the rank's
 * again when nothing is sent from it any more, and not before. */
static void aborted_while_sent(void)
{
    static const char *const patient[] = {"--silence-ms", "60000", NULL};
    const char *abort[] = {"--socket", NULL, "abort", "--comm", "1", NULL};
    struct sent *words = shared_memory(sizeof(*words));
    struct test_daemon d;
    struct ranks r;
    char text[4096];

    daemons_start(&d, NODES, patient);
    ranks_start(&r, NODES, sent_rank, words);
    while (!words->first)
        (void)usleep(500);
    operator_await(&d, 0, 1);
    pid_t stops = node_worker(&d, 1);
    CHECK(kill(stops, SIGSTOP) == 0);
    words->first = 1;
    while (!words->begun)
        (void)usleep(500);
    for (int64_t sent = -1, before = 0; sent != before || sent < SENT / 1024;) { /* until it runs, and sockets are full */
        before = link_see(&d).bytes_out;
        (void)usleep(300000);
        sent = link_see(&d).bytes_out;
    }
    abort[1] = d.node[0].socket;
    if (program_run(text, sizeof(text), fccctl_binary(), abort))
        check_failed(__FILE__, __LINE__, "fccctl abort: %s", text);
    words->aborted = 1;
    while (!words->tested)
        (void)usleep(500);
    CHECK(kill(stops, SIGCONT) == 0);
    ranks_join(&r);
    printf("behind the abort: %d, in the end: %d\n", words->early, words->last);
    CHECK(words->early == -EAGAIN && words->last < 0 && words->last != -EAGAIN);
    daemon_stop(&d);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"client_killed", client_killed, 0}, {"one_of_two", one_of_two, 0},
        {"last_words", last_words, 0},       {"shown_by_fccctl", shown_by_fccctl, 0},
        {"sender_broken", sender_broken, 0}, {"receiver_broken", receiver_broken, 0},
        {"worker_killed", worker_killed, 0}, {"broker_killed", broker_killed, 0},
        {"node_killed", node_killed, 0},     {"silent", silent, 0},
        {"both_stopped", both_stopped, 0},   {"restarted", restarted, 0},
        {"met_elsewhere", met_elsewhere, 0}, {"met_by_another_name", met_by_another_name, 0},
        {"nobody_there", nobody_there, 0},   {"aborted_while_sent", aborted_while_sent, 0},
    };

    scene_slow();
    if (argc >= 8 && !strcmp(argv[1], "--link"))
        return link_part(argv + 2, argv[8]);
    return tests_run("node_faults", TESTS(tests));
}
