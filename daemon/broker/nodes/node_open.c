/* SPDX-License-Identifier: MIT
 *
 * node_open.c - opens connections between two brokers: begun here, or accepted.
 */
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/broker/nodes/node.h"
#include "proto/base/log.h"

/* ---- addresses of hosts: resolving a name may take seconds, so a child process does it ---- */

#define RESOLVERS_MAX 16
#define NAMES_OF_USER 4 /* host names that are resolved at a time for a user's jobs */

int resolve(const char *address, bool is_number, struct resolved *out)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *all, *a;
    char host[FCC_NODE_MAX], port[6];

    hints.ai_flags = AI_NUMERICSERV | (is_number ? AI_NUMERICHOST : 0);
    int status = address_split(address, host, port) ? EAI_NONAME : getaddrinfo(host, port, &hints, &all);
    memset(out, 0, sizeof(*out));
    if (status) {
        text_copy(out->why, sizeof(out->why), gai_strerror(status));
        return -EAGAIN;
    }
    for (a = all; a && out->n < RESOLVED_MAX; a = a->ai_next) {
        if (a->ai_addrlen > sizeof(out->all[0].address))
            continue;
        memcpy(out->all[out->n].address, a->ai_addr, a->ai_addrlen);
        out->all[out->n++].length = a->ai_addrlen;
    }
    freeaddrinfo(all);
    return 0;
}

static void resolver_run(int out, const void *address)
{
    static struct resolved found;

    (void)resolve(address, false, &found);
    if (write(out, &found, sizeof(found)) != sizeof(found)) /* at most PIPE_BUF bytes, so written whole */
        _exit(EXIT_FAILURE);
}
static_assert(sizeof(struct resolved) <= PIPE_BUF, "a pipe takes it at once");

/* ---- connections that are begun here ---- */

static int socket_open(const struct resolved *r)
{
    const struct sockaddr *address = (const struct sockaddr *)(const void *)r->all[r->at].address;
    int on = 1, sock = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (sock < 0)
        return -errno;
    (void)setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return sock;
}

/* Begins to connect to the address that is to be tried. An immediate failure is handled later by on_limit(), so that no
 * callback is called from here. */
static void connect_begin(struct conn *c)
{
    const struct resolved *r = c->resolved;
    bool may = c->anywhere || node_is_at(c->nodes, r->all[r->at].address, r->all[r->at].length);
    int sock = may ? socket_open(r) : -EPERM;

    conn_state_set(c, CONN_CONNECTING, 0);
    if (sock >= 0)
        conn_sock_set(c, sock);
    if (sock < 0)
        c->failed = -sock;
    else if (event_add(&c->writable, NULL))
        c->failed = ENOMEM;
    else if (connect(sock, (const struct sockaddr *)(const void *)r->all[r->at].address, r->all[r->at].length) &&
             errno != EINPROGRESS)
        c->failed = errno;
    conn_limit(c, c->failed ? 0 : CONNECT_MS);
}

void conn_connect_failed(struct conn *c, int error)
{
    conn_sock_close(c);
    c->failed = 0;
    if (++c->resolved->at < c->resolved->n)
        connect_begin(c);
    else if (error == EPERM && !c->anywhere)
        conn_end(c, -EPERM, "it is not in this node's NODES, and only root may have it connect to others");
    else
        conn_end(c, -error, "cannot connect: %s", strerror(error));
}

void conn_connected(struct conn *c)
{
    unsigned char says[sizeof(c->auth.says)];
    int error = 0, status;
    socklen_t size = sizeof(error);

    if (c->failed || getsockopt(c->sock, SOL_SOCKET, SO_ERROR, &error, &size) || error) {
        conn_connect_failed(c, c->failed ? c->failed : error ? error : errno);
        return;
    }
    conn_state_set(c, c->denial ? CONN_TELLING : CONN_PROVING, c->denial ? 1 : auth_wants(&c->auth));
    conn_limit(c, PROVE_MS);
    size_t n = auth_says(&c->auth, says);
    status = event_add(&c->readable, NULL) ? -ENOMEM
             : c->denial                   ? conn_say(c, c->denial, sizeof(*c->denial))
                                           : conn_say(c, says, n);
    if (status)
        conn_closed(c, -status);
}

