/* SPDX-License-Identifier: MIT
 *
 * test_retire.c - a worker that goes and the next one of its job, at the broker: what it hands to whom, and what it tells others of
 * them. The test is the workers; test_handover.c has the workers' part.
 */
#include "tests/nodes/relay_bed.h"

static void retire_send(const struct worker_end *w, uint64_t handed)
{
    struct control_retire m = {.msg = {.type = CONTROL_RETIRE}, .handed = handed};

    CHECK(msg_send(w->sock, &m.msg, sizeof(m), NULL, 0) == 0);
}

/* A client of the job: the broker hands it to the worker that there is. */
static int client_open(const struct bed_node *n, const char *job)
{
    struct fcc_hello hello = {.msg = {.type = FCC_MSG_HELLO, .id = 5},
                              .magic = FCC_PROTO_MAGIC,
                              .version = FCC_PROTO_VERSION,
                              .role = FCC_ROLE_CLIENT,
                              .uid = UINT32_MAX};
    int sock = broker_connect(&n->d);

    (void)snprintf(hello.job, sizeof(hello.job), "%s", job);
    CHECK(sock >= 0 && msg_send(sock, &hello.msg, sizeof(hello), NULL, 0) == 0);
    return sock;
}

/* A worker that asks whether it may go does not hear yes while a client or another node's worker is on its way to it: RETIRE tells what it
 * had got when it asked. When it has heard yes, nothing comes any more, and the next client gets another worker. */
static void retire(void)
{
    uint32_t purpose;
    int fd;

    pair_start();
    struct worker_end wa = worker_open(&a, "one"), wb = worker_open(&b, "one"); /* each with one client */
    int client = client_open(&a, "one");
    CHECK(hear(&wa, &fd)->type == CONTROL_SESSION && fd >= 0);
    (void)close(fd);
    retire_send(&wa, 1); /* as if it had asked before it read that */
    connect_send(&wb, 3, a.address, 42, 60000);
    (void)close(arrived(&wa, b.address, &purpose)); /* and no yes */
    (void)close(connected(&wb, 3));
    retire_send(&wa, 2);
    connect_send(&wa, 4, a.address, 0, 1); /* answered at once: so RETIRE was read, and was not answered */
    refused(&wa, 4, -EINVAL, a.address, "that is this node itself");
    retire_send(&wa, 3);
    CHECK(hear(&wa, &fd)->type == CONTROL_RETIRE && fd < 0);

    connect_send(&wb, 5, a.address, 43, 60000); /* held: the worker is not gone yet, and gets nothing */
    log_await(&a, "waits for a worker");
    struct worker_end next = worker_open(&a, "one");
    CHECK(next.start.self.broker == wa.start.self.broker && next.start.self.number > wa.start.self.number);
    CHECK(wb.start.self.broker != wa.start.self.broker);
    (void)close(arrived(&next, b.address, &purpose));
    CHECK(purpose == 43);
    (void)close(connected(&wb, 5));
    struct fcc_msg nothing;
    CHECK(recv(wa.sock, &nothing, sizeof(nothing), MSG_DONTWAIT | MSG_PEEK) <= 0);
    (void)close(client);
    (void)close(wa.sock);
    (void)close(wb.sock);
    (void)close(next.sock);
    pair_stop();
}

/* Who is at the other end is told to both; and who asks for a worker that is gone is refused, by a broker that has another one and by one
 * that has none. */
static void incarnations(void)
{
    struct control_connect m = {.msg = {.type = CONTROL_CONNECT, .id = 1}, .limit_ms = 60000};
    int fd;

    pair_start();
    struct worker_end wa = worker_open(&a, "one"), wb = worker_open(&b, "one");
    for (int exactly = 0; exactly < 2; exactly++) {
        memcpy(m.address, b.address, sizeof(m.address));
        m.to = exactly ? wb.start.self : (struct incarnation){0, 0};
        CHECK(msg_send(wa.sock, &m.msg, sizeof(m), NULL, 0) == 0);
        const struct control_peer *p = (const struct control_peer *)hear(&wb, &fd);
        CHECK(p->msg.type == CONTROL_PEER && fd >= 0 && incarnation_same(&p->from, &wa.start.self));
        (void)close(fd);
        const struct control_connected *c = (const struct control_connected *)hear(&wa, &fd);
        CHECK(c->msg.type == CONTROL_CONNECTED && c->status == 0 && incarnation_same(&c->to, &wb.start.self) && !c->named[0]);
        (void)close(fd);
    }
    (void)close(wb.sock);
    descriptors_await(&b, 2);
    CHECK(msg_send(wa.sock, &m.msg, sizeof(m), NULL, 0) == 0);
    refused(&wa, 1, -ESTALE, b.address, "is gone");
    wb = worker_open(&b, "one");
    CHECK(msg_send(wa.sock, &m.msg, sizeof(m), NULL, 0) == 0);
    refused(&wa, 1, -ESTALE, b.address, "is gone");
    (void)close(wa.sock);
    (void)close(wb.sock);
    pair_stop();
}

int main(void)
{
    static const struct test tests[] = {
        {"retire", retire, 0},
        {"incarnations", incarnations, 0},
    };
    return tests_run("retire", TESTS(tests));
}
