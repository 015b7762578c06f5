/* SPDX-License-Identifier: MIT
 *
 * data.c - the data of communicators over several nodes.
 *
 * Sending. Workgroups push triggers, which name data in bounce buffers: triggers.c.
 *
 * Receiving. The proxy thread stores data into regions, then raises flags (device_cpu_flag_raise()). Two flags are not a plan's. DONE says
 * how many turns have ended on the sending node; it follows all data of those turns. It is sent on every rail that the node's ranks use, and
 * counts when it has come on all of them (rails.c). LEFT says that a rank has left; it follows all puts of the rank's own kernels (puts.h), on
 * the rank's rail.
 *
 * GPUs. Their kernels push into a FIFO of each GPU, and received data lands in host memory first: gpu_data.c.
 *
 * The engine leads the proxy (proxy_lead()): while it is awake it sends and receives itself, and what it runs of an operator (struct launch:
 * stepwise) needs no other thread. While it sleeps, whatever the proxy has to do wakes it. What follows holds for the thread that stands in, and
 * where there is no leader.
 *
 * The proxy thread touches this state of the engine: entries in use, and an entry's launch until END has come back; flags, under the
 * registry's lock (daemon/net/region.h); done[], left[]; news and lost.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/common/plugin.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/device/gpu/steps.h"
#include "daemon/worker/nodes/gpu_data.h"
#include "daemon/worker/nodes/inside.h"
#include "daemon/worker/nodes/puts.h"
#include "proto/base/log.h"

#define FIFO_CAPACITY 8192u /* triggers */

/* ---- the proxy's thread ---- */

void nodes_news_post(struct nodes_data *d)
{
    atomic_store_explicit(&d->news, 1, memory_order_seq_cst);
    worker_wake(d->worker);
}

static bool more(void *ctx, struct proxy_send *out)
{
    const struct nodes_data *d = ctx;

    return puts_next(d->puts, out);
}

static int more_ms(void *ctx)
{
    const struct nodes_data *d = ctx;

    return puts_next_ms(d->puts);
}

static void failed(void *ctx, uint32_t node, const struct error *e)
{
    struct nodes_data *d = ctx;

    if (atomic_load_explicit(&d->lost, memory_order_acquire) >> node & 1u)
        return; /* the engine has not handled the earlier news yet */
    d->errors[node] = *e;
    (void)atomic_fetch_or_explicit(&d->lost, UINT64_C(1) << node, memory_order_release);
    nodes_news_post(d);
}

static uint32_t flags_begin(uint64_t comm, uint32_t rank)
{
    return (uint32_t)(comm * 61 + rank) % FLAGS_TABLE;
}

struct rank_flags flags_find(struct nodes_data *d, uint64_t comm, uint32_t rank)
{
    struct rank_flags found = {.flags = NULL};
    uint32_t begin = flags_begin(comm, rank);

    (void)pthread_rwlock_rdlock(&d->flags_lock);
    for (uint32_t i = 0; i < FLAGS_TABLE && !found.flags; i++) {
        const struct rank_flags *f = &d->flags[(begin + i) % FLAGS_TABLE];
        if (f->flags && f->comm == comm && f->rank == rank)
            found = *f;
    }
    (void)pthread_rwlock_unlock(&d->flags_lock);
    return found;
}

/* DONE has come over one rail of a node. The node's data of these turns is complete when DONE has come over all its rails. */
static void done_raise(struct nodes_data *d, const struct rank_flags *f, uint32_t number, uint64_t turns)
{
    uint32_t node = done_node(number);

    if (!done_by_all(f->done_rails[node], number, turns))
        return;
    if (f->device->ops->number != FCC_DEVICE_CPU)
        gpu_data_flush(f->device);
    /* Release: data received before is in our memory, or being copied to a GPU. One thread receives from all rails. */
    atomic_store_explicit(&f->done[node], turns, memory_order_release);
    nodes_news_post(d);
}

/* The rank's flags stay valid during the call: before they are freed the rank's NET_FLAGS region is removed, which waits for this (net.h). */
static int raise_flag(void *ctx, uint64_t comm, uint32_t rank, uint32_t flag, uint64_t epoch)
{
    struct nodes_data *d = ctx;
    struct rank_flags f = flags_find(d, comm, rank);

    if (!f.flags)
        return -ENOENT;
    if (flag < FLAG_DONE && f.device->ops->number == FCC_DEVICE_CPU) {
        device_cpu_flag_raise(f.device, &f.flags[flag], epoch);
    } else if (flag < FLAG_DONE) {
        /* data received before is in the GPU's memory, or being copied there in order (device/gpu/steps.c) */
        gpu_data_flag_raise(f.device, &f.flags[flag], epoch);
    } else if (flag < FLAG_LEFT) {
        done_raise(d, &f, flag - FLAG_DONE, epoch);
    } else { /* release: as in done_raise() */
        uint32_t gone = flag - FLAG_LEFT;
        (void)atomic_fetch_or_explicit(&f.left[gone / 64], UINT64_C(1) << gone % 64, memory_order_release);
        nodes_news_post(d);
    }
    return 0;
}

