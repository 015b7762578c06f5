/* SPDX-License-Identifier: MIT
 *
 * test_node_frames.c - what a worker on another node says over the connection for data, wrongly, late, or when the other connections have ended: what
 * makes sense counts in its order, and of the rest the worker here believes nothing.
 */
#include "tests/nodes/message_scene.h"

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

int main(void)
{
    static const struct test tests[] = {
        {"order_of_two_connections", order_of_two_connections, 0},
        {"last_words", last_words, 60},
        {"rails_that_make_no_sense", rails_that_make_no_sense, 60},
    };

    return tests_run("node_frames", TESTS(tests));
}
