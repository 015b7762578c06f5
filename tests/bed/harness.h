/* SPDX-License-Identifier: MIT
 *
 * harness.h - how tests run that need a daemon: each in a process of its own, with a directory of its own, a time limit, and a
 * count of the descriptors, files and processes that it leaves behind.
 *
 *     static void joins_twice(void) { struct test_daemon d; daemon_start(&d, NULL); ...; daemon_stop(&d); }
 *     int main(void) { const struct test tests[] = {{"joins_twice", joins_twice}, ...}; return tests_run("comm", tests, N); }
 */
#ifndef FCC_TEST_HARNESS_H
#define FCC_TEST_HARNESS_H

#include "proto/fccclient.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

struct test {
    const char *name;
    void (*run)(void);
    unsigned limit_s; /* 0: TEST_LIMIT_S */
};
#define TEST_LIMIT_S 60
#define TESTS(array) (array), sizeof(array) / sizeof((array)[0])

/* Run the tests through cmocka, each in a child process. What a test printed is shown if it fails. A name in
 * FCC_TEST_ONLY selects one (that there is none of that name is a failure), FCC_TEST_VERBOSE shows what passing tests printed,
 * FCC_TEST_SLOW gives them more time (as GPUs do, whose drivers take their time to start). Returns the number of failures. */
int tests_run(const char *group, const struct test tests[], size_t n);

/* How often something is to be repeated that is n times in a plain build: a quarter where FCC_TEST_SLOW is set. A sanitizer sees a
 * race by the order that is missing, not by its coming to pass. */
int test_rounds(int n);

/* FCC_TEST_SEED, with which a run is repeated, or another one each time; in a test and in the ranks that it forks the same. It is printed, as it should
 * be before anything is drawn. */
uint64_t test_seed(void);

/* Does the test take its case number i? All in a plain build; where FCC_TEST_SLOW is set a third, which the seed says: runs take other ones, and all
 * ranks of a test the same. */
bool test_takes(size_t i);

/* In the process that runs a test: end it as skipped, with the reason. */
void test_skip(const char *reason) __attribute__((noreturn));

/* The test's own directory: made empty before it runs; a file that is left there at the end is a failure. */
const char *test_directory(void);

/* What FCC_TEST_DEVICE asks for: cuda, hip, or (cpu, or not set) the cpu. Tests that can use GPUs then do. */
enum fcc_device_kind test_device(void);
/* GPUs are asked for and this node has none for fccd: prints "skipped: no GPU" and why. Before the tests; takes a daemon of its
 * own. */
bool test_device_missing(void);

