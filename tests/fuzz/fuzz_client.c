/* SPDX-License-Identifier: MIT
 *
 * fuzz_client.c - a program that uses libfccclient, and a worker that answers it anything: replies with numbers, lengths, types and descriptors
 * that are wrong, messages that nobody asked for, and a session memory that it writes to as it likes.
 *
 * Whatever comes: calls return 0 or a negative errno value, with words that a terminal can show; what they say they have given can be
 * used; they end; and no descriptor is left over.
 *
 * There is one thread. connect() of the library is one end of a socket pair (-Wl,--wrap=connect), and a reply is sent before the call that it
 * answers: messages' ids follow each other. Behind each reply comes an error with the same id, so that a call that has got nothing which it
 * can use ends. Patience is a millisecond (-Wl,--wrap=patience_ms). There are no GPUs (-Wl,--wrap=dlopen).
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/core/call.h"
#include "client/memory/buffer.h"
#include "proto/session.h"
#include "tests/fuzz/fuzz.h"

enum { STEPS_MAX = 40, COMMS_MAX = 4, BUFFERS_MAX = 6, REQUESTS_MAX = 8, PLACES = 200 };

int __wrap_connect(int sock, const struct sockaddr *address, socklen_t length);
int64_t __wrap_patience_ms(uint32_t time_limit_ms, unsigned limits);
void *__real_dlopen(const char *file, int flags);
void *__wrap_dlopen(const char *file, int flags);

static struct {
    struct input *in;
    int sock;                          /* the worker's end */
    struct fcc_session_memory *memory; /* as the worker has it; NULL: the client has none */
    fcc_context *context;
    fcc_comm *comms[COMMS_MAX];
    fcc_buffer *buffers[BUFFERS_MAX];
    fcc_request *requests[REQUESTS_MAX];
    int64_t rows[FCC_MAX_RANKS];
} f;

int64_t __wrap_patience_ms(uint32_t time_limit_ms, unsigned limits)
{
    (void)time_limit_ms, (void)limits;
    return 1;
}

/* ---- the worker ---- */

