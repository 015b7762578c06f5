/* SPDX-License-Identifier: MIT
 *
 * test_forming.c - a communicator of three nodes forms, as the worker sees it that is neither the root nor alone: what the root says of
 * the third node's worker, and what has become of the connections to that one from earlier. A rank comes twice; a rank ends it too early.
 */
#include "tests/nodes/worker_bed.h"

#define IDLE "60000"

/* The root's rank, the worker's own, the third node's. */
enum { RANKS = 3, OWN = 1, THIRD = 2 };

/* The worker and its client, whose rank has joined; the root, which knows of it; the third node. */
struct scene {
    struct bed b;
    int client;
    uint32_t limit_ms; /* that the root says is in force */
    struct fcc_unique_id id;
    struct other root, third;
};

static void scene_join_within(struct scene *s, uint32_t limit_ms)
{
    struct peer_joined joined = {.rank = OWN};

    s->id = id_make(1, s->root.address);
    s->client = bed_client(&s->b);
    s->limit_ms = limit_ms ? limit_ms : 30000; /* of all ranks: this one's is the shortest, or they have all said none */
    client_join_within(s->client, &s->id, RANKS, OWN, limit_ms);
    bed_connect(&s->b, &s->root, NULL);
    (void)other_heard(&s->root, PEER_JOIN, id_number(&s->id));
    (void)bed_hand(&s->b, &s->root, PEER_MESSAGES);
    other_say(&s->root, &joined.msg, PEER_JOINED, id_number(&s->id), sizeof(joined));
}

static void scene_join(struct scene *s)
{
    scene_join_within(s, 0);
}

/* Who has joined, in the root's words: a rank on each node. */
static struct peer_formed formed_make(const struct scene *s)
{
    struct peer_formed f = {.nranks = RANKS,
                            .nnodes = RANKS,
                            .time_limit_ms = s->limit_ms,
                            .pids = {1, 2, 3},
                            .node_of = {0, OWN, THIRD},
                            .workers = {s->root.who, {BED_BROKER, 1}, s->third.who}};

    (void)snprintf(f.addresses[0], FCC_NODE_MAX, "%s", s->root.address);
    (void)snprintf(f.addresses[OWN], FCC_NODE_MAX, "%s", BED_ADDRESS);
    (void)snprintf(f.addresses[THIRD], FCC_NODE_MAX, "%s", s->third.address);
    return f;
}

/* All have joined, says the root: the third rank at that worker. */
static void scene_form(const struct scene *s, const struct incarnation *third)
{
    struct peer_formed f = formed_make(s);

    f.workers[THIRD] = *third;
    other_say(&s->root, &f.msg, PEER_FORMED, id_number(&s->id), sizeof(f));
}

static void third_says_here(const struct scene *s)
{
    struct peer_here here = {.node = THIRD};

    other_say(&s->third, &here.msg, PEER_HERE, id_number(&s->id), sizeof(here));
}

static void third_hears_here(const struct scene *s)
{
    const struct peer_here *here = (const struct peer_here *)other_heard(&s->third, PEER_HERE, id_number(&s->id));

    CHECK(here->node == OWN);
}

/* The worker says READY, and the root GO. */
static void scene_go(const struct scene *s)
{
    struct peer_msg go = {0};

    (void)other_heard(&s->root, PEER_READY, id_number(&s->id));
    other_say(&s->root, &go, PEER_GO, id_number(&s->id), sizeof(go));
    client_joined(s->client, 0, "");
}

static void scene_close(struct scene *s)
{
    (void)close(s->client);
    CHECK(kill(s->b.pid, SIGKILL) == 0 && waitpid(s->b.pid, NULL, 0) == s->b.pid);
    (void)close(s->b.control);
    other_close(&s->root);
    other_close(&s->third);
}

