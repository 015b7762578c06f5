/* SPDX-License-Identifier: MIT
 *
 * http.c - METRICS_LISTEN: answers GET /metrics with the metrics, on a Unix socket or at a loopback address.
 *
 * This process is root's, and whoever reaches the socket may send anything. So the request is read into a buffer of fixed size, only its first
 * line is looked at, and each connection gets one answer and is closed. A connection has SCRAPE_LIMIT_MS in all. There are at most SCRAPES of
 * them: one more ends the one that has been silent for longest. The text is made at most once in PAGE_NS, so asking without end costs little.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/broker/metrics/http.h"
#include "daemon/broker/metrics/metrics.h"
#include "daemon/common/loopback.h"
#include "proto/base/log.h"

#define SCRAPES 16
#define SCRAPE_LIMIT_MS 5000
#define REQUEST_MAX 4096
#define PAGE_NS 50000000u
#define ACCEPT_PAUSE_MS 100
#define BACKLOG 64
#define CONTENT_TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"

struct scrape {
    TAILQ_ENTRY(scrape) link; /* listener.scrapes: the one that was accepted first is the first */
    struct listener *listener;
    int sock;
    struct event event;
    uint64_t until_ns;
    size_t have, done;
    size_t length; /* of the answer; 0: the request is still being read */
    char *answer;
    bool ended; /* the answer is sent, and our end is shut: what still comes is read and dropped, so that the answer is not */
    char request[REQUEST_MAX + 1];
};

struct listener {
    struct broker *broker;
    int sock;
    struct event event, again;
    unsigned n;
    TAILQ_HEAD(scrapes_head, scrape) scrapes;
};

static void on_scrape(evutil_socket_t sock, short what, void *arg);

static void scrape_free(struct scrape *s)
{
    struct listener *l = s->listener;

    TAILQ_REMOVE(&l->scrapes, s, link);
    l->n--;
    event_stop(&s->event);
    (void)close(s->sock);
    free(s->answer);
    free(s);
}

/* Waits for the socket, until the connection's time is over. */
static void scrape_await(struct scrape *s, short what)
{
    uint64_t now = clock_ns(), left = s->until_ns > now ? s->until_ns - now : 0;
    struct timeval t = {.tv_sec = (time_t)(left / 1000000000u), .tv_usec = (suseconds_t)(left % 1000000000u / 1000u)};

    event_stop(&s->event);
    (void)event_assign(&s->event, s->listener->broker->base, s->sock, what, on_scrape, s);
    if (event_add(&s->event, &t))
        scrape_free(s);
}

/* ---- answers ---- */

static bool answer_make(struct scrape *s, const char *status, const char *extra, const char *type, const char *body,
                        size_t length, bool head)
{
    FILE *out = open_memstream(&s->answer, &s->length);

    if (!out)
        return false;
    (void)fprintf(
        out, "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%sCache-Control: no-store\r\nConnection: close\r\n\r\n",
        status, type, length, extra);
    if (!head)
        (void)fwrite(body, 1, length, out);
    bool failed = ferror(out);
    return !fclose(out) && !failed;
}

