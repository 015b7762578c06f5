/* SPDX-License-Identifier: MIT
 *
 * played.h - a test in fccd's place, whom fccctl asks.
 */
#ifndef FCC_TEST_PLAYED_H
#define FCC_TEST_PLAYED_H

#include "proto/msg.h"
#include "tests/bed/harness.h"

/* A connection says HELLO, is welcome, and asks. The query is valid until the next call; *answer is its answer's head. */
static inline const struct fcc_query *query_hear(int sock, struct fcc_reply *answer)
{
    static _Alignas(16) unsigned char in[FCC_MSG_MAX];
    const struct fcc_msg *m = (const struct fcc_msg *)in;
    struct fcc_welcome welcome = {.version = FCC_PROTO_VERSION};
    int fds[FCC_MAX_FDS], nfds;

    CHECK(msg_recv(sock, in, sizeof(in), 0, fds, &nfds) > 0 && m->type == FCC_MSG_HELLO);
    welcome.reply.msg = (struct fcc_msg){.type = FCC_MSG_HELLO | FCC_REPLY, .id = m->id};
    CHECK(msg_send(sock, &welcome.reply.msg, sizeof(welcome), NULL, 0) == 0);
    CHECK(msg_recv(sock, in, sizeof(in), 0, fds, &nfds) > 0 && m->type == FCC_MSG_QUERY);
    answer->msg = (struct fcc_msg){.type = FCC_MSG_QUERY | FCC_REPLY, .id = m->id};
    return (const struct fcc_query *)m;
}

#endif
