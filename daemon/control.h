/* SPDX-License-Identifier: MIT
 *
 * control.h - what the broker and a worker say to each other, over a SOCK_SEQPACKET socketpair (the worker's descriptor 3).
 *
 *   broker                          worker
 *     START ------------------------->|   once, first
 *     SESSION + the client's socket ->|   for every connection to this job
 *     <------------------------- CHARGE   before memory is allocated, after it is freed; answered by CHARGE | FCC_REPLY
 *     <------------------------ SESSIONS  when the number of connections changed
 *     <-------------------------- RETIRE  no client for a while: may I go?
 *     RETIRE ------------------------>|   yes: nothing comes after this message
 *     DRAIN ------------------------->|   finish what runs, refuse the rest, go
 *
 * RETIRE is a handshake because a SESSION may be on its way: the worker goes when it has the broker's RETIRE, and serves
 * what came before it first. Each end notices the other's death by the end of the connection. A worker whose broker
 * died goes on serving its clients and goes when the last one has left.
 */
#ifndef FCCD_CONTROL_H
#define FCCD_CONTROL_H

#include "config.h"
#include "proto.h"

#define CONTROL_FD 3

enum control_type {
    CONTROL_START = 0x4000,
    CONTROL_SESSION,
    CONTROL_CHARGE,
    CONTROL_SESSIONS,
    CONTROL_RETIRE,
    CONTROL_DRAIN,
};

struct control_start {
    struct fcc_msg msg;
    struct config config;
    uint32_t uid;
    char job[FCC_JOB_MAX];
    char mps_pipe[FCC_MPS_PIPE_MAX]; /* as in fcc_hello, of the client that the worker is started for */
};

struct control_session {
    struct fcc_msg msg; /* id: of the client's HELLO */
    uint32_t role;      /* enum fcc_role */
    uint32_t uid;       /* who is there: from the kernel */
    int32_t pid;
    uint32_t zero;
    char mps_pipe[FCC_MPS_PIPE_MAX]; /* this client's own */
};

struct control_charge { /* and its reply */
    struct fcc_msg msg;
    int64_t bytes;  /* more (or, negative, less) than before; not answered if negative */
    int32_t status; /* reply */
    uint32_t zero;
    uint64_t used, limit; /* reply: the user's bytes before this charge, and what is allowed */
};

struct control_sessions {
    struct fcc_msg msg;
    uint32_t sessions;
    uint32_t zero;
};

#endif
