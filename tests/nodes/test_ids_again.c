/* SPDX-License-Identifier: MIT
 *
 * test_ids_again.c - a unique id serves again after its communicator has ended. Whatever another node has said of that one, and comes late,
 * is not taken for the next one's: neither while that forms nor when it runs, at the node where they meet or at another.
 */
#include "daemon/worker/nodes/inside.h"
#include "tests/nodes/worker_bed.h"

#define IDLE "60000"
#define BYTES 65536u

/* Ranks 0 and 2 are here, of one client; rank 1 is there. Nodes are numbered in the order of their first ranks. */
enum { THERE = 1, RANKS = 3, NODE_HERE = 0, NODE_THERE = 1 };

struct scene {
    struct bed b;
    int client;
    bool meets_here; /* where the ranks meet: at the bed's worker, or at the other one */
    struct fcc_unique_id id;
    struct other other;
    uint32_t handle; /* the newest of the client's */
    uint32_t here;   /* what the worker calls the communicator: before it has said so, 0 */
    uint32_t there;  /* ... and the other one */
    uint32_t before; /* what the worker called the one before; 0: there was none */
    unsigned syncs;
};

static void scene_open(struct scene *s, bool meets_here)
{
    *s = (struct scene){.other = {.address = "192.0.2.2:7000", .who = {7, 1}, .serial = 1}, .meets_here = meets_here};
    s->id = id_make(1, meets_here ? BED_ADDRESS : s->other.address);
    bed_start(&s->b, IDLE);
    s->client = bed_client(&s->b);
    s->there = 40;
}

static void scene_close(struct scene *s)
{
    (void)close(s->client);
    CHECK(kill(s->b.pid, SIGKILL) == 0 && waitpid(s->b.pid, NULL, 0) == s->b.pid);
    (void)close(s->b.control);
    other_close(&s->other);
}

static const struct peer_msg *heard(struct scene *s, enum peer_type type)
{
    return other_heard(&s->other, type, id_number(&s->id));
}

static void say(const struct scene *s, struct peer_msg *m, enum peer_type type, size_t length)
{
    other_say_of(&s->other, m, type, id_number(&s->id), s->there, type == PEER_JOIN ? 0 : s->here, length);
}

/* The worker has done with all that the other one has said: it answers what comes then, and has said nothing else. */
static void sync_with(struct scene *s)
{
    const struct fcc_unique_id another = id_make((unsigned char)(10 + s->syncs++), BED_ADDRESS);

    other_say_join(&s->other, &another, 2, 1, 30000);
    (void)other_heard(&s->other, PEER_JOINED, id_number(&another));
}

/* ---- what comes late ---- */

static struct peer_formed formed_make(const struct scene *s)
{
    struct peer_formed f = {.nranks = RANKS, .nnodes = 2, .time_limit_ms = 30000, .node_of = {0, 1, 0}};

    f.workers[NODE_HERE] = (struct incarnation){BED_BROKER, 1};
    f.workers[NODE_THERE] = s->other.who;
    f.comms[NODE_HERE] = s->here;
    f.comms[NODE_THERE] = s->there;
    (void)snprintf(f.addresses[NODE_HERE], FCC_NODE_MAX, "%s", BED_ADDRESS);
    (void)snprintf(f.addresses[NODE_THERE], FCC_NODE_MAX, "%s", s->other.address);
    return f;
}

