/* SPDX-License-Identifier: MIT
 *
 * net.h - what carries bytes between the workers of a job on different nodes: the interface that each transport implements.
 *
 * A link goes one way, from one proxy thread to one node, and keeps its order. There may be several between the same two, each with a
 * network adapter of its own: the rails of that direction. Between rails there is no order (daemon/worker/nodes/rails.c). What is written goes into a region of the
 * receiver: memory of one rank of one communicator that the receiver has made known (region.h). Flags follow what was
 * written before them:
 *
 *   the sender's memory -> write() ... flag()     one thread calls both, so they are in its order
 *                          ... the link ...       one stream, or one queue pair: first in, first out
 *   a write's last byte stored, raise() called    one thread again: the stores come before the call in its program
 *   raise() stores the flag with release          so who reads the flag with acquire sees what was written
 *
 * A signal is a flag that lies in a region, where the program that uses the region waits for it.
 *
 * Where a region is but a landing place (region.h), its landed() is called between: for each write, when all of it is there, and before
 * what follows on the link is dealt with.
 *
 * Nobody waits in here. Sending ends are bounded queues (-EAGAIN when full); receiving ends take what has come. Each link
 * belongs to the one thread that calls it; only its counts are read by others.
 *
 * What comes in is not trusted: a worker of another node may have been taken over. It can write into the regions that are
 * known and raise flags that there are, which harms its own job, and nothing else. Payload is not encrypted.
 */
#ifndef FCC_DAEMON_NET_NET_H
#define FCC_DAEMON_NET_NET_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/net/region.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/network.h"

/* Names memory at the receiver. */
struct net_place {
    uint64_t comm;   /* the communicator's number between nodes, the same on all of them */
    uint32_t rank;   /* whose memory it is */
    uint32_t region; /* NET_STAGING, or the buffer's number at its node */
    uint64_t offset;
    uint64_t
        version; /* another one than before: the region may have been removed and added again since. Its receiver's is not known */
};

/* A device on the PCI bus. */
struct net_pci {
    unsigned domain, bus, device, function;
};

#define NET_PCI_UNKNOWN (~0u) /* domain: no device has it */

#define NET_RAILS_MAX 8u    /* links in one direction between two nodes */
#define NET_DEVICES_MAX 16u /* GPUs */

struct net_options {
    uint32_t beat_ms;   /* a sender that has had nothing to send for so long says that it lives */
    uint32_t silent_ms; /* a receiver that has heard nothing for so long gives the sender up */
    uint32_t queue;     /* frames in a sending end; a power of two */
    /* Of the socket, for each direction. 0: as the kernel tunes it (TCP: to some MiB). A size set by hand ends the tuning, and is
     * capped by net.core.wmem_max and rmem_max: 208 KiB on most machines. */
    uint32_t buffer_bytes;
    /* What the choice of adapters is made of. `rails` and `devices` are the same for all links between two nodes. */
    uint32_t rail;  /* which one this link is; of a receiver, at its sender: it counts from 0 again behind its own last one */
    uint32_t rails; /* how many there are to be; 0: one for each adapter that is nearest to a device */
    uint32_t ndevices; /* whose memory they serve: GPUs; 0: the memory near the cores that this process may run on */
    struct net_pci devices[NET_DEVICES_MAX];
    /* Adapters count that have an address in one of these networks, and two addresses in the same one are taken to reach each other. None:
     * it goes by the networks of the interfaces. A link that finds no adapters in common is between those that the socket's addresses are of. */
    uint32_t nnetworks;
    struct network networks[NETWORKS_MAX];
    /* What an administrator should know, in the log. The process's; any thread; NULL: nobody does. */
    void (*log)(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
};

/* The rails of one direction between two nodes. */
struct net_rails {
    uint32_t n;                  /* 1 to NET_RAILS_MAX */
    uint8_t of[NET_DEVICES_MAX]; /* the rail of each of net_options.devices: the one whose adapter is nearest to it */
};

/* Where there is no adapter to choose, or but one. */
static inline struct net_rails net_rails_plain(const struct net_options *options)
{
    struct net_rails rails = {.n = options->rails ? options->rails : 1};

    for (uint32_t i = 0; i < NET_DEVICES_MAX; i++)
        rails.of[i] = (uint8_t)(i % rails.n);
    return rails;
}

#define NET_BEAT_MS 500u
#define NET_SILENT_MS 2500u /* at least: SILENCE_MS */
#define NET_QUEUE 4096u

/* Written by the one thread that a link belongs to, read by all. */
struct net_counts {
    _Atomic uint64_t bytes;    /* on the wire */
    _Atomic uint64_t messages; /* writes and flags */
    _Atomic uint64_t errors;
    _Atomic uint64_t full; /* how often something had to wait for room in the queue */
    _Atomic(const char *)
        transport; /* of the connection that is there, or was last; NULL: there was none. It stays for the process's life */
};

static inline void net_count(_Atomic uint64_t *counter, uint64_t more)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + more, memory_order_relaxed);
}

/* What a receiving end does with what comes. */
struct net_sink {
    struct net_regions *regions;
    /* Raise a flag of a rank: epoch is a number that anybody may have made up. Called while the registration of the rank's
     * NET_FLAGS is held, and only if there is such a flag: net_region_remove(NET_FLAGS) and net_comm_end() wait for it. It must
     * not wait and not call region.h. Not 0 breaks the link. */
    int (*raise)(void *ctx, uint64_t comm, uint32_t rank, uint32_t flag, uint64_t epoch);
    void *ctx;
};

/* What a receiving end knows of how long its sender has been silent. It looks several times in the time for which that may be, and counts
 * these looks, not the time: who was stopped, or whose machine was, and perhaps the sender with it, has not been listening. However
 * long that was, it is one look. A look is later than a sign of life is due, so there is none where all is well. */
