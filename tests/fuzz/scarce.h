/* SPDX-License-Identifier: MIT
 *
 * scarce.h - what workers may run out of while their loops turn: places for file descriptors, and descriptors that may be on their way to
 * clients. Whoever else is in this process has enough of both.
 */
#ifndef FCC_FUZZ_SCARCE_H
#define FCC_FUZZ_SCARCE_H

/* From now on the workers' table of descriptors (RLIMIT_NOFILE) has so many places more than are in use now. */
void scarce_places(unsigned more);
/* So many of the messages with descriptors that workers send next meet a kernel that takes no more of them (ETOOMANYREFS). */
void scarce_in_flight(unsigned messages);
/* There is enough of everything again. */
void scarce_lift(void);

/* Around what a worker does: the calling thread is a worker's in between. */
void scarce_begin(void);
void scarce_end(void);

#endif