/* Everything that one worker says to another, of the communicator that s->here and s->there name. */
static void all_said(const struct scene *s)
{
    struct peer_joined joined = {.rank = 0};
    struct peer_refuse refuse = {.rank = 0, .status = -EACCES, .text = "late"};
    struct peer_formed formed = formed_make(s);
    struct peer_here here = {.node = NODE_THERE};
    struct peer_msg none = {0};
    struct peer_submit submit = {.request.rank = THERE, .request.kind = SUBMISSION_ALLOC, .request.alloc_bytes = BYTES / 2};
    struct peer_memory memory = {.rank = THERE, .handle = 16, .bytes = BYTES / 2};
    struct peer_free freed = {.rank = THERE, .handle = 17};
    struct peer_result result = {.rank = THERE, .handle = 17, .bytes = BYTES};
    struct peer_turn turn = {.turn = 1, .rank = THERE, .text = "late"},
                     failed = {.status = -EIO, .rank = THERE, .text = "late"};
    const struct {
        struct peer_msg *m;
        enum peer_type type;
        size_t length;
    } all[] = {{&joined.msg, PEER_JOINED, sizeof(joined)}, {&refuse.msg, PEER_REFUSE, sizeof(refuse)},
               {&formed.msg, PEER_FORMED, sizeof(formed)}, {&here.msg, PEER_HERE, sizeof(here)},
               {&none, PEER_READY, sizeof(none)},          {&none, PEER_GO, sizeof(none)},
               {&submit.msg, PEER_SUBMIT, sizeof(submit)}, {&memory.msg, PEER_MEMORY, sizeof(memory)},
               {&result.msg, PEER_RESULT, sizeof(result)}, {&freed.msg, PEER_FREE, sizeof(freed)},
               {&turn.msg, PEER_STAGED, sizeof(turn)},     {&failed.msg, PEER_FAIL, sizeof(failed)},
               {&turn.msg, PEER_LEAVE, sizeof(turn)},      {&failed.msg, PEER_ABORT, sizeof(failed)}};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        say(s, all[i].m, all[i].type, all[i].length);
}

/* With the data: so many turns have ended there. */
static void done_said(const struct scene *s, uint64_t turns)
{
    struct net_frame f = (struct net_frame){.magic = NET_FRAME_MAGIC,
                                            .version = NET_FRAME_VERSION,
                                            .kind = NET_FRAME_FLAG,
                                            .comm = id_number(&s->id) + s->here,
                                            .rank = 0,
                                            .region = FLAG_DONE + done_number(NODE_THERE, 1, 0),
                                            .offset = turns};

    CHECK(send(s->other.data, &f, sizeof(f), MSG_NOSIGNAL) == sizeof(f));
}

/* All of it, of the communicator before, and its last without saying to which it belongs (nothing had come from here yet). */
static void late_said(struct scene *s)
{
    struct peer_turn aborted = {.status = -EIO, .text = "late"};
    struct scene before = *s;

    if (!s->before)
        return;
    before.here = s->before;
    before.there = s->there - 1;
    all_said(&before);
    before.here = 0;
    say(&before, &aborted.msg, PEER_ABORT, sizeof(aborted));
    sync_with(s);
}

/* ---- a communicator's life ---- */

static void other_joins(struct scene *s)
{
    struct peer_join m = {
        .unique_id = s->id, .nranks = RANKS, .rank = THERE, .time_limit_ms = 30000, .device_kind = FCC_DEVICE_CPU, .pid = 4711};

    say(s, &m.msg, PEER_JOIN, sizeof(m));
}

/* The ranks meet here. */
static void forms_here(struct scene *s, bool is_first)
{
    struct peer_msg ready = {0};

    client_join(s->client, &s->id, RANKS, 0);
    if (is_first) {
        (void)bed_hand(&s->b, &s->other, PEER_MESSAGES);
        (void)bed_hand(&s->b, &s->other, PEER_DATA);
    }
    late_said(s);
    other_joins(s);
    if (is_first)
        bed_connect(&s->b, &s->other, &s->other.who);
    const struct peer_msg *m = heard(s, PEER_JOINED);
    CHECK(m->to == s->there && m->from > s->before);
    s->here = m->from;
    late_said(s);
    client_join(s->client, &s->id, RANKS, 2);
    const struct peer_formed *f = (const struct peer_formed *)heard(s, PEER_FORMED);
    CHECK(f->comms[NODE_HERE] == s->here && f->comms[NODE_THERE] == s->there && f->msg.to == s->there);
    late_said(s);
    say(s, &ready, PEER_READY, sizeof(ready));
    CHECK(heard(s, PEER_GO)->to == s->there);
}

