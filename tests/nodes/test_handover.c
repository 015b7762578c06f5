/* SPDX-License-Identifier: MIT
 *
 * test_handover.c - a worker that goes and the next one of its job: at the worker itself, at its clients, and at the job's workers on
 * other nodes. The test is the broker and the other workers, so everything comes in the order that it is about (worker_bed.h);
 * test_retire.c has the broker's part.
 */
#include <poll.h>

#include <poll.h>
#include <sys/resource.h>

#include "tests/nodes/worker_bed.h"

#define IDLE "40"

/* ---- may it go? ---- */

/* A client that was on its way when the worker asked: it is served, and the worker asks again when it has left. */
static void client_on_its_way(void)
{
    struct bed b;

    bed_start(&b, IDLE);
    bed_hear_retire(&b, 0);
    int client = bed_client(&b); /* is greeted */
    (void)close(client);
    bed_hear_retire(&b, 1);
    client = bed_client(&b);
    int second = bed_client(&b);
    (void)close(client);
    (void)close(second);
    bed_hear_retire(&b, 3);
    bed_retire(&b);
}

/* A connection of another node's worker that was on its way: what comes over it is read. And with a rank of that node's that waits for
 * its others the worker does not ask, though it has no client, until the rank's time is over. */
static void peer_on_its_way(void)
{
    struct other o = {.address = "192.0.2.2:7000", .who = {7, 3}, .serial = 1};
    struct fcc_unique_id id = id_make(1, BED_ADDRESS);
    struct bed b;

    bed_start(&b, IDLE);
    bed_hear_retire(&b, 0);
    (void)bed_hand(&b, &o, PEER_MESSAGES);
    other_say_join(&o, &id, 2, 1, 500);
    bed_connect(&b, &o, &o.who); /* not another RETIRE */
    CHECK(((const struct peer_joined *)other_heard(&o, PEER_JOINED, id_number(&id)))->rank == 1);
    struct pollfd asks = {.fd = b.control, .events = POLLIN};
    CHECK(poll(&asks, 1, -1) == 1); /* by then it has told that the communicator has ended: nothing is waited for */
    CHECK(setsockopt(o.in, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_usec = 1}, sizeof(struct timeval)) == 0);
    const struct peer_turn *m = (const struct peer_turn *)other_heard(&o, PEER_ABORT, id_number(&id));
    CHECK(m->status == -ETIMEDOUT && strstr(m->text, "rank 0 did not join"));
    bed_hear_retire(&b, 1);
    bed_retire(&b);
    CHECK(other_hear(&o) == NULL);
    other_close(&o);
}

/* The other node's rank comes while the worker waits for the broker's answer, over a connection that is there already. If it may go, it has
 * not taken the rank; if it has to stay, it takes it. */
static void rank_while_asking(void)
{
    struct other o = {.address = "192.0.2.2:7000", .who = {7, 3}, .serial = 1};
    struct fcc_unique_id id = id_make(1, BED_ADDRESS);
    struct timeval while_ = {.tv_usec = 300000};
    unsigned char byte;
    struct bed b;

    for (int stays = 0; stays < 2; stays++) {
        bed_start(&b, IDLE);
        (void)bed_hand(&b, &o, PEER_MESSAGES);
        bed_hear_retire(&b, 1);
        other_say_join(&o, &id, 2, 1, 500);
        CHECK(setsockopt(b.control, SOL_SOCKET, SO_RCVTIMEO, &while_, sizeof(while_)) == 0); /* it would ask to connect here */
        CHECK(recv(b.control, &byte, 1, MSG_PEEK) < 0 && errno == EAGAIN);
        while_.tv_usec = 0;
        CHECK(setsockopt(b.control, SOL_SOCKET, SO_RCVTIMEO, &while_, sizeof(while_)) == 0);
        while_.tv_usec = 300000;
        if (stays) {
            (void)close(bed_client(&b)); /* the broker's answer */
            bed_connect(&b, &o, &o.who);
            (void)other_heard(&o, PEER_JOINED, id_number(&id));
            (void)other_heard(&o, PEER_ABORT, id_number(&id));
            bed_hear_retire(&b, 2);
        }
        bed_retire(&b);
        CHECK(closed(o.out));
        other_close(&o);
    }
}

