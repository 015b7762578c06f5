/* SPDX-License-Identifier: MIT
 *
 * message_scene.h - a worker with one client, and another node whose worker the test is: a communicator of a rank here and one there, and what both
 * say when they allocate symmetric memory.
 */
#ifndef FCC_TEST_MESSAGE_SCENE_H
#define FCC_TEST_MESSAGE_SCENE_H

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
static inline void scene_open_with(struct scene *s, bool has_data)
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

static inline void scene_open(struct scene *s)
{
    scene_open_with(s, true);
}

static inline void scene_close(struct scene *s)
{
    (void)close(s->client);
    CHECK(kill(s->b.pid, SIGKILL) == 0 && waitpid(s->b.pid, NULL, 0) == s->b.pid);
    (void)close(s->b.control);
    other_close(&s->other);
}

static inline void client_allocates(const struct scene *s)
{
    struct fcc_buffer_alloc_msg m = {
        .msg = {.type = FCC_MSG_BUFFER_ALLOC, .id = 5}, .comm = COMM, .kind = FCC_BUFFER_SYMMETRIC, .bytes = BYTES};

    CHECK(msg_send(s->client, &m.msg, sizeof(m), NULL, 0) == 0);
}

static inline void client_frees(const struct scene *s)
{
    struct fcc_buffer_free_msg m = {.msg = {.type = FCC_MSG_BUFFER_FREE, .id = 6}, .buffer = BUFFER};

    CHECK(msg_send(s->client, &m.msg, sizeof(m), NULL, 0) == 0);
    client_answered(s->client, FCC_MSG_BUFFER_FREE, 0, "");
}

/* The rank there comes to the allocation. */
static inline void other_allocates(const struct scene *s)
{
    struct peer_submit m = {.request.rank = THERE, .request.kind = SUBMISSION_ALLOC, .request.alloc_bytes = BYTES};

    other_say(&s->other, &m.msg, PEER_SUBMIT, id_number(&s->id), sizeof(m));
}

static inline struct peer_memory memory_make(void)
{
    return (struct peer_memory){.rank = THERE, .handle = 17, .bytes = BYTES};
}

static inline void other_says_memory(const struct scene *s, struct peer_memory m)
{
    other_say(&s->other, &m.msg, PEER_MEMORY, id_number(&s->id), sizeof(m));
}

static inline void other_says_free(const struct scene *s)
{
    struct peer_free m = {.rank = THERE, .handle = 17};

    other_say(&s->other, &m.msg, PEER_FREE, id_number(&s->id), sizeof(m));
}

/* The worker comes to the allocation, and its part is there. The next message that it waits for is the other's MEMORY. */
static inline void allocation_begins(struct scene *s)
{
    client_allocates(s);
    (void)other_heard(&s->other, PEER_SUBMIT, id_number(&s->id));
    other_allocates(s);
    (void)other_heard(&s->other, PEER_MEMORY, id_number(&s->id));
}

#endif