/* The root names a worker of the third node of which this one knows the one before. */
static void formed_names_successor(void)
{
    for (int is_gone = 0; is_gone < 2; is_gone++) {
        struct scene s = {.root = {.address = "192.0.2.2:7000", .who = {7, 1}, .serial = 1},
                          .third = {.address = "192.0.2.3:7000", .who = {9, 2}, .serial = 1}};
        struct other old = {.address = s.third.address, .who = {9, 1}, .serial = 1};
        bed_start(&s.b, IDLE);
        (void)bed_hand(&s.b, &old, PEER_MESSAGES); /* and no end of it comes */
        scene_join(&s);
        scene_form(&s, &s.third.who);
        struct control_connect asked = bed_asked(&s.b, s.third.address, &s.third.who);
        if (is_gone) { /* the broker there: it has gone, too */
            bed_answer_error(&s.b, &asked, -ESTALE, "",
                             "node 192.0.2.3:7000: the job's process there that was asked for is gone");
            client_joined(s.client, -ESTALE, "node 192.0.2.3:7000: the job's process");
        } else {
            bed_answer(&s.b, &asked, &s.third);
            asked = bed_asked(&s.b, s.third.address, &s.third.who);
            bed_answer(&s.b, &asked, &s.third);
            third_hears_here(&s);
            (void)bed_hand(&s.b, &s.third, PEER_MESSAGES);
            third_says_here(&s);
            scene_go(&s);
        }
        scene_close(&s);
        other_close(&old);
    }
}

/* There are connections to the third node's worker both ways, of a communicator that forms at this one. */
static void third_known(struct scene *s)
{
    struct fcc_unique_id earlier = id_make(9, BED_ADDRESS);

    s->third = (struct other){.address = "192.0.2.3:7000", .who = {9, 1}, .serial = 1};
    s->root = (struct other){.address = "192.0.2.2:7000", .who = {7, 1}, .serial = 1};
    bed_start(&s->b, IDLE);
    (void)bed_hand(&s->b, &s->third, PEER_MESSAGES);
    (void)bed_hand(&s->b, &s->third, PEER_DATA);
    other_say_join(&s->third, &earlier, 2, 1, 30000);
    bed_connect(&s->b, &s->third, &s->third.who);
    (void)other_heard(&s->third, PEER_JOINED, id_number(&earlier));
}

/* So, and the worker has heard from the root who has joined: it waits for the third. */
static void third_known_formed(struct scene *s)
{
    third_known(s);
    scene_join(s);
    scene_form(s, &s->third.who);
    third_hears_here(s);
}

/* It has HERE to say before or after FORMED comes, and no new connection is needed. */
static void known_from_earlier(void)
{
    for (int is_early = 0; is_early < 2; is_early++) {
        struct scene s;
        third_known(&s);
        scene_join(&s);
        if (is_early)
            third_says_here(&s);
        scene_form(&s, &s.third.who);
        third_hears_here(&s);
        if (!is_early)
            third_says_here(&s);
        scene_go(&s);
        scene_close(&s);
    }
}

/* It has seen the end of the connections that are there, as of a link that was down for long, and this worker has not: it hears of that when the
 * third connects anew, or when an end comes after all. Either way the communicator forms, over new ones. */
static void connects_anew(void)
{
    for (int end_comes = 0; end_comes < 2; end_comes++) {
        struct scene s;
        third_known_formed(&s);
        struct other old = s.third;
        s.third.serial++;
        s.third.in = s.third.in_data = 0;
        if (end_comes)
            bed_close(&old.out);
        else
            (void)bed_hand(&s.b, &s.third, PEER_MESSAGES);
        CHECK(closed(old.in));
        bed_connect(&s.b, &s.third, &s.third.who);
        if (end_comes)
            (void)bed_hand(&s.b, &s.third, PEER_MESSAGES);
        (void)bed_hand(&s.b, &s.third, PEER_DATA);
        third_hears_here(&s);
        third_says_here(&s);
        scene_go(&s);
        scene_close(&s);
        other_close(&old);
    }
}

/* What is lost after READY is needed. So is a node that nobody can connect to. */
static void lost(void)
{
    for (int is_ready = 0; is_ready < 2; is_ready++) {
        struct scene s;
        third_known_formed(&s);
        if (is_ready) {
            third_says_here(&s);
            (void)other_heard(&s.root, PEER_READY, id_number(&s.id));
            bed_close(&s.third.out);
            client_joined(s.client, -ECONNRESET, "node 192.0.2.3:7000: its connection has ended");
        } else {
            bed_close(&s.third.out);
            struct control_connect asked = bed_asked(&s.b, s.third.address, &s.third.who);
            bed_answer_error(&s.b, &asked, -EHOSTUNREACH, "", "node 192.0.2.3:7000: cannot connect: No route to host");
            client_joined(s.client, -EHOSTUNREACH, "node 192.0.2.3:7000: cannot connect: No route to host");
        }
        (void)other_heard(&s.root, PEER_ABORT, id_number(&s.id));
        scene_close(&s);
    }
}

/* Somebody says nothing more: the third node's worker its HERE, or the root its GO. fccctl names it, and when the time is over, so does the
 * error. */
