/* SPDX-License-Identifier: MIT
 *
 * client.h - a client that speaks the protocol by itself (bed.h), and keeps account of its requests.
 */
#ifndef FCC_FUZZ_CLIENT_H
#define FCC_FUZZ_CLIENT_H

#include "proto/session.h"
#include "tests/fuzz/bed.h"

enum { CLIENTS = 8, COMMS = 8, BUFFERS = 12, REQUESTS = 512, PREPARED = 8, IDS = 8 };

struct client_buffer {
    uint32_t handle;
    uint64_t bytes;
    unsigned char *at; /* mapped; NULL: it is not */
};

struct client {
    int sock, node;
    enum fcc_role role;
    struct fcc_session_memory *memory; /* NULL: not welcome yet, or a control session */
    struct fcc_trigger_memory *triggers;
    struct fcc_tracker_memory *tracker; /* the first that it was given; it may be gone at the worker */
    int bell;                           /* ... and the eventfd that came with it */
    int doorbell;
    uint64_t head;
    bool closed; /* by the worker */
    bool deaf;   /* it reads nothing before it listens (program.c) */
    /* It has stored anything where the ring's records or their places are: what comes of them is its own fault */
    bool ring_spoilt;
    uint32_t comms[COMMS]; /* handles; 0: none */
    int nranks[COMMS];     /* ... */
    struct client_buffer buffers[BUFFERS];
    uint32_t prepared[PREPARED];
    uint64_t requests;                 /* that were sent with an id: 1 to that number */
    uint8_t awaited[REQUESTS];         /* [id]: its type; 0: answered */
    uint32_t slots_awaited[FCC_SLOTS]; /* 1: an operator is pending there, and nobody has touched the slot since */
    uint32_t sequence[FCC_SLOTS];
    uint64_t bytes_asked[REQUESTS]; /* of allocations; nranks of communicators */
};

/* Communicators' ids that anybody may use. */
struct client_id {
    struct fcc_unique_id id;
    int nranks, next;
    bool there;
};
extern struct client clients[CLIENTS];
extern struct client_id ids[IDS];
extern unsigned ids_made; /* in this program; the first is of two ranks, then of three, four, one, two, ... */

void client_id_add(struct fcc_unique_id id);
void client_open(struct client *c, int node, enum fcc_role role, bool small);
void client_close(struct client *c);
static inline bool client_is_open(const struct client *c)
{
    return c->sock >= 0 && !c->closed;
}
/* Send a message with the next id, or (id 0) one whose answer nobody awaits. */
void client_send(struct client *c, struct fcc_msg *m, size_t length, enum fcc_msg_type type);
/* Put a SUBMIT into the ring. False: there is no room. */
bool client_ring(struct client *c, struct fcc_submit *m, size_t length);
/* All that has come: checks it, and remembers what it says. */
void client_read(struct client *c);
/* Has everything been answered? Otherwise the text says what has not. */
enum { CLIENT_TEXT = 100 };
bool client_is_answered(const struct client *c, char text[CLIENT_TEXT]);

#endif
