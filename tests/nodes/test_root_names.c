/* SPDX-License-Identifier: MIT
 *
 * test_root_names.c - ranks whose id names the node where they meet otherwise than it calls itself. The test is the worker's broker
 * and the job's workers on other nodes (worker_bed.h).
 */
#include <endian.h>

#include "tests/nodes/worker_bed.h"

#define IDLE "40"

/* It is another node. That is found out once for each communicator. */
static void root_renamed(void)
{
    struct other root = {.address = "192.0.2.2:7000", .who = {7, 1}};
    struct fcc_unique_id id = id_make(1, "root.example:7000");
    struct bed b;

    bed_start(&b, IDLE);
    int client = bed_client(&b);
    client_join(client, &id, 3, 1);
    struct control_connect messages = bed_asked(&b, "root.example:7000", NULL), data = bed_asked(&b, "root.example:7000", NULL);
    bed_answer_error(&b, &messages, -EADDRNOTAVAIL, root.address, "node root.example:7000: it calls itself 192.0.2.2:7000");
    bed_answer_error(&b, &data, -EADDRNOTAVAIL, root.address, "node root.example:7000: it calls itself 192.0.2.2:7000");
    messages = bed_asked(&b, root.address, NULL);
    data = bed_asked(&b, root.address, NULL);
    bed_answer(&b, &messages, &root);
    bed_answer(&b, &data, &root);
    CHECK(((const struct peer_join *)other_heard(&root, PEER_JOIN, id_number(&id)))->rank == 1);
    client_join(client, &id, 3, 2); /* knows it by now */
    CHECK(((const struct peer_join *)other_heard(&root, PEER_JOIN, id_number(&id)))->rank == 2);
    (void)close(client);
    (void)other_heard(&root, PEER_ABORT, id_number(&id));
    bed_hear_retire(&b, 1);
    bed_retire(&b);
    other_close(&root);
}

/* Names that lead in a circle. */
static void root_renamed_again(void)
{
    struct fcc_unique_id id = id_make(1, "one.example:7000");
    struct bed b;

    bed_start(&b, IDLE);
    int client = bed_client(&b);
    client_join(client, &id, 3, 1);
    for (int i = 0; i < 2; i++) {
        const char *called = i ? "two.example:7000" : "one.example:7000", *itself = i ? "one.example:7000" : "two.example:7000";
        char text[128];
        (void)snprintf(text, sizeof(text), "node %s: it calls itself %s", called, itself);
        for (int k = 0; k < 2; k++) {
            struct control_connect asked = bed_asked(&b, called, NULL);
            if (k == 0)
                bed_answer_error(&b, &asked, -EADDRNOTAVAIL, itself, text);
        }
    }
    client_joined(client, -EADDRNOTAVAIL, "node two.example:7000: it calls itself one.example:7000");
    const struct control_deny *deny = (const struct control_deny *)bed_hear(&b); /* who waits there is to hear it */
    CHECK(deny && deny->msg.type == CONTROL_DENY && deny->msg.length == sizeof(*deny));
    CHECK(!strcmp(deny->address, "two.example:7000") && deny->limit_ms == 30000);
    CHECK(deny->denial.rank == (int32_t)htole32(1) && deny->denial.status == (int32_t)htole32((uint32_t)-EADDRNOTAVAIL));
    CHECK(!strcmp(deny->denial.text,
                  "rank 1 on node " BED_ADDRESS " cannot join: node two.example:7000: it calls itself one.example:7000"));
    (void)close(client);
    bed_hear_retire(&b, 1);
    bed_retire(&b);
}

/* It is this node. With ranks here only, and with one of another node that joins before that is known, and one after. */
static void root_is_self(void)
{
    struct other o = {.address = "192.0.2.2:7000", .who = {7, 3}, .serial = 1};
    const char *const alias = "me.example:7000";
    struct fcc_unique_id here = id_make(1, alias), both = id_make(2, alias), later = id_make(3, alias);
    struct peer_msg ready = {0};
    struct bed b;

    bed_start(&b, IDLE);
    int client = bed_client(&b);
    (void)bed_hand(&b, &o, PEER_MESSAGES);
    client_join(client, &here, 2, 0);
    struct control_connect messages = bed_asked(&b, alias, NULL), data = bed_asked(&b, alias, NULL);
    client_join(client, &here, 2, 1);
    int second = bed_client(&b), third = bed_client(&b);
    client_join(second, &both, 2, 0);
    other_say_join(&o, &both, 2, 1, 30000);
    bed_connect(&b, &o, &o.who);
    (void)other_heard(&o, PEER_JOINED, id_number(&both)); /* complete, and it does not know yet where */
    bed_answer_error(&b, &messages, -EADDRNOTAVAIL, BED_ADDRESS, "node me.example:7000: it is this node itself");
    bed_answer_error(&b, &data, -EADDRNOTAVAIL, BED_ADDRESS, "node me.example:7000: it is this node itself");
    client_joined(client, 0, "");
    client_joined(client, 0, "");
    (void)other_heard(&o, PEER_FORMED, id_number(&both));
    other_say(&o, &ready, PEER_READY, id_number(&both), sizeof(ready));
    (void)other_heard(&o, PEER_GO, id_number(&both));
    client_joined(second, 0, "");
    client_join(third, &later, 2, 0); /* asks nobody any more */
    other_say_join(&o, &later, 2, 1, 30000);
    (void)other_heard(&o, PEER_JOINED, id_number(&later));
    (void)other_heard(&o, PEER_FORMED, id_number(&later));
    other_say(&o, &ready, PEER_READY, id_number(&later), sizeof(ready));
    (void)other_heard(&o, PEER_GO, id_number(&later));
    client_joined(third, 0, "");
    (void)close(client);
    (void)close(second);
    (void)close(third);
    bed_hear_retire(&b, 4);
    bed_retire(&b);
    other_close(&o);
}

int main(void)
{
    static const struct test tests[] = {
        {"root_renamed", root_renamed, 0},
        {"root_renamed_again", root_renamed_again, 0},
        {"root_is_self", root_is_self, 0},
    };

    return tests_run("root_names", TESTS(tests));
}
