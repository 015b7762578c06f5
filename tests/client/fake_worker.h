/* SPDX-License-Identifier: MIT
 *
 * fake_worker.h - the other end of libfccclient for client_bed.h: one thread that takes one connection on a private socket and
 * speaks the protocol as a worker does, except for the faults that it is told to make.
 *
 * It always sleeps by the protocol (worker_sleeps, fence, a last look at head, then poll without a time limit), so a
 * doorbell that is not rung hangs the test. What steers it while it runs is atomic, and takes effect at fake_poke().
 *
 * An operator with a place on a stream is finished when the stream has come to it, as by a worker's GPU; until then the fake
 * looks every millisecond, and before it takes the next operator. A worker ends the operators of a rank in their order. The fake
 * does so, too, if nothing is held back and the stream of each operator has come before the next one is submitted; otherwise an
 * operator does not wait for those before it.
 */
#ifndef FAKE_WORKER_H
#define FAKE_WORKER_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/device/driver.h"
#include "proto/session.h"
#include "tests/client/fake_submit.h"

static int fake_memfd(size_t bytes, bool sealed)
{
    int fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || ftruncate(fd, (off_t)bytes) || (sealed && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)))
        abort();
    return fd;
}

/* The fake driver's IPC handle, in a file that nobody can write to any more unless it is not sealed. */
static int fake_handle(uint64_t bytes, bool sealed)
{
    int fd = fake_memfd(sizeof(struct driver_ipc_handle), true);

    if (pwrite(fd, &bytes, sizeof(bytes), 0) != sizeof(bytes) || (sealed && fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE)))
        abort();
    return fd;
}

/* The words on one GPU, as a client imports them. Asked for once by each of the client's GPUs. */
static int fake_words(struct fake *f, uint32_t gpu)
{
    size_t bytes = 4096;
    int fd = fake_memfd(bytes, true);

    if (gpu >= FCC_MAX_GPUS || !(f->words_gpus >> gpu & 1u)) {
        f->broken++;
        return fd;
    }
    if (f->words[gpu])
        (void)munmap(f->words[gpu], bytes);
    f->words[gpu] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return fd;
}

/* Send a reply with nfds descriptors (which it closes), as the fault says. */
static void fake_reply(struct fake *f, enum fault fault, const struct fcc_msg *to, struct fcc_reply *reply, size_t length,
                       int *fds, int nfds)
{
    int extra[FCC_MAX_FDS], n = nfds;

    reply->msg = (struct fcc_msg){.length = (uint32_t)length, .type = to->type | FCC_REPLY, .id = to->id};
    for (int i = 0; i < nfds; i++)
        extra[i] = fds[i];
    void (*twist)(const struct fcc_msg *, struct fcc_reply *) = f->twist;
    if (twist)
        twist(to, reply);
    if (fault == FD_MISSING)
        n = nfds - 1;
    if (fault == FD_SURPLUS)
        extra[n++] = f->poke;
    reply->fds = (uint32_t)n;
    if (fault == REPLY_TRUNCATED)
        length -= 8;
    if (fault == REPLY_WRONG_TYPE)
        reply->msg.type = FCC_MSG_QUERY | FCC_REPLY;
    if (fault == REPLY_ERROR) {
        reply->msg.type = FCC_MSG_ERROR;
        reply->status = -EPERM;
        reply->fds = 0;
        n = 0;
        length = sizeof(*reply);
        (void)snprintf(reply->text, sizeof(reply->text), "%s", FAKE_TEXT);
    }
    if (fault == REPLY_LENGTH_LIES) {
        reply->msg.length = (uint32_t)length + 1;
        (void)send(f->sock, reply, length, MSG_NOSIGNAL); /* msg_send() would set it right */
    } else if (fault == REPLY_NONE) {
        f->vanish = true;
    } else {
        (void)msg_send(f->sock, &reply->msg, length, extra, n);
    }
    fds_close(fds, nfds);
}