/* The broker dies while it is asked. */
static void broker_gone(void)
{
    struct bed b;
    int status;

    bed_start(&b, IDLE);
    bed_hear_retire(&b, 0);
    (void)close(b.control);
    CHECK(waitpid(b.pid, &status, 0) == b.pid && status == 0);
}

/* ---- a rank whose root goes ---- */

/* The root's worker went without having read the JOIN: the rank joins at the next one. That one had, so its end is told. */
static void root_goes(void)
{
    struct other first = {.address = "192.0.2.2:7000", .who = {7, 3}}, next = {first.address, .who = {7, 4}, .serial = 1};
    struct fcc_unique_id id = id_make(1, first.address);
    struct bed b;

    bed_start(&b, IDLE);
    int client = bed_client(&b);
    client_join(client, &id, 2, 1);
    bed_connect(&b, &first, NULL);
    (void)other_heard(&first, PEER_JOIN, id_number(&id));
    other_close(&first);
    bed_connect(&b, &next, NULL);
    CHECK(((const struct peer_join *)other_heard(&next, PEER_JOIN, id_number(&id)))->rank == 1);
    (void)bed_hand(&b, &next, PEER_MESSAGES);
    struct peer_joined joined = {.rank = 1};
    other_say(&next, &joined.msg, PEER_JOINED, id_number(&id), sizeof(joined));
    bed_close(&next.out); /* behind it: the end */
    client_joined(client, -ECONNRESET, "node 192.0.2.2:7000: ");
    other_close(&next);
    (void)close(client);
    bed_hear_retire(&b, b.handed);
    bed_retire(&b);
}

/* One worker after the other goes: that has an end, too. */
static void roots_go(void)
{
    struct fcc_unique_id id = id_make(1, "192.0.2.2:7000");
    struct other o[5];
    struct bed b;

    bed_start(&b, IDLE);
    int client = bed_client(&b);
    client_join(client, &id, 2, 1);
    for (uint64_t n = 0; n < 5; n++) {
        o[n] = (struct other){.address = "192.0.2.2:7000", .who = {7, n + 1}};
        bed_connect(&b, &o[n], NULL);
        (void)other_heard(&o[n], PEER_JOIN, id_number(&id));
        bed_close(&o[n].in); /* not the data's: which of two ends is noticed first is open */
    }
    client_joined(client, -ECONNRESET, "node 192.0.2.2:7000: ");
    for (int n = 0; n < 5; n++)
        other_close(&o[n]);
    (void)close(client);
    bed_hear_retire(&b, 1);
    bed_retire(&b);
}

/* The root's worker is one of a broker that is gone, and serves its clients only: the rank joins at the next one, and the old one's
 * connections stay. */
static void root_is_past(void)
{
    struct other first = {.address = "192.0.2.2:7000", .who = {7, 3}, .serial = 1}, next = {first.address, .who = {8, 1}};
    struct fcc_unique_id id = id_make(1, first.address);
    struct peer_refuse no = {.rank = 1, .status = -ESTALE, .text = "takes nothing new"};
    struct bed b;

    bed_start(&b, IDLE);
    int client = bed_client(&b);
    client_join(client, &id, 3, 1);
    client_join(client, &id, 3, 2);
    bed_connect(&b, &first, NULL);
    for (int i = 0; i < 2; i++)
        (void)other_heard(&first, PEER_JOIN, id_number(&id));
    (void)bed_hand(&b, &first, PEER_MESSAGES);
    other_say(&first, &no.msg, PEER_REFUSE, id_number(&id), sizeof(no));
    no.rank = 2;
    other_say(&first, &no.msg, PEER_REFUSE, id_number(&id), sizeof(no));
    bed_connect(&b, &next, NULL);
    for (int rank = 1; rank <= 2; rank++)
        CHECK(((const struct peer_join *)other_heard(&next, PEER_JOIN, id_number(&id)))->rank == rank);
    (void)close(client);
    (void)other_heard(&next, PEER_ABORT, id_number(&id));
    bed_hear_retire(&b, 2);
    bed_retire(&b);
    CHECK(other_hear(&first) == NULL);
    other_close(&first);
    other_close(&next);
}

