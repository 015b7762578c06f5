/* SPDX-License-Identifier: MIT
 *
 * test_node_messages.c - what a worker on another node may say at a bad moment, or wrongly: the worker here believes nothing of it. It goes on,
 * with that node or without it, and its memory is as it was.
 */
#include "tests/nodes/message_scene.h"

/* ---- symmetric allocations ---- */

/* A rank frees its part as soon as it has it, and so early that another node has not got all others' yet: the one there, or (it guesses the
 * number) the one here. The allocation ends as if it had been later. */
static void freed_while_others_allocate(void)
{
    for (int is_here = 0; is_here < 2; is_here++) {
        struct scene s;
        scene_open(&s);
        allocation_begins(&s);
        if (is_here) {
            client_frees(&s);
            (void)other_heard(&s.other, PEER_FREE, id_number(&s.id));
        }
        other_says_memory(&s, memory_make());
        if (!is_here)
            other_says_free(&s);
        client_answered(s.client, FCC_MSG_BUFFER_ALLOC, 0, "");
        if (!is_here)
            client_frees(&s);
        CHECK(bed_balanced(&s.b, s.before));
        client_is_served(s.client);
        scene_close(&s);
    }
}

/* The other node's MEMORY, FREE and all come before the rank here has begun: its part of the turn is kept until then. */
static void freed_before_we_allocate(void)
{
    struct scene s;

    scene_open(&s);
    other_allocates(&s);
    other_says_memory(&s, memory_make());
    other_says_free(&s);
    client_is_served(s.client);
    client_allocates(&s);
    client_answered(s.client, FCC_MSG_BUFFER_ALLOC, 0, "");
    client_frees(&s);
    CHECK(bed_balanced(&s.b, s.before));
    scene_close(&s);
}

/* ---- what makes no sense ---- */

/* The connection to the other node ends, and with it the communicator; the worker goes on. */
static void breaks(struct scene *s, uint16_t of, const char *words)
{
    client_answered(s->client, of, -EPROTO, words);
    CHECK(closed(s->other.out));
    client_is_served(s->client);
    scene_close(s);
}

static void memory_that_makes_no_sense(void)
{
    struct peer_memory wrong[] = {memory_make(), memory_make(), memory_make(), memory_make(), memory_make()};

    wrong[1].turn = 1;
    wrong[2].turn = UINT64_MAX;
    wrong[3].rank = HERE;
    wrong[4].rank = 64;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct scene s;
        scene_open(&s);
        client_allocates(&s);
        (void)other_heard(&s.other, PEER_SUBMIT, id_number(&s.id));
        if (i == 0)
            other_says_memory(&s, memory_make()); /* twice: the allocation has not begun, the rank there has not come to it */
        other_says_memory(&s, wrong[i]);
        breaks(&s, FCC_MSG_BUFFER_ALLOC, "memory of rank");
    }
}

/* Messages that have a text and a status. */
static const struct {
    enum peer_type type;
    size_t length, text, status;
} kinds[] = {
    {PEER_SUBMIT, sizeof(struct peer_submit), offsetof(struct peer_submit, request.text),
     offsetof(struct peer_submit, request.status)},
    {PEER_MEMORY, sizeof(struct peer_memory), offsetof(struct peer_memory, text), offsetof(struct peer_memory, status)},
    {PEER_FAIL, sizeof(struct peer_turn), offsetof(struct peer_turn, text), offsetof(struct peer_turn, status)},
    {PEER_LEAVE, sizeof(struct peer_turn), offsetof(struct peer_turn, text), offsetof(struct peer_turn, status)},
    {PEER_ABORT, sizeof(struct peer_turn), offsetof(struct peer_turn, text), offsetof(struct peer_turn, status)},
    {PEER_REFUSE, sizeof(struct peer_refuse), offsetof(struct peer_refuse, text), offsetof(struct peer_refuse, status)}};

/* A positive status, and one beyond all of errno's, of which the negative is no int. */
static void statuses_that_are_none(void)
{
    static const int32_t none[] = {1, INT32_MAX, INT32_MIN, -4096};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        static union {
            struct peer_msg msg;
            unsigned char bytes[4096];
        } m;
        struct scene s;
        scene_open(&s);
        client_allocates(&s);
        (void)other_heard(&s.other, PEER_SUBMIT, id_number(&s.id));
        memset(&m, 0, sizeof(m));
        memcpy(m.bytes + kinds[i].status, &none[i % 4], sizeof(none[0]));
        other_say(&s.other, &m.msg, kinds[i].type, id_number(&s.id), kinds[i].length);
        breaks(&s, FCC_MSG_BUFFER_ALLOC, "allowed are 0 and negative errno values");
    }
}

