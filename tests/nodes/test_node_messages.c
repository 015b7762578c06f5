/* SPDX-License-Identifier: MIT
 *
 * test_node_messages.c - what a worker on another node may say at a bad moment, or wrongly: the worker here believes nothing of it. It goes on,
 * with that node or without it, and its memory is as it was.
 */
#include "tests/nodes/worker_bed.h"

#define IDLE "60000"
#define BYTES 65536u

enum { HERE, THERE, RANKS };

/* A communicator of two ranks that runs: one here, of this client, and one on the other node. */
struct scene {
    struct bed b;
    int client;
    struct fcc_unique_id id;
    struct other other;
    uint64_t before; /* charged, when it had formed */
};

/* The client's handles are numbers: its communicator is 1, and then its buffers. */
enum { COMM = 1, BUFFER = 2 };

/* has_data: the other's connection for data comes before there is a communicator. */
static void scene_open_with(struct scene *s, bool has_data)
{
    struct peer_msg ready = {0};

    *s = (struct scene){.other = {.address = "192.0.2.2:7000", .who = {7, 1}, .serial = 1}, .id = id_make(1, BED_ADDRESS)};
    bed_start(&s->b, IDLE);
    s->client = bed_client(&s->b);
    client_join(s->client, &s->id, RANKS, HERE);
    (void)bed_hand(&s->b, &s->other, PEER_MESSAGES);
    if (has_data)
        (void)bed_hand(&s->b, &s->other, PEER_DATA);
    other_say_join(&s->other, &s->id, RANKS, THERE, 30000);
    bed_connect(&s->b, &s->other, &s->other.who);
    for (;;) { /* the rank here may join before that one or after it */
        const struct peer_msg *m = other_hear(&s->other);
        CHECK(m && m->comm == id_number(&s->id) && (m->type == PEER_JOINED || m->type == PEER_FORMED));
        if (m->type == PEER_FORMED)
            break;
    }
    other_say(&s->other, &ready, PEER_READY, id_number(&s->id), sizeof(ready));
    (void)other_heard(&s->other, PEER_GO, id_number(&s->id));
    client_joined(s->client, 0, "");
    s->before = bed_balance(&s->b);
}

static void scene_open(struct scene *s)
{
    scene_open_with(s, true);
}

static void scene_close(struct scene *s)
{
    (void)close(s->client);
    CHECK(kill(s->b.pid, SIGKILL) == 0 && waitpid(s->b.pid, NULL, 0) == s->b.pid);
    (void)close(s->b.control);
    other_close(&s->other);
}

/* ---- symmetric allocations ---- */

static void client_allocates(const struct scene *s)
{
    struct fcc_buffer_alloc_msg m = {
        .msg = {.type = FCC_MSG_BUFFER_ALLOC, .id = 5}, .comm = COMM, .kind = FCC_BUFFER_SYMMETRIC, .bytes = BYTES};

    CHECK(msg_send(s->client, &m.msg, sizeof(m), NULL, 0) == 0);
}

static void client_frees(const struct scene *s)
{
    struct fcc_buffer_free_msg m = {.msg = {.type = FCC_MSG_BUFFER_FREE, .id = 6}, .buffer = BUFFER};

    CHECK(msg_send(s->client, &m.msg, sizeof(m), NULL, 0) == 0);
    client_answered(s->client, FCC_MSG_BUFFER_FREE, 0, "");
}

/* The rank there comes to the allocation. */
static void other_allocates(const struct scene *s)
{
    struct peer_submit m = {.request.rank = THERE, .request.kind = SUBMISSION_ALLOC, .request.alloc_bytes = BYTES};

    other_say(&s->other, &m.msg, PEER_SUBMIT, id_number(&s->id), sizeof(m));
}

static struct peer_memory memory_make(void)
{
    return (struct peer_memory){.rank = THERE, .handle = 17, .bytes = BYTES};
}

static void other_says_memory(const struct scene *s, struct peer_memory m)
{
    other_say(&s->other, &m.msg, PEER_MEMORY, id_number(&s->id), sizeof(m));
}

static void other_says_free(const struct scene *s)
{
    struct peer_free m = {.rank = THERE, .handle = 17};

    other_say(&s->other, &m.msg, PEER_FREE, id_number(&s->id), sizeof(m));
}

/* The worker comes to the allocation, and its part is there. The next message that it waits for is the other's MEMORY. */
static void allocation_begins(struct scene *s)
{
    client_allocates(s);
    (void)other_heard(&s->other, PEER_SUBMIT, id_number(&s->id));
    other_allocates(s);
    (void)other_heard(&s->other, PEER_MEMORY, id_number(&s->id));
}

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

/* ---- over the connection for data ---- */

static void frame_send(const struct scene *s, struct net_frame f)
{
    f.magic = NET_FRAME_MAGIC;
    f.version = NET_FRAME_VERSION;
    (void)pthread_mutex_lock(&bed_living.lock); /* not into a beat */
    CHECK(send(s->other.data, &f, sizeof(f), MSG_NOSIGNAL) == sizeof(f));
    (void)pthread_mutex_unlock(&bed_living.lock);
}

/* In a frame that says that it has that many bytes. */
static void rail_says_of(const struct scene *s, struct peer_msg *m, enum peer_type type, size_t length, size_t framed)
{
    unsigned char bytes[sizeof(struct net_frame) + sizeof(struct peer_submit) + 64] = {0};
    struct net_frame f = {
        .magic = NET_FRAME_MAGIC, .version = NET_FRAME_VERSION, .kind = NET_FRAME_MESSAGE, .row_bytes = framed};

    m->length = (uint32_t)length;
    m->type = (uint16_t)type;
    m->comm = id_number(&s->id);
    m->from = BED_THERE;
    m->to = *bed_comm_heard(m->comm);
    CHECK(sizeof(f) + framed <= sizeof(bytes));
    memcpy(bytes, &f, sizeof(f));
    memcpy(bytes + sizeof(f), m, length < framed ? length : framed);
    (void)pthread_mutex_lock(&bed_living.lock);
    CHECK(send(s->other.data, bytes, sizeof(f) + framed, MSG_NOSIGNAL) == (ssize_t)(sizeof(f) + framed));
    (void)pthread_mutex_unlock(&bed_living.lock);
}

