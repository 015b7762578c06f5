/* SPDX-License-Identifier: MIT
 *
 * http.c - METRICS_LISTEN: answers GET /metrics with the metrics, on a Unix socket or at a loopback address.
 *
 * libevent's evhttp reads the requests and writes the answers. This process is root's, and whoever reaches the socket may send anything. So
 * headers have a limit, bodies are refused, only GET and HEAD are taken, and each connection gets one answer and is closed. evhttp limits neither
 * the number of connections nor the time of one that sends a byte now and then. So each connection has an evhttp of its own, which stops accepting
 * with its first connection, and ends it when it is freed: after SCRAPE_LIMIT_MS, or earlier if there are more than SCRAPES and it is the oldest.
 * The text is made at most once in PAGE_NS, so asking without end costs little.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/http.h>
#include <event2/listener.h>

#include "daemon/broker/metrics/http.h"
#include "daemon/broker/metrics/metrics.h"
#include "daemon/common/loopback.h"
#include "proto/base/log.h"

#define SCRAPES 16
#define SCRAPE_LIMIT_MS 5000
#define HEADERS_MAX 4096
#define UNREAD_MAX (2 * HEADERS_MAX)
#define PAGE_NS 50000000u
#define PAUSE_MS 100 /* when there is no memory, or no descriptor */
#define BACKLOG 64
#define CONTENT_TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"

/* One connection, or the one to come. */
struct scrape {
    TAILQ_ENTRY(scrape) link; /* listener.scrapes: the one that was accepted first is the first */
    struct listener *listener;
    struct evhttp *http;
    struct evconnlistener *accept; /* http's, which frees it */
    struct event over;             /* its time is over, or its answer is sent */
};

struct listener {
    struct broker *broker;
    int sock;
    struct event next; /* the next scrape is to be made, which accepts the next connection */
    unsigned n;
    TAILQ_HEAD(scrapes_head, scrape) scrapes;
};

static void scrape_free(struct scrape *s)
{
    struct listener *l = s->listener;

    TAILQ_REMOVE(&l->scrapes, s, link);
    l->n--;
    event_stop(&s->over);
    if (s->http)
        evhttp_free(s->http);
    free(s);
}

static void on_over(evutil_socket_t sock, short what, void *arg)
{
    (void)sock, (void)what;
    scrape_free(arg);
}

/* ---- answers ---- */

/* evhttp closes the connection after this; what is left of the scrape is freed in the loop's next turn. */
static void on_answered(struct evhttp_request *request, void *arg)
{
    struct scrape *s = arg;

    (void)request;
    event_active(&s->over, EV_TIMEOUT, 0);
}

static void answer(struct scrape *s, struct evhttp_request *request, int status, const char *type, const char *body,
                   size_t length)
{
    struct evkeyvalq *headers = evhttp_request_get_output_headers(request);
    bool head = evhttp_request_get_command(request) == EVHTTP_REQ_HEAD;
    char bytes[24];

    (void)snprintf(bytes, sizeof(bytes), "%zu", length);
    evhttp_request_set_on_complete_cb(request, on_answered, s);
    /* evhttp would tell HTTP/1.0's "keep-alive" that it is kept, too. */
    (void)evhttp_remove_header(evhttp_request_get_input_headers(request), "Connection");
    if (evhttp_add_header(headers, "Content-Type", type) || evhttp_add_header(headers, "Content-Length", bytes) ||
        evhttp_add_header(headers, "Cache-Control", "no-store") || evhttp_add_header(headers, "Connection", "close") ||
        (!head && evbuffer_add(evhttp_request_get_output_buffer(request), body, length)))
        evhttp_send_error(request, HTTP_INTERNAL, NULL); /* no memory */
    else
        evhttp_send_reply(request, status, NULL, NULL);
}

/* The metrics of all users, made now or a moment ago. */
static bool page_make(const struct broker *b)
{
    struct ledgers *ls = b->ledgers;
    uint64_t now = clock_ns();

    if (ls->page && now - ls->page_ns < PAGE_NS)
        return true;
    free(ls->page);
    ls->page = metrics_text(b, 0, &ls->page_length);
    ls->page_ns = now;
    return ls->page != NULL;
}

static void on_metrics(struct evhttp_request *request, void *arg)
{
    struct scrape *s = arg;
    const struct broker *b = s->listener->broker;

    if (page_make(b))
        answer(s, request, HTTP_OK, CONTENT_TYPE, b->ledgers->page, b->ledgers->page_length);
    else
        evhttp_send_error(request, HTTP_SERVUNAVAIL, NULL);
}

static void on_other_path(struct evhttp_request *request, void *arg)
{
    static const char body[] = "Not Found. GET /metrics has the metrics of fccd.\n";

    answer(arg, request, HTTP_NOTFOUND, "text/plain; charset=utf-8", body, sizeof(body) - 1);
}

/* ---- connections ---- */

