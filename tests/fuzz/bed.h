/* SPDX-License-Identifier: MIT
 *
 * bed.h - real workers in this process, whose loops turn when the fuzz target says so. Their broker is a thread that lets them have all the
 * memory that they want, and connects those of two nodes to each other.
 *
 * All is the calling thread's, but for what the broker's thread does by itself.
 */
#ifndef FCC_FUZZ_BED_H
#define FCC_FUZZ_BED_H

#include "daemon/worker/engine/engine.h"
#include "proto/base/spin.h"
#include "tests/fuzz/fuzz.h"

enum { BED_NODES = 2 };

struct bed_node {
    struct worker w;
    struct spin spin;
    struct incarnation self;
    struct account account;     /* the worker's is the only place in it */
    char address[FCC_NODE_MAX]; /* "": it speaks to no other */
    int channel;                /* the broker's end; -1: none */
    bool frozen;                /* its loop does not turn: as if the process were stopped */
    unsigned refuses;           /* so many of its next CONNECTs are refused */
};

/* A node without a worker here: the fuzz target has the other ends of its connections. */
struct bed_outside {
    struct incarnation self;
    char address[FCC_NODE_MAX]; /* "": there is none */
    struct {
        int sock;
        uint32_t purpose;
    } arrived[16]; /* connections that a worker here has asked for. With the broker's lock */
    int n;
};

struct bed {
    struct bed_node nodes[BED_NODES];
    int n;
    struct bed_outside outside;
};
extern struct bed bed;

/* Once in the process. plugin_dir: where cuda.so is, a fake one; "": no GPUs. */
void bed_begin(const char *plugin_dir);
void bed_open(int nodes);
/* A connection to that node's worker, as the broker hands one over; the caller's end. Small: few replies that nobody reads fill it. */
int bed_connect(int node, enum fcc_role role, bool small);
/* A node that is not a worker's is there from now on, until its address is "" again. */
void bed_outside_open(const char *address);
/* A connection from there to that node's worker; the caller's end. */
int bed_outside_connect(int node, uint32_t purpose);
/* One that a worker has asked for, and what for; -1: none. */
int bed_outside_take(uint32_t *purpose);
/* Each node's loop turns so often, but for those that are frozen. */
void bed_turn(unsigned turns);
/* Turns until `until` is true; fails, naming what is missing, if that takes longer than anything may (BED_WAIT_S). until() gets the room
 * for that text. */
enum { BED_TEXT = 200 };
void bed_wait(bool (*until)(char missing[BED_TEXT]));
#define BED_WAIT_S 30
/* All connections of the caller's are closed: nothing may be left of them. Then the workers end. */
void bed_close(void);

#endif