/* And this worker, when its own broker is gone: what it has goes on, and what is new is refused. */
static void broker_gone_rank_comes(void)
{
    struct other o = {.address = "192.0.2.2:7000", .who = {7, 3}, .serial = 1};
    struct fcc_unique_id id = id_make(1, BED_ADDRESS), another = id_make(2, BED_ADDRESS);
    struct bed b;
    int status;

    bed_start(&b, IDLE);
    int client = bed_client(&b);
    (void)bed_hand(&b, &o, PEER_MESSAGES);
    client_join(client, &id, 3, 0);
    other_say_join(&o, &id, 3, 1, 30000);
    bed_connect(&b, &o, &o.who);
    (void)other_heard(&o, PEER_JOINED, id_number(&id));
    (void)close(b.control);
    /* until it has seen that, it takes what is new: one at a time, so each answer tells how far it is */
    const struct peer_msg *m;
    int32_t ranks = 0;
    do {
        struct fcc_unique_id fresh = id_make((unsigned char)(3 + ranks++), BED_ADDRESS);
        other_say_join(&o, ranks > 200 ? &another : &fresh, 2, 1, 30000);
        m = other_hear(&o);
        CHECK(m && (m->type == PEER_JOINED || m->type == PEER_REFUSE));
    } while (m->type == PEER_JOINED);
    CHECK(((const struct peer_refuse *)m)->status == -ESTALE);
    other_say_join(&o, &id, 3, 2, 30000); /* the last of those that a client here waits for */
    (void)other_heard(&o, PEER_JOINED, id_number(&id));
    (void)other_heard(&o, PEER_FORMED, id_number(&id));
    other_close(&o);
    (void)close(client);
    CHECK(waitpid(b.pid, &status, 0) == b.pid && status == 0);
}

/* ---- a successor overtakes ---- */

/* The proxy serves that connection: it answers its first sign of life, and does not close it. */
static void data_served(const struct other *o)
{
    unsigned char hello[48];

    CHECK(recv(o->data, hello, sizeof(hello), MSG_WAITALL) == sizeof(hello));
}

/* The other node has another worker, whose connections come before the end of the old one's, data first; then, late, one more of the old
 * one's. All that was the old one's ends, and nothing of the new one's does. */
