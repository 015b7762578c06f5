/* SPDX-License-Identifier: MIT
 *
 * test_denials.c - a rank cannot join because its node and the one where the ranks meet do not speak to each other: another cluster key, another
 * version, a daemon that does not run. All ranks hear at once who and why, wherever they meet and whoever comes first; and nobody can say so who
 * does not have the communicator's id.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/common/denial.h"
#include "tests/bed/harness.h"

enum { RANKS = 3, WRONG = 1, LIMIT_MS = 25000, SHORT_MS = 5000, ORDERS = 2, SCENES = 4 };

/* ---- two nodes, of which the second is another one than it was ---- */

struct scene {
    struct fcc_unique_id ids[SCENES], right; /* ids: they meet on node i / ORDERS. right: on node 0 */
    const char *address[2];
    int status, device;
    const char *says[2]; /* in each rank's error */
    _Atomic int turn;    /* calls that have returned */
};

static void turn_await(const struct scene *s, int turn)
{
    while (s->turn < turn)
        nap();
}

static void node_end(const struct test_node *n)
{
    int status;

    CHECK(kill(n->pid, SIGTERM) == 0 && waitpid(n->pid, &status, 0) == n->pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static const char *other_key_make(void)
{
    static const char bytes[] = "another key than that of the other node: 0123456789 0123456789";
    static char path[PATH_MAX];

    (void)snprintf(path, sizeof(path), "%s/.other_key", test_directory());
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, bytes, sizeof(bytes)) == sizeof(bytes));
    (void)close(fd);
    return path;
}

/* Node 1 begins anew, with these options, and with that binary if there is one. */
static void other_start(struct test_daemon *d, const char *binary, const char *const options[])
{
    char own[PATH_MAX];

    (void)snprintf(own, sizeof(own), "%s", daemon_binary());
    node_end(&d->node[1]);
    if (binary)
        (void)setenv("FCCD_BINARY", binary, 1);
    node_restart_with(d, 1, options);
    (void)setenv("FCCD_BINARY", own, 1);
}

static void id_make(const struct test_node *n, struct fcc_unique_id *id)
{
    struct fcc_connect_options options = {.socket_path = n->socket};
    fcc_context *context;

    OK(fcc_connect(&options, &context));
    OK(fcc_get_unique_id(context, id));
    fcc_disconnect(context);
}

static struct scene *scene_make(const struct test_daemon *d)
{
    struct scene *s = shared_memory(sizeof(*s));

    s->device = -1;
    for (int i = 0; i < 2; i++)
        s->address[i] = d->node[i].address;
    for (int i = 0; i < SCENES; i++)
        id_make(&d->node[i / ORDERS], &s->ids[i]);
    id_make(&d->node[0], &s->right);
    return s;
}

/* Rank 1 is on node 1 and comes first in every other scene, the others are on node 0. Sleeping makes the order likely; what all are told does not
 * depend on it. */
static void scenes_rank(int rank, const struct ranks *all, void *argument)
{
    struct fcc_comm_options options = {.device = -1, .time_limit_ms = LIMIT_MS}, mine = options;
    struct scene *s = argument;
    fcc_context *context;
    fcc_comm *comm;

    (void)all;
    mine.device = rank == WRONG ? s->device : -1;
    OK(fcc_connect(NULL, &context));
    for (int i = 0; i < SCENES; i++) {
        double start = now_ms();
        if ((i % ORDERS == 0) != (rank == WRONG))
            (void)usleep(300000);
        FAILS(fcc_comm_init(context, &s->ids[i], RANKS, rank, &mine, &comm), s->status, s->says[0], s->says[1]);
        CHECK(now_ms() - start < LIMIT_MS); /* not because they waited for it */
        s->turn++;
        turn_await(s, RANKS * (i + 1));
    }
    if (rank != WRONG) { /* the node goes on */
        OK(fcc_comm_init(context, &s->right, 2, rank / 2, &options, &comm));
        OK(fcc_noop(comm));
        fcc_comm_destroy(comm);
    }
    fcc_disconnect(context);
}

static void scenes_run(struct scene *s)
{
    struct ranks r;

    ranks_start(&r, RANKS, scenes_rank, s);
    ranks_join(&r);
}

static void other_key(void)
{
    struct test_daemon d;

    daemons_start(&d, 2, NULL);
    other_start(&d, NULL, (const char *const[]){"--cluster-key", other_key_make(), NULL});
    struct scene *s = scene_make(&d);
    s->status = -EACCES;
    s->says[0] = "node 127.0.0.1:";
    s->says[1] = ": its proof is wrong: it has another CLUSTER_KEY";
    scenes_run(s);
    for (int i = 0; i < 2; i++)
        CHECK(node_logged(&d.node[i], "it says, without proof, that a rank cannot join", true));
    daemon_stop(&d);
}

