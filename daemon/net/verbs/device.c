/* SPDX-License-Identifier: MIT
 *
 * device.c - what both ends of a verbs link need: the device's protection domain, registered memory, queues.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/net/tcp/tcp.h"
#include "daemon/net/verbs/verbs.h"
#include "proto/base/fd.h"

#define INLINE_BYTES 128u
#define MEMLOCK_HINT                                                                                                           \
    "registered memory is pinned, and counts against the limit of locked memory (LimitMEMLOCK= of fccd.service, ulimit -l)"

struct verbs_device {
    struct ibv_context *context; /* owned by librdmacm: one for each device, for the process's life */
    struct ibv_pd *pd;
    unsigned refs; /* references of ends and keys */
    LIST_ENTRY(verbs_device) link;
};

/* Protects the list and the devices' refs. Taken after all other locks. */
static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(devices_head, verbs_device) devices = LIST_HEAD_INITIALIZER(devices);

/* ---- devices ---- */

static struct verbs_device *device_new(struct ibv_context *context, struct error *e)
{
    struct verbs_device *d = calloc(1, sizeof(*d));

    if (!d) {
        (void)error_set(e, -ENOMEM, "no memory for a protection domain");
        return NULL;
    }
    d->context = context;
    d->pd = ibv_alloc_pd(context);
    if (!d->pd) {
        (void)error_set(e, -ENOMEM, "%s: cannot make a protection domain: %m", ibv_get_device_name(context->device));
        free(d);
        return NULL;
    }
    LIST_INSERT_HEAD(&devices, d, link);
    return d;
}

/* The protection domain of this process at a device. Takes a reference. NULL on error. */
static struct verbs_device *verbs_device_get(struct ibv_context *context, struct error *e)
{
    struct verbs_device *d;

    (void)pthread_mutex_lock(&devices_lock);
    LIST_FOREACH(d, &devices, link)
        if (d->context == context)
            break;
    if (!d)
        d = device_new(context, e);
    if (d)
        d->refs++;
    (void)pthread_mutex_unlock(&devices_lock);
    return d;
}

void verbs_device_hold(struct verbs_device *d)
{
    (void)pthread_mutex_lock(&devices_lock);
    d->refs++;
    (void)pthread_mutex_unlock(&devices_lock);
}

void verbs_device_put(struct verbs_device *d)
{
    (void)pthread_mutex_lock(&devices_lock);
    if (--d->refs == 0) {
        LIST_REMOVE(d, link);
        (void)ibv_dealloc_pd(d->pd);
        free(d);
    }
    (void)pthread_mutex_unlock(&devices_lock);
}

static int register_failed(const struct verbs_device *d, uint64_t bytes, struct error *e)
{
    int error = errno ? errno : ENOMEM;

    return error_set(e, -error, "%s: cannot register %llu bytes of memory: %s%s", ibv_get_device_name(d->context->device),
                     (unsigned long long)bytes, strerror(error), error == ENOMEM || error == EAGAIN ? ": " MEMLOCK_HINT : "");
}

int verbs_register(struct verbs_device *d, void *base, size_t bytes, int access, struct ibv_mr **out, struct error *e)
{
    *out = ibv_reg_mr(d->pd, base, bytes, access);
    return *out ? 0 : register_failed(d, bytes, e);
}

int verbs_register_direct(struct verbs_device *d, const struct net_direct *direct, size_t bytes, int access,
                          struct ibv_mr **out, struct error *e)
{
    *out = ibv_reg_dmabuf_mr(d->pd, direct->fd_offset, bytes, direct->address, direct->fd, access);
    return *out ? 0
                : error_set(e, errno ? -errno : -EIO, "%s: cannot register %zu bytes of a dma-buf: %m",
                            ibv_get_device_name(d->context->device), bytes);
}

const char *verbs_device_name(const struct verbs_device *d)
{
    return ibv_get_device_name(d->context->device);
}

/* ---- ends ---- */

int verbs_end_watch(const struct verbs_end *end, int fd, enum verbs_source source, struct error *e)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = source};
    int flags = fcntl(fd, F_GETFL);

    if (source == VERBS_SOCKET)
        event.events |= EPOLLRDHUP;
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) || epoll_ctl(end->epoll, EPOLL_CTL_ADD, fd, &event))
        return error_set(e, -errno, "cannot watch a descriptor: %m");
    return 0;
}

int verbs_end_open(struct verbs_end *end, int sock, const struct net_options *options, struct error *e)
{
    int status = tcp_socket_prepare(sock, options, e);

    end->socket.fd = sock;
    end->epoll = status ? -1 : epoll_create1(EPOLL_CLOEXEC);
    end->socket.epoll = end->epoll;
    if (!status && end->epoll < 0)
        status = error_set(e, -errno, "cannot make a link: %m");
    if (!status)
        status = verbs_channel_open(&end->channel, e);
    if (!status)
        status = verbs_end_watch(end, sock, VERBS_SOCKET, e);
    if (!status)
        status = verbs_end_watch(end, end->channel->fd, VERBS_CM, e);
    return status;
}

void verbs_end_stop(struct verbs_end *end)
{
    if (!end->id || !end->id->qp)
        return;
    (void)rdma_disconnect(end->id);
    rdma_destroy_qp(end->id);
}

