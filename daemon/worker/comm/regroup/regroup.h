/* SPDX-License-Identifier: MIT
 *
 * regroup.h - ranks of a communicator agree on new ones: fcc_comm_split(), in which all ranks take part, and fcc_comm_shrink(), in which those
 * do that are left. Engine thread.
 *
 * Each rank comes to the communicator's next *round*. A node tells the others of its ranks that have come (told()), at the earliest when
 * nothing of the communicator runs on it any more, so that no slice of an old operator is stored after the agreement. When all ranks have come
 * that can, the node of the lowest of them *decides*: who is in which group, as which rank, and the group's id. It tells all nodes
 * (decided()), and each node that hears of a decision for the first time tells all others before it answers its ranks. So if any node that is
 * left knows the decision, all do, also if the one that made it dies; if none does, the node of the lowest rank that is left decides anew.
 * Rounds keep late messages apart. The ranks then join their new communicator by its id, as with fcc_comm_init(): if one of them has died
 * since, that fails for all of them, and the library comes to the next round.
 *
 * A rank whose arguments are wrong comes, too, and refuses: then the decision is that error, for all. It does not say whom it would have
 * excluded from a shrink, so whom the others exclude it does not wait for.
 *
 * A rank that is gone (its process or node died, or it has left the communicator) is not waited for; a split fails then. A rank that is alive
 * and does not come is waited for until the time limit, unless the others exclude it.
 */
#ifndef FCC_DAEMON_WORKER_COMM_REGROUP_REGROUP_H
#define FCC_DAEMON_WORKER_COMM_REGROUP_REGROUP_H

#include <stdint.h>

#include "proto/proto.h"

struct comm;
struct error;
struct member;

/* What a rank has come with. */
struct regroup_entry {
    uint32_t round; /* 0: it has not come, or does not wait any more */
    uint32_t how;   /* enum fcc_regroup */
    int32_t color, key;
    uint32_t allocations; /* of the rank's node: comm.allocations */
    uint32_t zero;
    union {
        uint64_t excluded[FCC_MAX_RANKS / 64]; /* shrink: a bit for each rank that is to be left out */
        char reason[FCC_MAX_RANKS / 8];        /* refused: what is wrong with this rank's arguments; perhaps without a NUL */
    };
};

struct regroup_decision {
    uint32_t round;
    int32_t status;          /* 0, or why no group is made; the text has the reason */
    uint32_t how;            /* FCC_REGROUP_SPLIT or _SHRINK */
    uint32_t allocations;    /* the largest of all nodes */
    struct fcc_unique_id id; /* of group 0; the others' are made of it */
    char text[FCC_TEXT_MAX];
    int16_t group[FCC_MAX_RANKS]; /* -1: in none */
    int16_t rank[FCC_MAX_RANKS];  /* in the group */
};

/* A rank here comes. Its client is answered when there is a decision. 0, or the error for this rank alone. */
int regroup_come(struct member *m, const struct fcc_comm_split_msg *msg, struct error *e);
/* Something has changed: a launch has ended, a rank or a node is gone. */
void regroup_look(struct comm *c);
extern const struct regroup_ops regroup_of_ranks;

/* From other nodes, checked: a rank there has come, or (round 0) does not wait any more; there is a decision. Both may end the communicator. */
void regroup_heard(struct comm *c, int rank, const struct regroup_entry *entry);
void regroup_decided(struct comm *c, const struct regroup_decision *d);

/* The buffers of a rank belong to its rank in the new communicator from now on. `allocations`: as the decision said. */
int buffers_adopt(struct member *from, struct member *to, uint32_t allocations, struct error *e);

#endif
