/* SPDX-License-Identifier: MIT */
#include "client/fccctl/control.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/fccctl/fccctl.h"
#include "client/fccctl/field.h"
#include "proto/base/clock.h"
#include "proto/base/fd.h"
#include "proto/flight.h"
#include "proto/msg.h"
#include "proto/sealed.h"
#include "proto/version.h"

#define ANSWER_MAX (256 << 20) /* bytes of the longest JSON answer */
#define DEVICES_LIMIT_MS 25000 /* the broker waits for the list of GPUs, and after 20 s answers without it */

struct control {
    int sock;
    uint64_t last_id;
    char who[160]; /* "fccd at PATH", "the worker of job ..." */
    _Alignas(16) unsigned char buf[FCC_MSG_MAX];
};

static void limit_set(int sock, int option, int64_t ms)
{
    struct timeval t = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};

    if (ms < 1)
        t.tv_usec = 1; /* 0 would mean no limit */
    (void)setsockopt(sock, SOL_SOCKET, option, &t, sizeof(t));
}

static int socket_connect(const char *path, int *out, struct error *e)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int sock, status;

    if (strlen(path) >= sizeof(address.sun_path))
        return error_set(e, -ECONNREFUSED, "--socket: \"%s\": longer than %zu characters", path, sizeof(address.sun_path) - 1);
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (sock < 0)
        return error_set(e, -errno, "no socket: %s", strerror(errno));
    limit_set(sock, SO_SNDTIMEO, CONTROL_LIMIT_MS); /* applies to connect() as well */
    if (connect(sock, (const struct sockaddr *)&address, sizeof(address)) == 0) {
        *out = sock;
        return 0;
    }
    status = -errno;
    (void)close(sock);
    if (status == -EACCES || status == -EPERM)
        return error_set(
            e, -EACCES,
            "%s: you may not open it: are you in the group that owns it (SOCKET_GROUP of fccd.conf)? 'fccctl doctor' tells",
            path);
    if (status == -EAGAIN)
        return error_set(e, -EHOSTDOWN, "%s: fccd accepts no connections", path);
    return error_set(e, -ECONNREFUSED, "%s: no fccd listens here: %s", path, strerror(-status));
}

/* Waits for the reply to the last message, which has type `type`. The reply is in c->buf; the caller owns fds[0 .. *nfds). */
static int reply_wait(struct control *c, unsigned type, size_t size, int64_t deadline, int fds[FCC_MAX_FDS], int *nfds,
                      struct error *e)
{
    struct fcc_reply reply;
    ssize_t n;

    limit_set(c->sock, SO_RCVTIMEO, deadline - clock_ms());
    n = msg_recv(c->sock, c->buf, sizeof(c->buf), 0, fds, nfds);
    if (n == -EAGAIN)
        return error_set(e, -EHOSTDOWN, "%s does not answer", c->who);
    if (n == 0)
        return error_set(e, -ECONNRESET, "%s closed the connection", c->who);
    if (n < 0)
        return error_set(e, (int)n, "%s: %s", c->who, strerror((int)-n));
    if (n < (ssize_t)sizeof(reply))
        goto malformed;
    memcpy(&reply, c->buf, sizeof(reply));
    if (*nfds == MSG_FDS_LOST) {
        *nfds = 0;
        return error_set(e, -EMFILE, "fccctl has no room for the answer's file descriptor (RLIMIT_NOFILE)");
    }
    if (reply.msg.type == FCC_MSG_ERROR || (reply.msg.type == (type | FCC_REPLY) && reply.status != 0)) {
        fds_close(fds, *nfds);
        *nfds = 0;
        reply.text[FCC_TEXT_MAX - 1] = '\0';
        return error_set(e, reply.status < 0 ? reply.status : -EPROTO, "%s", reply.text);
    }
    if (reply.msg.type == (type | FCC_REPLY) && reply.msg.id == c->last_id && (size_t)n >= size)
        return 0;
malformed:
    fds_close(fds, *nfds);
    *nfds = 0;
    return error_set(e, -EPROTO, "%s does not speak fccctl's protocol (version %u)", c->who, FCC_PROTO_VERSION);
}

/* Sends a message and waits for its reply, as reply_wait() does. */
static int round_trip(struct control *c, struct fcc_msg *msg, size_t length, size_t size, int limit_ms, int fds[FCC_MAX_FDS],
                      int *nfds, struct error *e)
{
    int status;

    msg->id = ++c->last_id;
    status = msg_send(c->sock, msg, length, NULL, 0);
    if (status && status != -EPIPE && status != -ECONNRESET) /* a daemon that has closed the connection may have said why */
        return error_set(e, -EHOSTDOWN, "%s: %s", c->who, strerror(-status));
    return reply_wait(c, msg->type, size, clock_ms() + limit_ms, fds, nfds, e);
}