static void successor_joins(void)
{
    struct other old = {.address = "192.0.2.2:7000", .who = {7, 3}, .serial = 9}, late = old,
                 next = {old.address, .who = {7, 4}, .serial = 1};
    struct fcc_unique_id id = id_make(1, BED_ADDRESS), again = id_make(2, BED_ADDRESS);
    struct bed b;

    bed_start(&b, IDLE);
    int client = bed_client(&b), second = bed_client(&b);
    (void)bed_hand(&b, &old, PEER_MESSAGES);
    (void)bed_hand(&b, &old, PEER_DATA);
    client_join(client, &id, 3, 0);
    other_say_join(&old, &id, 3, 1, 30000);
    bed_connect(&b, &old, &old.who);
    (void)other_heard(&old, PEER_JOINED, id_number(&id));
    data_served(&old);

    (void)bed_hand(&b, &next, PEER_DATA); /* nothing of the old one's has ended */
    client_joined(client, -ECONNRESET, "another one has taken its place");
    data_served(&next);
    (void)bed_hand(&b, &next, PEER_MESSAGES);
    CHECK(closed(old.out) && other_hear(&old) == NULL);
    CHECK(closed(bed_hand(&b, &late, PEER_MESSAGES)) && closed(bed_hand(&b, &late, PEER_DATA)));
    struct other beyond = next; /* a rail that there is not */
    CHECK(closed(bed_hand(&b, &beyond, (enum peer_purpose)(PEER_DATA | NET_RAILS_MAX << 4))));
    bed_close(&beyond.out);

    client_join(second, &again, 2, 0);
    other_say_join(&next, &again, 2, 1, 30000);
    bed_connect(&b, &next, &next.who);
    (void)other_heard(&next, PEER_JOINED, id_number(&again));
    const struct peer_formed *f = (const struct peer_formed *)other_heard(&next, PEER_FORMED, id_number(&again));
    CHECK(f->nnodes == 2 && incarnation_same(&f->workers[f->node_of[1]], &next.who));
    CHECK(incarnation_same(&f->workers[f->node_of[0]], &(struct incarnation){BED_BROKER, 1}));
    struct peer_msg ready = {0};
    other_say(&next, &ready, PEER_READY, id_number(&again), sizeof(ready));
    (void)other_heard(&next, PEER_GO, id_number(&again));
    client_joined(second, 0, "");
    (void)close(client);
    (void)close(second);
    other_close(&old);
    other_close(&late);
    (void)bed_hear(&b); /* RETIRE, when it has heard of all ends */
    bed_retire(&b);
    other_close(&next);
}

/* One of a broker that was started anew: the old broker's worker may still serve its clients, so both are served. */
static void two_brokers(void)
{
    struct other old = {.address = "192.0.2.2:7000", .who = {7, 3}, .serial = 9},
                 next = {old.address, .who = {8, 1}, .serial = 1};
    struct fcc_unique_id id = id_make(1, BED_ADDRESS), again = id_make(2, BED_ADDRESS);
    struct bed b;

    bed_start(&b, IDLE);
    int client = bed_client(&b);
    (void)bed_hand(&b, &old, PEER_MESSAGES);
    other_say_join(&old, &id, 3, 1, 30000);
    bed_connect(&b, &old, &old.who);
    (void)other_heard(&old, PEER_JOINED, id_number(&id));
    (void)bed_hand(&b, &next, PEER_MESSAGES);
    other_say_join(&next, &again, 3, 1, 30000);
    bed_connect(&b, &next, &next.who);
    (void)other_heard(&next, PEER_JOINED, id_number(&again));
    other_say_join(&old, &id, 3, 2, 30000); /* it is there still */
    (void)other_heard(&old, PEER_JOINED, id_number(&id));
    other_close(&old);
    other_close(&next);
    (void)close(client);
    bed_hear_retire(&b, 3);
    bed_retire(&b);
}

/* The same worker has given a connection up and connects anew: what it made first and what it made later are not mixed up. */
static void connects_anew(void)
{
    struct other first = {.address = "192.0.2.2:7000", .who = {7, 3}, .serial = 0xffffff}, second = first, stale = first;
    struct fcc_unique_id id = id_make(1, BED_ADDRESS);
    struct bed b;

    second.serial = 1; /* they begin again at 1 */
    bed_start(&b, IDLE);
    int client = bed_client(&b);
    (void)bed_hand(&b, &first, PEER_MESSAGES);
    (void)bed_hand(&b, &second, PEER_DATA);
    data_served(&second);
    CHECK(closed(first.out));
    CHECK(closed(bed_hand(&b, &stale, PEER_DATA)));
    (void)bed_hand(&b, &second, PEER_MESSAGES);
    other_say_join(&second, &id, 2, 1, 30000);
    bed_connect(&b, &second, &second.who);
    (void)other_heard(&second, PEER_JOINED, id_number(&id));
    other_close(&first);
    other_close(&stale);
    other_close(&second);
    (void)close(client);
    bed_hear_retire(&b, b.handed);
    bed_retire(&b);
}

