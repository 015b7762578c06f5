/* SPDX-License-Identifier: MIT
 *
 * node.c - the listening socket for other nodes' brokers, the list of nodes, and rate-limited complaints.
 */
#include "daemon/broker/nodes/node.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/base/json_fd.h"
#include "proto/base/log.h"

#define BACKLOG 1024

/* ---- the list ---- */

struct node *node_find(const struct nodes *ns, const char *address)
{
    struct node *n;

    TAILQ_FOREACH(n, &ns->list, link)
        if (!strcmp(n->address, address))
            return n;
    return NULL;
}

static struct node *node_add(struct nodes *ns, const char *address, bool configured)
{
    struct node *n = ns->nlist < KNOWN_MAX && !ns->closing ? calloc(1, sizeof(*n)) : NULL;

    if (!n)
        return NULL;
    *n = (struct node){.nodes = ns, .configured = configured, .since_ns = clock_ns(), .backoff_ms = BACKOFF_FIRST_MS};
    text_copy(n->address, sizeof(n->address), address);
    (void)resolve(address, true, &n->known); /* a name is resolved by its link */
    TAILQ_INSERT_TAIL(&ns->list, n, link);
    ns->nlist++;
    node_start(n);
    return n;
}

struct node *node_know(struct nodes *ns, const char *address)
{
    struct node *n = node_find(ns, address);
    return n || !strcmp(address, ns->own) ? n : node_add(ns, address, false);
}

void node_free(struct node *n)
{
    struct conn *c;

    if (n->conn)
        (void)conn_release(n->conn, false);
    TAILQ_FOREACH(c, &n->nodes->conns, link)
        if (c->node == n)
            c->node = NULL;
    TAILQ_REMOVE(&n->nodes->list, n, link);
    n->nodes->nlist--;
    event_stop(&n->timer);
    free(n);
}

int node_check(const struct nodes *ns, const char *address, struct error *e)
{
    if (!ns)
        return error_set(e, -ENOTSUP, "node %s: this fccd speaks to no other node: NODE_LISTEN is empty", address);
    if (address_split(address, NULL, NULL))
        return error_set(e, -EINVAL, "node \"%s\": allowed is " ADDRESS_ALLOWED, address);
    if (!strcmp(address, ns->own))
        return error_set(e, -EINVAL, "node %s: that is this node itself", address);
    if (ns->closing)
        return error_set(e, -ESHUTDOWN, "node %s: this fccd is shutting down", address);
    return 0;
}

bool node_permit(const struct nodes *ns, uid_t uid)
{
    return uid == 0 || uid == geteuid() || !*ns->broker->config.nodes;
}

bool node_is_at(const struct nodes *ns, const void *address, uint32_t length)
{
    const struct node *n;

    TAILQ_FOREACH(n, &ns->list, link)
        for (uint32_t i = 0; n->configured && i < n->known.n; i++)
            if (n->known.all[i].length == length && !memcmp(n->known.all[i].address, address, length))
                return true;
    return false;
}

/* ---- complaints ---- */

/* The entry for that peer and status: its own, or an old one that is reused. NULL: all entries are less than a minute old. */
static struct complaint *complaint_find(struct nodes *ns, const char *who, int status, uint64_t now)
{
    struct complaint *place = NULL;

    for (int i = 0; i < COMPLAINTS; i++) {
        struct complaint *c = &ns->complaints[i];
        if (c->status == status && !strcmp(c->who, who))
            return c;
        if (!c->status || now - c->when_ns >= COMPLAIN_EVERY_NS)
            place = c;
    }
    if (place) {
        ns->unsaid += place->unsaid; /* nodes_catch_up() has not logged these */
        *place = (struct complaint){.status = status};
        text_copy(place->who, sizeof(place->who), who);
    }
    return place;
}

void nodes_complain(struct nodes *ns, const char *who, const struct error *why)
{
    uint64_t now = clock_ns();
    struct complaint *c = complaint_find(ns, who, why->status, now);

    if (!c) {
        ns->unsaid++;
        return;
    }
    if (c->when_ns && now - c->when_ns < COMPLAIN_EVERY_NS) {
        c->unsaid++;
        return;
    }
    if (c->unsaid)
        log_warning("node %s: %s (and %llu times more since this was said last)", who, why->text,
                    (unsigned long long)c->unsaid);
    else
        log_warning("node %s: %s", who, why->text);
    c->when_ns = now;
    c->unsaid = 0;
}

