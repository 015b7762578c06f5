/* SPDX-License-Identifier: MIT
 *
 * links.c - counts what the job has exchanged with each other node, for fccctl nodes.
 *
 * The proxy counts for each peer. A peer that is lost gives its counts to the node's account, and the next peer of that address begins
 * with zero. All of this is the engine thread's; the proxy's counts are read while it writes them.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/net/proxy.h"
#include "daemon/worker/engine/meter.h"
#include "daemon/worker/nodes/nodes.h"
#include "proto/base/json_fd.h"

struct nodes_account {
    LIST_ENTRY(nodes_account) link; /* worker.accounts */
    char address[FCC_NODE_MAX];
    uint64_t bytes_out, bytes_in, messages_out, messages_in, waits;
    uint64_t errors; /* how often a peer was lost while communicators needed it */
};

static uint64_t count(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* Add the peer's counts. The proxy's counts of its index may include those of an earlier peer, which are subtracted (peer.before). */
static void counts_add(const struct peer *p, struct nodes_account *a)
{
    const struct net_counts *sent = nodes_counts(p, true), *received = nodes_counts(p, false);

    if (!sent || !received)
        return;
    a->bytes_out += count(&sent->bytes) - p->before.bytes_out;
    a->bytes_in += count(&received->bytes) - p->before.bytes_in;
    a->messages_out += count(&sent->messages) - p->before.messages_out;
    a->messages_in += count(&received->messages) - p->before.messages_in;
    a->waits += count(&sent->full) - p->before.waits;
}

void nodes_link_begin(struct peer *p)
{
    struct nodes_account before = {.bytes_out = 0};

    memset(&p->before, 0, sizeof(p->before));
    counts_add(p, &before);
    p->before.bytes_out = before.bytes_out;
    p->before.bytes_in = before.bytes_in;
    p->before.messages_out = before.messages_out;
    p->before.messages_in = before.messages_in;
    p->before.waits = before.waits;
}

static struct nodes_account *account_find(const struct worker *w, const char *address)
{
    struct nodes_account *a;

    LIST_FOREACH(a, &w->accounts, link)
        if (!strcmp(a->address, address))
            return a;
    return NULL;
}

/* Reports the counts to the broker. */
static void account_meter(const struct worker *w, const struct nodes_account *a, const struct peer *p)
{
    const struct net_counts *sent = p ? nodes_counts(p, true) : NULL;
    const char *transport = sent ? atomic_load_explicit(&sent->transport, memory_order_acquire) : NULL;

    meter_node(w, a->address, transport ? transport : "",
               &(struct meter_node){.bytes_out = a->bytes_out,
                                    .bytes_in = a->bytes_in,
                                    .messages_out = a->messages_out,
                                    .messages_in = a->messages_in,
                                    .waits = a->waits,
                                    .lost = a->errors});
}

void nodes_link_end(const struct peer *p, bool was_needed)
{
    struct nodes_account *a = account_find(p->worker, p->address);

    if (!a) {
        a = calloc(1, sizeof(*a));
        if (!a)
            return; /* no memory: these counts are not shown */
        text_copy(a->address, sizeof(a->address), p->address);
        LIST_INSERT_HEAD(&p->worker->accounts, a, link);
    }
    counts_add(p, a);
    a->errors += was_needed;
    account_meter(p->worker, a, p);
}

/* ---- for the broker ---- */

void nodes_links_meter(struct worker *w)
{
    const struct peer *p;

    w->links_stale = false;
    if (!w->meters)
        return;
    LIST_FOREACH(p, &w->peers, link) {
        struct nodes_account sum = {.bytes_out = 0};
        const struct nodes_account *a = account_find(w, p->address);
        if (p->broken.status)
            continue;
        if (a)
            sum = *a;
        text_copy(sum.address, sizeof(sum.address), p->address);
        counts_add(p, &sum);
        account_meter(w, &sum, p);
    }
}

void nodes_links_free(struct worker *w)
{
    struct nodes_account *a;

    while ((a = LIST_FIRST(&w->accounts))) {
        LIST_REMOVE(a, link);
        free(a);
    }
}

/* ---- fccctl nodes ---- */

/* The open rails, and the adapters that serve them. */
static void rails_describe(struct json_object *o, const struct peer *p)
{
    struct json_object *devices = json_object_new_array();
    uint32_t rails = 0;

    for (uint32_t r = 0; p && r < NET_RAILS_MAX; r++) {
        const char *device = p->data[r] == PEER_OPEN ? nodes_rail_device(p, r) : NULL;
        rails += p->data[r] == PEER_OPEN;
        if (device)
            json_object_array_add(devices, json_text(device));
    }
    JSON_ADD(o, {"rails", json_int(rails)}, {"devices", devices});
}

static struct json_object *account_describe(const struct nodes_account *a, const struct peer *p)
{
    const struct net_counts *sent = p ? nodes_counts(p, true) : NULL;
    const char *state = !p ? "closed" : peer_is_open(p) ? "open" : "connecting";
    const char *transport = sent ? atomic_load_explicit(&sent->transport, memory_order_acquire) : NULL;
    struct json_object *o = JSON_OBJECT({"node", json_text(a->address)}, {"state", json_text(state)},
                                        {"transport", json_text(transport ? transport : "")});

    rails_describe(o, p);
    JSON_ADD(o, {"bytes_out", json_int(a->bytes_out)}, {"bytes_in", json_int(a->bytes_in)},
             {"messages_out", json_int(a->messages_out)}, {"messages_in", json_int(a->messages_in)},
             {"waits", json_int(a->waits)}, {"errors", json_int(a->errors)});
    return o;
}

struct json_object *nodes_links_describe(const struct worker *w)
{
    struct json_object *o = json_object_new_object(), *links = json_object_new_array();
    const struct nodes_account *a;
    const struct peer *p;

    JSON_ADD(o, {"uid", json_int(w->uid)}, {"job", json_text(w->job)}, {"pid", json_int(getpid())}, {"links", links});
    LIST_FOREACH(p, &w->peers, link) {
        struct nodes_account sum = {.bytes_out = 0};
        if (p->broken.status)
            continue;
        a = account_find(w, p->address);
        if (a)
            sum = *a;
        text_copy(sum.address, sizeof(sum.address), p->address);
        counts_add(p, &sum);
        json_object_array_add(links, account_describe(&sum, p));
    }
    LIST_FOREACH(a, &w->accounts, link) {
        LIST_FOREACH(p, &w->peers, link)
            if (!p->broken.status && !strcmp(p->address, a->address))
                break;
        if (!p)
            json_object_array_add(links, account_describe(a, NULL));
    }
    return o;
}