static int hello(struct control *c, uint32_t version, uint32_t uid, const char *job, int limit_ms, struct error *e)
{
    struct fcc_hello m = {
        .msg = {.type = FCC_MSG_HELLO},
        .magic = FCC_PROTO_MAGIC,
        .version = version,
        .role = FCC_ROLE_CONTROL,
        .uid = uid,
    };
    int fds[FCC_MAX_FDS], nfds = 0, status;

    memcpy(m.job, job, strlen(job));
    status = round_trip(c, &m.msg, sizeof(m), sizeof(struct fcc_welcome), limit_ms, fds, &nfds, e);
    fds_close(fds, nfds);
    return status;
}

#define RESETS 3

/* Connects, and says HELLO, in the newest version that both sides speak. */
static int greet(struct control *c, const char *socket, uint32_t uid, const char *job, int limit_ms, struct error *e)
{
    uint32_t version = FCC_PROTO_VERSION;
    char told[FCC_TEXT_MAX];
    int status, resets = 0;
    bool again;

    do {
        status = socket_connect(socket, &c->sock, e);
        if (status)
            return status;
        status = hello(c, version, uid, job, limit_ms, e);
        again = status == -EPROTO && version_agree(e->text, &version);
        again = again ||
                (status == -ECONNRESET && ++resets < RESETS); /* fccd, or the worker, has just ended: there may be another */
        if (status)
            fd_close(&c->sock);
    } while (again);
    if (status == -EPROTO) {
        version_explain(e->text, told, sizeof(told));
        return error_set(e, -EPROTO, "%s", told);
    }
    return status;
}

int control_open(const char *socket, uint32_t uid, const char *job, int limit_ms, struct control **out, struct error *e)
{
    struct control *c;
    int status;

    if (strlen(job) >= FCC_JOB_MAX)
        return error_set(e, -EINVAL, "--job: \"%s\": longer than %d characters", job, FCC_JOB_MAX - 1);
    c = calloc(1, sizeof(*c));
    if (!c)
        return error_set(e, -ENOMEM, "out of memory");
    if (*job)
        (void)snprintf(c->who, sizeof(c->who), "the worker of job \"%s\" of uid %" PRIu32, job, uid);
    else
        (void)snprintf(c->who, sizeof(c->who), "fccd at %s", socket);
    status = greet(c, socket, uid, job, limit_ms, e);
    if (status) {
        free(c);
        return status;
    }
    *out = c;
    return 0;
}

void control_close(struct control *c)
{
    if (!c)
        return;
    (void)close(c->sock);
    free(c);
}

/* Parses a private copy of the JSON in a memfd, as fccctl may run as root and the answer may come from any user's worker.
 * Closes fd. */
static int json_from_fd(int fd, struct json_object **out, struct error *e)
{
    struct json_tokener *tokener;
    void *text = NULL;
    size_t bytes = 0;
    int status = sealed_read(fd, 2, ANSWER_MAX, "the daemon's answer", &text, &bytes, e);

    (void)close(fd);
    if (status)
        return status;
    tokener = json_tokener_new();
    *out = tokener ? json_tokener_parse_ex(tokener, text, (int)bytes) : NULL;
    if (!tokener)
        status = error_set(e, -ENOMEM, "the daemon's answer: out of memory");
    else if (!*out)
        status = error_set(e, -EPROTO, "the daemon's answer is not JSON that fccctl can read: %s",
                           json_tokener_error_desc(json_tokener_get_error(tokener)));
    if (tokener)
        json_tokener_free(tokener);
    free(text);
    return status;
}

/* Sends the query, and sets *fd to the answer's descriptor, which is the caller's. */
static int query_fd(struct control *c, struct fcc_query *query, int limit_ms, int *fd, struct error *e)
{
    int fds[FCC_MAX_FDS], nfds = 0, status;

    query->msg = (struct fcc_msg){.type = FCC_MSG_QUERY};
    status = round_trip(c, &query->msg, sizeof(*query), sizeof(struct fcc_reply), limit_ms, fds, &nfds, e);
    if (status)
        return status;
    if (nfds != 1) {
        fds_close(fds, nfds);
        return error_set(e, -EPROTO, "%s: %d descriptors with an answer; there must be 1", c->who, nfds);
    }
    *fd = fds[0];
    return 0;
}

int control_query(struct control *c, struct fcc_query *query, int limit_ms, struct json_object **out, struct error *e)
{
    int fd = -1, status = query_fd(c, query, limit_ms, &fd, e);

    return status ? status : json_from_fd(fd, out, e);
}

int control_ask_flight(const char *socket, uint32_t number, struct flight **out, struct error *e)
{
    struct fcc_query query = {.what = FCC_QUERY_FLIGHT, .comm = number};
    struct control *c = NULL;
    void *bytes = NULL;
    size_t n = 0;
    int fd = -1, status = control_open(socket, getuid(), "", CONTROL_LIMIT_MS, &c, e);

    if (status)
        return status;
    assert(c);
    status = query_fd(c, &query, CONTROL_LIMIT_MS, &fd, e);
    control_close(c);
    if (!status)
        status = sealed_read(fd, sizeof(struct flight), sizeof(struct flight), "the flight recorder", &bytes, &n, e);
    fd_close(&fd);
    *out = bytes;
    if (!status && ((*out)->magic != FLIGHT_MAGIC || (*out)->version != FLIGHT_VERSION)) {
        status = error_set(e, -EPROTO, "the flight recorder has version %u; this fccctl reads version %u", (*out)->version,
                           FLIGHT_VERSION);
        free(bytes);
    }
    return status;
}