void nodes_catch_up(struct nodes *ns)
{
    uint64_t now = clock_ns();

    for (int i = 0; i < COMPLAINTS; i++) {
        struct complaint *c = &ns->complaints[i];
        if (!c->unsaid || now - c->when_ns < COMPLAIN_EVERY_NS)
            continue;
        log_warning("node %s: %s (%llu times more since this was said last)", c->who, strerror(-c->status),
                    (unsigned long long)c->unsaid);
        *c = (struct complaint){.status = 0};
    }
    if (ns->unsaid)
        log_warning("nodes: %llu more complaints, of more than %d kinds and addresses in a minute",
                    (unsigned long long)ns->unsaid, COMPLAINTS);
    ns->unsaid = 0;
}

/* ---- open and close ---- */

static int listener_make(const void *what)
{
    const struct resolved *r = what;
    const struct sockaddr *address = (const struct sockaddr *)(const void *)r->all[0].address;
    int on = 1, sock = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (sock < 0)
        return -errno;
    (void)setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)); /* a former broker's connections may be in TIME_WAIT */
    if (bind(sock, address, r->all[0].length) || listen(sock, BACKLOG)) {
        int status = -errno;
        (void)close(sock);
        return status;
    }
    return sock;
}

static void on_listen_again(evutil_socket_t sock, short what, void *arg)
{
    struct nodes *ns = arg;

    (void)sock, (void)what;
    (void)event_add(&ns->listen_event, NULL);
}

static int listen_begin(struct nodes *ns)
{
    const struct config *c = &ns->broker->config;
    struct resolved where;

    if (resolve(c->node_listen, true, &where) && resolve(c->node_listen, false, &where)) {
        log_error("NODE_LISTEN %s: %s", c->node_listen, where.why);
        return -EINVAL;
    }
    ns->listen_sock = listener_after(ns->broker, listener_make, &where);
    if (ns->listen_sock < 0) {
        log_error("NODE_LISTEN %s: %s", c->node_listen, strerror(-ns->listen_sock));
        return ns->listen_sock;
    }
    (void)event_assign(&ns->listen_event, ns->broker->base, ns->listen_sock, EV_READ | EV_PERSIST, conn_accept, ns);
    (void)evtimer_assign(&ns->listen_again, ns->broker->base, on_listen_again, ns);
    return event_add(&ns->listen_event, NULL) ? -ENOMEM : 0;
}

static int list_read(struct nodes *ns)
{
    node_address *list;
    struct error e;
    size_t n;
    int status = cluster_nodes_read(&ns->broker->config, &list, &n, &e);

    if (status) {
        log_error("%s", e.text);
        return status;
    }
    for (size_t i = 0; i < n && !status; i++)
        status = node_add(ns, list[i], true) ? 0 : -ENOMEM;
    free(list);
    return status;
}

int nodes_open(struct broker *b)
{
    struct nodes *ns;
    struct error e;
    int status;

    if (!*b->config.node_listen)
        return 0;
    ns = b->nodes = calloc(1, sizeof(*ns));
    if (!ns)
        return -ENOMEM;
    ns->broker = b;
    ns->own = b->config.node_address;
    ns->listen_sock = -1;
    TAILQ_INIT(&ns->list);
    TAILQ_INIT(&ns->conns);
    TAILQ_INIT(&ns->calls);
    TAILQ_INIT(&ns->tellings);
    if (cluster_key_read(&b->config, &ns->key, &e)) {
        log_error("%s", e.text);
        return e.status;
    }
    status = listen_begin(ns);
    if (!status)
        status = list_read(ns);
    if (!status)
        log_info("node %s listens at %s and knows of %u others", ns->own, b->config.node_listen, ns->nlist);
    return status;
}