static void not_ready(void)
{
    for (int is_root = 0; is_root < 2; is_root++) {
        char text[4096], words[64];
        struct scene s;
        third_known(&s);
        scene_join_within(&s, 3000);
        bed_comms(&s.b, text, sizeof(text));
        CHECK(strstr(text, "\"state\":\"not joined\"") && strstr(text, "\"missing_nodes\":[]"));
        scene_form(&s, &s.third.who);
        third_hears_here(&s);
        if (is_root) {
            third_says_here(&s);
            (void)other_heard(&s.root, PEER_READY, id_number(&s.id));
        }
        bed_comms(&s.b, text, sizeof(text));
        (void)snprintf(words, sizeof(words), "\"missing_nodes\":[\"%s\"]", is_root ? s.root.address : s.third.address);
        CHECK(strstr(text, words) != NULL);
        (void)snprintf(words, sizeof(words), "all ranks have joined; not ready: node %s",
                       is_root ? s.root.address : s.third.address);
        client_joined(s.client, -ETIMEDOUT, words);
        scene_close(&s);
    }
}

/* ---- a rank twice ---- */

/* Its own rank has come to the root from another node before, as another process, says FORMED; or REFUSE does. All hear of both. */
static void rank_elsewhere(void)
{
    for (int is_refused = 0; is_refused < 2; is_refused++) {
        struct scene s;
        third_known(&s);
        scene_join(&s);
        struct peer_formed f = formed_make(&s);
        struct peer_refuse no = {.rank = OWN, .status = -EALREADY, .text = "rank 1: has joined already, as pid 4711 on node X"};
        char words[2][64];
        f.pids[OWN] = 4711;
        f.node_of[OWN] = THIRD;
        (void)snprintf(words[0], sizeof(words[0]), "rank 1: has joined already, as pid %d on node %s", getpid(), BED_ADDRESS);
        (void)snprintf(words[1], sizeof(words[1]), "and now as pid 4711 on node %s", s.third.address);
        if (is_refused)
            other_say(&s.root, &no.msg, PEER_REFUSE, id_number(&s.id), sizeof(no));
        else
            other_say(&s.root, &f.msg, PEER_FORMED, id_number(&s.id), sizeof(f));
        client_joined(s.client, -EALREADY, is_refused ? no.text : words[0]);
        const struct peer_turn *told = (const struct peer_turn *)other_heard(&s.root, PEER_ABORT, id_number(&s.id));
        CHECK(told->status == -EALREADY && strstr(told->text, is_refused ? no.text : words[1]));
        client_is_served(s.client);
        scene_close(&s);
    }
}

/* This worker is the root. The rank comes once more from a third node, while the communicator forms, and when it runs: the one who came late
 * hears of both, and what it says of that (ABORT) ends nothing that runs. */
static void rank_comes_again(void)
{
    for (int runs = 0; runs < 2; runs++) {
        struct scene s = {.root = {.address = "192.0.2.2:7000", .who = {7, 1}, .serial = 1}, /* here: another rank's node */
                          .third = {.address = "192.0.2.3:7000", .who = {9, 1}, .serial = 1}};
        struct peer_turn ended = {.status = -EALREADY, .text = "rank 1: has joined already"};
        struct peer_msg ready = {0};
        char text[4096];
        bed_start(&s.b, IDLE);
        s.id = id_make(1, BED_ADDRESS);
        s.client = bed_client(&s.b);
        client_join(s.client, &s.id, 2, 0);
        bed_comms(&s.b, text, sizeof(text));
        (void)bed_hand(&s.b, &s.root, PEER_MESSAGES);
        (void)bed_hand(&s.b, &s.root, PEER_DATA);
        other_say_join(&s.root, &s.id, 2, 1, 30000);
        bed_connect(&s.b, &s.root, &s.root.who);
        (void)other_heard(&s.root, PEER_JOINED, id_number(&s.id));
        (void)other_heard(&s.root, PEER_FORMED, id_number(&s.id));
        if (runs) {
            other_say(&s.root, &ready, PEER_READY, id_number(&s.id), sizeof(ready));
            (void)other_heard(&s.root, PEER_GO, id_number(&s.id));
            client_joined(s.client, 0, "");
        }
        (void)bed_hand(&s.b, &s.third, PEER_MESSAGES);
        (void)bed_hand(&s.b, &s.third, PEER_DATA);
        other_say_join(&s.third, &s.id, 2, 1, 30000);
        bed_connect(&s.b, &s.third, &s.third.who);
        const struct peer_refuse *no = (const struct peer_refuse *)other_heard(&s.third, PEER_REFUSE, id_number(&s.id));
        CHECK(no->status == -EALREADY && no->rank == 1);
        CHECK(strstr(no->text, "rank 1: has joined already, as pid 4711 on node 192.0.2.2:7000"));
        CHECK(strstr(no->text, "and now as pid 4711 on node 192.0.2.3:7000"));
        other_say(&s.third, &ended.msg, PEER_ABORT, id_number(&s.id), sizeof(ended));
        if (runs) { /* it is another's: neither the communicator nor the connection ends */
            other_say_join(&s.third, &s.id, 2, 1, 30000);
            (void)other_heard(&s.third, PEER_REFUSE, id_number(&s.id));
            bed_comms(&s.b, text, sizeof(text));
            CHECK(strstr(text, "\"state\":\"active\""));
        } else { /* nobody knows which is right: all hear it */
            client_joined(s.client, -EALREADY, "rank 1: has joined already (node 192.0.2.3:7000)");
            const struct peer_turn *told = (const struct peer_turn *)other_heard(&s.root, PEER_ABORT, id_number(&s.id));
            CHECK(told->status == -EALREADY);
        }
        client_is_served(s.client);
        scene_close(&s);
    }
}