struct net_silence {
    uint64_t limit_ns, heard_ns, looked_ns;
    unsigned looks; /* since something was heard */
};
#define NET_LOOKS 4u
static_assert(NET_SILENT_MS / NET_LOOKS > NET_BEAT_MS, "a look is later than a sign of life");

static inline void net_heard(struct net_silence *s, uint64_t now_ns)
{
    s->heard_ns = s->looked_ns = now_ns;
    s->looks = 0;
}

/* When it has to look, if nothing comes. */
static inline uint64_t net_look_due(const struct net_silence *s)
{
    return s->looked_ns + s->limit_ns / NET_LOOKS;
}

/* Nothing lies there: for too long? */
static inline bool net_is_silent(struct net_silence *s, uint64_t now_ns)
{
    if (now_ns >= net_look_due(s)) {
        s->looked_ns = now_ns;
        s->looks++;
    }
    return s->looks >= NET_LOOKS;
}

/* A sending end. The implementation's is bigger; who calls it only reads. */
struct net_link {
    const struct net_ops *ops;
    int fd; /* for epoll: EPOLLIN | EPOLLOUT | EPOLLET. Perhaps one of epoll's own, with several behind it: only readable */
    bool
        is_blocked; /* progress() helps only when fd is writable (who finds it so clears this) or after look() has cleared this */
    uint64_t queued;  /* frames that were taken: writes, flags, signs of life */
    uint64_t flushed; /* the first so many of them do not need their source any more */
    uint64_t due_ns;  /* call progress() then even with nothing to send; UINT64_MAX: no need */
    struct net_counts *counts;
    const char
        *device; /* the adapter, for the process's life; NULL: there is none, or it is not known yet: look() may set it */
    struct net_rails rails; /* what it makes of net_options */
    struct error error;     /* once broken */
};

/* A receiving end. */
struct net_receiver {
    const struct net_ops *ops;
    int fd;          /* for epoll: EPOLLIN */
    uint64_t due_ns; /* call receive() then even if nothing came */
    struct net_counts *counts;
    struct error error; /* once broken. -ESHUTDOWN: the other end has closed it in good order */
};

struct net_ops {
    const char *name;
    /* Whether it can carry links beside this socket (-ENODEV with the reason: no device has its address). NULL: it always can. */
    int (*usable)(int sock, struct error *e);
    /* Take over a connected socket as a sending or a receiving end (the caller closes it if this fails). The counts are the
     * caller's and live longer; so does the sink. */
    int (*link_open)(int sock, const struct net_options *options, struct net_counts *counts, struct net_link **out,
                     struct error *e);
    int (*receiver_open)(int sock, const struct net_options *options, const struct net_sink *sink, struct net_counts *counts,
                         struct net_receiver **out, struct error *e);
    /* All three: 0, or -EAGAIN (the queue is full: progress() and come again), or the link's error. Until it is flushed, the
     * source stays as it is. An area that does not fit into 64 bits is -EINVAL; an empty one is nothing, and 0. */
    int (*write)(struct net_link *l, const struct net_place *to, const void *from, const struct net_area *area);
    int (*flag)(struct net_link *l, uint64_t comm, uint32_t rank, uint32_t flag, uint64_t epoch);
    /* Store a word of 8 bytes at a place (aligned to 8), behind what was written before, as flags are raised: with release,
     * whole. */
    int (*signal)(struct net_link *l, const struct net_place *to, uint64_t value);
    /* Send some of it, and a sign of life if one is due. 0: nothing is under way; 1: there is; <0: the link is broken. */
    int (*progress)(struct net_link *l, uint64_t now_ns);
    /* Its fd is readable, hung up or in error: 0, or the link is broken. */
    int (*look)(struct net_link *l);
    /* Take some of what has come. 0: that was all; 1: there may be more; <0: the link is broken. now_ns: taken before the call,
     * so that a process which was stopped first reads what came meanwhile. */
    int (*receive)(struct net_receiver *r, uint64_t now_ns);
    void (*link_close)(struct net_link *l);
    void (*receiver_close)(struct net_receiver *r);
};

extern const struct net_ops net_tcp;
/* The verbs transport is a plug-in, ../lib/fccd/verbs.so seen from the program: it needs libraries that not every node has. It
 * has this function. */
#define NET_PLUGIN_SYMBOL "net_plugin"
#define NET_PLUGIN_ABI 4u
struct net_plugin {
    uint32_t abi;
    const struct net_ops *ops;
};
typedef const struct net_plugin *net_plugin_function(void);

/* Callers use these. A broken link stays so. */
static inline int net_write(struct net_link *l, const struct net_place *to, const void *from, const struct net_area *area)
{
    return l->error.status ? l->error.status : l->ops->write(l, to, from, area);
}

static inline int net_flag(struct net_link *l, uint64_t comm, uint32_t rank, uint32_t flag, uint64_t epoch)
{
    return l->error.status ? l->error.status : l->ops->flag(l, comm, rank, flag, epoch);
}

static inline int net_signal(struct net_link *l, const struct net_place *to, uint64_t value)
{
    return l->error.status ? l->error.status : l->ops->signal(l, to, value);
}

static inline int net_progress(struct net_link *l, uint64_t now_ns)
{
    int status = l->error.status ? l->error.status : l->ops->progress(l, now_ns);

    assert(status >= 0 || l->error.status == status);
    assert(l->flushed <= l->queued);
    return status;
}

static inline int net_receive(struct net_receiver *r, uint64_t now_ns)
{
    int status = r->error.status ? r->error.status : r->ops->receive(r, now_ns);

    assert(status >= 0 || r->error.status == status);
    return status;
}

#endif