/* ---- the engine's ---- */

/* Any thread that adds connections: the loader gives the same library again. */
static const struct net_ops *verbs_load(const char *plugin_dir, struct error *e)
{
    net_plugin_function *function;
    void *library = plugin_open("verbs", plugin_dir, e);

    if (!library)
        return NULL;
    void *symbol = dlsym(library, NET_PLUGIN_SYMBOL);
    memcpy(&function, &symbol, sizeof(function)); /* the way from an object's address to a function's that C allows */
    const struct net_plugin *plugin = symbol ? function() : NULL;
    if (plugin && plugin->abi == NET_PLUGIN_ABI)
        return plugin->ops;
    (void)error_set(e, -EPROTO, "the plug-in verbs.so is not one of this fccd's version");
    (void)dlclose(library);
    return NULL;
}

/* Chooses the transport of the link that this socket belongs to, by TRANSPORT and PLUGIN_DIR of the configuration. "auto" is
 * verbs where its plug-in is installed and the socket's address is one of an RDMA device, otherwise tcp. NULL with the reason. */
static const struct net_ops *net_choose(const char *transport, const char *plugin_dir, int sock, struct error *e)
{
    struct error why = {0};

    if (!strcmp(transport, "tcp"))
        return &net_tcp;
    const struct net_ops *verbs = verbs_load(plugin_dir, &why);
    if (verbs && !verbs->usable(sock, &why))
        return verbs;
    if (!strcmp(transport, "verbs")) {
        (void)error_set(e, why.status, "TRANSPORT is verbs: %s", why.text);
        return NULL;
    }
    log_debug("data goes over tcp: %s", why.text);
    return &net_tcp;
}

static const struct net_ops *transport_choose(void *ctx, int sock, struct net_options *net, struct error *e)
{
    const struct nodes_data *d = ctx;
    const struct config *c = &d->worker->config;

    nodes_rails_options(d->worker, net);
    return net_choose(c->transport, c->plugin_dir, sock, e);
}

/* The loop does the work. */
static void on_proxy(evutil_socket_t fd, short what, void *arg)
{
    const struct nodes_data *d = arg;

    (void)fd, (void)what;
    if (!proxy_leads(d->proxy))
        (void)event_del(d->proxy_event);
}

static int proxy_lead_begin(struct nodes_data *d, struct error *e)
{
    proxy_lead(d->proxy);
    d->proxy_event = event_new(d->worker->base, proxy_rest_fd(d->proxy), EV_READ | EV_PERSIST, on_proxy, d);
    if (d->proxy_event && !event_add(d->proxy_event, NULL))
        return 0;
    event_drop(&d->proxy_event);
    proxy_stop(d->proxy);
    proxy_free(d->proxy);
    return error_set(e, -ENOMEM, "no memory for the proxy");
}

/* Make worker.data, when the first communicator has ranks on other nodes. */
static int data_open(struct worker *w, struct error *e)
{
    static const struct proxy_owner calls = {.resolve = nodes_resolve,
                                             .done = nodes_done,
                                             .failed = failed,
                                             .raise = raise_flag,
                                             .message = peers_message,
                                             .early = nodes_early_come,
                                             .more = more,
                                             .more_ms = more_ms};
    struct nodes_data *d = w->data;
    struct proxy_owner owner = calls;
    uint32_t producers = 1;

    if (d)
        return 0;
    d = calloc(1, sizeof(*d));
    if (!d)
        return error_set(e, -ENOMEM, "no memory for the proxy");
    d->worker = w;
    (void)pthread_rwlock_init(&d->flags_lock, NULL);
    (void)pthread_mutex_init(&d->letters_lock, NULL);
    STAILQ_INIT(&d->letters);
    for (int i = 0; i < w->ndevices; i++)
        producers += w->devices[i].workgroups;
    owner.ctx = d;
    d->puts = puts_all_new(w, e);
    int status = d->puts ? net_regions_open(&d->regions, e) : e->status;
    if (!status) {
        struct proxy_options options = {
            .choose = transport_choose,
            .net = {.beat_ms = NET_BEAT_MS, .silent_ms = w->config.silence_ms, .queue = NET_QUEUE, .log = log_write},
            .regions = d->regions,
            .capacity = FIFO_CAPACITY,
            .producers = producers < FIFO_CAPACITY / 2 ? producers : FIFO_CAPACITY / 2,
            .spin_us = w->config.spin_us,
        };
        status = proxy_start(&owner, &options, &d->proxy, e);
    }
    if (!status)
        status = proxy_lead_begin(d, e);
    if (status) {
        if (d->regions)
            net_regions_close(d->regions);
        if (d->puts)
            puts_all_free(d->puts);
        free(d);
        return status;
    }
    d->fifo = proxy_fifo(d->proxy);
    w->data = d;
    return 0;
}