static void conn_resolved(void *owner, const void *bytes, size_t n, int wait_status)
{
    struct conn *c = owner;
    struct resolved *r = c->resolved;

    (void)wait_status;
    c->resolver = NULL;
    if (n == sizeof(*r))
        memcpy(r, bytes, n);
    bool well = n == sizeof(*r) && r->n <= RESOLVED_MAX;
    r->at = 0;
    r->why[sizeof(r->why) - 1] = '\0';
    if (well && c->node)
        c->node->known = *r;
    if (!well || r->n == 0)
        conn_end(c, -EHOSTUNREACH, "its host's name is not resolved: %s", well ? r->why : "nothing came out");
    else
        connect_begin(c);
}

/* Connects, or begins to resolve the name of the host. */
static int resolve_begin(struct conn *c, const char *address, struct error *e)
{
    struct broker *b = c->nodes->broker;
    const struct conn *other;
    unsigned n = 0;

    if (!resolve(address, true, c->resolved)) {
        connect_begin(c);
        return 0;
    }
    TAILQ_FOREACH(other, &c->nodes->conns, link)
        n += other->state == CONN_RESOLVING && other->request.what == NODE_PEER && other->uid == c->uid;
    if (c->request.what == NODE_PEER && n >= NAMES_OF_USER)
        return error_set(e, -EAGAIN, "%d names are looked up for uid %u already", NAMES_OF_USER, c->uid);
    if (children_count(b, resolver_run) >= RESOLVERS_MAX)
        return error_set(e, -EAGAIN, "too many names are looked up at once");
    conn_state_set(c, CONN_RESOLVING, 0);
    conn_limit(c, CONNECT_MS);
    int status = child_start(b, resolver_run, address, sizeof(*c->resolved), conn_resolved, c, &c->resolver);
    return status ? error_set(e, status, "%s", strerror(-status)) : 0;
}

int conn_open(struct nodes *ns, const char *address, const struct node_request *request, uint64_t until_ns, uid_t uid,
              const struct conn_ops *ops, void *owner, struct conn **out, struct error *e)
{
    int status = node_check(ns, address, e);
    const struct node *n = status ? NULL : node_find(ns, address);
    struct conn *c = status ? NULL : conn_new(ns, ops, owner, true);

    if (status)
        return status;
    if (!c || !(c->resolved = calloc(1, sizeof(*c->resolved)))) {
        status = error_set(e, -ENOMEM, "out of memory");
    } else {
        c->request = *request;
        c->uid = uid;
        c->anywhere = node_permit(ns, uid) || (n && n->configured);
        c->until_ns = until_ns;
        text_copy(c->who, sizeof(c->who), address);
        status = auth_begin(&c->auth, AUTH_INITIATOR, &ns->key, ns->own, address, e);
        if (!status)
            status = resolve_begin(c, address, e);
    }
    if (!status)
        *out = c;
    else if (c)
        (void)conn_release(c, false);
    return status;
}

/* ---- connections of others ---- */

/* Accepts nothing for a time; new connections stay in the kernel's queue. */
static void accept_pause(struct nodes *ns, uint32_t ms)
{
    (void)event_del(&ns->listen_event);
    (void)event_add_ms(&ns->listen_again, ms);
}

/* The stranger of that source (0: of any) that this broker has waited for longest. *n: the number of such strangers. */
static struct conn *stranger_oldest(const struct nodes *ns, uint64_t source, unsigned *n)
{
    struct conn *c, *oldest = NULL;

    *n = 0;
    TAILQ_FOREACH(c, &ns->conns, link) {
        if (!conn_is_stranger(c) || (source && c->source != source))
            continue;
        oldest = oldest ? oldest : c;
        ++*n;
    }
    return oldest;
}

/* The source with the most strangers; of several, the one with the stranger that this broker has waited for longest. */
static uint64_t source_largest(const struct nodes *ns)
{
    uint64_t all[STRANGERS_MAX], largest = 0;
    unsigned n = 0, most = 0;
    const struct conn *c;

    TAILQ_FOREACH(c, &ns->conns, link)
        if (conn_is_stranger(c) && n < STRANGERS_MAX)
            all[n++] = c->source;
    for (unsigned i = 0; i < n; i++) {
        unsigned same = 0;
        for (unsigned k = i; k < n; k++)
            same += all[k] == all[i];
        if (same > most) {
            most = same;
            largest = all[i];
        }
    }
    return largest;
}

/* Lets a stranger make room: handles its unread data if there is any, since the stranger must be late and not this broker;
 * otherwise closes it. A stranger cannot stay by sending slowly: it may send little in total, and its time begins anew only
 * once, when it was answered. Returns false if the stranger is not late yet. With of_source (too many of its source) only a
 * stranger that was answered gets time. May free the connection. */