/* They meet there. */
static void forms_there(struct scene *s, bool is_first)
{
    struct peer_joined joined = {.rank = 0};
    struct peer_msg go = {0};

    client_join(s->client, &s->id, RANKS, 0);
    if (is_first)
        bed_connect(&s->b, &s->other, NULL);
    const struct peer_msg *m = heard(s, PEER_JOIN);
    CHECK(m->from > s->before);
    s->here = m->from;
    if (is_first) {
        (void)bed_hand(&s->b, &s->other, PEER_MESSAGES);
        (void)bed_hand(&s->b, &s->other, PEER_DATA);
    }
    late_said(s);
    say(s, &joined.msg, PEER_JOINED, sizeof(joined));
    client_join(s->client, &s->id, RANKS, 2);
    CHECK(heard(s, PEER_JOIN)->from == s->here);
    joined.rank = 2;
    say(s, &joined.msg, PEER_JOINED, sizeof(joined));
    late_said(s);
    struct peer_formed f = formed_make(s);
    say(s, &f.msg, PEER_FORMED, sizeof(f));
    CHECK(heard(s, PEER_READY)->to == s->there);
    late_said(s);
    say(s, &go, PEER_GO, sizeof(go));
}

/* All ranks come to an allocation. */
static void all_allocate(struct scene *s)
{
    struct peer_submit m = {.request.rank = THERE, .request.kind = SUBMISSION_ALLOC, .request.alloc_bytes = BYTES};

    for (uint32_t i = 0; i < 2; i++) {
        struct fcc_buffer_alloc_msg ask = {.msg = {.type = FCC_MSG_BUFFER_ALLOC, .id = 5},
                                           .comm = s->handle - 1 + i,
                                           .kind = FCC_BUFFER_SYMMETRIC,
                                           .bytes = BYTES};
        CHECK(msg_send(s->client, &ask.msg, sizeof(ask), NULL, 0) == 0);
        CHECK(heard(s, PEER_SUBMIT)->to == s->there);
    }
    say(s, &m.msg, PEER_SUBMIT, sizeof(m));
}

static void allocation_ends(struct scene *s, uint64_t turn)
{
    struct peer_memory memory = {.rank = THERE, .handle = 17 + (uint32_t)turn, .bytes = BYTES, .turn = turn};

    for (int i = 0; i < 2; i++)
        CHECK(!((const struct peer_memory *)heard(s, PEER_MEMORY))->status);
    say(s, &memory.msg, PEER_MEMORY, sizeof(memory));
    for (int i = 0; i < 2; i++)
        client_answered(s->client, FCC_MSG_BUFFER_ALLOC, 0, "");
}

/* Two turns, of which the second waits for the other node's end of the first: the end of another communicator's is none. */
static void runs(struct scene *s, bool is_first)
{
    struct scene before = *s;

    before.here = s->before;
    for (int i = 0; i < 2; i++)
        client_joined(s->client, 0, "");
    s->handle += 2;
    late_said(s);
    all_allocate(s);
    allocation_ends(s, 0);
    if (!is_first)
        done_said(&before, 100);
    (void)usleep(20000); /* for what should not be: a turn that begins by that */
    all_allocate(s);
    late_said(s);
    done_said(s, 1);
    allocation_ends(s, 1);
    s->handle += 4; /* the buffers */
}

static void ends(struct scene *s)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct fcc_comm_msg destroy = {.msg = {.type = FCC_MSG_COMM_DESTROY, .id = 7}, .comm = s->handle - 5 + i};
        CHECK(msg_send(s->client, &destroy.msg, sizeof(destroy), NULL, 0) == 0);
        client_answered(s->client, FCC_MSG_COMM_DESTROY, 0, "");
    }
}

/* The worker tells of its buffers' ends, in whatever order, and of its ranks' ends. */
static void ends_heard(struct scene *s)
{
    for (int left = 0; left < 2;) {
        const struct peer_msg *m = other_hear(&s->other);
        CHECK(m && m->comm == id_number(&s->id) && m->to == s->there && (m->type == PEER_LEAVE || m->type == PEER_FREE));
        left += m->type == PEER_LEAVE;
    }
}

static void again(bool meets_here)
{
    struct scene s;

    scene_open(&s, meets_here);
    for (int round = 0; round < 3; round++) {
        s.there++;
        s.before = s.here;
        s.here = 0;
        if (meets_here)
            forms_here(&s, !round);
        else
            forms_there(&s, !round);
        runs(&s, !round);
        ends(&s);
        ends_heard(&s); /* of the other's end nothing has come here */
    }
    client_is_served(s.client);
    scene_close(&s);
}

static void where_they_meet(void)
{
    again(true);
}

static void where_they_do_not_meet(void)
{
    again(false);
}

