/* SPDX-License-Identifier: MIT
 *
 * frame.h - the header of everything that the tcp transport sends: 56 bytes, little-endian. A put's rows follow it without
 * gaps, and so does a message.
 */
#ifndef FCC_DAEMON_NET_FRAME_H
#define FCC_DAEMON_NET_FRAME_H

#include <assert.h>
#include <stdint.h>

#define NET_FRAME_MAGIC 0x6e636366u /* "fccn" */
#define NET_FRAME_VERSION 2u

enum net_frame_kind {
    NET_FRAME_PUT = 1,    /* row_bytes, stride, rows: the area. Its rows follow */
    NET_FRAME_FLAG = 2,   /* region: the flag's number; offset: the epoch; other fields 0 */
    NET_FRAME_BEAT = 3,   /* a heartbeat; other fields 0 */
    NET_FRAME_SIGNAL = 4, /* region, offset: the word to store; stride: its value; other fields 0 */
    NET_FRAME_MESSAGE =
        5, /* row_bytes: the message's length, 1 to NET_MESSAGE_MAX (net.h); other fields 0. The message follows */
    /* What follows may come before the operator has begun at the receiver. comm, rank: of memory there; region: the number of the sender's
     * node; offset: the turn; stride: the sender's guess (net.h: early()); row_bytes: the bytes that follow: PUTs and FLAGs; other fields 0 */
    NET_FRAME_EARLY = 6,
};

struct net_frame {
    uint32_t magic;
    uint16_t version;
    uint16_t kind; /* enum net_frame_kind */
    uint64_t comm;
    uint32_t rank;
    uint32_t region;
    uint64_t offset;
    uint64_t row_bytes;
    uint64_t stride;
    uint32_t rows;
    uint32_t zero;
};
static_assert(sizeof(struct net_frame) == 56, "wire");

#endif