static bool stranger_evict(struct conn *c, bool of_source)
{
    uint64_t ms = (clock_ns() - c->awaited_ns) / 1000000u;

    if (ms < STRANGER_MS && (!of_source || c->auth.state == AUTH_PROOF))
        return false;
    if (socket_is_unheard(c->sock))
        conn_hear(c);
    else
        conn_end(c, -EUSERS, "has not proven itself: silent for %llu ms while %d newer connections wait",
                 (unsigned long long)ms, of_source ? STRANGERS_SHARE : STRANGERS_MAX);
    return true;
}

/* Is there room for one more stranger? In a burst of daemons that prove themselves within a millisecond each, new ones wait;
 * silent strangers are closed. */
static bool stranger_room(struct nodes *ns)
{
    unsigned n;

    while (ns->nstrangers >= STRANGERS_MAX) {
        if (stranger_evict(stranger_oldest(ns, source_largest(ns), &n), false))
            continue;
        accept_pause(ns, 5);
        return false;
    }
    return true;
}

/* Is there room for one more stranger of that source? If not, it is refused and does not wait in the kernel's queue, where it
 * would delay other sources. A daemon that is refused tries again. */
static bool source_room(struct nodes *ns, uint64_t source)
{
    struct conn *oldest;
    unsigned n;

    for (;;) {
        oldest = stranger_oldest(ns, source, &n);
        if (n < STRANGERS_SHARE)
            return true;
        if (!stranger_evict(oldest, true))
            return false;
    }
}

/* The source of an address: for IPv6 its first half, as one host may have the whole second half. Never 0. */
static uint64_t source_of(const struct sockaddr_storage *from)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)from;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)from;
    uint64_t source = 1;
    uint32_t mapped;

    if (from->ss_family == AF_INET)
        return 1ull << 32 | four->sin_addr.s_addr;
    if (from->ss_family != AF_INET6)
        return source;
    if (IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) {
        memcpy(&mapped, six->sin6_addr.s6_addr + 12, sizeof(mapped));
        return 1ull << 32 | mapped;
    }
    memcpy(&source, six->sin6_addr.s6_addr, sizeof(source));
    return source ? source : 1;
}

static void address_name(const struct sockaddr_storage *from, socklen_t length, char who[FCC_NODE_MAX])
{
    if (getnameinfo((const struct sockaddr *)from, length, who, FCC_NODE_MAX, NULL, 0, NI_NUMERICHOST))
        text_copy(who, FCC_NODE_MAX, "somebody");
}

/* Refuses an accepted connection for want of room. */
static void guest_refuse(struct nodes *ns, int sock, const struct sockaddr_storage *from, socklen_t length)
{
    char who[FCC_NODE_MAX];
    struct error e;

    address_name(from, length, who);
    (void)error_set(&e, -EUSERS,
                    "turned away: %u connections of other nodes (allowed are %d), of which %u have not proven themselves "
                    "(allowed are %d of an address)",
                    ns->nguests, GUESTS_MAX, ns->nstrangers, STRANGERS_SHARE);
    nodes_complain(ns, who, &e);
    ns->refused++;
    (void)close(sock);
}

static int guest_open(struct conn *c, int sock, const struct sockaddr_storage *from, socklen_t length, struct error *e)
{
    int on = 1;

    (void)setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    address_name(from, length, c->who);
    conn_sock_set(c, sock);
    if (event_add(&c->readable, NULL))
        return error_set(e, -ENOMEM, "out of memory");
    conn_limit(c, PROVE_MS);
    int status = auth_begin(&c->auth, AUTH_RESPONDER, &c->nodes->key, c->nodes->own, NULL, e);
    c->want = auth_wants(&c->auth);
    return status;
}

void conn_accept(evutil_socket_t listen_sock, short what, void *arg)
{
    struct nodes *ns = arg;
    struct sockaddr_storage from = {.ss_family = AF_UNSPEC};
    struct error e = {0};
    socklen_t length = sizeof(from);

    (void)what;
    if (!stranger_room(ns))
        return;
    int sock = accept4(listen_sock, (struct sockaddr *)&from, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (sock < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            log_warning("NODE_LISTEN: accept: %s", strerror(errno));
            accept_pause(ns, 200); /* the connection stays in the queue, and the event loop would spin on it */
        }
        return;
    }
    uint64_t source = source_of(&from);
    bool room = source_room(ns, source) && ns->nguests < GUESTS_MAX;
    struct conn *c = room ? conn_new(ns, &guest_ops, NULL, false) : NULL;
    if (!c) {
        guest_refuse(ns, sock, &from, length);
        return;
    }
    c->source = source;
    if (guest_open(c, sock, &from, length, &e))
        conn_end(c, e.status, "%s", e.text);
}
