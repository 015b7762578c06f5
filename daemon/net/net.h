/* SPDX-License-Identifier: MIT
 *
 * net.h - the interface of the transports, which carry bytes between the workers of a job on different nodes.
 *
 * A link goes one way, from one proxy thread to one node, and is ordered. Two nodes may have several links in one direction,
 * each with its own network adapter: the rails of that direction. There is no order between rails
 * (daemon/worker/nodes/rails.c). A write goes into a region of the receiver: memory of one rank of one communicator that the
 * receiver has registered (region.h). A flag is raised after the writes before it have arrived:
 *
 *   sender: write() ... flag()                    one thread calls both, in this order
 *           ... the link ...                      one byte stream, or one queue pair: first in, first out
 *   receiver: stores the write's last byte,       one thread does both, in this order
 *             calls raise()
 *   raise() stores the flag with release          so a reader that loads the flag with acquire sees what was written
 *
 * A signal is a flag that lies in a region, where the program that uses the region waits for it.
 *
 * If a region is a receive bounce buffer (region.h: struct net_bounce), the receiver calls received() for each write: when the
 * write has arrived whole, and before it handles what follows on the link.
 *
 * No function here blocks. Sending ends are bounded queues (-EAGAIN when full); receiving ends take what has arrived. Each link
 * belongs to the one thread that calls it; other threads read its counters only.
 *
 * Incoming data is not trusted: another node's worker may be compromised. It can write into the registered regions and raise
 * existing flags, which harms its own job and nothing else. Payload is not encrypted.
 */
#ifndef FCC_DAEMON_NET_NET_H
#define FCC_DAEMON_NET_NET_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "daemon/net/region.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/network.h"

/* The address of memory at the receiver. */
struct net_place {
    uint64_t comm;   /* the communicator's number between nodes, the same on all of them */
    uint32_t rank;   /* the rank that the memory belongs to */
    uint32_t region; /* NET_STAGING, or the buffer's number at its node */
    uint64_t offset; /* bytes */
    /* The sender's own count: if it differs from that of an earlier write, the region may have been removed and added again
     * since. */
    uint64_t version;
};

/* A device on the PCI bus. */
struct net_pci {
    unsigned domain, bus, device, function;
};

#define NET_PCI_UNKNOWN (~0u) /* a value of `domain` that no device has */

#define NET_RAILS_MAX 8u    /* links in one direction between two nodes */
#define NET_DEVICES_MAX 16u /* GPUs */