/* The other node's ranks have come to the end of an allocation, one of them has left, and who waits for it there ends the communicator: the
 * allocation still ends well here, where it runs, and what comes then is told why. */
static void ends_behind_what_runs(void)
{
    struct peer_turn left = {.turn = 1, .status = -ECONNABORTED, .text = "rank 1 (pid 4711) has left the communicator"};
    struct scene s;

    scene_open(&s, true);
    forms_here(&s, true);
    for (int i = 0; i < 2; i++)
        client_joined(s.client, 0, "");
    s.handle += 2;
    all_allocate(&s);
    say(&s, &left.msg, PEER_ABORT, sizeof(left));
    allocation_ends(&s, 0);
    struct fcc_buffer_alloc_msg ask = {
        .msg = {.type = FCC_MSG_BUFFER_ALLOC, .id = 5}, .comm = s.handle - 1, .kind = FCC_BUFFER_SYMMETRIC, .bytes = BYTES};
    CHECK(msg_send(s.client, &ask.msg, sizeof(ask), NULL, 0) == 0);
    client_answered(s.client, FCC_MSG_BUFFER_ALLOC, -ECONNABORTED, "rank 1 (pid 4711) has left the communicator (node ");
    client_is_served(s.client);
    scene_close(&s);
}

/* A third node tells of the end while it forms, and the rank here joins anew: the root, which may not have heard of the end, hears of it from here
 * before the JOIN. */
static void told_by_another(void)
{
    struct other root = {.address = "192.0.2.2:7000", .who = {7, 1}, .serial = 1},
                 third = {.address = "192.0.2.3:7000", .who = {9, 1}, .serial = 1};
    const struct fcc_unique_id id = id_make(1, root.address);
    struct peer_joined joined = {.rank = 1};
    struct peer_turn failed = {.status = -EIO, .text = "no memory for it"};
    struct peer_formed f = {.nranks = RANKS,
                            .nnodes = RANKS,
                            .time_limit_ms = 30000,
                            .node_of = {0, 1, 2},
                            .workers = {root.who, {BED_BROKER, 1}, third.who},
                            .comms = {BED_THERE, 1, BED_THERE}};
    struct bed b;

    bed_start(&b, IDLE);
    int client = bed_client(&b);
    client_join(client, &id, RANKS, 1);
    bed_connect(&b, &root, NULL);
    uint32_t first = other_heard(&root, PEER_JOIN, id_number(&id))->from;
    (void)bed_hand(&b, &root, PEER_MESSAGES);
    (void)bed_hand(&b, &third, PEER_MESSAGES);
    other_say(&root, &joined.msg, PEER_JOINED, id_number(&id), sizeof(joined));
    (void)snprintf(f.addresses[0], FCC_NODE_MAX, "%s", root.address);
    (void)snprintf(f.addresses[1], FCC_NODE_MAX, "%s", BED_ADDRESS);
    (void)snprintf(f.addresses[2], FCC_NODE_MAX, "%s", third.address);
    other_say(&root, &f.msg, PEER_FORMED, id_number(&id), sizeof(f));
    bed_connect(&b, &third, &third.who);
    (void)other_heard(&third, PEER_HERE, id_number(&id));
    other_say(&third, &failed.msg, PEER_ABORT, id_number(&id), sizeof(failed));
    client_joined(client, -EIO, "no memory for it (node 192.0.2.3:7000)");
    client_join(client, &id, RANKS, 1);
    const struct peer_turn *told = (const struct peer_turn *)other_heard(&root, PEER_ABORT, id_number(&id));
    CHECK(told->msg.from == first && told->msg.to == BED_THERE && told->status == -EIO &&
          strstr(told->text, "no memory for it"));
    CHECK(other_heard(&root, PEER_JOIN, id_number(&id))->from > first);
    (void)close(client);
    CHECK(kill(b.pid, SIGKILL) == 0 && waitpid(b.pid, NULL, 0) == b.pid);
    (void)close(b.control);
    other_close(&root);
    other_close(&third);
}

int main(void)
{
    static const struct test tests[] = {
        {"where_they_meet", where_they_meet, 0},
        {"where_they_do_not_meet", where_they_do_not_meet, 0},
        {"told_by_another", told_by_another, 0},
        {"ends_behind_what_runs", ends_behind_what_runs, 0},
    };

    return tests_run("ids_again", TESTS(tests));
}
