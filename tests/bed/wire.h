/* SPDX-License-Identifier: MIT
 *
 * wire.h - a network in a process: it takes IP packets from tun devices and gives each to the device of its destination, later,
 * before those ahead of it, or never. For kernels that have no netem (and to know how many packets it has met).
 */
#ifndef FCC_TEST_WIRE_H
#define FCC_TEST_WIRE_H

#include <stdatomic.h>
#include <stdint.h>

#define WIRE_PORTS 4

/* In memory that is shared with the process; the settings may be changed at any time. Of a million packets: */
struct wire {
    _Atomic uint32_t delay_us;
    _Atomic uint32_t lost_ppm;     /* are dropped */
    _Atomic uint32_t overtake_ppm; /* do not wait for delay_us, as netem's reorder: so they overtake those that do */
    _Atomic uint64_t packets, bytes, lost, overtook;
};

/* A tun device "net0" in the namespace that the caller is in. Its descriptor, or a negative errno. */
int wire_port(void);
/* Carry packets between n ports until the process is killed. A packet for x.x.x.K goes to port K - 1. */
void wire_run(struct wire *w, const int ports[], int n) __attribute__((noreturn));

#endif