static void fake_welcome(struct fake *f, const struct fcc_hello *hello)
{
    struct fcc_welcome w = {.version = FCC_PROTO_VERSION, .devices = 4, .worker_pid = 4711, .spin_us = f->spin_us};
    size_t bytes = sizeof(struct fcc_session_memory) - (f->welcome_fault == FD_SMALL ? 64 : 0);
    int fds[2] = {fake_memfd(bytes, f->welcome_fault != FD_UNSEALED), -1};

    f->memory = mmap(NULL, sizeof(*f->memory), PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    atomic_store(&f->memory->time_limit_ms, FAKE_TIME_LIMIT_MS);
    f->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    fds[1] = fcntl(f->bell ? f->bell : f->doorbell, F_DUPFD_CLOEXEC, 0);
    if (f->welcome_fault == VERSION_WRONG)
        w.version++;
    f->hello = *hello;
    fake_reply(f, f->welcome_fault, &hello->msg, &w.reply, sizeof(w), fds, 2);
}

static void fake_call(struct fake *f, const struct fcc_msg *m)
{
    union {
        struct fcc_reply reply;
        struct fcc_unique_id_reply id;
        struct fcc_comm_init_reply comm;
        struct fcc_buffer_alloc_reply buffer;
        struct fcc_stream_words_reply words;
    } u = {0};
    enum fault fault = f->fault;
    size_t length = sizeof(u.reply);
    int fds[2] = {-1, -1}, fd = -1, nfds = 0;

    if (m->type == FCC_MSG_UNIQUE_ID || m->type == FCC_MSG_MEETING) {
        length = sizeof(u.id);
        memset(u.id.unique_id.bytes, (int)(m->id & 0xff), sizeof(u.id.unique_id.bytes));
    } else if (m->type == FCC_MSG_COMM_INIT && ((const struct fcc_comm_init_msg *)m)->refused) {
        u.reply.status = -(int)((const struct fcc_comm_init_msg *)m)->refused;
    } else if (m->type == FCC_MSG_COMM_INIT) {
        length = sizeof(u.comm);
        u.comm.comm = FAKE_COMM;
        u.comm.device = FAKE_DEVICE;
        u.comm.time_limit_ms = f->time_limit_ms ? f->time_limit_ms : FAKE_TIME_LIMIT_MS;
        u.comm.device_kind = f->device_kind;
        u.comm.words_gpus = f->words_gpus;
        memset(u.comm.device_uuid, f->device_uuid, sizeof(u.comm.device_uuid));
    } else if (m->type == FCC_MSG_BUFFER_ALLOC) {
        length = sizeof(u.buffer);
        u.buffer.buffer = ++f->last_buffer;
        u.buffer.map_bytes = (((const struct fcc_buffer_alloc_msg *)m)->bytes + 4095) / 4096 * 4096;
        u.buffer.memory = f->memory_kind;
        if (f->memory_kind == FCC_MEMORY_GPU_IPC)
            fd = fake_handle(u.buffer.map_bytes, fault != FD_UNSEALED);
        else
            fd = fake_memfd(u.buffer.map_bytes - (fault == FD_SMALL ? 4096 : 0), fault != FD_UNSEALED);
        nfds = 1;
    } else if (m->type == FCC_MSG_STREAM_WORDS && f->no_words) {
        u.reply.status = -EOPNOTSUPP;
    } else if (m->type == FCC_MSG_STREAM_WORDS) {
        length = sizeof(u.words);
        u.words.memory = f->memory_kind;
        u.words.map_bytes = fault == FD_SMALL ? 512 : 4096;
        fd = fake_words(f, ((const struct fcc_stream_words_msg *)m)->gpu);
        nfds = 1;
    } else if (m->type == FCC_MSG_TRACKER && (fault == FD_SMALL || fault == FD_UNSEALED)) {
        fd = fake_memfd(sizeof(struct fcc_tracker_memory) - (fault == FD_SMALL ? 64 : 0), fault != FD_UNSEALED);
        fds[1] = eventfd(0, EFD_CLOEXEC);
        nfds = 2;
    } else if (m->type == FCC_MSG_PUT_REGISTER || m->type == FCC_MSG_TRACKER) {
        u.reply.status = -EOPNOTSUPP;
    } else if (m->type == FCC_MSG_TRIGGERS) { /* which nobody takes */
        fd = fake_memfd(sizeof(struct fcc_trigger_memory), true);
        nfds = 1;
    } else if (m->type != FCC_MSG_COMM_ABORT && m->type != FCC_MSG_COMM_DESTROY && m->type != FCC_MSG_BUFFER_FREE &&
               m->type != FCC_MSG_TRACKER_FREE) {
        f->broken++;
    }
    fds[0] = fd;
    fake_reply(f, fault, m, &u.reply, length, fds, nfds);
}

/* Answer what was held back, last one first. */
static void fake_release(struct fake *f)
{
    for (unsigned i = f->nheld; i-- > 0;) {
        if (!fake_may_end(f, &f->held[i]))
            continue;
        if (f->mute) {
            if (!f->held[i].past)
                fake_stream_finish(f, &f->held[i]);
            continue;
        }
        fake_end(f, &f->held[i]);
        f->held[i] = f->held[--f->nheld];
    }
    while (f->hold && f->let && f->nheld) {
        fake_end(f, &f->held[0]);
        memmove(f->held, f->held + 1, --f->nheld * sizeof(f->held[0]));
        f->let--;
    }
    while (!f->hold_calls && f->nheld_calls)
        fake_call(f, (const struct fcc_msg *)f->held_call[--f->nheld_calls]);
}

/* Take one record out of the ring. False: there is none. */
static bool fake_ring_read(struct fake *f)
{
    uint64_t head = atomic_load_explicit(&f->memory->head, memory_order_acquire);
    size_t at = f->tail % FCC_RING_BYTES;
    struct fcc_msg m;

    if (head == f->tail || f->stall)
        return false;
    fake_release(f); /* with head read: an operator whose stream had come before this one was submitted ends before it */
    if (head - f->tail > FCC_RING_BYTES)
        f->broken++;
    memcpy(&m, f->memory->data + at, sizeof(m)); /* a header never wraps: it is one alignment unit */
    if (m.length < sizeof(struct fcc_submit) || m.length > FCC_MSG_MAX || m.length > head - f->tail) {
        f->broken++;
        f->vanish = true;
        return false;
    }
    size_t first = FCC_RING_BYTES - at < m.length ? FCC_RING_BYTES - at : m.length;
    memcpy(f->inbox, f->memory->data + at, first);
    memcpy(f->inbox + first, f->memory->data, m.length - first);
    memset(f->memory->data + at, 0xee, first); /* it is ours until tail says otherwise */
    memset(f->memory->data, 0xee, m.length - first);
    f->tail += (m.length + FCC_RECORD_ALIGN - 1) / FCC_RECORD_ALIGN * FCC_RECORD_ALIGN;
    atomic_store_explicit(&f->memory->tail, f->fault == TAIL_WRONG ? f->tail + 16 : f->tail, memory_order_release);
    fake_submit(f, (const struct fcc_submit *)f->inbox);
    return true;
}

/* Read one message from the socket. False: there is none. */
static bool fake_socket_read(struct fake *f)
{
    const struct fcc_msg *m = (const struct fcc_msg *)f->inbox;
    int fds[FCC_MAX_FDS], nfds;
    ssize_t n = msg_recv(f->sock, f->inbox, sizeof(f->inbox), MSG_DONTWAIT, fds, &nfds);

    if (n == -EAGAIN)
        return false;
    if (n <= 0 || nfds) {
        f->broken += n < 0 || nfds;
        f->vanish = true;
        return false;
    }
    if (m->type == FCC_MSG_COMM_INIT)
        f->comm_init = *(const struct fcc_comm_init_msg *)m;
    if (m->type == FCC_MSG_MEETING)
        f->meeting = *(const struct fcc_meeting *)m;
    if (m->type < FCC_MSG_TYPES)
        f->calls[m->type]++;
    if (m->type == FCC_MSG_SUBMIT)
        fake_submit(f, (const struct fcc_submit *)f->inbox);
    else if (f->hold_calls && f->nheld_calls < 64 && m->length <= sizeof(f->held_call[0]))
        memcpy(f->held_call[f->nheld_calls++], m, m->length);
    else
        fake_call(f, m);
    return true;
}

static void fake_sleep(struct fake *f)
{
    struct pollfd p[3] = {
        {.fd = f->sock, .events = POLLIN}, {.fd = f->doorbell, .events = POLLIN}, {.fd = f->poke, .events = POLLIN}};
    uint64_t n;

    atomic_store(&f->memory->worker_sleeps, 1); /* both sequentially consistent: as good as a fence between them */
    if (atomic_load(&f->memory->head) == f->tail || f->slow || f->stall)
        (void)poll(p, 3, f->slow || (f->nheld && f->device_kind) ? 1 : -1);
    atomic_store(&f->memory->worker_sleeps, 0);
    if (read(f->doorbell, &n, sizeof(n)) == sizeof(n))
        f->rings++;
    if (read(f->poke, &n, sizeof(n)) < 0 && errno != EAGAIN)
        abort();
}

static void *fake_main(void *arg)
{
    struct fake *f = arg;
    int fds[FCC_MAX_FDS], nfds;

    while ((f->sock = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0 && f->welcome_fault == REPLY_NONE) {
        f->unanswered += msg_recv(f->sock, f->inbox, sizeof(f->inbox), 0, fds, &nfds) == sizeof(struct fcc_hello);
        (void)close(f->sock);
    }
    if (f->sock < 0)
        return NULL; /* the test made no connection, or has had enough */
    if (msg_recv(f->sock, f->inbox, sizeof(f->inbox), 0, fds, &nfds) == sizeof(struct fcc_hello))
        fake_welcome(f, (const struct fcc_hello *)f->inbox);
    while (f->memory && !f->vanish) {
        while (f->deaf && !f->vanish)
            (void)poll(NULL, 0, 1);
        fake_release(f);
        while (!f->vanish && fake_socket_read(f)) {
        }
        while (!f->vanish && fake_ring_read(f) && !f->slow) {
        }
        if (!f->vanish)
            fake_sleep(f);
    }
    if (f->farewell) {
        struct fcc_reply bye = {.msg.type = FCC_MSG_ERROR, .status = -ESHUTDOWN, .text = "fccd is shutting down"};
        (void)msg_send(f->sock, &bye.msg, sizeof(bye), NULL, 0);
    }
    (void)close(f->sock);
    f->ended = true;
    return NULL;
}

static void fake_poke(struct fake *f)
{
    (void)eventfd_write(f->poke, 1);
}

static void fake_start(struct fake *f, const char *dir)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    (void)snprintf(f->path, sizeof(f->path), "%s/sock", dir);
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s", f->path);
    f->sock = f->doorbell = -1;
    f->poke = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    f->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (bind(f->listener, (struct sockaddr *)&a, sizeof(a)) || listen(f->listener, 4) ||
        pthread_create(&f->thread, NULL, fake_main, f))
        abort();
}

/* The client has disconnected, or is to find out. */
static void fake_stop(struct fake *f)
{
    f->vanish = true;
    fake_poke(f);
    (void)shutdown(f->listener, SHUT_RDWR);
    (void)pthread_join(f->thread, NULL);
    if (f->memory)
        (void)munmap(f->memory, sizeof(*f->memory));
    for (int gpu = 0; gpu < FCC_MAX_GPUS; gpu++)
        if (f->words[gpu])
            (void)munmap(f->words[gpu], 4096);
    if (f->doorbell >= 0)
        (void)close(f->doorbell);
    (void)close(f->poke);
    (void)close(f->listener);
    (void)unlink(f->path);
}

#endif
