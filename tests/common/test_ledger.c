/* SPDX-License-Identifier: MIT
 *
 * test_ledger.c - what is copied of a flight recorder while its worker writes: no record is half of one operator and half of another, and no
 * communicator's place half of one that has ended and half of its successor. And what is shown of counters that cannot be.
 */
#include <json-c/json.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/broker/metrics/metrics.h"
#include "daemon/common/ledger.h"
#include "daemon/worker/engine/flight.h"
#include "tests/bed/harness.h"
#include "tests/fccctl/openmetrics.h"

enum { COPIES = 300, TURNS = 3 * FLIGHT_OPERATORS, OTHER = 1000000 };

/* Every number of a record, and of its communicator, follows from these two. */
static uint64_t stamp(uint32_t comm, uint64_t turn)
{
    return (uint64_t)comm << 32 | turn;
}

/* Until it is killed: one communicator after the other, at the only place that is free. */
static void write_always(struct worker *w)
{
    for (unsigned i = 1; i < FLIGHT_COMMS; i++)
        w->flight->comms[i].number = OTHER;
    for (uint32_t comm = 1;; comm++) {
        struct flight_comm *f = flight_open(w, comm, (int)(comm % 1000 + 1));
        if (f != &w->flight->comms[0])
            _exit(1);
        for (uint64_t turn = 1; turn <= TURNS; turn++) {
            flight_came(f, turn, 0, 0, stamp(comm, turn));
            flight_begun(f, turn, stamp(comm, turn), 0, stamp(comm, turn));
            flight_ended(f, turn, 0, stamp(comm, turn));
            for (int anew = 0; anew < 2; anew++) /* it has begun, and ended */
                flight_ran(f, &(struct flight_run){.record = turn,
                                                   .number = turn,
                                                   .prepared = comm,
                                                   .begun_ns = stamp(comm, turn),
                                                   .came_ns = stamp(comm, turn),
                                                   .ended_ns = anew ? stamp(comm, turn) : 0});
        }
        flight_close(f, FLIGHT_COMM_LEFT, 0, "");
    }
}

static bool is_whole(const struct flight_record *r, uint32_t comm, unsigned at)
{
    uint64_t is = stamp(comm, r->turn);

    return r->turn == 0 || ((r->turn - 1) % FLIGHT_OPERATORS == at && r->arrived_ns == is && (!r->number || r->number == is) &&
                            (!r->begun_ns || r->begun_ns == is) && (!r->ended_ns || r->ended_ns == is));
}

static bool is_whole_run(const struct flight_run *r, uint32_t comm, unsigned at)
{
    uint64_t is = stamp(comm, r->record);

    return r->record == 0 || ((r->record - 1) % FLIGHT_RUNS == at && r->prepared == comm && r->number == r->record &&
                              r->begun_ns == is && r->came_ns == is && (!r->ended_ns || r->ended_ns == is));
}

static void copies_are_whole(void)
{
    struct worker w = WORKER_CLOSED(-1);
    struct flight_comm *copy = calloc(1, sizeof(*copy));
    struct meters *meters;
    unsigned records = 0, runs = 0, comms = 0;
    int status;

    w.ledger = ledger_make();
    CHECK(copy && w.ledger >= 0 && ledger_open(w.ledger, &w.flight, &meters) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        write_always(&w);
    while (comms < COPIES) {
        flight_comm_copy(&w.flight->comms[0], copy);
        for (unsigned i = 0; copy->number && i < FLIGHT_OPERATORS; i++) {
            if (!is_whole(&copy->records[i], copy->number, i))
                check_failed(__FILE__, __LINE__, "communicator %u, place %u: turn %llu came at %llx and is number %llx",
                             copy->number, i, (unsigned long long)copy->records[i].turn,
                             (unsigned long long)copy->records[i].arrived_ns, (unsigned long long)copy->records[i].number);
            records += copy->records[i].turn != 0;
        }
        for (unsigned i = 0; copy->number && i < FLIGHT_RUNS; i++) {
            CHECK(is_whole_run(&copy->runs[i], copy->number, i));
            runs += copy->runs[i].record != 0;
        }
        CHECK(!copy->number || copy->nranks == copy->number % 1000 + 1);
        comms += copy->number != 0;
        CHECK(waitpid(pid, &status, WNOHANG) == 0);
    }
    CHECK(records > COPIES && runs > COPIES);
    CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid);
    ledger_close(w.flight);
    (void)close(w.ledger);
    free(copy);
}

/* Whatever a worker has counted, buckets do not fall, and what was shown stays. */
static void counts_are_bounded(void)
{
    struct broker *b = calloc(1, sizeof(*b));
    struct counters *sum;
    size_t length;

    CHECK(b && ledgers_open(b) == 0 && (b->probe.gpus = json_tokener_parse("{\"gpus\": []}")));
    sum = &b->ledgers->sum;
    sum->run[FCC_OP_NOOP].count[0] = sum->run[FCC_OP_NOOP].count[5] = sum->run[FCC_OP_ALL_GATHER].count[2] = INT64_MAX;
    sum->run[FCC_OP_NOOP].count[7] = 2; /* with the other two they are 2^64 */
    for (int i = 0; i < METER_BUCKETS; i++)
        sum->proxy_lag.count[i] = INT64_MAX;
    char *page = metrics_text(b, 0, &length);
    CHECK(page != NULL);
    struct om *om = om_parse(page);
    CHECK(om_value(om, "fccd_operator_run_seconds_count", "operator=\"noop\"") == (double)INT64_MAX);
    CHECK(om_value(om, "fccd_operator_run_seconds_count", "operator=\"all_gather\"") == (double)INT64_MAX);
    CHECK(om_value(om, "fccd_proxy_lag_seconds_count", "") == (double)INT64_MAX);
    free(om);
    free(page);
    ledgers_close(b);
    (void)json_object_put(b->probe.gpus);
    free(b);
}

int main(void)
{
    static const struct test tests[] = {{"copies_are_whole", copies_are_whole, 0},
                                        {"counts_are_bounded", counts_are_bounded, 0}};

    return tests_run("ledger", TESTS(tests));
}
