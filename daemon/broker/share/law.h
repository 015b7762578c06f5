/* SPDX-License-Identifier: MIT
 *
 * law.h - how the time of a GPU is shared out, by weight, between the workers that use it. Pure: no clock, no memory of anybody else.
 *
 * What is shared. A kernel occupies a GPU from its beginning to its end. Two workers' kernels may do so at a time: under MPS they run side by side, and
 * otherwise the driver gives them slices of time by turns. A kernel that goes through several slices is slower by what others have, one that fits into a slice is
 * not, and waits before it begins. Only durations are known. What they are together beyond the time that has passed must have overlapped, and no more than that is taken to
 * have: of it, where k workers occupy the GPU at a time, each is charged a k-th, as if the worker that was there for the shortest time had shared it with all others. Multiprocessors
 * that small kernels leave free are not counted. A kernel is reported when it ends, perhaps many steps after its beginning. So what is enqueued is charged from the next step on, as far as
 * its time is known, and the report is set off against that. By slices, beside short kernels, one that is longer than a slice is so charged up to twice what it had.
 *
 * Whose it is. In each step the time that has passed is shared out by weight (progressive filling, the fluid that generalised processor sharing would
 * let flow). A worker that was held back wants all that it can get, and so does one that has had something in the GPU's queues nearly all the time. Another one
 * wants no more than it has occupied, and leaves the rest to others: so nothing is kept for who does not want it. What a worker got as its part, less what it was charged, is its credit: up to SHARE_SAVED_NS, so a worker that
 * comes back has no past to spend, and down to -SHARE_DEBT_NS, so one long kernel is not paid for for ever.
 *
 * Who waits. A worker may launch as long as its credit and its part of the next step are not used up. The worker with the most credit for its weight has
 * no limit that it could reach in a step, so somebody always may launch. And if a GPU has nothing to do while somebody waits, who waits owes nothing any
 * more: what others did not want is not owed to them.
 */
#ifndef FCC_DAEMON_BROKER_SHARE_LAW_H
#define FCC_DAEMON_BROKER_SHARE_LAW_H

#include <stdbool.h>
#include <stdint.h>

/* A worker's part in a GPU. Zeroes: it begins to share it. */
struct share_part {
    /* Given to a step. */
    double weight;        /* positive */
    uint64_t occupied_ns; /* that it has reported since the last step */
    uint64_t ahead_ns;    /* how long the kernels will take that it has enqueued */
    uint64_t busy_ns;     /* of the step: something of it was in the GPU's queues, running or not */
    bool waits;           /* it says that it holds operators back, or has since the last step */

    /* Kept from step to step. */
    /* Occupied time that was reported, and is to be charged yet. Less than 0: so much was charged that is to be reported yet */
    double owed_ns;
    double credit_ns; /* its part so far, less what it was charged */
    unsigned wants;   /* for so many more steps it counts as held back */
    bool limited;     /* the last step has given it a limit that it can reach */

    /* The result: it may launch until it has occupied the GPU for so long from now on. */
    uint64_t allowed_ns;

    /* Of this step. */
    double occupied, charge, demand, part;
};

/* One step, `elapsed_ns` after the last one. */
void share_step(struct share_part *parts[], unsigned n, uint64_t elapsed_ns);

#endif
