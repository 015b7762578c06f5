/* SPDX-License-Identifier: MIT
 *
 * channel.h - the worker's end of the control channel to the broker (daemon/common/control.h).
 */
#ifndef FCC_DAEMON_WORKER_ENGINE_CHANNEL_H
#define FCC_DAEMON_WORKER_ENGINE_CHANNEL_H

#include <stddef.h>

#include "daemon/common/control.h"

struct worker;

/* What the worker does with the broker's messages. Engine thread. Descriptors become the callee's. */
struct channel_ops {
    void (*session)(struct worker *w, int fd, const struct control_session *who); /* a client has connected */
    void (*peer)(struct worker *w, const struct control_peer *m, int fd);         /* another node's worker has connected */
    void (*connected)(struct worker *w, const struct control_connected *m,
                      int fd); /* our connection to one. fd -1: m->status */
    void (*denied)(struct worker *w, const struct control_denied *m);
    void (*drain)(struct worker *w, const char *why);
    void (*handed)(
        struct worker *w); /* before session() and peer(): the broker has handed over a connection, perhaps without success */
    void (*retire)(struct worker *w);  /* the answer to CONTROL_RETIRE: the worker may end */
    void (*doubt)(struct worker *w);   /* the broker died before it had told the other node of the last peer() */
    void (*adopted)(struct worker *w); /* another broker has taken the worker over: it knows of no RETIRE */
};

/* Take the rights of the user that the arguments name, tell the broker that no other process can inspect this one (rights.c), and receive
 * CONTROL_START into *start, which has room for FCC_MSG_MAX bytes. Returns the account's descriptor, which is the caller's. -1: no broker has
 * started this process. */
int control_start(int argc, char *argv[], struct control_start *start);
/* Listen to the broker: w->control and w->channel_ops are set. 0 or -ENOMEM. */
int control_open(struct worker *w);
/* Close the channel: the broker is gone, or not needed any more. */
void control_close(struct worker *w);
/* Send a message, or keep it until the broker's socket has room for it. -EPIPE: the broker is gone; -ENOMEM. */
int control_send(struct worker *w, struct fcc_msg *m, size_t length);
/* The same, of what is no question for the next broker (adopt.h). */
int control_say(struct worker *w, struct fcc_msg *m, size_t length);

#endif
