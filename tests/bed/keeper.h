/* SPDX-License-Identifier: MIT
 *
 * keeper.h - plays the service manager for daemons of a test: keeps the descriptors that a broker asks it to (FDSTORE=1), drops those whose other end
 * has closed, and hands them to the next broker. Each node's keeper is a process of its own; the brokers are the test's children, as ever.
 *
 *     keepers_start(2); daemons_start(&d, 2, NULL); ...; keeper_restart(&d, 0, SIGKILL); ...; keepers_stop(&d);
 */
#ifndef FCC_TEST_KEEPER_H
#define FCC_TEST_KEEPER_H

#include "tests/bed/harness.h"

/* Before the daemons are started. This process becomes the parent of workers whose broker has died. `most`: FDSTORE. */
void keepers_start(int nodes, int most);
/* Keepers that are started from now on take only so many descriptors, whatever FDSTORE says, and drop the others without a word, as systemd does. */
void keepers_take(int most);
/* Ends the node's broker by this signal, and waits for its end. */
void keeper_kill(struct test_daemon *d, int node, int number);
/* Starts the next one, with these options of fccd's (NULL: none), and waits until it serves. */
void keeper_next(struct test_daemon *d, int node, const char *const options[]);
void keeper_restart(struct test_daemon *d, int node, int number);
/* Drops all that the node's keeper has: the service has been stopped. */
void keeper_drop(int node);
/* As if the broker had asked for it. */
void keeper_add(int node, const char *name, int fd);
/* How many descriptors it has. */
int keeper_count(int node);
/* Nobody has anything here any more: ends the brokers, by SIGINT, and the keepers. Checks that no worker is left. */
void keepers_stop(struct test_daemon *d);
/* The workers of brokers that have died, which are this process's children now: waits until none is left. */
void orphans_await(void);

#endif
