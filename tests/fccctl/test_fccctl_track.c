/* SPDX-License-Identifier: MIT
 *
 * test_fccctl_track.c - what `fccctl track` shows of rules: that are idle, half counted, and that wait for words.
 */
#include "tests/fccctl/fccctl_run.h"

static void track_rank(int rank, const struct ranks *all, void *argument)
{
    struct stage *stage = argument;
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_buffer *from, *to, *words;
    fcc_tracker *t;
    uint32_t number;

    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 4096, &from));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 4096, &to));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 64, &words));
    OK(fcc_tracker_create(comm, &t));
    struct fcc_rule rule = {.name = "halo",
                            .count = 5,
                            .action = FCC_RULE_STORE,
                            .rank = 1 - rank,
                            .rows = 1,
                            .row_bytes = 8,
                            .from = from,
                            .to = to};
    OK(fcc_tracker_rule(t, &rule, &number));
    rule = (struct fcc_rule){
        .name = "used", .count = 1, .rank = 1 - rank, .signals = words, .awaits = {{0}, {.buffer = words, .offset = 24}}};
    OK(fcc_tracker_rule(t, &rule, &number));
    OK(fcc_tracker_add(t, 0, 5 * (uint64_t)(rank + 1) + 2));
    OK(fcc_tracker_wait(t, 0, (uint64_t)rank + 1, -1));
    if (rank)
        OK(fcc_tracker_add(t, 1, 3));
    OK(fcc_noop(comm));
    stage->ready++;
    while (!stage->go)
        (void)usleep(1000);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static struct json_object *rule_of(struct json_object *o, int64_t rank, int64_t rule)
{
    struct json_object *rules = field(o, "workers.0.rules");

    for (size_t i = 0; i < json_object_array_length(rules); i++) {
        struct json_object *r = json_object_array_get_idx(rules, i);
        if (number(r, "rank") == rank && number(r, "rule") == rule)
            return r;
    }
    CHECK(false);
    return NULL;
}

static void track_shows_rules(void)
{
    struct test_daemon d;
    struct ranks r;
    struct stage *stage = shared_memory(sizeof(*stage));
    double until = now_ms() + 20e3;
    struct json_object *o, *rule;

    daemon_start(&d, NULL);
    CHECK(FCCCTL("track") == 0 && says("no jobs"));
    ranks_start(&r, 2, track_rank, stage);
    while (stage->ready < 2)
        CHECK(now_ms() < until);
    do { /* until the thread has seen all of it */
        CHECK(now_ms() < until && FCCCTL("track", "--json") == 0);
        o = parse();
        if (strcmp(text(rule_of(o, 0, 0), "state"), "counting") == 0 && strcmp(text(rule_of(o, 1, 1), "state"), "waiting") == 0)
            break;
        (void)json_object_put(o);
    } while (true);
    rule = rule_of(o, 1, 0);
    CHECK(strcmp(text(rule, "name"), "halo") == 0 && strcmp(text(rule, "action"), "store") == 0 && number(rule, "to") == 0 &&
          number(rule, "done") == 2 && number(rule, "count") == 12 && number(rule, "need") == 5);
    CHECK(strcmp(text(rule, "waits_for"), "its count is 2 of 5") == 0 && strcmp(text(rule, "counted"), "2 of 5") == 0);
    rule = rule_of(o, 1, 1);
    CHECK(strcmp(text(rule, "action"), "signal") == 0 &&
          strcmp(text(rule, "waits_for"), "awaits[1], the word at byte 24, is 0 of 1") == 0);
    CHECK(strcmp(text(rule_of(o, 0, 1), "state"), "idle") == 0);
    (void)json_object_put(o);
    CHECK(FCCCTL("track") == 0 && says("halo") && says("2 of 5") && says("the word at byte 24") && says("RUNS"));
    CHECK(FCCCTL("track", "--stuck-after", "0") == 1 && says("UNWELL") && says("rank 1, rule 1: nothing new for"));
    CHECK(FCCCTL("track", "--job", "absent") == 1 && says("no such job"));
    stage->go = 1;
    ranks_join(&r);
    daemon_stop(&d);
    free(output);
    output = NULL;
}

int main(void)
{
    const struct test tests[] = {
        {"track_shows_rules", track_shows_rules, 0},
    };

    return tests_run("fccctl_track", TESTS(tests));
}