/* Between the two connections that a worker asks for, the other node's worker is replaced. */
static void replaced_in_between(void)
{
    struct other first = {.address = "192.0.2.2:7000", .who = {7, 3}}, next = {first.address, .who = {7, 4}};
    struct fcc_unique_id id = id_make(1, first.address);
    struct bed b;

    bed_start(&b, IDLE);
    int client = bed_client(&b);
    client_join(client, &id, 2, 1);
    struct control_connect messages = bed_asked(&b, first.address, NULL), data = bed_asked(&b, first.address, NULL);
    bed_answer(&b, &messages, &first);
    bed_answer(&b, &data, &next);
    CHECK(closed(first.in) && closed(next.in_data));
    bed_close(&next.in_data);
    bed_connect(&b, &next, NULL);
    (void)other_heard(&next, PEER_JOIN, id_number(&id));
    (void)close(client);
    (void)other_heard(&next, PEER_ABORT, id_number(&id));
    bed_hear_retire(&b, 1);
    bed_retire(&b);
    other_close(&first);
    other_close(&next);
}

/* From now on the worker's table is full, but for the place that it keeps. */
static void table_fill(const struct bed *b)
{
    struct rlimit limit;
    char path[64];
    rlim_t n = 0;

    do
        (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", b->pid, (int)n);
    while (access(path, F_OK) == 0 && ++n);
    CHECK(prlimit(b->pid, RLIMIT_NOFILE, NULL, &limit) == 0);
    limit.rlim_cur = n;
    CHECK(prlimit(b->pid, RLIMIT_NOFILE, &limit, NULL) == 0);
}

/* A connection to another node, or of one, for which a worker has no descriptor: who joins is told, and the other node sees the connection's
 * end. The worker keeps its broker and its clients, and with room it connects again. */
static void table_full(void)
{
    struct other root = {.address = "192.0.2.2:7000", .who = {7, 1}, .serial = 1};
    struct fcc_unique_id ids[2] = {id_make(1, root.address), id_make(2, root.address)};
    struct rlimit limit;
    struct bed b;

    bed_start(&b, "60000");
    int client = bed_client(&b);
    client_join_within(client, &ids[0], 2, 1, 30000);
    struct control_connect asked = bed_asked(&b, root.address, NULL);
    CHECK(prlimit(b.pid, RLIMIT_NOFILE, NULL, &limit) == 0);
    table_fill(&b);
    bed_answer(&b, &asked, &root);
    client_joined(client, -EMFILE, "no file descriptor left for the connection (RLIMIT_NOFILE)");
    struct pollfd ends[2] = {{.fd = bed_hand(&b, &root, PEER_MESSAGES)}, {.fd = client}};
    ends[0].events = ends[1].events = POLLRDHUP;
    CHECK(poll(ends, 1, 20000) == 1 && poll(&ends[1], 1, 0) == 0);
    CHECK(prlimit(b.pid, RLIMIT_NOFILE, &limit, NULL) == 0);
    client_join_within(client, &ids[1], 2, 1, 30000);
    (void)bed_asked(&b, root.address, NULL); /* of its broker, as before */
    (void)close(client);
    CHECK(kill(b.pid, SIGKILL) == 0 && waitpid(b.pid, NULL, 0) == b.pid);
    (void)close(b.control);
    other_close(&root);
}

int main(void)
{
    static const struct test tests[] = {
        {"table_full", table_full, 0},
        {"client_on_its_way", client_on_its_way, 0},
        {"peer_on_its_way", peer_on_its_way, 0},
        {"rank_while_asking", rank_while_asking, 0},
        {"broker_gone", broker_gone, 0},
        {"root_goes", root_goes, 0},
        {"roots_go", roots_go, 0},
        {"root_is_past", root_is_past, 0},
        {"broker_gone_rank_comes", broker_gone_rank_comes, 0},
        {"successor_joins", successor_joins, 0},
        {"two_brokers", two_brokers, 0},
        {"connects_anew", connects_anew, 0},
        {"replaced_in_between", replaced_in_between, 0},
    };

    return tests_run("handover", TESTS(tests));
}
