/* SPDX-License-Identifier: MIT
 *
 * raw.h - a connection to the daemon that speaks bytes, for what no libfccclient would send.
 */
#ifndef FCC_TEST_RAW_H
#define FCC_TEST_RAW_H

#include <stdbool.h>

#include "proto/msg.h"
#include "proto/session.h"
#include "tests/bed/harness.h"

struct raw {
    int sock;
    struct fcc_session_memory *memory;
    int doorbell;
    _Alignas(16) unsigned char in[FCC_MSG_MAX]; /* the last message */
    ssize_t length;
    int fds[FCC_MAX_FDS], nfds;
};

struct raw *raw_open(const struct test_daemon *d);
void raw_close(struct raw *r);
/* Send exactly these bytes: 0 or -errno. */
int raw_try(struct raw *r, const void *bytes, size_t length, const int *fds, int nfds);
/* The same, and it must work. */
void raw_send(struct raw *r, const void *bytes, size_t length, const int *fds, int nfds);
/* Does the kernel let a socket refuse descriptors? */
bool fds_are_forbidden(void);
/* The next message, whose descriptors are closed. */
const struct fcc_reply *raw_receive(struct raw *r);
/* Has the other end closed the connection? Waits for it. */
bool raw_closed(struct raw *r);

struct fcc_hello hello_make(void);
/* A whole, well-mannered connection to a worker. */
struct raw *raw_session(const struct test_daemon *d);
/* A communicator of one rank; returns its handle. */
uint32_t raw_comm(struct raw *r);
/* A SUBMIT of a noop, with fields to spoil. */
struct fcc_submit noop_make(uint32_t comm, uint32_t slot);
/* Send a message over the socket and take the answer. */
const struct fcc_reply *submit_socket(struct raw *r, const void *m, size_t length);

#endif
