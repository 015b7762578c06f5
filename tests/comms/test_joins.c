/* SPDX-License-Identifier: MIT
 *
 * test_joins.c - when one rank may not join a communicator, all ranks hear at once who and why, whether they have joined already or come later,
 * on one node and over two, wherever the ranks meet; and then a communicator forms. FCC_TEST_DEVICE=cuda or hip: the same on GPUs.
 */
#include <errno.h>
#include <string.h>

#include "tests/bed/harness.h"

enum { RANKS = 3, WRONG = 1, LIMIT_MS = 25000, ORDERS = 2, ROOTS = 2 };

/* What rank 1 passes. */
struct call {
    struct fcc_comm_options options;
    int nranks, rank;
    bool refuse; /* it does not call fcc_comm_init(), as a binding refuses for it */
};

static void wrong_nranks(struct call *c)
{
    c->nranks = 1100;
}
static void wrong_rank(struct call *c)
{
    c->rank = 7;
}
static void other_nranks(struct call *c)
{
    c->nranks = 4;
}
static void wrong_device(struct call *c)
{
    c->options.device = 1234;
}
static void wrong_device_kind(struct call *c)
{
    c->options.device_kind = 99;
}
static void wrong_reserved(struct call *c)
{
    c->options.reserved[3] = 5;
}
static void same_rank(struct call *c)
{
    c->rank = 0;
}

static void wrong_for_binding(struct call *c)
{
    c->refuse = true;
}

static const struct wrong {
    void (*spoil)(struct call *c);
    int status;
    const char *says[3];
} wrongs[] = {
    {wrong_nranks, -EINVAL, {"rank 1: nranks: 1100: allowed are 1 to 1024", "", ""}},
    {wrong_rank, -EINVAL, {"rank: 7: allowed are 0 to 2", "", ""}},
    {other_nranks, -EINVAL, {"nranks: ", "3", "4"}},
    {wrong_device, -ENOENT, {"rank 1: device: 1234: allowed are -1 to", "", ""}},
    {wrong_device_kind, -EINVAL, {"rank 1: options.device_kind: 99: allowed are", "", ""}},
    {wrong_reserved, -EINVAL, {"rank 1: options.reserved[3]: 5: must be 0", "", ""}},
    {same_rank, -EALREADY, {"rank 0: has joined already, as pid ", "and now as pid ", ""}},
    {wrong_for_binding, -ERANGE, {"rank 1: heap_bytes: -1: allowed are 0 and more", "", ""}},
};
enum { WRONGS = sizeof(wrongs) / sizeof(wrongs[0]) };

struct scene {
    int roots; /* nodes at which ranks meet by turns */
    struct fcc_unique_id ids[ROOTS][ORDERS][WRONGS], right[ROOTS][ORDERS][WRONGS];
    char nodes[ROOTS][64]; /* their addresses, where there are several: ranks 0 and 1 are on different ones */
    _Atomic int turn;      /* calls that have returned */
};

static void turn_await(const struct scene *s, int turn)
{
    while (s->turn < turn)
        nap();
}

/* order 0: rank 1 comes first, and the others when it has been told or (if nothing is wrong with it by itself) has had its time. Otherwise it comes
 * last, when the others wait. Sleeping makes that likely; what all are told does not depend on it. */
static void wrong_once(struct scene *s, fcc_context *context, int rank, int root, int order, int which)
{
    const struct wrong *w = &wrongs[which];
    struct fcc_comm_options options = {.device = -1, .device_kind = test_device(), .time_limit_ms = LIMIT_MS};
    struct call c = {.options = options, .nranks = RANKS, .rank = rank};
    double start = now_ms();
    fcc_comm *comm;

    if (rank == WRONG)
        w->spoil(&c);
    if ((order == 0) != (rank == WRONG))
        (void)usleep(100000);
    const struct fcc_unique_id *id = &s->ids[root][order][which];
    if (c.refuse) {
        OK(fcc_comm_init_refuse(context, id, c.nranks, c.rank, w->status, "heap_bytes: -1: allowed are 0 and more"));
    } else {
        int status = fcc_comm_init(context, id, c.nranks, c.rank, &c.options, &comm);
        check_error(__FILE__, __LINE__, "fcc_comm_init", status, w->status,
                    (const char *const[]){w->says[0], w->says[1], w->says[2], NULL});
        if (w->spoil == same_rank && s->roots > 1) /* who it was, and where */
            check_error(__FILE__, __LINE__, "fcc_comm_init", status, w->status,
                        (const char *const[]){" on node ", s->nodes[0], s->nodes[1], NULL});
    }
    CHECK(now_ms() - start < LIMIT_MS); /* not because they waited for it */
    s->turn++;
    turn_await(s, RANKS * (1 + 2 * (which + WRONGS * (order + ORDERS * root))));
    OK(fcc_comm_init(context, &s->right[root][order][which], RANKS, rank, &options, &comm));
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    s->turn++;
    turn_await(s, RANKS * (2 + 2 * (which + WRONGS * (order + ORDERS * root))));
}

static void joins_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *s = argument;
    fcc_context *context;

    OK(fcc_connect(NULL, &context));
    FAILS(fcc_comm_init_refuse(context, &all->id, RANKS, rank, 0, "no error"), -EINVAL, "status: 0: allowed are -1 to -4095");
    FAILS(fcc_comm_init_refuse(context, &all->id, RANKS, rank, -EINVAL, NULL), -EINVAL, "reason: NULL");
    for (int root = 0; root < s->roots; root++)
        for (int order = 0; order < ORDERS; order++)
            for (int which = 0; which < WRONGS; which++)
                wrong_once(s, context, rank, root, order, which);
    fcc_disconnect(context);
}