int control_ask(const char *socket, uint32_t uid, const char *job, struct fcc_query *query, int limit_ms,
                struct json_object **out, struct error *e)
{
    struct control *c = NULL;
    int64_t end = clock_ms() + limit_ms;
    int status = control_open(socket, uid, job, limit_ms, &c, e);

    if (status)
        return status;
    assert(c);
    status = control_query(c, query, (int)(end - clock_ms()), out, e);
    control_close(c);
    return status;
}

/* Adds the users' names. They are looked up here, so that a slow name service delays fccctl and not the broker. */
static void users_name(struct json_object *answer)
{
    for (size_t i = 0; i < field_count(answer, "jobs"); i++) {
        struct json_object *j = field_at(answer, "jobs", i), *before = i ? field_at(answer, "jobs", i - 1) : NULL;
        int64_t uid = field_int(j, "uid", -1);
        if (!json_object_is_type(j, json_type_object))
            continue;
        if (before && field_int(before, "uid", -1) == uid) { /* a user's jobs are usually adjacent */
            JSON_ADD(j, {"user", json_text(field_text(before, "user"))});
            continue;
        }
        const struct passwd *user = uid >= 0 ? getpwuid((uid_t)uid) : NULL;
        JSON_ADD(j, {"user", json_text(user ? user->pw_name : "")});
    }
}

int control_ask_broker(const char *socket, enum fcc_query_kind what, struct json_object **out, struct error *e)
{
    struct fcc_query query = {.what = what};
    int status =
        control_ask(socket, getuid(), "", &query, what == FCC_QUERY_DEVICES ? DEVICES_LIMIT_MS : CONTROL_LIMIT_MS, out, e);

    if (!status && what == FCC_QUERY_STATUS)
        users_name(*out);
    return status;
}

static bool job_matches(struct json_object *j, int64_t uid, const char *job)
{
    return (uid < 0 || field_int(j, "uid", -2) == uid) && (!job || strcmp(field_text(j, "job"), job) == 0);
}

static size_t jobs_count(struct json_object *answer, int64_t uid, const char *job, struct json_object **last)
{
    size_t n = 0;

    for (size_t i = 0; i < field_count(answer, "jobs"); i++) {
        struct json_object *j = field_at(answer, "jobs", i);
        if (job_matches(j, uid, job)) {
            *last = j;
            n++;
        }
    }
    return n;
}

static int jobs_refuse(struct json_object *answer, int status, const char *what, struct error *e)
{
    struct words list = {""};

    for (size_t i = 0; i < field_count(answer, "jobs"); i++) {
        struct json_object *j = field_at(answer, "jobs", i);
        words_add(&list, "%s\"%s\" of uid %" PRId64, i ? ", " : "", field_text(j, "job"), field_int(j, "uid", -1));
    }
    return error_set(e, status, "%s; %s%s", what, *list.text ? "there are: " : "there is none", list.text);
}

int control_job_missing(struct json_object *answer, int64_t uid, const char *job, struct error *e)
{
    struct words what = job ? words("no such job is connected: \"%.*s\"", FCC_JOB_MAX - 1, job) : words("no job is connected");

    if (uid >= 0)
        words_add(&what, " of uid %" PRId64, uid);
    return jobs_refuse(answer, -ENOENT, what.text, e);
}

int control_find_job(const char *socket, int64_t uid, const char *job, uint32_t *uid_out, char job_out[FCC_JOB_MAX],
                     struct error *e)
{
    struct json_object *answer = NULL, *found = NULL;
    size_t n;
    int status = control_ask_broker(socket, FCC_QUERY_STATUS, &answer, e);

    if (status)
        return status;
    n = jobs_count(answer, uid, job, &found);
    if (n > 1 && uid < 0)
        n = jobs_count(answer, getuid(), job, &found) == 1 ? 1 : n;
    if (n == 0)
        status = control_job_missing(answer, uid, job, e);
    else if (n > 1)
        status = jobs_refuse(answer, -EINVAL, "several jobs match: say --job, and --uid if it is not yours", e);
    if (!status) {
        *uid_out = (uint32_t)field_int(found, "uid", 0);
        (void)snprintf(job_out, FCC_JOB_MAX, "%s", field_text(found, "job"));
    }
    (void)json_object_put(answer);
    return status;
}

int control_show(const struct call *call, struct json_object *answer, bool well, void (*print)(struct json_object *answer))
{
    if (call->json)
        json_print(answer, true);
    else
        print(answer);
    (void)json_object_put(answer);
    return well ? EXIT_WELL : EXIT_UNWELL;
}

int control_fail(const struct call *call, const struct error *e)
{
    bool reached = e->status != -ECONNREFUSED && e->status != -EACCES && e->status != -EHOSTDOWN;

    return verb_error(call, reached ? EXIT_UNWELL : EXIT_UNREACHABLE, "%s", e->text);
}
