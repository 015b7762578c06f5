/* SPDX-License-Identifier: MIT
 *
 * submit.h - a SUBMIT as an input wants it: one that fits the client's buffers, with fields that are spoilt.
 */
#ifndef FCC_FUZZ_SUBMIT_H
#define FCC_FUZZ_SUBMIT_H

#include "tests/fuzz/client.h"

struct submit {
    struct fcc_submit m; /* and what follows it on the wire */
    unsigned char rest[FCC_MAX_TENSORS * sizeof(struct fcc_wire_tensor) + 64 * sizeof(int64_t)];
    size_t length;
    bool over_ring;
};

void submit_make(struct submit *s, struct client *c, struct input *in, enum fcc_device_kind device);

#endif
