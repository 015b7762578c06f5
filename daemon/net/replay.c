/* SPDX-License-Identifier: MIT
 *
 * replay.c - handles frames that came before their operator had begun, and were kept until it had: puts and flags.
 */
#include <errno.h>
#include <string.h>

#include "daemon/net/frame.h"
#include "daemon/net/net.h"

/* The same checks as of a put that comes now (tcp_receive.c). Returns the bytes of its rows, or an error. */
static int64_t put_replay(struct net_receiver *r, const struct net_sink *sink, const struct net_frame *f,
                          const unsigned char *rows, uint64_t room)
{
    const struct net_area area = {.row_bytes = f->row_bytes, .stride = f->stride, .rows = f->rows};
    struct net_held memory;
    uint64_t length;

    if (f->region == NET_FLAGS || f->region == NET_EARLY || net_area_check(&area, f->offset, UINT64_MAX, &length) ||
        length > room)
        return net_refuse(r, -EPROTO, "a write that is not whole among early ones");
    int status = net_regions_hold(sink->regions, f->comm, f->rank, f->region, &memory);
    if (status)
        return status == -ECANCELED ? (int64_t)length
                                    : net_refuse(r, -EPROTO, "an early write into a region that is not known here");
    if (net_area_check(&area, f->offset, memory.bytes, &length) || memory.bounce.received)
        status = net_refuse(r, -EPROTO, "an early write past the end of a region");
    for (uint32_t i = 0; !status && i < f->rows; i++)
        memcpy(memory.base + f->offset + i * f->stride, rows + i * f->row_bytes, f->row_bytes);
    net_regions_release(sink->regions);
    return status ? status : (int64_t)length;
}

int net_replay(const struct net_sink *sink, const void *frames, uint64_t length, struct error *e)
{
    const unsigned char *bytes = frames;
    struct net_receiver r = {.error.status = 0};
    int64_t status = 0;

    for (uint64_t at = 0; status >= 0 && at < length;) {
        struct net_frame f;
        if (length - at < sizeof(f)) {
            status = net_refuse(&r, -EPROTO, "a part of a frame among early ones");
            break;
        }
        memcpy(&f, bytes + at, sizeof(f));
        at += sizeof(f);
        if (f.magic != NET_FRAME_MAGIC || f.version != NET_FRAME_VERSION || f.zero)
            status = net_refuse(&r, -EPROTO, "what is no frame among early ones");
        else if (f.kind == NET_FRAME_PUT)
            status = put_replay(&r, sink, &f, bytes + at, length - at);
        else if (f.kind == NET_FRAME_FLAG && !f.row_bytes && !f.stride && !f.rows)
            status = net_flag_take(&r, sink, f.comm, f.rank, f.region, f.offset);
        else
            status = net_refuse(&r, -EPROTO, "a frame among early ones that is neither a put nor a flag");
        at += status > 0 ? (uint64_t)status : 0;
    }
    *e = r.error;
    return status < 0 ? (int)status : 0;
}