/* A message of that type, as long as it should be; its text, in the last bytes of `length`, has no end. */
static void texts_without_an_end(void)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        static union {
            struct peer_msg msg;
            struct peer_turn turn;
            unsigned char bytes[4096];
        } m;
        struct scene s;
        scene_open(&s);
        client_allocates(&s);
        (void)other_heard(&s.other, PEER_SUBMIT, id_number(&s.id));
        memset(&m, 0, sizeof(m));
        m.turn.rank = THERE;
        memset(m.bytes + kinds[i].text, 'x', FCC_TEXT_MAX);
        other_say(&s.other, &m.msg, kinds[i].type, id_number(&s.id), kinds[i].length);
        breaks(&s, FCC_MSG_BUFFER_ALLOC, "a text without an end");
    }
}

/* Requests and types that there are not; lengths that are not theirs. */
static void requests_that_make_no_sense(void)
{
    struct peer_submit right = {.request.rank = THERE, .request.kind = SUBMISSION_ALLOC, .request.alloc_bytes = BYTES},
                       wrong[4] = {right, right, right, right};

    wrong[0].request.kind = SUBMISSION_ALLOC + 1;
    wrong[1].request.rank = INT32_MAX;
    wrong[2].request.rank = HERE;
    wrong[3].request.rank = -1;
    for (size_t i = 0; i < 7; i++) {
        struct scene s;
        struct peer_submit m = i < 4 ? wrong[i] : right;
        scene_open(&s);
        client_allocates(&s);
        (void)other_heard(&s.other, PEER_SUBMIT, id_number(&s.id));
        if (i < 4)
            other_say(&s.other, &m.msg, PEER_SUBMIT, id_number(&s.id), sizeof(m));
        else if (i == 4)
            other_say(&s.other, &m.msg, PEER_TYPES, id_number(&s.id), sizeof(m));
        else if (i == 5)
            other_say(&s.other, &m.msg, PEER_MEMORY, id_number(&s.id), sizeof(m));
        else
            other_say(&s.other, &m.msg, PEER_SUBMIT, id_number(&s.id), sizeof(m) - 8);
        breaks(&s, FCC_MSG_BUFFER_ALLOC, i < 4 ? "a request of rank" : "a message of type");
    }
}

/* Turns that cannot be: nodes are at most one apart. */
static void turns_that_make_no_sense(void)
{
    static const struct {
        enum peer_type type;
        uint64_t turn;
        const char *words;
    } wrong[] = {{PEER_STAGED, 0, "staged: turn 0: 0 have ended here"},
                 {PEER_STAGED, 2, "staged: turn 2: 0 have ended here"},
                 {PEER_STAGED, UINT64_MAX, "staged: turn 18446744073709551615"},
                 {PEER_FAIL, 1, "fail: turn 1: 0 have ended here"},
                 {PEER_FAIL, UINT64_MAX, "fail: turn"},
                 {PEER_LEAVE, 2, "leave: turn 2: 0 have ended here"},
                 {PEER_LEAVE, UINT64_MAX, "leave: turn"}};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct peer_turn m = {.turn = wrong[i].turn, .rank = THERE, .status = wrong[i].type == PEER_FAIL ? -EIO : 0};
        struct scene s;
        scene_open(&s);
        client_allocates(&s);
        (void)other_heard(&s.other, PEER_SUBMIT, id_number(&s.id));
        other_say(&s.other, &m.msg, wrong[i].type, id_number(&s.id), sizeof(m));
        breaks(&s, FCC_MSG_BUFFER_ALLOC, wrong[i].words);
    }
}

/* One that has made room, or has failed, in the turn that both are in, or leaves when it has ended it, is believed. */
static void turns_that_make_sense(void)
{
    struct peer_turn staged = {.turn = 1}, leave = {.turn = 1, .rank = THERE};
    struct scene s;

    scene_open(&s);
    other_say(&s.other, &staged.msg, PEER_STAGED, id_number(&s.id), sizeof(staged));
    other_say(&s.other, &staged.msg, PEER_STAGED, id_number(&s.id), sizeof(staged)); /* twice: no more than once */
    other_say(&s.other, &leave.msg, PEER_LEAVE, id_number(&s.id), sizeof(leave));
    other_allocates(&s);
    other_says_memory(&s, memory_make());
    client_allocates(&s);
    client_answered(s.client, FCC_MSG_BUFFER_ALLOC, 0, "");
    client_is_served(s.client);
    scene_close(&s);
}

/* A rank leaves as its node has heard that another one has left. That node's own message is still on its way here: the rank here hears who was
 * first, at once, or when the turn has ended that the leaving rank took part in. */
static void reason_of_a_leave(void)
{
    for (uint64_t turn = 0; turn < 2; turn++) {
        struct peer_turn leave = {
            .turn = turn, .rank = THERE, .status = -ECONNABORTED, .text = "rank 5 (pid 9 on node a:1) has left"};
        struct scene s;
        scene_open(&s);
        if (turn == 0)
            other_allocates(&s);
        other_say(&s.other, &leave.msg, PEER_LEAVE, id_number(&s.id), sizeof(leave));
        if (turn == 1) {
            other_allocates(&s);
            other_says_memory(&s, memory_make());
            client_allocates(&s);
            client_answered(s.client, FCC_MSG_BUFFER_ALLOC, 0, "");
        }
        client_allocates(&s);
        client_answered(s.client, FCC_MSG_BUFFER_ALLOC, -ECONNABORTED, "^rank 5 (pid 9 on node a:1) has left");
        client_is_served(s.client);
        scene_close(&s);
    }
}

