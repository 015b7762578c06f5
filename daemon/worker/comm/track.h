/* SPDX-License-Identifier: MIT
 *
 * track.h - the interface by which comm/ tells track/, which works off the rules of ranks' trackers, what has ended. Engine thread.
 */
#ifndef FCC_DAEMON_WORKER_COMM_TRACK_H
#define FCC_DAEMON_WORKER_COMM_TRACK_H

struct buffer;
struct comm;
struct member;

struct track_ops {
    /* The rank leaves: when this returns, nothing is done by its rules, and its tracker is gone. */
    void (*close)(struct member *m);
    /* The buffer's handle goes: when this returns, no rule stores into it, reads it or waits for a word of it. */
    void (*buffer_freed)(const struct buffer *b);
    /* Nobody should wait for other ranks of the communicator any more: who waits for its rules is told. */
    void (*ended)(const struct comm *c, int status);
};

#endif
