/* SPDX-License-Identifier: MIT
 *
 * test_flight.c - fccctl flight: the last operators of a communicator, while they run and wait, and when the worker has been killed; which
 * recorders are kept and shown; the errors of time limits point at it; and recorders with nonsense, as any user's worker may write.
 */
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "proto/flight.h"
#include "proto/msg.h"
#include "tests/bed/random.h"
#include "tests/fccctl/fccctl_run.h"
#include "tests/fccctl/played.h"

#define NOOPS 1203

static struct json_object *last_operator(struct json_object *o, int back)
{
    struct json_object *all = field(o, "comms.0.operators");
    size_t n = json_object_array_length(all);

    CHECK(n > (size_t)back);
    return json_object_array_get_idx(all, n - 1 - (size_t)back);
}

static void hung_rank(int rank, const struct ranks *all, void *argument)
{
    struct stage *stage = argument;
    fcc_comm *comm = comm_open(all, rank, 0);

    for (int i = 0; i < NOOPS; i++)
        OK(fcc_noop(comm));
    gemv_once(comm, 1);
    stage->ready++;
    if (rank == 0)
        CHECK(fcc_noop(comm) == -ECONNRESET); /* rank 1 does not come; the worker is killed */
    while (!stage->go)
        (void)usleep(1000);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void expect_hung(struct json_object *o)
{
    struct json_object *wait = last_operator(o, 0), *gemv = last_operator(o, 1), *alloc = last_operator(o, 2);

    CHECK(strcmp(text(wait, "op"), "noop") == 0 && strcmp(text(wait, "state"), "waiting") == 0);
    CHECK(number(wait, "came") == 1 && number(wait, "first") == 0 && number(wait, "missing.0") == 1);
    CHECK(number(wait, "arrived_ns") > number(gemv, "begun_ns") && number(wait, "begun_ns") == 0);
    CHECK(strcmp(text(gemv, "op"), "gemv_all_reduce") == 0 && strcmp(text(gemv, "state"), "ended") == 0);
    CHECK(number(gemv, "number") == NOOPS + 1 && strcmp(text(gemv, "schedule"), "fused") == 0 && number(gemv, "came") == 2);
    CHECK(number(gemv, "arrived_ns") <= number(gemv, "begun_ns") && number(gemv, "begun_ns") < number(gemv, "ended_ns"));
    CHECK(strcmp(text(alloc, "op"), "buffer_alloc") == 0 && number(alloc, "number") == 0);
    CHECK(json_object_array_length(field(o, "comms.0.operators")) == FLIGHT_OPERATORS);
    CHECK(number(o, "comms.0.nranks") == 2 && number(o, "comms.0.turns") == NOOPS + 2);
}

static void outlives_its_worker(void)
{
    struct test_daemon d;
    struct ranks r;
    struct stage *stage = shared_memory(sizeof(*stage));
    char svg[300];
    struct stat st;
    struct json_object *o;

    (void)snprintf(svg, sizeof(svg), "%s/flight.svg", test_directory());
    daemon_start(&d, NULL);
    ranks_start(&r, 2, hung_rank, stage);
    while (stage->ready < 2)
        (void)usleep(1000);
    do /* until rank 0 waits */
        CHECK(FCCCTL("flight", "--json", "--last", "1000", "--job", "test") == 0);
    while (!strstr(output, "\"waiting\""));
    o = parse();
    expect_hung(o);
    CHECK(json_object_get_double(field(o, "ended_s")) < 0 && strcmp(text(o, "comms.0.state"), "active") == 0);
    (void)json_object_put(o);
    CHECK(FCCCTL("flight", "--job", "test") == 0 && says("MISSING: 1") && says("gemv_all_reduce #1204") && says("active"));

    pid_t worker = daemon_worker(&d);
    CHECK(kill(worker, SIGSTOP) == 0); /* one that hangs */
    CHECK(FCCCTL("flight", "--job", "test", "--last", "1000", "--json") == 0);
    o = parse();
    expect_hung(o);
    (void)json_object_put(o);
    CHECK(kill(worker, SIGKILL) == 0);
    do
        CHECK(FCCCTL("flight", "--job", "test", "--last", "1000", "--json", "--svg", svg) == 0);
    while (!(o = parse(), json_object_get_double(field(o, "ended_s")) >= 0) && json_object_put(o));
    expect_hung(o);
    CHECK(number(o, "pid") == worker);
    (void)json_object_put(o);
    CHECK(stat(svg, &st) == 0 && st.st_size > 100000 && unlink(svg) == 0);
    CHECK(FCCCTL("flight", "--job", "test") == 0 && says("which ended"));
    CHECK(FCCCTL("flight", "--job", "test", "--comm", "9") == 0 && says("no communicator"));
    CHECK(FCCCTL("flight", "--job", "absent") == 1 && says("no flight recorder of those"));
    stage->go = 1;
    ranks_join(&r);
    daemon_stop_unclean(&d);
    free(output);
    output = NULL;
}

/* Rank 1 comes too late. */
static void late_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 1500);

    (void)argument;
    OK(fcc_noop(comm));
    if (rank == 1)
        (void)usleep(2000000);
    FAILS(fcc_noop(comm), -ETIMEDOUT, "#2: rank 1 did not come within the time limit of 1500 ms", "fccctl flight");
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

