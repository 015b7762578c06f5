/* SPDX-License-Identifier: MIT
 *
 * socket.c - messages on the socket that accompanies a queue pair: questions, answers, heartbeats.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "daemon/net/verbs/verbs.h"

int verbs_socket_flush(struct verbs_socket *s, struct error *e)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u32 = VERBS_SOCKET};

    while (s->nout) {
        ssize_t n = send(s->fd, s->out, s->nout, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n < 0)
            return net_socket_broken(errno, "its connection", e);
        s->nout -= (uint32_t)n;
        memmove(s->out, s->out + n, s->nout);
    }
    if (s->waits_out == (s->nout > 0))
        return 0;
    s->waits_out = s->nout > 0;
    if (s->waits_out)
        event.events |= EPOLLOUT;
    return epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->fd, &event)
               ? error_set(e, -errno, "cannot watch a connection: %s", strerror(errno))
               : 0;
}

int verbs_socket_send(struct verbs_socket *s, struct verbs_msg m, struct error *e)
{
    m.magic = VERBS_MAGIC;
    if (sizeof(s->out) - s->nout < sizeof(m))
        return error_set(e, -ETIMEDOUT, "the other end does not read its messages");
    memcpy(s->out + s->nout, &m, sizeof(m));
    s->nout += sizeof(m);
    return verbs_socket_flush(s, e);
}

int verbs_socket_read(struct verbs_socket *s, struct verbs_msg out[VERBS_MSGS], struct error *e)
{
    ssize_t n = recv(s->fd, s->in + s->nin, sizeof(s->in) - s->nin, MSG_DONTWAIT);
    int count = 0;

    if (n == 0)
        return -ESHUTDOWN;
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : net_socket_broken(errno, "its connection", e);
    s->nin += (uint32_t)n;
    for (; s->nin - (uint32_t)count * sizeof(*out) >= sizeof(*out); count++) {
        memcpy(&out[count], s->in + (uint32_t)count * sizeof(*out), sizeof(*out));
        if (out[count].magic != VERBS_MAGIC)
            return error_set(e, -EPROTO,
                             "the other end does not speak as a verbs link does: TRANSPORT must be the same on all nodes");
    }
    s->nin -= (uint32_t)count * (uint32_t)sizeof(*out);
    memmove(s->in, s->in + (uint32_t)count * sizeof(*out), s->nin);
    return count;
}