/* ---- while it forms ---- */

/* The communicator forms at the other node, which knows of the rank here and, if `formed`, has said who has joined. */
static void forming_open(struct scene *s, bool formed)
{
    struct peer_joined joined = {.rank = HERE};
    struct peer_formed f = {.nranks = RANKS, .nnodes = RANKS, .time_limit_ms = 30000, .node_of = {HERE, THERE}};

    *s = (struct scene){.other = {.address = "192.0.2.2:7000", .who = {7, 1}, .serial = 1}};
    s->id = id_make(1, s->other.address);
    bed_start(&s->b, IDLE);
    s->client = bed_client(&s->b);
    client_join(s->client, &s->id, RANKS, HERE);
    bed_connect(&s->b, &s->other, NULL);
    (void)other_heard(&s->other, PEER_JOIN, id_number(&s->id));
    (void)bed_hand(&s->b, &s->other, PEER_MESSAGES);
    other_say(&s->other, &joined.msg, PEER_JOINED, id_number(&s->id), sizeof(joined));
    if (!formed)
        return;
    f.workers[HERE] = (struct incarnation){BED_BROKER, 1};
    f.workers[THERE] = s->other.who;
    (void)snprintf(f.addresses[HERE], FCC_NODE_MAX, "%s", BED_ADDRESS);
    (void)snprintf(f.addresses[THERE], FCC_NODE_MAX, "%s", s->other.address);
    other_say(&s->other, &f.msg, PEER_FORMED, id_number(&s->id), sizeof(f));
}

/* Answers for ranks that have not asked, and nodes that there are not, or that it is not. */
static void numbers_that_make_no_sense(void)
{
    static const struct {
        enum peer_type type;
        int32_t number;
        bool formed;
        const char *words;
    } wrong[] = {{PEER_JOINED, THERE, false, "joined: rank 1: none that has joined here"},
                 {PEER_JOINED, -1, false, "joined: rank -1"},
                 {PEER_JOINED, RANKS, false, "joined: rank 2"},
                 {PEER_JOINED, INT32_MAX, false, "joined: rank 2147483647"},
                 {PEER_JOINED, THERE, true, "joined: rank 1"},
                 {PEER_REFUSE, THERE, false, "refuse: rank 1: none that has joined here"},
                 {PEER_REFUSE, INT32_MIN, false, "refuse: rank -2147483648"},
                 {PEER_HERE, RANKS, false, "here: node 2: not its number"},
                 {PEER_HERE, 64, false, "here: node 64"},
                 {PEER_HERE, -1, false, "here: node 4294967295"},
                 {PEER_HERE, INT32_MAX, true, "here: node 2147483647"},
                 {PEER_HERE, HERE, true, "here: node 0: not its number among the nodes of 2 ranks"}};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        union {
            struct peer_msg msg;
            struct peer_joined joined;
            struct peer_refuse refuse;
            struct peer_here here;
        } m = {.msg = {0}};
        struct scene s;
        size_t length = wrong[i].type == PEER_JOINED   ? sizeof(m.joined)
                        : wrong[i].type == PEER_REFUSE ? sizeof(m.refuse)
                                                       : sizeof(m.here);
        forming_open(&s, wrong[i].formed);
        memset(&m, 0, sizeof(m));
        if (wrong[i].type == PEER_JOINED)
            m.joined.rank = wrong[i].number;
        else if (wrong[i].type == PEER_REFUSE)
            m.refuse.rank = wrong[i].number, m.refuse.status = -EACCES;
        else
            m.here.node = (uint32_t)wrong[i].number;
        other_say(&s.other, &m.msg, wrong[i].type, id_number(&s.id), length);
        client_joined(s.client, -EPROTO, wrong[i].words);
        CHECK(closed(s.other.out));
        client_is_served(s.client);
        scene_close(&s);
    }
}

int main(void)
{
    static const struct test tests[] = {
        {"freed_while_others_allocate", freed_while_others_allocate, 0},
        {"freed_before_we_allocate", freed_before_we_allocate, 0},
        {"memory_that_makes_no_sense", memory_that_makes_no_sense, 0},
        {"texts_without_an_end", texts_without_an_end, 0},
        {"statuses_that_are_none", statuses_that_are_none, 0},
        {"requests_that_make_no_sense", requests_that_make_no_sense, 60},
        {"turns_that_make_no_sense", turns_that_make_no_sense, 60},
        {"reason_of_a_leave", reason_of_a_leave, 0},
        {"turns_that_make_sense", turns_that_make_sense, 0},
        {"numbers_that_make_no_sense", numbers_that_make_no_sense, 60},
    };

    return tests_run("node_messages", TESTS(tests));
}