void verbs_end_drop(struct verbs_end *end)
{
    verbs_end_stop(end); /* the queue pair goes before the memory that it uses */
    if (end->mr)
        (void)ibv_dereg_mr(end->mr);
    if (end->memory)
        (void)munmap(end->memory, end->bytes);
    if (end->cq)
        (void)ibv_destroy_cq(end->cq);
    if (end->completions)
        (void)ibv_destroy_comp_channel(end->completions);
    if (end->id)
        (void)rdma_destroy_id(end->id);
    if (end->device)
        verbs_device_put(end->device);
    end->mr = NULL;
    end->memory = NULL;
    end->cq = NULL;
    end->completions = NULL;
    end->id = NULL;
    end->device = NULL;
}

void verbs_end_close(struct verbs_end *end)
{
    verbs_end_drop(end);
    if (end->channel)
        rdma_destroy_event_channel(end->channel);
    fd_close(&end->epoll);
}

static uint32_t smaller(uint32_t a, int b)
{
    return b > 0 && (uint32_t)b < a ? (uint32_t)b : a;
}

/* Devices differ in how much inline data they support, and refuse more. So smaller values are tried. */
static int queue_pair_make(struct verbs_end *end, uint32_t sends, uint32_t receives, struct error *e)
{
    for (uint32_t inline_bytes = INLINE_BYTES;; inline_bytes /= 2) {
        struct ibv_qp_init_attr attr = {.send_cq = end->cq,
                                        .recv_cq = end->cq,
                                        .cap = {.max_send_wr = sends,
                                                .max_recv_wr = receives,
                                                .max_send_sge = 1,
                                                .max_recv_sge = 1,
                                                .max_inline_data = inline_bytes},
                                        .qp_type = IBV_QPT_RC};
        if (!rdma_create_qp(end->id, end->device->pd, &attr)) {
            end->cap = attr.cap;
            if (attr.cap.max_send_wr > sends) /* a device may round up, but the completion queue has room for `sends` only */
                end->cap.max_send_wr = sends;
            return 0;
        }
        if (!inline_bytes)
            return error_set(e, -errno, "%s: cannot make a queue pair: %m", ibv_get_device_name(end->device->context->device));
    }
}

int verbs_end_queues(struct verbs_end *end, uint32_t sends, uint32_t receives, size_t bytes, struct error *e)
{
    struct ibv_device_attr limits;

    end->device = verbs_device_get(end->id->verbs, e);
    if (!end->device)
        return -ENOMEM;
    const char *name = ibv_get_device_name(end->id->verbs->device);
    if (ibv_query_device(end->id->verbs, &limits))
        return error_set(e, -EIO, "%s: cannot ask for its limits: %m", name);
    sends = smaller(sends, limits.max_qp_wr);
    receives = smaller(receives, limits.max_qp_wr);
    end->completions = ibv_create_comp_channel(end->id->verbs);
    if (!end->completions)
        return error_set(e, -errno, "%s: cannot make a completion channel: %m", name);
    int status = verbs_end_watch(end, end->completions->fd, VERBS_CQ, e);
    if (status)
        return status;
    end->cq = ibv_create_cq(end->id->verbs, (int)(sends + receives), NULL, end->completions, 0);
    if (!end->cq)
        return error_set(e, -errno, "%s: cannot make a completion queue of %u: %m", name, sends + receives);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return error_set(e, -ENOMEM, "no memory for a link");
    end->memory = memory;
    end->bytes = bytes;
    status = verbs_register(end->device, memory, bytes, IBV_ACCESS_LOCAL_WRITE, &end->mr, e);
    return status ? status : queue_pair_make(end, sends, receives, e);
}

int verbs_end_notified(struct verbs_end *end, struct error *e)
{
    struct ibv_cq *cq;
    void *context;

    if (!end->completions)
        return 0;
    if (ibv_get_cq_event(end->completions, &cq, &context))
        return errno == EAGAIN ? 0 : error_set(e, -errno, "cannot read a completion channel: %m");
    ibv_ack_cq_events(cq, 1);
    return 0;
}

/* A hint for the administrator. */
static const char *wc_hint(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
        return "its adapter does not answer: look at the link (rdma link, ip link) and whether UDP port 4791 gets through, for "
               "RoCE";
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
        return "memory there was taken back while it was being written: an operator or a process has failed there; look at its "
               "log";
    case IBV_WC_RNR_RETRY_EXC_ERR:
        return "it takes no flags: its worker does not run; look at its log";
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
        return "this adapter refused what it was given, or its link is down; look at rdma link and this node's kernel log "
               "(dmesg)";
    case IBV_WC_WR_FLUSH_ERR:
        return "the queue pair was closed; look at the other node's log";
    default:
        return "look at the kernel logs (dmesg) of both nodes";
    }
}

int verbs_wc_error(const struct ibv_wc *wc, struct error *e)
{
    int status = wc->status == IBV_WC_RETRY_EXC_ERR                                            ? -ETIMEDOUT
                 : wc->status == IBV_WC_REM_ACCESS_ERR || wc->status == IBV_WC_REM_INV_REQ_ERR ? -EPROTO
                 : wc->status == IBV_WC_WR_FLUSH_ERR                                           ? -ECONNRESET
                                                                                               : -EIO;

    return error_set(e, status, "RDMA: %s (vendor's code %u): %s", ibv_wc_status_str(wc->status), wc->vendor_err,
                     wc_hint(wc->status));
}