/* Of each user the last four; the last operator of each is the one that the error names. */
static void keeps_the_last(void)
{
    struct test_daemon d;
    struct ranks r;
    struct json_object *o;

    daemon_start(&d, (const char *const[]){"--worker-idle-ms", "20", NULL});
    CHECK(FCCCTL("flight") == 1 && says("no flight recorder"));
    for (int i = 0; i < 6; i++) {
        char job[16];
        (void)snprintf(job, sizeof(job), "job%d", i);
        CHECK(setenv("FCCD_JOB", job, 1) == 0);
        ranks_start(&r, 2, late_rank, NULL);
        ranks_join(&r);
        do /* until its worker has ended */
            CHECK(FCCCTL("flight", "--job", job, "--json") == 0);
        while (!(o = parse(), json_object_get_double(field(o, "ended_s")) >= 0) && json_object_put(o));
        (void)json_object_put(o);
    }
    CHECK(FCCCTL("flight", "--json") == 0);
    o = parse();
    CHECK(json_object_array_length(field(o, "flights")) == 4 && strcmp(text(o, "flights.0.job"), "job2") == 0);
    CHECK(strcmp(text(o, "job"), "job5") == 0 && strcmp(text(o, "comms.0.state"), "aborted") == 0);
    CHECK(number(o, "comms.0.status") == -ETIMEDOUT && strstr(text(o, "comms.0.error"), "rank 1 did not come"));
    CHECK(strcmp(text(last_operator(o, 0), "state"), "waiting") == 0 && number(last_operator(o, 0), "missing.0") == 1);
    (void)json_object_put(o);
    CHECK(FCCCTL("flight", "--job", "job0") == 1);
    CHECK(FCCCTL("flight", "--job", "job3") == 0 && says("aborted") && says("\"job3\""));
    daemon_stop(&d);
    free(output);
    output = NULL;
}

/* ---- nonsense ---- */

static int file_make(const void *bytes, size_t n)
{
    int fd = memfd_create("answer", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    CHECK(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0);
    return fd;
}

/* A broker that has one recorder, until the test has ended. */
static void fccd_play(int listener, const struct flight *flight)
{
    static const char list[] = "{\"flights\":[{\"flight\":7,\"uid\":1,\"job\":\"\\u001b[2J\",\"pid\":-1}]}";
    struct fcc_reply answer = {.fds = 1};
    int sock;

    while ((sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        const bool asks_list = query_hear(sock, &answer)->what == FCC_QUERY_FLIGHTS;
        int fd = asks_list ? file_make(list, sizeof(list) - 1) : file_make(flight, sizeof(*flight));
        CHECK(msg_send(sock, &answer.msg, sizeof(answer), &fd, 1) == 0);
        (void)close(fd);
        (void)close(sock);
    }
}

static void nonsense_is_read(void)
{
    struct flight *f = calloc(1, sizeof(*f));
    char svg[300], versions[64];

    random_state = test_seed();
    CHECK(f != NULL);
    (void)snprintf(versions, sizeof(versions), "version %u; this fccctl reads version %u", FLIGHT_VERSION + 1, FLIGHT_VERSION);
    (void)snprintf(svg, sizeof(svg), "%s/flight.svg", test_directory());
    for (int way = 0; way < 12; way++) {
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        memset(f, way % 4 == 1 ? 0xff : 0, sizeof(*f));
        for (size_t i = 0; way % 4 > 1 && i < sizeof(*f); i++)
            ((unsigned char *)f)[i] = way % 4 == 2 ? (unsigned char)i : (unsigned char)random_u32();
        for (unsigned c = 0; way % 4 == 3 && c < FLIGHT_COMMS; c++) /* records that stand where they belong */
            for (unsigned i = 0; i < FLIGHT_OPERATORS; i++)
                f->comms[c].records[i].turn = f->comms[c].runs[i].record = i + 1;
        f->magic = FLIGHT_MAGIC;
        f->version = FLIGHT_VERSION + (way == 0);
        (void)snprintf(a.sun_path, sizeof(a.sun_path), "%.90s/sock", test_directory());
        CHECK(bind(listener, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(listener, 4) == 0);
        pid_t pid = fork();
        if (pid == 0) {
            fccd_play(listener, f);
            _exit(0);
        }
        int code = FCCCTL("--socket", a.sun_path, "flight", "--svg", svg);
        CHECK(code == (way == 0) && (way || says(versions)) && !strchr(output, '\033'));
        CHECK(way == 0 || unlink(svg) == 0);
        CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
        (void)close(listener);
        (void)unlink(a.sun_path);
    }
    free(f);
    free(output);
    output = NULL;
}

int main(void)
{
    const struct test tests[] = {
        {"outlives_its_worker", outlives_its_worker, 0},
        {"keeps_the_last", keeps_the_last, 60},
        {"nonsense_is_read", nonsense_is_read, 60},
    };

    return tests_run("flight", TESTS(tests));
}