void nodes_drain(struct broker *b)
{
    struct nodes *ns = b->nodes;
    struct node *n, *next;
    struct conn *c;

    if (!ns || ns->closing)
        return;
    ns->closing = true;
    event_stop(&ns->listen_event);
    event_stop(&ns->listen_again);
    fd_close(&ns->listen_sock);
    tellings_end(ns);
    calls_end(ns); /* answers the workers that wait for a connection */
    TAILQ_FOREACH_SAFE(n, &ns->list, link, next)
        node_free(n);
    while ((c = TAILQ_FIRST(&ns->conns))) {
        if (c->state == CONN_HELD && !b->leaving) /* otherwise the other node tries again */
            (void)conn_answer(c, -ESHUTDOWN, "that node's fccd is shutting down");
        conn_end(c, -ESHUTDOWN, "fccd is shutting down");
    }
}

void nodes_close(struct broker *b)
{
    struct nodes *ns = b->nodes;

    if (!ns)
        return;
    nodes_drain(b);
    event_stop(&ns->deliver_again);
    b->nodes = NULL;
    explicit_bzero(ns, sizeof(*ns));
    free(ns);
}

/* ---- trouble: which nodes of NODES cannot be reached ---- */

static void trouble_find(const struct nodes *ns, char text[CONTROL_TROUBLE_MAX])
{
    const struct node *n, *first = NULL;
    char others[32] = "";
    unsigned count = 0;

    TAILQ_FOREACH(n, &ns->list, link) {
        if (!n->configured || n->state == NODE_CONNECTED || !*n->why)
            continue;
        count++;
        if (!first || (n->state == NODE_REFUSED && first->state != NODE_REFUSED))
            first = n;
    }
    text[0] = '\0';
    if (count > 1)
        (void)snprintf(others, sizeof(others), " (and %u others)", count - 1);
    if (first)
        (void)snprintf(text, CONTROL_TROUBLE_MAX, "node %s: %.128s%s", first->address, first->why, others);
}

static void trouble_send(struct job *j)
{
    const struct nodes *ns = j->broker->nodes;
    struct control_trouble m = {.msg = {.type = CONTROL_TROUBLE}};

    memcpy(m.text, ns->trouble, sizeof(m.text));
    (void)channel_send_newest(j, &m.msg, sizeof(m)); /* failure does not matter: this is only for an error text */
}

void trouble_update(struct nodes *ns)
{
    char text[CONTROL_TROUBLE_MAX] = "";
    struct job *j;

    trouble_find(ns, text);
    if (!strcmp(text, ns->trouble))
        return;
    memcpy(ns->trouble, text, sizeof(text));
    LIST_FOREACH(j, &ns->broker->jobs, link)
        if (j->control >= 0 && j->closed && !j->retired) /* a worker without START yet gets it after START */
            trouble_send(j);
}

void trouble_tell(struct job *j)
{
    if (j->broker->nodes && *j->broker->nodes->trouble)
        trouble_send(j);
}

/* ---- fccctl nodes ---- */

static double seconds_since(uint64_t then_ns)
{
    return (double)(clock_ns() - then_ns) / 1e9;
}

static struct json_object *node_describe(const struct node *n)
{
    struct json_object *o = JSON_OBJECT({"address", json_text(n->address)}, {"state", json_text(node_state_name(n->state))},
                                        {"why", json_text(n->why)}, {"since_s", json_double(seconds_since(n->since_ns))});
    if (n->state == NODE_CONNECTED && n->round_trip_ns)
        JSON_ADD(o, {"round_trip_us", json_double((double)n->round_trip_ns / 1e3)});
    JSON_ADD(o, {"bytes_in", json_int(n->bytes_in)}, {"bytes_out", json_int(n->bytes_out)}, {"errors", json_int(n->errors)},
             {"configured", json_object_new_boolean(n->configured)});
    return o;
}

struct json_object *nodes_describe(const struct broker *b)
{
    struct json_object *list = json_object_new_array();
    const struct nodes *ns = b->nodes;
    const struct node *n;

    struct json_object *o = JSON_OBJECT({"address", json_text(ns ? ns->own : "")}, {"nodes", list});
    if (!ns)
        return o;
    JSON_ADD(o, {"refused", json_int(ns->refused)}, {"peers_in", json_int(ns->peers_in)},
             {"peers_out", json_int(ns->peers_out)});
    json_object_array_add(list, JSON_OBJECT({"address", json_text(ns->own)}, {"state", json_text("here")},
                                            {"since_s", json_double(seconds_since(b->started_ns))}));
    TAILQ_FOREACH(n, &ns->list, link)
        json_object_array_add(list, node_describe(n));
    return o;
}
