/* SPDX-License-Identifier: MIT
 *
 * test_turn_numbers.c - DONE and LEFT, whose triggers have half of the number of turns: the proxy sends the whole, however many turns there have been
 * of which requests have told, and none of these triggers.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/device/device.h"
#include "daemon/worker/nodes/inside.h"
#include "tests/bed/harness.h"

enum { SLOTS = 64, RANKS = 2 };

/* The engine's part of a communicator of this node's rank 0 and another node's rank 1. */
struct scene {
    struct worker worker;
    struct nodes_data *data;
    struct comm *comm;
    struct comm_nodes *nodes;
    struct peer peer;
    struct fifo fifo;
    struct fifo_slot slots[SLOTS];
    struct entry_rank ranks[RANKS];
};

static struct scene *scene_open(void)
{
    struct scene *s = aligned_alloc(64, (sizeof(*s) + 63) / 64 * 64);

    CHECK(s != NULL);
    memset(s, 0, sizeof(*s));
    s->data = calloc(1, sizeof(*s->data));
    s->nodes = calloc(1, sizeof(*s->nodes));
    s->comm = aligned_alloc(64, (sizeof(*s->comm) + RANKS * sizeof(s->comm->members[0]) + 63) / 64 * 64);
    CHECK(s->data && s->nodes && s->comm && fifo_init(&s->fifo, s->slots, SLOTS, 1, -1) == 0);
    s->worker.data = s->data;
    s->data->fifo = &s->fifo;
    s->data->entries[0].ranks = s->ranks;
    s->peer.worker = &s->worker;
    s->peer.rails.n = 1;
    memset(s->comm, 0, sizeof(*s->comm) + RANKS * sizeof(s->comm->members[0]));
    s->comm->worker = &s->worker;
    s->comm->nodes = s->nodes;
    s->comm->dev.ops = &device_cpu;
    s->comm->nranks = RANKS;
    s->comm->members[0].comm = s->comm->members[1].comm = s->comm;
    s->comm->members[1].remote = true;
    s->comm->members[1].peer = &s->peer;
    s->nodes->channel = 1;
    s->nodes->npeers = 1;
    s->nodes->peers[0] = &s->peer;
    s->nodes->peer_rank[0] = 1;
    return s;
}

static void scene_close(struct scene *s)
{
    free(s->data);
    free(s->nodes);
    free(s->comm);
    free(s);
}

static void expect_turns(const struct scene *s, uint64_t turns)
{
    struct proxy_send send = {.node = 0};
    struct fcc_trigger t;

    CHECK(fifo_pop((struct fifo *)&s->fifo, &t) && nodes_resolve(s->data, &t, &send));
    if (send.epoch != turns)
        check_failed(__FILE__, __LINE__, "%llx turns are told: there have been %llx", (unsigned long long)send.epoch,
                     (unsigned long long)turns);
}

static void numbers_are_whole(void)
{
    static const uint64_t turns[] = {1, 2, 0xffffffff, 0x100000000, 0x100000001, 0x300000009, 0x3fffffffe, 0x700000002};
    const size_t n = sizeof(turns) / sizeof(turns[0]);
    struct scene *s = scene_open();

    for (size_t i = 0; i < n; i++) { /* each is sent before there is another one */
        s->nodes->turns = turns[i];
        nodes_done_send(s->comm);
        expect_turns(s, turns[i]);
    }
    for (size_t i = 0; i + 1 < n; i++) { /* one is, and then the other, when both have been pushed */
        if (turns[i + 1] - turns[i] > UINT32_MAX)
            continue;
        s->nodes->turns = turns[i];
        nodes_done_send(s->comm);
        s->nodes->turns = turns[i + 1];
        nodes_left_send(s->comm, 0);
        expect_turns(s, turns[i]);
        expect_turns(s, turns[i + 1]);
    }
    scene_close(s);
}

int main(void)
{
    static const struct test tests[] = {{"numbers_are_whole", numbers_are_whole, 0}};

    return tests_run("turn_numbers", TESTS(tests));
}
