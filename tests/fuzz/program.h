/* SPDX-License-Identifier: MIT
 *
 * program.h - an input as a program of what clients do to workers (bed.h): connect, form communicators, allocate, submit, look, misbehave,
 * leave, in any order and without waiting for answers; and of what the workers run out of meanwhile (scarce.h).
 */
#ifndef FCC_FUZZ_PROGRAM_H
#define FCC_FUZZ_PROGRAM_H

#include "tests/fuzz/bed.h"

/* Where the ranks are. */
struct program_kind {
    int nodes;
    bool outside; /* there is another node besides (outside.h) */
    enum fcc_device_kind device;
    void (*device_step)(struct input *in); /* the devices change; NULL: they do not */
};

/* Run it, and expect of the workers: nobody's request is answered twice; where the input asks for it, all are answered in the end; and when
 * all clients have left nothing is left behind, no memory, no communicator and no file descriptor. */
void program_run(const struct program_kind *kind, const uint8_t *data, size_t size);

#endif