/* Fails the process that calls it, with the place and the text. Usable in a test and in the ranks that it forks. */
void check_failed(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4), noreturn));
#define CHECK(condition)                                                                                                       \
    do {                                                                                                                       \
        if (!(condition))                                                                                                      \
            check_failed(__FILE__, __LINE__, "%s", #condition);                                                                \
    } while (0)
/* An fcc_ call that must work: its error text is shown. */
#define OK(call)                                                                                                               \
    do {                                                                                                                       \
        int status_ = (call);                                                                                                  \
        if (status_)                                                                                                           \
            check_failed(__FILE__, __LINE__, "%s: %d: %s", #call, status_, fcc_last_error());                                  \
    } while (0)
/* An fcc_ call that must fail with this status and with all of these words (NULL at the end) in its text. */
#define FAILS(call, status, ...)                                                                                               \
    do {                                                                                                                       \
        int status_ = (call);                                                                                                  \
        check_error(__FILE__, __LINE__, #call, status_, (status), (const char *const[]){"", ##__VA_ARGS__, NULL});             \
    } while (0)
void check_error(const char *file, int line, const char *call, int got, int want, const char *const words[]);

/* ---- daemons ---- */

#define TEST_NODE                                                                                                              \
    pid_t pid;                                                                                                                 \
    char socket[128];                                                                                                          \
    char log[128];                                                                                                             \
    char address[64]; /* for other nodes; "": there are none */                                                                \
    int descriptors   /* of the broker, when nobody is connected */
struct test_node {
    TEST_NODE;
};
#define TEST_NODES_MAX 4
struct test_daemon {
    union {
        struct test_node node[TEST_NODES_MAX];
        struct {
            TEST_NODE; /* of the first, and mostly the only one */
        };
    };
    int nodes; /* 0: one */
};
/* How many nodes daemon_start() starts, all on this machine: FCC_TEST_NODES, or 1. ranks_start() connects rank r to node r modulo that. */
int test_nodes(void);
/* Must data go over RDMA between them? FCCD_TRANSPORT says so to them, too. */
bool test_over_verbs(void);
/* Start (for each node) build/bin/fccd with four cpu devices, the GPUs of test_device(), and these further options (a NULL-terminated list,
 * or NULL), and wait until it serves. Sets FCCD_SOCKET and FCCD_JOB for the process. */
void daemon_start(struct test_daemon *d, const char *const options[]);
/* The same for this number of nodes. */
void daemons_start(struct test_daemon *d, int nodes, const char *const options[]);
/* From now on node i listens on hosts[i], and enter(i) is called in its process before it becomes fccd. NULL: on 127.0.0.1. */
void daemons_place(const char *const hosts[], void (*enter)(int node));
/* A node whose broker is dead gets another one, at the same socket and address. */
void node_restart(struct test_daemon *d, int node);
void node_restart_with(struct test_daemon *d, int node, const char *const options[]);
/* The same with clients about, so the node is not at rest when this returns. */
void node_restart_busy(struct test_daemon *d, int node, const char *const options[]);
/* One that is not to serve with these options: waits for its end, which is its own. */
void node_start_fails(struct test_daemon *d, int node, const char *const options[]);
/* The fccd that is tested: $FCCD_BINARY, or build/bin/fccd. */
const char *daemon_binary(void);
/* All clients have gone: checks that the broker has no descriptors and no workers left, ends it, and checks that it ended well.
 */
void daemon_stop(struct test_daemon *d);
/* The same for a daemon whose workers were killed on purpose, or that is left with clients. */
/* How many lines of the first node's log have a text. */
int daemon_log_count(const struct test_daemon *d, const char *text);
void daemon_stop_unclean(struct test_daemon *d);
/* The pid of the only worker, from /proc; waits until there is one, and until one that is about to end, as its clients have gone, has ended. */
pid_t daemon_worker(const struct test_daemon *d);
/* Does the daemon's log have a line with this text? `awaited`: it must come, and is waited for until await_end(). */
bool daemon_logged(const struct test_daemon *d, const char *text, bool awaited);
bool node_logged(const struct test_node *d, const char *text, bool awaited);

/* ---- ranks ---- */

#define RANKS_MAX 1024
struct ranks {
    int n;
    pid_t pid[RANKS_MAX];
    struct fcc_unique_id id;
};
/* Fork n processes that call run(rank, comm id, argument) and exit 0 if it returns. The id is made before, by the caller. */
void ranks_start(struct ranks *r, int n, void (*run)(int rank, const struct ranks *all, void *argument), void *argument);
/* The same for some of a communicator's ranks, whose number and id the caller has set: the others are on other machines. */
void ranks_start_some(struct ranks *r, int first, int count, void (*run)(int rank, const struct ranks *all, void *argument),
                      void *argument);
/* From hexadecimal digits. */
struct fcc_unique_id id_parse(const char *text);
/* All must exit 0. */
void ranks_join(struct ranks *r);
/* A daemon without options, n ranks on it, and their ends. */
void ranks_run(int n, void (*run)(int rank, const struct ranks *all, void *argument), void *argument);
/* Wait for one; its wait(2) status. */
int rank_wait(struct ranks *r, int rank);

/* In a rank, when it is about to join its first communicator: it waits until all that were started with it are, if that communicator has a
 * time limit, which else would run while processes still start. */
void ranks_meet(bool waits);

/* Connect and join, on test_device(): one line for the ranks of a test. With a time limit all ranks meet first, so all have to call it. */
fcc_comm *comm_open(const struct ranks *all, int rank, uint32_t time_limit_ms);
fcc_context *comm_context(void); /* the connection that comm_open() made in this process */

/* A rank that meets the others once; and so many of them, who all must: the daemons serve. */
void alive_rank(int rank, const struct ranks *all, void *argument);
void expect_alive(int ranks);

/* A port of 127.0.0.1 that nobody uses, outside the range from which the kernel takes ports for connections. Other programs' tests that run
 * at the same time have others, and do not take it when nobody listens there. */
uint16_t port_choose(void);

int descriptors_count(pid_t pid);
/* Closed connections end at a process some time later: wait until it has at most so many descriptors. */
void descriptors_fall(pid_t pid, int most);
double now_ms(void);
/* The end of a wait, which begins now, for what must happen: beyond what a busy machine takes, and before TEST_LIMIT_S, so that the place is said. */
double await_end(void);

/* Between two looks. Not sched_yield(): threads that did only that kept all others on both cores from running for up to 30 s, on Linux
 * 6.18; the groups that spawn.c speaks of may have been behind it. */
static inline void nap(void)
{
    (void)usleep(20);
}

/* In a loop that waits for something until await_end(): two cores are too few for one that spins. */
#define AWAITING(until)                                                                                                        \
    do {                                                                                                                       \
        CHECK(now_ms() < (until));                                                                                             \
        nap();                                                                                                                 \
    } while (0)

/* Memory that parent and ranks share, zeroed; for the test's process's life. */
void *shared_memory(size_t bytes);
int number_of(const char *name, int otherwise); /* of an environment variable, or `otherwise` if that is not there */

#endif