static void ids_make(struct scene *s, const struct test_daemon *d)
{
    for (int root = 0; root < s->roots; root++) {
        struct fcc_connect_options options = {.socket_path = d->node[root].socket};
        fcc_context *context;
        OK(fcc_connect(&options, &context));
        for (int i = 0; i < ORDERS * WRONGS; i++) {
            OK(fcc_get_unique_id(context, &s->ids[root][0][0] + i));
            OK(fcc_get_unique_id(context, &s->right[root][0][0] + i));
        }
        fcc_disconnect(context);
    }
}

static void nodes_run(int nodes)
{
    struct scene *s = shared_memory(sizeof(*s));
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, nodes, NULL);
    s->roots = nodes;
    for (int i = 0; i < nodes; i++)
        (void)snprintf(s->nodes[i], sizeof(s->nodes[i]), "%s", d.node[i].address);
    CHECK(nodes == 1 || (*s->nodes[0] && *s->nodes[1] && strcmp(s->nodes[0], s->nodes[1]) != 0));
    ids_make(s, &d);
    ranks_start(&r, RANKS, joins_rank, s);
    ranks_join(&r);
    daemon_stop(&d);
}

static void one_node(void)
{
    nodes_run(1);
}

static void two_nodes(void)
{
    nodes_run(2);
}

/* ---- the same id again: who has heard begins anew ---- */

static void again_rank(int rank, const struct ranks *all, void *argument)
{
    struct fcc_comm_options options = {.device = -1, .device_kind = test_device(), .time_limit_ms = LIMIT_MS}, wrong = options;
    _Atomic int *turn = argument;
    fcc_context *context;
    fcc_comm *comm;

    wrong.device = 1234;
    OK(fcc_connect(NULL, &context));
    for (int round = 0; round < 3; round++) {
        if (rank == round) /* the last of them joins when the others have been told and are gone */
            (void)usleep(100000);
        FAILS(fcc_comm_init(context, &all->id, RANKS, rank, rank == WRONG ? &wrong : &options, &comm), -ENOENT,
              "rank 1: device: 1234");
        ++*turn;
        while (*turn < RANKS * (round + 1))
            nap();
    }
    OK(fcc_comm_init(context, &all->id, RANKS, rank, &options, &comm));
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void again(void)
{
    ranks_run(RANKS, again_rank, shared_memory(sizeof(int)));
}

/* ---- a rank that ends before all have joined, and one that comes after it ---- */

static void gone_rank(int rank, const struct ranks *all, void *argument)
{
    struct fcc_comm_options options = {.device = -1, .device_kind = test_device(), .time_limit_ms = LIMIT_MS};
    _Atomic int *step = argument;
    double start = now_ms();
    fcc_context *context;
    fcc_comm *comm;

    if (rank == 1) {
        OK(fcc_connect(NULL, &context));
        (void)alarm(2); /* in the middle of its call, which is all that is left to be done until then, and of its life */
        (void)fcc_comm_init(context, &all->id, RANKS, rank, &options, &comm);
        CHECK(!"it came back");
    }
    OK(fcc_connect(NULL, &context));
    if (rank == 2)
        while (!*step)
            nap();
    FAILS(fcc_comm_init(context, &all->id, RANKS, rank, &options, &comm), -ECONNABORTED, "rank 1 (pid ", "is gone");
    CHECK(now_ms() - start < LIMIT_MS);
    *step = 1;
    fcc_disconnect(context);
}

static void gone(void)
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    ranks_start(&r, RANKS, gone_rank, shared_memory(sizeof(int)));
    for (int rank = 0; rank < RANKS; rank++)
        CHECK((rank_wait(&r, rank) == 0) == (rank != 1));
    daemon_stop(&d);
}

/* What a program made itself, or passed on only in part: never the name of a node that nobody knows. */
static void no_ids(void)
{
    struct fcc_comm_options options = {.device = -1, .time_limit_ms = 3000};
    struct fcc_unique_id good, id;
    struct test_daemon d;
    fcc_context *context;
    fcc_comm *comm;
    uint64_t seed = 20261126;

    daemon_start(&d, NULL);
    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &good));
    for (int i = 0; i < 50; i++) {
        for (size_t at = 0; at < sizeof(id.bytes); at++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            id.bytes[at] = (unsigned char)(seed >> 56);
        }
        FAILS(fcc_comm_init(context, &id, 1, 0, &options, &comm), -EINVAL, "id", "fcc_get_unique_id()");
    }
    for (size_t at = sizeof(good.bytes) - 24; at < sizeof(good.bytes); at++) {
        id = good;
        id.bytes[at] = 1;
        FAILS(fcc_comm_init(context, &id, 1, 0, &options, &comm), -EINVAL, "id", "fcc_get_unique_id()");
    }
    static const char *const no_addresses[] = {
        "a b", "\x1b[2J", ":7000", "host:", "host:0", "host:65536", "[::1", "h\xc3\xbcgel:1"};
    for (size_t i = 0; i < sizeof(no_addresses) / sizeof(no_addresses[0]); i++) {
        id = good;
        (void)snprintf((char *)id.bytes + 40, 64, "%s", no_addresses[i]);
        FAILS(fcc_comm_init(context, &id, 1, 0, &options, &comm), -EINVAL, "id", "fcc_get_unique_id()");
    }
    OK(fcc_comm_init(context, &good, 1, 0, &options, &comm)); /* it has not been used up */
    fcc_disconnect(context);
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"one_node", one_node, 60}, {"two_nodes", two_nodes, 90}, {"again", again, 0}, {"gone", gone, 0}, {"no_ids", no_ids, 0},
    };

    if (test_device_missing())
        return 0;
    return tests_run("joins", TESTS(tests));
}