struct net_options {
    uint32_t beat_ms;   /* a sender that has had nothing to send for this time sends a heartbeat */
    uint32_t silent_ms; /* a receiver that has received nothing for this time declares the sender dead */
    uint32_t queue;     /* frames that a sending end can queue; a power of two */
    /* Size of the socket's buffers in each direction. 0: the kernel tunes it (TCP: up to some MiB). An explicit size ends that
     * tuning, and is limited by net.core.wmem_max and rmem_max: 208 KiB on most machines. */
    uint32_t buffer_bytes;
    /* The fields from here on decide which adapters are used. `rails` and `devices` are the same for all links between two
     * nodes. */
    uint32_t rail; /* this link's rail, as the sender numbers them; a receiver takes it modulo the number of its own adapters */
    uint32_t rails;    /* number of rails; 0: one for each adapter that is nearest to a device */
    uint32_t ndevices; /* number of `devices`; 0: the links serve the memory near the cores that this process may run on */
    struct net_pci devices[NET_DEVICES_MAX]; /* GPUs whose memory the links serve */
    /* Only adapters with an address in one of these networks are used, and two addresses in the same network are assumed to
     * reach each other. 0: the networks of the interfaces decide. If two nodes have no network in common, the link uses the
     * adapters that have the socket's addresses. */
    uint32_t nnetworks;
    struct network networks[NETWORKS_MAX];
    /* Logs what an administrator should know. Valid for the process's life; called from any thread. NULL: nothing is logged. */
    void (*log)(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
};

/* The rails of one direction between two nodes. */
struct net_rails {
    uint32_t n;                  /* 1 to NET_RAILS_MAX */
    uint8_t of[NET_DEVICES_MAX]; /* of each of net_options.devices: the rail whose adapter is nearest to it */
};

/* The rails of a transport that does not choose adapters, or has only one. */
static inline struct net_rails net_rails_plain(const struct net_options *options)
{
    struct net_rails rails = {.n = options->rails ? options->rails : 1};

    for (uint32_t i = 0; i < NET_DEVICES_MAX; i++)
        rails.of[i] = (uint8_t)(i % rails.n);
    return rails;
}

#define NET_BEAT_MS 500u
#define NET_SILENT_MS 2500u /* the smallest silent_ms: the default and minimum of SILENCE_MS */
#define NET_QUEUE 4096u
#define NET_MESSAGE_MAX (96u << 10) /* bytes of a message */
#define NET_EARLY_MOST (128u << 10) /* bytes of what is sent early at a time, without heads */

/* Counters of links; written by the thread that the links belong to, read by any thread. */
struct net_counts {
    _Atomic uint64_t bytes;    /* bytes on the wire */
    _Atomic uint64_t messages; /* frames, but for heartbeats */
    _Atomic uint64_t errors;
    _Atomic uint64_t full; /* how often a send had to wait for room in the queue */
    /* Name of the current or last connection's transport; NULL: there was no connection. The string lives as long as the
     * process. */
    _Atomic(const char *) transport;
};

static inline void net_count(_Atomic uint64_t *counter, uint64_t more)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + more, memory_order_relaxed);
}

/* The head of frames that come early. All of it is untrusted. */
struct net_early_head {
    uint64_t comm;
    uint32_t rank;
    uint32_t node;        /* the number of the sender's node in the communicator */
    uint64_t turn, guess; /* the operator's turn, and what the sender expects of it: numbers of the owner's */
    uint64_t length;      /* bytes of the frames */
};

enum net_early_fate {
    NET_EARLY_TAKE, /* handle them as they come */
    NET_EARLY_KEEP,
    NET_EARLY_DROP,
};

/* Where a receiving end delivers what arrives. */
struct net_sink {
    struct net_regions *regions;
    /* Raises a flag of a rank. The epoch is untrusted. Called only for an existing flag, while the registration of the rank's
     * NET_FLAGS is held: net_region_remove(NET_FLAGS) and net_comm_end() wait for the call. It must neither block nor call
     * functions of region.h. A result other than 0 breaks the link. */
    int (*raise)(void *ctx, uint64_t comm, uint32_t rank, uint32_t flag, uint64_t epoch);
    /* Takes a message, whose bytes are the caller's and not trusted. The same restrictions as raise(), but no registration is held.
     * NULL: messages break the link. */
    int (*message)(void *ctx, uint32_t node, const void *bytes, uint32_t length);
    /* What becomes (enum net_early_fate) of frames that another node has sent before it knew that their operator would run. The same
     * restrictions as raise(); the registration of the rank's NET_FLAGS is held. A negative result breaks the link. KEEP: *offset is where in
     * the rank's region NET_EARLY they go, whose received() is called then; net_replay() handles them later. NULL: they break the link. */
    int (*early)(void *ctx, const struct net_early_head *head, uint64_t *offset);
    void *ctx;
    uint32_t node; /* the sender, for message() */
};

/* A receiving end's detection of a silent sender. Within limit_ns the receiver checks NET_LOOKS times whether anything has
 * arrived, and counts these checks instead of comparing times. While the receiver's process or its machine is stopped, it does
 * not listen, and the sender may be stopped, too; that counts as one check, however long it was. Checks are farther apart than
 * heartbeats, so no check finds silence while the sender is alive. */
struct net_silence {
    uint64_t limit_ns, heard_ns, looked_ns;
    unsigned looks; /* checks since something has arrived */
};
#define NET_LOOKS 4u
static_assert(NET_SILENT_MS / NET_LOOKS > NET_BEAT_MS, "checks are farther apart than heartbeats");