/* A file of so many bytes, as a worker sends it; rarely another one. */
static int some_file(size_t bytes, bool is_data)
{
    uint32_t kind = input_rarely(f.in, 8) ? 1 + input_below(f.in, 6) : 0;
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | (is_data ? F_SEAL_WRITE : 0), pair[2], fd;

    if (kind == 1)
        return open("/", O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    if (kind == 2)
        return eventfd(0, EFD_CLOEXEC);
    if (kind == 3)
        return pipe2(pair, O_CLOEXEC) ? -1 : (close(pair[1]), pair[0]);
    fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (kind == 4)
        bytes /= 2;
    FUZZ_CHECK(fd >= 0 && !ftruncate(fd, (off_t)bytes));
    if (kind != 5)
        (void)fcntl(fd, F_ADD_SEALS, kind == 6 ? F_SEAL_GROW : seals);
    return fd;
}

/* Numbers of a reply become others. */
static void reply_change(void *reply, size_t length)
{
    for (uint32_t n = 1 + input_below(f.in, 4); n; n--) {
        size_t at = input_below(f.in, (uint32_t)(length / 4)) * (size_t)4, size = input_below(f.in, 2) ? 8 : 4;
        int64_t value = input_number(f.in);
        if (input_rarely(f.in, 8)) {
            memset((char *)reply + at, (int)value, length - at); /* a text without its end, say */
            return;
        }
        if (at + size <= length)
            memcpy((char *)reply + at, &value, size);
    }
}

static void message_send(struct fcc_reply *reply, size_t length, const int *fds, int nfds)
{
    (void)msg_send(f.sock, &reply->msg, length, fds, nfds); /* what finds no room is lost */
}

/* The answer to the next message of this type, and the error behind it. Takes the descriptors. */
static void answer(uint16_t type, uint64_t id, struct fcc_reply *reply, size_t length, int *fds, int nfds)
{
    struct fcc_reply end = {.msg = {.type = FCC_MSG_ERROR, .id = id}, .status = -ECANCELED, .text = "no usable reply"};
    int n = nfds, surplus = -1, more[FCC_MAX_FDS] = {-1, -1, -1, -1};

    reply->msg = (struct fcc_msg){.type = type | FCC_REPLY, .id = id};
    reply->fds = (uint32_t)nfds;
    for (int i = 0; i < nfds; i++)
        more[i] = fds[i];
    if (input_below(f.in, 3) == 2)
        reply_change(reply, length);
    if (input_rarely(f.in, 24))
        length = sizeof(reply->msg) + input_below(f.in, (uint32_t)(length - sizeof(reply->msg)));
    if (input_rarely(f.in, 24))
        n = (int)input_below(f.in, (uint32_t)nfds + 1);
    if (input_rarely(f.in, 48)) /* more than was asked for */
        more[n++] = surplus = eventfd(0, EFD_CLOEXEC);
    if (!input_rarely(f.in, 48))
        message_send(reply, length, more, n);
    message_send(&end, sizeof(end), NULL, 0);
    for (int i = 0; i < nfds; i++)
        (void)close(fds[i]);
    if (surplus >= 0)
        (void)close(surplus);
}

static uint64_t next_id(void)
{
    return f.context->last_id + 1;
}

static void welcome(void)
{
    struct fcc_welcome w = {.version = FCC_PROTO_VERSION, .devices = 2, .worker_pid = 4711, .spin_us = 1};
    int fds[2] = {some_file(sizeof(struct fcc_session_memory), false), eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    void *memory = mmap(NULL, sizeof(struct fcc_session_memory), PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);

    f.memory = memory == MAP_FAILED || lseek(fds[0], 0, SEEK_END) < (off_t)sizeof(*f.memory) ? NULL : memory;
    if (!f.memory && memory != MAP_FAILED)
        (void)munmap(memory, sizeof(struct fcc_session_memory));
    if (f.memory) {
        atomic_store(&f.memory->head, (uint64_t)(input_rarely(f.in, 8) ? input_number(f.in) : 0));
        atomic_store(&f.memory->tail, atomic_load(&f.memory->head));
    }
    answer(FCC_MSG_HELLO, 1, &w.reply, sizeof(w), fds, 2);
}

int __wrap_connect(int sock, const struct sockaddr *address, socklen_t length)
{
    int pair[2];

    (void)address, (void)length;
    FUZZ_CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
    FUZZ_CHECK(dup3(pair[0], sock, O_CLOEXEC) == sock);
    (void)close(pair[0]);
    f.sock = pair[1];
    welcome();
    return 0;
}

/* A GPU's driver would open descriptors of its own. */
void *__wrap_dlopen(const char *file, int flags)
{
    bool is_driver = file && (!strncmp(file, "libcuda", 7) || !strncmp(file, "libamdhip", 9));

    return __real_dlopen(is_driver ? "there are no GPUs here" : file, flags);
}

/* The session memory says something else, anywhere but where the client is the only one to write. */
static void memory_change(void)
{
    struct fcc_session_memory *m = f.memory;
    uint32_t slot = input_below(f.in, FCC_SLOTS), place = input_below(f.in, FCC_BINDINGS);
    uint64_t value = (uint64_t)input_number(f.in);

    switch (input_below(f.in, 12)) {
    case 0:
        atomic_store(&m->tail, value);
        return;
    case 1:
        atomic_store(&m->tail, atomic_load(&m->head) - value); /* within what may be, perhaps */
        return;
    case 2:
        atomic_store(&m->worker_sleeps, (uint32_t)value);
        return;
    case 3:
        atomic_store(&m->engine_core, (uint32_t)value);
        return;
    case 4:
        atomic_store(&m->status[input_below(f.in, FCC_STATUS_WORDS)], (int32_t)value);
        return;
    case 5:
        atomic_store(&m->time_limit_ms, (uint32_t)value);
        return;
    case 6:
        atomic_store(&m->slot[slot].stream_started, (uint32_t)value);
        atomic_store(&m->slot[slot].stream_finished, (uint32_t)value);
        return;
    case 7:
        atomic_store(&m->announced, (uint32_t)value);
        return;
    case 8:
        atomic_store(&m->bindings[place].first, value);
        atomic_store(&m->bindings[place].until, value >> 63);
        atomic_store(&m->bindings[place].number, (uint32_t)input_number(f.in));
        atomic_store(&m->bindings[place].comm, (uint32_t)input_number(f.in));
        return;
    case 9:
        atomic_store(&m->bindings[place].ended, value);
        return;
    default: /* a completion that nobody awaits, or somebody does */
        m->slot[slot].status = (int32_t)value;
        m->slot[slot].id = (uint64_t)input_number(f.in);
        m->slot[slot].nvalues = (uint32_t)input_number(f.in);
        memset(m->slot[slot].text, (int)value, sizeof(m->slot[slot].text));
        atomic_store(&m->slot[slot].state, (uint32_t)input_below(f.in, 6));
    }
}

static void stray_send(void)
{
    struct fcc_submit_reply r = {.reply.msg = {.type = (uint16_t)input_number(f.in), .id = (uint64_t)input_number(f.in)},
                                 .reply.status = (int32_t)input_number(f.in)};

    if (input_below(f.in, 2))
        r.reply.msg.type = FCC_MSG_ERROR;
    memset(r.reply.text, (int)input_u8(f.in), sizeof(r.reply.text));
    int fd = input_rarely(f.in, 4) ? eventfd(0, EFD_CLOEXEC) : -1;
    message_send(&r.reply, input_below(f.in, 2) ? sizeof(r) : sizeof(r.reply), &fd, fd >= 0);
    if (fd >= 0)
        (void)close(fd);
}

/* The slot of a request gets a result; rarely one that makes no sense. */
static void complete(const struct fcc_request *r)
{
    struct fcc_slot *s = &f.memory->slot[r->slot % FCC_SLOTS];

    s->id = r->id;
    s->status = 0;
    s->nvalues = r->recv_rows ? (uint32_t)r->nranks : 0;
    if (input_rarely(f.in, 3)) {
        s->status = (int32_t)input_number(f.in);
        s->nvalues = (uint32_t)input_number(f.in);
        s->id += input_rarely(f.in, 4);
        memset(s->text, (int)input_u8(f.in), sizeof(s->text));
    }
    atomic_store(&s->state, FCC_SLOT_DONE);
}

/* ---- the program ---- */

static int well(int status)
{
    FUZZ_CHECK(status <= 0 && status >= -4095);
    if (!status)
        return 0;
    FUZZ_CHECK(strlen(fcc_last_error()) < FCC_TEXT_MAX);
    for (const char *p = fcc_last_error(); *p; p++)
        FUZZ_CHECK((unsigned char)*p >= 0x20 && *p != 0x7f);
    return status;
}

static void step_id(void)
{
    struct fcc_unique_id_reply r = {.reply.status = 0};
    struct fcc_unique_id id;

    answer(FCC_MSG_UNIQUE_ID, next_id(), &r.reply, sizeof(r), NULL, 0);
    (void)well(fcc_get_unique_id(f.context, &id));
}

static void step_join(fcc_comm **comm)
{
    struct fcc_comm_init_reply r = {
        .comm = 1 + input_below(f.in, 4), .time_limit_ms = 1000, .status_word = input_below(f.in, 9)};
    struct fcc_comm_options options = {.device = -1, .device_kind = input_rarely(f.in, 8) ? input_below(f.in, 4) : 0};
    int nranks = input_rarely(f.in, 8) ? (int)input_number(f.in) : 1 + (int)input_below(f.in, 8);
    int rank = input_rarely(f.in, 8) ? (int)input_number(f.in) : 0;

    r.device_kind = options.device_kind;
    answer(FCC_MSG_COMM_INIT, next_id(), &r.reply, sizeof(r), NULL, 0);
    *comm = NULL;
    if (!well(fcc_comm_init(f.context, &(struct fcc_unique_id){{0}}, nranks, rank, &options, comm)))
        FUZZ_CHECK(*comm && fcc_comm_size(*comm) == nranks && nranks >= 1 && nranks <= FCC_MAX_RANKS &&
                   fcc_comm_rank(*comm) == rank && rank >= 0 && rank < nranks);
}

static void bytes_touch(void *data, size_t bytes)
{
    volatile unsigned char *at = data;

    FUZZ_CHECK(data != NULL);
    if (bytes)
        at[0] = at[bytes - 1] = 1;
}

static void step_alloc(fcc_comm *comm, fcc_buffer **buffer)
{
    size_t bytes = input_below(f.in, 20000);
    struct fcc_buffer_alloc_reply r = {.buffer = 1 + input_below(f.in, 8), .map_bytes = (bytes + 4095) / 4096 * 4096 + 4096};
    int fd = some_file(r.map_bytes, false);

    answer(FCC_MSG_BUFFER_ALLOC, next_id(), &r.reply, sizeof(r), &fd, 1);
    *buffer = NULL;
    if (!well(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, bytes, buffer)))
        bytes_touch(fcc_buffer_data(*buffer), fcc_buffer_size(*buffer));
}

static void step_peer(fcc_buffer *buffer)
{
    struct fcc_buffer_alloc_reply r = {.buffer = buffer->handle, .map_bytes = (buffer->bytes + 4095) / 4096 * 4096 + 4096};
    int fd = some_file(r.map_bytes, false);
    void *at = NULL;

    answer(FCC_MSG_BUFFER_PEER, next_id(), &r.reply, sizeof(r), &fd, 1);
    if (!well(fcc_buffer_peer(buffer, (int)input_number(f.in), &at)))
        bytes_touch(at, fcc_buffer_size(buffer));
}

static void step_put(fcc_comm *comm)
{
    struct fcc_put_reply r = {.number = 3};
    struct fcc_reply triggers = {.status = 0};
    struct fcc_put put = {.rank = 1, .rows = 1};
    uint32_t number = 0;

    answer(FCC_MSG_PUT_REGISTER, next_id(), &r.reply, sizeof(r), NULL, 0);
    if (!well(fcc_put_register(comm, &put, &number)))
        FUZZ_CHECK(number != 0);
    int fd = some_file(sizeof(struct fcc_trigger_memory), false);
    if (!comm->triggers)
        answer(FCC_MSG_TRIGGERS, next_id(), &triggers, sizeof(triggers), &fd, 1);
    else
        (void)close(fd);
    (void)well(fcc_put_trigger(comm, number ? number : 1, 5));
    if (comm->triggers && input_rarely(f.in, 4))
        atomic_store(&comm->triggers->tail, (uint64_t)input_number(f.in));
}

/* Rules whose numbers, counts and ends are anything. */
static void step_tracker(fcc_comm *comm)
{
    struct fcc_rule_reply r = {.number = (uint32_t)input_number(f.in)};
    struct fcc_reply made = {.status = 0};
    const struct fcc_rule rule = {.count = 1};
    fcc_tracker *t = NULL;
    uint32_t number = 0;
    int fds[2] = {some_file(sizeof(struct fcc_tracker_memory), false), eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};

    answer(FCC_MSG_TRACKER, next_id(), &made, sizeof(made), fds, 2);
    if (comm->tracker || well(fcc_tracker_create(comm, &t)))
        return;
    if (!input_rarely(f.in, 3))
        r.number = 0;
    answer(FCC_MSG_RULE, next_id(), &r.reply, sizeof(r), NULL, 0);
    if (!well(fcc_tracker_rule(t, &rule, &number)))
        FUZZ_CHECK(number < FCC_RULES_MAX);
    (void)well(fcc_tracker_add(t, number, (uint64_t)input_number(f.in)));
    (void)well(fcc_tracker_wait(t, number, 1 + (uint64_t)input_below(f.in, 3), 0));
    answer(FCC_MSG_TRACKER_FREE, next_id(), &made, sizeof(made), NULL, 0);
    fcc_tracker_free(t);
}

static void step_start(fcc_comm *comm, fcc_request **request)
{
    struct fcc_gemm_all_to_all_args gemm = {.recv_rows = f.rows};
    struct fcc_gemv_all_reduce_args gemv = {.reserved = {0}};

    *request = NULL;
    if (well(input_below(f.in, 2) ? fcc_gemm_all_to_all_start(comm, &gemm, request)
                                  : fcc_gemv_all_reduce_start(comm, &gemv, request)))
        *request = NULL;
    if (f.memory && !input_rarely(f.in, 16))
        atomic_store(&f.memory->tail, atomic_load(&f.memory->head));
}

static void step_look(fcc_request **request)
{
    int done = 0;

    if (!input_rarely(f.in, 4) && f.memory && !(*request)->finished)
        complete(*request);
    if (input_below(f.in, 2))
        (void)well(fcc_request_test(*request, &done));
    else
        (void)well(fcc_request_wait(*request, (int)input_below(f.in, 2)));
    if (input_below(f.in, 2)) {
        fcc_request_free(*request);
        *request = NULL;
    }
}

static void step_ask(fcc_comm *comm)
{
    (void)well(fcc_comm_error(comm));
    (void)well(fcc_comm_error_wait(comm, 0));
    (void)well(status_of(comm));
}

static void step(void)
{
    fcc_comm **comm = &f.comms[input_below(f.in, COMMS_MAX)];
    fcc_buffer **buffer = &f.buffers[input_below(f.in, BUFFERS_MAX)];
    fcc_request **request = &f.requests[input_below(f.in, REQUESTS_MAX)];
    struct fcc_reply freed = {.status = 0};

    switch (input_below(f.in, 10)) {
    case 0:
        step_id();
        return;
    case 1:
        if (f.memory)
            memory_change();
        return;
    case 2:
        stray_send();
        return;
    case 3:
        if (*buffer) {
            answer(FCC_MSG_BUFFER_FREE, next_id(), &freed, sizeof(freed), NULL, 0);
            fcc_buffer_free(*buffer);
            *buffer = NULL;
            return;
        }
        break;
    case 4:
        if (*buffer) {
            step_peer(*buffer);
            return;
        }
        break;
    case 5:
        if (*comm) {
            if (input_below(f.in, 2))
                step_tracker(*comm);
            else
                step_put(*comm);
            return;
        }
        break;
    case 6:
        if (*comm) {
            step_ask(*comm);
            return;
        }
        break;
    default:
        break;
    }
    if (!*comm)
        step_join(comm);
    else if (*request)
        step_look(request);
    else if (!*buffer && input_below(f.in, 2))
        step_alloc(*comm, buffer);
    else
        step_start(*comm, request);
}

static int places_used(void)
{
    int n = 0;

    for (int fd = 0; fd < PLACES; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* The worker goes first: nobody waits for it then. */
static void end(void)
{
    (void)close(f.sock);
    for (int i = 0; i < REQUESTS_MAX; i++)
        if (f.requests[i])
            fcc_request_free(f.requests[i]);
    for (int i = 0; i < COMMS_MAX; i++)
        if (f.comms[i] && input_below(f.in, 2))
            fcc_comm_destroy(f.comms[i]);
    fcc_disconnect(f.context);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {.at = data, .left = size};
    struct fcc_connect_options options = {.socket_path = "/fuzz", .job = "fuzz", .no_ring = input_rarely(&in, 4)};
    int used = places_used();

    memset(&f, 0, sizeof(f));
    f.in = &in;
    f.sock = -1;
    if (well(fcc_connect(&options, &f.context))) {
        (void)close(f.sock);
    } else {
        for (int i = 0; i < STEPS_MAX && in.left; i++)
            step();
        end();
    }
    if (f.memory)
        (void)munmap(f.memory, sizeof(*f.memory));
    FUZZ_CHECK(places_used() == used);
    return 0;
}
