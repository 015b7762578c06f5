/* SPDX-License-Identifier: MIT
 *
 * direct_verbs.c - a plug-in in place of the verbs transport's, with an adapter that is none, for the tests of the worker: what is for a
 * region in a GPU's memory goes into that memory, through the descriptor that the GPU's plug-in has given out for it, and not into the
 * receive bounce buffer. It shows the worker's side of that way; bytes travel over tcp.
 */
#include <errno.h>
#include <sys/mman.h>

#include "daemon/net/net.h"

#define MAPPINGS 64u

/* Of registrations, by their serial. The one thread's that receives. */
static struct mapping {
    uint64_t serial;
    void *memory;
    uint64_t bytes;
} mappings[MAPPINGS];

int __real_net_regions_hold(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region, struct net_held *out);
int __wrap_net_regions_hold(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region, struct net_held *out);

static unsigned char *mapping_of(const struct net_held *held)
{
    const struct net_direct *direct = held->bounce.direct;
    struct mapping *m = &mappings[held->serial % MAPPINGS];

    if (m->serial == held->serial)
        return m->memory;
    if (m->memory)
        (void)munmap(m->memory, m->bytes);
    *m = (struct mapping){.bytes = held->bytes};
    m->memory = mmap(NULL, held->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, direct->fd, (off_t)direct->fd_offset);
    if (m->memory == MAP_FAILED) {
        struct error why;
        (void)error_set(&why, -errno, "direct0: the descriptor cannot be mapped");
        m->memory = NULL;
        held->bounce.given(held->bounce.ctx, "direct0", false, &why);
        return NULL;
    }
    m->serial = held->serial;
    held->bounce.given(held->bounce.ctx, "direct0", true, NULL);
    return m->memory;
}

/* What receives looks up every region by this. */
int __wrap_net_regions_hold(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region, struct net_held *out)
{
    int status = __real_net_regions_hold(regions, comm, rank, region, out);
    unsigned char *memory = !status && out->bounce.direct ? mapping_of(out) : NULL;

    if (!status && out->bounce.received && !out->bounce.direct)
        out->bounce.given(out->bounce.ctx, "direct0", false, NULL);
    if (memory) {
        out->base = memory;
        out->bounce.received = NULL;
    }
    return status;
}

static int usable(int sock, struct error *e)
{
    (void)sock, (void)e;
    return 0;
}

static struct net_ops direct;

const struct net_plugin *net_plugin(void);
__attribute__((visibility("default"))) const struct net_plugin *net_plugin(void)
{
    static const struct net_plugin plugin = {NET_PLUGIN_ABI, &direct};

    direct = net_tcp;
    direct.name = "verbs";
    direct.usable = usable;
    return &plugin;
}