void nodes_data_stop(struct worker *w)
{
    struct nodes_data *d = w->data;

    if (!d)
        return;
    event_drop(&d->proxy_event);
    proxy_flush(d->proxy); /* the last messages, as that ranks have left */
    proxy_stop(d->proxy);
    puts_all_free(d->puts);
    d->puts = NULL;
}

void nodes_data_free(struct worker *w)
{
    struct nodes_data *d = w->data;

    if (!d)
        return;
    proxy_free(d->proxy);
    net_regions_close(d->regions);
    (void)pthread_rwlock_destroy(&d->flags_lock);
    (void)pthread_mutex_destroy(&d->letters_lock);
    peers_letters_free(&d->letters);
    for (uint32_t i = 0; i < ENTRIES; i++)
        free(d->entries[i].ranks);
    free(d);
    w->data = NULL;
}

int nodes_data_open(struct peer *p, uint32_t rail, int sock, struct error *e)
{
    int status = data_open(p->worker, e);

    if (status)
        (void)close(sock);
    else
        status = proxy_link_add(p->worker->data->proxy, p->index, rail, sock, e);
    if (status)
        return status;
    const struct nodes_data *d = p->worker->data;
    if (rail == 0) {
        const struct net_rails rails = proxy_rails(d->proxy, p->index, 0);
        nodes_rails_set(p, &rails);
    }
    log_info("node %s: data goes there over %s, rail %u of %u", p->address,
             atomic_load_explicit(&nodes_counts(p, true)->transport, memory_order_acquire), rail, p->rails.n);
    return 0;
}

int nodes_data_accept(struct peer *p, uint32_t rail, int sock, struct error *e)
{
    int status = data_open(p->worker, e);

    if (status)
        (void)close(sock);
    return status ? status : proxy_receive(p->worker->data->proxy, p->index, rail, sock, e);
}

const char *nodes_rail_device(const struct peer *p, uint32_t rail)
{
    return proxy_rail_device(p->worker->data->proxy, p->index, rail);
}

const struct net_counts *nodes_counts(const struct peer *p, bool sent)
{
    const struct nodes_data *d = p->worker->data;

    if (!d)
        return NULL;
    return sent ? proxy_sent(d->proxy, p->index) : proxy_received(d->proxy, p->index);
}

void nodes_data_doubt(const struct peer *p)
{
    if (p->worker->data)
        proxy_doubt(p->worker->data->proxy, p->index);
}

void nodes_data_forget(const struct peer *p)
{
    if (p->worker->data)
        proxy_forget(p->worker->data->proxy, p->index);
}

int nodes_region_add(struct comm *c, int rank, uint32_t region, const struct device_memory *m, uint64_t bytes, struct error *e)
{
    struct net_bounce bounce = {.received = NULL};
    void *base = m->data;
    int status = data_open(c->worker, e);

    if (!status && c->dev.ops->number != FCC_DEVICE_CPU)
        status = receive_bounce_add(c, rank, region, m, bytes, &base, &bounce, e);
    if (status)
        return status;
    status =
        net_region_add_bounce(c->worker->data->regions, nodes_memory_here(c), (uint32_t)rank, region, base, bytes, &bounce, e);
    if (status)
        receive_bounces_remove(c->worker, nodes_memory_here(c), rank, region);
    return status;
}

void nodes_region_remove(struct worker *w, uint64_t number, int rank, uint32_t region)
{
    if (!w->data)
        return;
    net_region_retire(w->data->regions, number, (uint32_t)rank, region);
    receive_bounces_remove(w, number, rank, region);
}