static void rail_says(const struct scene *s, struct peer_msg *m, enum peer_type type, size_t length)
{
    rail_says_of(s, m, type, length, length);
}

static void moved_say(const struct scene *s)
{
    struct peer_msg m = {0};

    other_say(&s->other, &m, PEER_MOVED, 0, sizeof(m));
}

/* What comes there before the other connection's last message has been read is handled after it: a part is freed after it was made. */
static void order_of_two_connections(void)
{
    struct peer_free freed = {.rank = THERE, .handle = 17};
    struct scene s;

    scene_open(&s);
    allocation_begins(&s);
    rail_says(&s, &freed.msg, PEER_FREE, sizeof(freed));
    client_is_served(s.client);
    other_says_memory(&s, memory_make());
    moved_say(&s);
    client_answered(s.client, FCC_MSG_BUFFER_ALLOC, 0, "");
    client_frees(&s);
    CHECK(bed_balanced(&s.b, s.before));
    struct peer_turn leave = {.turn = 1, .rank = THERE}; /* and from then on all comes there */
    rail_says(&s, &leave.msg, PEER_LEAVE, sizeof(leave));
    client_allocates(&s);
    client_answered(s.client, FCC_MSG_BUFFER_ALLOC, -ECONNABORTED, "has left");
    client_is_served(s.client);
    scene_close(&s);
}

/* The other worker ends in good order, and the connections end one by one, in an order that another way through the network makes: what it has
 * said over the one for data counts, which may even come when the others have ended. */
static void last_words(void)
{
    enum { OUT = 1, IN = 2, IN_DATA = 4, LATE = 8 };
    static const int ends[] = {OUT, OUT | IN, IN_DATA, OUT | IN | IN_DATA, OUT | LATE, OUT | IN | IN_DATA | LATE};

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        struct peer_turn leave = {.rank = THERE};
        struct scene s;
        scene_open_with(&s, !(ends[i] & LATE));
        moved_say(&s);
        if (ends[i] & IN_DATA)
            bed_close(&s.other.in_data);
        if (ends[i] & IN)
            bed_close(&s.other.in);
        if (ends[i] & OUT)
            bed_close(&s.other.out);
        for (int n = 0; n < 20; n++) /* turns, in which it sees the ends */
            client_is_served(s.client);
        if (ends[i] & LATE)
            (void)bed_hand(&s.b, &s.other, PEER_DATA);
        rail_says(&s, &leave.msg, PEER_LEAVE, sizeof(leave));
        bed_close(&s.other.data);
        client_is_served(s.client);
        client_allocates(&s);
        client_answered(s.client, FCC_MSG_BUFFER_ALLOC, -ECONNABORTED, "has left the communicator");
        scene_close(&s);
    }
}

static struct net_frame early_make(const struct scene *s, uint32_t node, uint64_t turn, uint64_t length)
{
    return (struct net_frame){.kind = NET_FRAME_EARLY,
                              .comm = id_number(&s->id) + *bed_comm_heard(id_number(&s->id)),
                              .rank = HERE,
                              .region = node,
                              .offset = turn,
                              .stride = 1,
                              .row_bytes = length};
}

static void rails_that_make_no_sense(void)
{
    static const char *const words[] = {"it has said so before",
                                        "a message of 24 bytes: it has 32",
                                        "a message of 40 bytes: it has 24",
                                        "there is no such message",
                                        "a message that is none",
                                        "3 turns have ended there, and 0 here",
                                        "early frames that nobody may send", /* a turn that is too far away */
                                        "early frames that nobody may send", /* a node that there is not */
                                        "early frames that nobody may send", /* too long */
                                        "a region that is not known here"};  /* nothing has run: there is no room */

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        struct peer_submit submit = {
            .request.rank = THERE, .request.kind = SUBMISSION_ALLOC, .request.alloc_bytes = BYTES, .ended = 3};
        struct scene s;
        scene_open(&s);
        client_allocates(&s);
        (void)other_heard(&s.other, PEER_SUBMIT, id_number(&s.id));
        moved_say(&s);
        if (i == 0)
            moved_say(&s);
        else if (i < 3)
            rail_says_of(&s, &submit.msg, PEER_READY, i == 1 ? 24 : 40, i == 1 ? 32 : 24);
        else if (i == 3)
            rail_says(&s, &submit.msg, PEER_MOVED, sizeof(struct peer_msg));
        else if (i == 4)
            rail_says_of(&s, &submit.msg, PEER_READY, 16, 16);
        else if (i == 5)
            rail_says(&s, &submit.msg, PEER_SUBMIT, sizeof(submit));
        else
            frame_send(&s, early_make(&s, i == 7 ? 8 : 0, i == 6 ? 3 : 1, i == 8 ? 1u << 20 : 64));
        client_answered(s.client, FCC_MSG_BUFFER_ALLOC, -EPROTO, words[i]);
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
        {"order_of_two_connections", order_of_two_connections, 0},
        {"last_words", last_words, 60},
        {"rails_that_make_no_sense", rails_that_make_no_sense, 60},
        {"numbers_that_make_no_sense", numbers_that_make_no_sense, 60},
    };

    return tests_run("node_messages", TESTS(tests));
}