/* A connection was accepted: evhttp asks for what it is read and written by. This holds no more than UNREAD_MAX bytes of what comes: of the
 * line that tells a chunk's length, for one, evhttp would wait for the end however long it is. */
static struct bufferevent *on_connection(struct event_base *base, void *arg)
{
    struct scrape *s = arg;
    struct bufferevent *stream = bufferevent_socket_new(base, -1, 0);

    (void)evconnlistener_disable(s->accept); /* libevent looks at this before it accepts one more */
    if (!stream || event_add_ms(&s->over, SCRAPE_LIMIT_MS))
        event_active(&s->over, EV_TIMEOUT, 0); /* no memory for the limits, so no connection */
    if (stream)
        bufferevent_setwatermark(stream, EV_READ, 0, UNREAD_MAX);
    event_active(&s->listener->next, EV_TIMEOUT, 0);
    return stream;
}

static void on_accept_again(evutil_socket_t sock, short what, void *arg)
{
    (void)sock, (void)what;
    (void)evconnlistener_enable(arg);
}

/* No descriptor or memory for a connection: again a while later, since the socket stays readable. `accept` stands until then: a scrape is freed
 * only after it has accepted, or at the end, when the loop no longer runs. */
static void on_accept_failed(struct evconnlistener *accept, void *arg)
{
    struct timeval pause = {.tv_usec = PAUSE_MS * 1000};

    (void)arg;
    if (!event_base_once(evconnlistener_get_base(accept), -1, EV_TIMEOUT, on_accept_again, accept, &pause))
        (void)evconnlistener_disable(accept);
}

/* Makes the scrape that accepts the next connection. Returns NULL for want of memory. */
static struct scrape *scrape_make(struct listener *l)
{
    struct event_base *base = l->broker->base;
    struct scrape *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    s->listener = l;
    TAILQ_INSERT_TAIL(&l->scrapes, s, link);
    l->n++;
    (void)evtimer_assign(&s->over, base, on_over, s);
    s->http = evhttp_new(base);
    s->accept = s->http ? evconnlistener_new(base, NULL, NULL, LEV_OPT_CLOSE_ON_EXEC, 0, l->sock) : NULL;
    if (!s->accept || !evhttp_bind_listener(s->http, s->accept)) {
        if (s->accept)
            evconnlistener_free(s->accept);
        scrape_free(s);
        return NULL;
    }
    evconnlistener_set_error_cb(s->accept, on_accept_failed);
    evhttp_set_bevcb(s->http, on_connection, s);
    evhttp_set_max_headers_size(s->http, HEADERS_MAX);
    evhttp_set_max_body_size(s->http, 0);
    evhttp_set_allowed_methods(s->http, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD);
    evhttp_set_gencb(s->http, on_other_path, s);
    if (evhttp_set_cb(s->http, "/metrics", on_metrics, s)) {
        scrape_free(s);
        return NULL;
    }
    return s;
}

static void on_next(evutil_socket_t sock, short what, void *arg)
{
    struct listener *l = arg;

    (void)sock, (void)what;
    if (l->n > SCRAPES)
        scrape_free(TAILQ_FIRST(&l->scrapes));
    if (!scrape_make(l))
        (void)event_add_ms(&l->next, PAUSE_MS);
}

/* ---- open and close ---- */

static int loopback_listen(const void *where)
{
    struct sockaddr_storage address;
    uint32_t length;
    int on = 1, sock;

    if (loopback_parse(where, &address, &length))
        return -EINVAL;
    sock = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (sock < 0)
        return -errno;
    (void)setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (!bind(sock, (struct sockaddr *)&address, length) && !listen(sock, BACKLOG))
        return sock;
    int status = -errno;
    (void)close(sock);
    return status;
}

int metrics_open(struct broker *b)
{
    const char *where = b->config.metrics_listen;
    struct listener *l;
    int sock;

    if (!*where)
        return 0;
    sock = *where == '/' ? socket_listen(b, "METRICS_LISTEN", where, SOCK_STREAM) : listener_after(b, loopback_listen, where);
    if (sock < 0) {
        if (*where != '/')
            log_error("METRICS_LISTEN %s: %s", where, strerror(-sock));
        return sock;
    }
    l = b->listener = calloc(1, sizeof(*l));
    if (!l) {
        (void)close(sock);
        return -ENOMEM;
    }
    l->broker = b;
    l->sock = sock;
    TAILQ_INIT(&l->scrapes);
    (void)evtimer_assign(&l->next, b->base, on_next, l);
    if (!scrape_make(l))
        return -ENOMEM;
    log_info("metrics at %s", where);
    return 0;
}

void metrics_close(struct broker *b)
{
    struct listener *l = b->listener;
    struct scrape *s, *next;

    if (!l)
        return;
    TAILQ_FOREACH_SAFE(s, &l->scrapes, link, next)
        scrape_free(s);
    event_stop(&l->next);
    (void)close(l->sock);
    if (*b->config.metrics_listen == '/')
        (void)unlink(b->config.metrics_listen);
    free(l);
    b->listener = NULL;
}