int nodes_flags_add(struct comm *c, int rank, struct error *e)
{
    struct member *m = &c->members[rank];
    bool is_cpu = c->dev.ops->number == FCC_DEVICE_CPU;
    struct rank_flags *f = NULL;
    int status = data_open(c->worker, e);

    if (!status && !is_cpu)
        status = gpu_data_rank_open(m, c->worker->data->proxy, e);
    if (status)
        return status;
    for (uint32_t i = flags_begin(nodes_memory_here(c), (uint32_t)rank), n = 0; n < FLAGS_TABLE && !f; n++)
        if (!c->worker->data->flags[(i + n) % FLAGS_TABLE].flags)
            f = &c->worker->data->flags[(i + n) % FLAGS_TABLE];
    if (!f)
        return error_set(e, -ENOMEM,
                         "rank %d: %u ranks of this job on this node are in communicators over several nodes already", rank,
                         FLAGS_TABLE);
    (void)pthread_rwlock_wrlock(&c->worker->data->flags_lock);
    *f = (struct rank_flags){.comm = nodes_memory_here(c),
                             .rank = (uint32_t)rank,
                             .flags = is_cpu ? (_Atomic uint64_t *)(void *)m->dev->flags.data : m->dev->arrived,
                             .done = c->nodes->done,
                             .done_rails = c->nodes->done_rails,
                             .left = c->nodes->left,
                             .early = &c->nodes->early,
                             .device = m->dev->device};
    (void)pthread_rwlock_unlock(&c->worker->data->flags_lock);
    /* On failure the communicator does not form, and its end removes the flags. */
    return net_region_add(c->worker->data->regions, nodes_memory_here(c), (uint32_t)rank, NET_FLAGS, NULL,
                          FLAG_LEFT + FCC_MAX_RANKS, e);
}

void nodes_data_drop(const struct comm *c)
{
    if (c->worker->data && c->nodes->formed) /* otherwise no other node knows its memory */
        net_comm_end(c->worker->data->regions, nodes_memory_here(c));
}

void nodes_data_end(struct comm *c)
{
    struct nodes_data *d = c->worker->data;

    nodes_data_drop(c);
    if (!d || !c->nodes->formed)
        return;
    (void)pthread_rwlock_wrlock(&d->flags_lock);
    for (uint32_t i = 0; i < FLAGS_TABLE; i++)
        if (d->flags[i].flags && d->flags[i].comm == nodes_memory_here(c))
            d->flags[i].flags = NULL;
    (void)pthread_rwlock_unlock(&d->flags_lock);
    receive_bounces_remove(c->worker, nodes_memory_here(c), -1, 0);
    nodes_channel_close(c);
}

bool nodes_rail_is_busy(const struct peer *p)
{
    const struct nodes_data *d = p->worker->data;

    return d && p->by_rail && proxy_is_sending(d->proxy, p->index);
}

/* lost: the peers whose connections have failed. What they had sent before has been handled. */
static void lost_look(struct worker *w, uint64_t lost)
{
    struct peer *p;

    LIST_FOREACH(p, &w->peers, link) {
        const struct error *e = &w->data->errors[p->index];
        if (!(lost >> p->index & 1u))
            continue;
        p->rail_over = p->has_rail; /* otherwise theirs is still on its way through the brokers, and has its messages */
        if (e->status == -ESHUTDOWN || e->status == -ECONNRESET) /* which to ranks is this node's end */
            peer_ends(p, -ECONNRESET, "%s", e->text);
        else
            peer_break(p, e->status, "%s", e->text);
    }
    (void)atomic_fetch_and_explicit(&w->data->lost, ~lost, memory_order_release);
}

bool nodes_have_news(const struct worker *w)
{
    return w->data && atomic_load_explicit(&w->data->news, memory_order_seq_cst);
}

/* Whether remote ranks have left since the last look. */
static bool left_look(struct comm_nodes *n)
{
    bool any = false;

    for (int i = 0; i < RANKSET_WORDS; i++) {
        uint64_t left = atomic_load_explicit(&n->left[i], memory_order_acquire);
        any |= left != n->left_seen.words[i];
        n->left_seen.words[i] = left;
    }
    return any;
}

bool nodes_lead(const struct worker *w)
{
    return w->data && proxy_leads(w->data->proxy);
}

bool nodes_rest(struct worker *w)
{
    return !nodes_lead(w) || proxy_rest(w->data->proxy);
}

void nodes_wake(struct worker *w)
{
    if (nodes_lead(w))
        proxy_wake(w->data->proxy);
}

bool nodes_poll(struct worker *w)
{
    struct comm *c, *next;
    bool any = w->data && proxy_drive(w->data->proxy);

    if (!w->data || !atomic_load_explicit(&w->data->news, memory_order_relaxed))
        return any;
    atomic_store_explicit(&w->data->news, 0, memory_order_seq_cst);
    uint64_t lost = atomic_load_explicit(&w->data->lost, memory_order_acquire); /* before messages that came before */
    peers_take(w);
    if (lost)
        lost_look(w, lost);
    puts_poll(w->data->puts);
    LIST_FOREACH_SAFE(c, &w->comms, link, next) {
        if (!c->nodes || c->state != COMM_ACTIVE)
            continue;
        if (left_look(c->nodes))
            comm_status_raise(c, -ECONNABORTED);
        nodes_early_look(c);
        comm_advance(c);
        comm_release(c);
    }
    return true;
}