static inline void net_heard(struct net_silence *s, uint64_t now_ns)
{
    s->heard_ns = s->looked_ns = now_ns;
    s->looks = 0;
}

/* When the next check is due if nothing arrives. */
static inline uint64_t net_look_due(const struct net_silence *s)
{
    return s->looked_ns + s->limit_ns / NET_LOOKS;
}

/* To be called when nothing has arrived: has the sender been silent for too long? */
static inline bool net_is_silent(struct net_silence *s, uint64_t now_ns)
{
    if (now_ns >= net_look_due(s)) {
        s->looked_ns = now_ns;
        s->looks++;
    }
    return s->looks >= NET_LOOKS;
}

/* A queued frame: a write, a signal, a message or a heartbeat. */
struct net_item {
    struct net_place to;
    struct net_area area;      /* of a write: the rows, as few as they can be */
    const unsigned char *from; /* a write's first row, or a message; NULL: another frame */
    uint64_t length;           /* bytes of all rows */
    uint64_t value;            /* the signal's */
    bool is_beat;
    bool is_early;   /* a head: `to` and `value` have its fields, area.row_bytes the length */
    bool is_message; /* `from` is the link's, to be freed when the frame is flushed */
};

/* A sending end. Transports embed it in a larger struct. Its user only reads it, except for is_blocked. */
struct net_link {
    const struct net_ops *ops;
    /* To be watched with epoll for EPOLLIN | EPOLLOUT | EPOLLET. It may be an epoll descriptor for several others; then it is
     * never writable. */
    int fd;
    /* progress() can do nothing now. The user clears this when fd becomes writable; look() may clear it, too. */
    bool is_blocked;
    struct net_item *items; /* the transport's: a ring, in which frame n is at [n % queue], for flushed <= n < queued */
    uint32_t queue;         /* size of `items`; a power of two */
    uint64_t queued;        /* frames queued so far: writes, flags, signals, messages, heartbeats */
    uint64_t flushed;       /* frames whose source memory is not needed any more: the first so many of the queued ones */
    uint64_t due_ns;        /* when to call progress() even with nothing to send; UINT64_MAX: never */
    struct net_counts *counts;
    /* the adapter's name, which lives as long as the process; NULL: none, or not known before look() sets it */
    const char *device;
    struct net_rails rails; /* the rails that result from net_options */
    struct error error;     /* set when the link is broken */
};

/* A receiving end. */
struct net_receiver {
    const struct net_ops *ops;
    int fd;          /* to be watched with epoll for EPOLLIN */
    uint64_t due_ns; /* when to call receive() even if nothing has arrived */
    bool heard;      /* something has arrived */
    struct net_counts *counts;
    struct error error; /* set when the link is broken. -ESHUTDOWN: the sender has closed it in an orderly way */
};

/* A transport. */
struct net_ops {
    const char *name;
    bool has_messages; /* links carry messages, too */
    /* Can the transport carry links between the socket's ends? -ENODEV with the reason: no device has the socket's address.
     * NULL: always. */
    int (*usable)(int sock, struct error *e);
    /* Takes over a connected socket as a sending or a receiving end; if it fails, the caller closes the socket. `counts` and
     * `sink` belong to the caller and outlive the end. */
    int (*link_open)(int sock, const struct net_options *options, struct net_counts *counts, struct net_link **out,
                     struct error *e);
    int (*receiver_open)(int sock, const struct net_options *options, const struct net_sink *sink, struct net_counts *counts,
                         struct net_receiver **out, struct error *e);
    /* A frame was queued, which progress() will send. Returns 0, or the link's error. */
    int (*queued)(struct net_link *l, const struct net_item *item);
    /* Sends some of the queue, and a heartbeat if one is due. Returns 0: nothing is in flight; 1: something is; <0: the link is
     * broken. */
    int (*progress)(struct net_link *l, uint64_t now_ns);
    /* To be called when fd is readable, hung up or in error. Returns 0, or the link's error. */
    int (*look)(struct net_link *l);
    /* Takes some of what has arrived. Returns 0: that was all; 1: there may be more; <0: the link is broken. The caller reads
     * the clock (now_ns) before the call, so that a process that was stopped first reads what has arrived meanwhile. */
    int (*receive)(struct net_receiver *r, uint64_t now_ns);
    /* Of a transport with messages: after this no source memory of frames queued so far is used. They are NET_EARLY_MOST bytes of writes at
     * most, and some flags and messages, that progress() has just been called for, with nothing queued before. */
    void (*settle)(struct net_link *l);
    void (*link_close)(struct net_link *l);
    void (*receiver_close)(struct net_receiver *r);
};