static void other_version(void)
{
    const char *binary = getenv("FCC_TEST_OTHER_VERSION");
    struct test_daemon d;
    char says[64];

    daemons_start(&d, 2, NULL);
    other_start(&d, binary ? binary : "build/tests/fccd_other_version", NULL);
    struct scene *s = scene_make(&d);
    s->status = -EPROTONOSUPPORT;
    s->says[0] = "node 127.0.0.1:";
    (void)snprintf(says, sizeof(says), "version %u", AUTH_VERSION); /* either side says both */
    s->says[1] = says;
    scenes_run(s);
    daemon_stop(&d);
}

/* What is wrong with rank 1 is not the key: it is refused before it is known that it could not have told the others so. */
static void unsaid(void)
{
    struct test_daemon d;

    daemons_start(&d, 2, NULL);
    other_start(&d, NULL, (const char *const[]){"--cluster-key", other_key_make(), NULL});
    struct scene *s = scene_make(&d);
    s->status = -ENOENT;
    s->device = 1234;
    s->says[0] = "rank 1: device: 1234: allowed are -1 to ";
    s->says[1] = "";
    for (int i = 0; i < SCENES; i++) /* where they meet on node 1, it is the others who cannot join */
        id_make(&d.node[0], &s->ids[i]);
    scenes_run(s);
    daemon_stop(&d);
}

/* ---- a daemon that does not run ---- */

static void dead_rank(int rank, const struct ranks *all, void *argument)
{
    struct fcc_comm_options options = {.device = -1, .time_limit_ms = LIMIT_MS};
    struct fcc_connect_options at = {.socket_path = argument};
    double start = now_ms();
    fcc_context *context;
    fcc_comm *comm;

    OK(fcc_connect(&at, &context));
    FAILS(fcc_comm_init(context, &all->id, RANKS, rank, &options, &comm), -ECONNREFUSED,
          "node 127.0.0.1:", ": cannot connect: Connection refused");
    CHECK(now_ms() - start < LIMIT_MS);
    fcc_disconnect(context);
}

/* Ranks on node 0 would meet on node 1, which is not there: they hear when it has been tried for 3 s, as it may be starting anew. */
static void dead(void)
{
    struct test_daemon d;
    struct ranks r = {.n = RANKS};

    daemons_start(&d, 2, NULL);
    id_make(&d.node[1], &r.id);
    node_end(&d.node[1]);
    ranks_start_some(&r, 0, RANKS, dead_rank, d.node[0].socket);
    ranks_join(&r);
    node_restart(&d, 1);
    daemon_stop(&d);
}

/* ---- a node that speaks to no other ---- */

static void alone_rank(int rank, const struct ranks *all, void *argument)
{
    struct fcc_comm_options options = {.device = -1, .time_limit_ms = LIMIT_MS};
    struct fcc_connect_options at = {.socket_path = argument};
    double start = now_ms();
    fcc_context *context;
    fcc_comm *comm;

    OK(fcc_connect(&at, &context));
    FAILS(fcc_comm_init(context, &all->id, 2, rank, &options, &comm), -ENETUNREACH, "id: ", "NODE_LISTEN");
    CHECK(now_ms() - start < LIMIT_MS);
    fcc_disconnect(context);
}

/* An id of a node that has no NODE_LISTEN, and no key, at one that has them; and the other way round. */
static void alone(void)
{
    struct ranks r = {.n = 1};
    struct test_daemon d;

    daemons_start(&d, 2, NULL);
    other_start(&d, NULL, (const char *const[]){"--node-listen", "", "--cluster-key", "", NULL});
    for (int i = 0; i < 2; i++) {
        id_make(&d.node[i], &r.id);
        ranks_start_some(&r, 0, 1, alone_rank, d.node[!i].socket);
        ranks_join(&r);
    }
    daemon_stop(&d);
}

/* ---- where a launcher says who meets whom ---- */

struct launched {
    const char *meeting, *socket[2];
    _Atomic int turn;
};

static void launched_rank(int rank, const struct ranks *all, void *argument)
{
    struct fcc_comm_options options = {.device = -1, .time_limit_ms = SHORT_MS};
    struct launched *l = argument;
    struct fcc_connect_options at = {.socket_path = l->socket[rank]};
    fcc_context *context;
    fcc_comm *comm;

    (void)all;
    CHECK(!setenv("FCC_SIZE", "2", 1) && !setenv("FCC_RANK", rank ? "1" : "0", 1) && !setenv("FCC_LOCAL_RANK", "0", 1) &&
          !setenv("FCC_MEETING", l->meeting, 1));
    OK(fcc_connect(&at, &context));
    if (rank == WRONG)
        FAILS(fcc_comm_init_env(context, &options, &comm), -EACCES, "node 127.0.0.1:", "it has another CLUSTER_KEY");
    else /* its limit is over */
        FAILS(fcc_comm_init_env(context, &options, &comm), -ETIMEDOUT, "rank 1 did not join; not reached from here: node ",
              ": its proof is wrong: it has another CLUSTER_KEY");
    fcc_disconnect(context);
}