/* ---- what makes no sense ---- */

/* The root says who has joined, wrongly. The communicator ends, and the worker goes on. */
static void formed_makes_no_sense(void)
{
    enum { NRANKS, NO_NODES, NODES, MORE_NODES, NODE_OF, NODE_OF_OWN, NO_END, NOT_ELSEWHERE, NOT_HERE, TWICE, WRONGS };

    for (int wrong = 0; wrong < WRONGS; wrong++) {
        struct scene s;
        third_known(&s);
        scene_join(&s);
        struct peer_formed f = formed_make(&s);
        const char *words = "who has joined makes no sense";
        int status = -EPROTO;
        switch (wrong) {
        case NRANKS:
            f.nranks = 2;
            break;
        case NO_NODES:
            f.nnodes = 0;
            break;
        case NODES:
            f.nnodes = UINT32_MAX;
            break;
        case MORE_NODES:
            f.nnodes = RANKS + 1;
            break;
        case NODE_OF:
            f.node_of[THIRD] = RANKS;
            break;
        case NODE_OF_OWN:
            f.node_of[OWN] = UINT16_MAX;
            break;
        case NO_END:
            memset(f.addresses[THIRD], 'x', FCC_NODE_MAX);
            break;
        case NOT_ELSEWHERE: /* the third rank is said to be here; it has not come */
            f.node_of[THIRD] = OWN;
            words = "rank 2: has joined at this node, says the root: it has not";
            break;
        case NOT_HERE: /* ... it has come here, but from elsewhere */
            f.node_of[THIRD] = OWN;
            other_say_join(&s.third, &s.id, RANKS, THIRD, 30000);
            (void)other_heard(&s.third, PEER_JOINED, id_number(&s.id));
            words = "rank 2: has joined at this node, says the root: it has not";
            break;
        default: { /* once more, when it is known */
            scene_form(&s, &s.third.who);
            third_hears_here(&s);
            break;
        }
        }
        other_say(&s.root, &f.msg, PEER_FORMED, id_number(&s.id), sizeof(f));
        client_joined(s.client, status, words);
        client_is_served(s.client);
        scene_close(&s);
    }
}

/* Messages of a communicator that runs, while this one still forms: by a node that has heard GO before, for all that this one knows. They are kept,
 * or are nothing to it; then its own rank ends it. */