/* ---- for transports ---- */

/* Makes the queue of a sending end. */
int net_queue_make(struct net_link *l, const struct net_options *options, struct error *e);
/* Queues a frame, or returns -EAGAIN. */
int net_queue_add(struct net_link *l, const struct net_item *item);

/* Sets the receiver's error "refused its data: why" and returns status. */
int net_refuse(struct net_receiver *r, int status, const char *why);
/* Handle a flag and a signal that have arrived, which are not trusted. Return 0 or the receiver's error. */
int net_flag_take(struct net_receiver *r, const struct net_sink *sink, uint64_t comm, uint32_t rank, uint32_t flag,
                  uint64_t epoch);
int net_signal_take(struct net_receiver *r, const struct net_sink *sink, const struct net_place *to, uint64_t value);
/* Sets the error for a socket that failed with `error`; `doing` begins the text of one that is not known better. */
int net_socket_broken(int error, const char *doing, struct error *e);

extern const struct net_ops net_tcp;
/* The verbs transport is a plug-in, ../lib/fccd/verbs.so relative to the program's directory, as it needs libraries that not
 * every node has. The plug-in exports this function. */
#define NET_PLUGIN_SYMBOL "net_plugin"
#define NET_PLUGIN_ABI 6u
struct net_plugin {
    uint32_t abi;
    const struct net_ops *ops;
};
typedef const struct net_plugin *net_plugin_function(void);

/* Frees the memory of a frame that is flushed, or is never sent. */
static inline void net_item_release(struct net_item *item)
{
    if (item->is_message)
        free((void *)item->from);
    item->is_message = false;
}

/* The functions that callers use. A broken link stays broken. */

/* net_write(), net_signal() and net_flag() return 0, -EAGAIN (the queue is full: call net_progress() and try again), or the
 * link's error. The source of a write must not change before the write is flushed. An area that does not fit into 64 bits is
 * -EINVAL; an empty area is 0. */
int net_write(struct net_link *l, const struct net_place *to, const void *from, const struct net_area *area);
/* Stores an 8-byte word at an offset aligned to 8, after the writes before it have arrived; atomically and with release, as
 * flags are raised. In the region NET_FLAGS it raises the flag whose number is the offset. */
int net_signal(struct net_link *l, const struct net_place *to, uint64_t value);
static inline int net_flag(struct net_link *l, uint64_t comm, uint32_t rank, uint32_t flag, uint64_t epoch)
{
    return net_signal(l, &(struct net_place){.comm = comm, .rank = rank, .region = NET_FLAGS, .offset = flag}, epoch);
}

/* Queues a copy of a message of 1 to NET_MESSAGE_MAX bytes, which arrives in the order of the other frames. The transport has
 * messages. -ENOMEM breaks the link. */
int net_message(struct net_link *l, const void *bytes, uint32_t length);

/* Queues the head of early frames. */
int net_early(struct net_link *l, const struct net_early_head *head);
/* Handles frames that were kept, as if they came now. They are not trusted. Returns 0, or the error that would have broken the link. */
int net_replay(const struct net_sink *sink, const void *frames, uint64_t length, struct error *e);

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
