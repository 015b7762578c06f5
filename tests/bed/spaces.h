/* SPDX-License-Identifier: MIT
 *
 * spaces.h - nodes in network namespaces of their own, with a network between them.
 *
 * None of it has a name, nor touches the network that the test was started in: the calling process moves to a new namespace, and
 * others (the nodes') are held open by descriptors of it only. So all of it ends with the processes of the test, however they end.
 *
 *   SPACES_BRIDGE  each node has one end of a pair of virtual ethernet devices; the others are ports of a bridge in the caller's
 *   SPACES_WIRE    each node has a tun device; a process (wire.h) carries packets between them, late, out of order, or not at all
 *
 * In a node's space its device is net0 with the address of spaces_host().
 */
#ifndef FCC_TEST_SPACES_H
#define FCC_TEST_SPACES_H

#include <stdbool.h>
#include <sys/types.h>

#include "tests/bed/wire.h"

#define SPACES_MAX 4

enum spaces_kind { SPACES_BRIDGE, SPACES_WIRE };

struct spaces {
    int n;
    int home, original; /* descriptors of the caller's namespaces: the new one, and that which it came from */
    int node[SPACES_MAX];
    struct wire *wire; /* SPACES_WIRE: its settings and counts */
    pid_t wire_pid;
};

/* Why there can be none here: NULL if there can. */
const char *spaces_missing(enum spaces_kind kind);
void spaces_open(struct spaces *s, enum spaces_kind kind, int n);
void spaces_close(struct spaces *s);

const char *spaces_host(int node);
/* Move the calling process to a node's space; -1: back to the caller's own. */
void spaces_enter(const struct spaces *s, int node);
/* Run a program ("ip", "tc") with these words in a node's space (-1: the caller's). It must end well. */
void spaces_run(const struct spaces *s, int node, const char *words);

#endif
