/* SPDX-License-Identifier: MIT
 *
 * test_fccctl_track.c - what fccctl shows of rules: `track`, that are idle, half counted, and that wait for words; `trace --rules`, when
 * they were worked off.
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
    double until = await_end();
    struct json_object *o, *rule;

    daemon_start(&d, NULL);
    CHECK(FCCCTL("track") == 0 && says("no jobs"));
    ranks_start(&r, 2, track_rank, stage);
    while (stage->ready < 2)
        AWAITING(until);
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

/* Rank 0's rule adds to rank 1, many more times than are kept; rank 1's stores, and its second run awaits a word that comes late. */
static void runs_rank(int rank, const struct ranks *all, void *argument)
{
    enum { RUNS = 5000 };
    struct stage *stage = argument;
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_buffer *from, *to, *words;
    fcc_tracker *t;
    uint32_t number;

    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 4096, &from));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 4096, &to));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 64, &words));
    OK(fcc_tracker_create(comm, &t));
    struct fcc_rule rule = {.name = rank ? "halo" : "sum <1>",
                            .count = 1,
                            .action = rank ? FCC_RULE_STORE : FCC_RULE_ADD,
                            .dtype = FCC_F32,
                            .rank = 1 - rank,
                            .rows = 2,
                            .row_bytes = 32,
                            .from_stride = 64,
                            .to_stride = 32,
                            .from = from,
                            .to = to};
    if (rank)
        rule.awaits[0] = (struct fcc_rule_await){.buffer = words, .lag = 1};
    OK(fcc_tracker_rule(t, &rule, &number));
    if (rank) {
        OK(fcc_tracker_add(t, 0, 2));
        OK(fcc_tracker_wait(t, 0, 1, -1));
        (void)usleep(20000);
        *(_Atomic uint64_t *)fcc_buffer_data(words) = 1;
        OK(fcc_tracker_wait(t, 0, 2, -1));
    } else {
        stage->ready++; /* the picture of no run yet */
        while (!stage->go)
            (void)usleep(1000);
        OK(fcc_tracker_add(t, 0, RUNS));
        OK(fcc_tracker_wait(t, 0, RUNS, -1));
    }
    OK(fcc_noop(comm));
    stage->ready++;
    while (stage->go < 2)
        (void)usleep(1000);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

/* The events of a rule: in the order of time, none before the first or beyond the end. Returns how many. */
static size_t events_check(struct json_object *o, const char *path, const char *kind)
{
    struct json_object *events = field(o, path);
    size_t n = json_object_array_length(events), waits = 0;
    int64_t end = 0;

    for (size_t i = 0; i < n; i++) {
        struct json_object *e = json_object_array_get_idx(events, i);
        bool waited = strcmp(text(e, "kind"), "wait") == 0;
        CHECK(waited || strcmp(text(e, "kind"), kind) == 0);
        CHECK(number(e, "start_ns") >= end && number(e, "end_ns") >= number(e, "start_ns"));
        CHECK(number(e, "bytes") == 64);
        end = number(e, "end_ns");
        waits += waited;
    }
    CHECK(end <= number(o, "duration_ns"));
    return n - waits;
}

static void trace_draws_rules(void)
{
    struct test_daemon d;
    struct ranks r;
    struct stage *stage = shared_memory(sizeof(*stage));
    double until = await_end();
    struct json_object *o;
    char saved[256];

    daemon_start(&d, NULL);
    ranks_start(&r, 2, runs_rank, stage);
    while (stage->ready < 1)
        AWAITING(until);
    CHECK(FCCCTL("trace", "--rules", "--comm", "77") == 1 && says("comm: 77: job") && says("no rule there"));
    CHECK(FCCCTL("trace", "--rules", "--next") == 2 && says("--rules: allowed without --next"));
    CHECK(FCCCTL("trace", "--rules", "--from", "x") == 2 && says("--from: allowed without --rules"));
    stage->go = 1;
    while (stage->ready < 3)
        AWAITING(until);
    CHECK(FCCCTL("trace", "--rules", "--json") == 0);
    o = parse();
    CHECK(strcmp(text(o, "op"), "rules") == 0 && number(o, "nranks") == 2 && number(o, "dropped") == 5000 - 4096);
    CHECK(events_check(o, "ranks.0.workgroups.0.events", "reduce") == 4096);
    CHECK(events_check(o, "ranks.1.workgroups.0.events", "put") == 2);
    CHECK(number(field(o, "ranks.0.workgroups.0.events.4095"), "run") == 5000);
    CHECK(strcmp(text(field(o, "ranks.1.workgroups.0.events.1"), "kind"), "wait") == 0 &&
          number(field(o, "ranks.1.workgroups.0.events.1"), "run") == 2);
    (void)json_object_put(o);
    (void)snprintf(saved, sizeof(saved), "%s/rules.json", test_directory());
    FILE *file = fopen(saved, "we");
    CHECK(file && fputs(output, file) >= 0 && fclose(file) == 0);
    CHECK(FCCCTL("trace", "--from", saved, "--svg", "/dev/stdout") == 0 && says(" runs, mostly reduce to rank 1") &&
          says("halo: run 2: put") && says("64 bytes") && says("904 earlier runs are dropped") && says("RULES"));
    CHECK(FCCCTL("trace", "--from", saved, "--chrome", "/dev/stdout") == 0 && says("\"rule 0 halo\"") && says("\"run\":2") &&
          says("\"reduce to 1\"") && says("\"dropped\":904"));
    CHECK(unlink(saved) == 0);
    stage->go = 2;
    ranks_join(&r);
    daemon_stop(&d);
    free(output);
    output = NULL;
}

int main(void)
{
    const struct test tests[] = {
        {"track_shows_rules", track_shows_rules, 0},
        {"trace_draws_rules", trace_draws_rules, 0},
    };

    return tests_run("fccctl_track", TESTS(tests));
}
