/* SPDX-License-Identifier: MIT */
#include "tests/fuzz/client.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/msg.h"
#include "proto/session.h"

struct client clients[CLIENTS];
struct client_id ids[IDS];
unsigned ids_made;

void client_open(struct client *c, int node, enum fcc_role role, bool small)
{
    memset(c, 0, sizeof(*c));
    c->doorbell = -1;
    c->node = node;
    c->role = role;
    c->sock = bed_connect(node, role, small);
}

void client_close(struct client *c)
{
    if (c->sock < 0)
        return;
    for (int i = 0; i < BUFFERS; i++)
        if (c->buffers[i].at)
            (void)munmap(c->buffers[i].at, c->buffers[i].bytes);
    if (c->memory)
        (void)munmap(c->memory, sizeof(*c->memory));
    if (c->triggers)
        (void)munmap(c->triggers, sizeof(*c->triggers));
    if (c->tracker) {
        (void)munmap(c->tracker, sizeof(*c->tracker));
        (void)close(c->bell);
    }
    if (c->doorbell >= 0)
        (void)close(c->doorbell);
    (void)close(c->sock);
    *c = (struct client){.sock = -1};
}

void client_send(struct client *c, struct fcc_msg *m, size_t length, enum fcc_msg_type type)
{
    m->type = (uint16_t)type;
    m->id = c->requests + 1 < REQUESTS ? c->requests + 1 : 0;
    if (msg_send(c->sock, m, length, NULL, 0) || !m->id)
        return;
    c->requests++;
    c->awaited[m->id] = (uint8_t)type;
}

bool client_ring(struct client *c, struct fcc_submit *m, size_t length)
{
    uint64_t one = 1, room = (length + FCC_RECORD_ALIGN - 1) / FCC_RECORD_ALIGN * FCC_RECORD_ALIGN;
    const unsigned char *bytes = (const unsigned char *)m;

    m->msg.length = (uint32_t)length;
    if (c->head + room - atomic_load(&c->memory->tail) > FCC_RING_BYTES)
        return false;
    for (size_t i = 0; i < length; i++)
        c->memory->data[(c->head + i) % FCC_RING_BYTES] = bytes[i];
    c->head += room;
    atomic_store(&c->memory->head, c->head);
    (void)!write(c->doorbell, &one, sizeof(one)); /* if that is not possible it has been rung */
    return true;
}

/* ---- answers ---- */