static bool answer_error(struct scrape *s, const char *status, const char *extra)
{
    char body[128];
    int n = snprintf(body, sizeof(body), "%s. GET /metrics has the metrics of fccd.\n", status);

    return answer_make(s, status, extra, "text/plain; charset=utf-8", body, (size_t)n, false);
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

static bool is_line_end(const char *end)
{
    return *end == '\0' || *end == '\r' || *end == '\n';
}

/* The request's first line: METHOD SP PATH SP HTTP/1.x. What follows is not looked at. */
static bool request_answer(struct scrape *s)
{
    const struct broker *b = s->listener->broker;
    const char *method = s->request, *path = strchr(method, ' '), *version;
    size_t path_length;
    bool head = !strncmp(method, "HEAD ", 5);

    if (strlen(s->request) != s->have || !path || path[1] != '/')
        return answer_error(s, "400 Bad Request", "");
    path++;
    path_length = strcspn(path, " ?\r\n");
    version = path + strcspn(path, " \r\n");
    if (strncmp(version, " HTTP/1.", 8) != 0 || (version[8] != '0' && version[8] != '1') || !is_line_end(version + 9))
        return answer_error(s, "400 Bad Request", "");
    if (!head && strncmp(method, "GET ", 4) != 0)
        return answer_error(s, "405 Method Not Allowed", "Allow: GET, HEAD\r\n");
    if (path_length != strlen("/metrics") || strncmp(path, "/metrics", path_length) != 0)
        return answer_error(s, "404 Not Found", "");
    if (!page_make(b))
        return answer_error(s, "503 Service Unavailable", "");
    return answer_make(s, "200 OK", "", CONTENT_TYPE, b->ledgers->page, b->ledgers->page_length, head);
}

/* ---- connections ---- */

static void scrape_write(struct scrape *s)
{
    ssize_t n = send(s->sock, s->answer + s->done, s->length - s->done, MSG_NOSIGNAL | MSG_DONTWAIT);

    if (n < 0 && errno != EAGAIN && errno != EINTR) {
        scrape_free(s);
        return;
    }
    s->done += n > 0 ? (size_t)n : 0;
    if (s->done < s->length) {
        scrape_await(s, EV_WRITE);
        return;
    }
    s->ended = true;
    (void)shutdown(s->sock, SHUT_WR);
    scrape_await(s, EV_READ);
}

static bool request_is_whole(const struct scrape *s)
{
    return memmem(s->request, s->have, "\r\n\r\n", 4) || memmem(s->request, s->have, "\n\n", 2);
}

static void scrape_read(struct scrape *s)
{
    char dropped[REQUEST_MAX];
    char *to = s->ended ? dropped : s->request + s->have;
    ssize_t n = recv(s->sock, to, s->ended ? sizeof(dropped) : REQUEST_MAX - s->have, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        scrape_await(s, EV_READ);
        return;
    }
    if (n <= 0) {
        scrape_free(s);
        return;
    }
    if (s->ended) {
        scrape_await(s, EV_READ);
        return;
    }
    s->have += (size_t)n;
    s->request[s->have] = '\0';
    bool whole = request_is_whole(s);
    if (!whole && s->have < REQUEST_MAX) {
        scrape_await(s, EV_READ);
        return;
    }
    if (whole ? request_answer(s) : answer_error(s, "431 Request Header Fields Too Large", ""))
        scrape_write(s);
    else
        scrape_free(s); /* no memory */
}

static void on_scrape(evutil_socket_t sock, short what, void *arg)
{
    struct scrape *s = arg;

    (void)sock;
    if (what & EV_TIMEOUT)
        scrape_free(s);
    else if (what & EV_WRITE)
        scrape_write(s);
    else
        scrape_read(s);
}

static void on_accept(evutil_socket_t sock, short what, void *arg)
{
    struct listener *l = arg;
    int fd = accept4(sock, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    (void)what;
    if (fd < 0) {
        if (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR)
            return;
        (void)event_del(&l->event); /* for want of descriptors or memory: a while later */
        (void)event_add_ms(&l->again, ACCEPT_PAUSE_MS);
        return;
    }
    if (l->n >= SCRAPES)
        scrape_free(TAILQ_FIRST(&l->scrapes));
    struct scrape *s = calloc(1, sizeof(*s));
    if (!s) {
        (void)close(fd);
        return;
    }
    *s = (struct scrape){.listener = l, .sock = fd, .until_ns = clock_ns() + SCRAPE_LIMIT_MS * 1000000ull};
    TAILQ_INSERT_TAIL(&l->scrapes, s, link);
    l->n++;
    scrape_await(s, EV_READ);
}

static void on_again(evutil_socket_t sock, short what, void *arg)
{
    struct listener *l = arg;

    (void)sock, (void)what;
    (void)event_add(&l->event, NULL);
}

/* ---- open and close ---- */

static int loopback_listen(const char *where)
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
    sock = *where == '/' ? socket_listen("METRICS_LISTEN", where, b->config.socket_group, SOCK_STREAM) : loopback_listen(where);
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
    (void)event_assign(&l->event, b->base, sock, EV_READ | EV_PERSIST, on_accept, l);
    (void)evtimer_assign(&l->again, b->base, on_again, l);
    log_info("metrics at %s", where);
    return event_add(&l->event, NULL) ? -ENOMEM : 0;
}

void metrics_close(struct broker *b)
{
    struct listener *l = b->listener;

    if (!l)
        return;
    while (!TAILQ_EMPTY(&l->scrapes))
        scrape_free(TAILQ_FIRST(&l->scrapes));
    event_stop(&l->event);
    event_stop(&l->again);
    (void)close(l->sock);
    if (*b->config.metrics_listen == '/')
        (void)unlink(b->config.metrics_listen);
    free(l);
    b->listener = NULL;
}