static void told_while_it_forms(void)
{
    static union {
        struct peer_msg msg;
        struct peer_submit submit;
        struct peer_memory memory;
        struct peer_free free;
        struct peer_turn end;
    } m[] = {{.submit = {.request = {.rank = THIRD, .kind = SUBMISSION_ALLOC, .alloc_bytes = 4096}}},
             {.memory = {.rank = THIRD, .handle = 17, .bytes = 4096}},
             {.free = {.rank = THIRD, .handle = 17}},
             {.end = {.turn = 1}},
             {.end = {.turn = 0, .status = -EIO, .text = "rank 2: failed"}},
             {.end = {.rank = THIRD, .turn = 0}},
             {.end = {.rank = THIRD, .turn = 1, .text = "it is gone"}}};
    static const struct {
        enum peer_type type;
        size_t bytes;
    } kinds[] = {{PEER_SUBMIT, sizeof(struct peer_submit)}, {PEER_MEMORY, sizeof(struct peer_memory)},
                 {PEER_FREE, sizeof(struct peer_free)},     {PEER_STAGED, sizeof(struct peer_turn)},
                 {PEER_FAIL, sizeof(struct peer_turn)},     {PEER_LEAVE, sizeof(struct peer_turn)},
                 {PEER_LEAVE, sizeof(struct peer_turn)}};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct fcc_comm_msg end = {.msg = {.type = i % 2 ? FCC_MSG_COMM_ABORT : FCC_MSG_COMM_DESTROY, .id = 7}, .comm = 1};
        struct scene s;
        third_known(&s);
        uint64_t before = bed_balance(&s.b);
        scene_join(&s);
        scene_form(&s, &s.third.who);
        third_hears_here(&s);
        third_says_here(&s);
        (void)other_heard(&s.root, PEER_READY, id_number(&s.id));
        other_say(&s.third, &m[i].msg, kinds[i].type, id_number(&s.id), kinds[i].bytes);
        client_is_served(s.client);
        CHECK(msg_send(s.client, &end.msg, sizeof(end), NULL, 0) == 0);
        client_joined(s.client, -ECONNABORTED, "");
        client_answered(s.client, end.msg.type, 0, "");
        (void)close(s.client); /* its own memory is charged, too */
        CHECK(bed_balanced(&s.b, before));
        s.client = bed_client(&s.b);
        client_is_served(s.client);
        scene_close(&s);
    }
}

/* ---- ended by its own rank before it has formed ---- */

enum way { DESTROYS, ABORTS, CLOSES, WAYS };

/* The handle of a session's first communicator is its number 1, so a client can name it before it has been told. All hear of the end, what
 * comes for it later is nobody's, and its memory has been given back. */
static void ends_while_it_forms(void)
{
    static const char *const words[WAYS] = {"rank 1", "rank 1 aborted the communicator: enough", "rank 1"};

    for (int way = 0; way < WAYS; way++)
        for (int is_formed = 0; is_formed < 2; is_formed++) {
            struct fcc_comm_msg m = {.msg = {.type = way == ABORTS ? FCC_MSG_COMM_ABORT : FCC_MSG_COMM_DESTROY, .id = 7},
                                     .comm = 1,
                                     .reason = "enough"};
            struct peer_msg go = {0};
            struct scene s;
            third_known(&s);
            uint64_t before = bed_balance(&s.b);
            scene_join(&s);
            if (is_formed) {
                scene_form(&s, &s.third.who);
                third_hears_here(&s);
            }
            CHECK(bed_balance(&s.b) > before);
            if (way == CLOSES) {
                (void)close(s.client);
            } else {
                CHECK(msg_send(s.client, &m.msg, sizeof(m), NULL, 0) == 0);
                client_joined(s.client, -ECONNABORTED, words[way]);
                client_answered(s.client, m.msg.type, 0, "");
                CHECK(msg_send(s.client, &m.msg, sizeof(m), NULL, 0) == 0);
                client_answered(s.client, m.msg.type, -ENOENT, "no such communicator");
            }
            const struct peer_turn *told = (const struct peer_turn *)other_heard(&s.root, PEER_ABORT, id_number(&s.id));
            CHECK(told->status == -ECONNABORTED && strstr(told->text, words[way]));
            other_say(&s.root, &go, PEER_GO, id_number(&s.id), sizeof(go));
            third_says_here(&s);
            if (way != CLOSES)
                (void)close(s.client); /* its own memory is charged, too */
            CHECK(bed_balanced(&s.b, before));
            s.client = bed_client(&s.b);
            client_is_served(s.client);
            scene_close(&s);
        }
}

int main(void)
{
    static const struct test tests[] = {
        {"formed_names_successor", formed_names_successor, 0},
        {"known_from_earlier", known_from_earlier, 0},
        {"connects_anew", connects_anew, 0},
        {"lost", lost, 0},
        {"not_ready", not_ready, 0},
        {"rank_elsewhere", rank_elsewhere, 0},
        {"rank_comes_again", rank_comes_again, 0},
        {"formed_makes_no_sense", formed_makes_no_sense, 0},
        {"told_while_it_forms", told_while_it_forms, 0},
        {"ends_while_it_forms", ends_while_it_forms, 0},
    };

    return tests_run("forming", TESTS(tests));
}