static void *map(int fd, size_t bytes)
{
    struct stat st;

    if (fstat(fd, &st) || (uint64_t)st.st_size < bytes || !bytes)
        return NULL;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void welcome_take(struct client *c, int fds[], int *nfds)
{
    if (c->role != FCC_ROLE_CLIENT)
        return;
    FUZZ_CHECK(*nfds == 2 && !c->memory);
    c->memory = map(fds[0], sizeof(*c->memory));
    FUZZ_CHECK(c->memory != NULL && ftruncate(fds[0], 0) != 0);
    c->doorbell = fds[1];
    *nfds = 1;
}

void client_id_add(struct fcc_unique_id id)
{
    unsigned n = ids_made++;

    ids[n % IDS] = (struct client_id){.id = id, .nranks = 1 + (int)((n + 1) % 4), .there = true};
}

static void buffer_take(struct client *c, const struct fcc_buffer_alloc_reply *m, uint64_t bytes, int fd)
{
    struct client_buffer *b = NULL;

    for (int i = 0; i < BUFFERS && !b; i++)
        if (!c->buffers[i].handle)
            b = &c->buffers[i];
    FUZZ_CHECK(m->buffer && m->map_bytes >= bytes);
    if (b)
        *b = (struct client_buffer){.handle = m->buffer, .bytes = bytes, .at = map(fd, bytes)};
}

static void answer_take(struct client *c, uint8_t type, uint64_t id, const void *message, ssize_t length, int fds[], int nfds)
{
    const struct fcc_reply *r = message;

    if (type == FCC_MSG_UNIQUE_ID || type == FCC_MSG_MEETING) {
        FUZZ_CHECK(length == sizeof(struct fcc_unique_id_reply));
        client_id_add(((const struct fcc_unique_id_reply *)message)->unique_id);
    } else if (type == FCC_MSG_COMM_INIT) {
        FUZZ_CHECK(length == sizeof(struct fcc_comm_init_reply));
        for (int i = 0; i < COMMS; i++)
            if (!c->comms[i]) {
                c->comms[i] = ((const struct fcc_comm_init_reply *)message)->comm;
                c->nranks[i] = (int)c->bytes_asked[id];
                break;
            }
    } else if (type == FCC_MSG_BUFFER_ALLOC) {
        FUZZ_CHECK(length == sizeof(struct fcc_buffer_alloc_reply) && nfds == 1);
        buffer_take(c, message, c->bytes_asked[id], fds[0]);
    } else if (type == FCC_MSG_TRIGGERS && !c->triggers) {
        FUZZ_CHECK(nfds == 1);
        c->triggers = map(fds[0], sizeof(*c->triggers));
    } else if (type == FCC_MSG_TRACKER && !c->tracker) {
        FUZZ_CHECK(nfds == 2);
        c->tracker = map(fds[0], sizeof(*c->tracker));
        c->bell = fcntl(fds[1], F_DUPFD_CLOEXEC, 0);
    } else if (type == FCC_MSG_SUBMIT && ((const struct fcc_submit_reply *)message)->nvalues == 2) {
        c->prepared[id % PREPARED] = (uint32_t)((const struct fcc_submit_reply *)message)->values[0];
    }
    FUZZ_CHECK((uint32_t)nfds == r->fds || type == FCC_MSG_HELLO);
}

static void reply_take(struct client *c, const void *message, ssize_t length, int fds[], int *nfds)
{
    const struct fcc_reply *r = message;
    uint64_t id = r->msg.id;

    FUZZ_CHECK(length >= (ssize_t)sizeof(*r) && r->msg.type & FCC_REPLY && memchr(r->text, 0, sizeof(r->text)));
    FUZZ_CHECK(r->status <= 0 && (r->status == 0 || r->text[0]));
    for (const char *t = r->text; *t; t++)
        FUZZ_CHECK((unsigned char)*t >= ' ' && *t != 0x7f);
    if (r->msg.type == (FCC_MSG_HELLO | FCC_REPLY) && id == UINT64_MAX && r->status == 0)
        welcome_take(c, fds, nfds);
    if (!id || id >= REQUESTS)
        return;
    if (!c->awaited[id])
        fuzz_failed(__FILE__, __LINE__, "request %llu is answered twice, or was never made: type 0x%x, status %d: %s",
                    (unsigned long long)id, r->msg.type, r->status, r->text);
    FUZZ_CHECK(r->msg.type == (c->awaited[id] | FCC_REPLY));
    if (!r->status)
        answer_take(c, c->awaited[id], id, message, length, fds, *nfds);
    c->awaited[id] = 0;
}

void client_read(struct client *c)
{
    static _Alignas(16) unsigned char buf[FCC_MSG_MAX];
    int fds[FCC_MAX_FDS], nfds;
    ssize_t n;

    while (client_is_open(c) && (n = msg_recv(c->sock, buf, sizeof(buf), MSG_DONTWAIT, fds, &nfds)) != -EAGAIN) {
        FUZZ_CHECK(n >= 0 || n == -EPIPE || n == -ECONNRESET);
        if (n <= 0)
            c->closed = true;
        else
            reply_take(c, buf, n, fds, &nfds);
        fds_close(fds, n > 0 ? nfds : 0);
    }
}

bool client_is_answered(const struct client *c, char text[CLIENT_TEXT])
{
    int at = (int)(c - clients);

    if (!client_is_open(c))
        return true;
    for (uint64_t id = 1; id <= c->requests; id++)
        if (c->awaited[id]) {
            (void)snprintf(text, CLIENT_TEXT, "client %d: request %d of type %d has no answer", at, (int)id, c->awaited[id]);
            return false;
        }
    for (int i = 0; i < (int)FCC_SLOTS && c->memory; i++)
        if (c->slots_awaited[i] && atomic_load(&c->memory->slot[i].state) != FCC_SLOT_DONE) {
            (void)snprintf(text, CLIENT_TEXT, "client %d: the operator in slot %d has not ended", at, i);
            return false;
        }
    return true;
}
