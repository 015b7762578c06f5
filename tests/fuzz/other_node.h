/* SPDX-License-Identifier: MIT
 *
 * other_node.h - another node's broker, for the target whose broker is real: it has the cluster's key and proves that honestly. What it says then,
 * sealed and in order, or not, is the input's. It is asked for links by the real broker, which has it in its NODES, and for connections
 * by workers; and asks for such itself.
 *
 * Expected of the real broker: what it says behind the proofs is sealed, of the length that belongs there, and makes sense.
 */
#ifndef FCC_FUZZ_OTHER_NODE_H
#define FCC_FUZZ_OTHER_NODE_H

#include "daemon/common/config.h"
#include "tests/fuzz/fuzz.h"

/* Once in the process: the addresses of the real broker and of this one, and the file of the key that both have, in the directory. */
void other_begin(const char *directory, char real[FCC_NODE_MAX], char other[FCC_NODE_MAX]);
/* In the process's end. */
void other_forget(void);
void other_open(void);
/* What has come is read, and what honesty demands is said. */
void other_turn(void);
void other_step(struct input *in);
void other_close(void);

#endif