/* The ids are made with the keys, so there is nothing that both nodes have. Who waits hears at the limit which nodes are not reached. */
static void launched(void)
{
    struct launched *l = shared_memory(sizeof(*l));
    struct test_daemon d;
    struct ranks r;
    char nodes[160];

    daemons_start(&d, 2, NULL);
    other_start(&d, NULL, (const char *const[]){"--cluster-key", other_key_make(), NULL});
    node_end(&d.node[0]);
    (void)snprintf(nodes, sizeof(nodes), "%s,%s", d.node[0].address, d.node[1].address);
    node_restart_with(&d, 0, (const char *const[]){"--nodes", nodes, NULL});
    l->meeting = d.node[0].address;
    for (int i = 0; i < 2; i++)
        l->socket[i] = d.node[i].socket;
    ranks_start(&r, 2, launched_rank, l);
    ranks_join(&r);
    daemon_stop(&d);
}

/* ---- strangers ---- */

static void denial_say(const char *address, const void *bytes, size_t n)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)strtoul(strchr(address, ':') + 1, NULL, 10)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char byte;

    CHECK(sock >= 0 && connect(sock, (const struct sockaddr *)&to, sizeof(to)) == 0);
    CHECK(send(sock, bytes, n, MSG_NOSIGNAL) == (ssize_t)n);
    CHECK(recv(sock, &byte, 1, 0) <= 0); /* nothing is said to it, and by now it has been heard */
    (void)close(sock);
}

struct strange {
    struct fcc_unique_id id;
    const char *address;
    _Atomic int waits, told;
};

static struct denial denial_make(const struct fcc_unique_id *id)
{
    struct denial d = {.uid = getuid(), .rank = 1, .status = -EXDEV, .job = "test", .text = "rank 1: \033[31mhas its reasons"};

    CHECK(denial_seal(&d, id) == 0);
    return d;
}

static void strange_rank(int rank, const struct ranks *all, void *argument)
{
    struct fcc_comm_options options = {.device = -1, .time_limit_ms = LIMIT_MS};
    struct strange *s = argument;
    fcc_context *context;
    fcc_comm *comm;

    (void)all;
    OK(fcc_connect(NULL, &context));
    if (rank == 0) {
        FAILS(fcc_comm_init(context, &s->id, 2, 0, &options, &comm), -EXDEV, "rank 1: ?[31mhas its reasons");
        s->told = 1;
        s->waits = 1; /* likely, by the time that something is said */
        OK(fcc_comm_init(context, &s->id, 2, 0, &options, &comm));
    } else {
        while (s->told < 2)
            nap();
        OK(fcc_comm_init(context, &s->id, 2, 1, &options, &comm));
    }
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

/* Another id; no tag; a tag of something else; another user's job; half of one; a status that is none. None of it ends what forms. */
static void strangers_speak(const struct strange *s)
{
    struct fcc_unique_id other = s->id;
    struct denial d;

    other.bytes[sizeof(other.bytes) / 4] ^= 1;
    d = denial_make(&other);
    denial_say(s->address, &d, sizeof(d));
    d = denial_make(&s->id);
    memset(d.tag, 0, sizeof(d.tag));
    denial_say(s->address, &d, sizeof(d));
    d = denial_make(&s->id);
    d.rank ^= 1;
    denial_say(s->address, &d, sizeof(d));
    d = denial_make(&s->id);
    d.text[0] ^= 1;
    denial_say(s->address, &d, sizeof(d));
    d = denial_make(&s->id);
    d.uid += 1;
    denial_say(s->address, &d, sizeof(d));
    d = denial_make(&s->id);
    memset(d.job, 'x', sizeof(d.job));
    denial_say(s->address, &d, sizeof(d));
    d = denial_make(&s->id);
    d.header.version += 1;
    denial_say(s->address, &d, sizeof(d));
    for (int i = 0; i < 200; i++) { /* more than are heard in a second */
        d = denial_make(&other);
        denial_say(s->address, &d, sizeof(d));
    }
}

/* Who has the id is believed, once; who has recorded what he said is not; nor is anybody else. */
static void strangers(void)
{
    struct strange *s = shared_memory(sizeof(*s));
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, 2, NULL);
    id_make(&d.node[0], &s->id);
    s->address = d.node[0].address;
    ranks_start(&r, 2, strange_rank, s);
    (void)usleep(300000); /* rank 0 waits, likely: it must go on */
    strangers_speak(s);
    CHECK(!s->told);
    struct denial once = denial_make(&s->id);
    while (!s->told) { /* as a broker does: what comes in a second in which too much came is not heard */
        denial_say(s->address, &once, sizeof(once));
        (void)usleep(100000);
    }
    while (!s->waits)
        nap();
    for (int i = 0; i < 15; i++) {
        denial_say(s->address, &once, sizeof(once));
        (void)usleep(100000);
    }
    s->told = 2;
    ranks_join(&r);
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"other_key", other_key, 60}, {"other_version", other_version, 60}, {"unsaid", unsaid, 60},       {"dead", dead, 60},
        {"alone", alone, 60},         {"launched", launched, 60},           {"strangers", strangers, 60},
    };

    return tests_run("denials", TESTS(tests));
}
