/* SPDX-License-Identifier: MIT
 *
 * test_share_words.c - what broker and workers say to each other about shares of GPUs, with the broker's own code and workers that only write words: no
 * timer runs while less than two use a GPU, and none after that; limits are by users' weights, and a user's jobs share them; a worker that writes anything
 * into its pages gets no more for it, and another one that is honest keeps its part; a limit of an earlier broker does not outlive it.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/broker/metrics/metrics.h"
#include "daemon/broker/share/share.h"
#include "tests/bed/harness.h"
#include "tests/bed/random.h"

enum { JOBS = 3, LOOKS = 250 };

struct bed {
    struct broker *broker;
    struct worker_end {
        struct job *job;
        struct flight *flight;
        struct share *share;
        int fd;
    } ends[JOBS];
};

/* Jobs of these users, the last one ends the list. */
static void bed_open(struct bed *bed, const char *weights, const uid_t uids[JOBS])
{
    struct broker *b = bed->broker = calloc(1, sizeof(*b));
    struct meters *meters;

    CHECK(b && ledgers_open(b) == 0 && (b->base = event_base_new()));
    LIST_INIT(&b->jobs);
    text_copy(b->config.gpu_turns, sizeof(b->config.gpu_turns), "weighted");
    text_copy(b->config.user_weights, sizeof(b->config.user_weights), weights);
    for (int i = 0; i < JOBS; i++) {
        struct worker_end *end = &bed->ends[i];
        struct job *j = end->job = calloc(1, sizeof(*j));
        CHECK(j != NULL);
        *j = (struct job){.broker = b, .uid = uids[i], .control = -1, .slot = -1, .process = -1};
        (void)snprintf(j->name, sizeof(j->name), "%d", i);
        LIST_INSERT_HEAD(&b->jobs, j, link);
        end->fd = job_ledger_open(j);
        CHECK(end->fd >= 0 && j->share && ledger_open(end->fd, &end->flight, &meters) == 0);
        end->share = ledger_share(end->flight);
        CHECK(end->share->told.bell == 1 && end->share->told.limited == 0);
    }
}

static void bed_close(struct bed *bed)
{
    for (int i = 0; i < JOBS; i++) {
        struct worker_end *end = &bed->ends[i];
        LIST_REMOVE(end->job, link);
        job_ledger_close(end->job);
        CHECK(share_get(&end->share->told.limited) == 0);
        ledger_close(end->flight);
        (void)close(end->fd);
        free(end->job);
    }
    shares_close(bed->broker);
    event_base_free(bed->broker->base);
    ledgers_close(bed->broker);
    free(bed->broker);
}

/* The worker launches, finds its bell and rings. */
static void ring(const struct bed *bed, int i)
{
    const struct worker_end *end = &bed->ends[i];

    share_set(&end->share->said.running[0], 1);
    if (__atomic_exchange_n(&end->share->told.bell, 0, __ATOMIC_SEQ_CST))
        job_share_heard(end->job);
}

static bool timer_runs(const struct bed *bed)
{
    return event_initialized(&bed->broker->share_event) && event_pending(&bed->broker->share_event, EV_TIMEOUT, NULL);
}

static void look(const struct bed *bed)
{
    CHECK(event_base_loop(bed->broker->base, EVLOOP_ONCE) == 0);
}

/* A kernel has occupied GPU 0. */
static void use(const struct bed *bed, int i, uint64_t ns)
{
    struct share_said *said = &bed->ends[i].share->said;

    share_set(&said->used_ns[0], share_get(&said->used_ns[0]) + ns);
}

static uint64_t allowed(const struct bed *bed, int i)
{
    const struct share *s = bed->ends[i].share;
    uint64_t until = share_get(&s->told.until_ns[0]), used = share_get(&s->said.used_ns[0]);

    CHECK(share_get(&s->told.limited) == 1);
    return until > used ? until - used : 0;
}

static void nobody_is_alone_limited(void)
{
    struct bed bed;

    bed_open(&bed, "", (uid_t[]){1, 2, 3});
    CHECK(!timer_runs(&bed));
    ring(&bed, 0);
    CHECK(!timer_runs(&bed) && bed.ends[0].share->told.bell == 0);
    for (int i = 0; i < JOBS; i++) /* whose connections have changed, and who has not rung */
        job_share_heard(bed.ends[i].job);
    CHECK(!timer_runs(&bed));
    ring(&bed, 1);
    CHECK(timer_runs(&bed));
    look(&bed);
    CHECK(allowed(&bed, 0) > 0 && allowed(&bed, 1) > 0 && bed.ends[2].share->told.limited == 0);
    CHECK(shares_count(bed.broker) == 1);
    /* One of them does nothing any more. */
    share_set(&bed.ends[0].share->said.running[0], 0);
    for (double until = await_end(); timer_runs(&bed); look(&bed))
        CHECK(now_ms() < until);
    CHECK(bed.ends[0].share->told.bell == 1 && bed.ends[1].share->told.bell == 0);
    CHECK(bed.ends[0].share->told.limited == 0 && bed.ends[1].share->told.limited == 0 && shares_count(bed.broker) == 0);
    ring(&bed, 0); /* and comes back */
    CHECK(timer_runs(&bed));
    /* Both use a GPU, but not the same. */
    share_set(&bed.ends[0].share->said.running[0], 0);
    share_set(&bed.ends[0].share->said.running[1], 1);
    for (double until = await_end(); timer_runs(&bed); look(&bed))
        CHECK(now_ms() < until);
    CHECK(bed.ends[0].share->told.limited == 0 && bed.ends[1].share->told.limited == 0);
    bed_close(&bed);
}

/* All occupy the GPU as long as they may, of the time that passes, and hold back the rest. Returns what each has occupied it for. */
static void flood(const struct bed *bed, int looks, double sums[JOBS])
{
    uint64_t last = clock_ns();

    for (int n = 0; n < looks; n++) {
        look(bed);
        uint64_t now = clock_ns(), passed = now - last;
        last = now;
        for (int i = 0; i < JOBS; i++) {
            struct share_said *said = &bed->ends[i].share->said;
            if (!share_get(&said->running[0]))
                continue;
            uint64_t may = allowed(bed, i), ns = may < passed ? may : passed;
            use(bed, i, ns);
            sums[i] += (double)ns;
            share_set(&said->waiting[0], ns < passed);
            share_set(&said->waits[0], share_get(&said->waits[0]) + (ns < passed));
        }
    }
}

/* What has overlapped is charged a part each: how much has, nobody knows but for the sum of all times. */
static void users_have_weights(void)
{
    double sums[JOBS] = {0};
    struct bed bed;

    bed_open(&bed, "7=300", (uid_t[]){7, 8, 8});
    for (int i = 0; i < JOBS; i++)
        ring(&bed, i);
    flood(&bed, LOOKS, sums);
    /* The first one has three quarters, the others an eighth each: a sixth of its time, if their times lie behind each other. If they overlap as much as they can, 3/8 of it. */
    CHECK(sums[1] > 0 && sums[1] / sums[2] > .8 && sums[1] / sums[2] < 1.25);
    if (sums[1] / sums[0] < .125 || sums[1] / sums[0] > .5)
        check_failed(__FILE__, __LINE__, "of the first one's time the second had %.2f, expected 1/6 to 3/8", sums[1] / sums[0]);
    bed_close(&bed);
}

static void anything_write(struct worker_end *end)
{
    uint64_t *words[] = {(uint64_t *)&end->share->said, (uint64_t *)&end->share->told};
    const int64_t n[] = {sizeof(struct share_said) / 8, sizeof(struct share_told) / 8};
    static const uint64_t values[] = {0, 1, UINT64_MAX, INT64_MAX, UINT64_C(1) << 63, 1000000};

    for (int page = 0; page < 2; page++)
        for (int i = 0; i < 8; i++)
            share_set(&words[page][random_below(n[page])],
                      random_below(2) ? values[random_below(6)] : (uint64_t)random_below(1 << 30) << random_below(34));
}

/* The second one writes anything; the first one, of the same weight, has half of the GPU at least, as beside one that launches all the time. */
static void anything_is_written(void)
{
    struct bed bed;
    double had = 0;

    random_state = test_seed();
    bed_open(&bed, "", (uid_t[]){1, 2, 3});
    for (int i = 0; i < 2; i++)
        ring(&bed, i);
    uint64_t begin = clock_ns(), last = begin;
    for (int n = 0; n < LOOKS; n++) {
        for (int i = 0; i < 20; i++)
            anything_write(&bed.ends[1]);
        ring(&bed, 1);
        job_share_heard(bed.ends[1].job);
        if (!timer_runs(&bed)) /* it has fallen silent for so long: the first one is alone */
            break;
        look(&bed);
        uint64_t now = clock_ns(), passed = now - last;
        last = now;
        if (bed.ends[0].share->told.limited) {
            uint64_t may = allowed(&bed, 0), ns = may < passed ? may : passed;
            use(&bed, 0, ns);
            had += (double)ns;
            share_set(&bed.ends[0].share->said.waiting[0], ns < passed);
        } else {
            had += (double)passed;
        }
    }
    if (had < .45 * (double)(last - begin))
        check_failed(__FILE__, __LINE__, "the honest one had %.2f of the time", had / (double)(last - begin));
    bed_close(&bed);
}

/* The next broker finds a ledger with a limit. */
static void limits_end_with_their_broker(void)
{
    struct bed bed;

    bed_open(&bed, "", (uid_t[]){1, 2, 3});
    ring(&bed, 0);
    ring(&bed, 1);
    look(&bed);
    CHECK(bed.ends[0].share->told.limited == 1);
    struct job next = {.broker = bed.broker, .uid = 1, .control = -1, .slot = -1, .process = -1};
    job_ledger_adopt(&next, dup(bed.ends[0].fd));
    CHECK(next.share && bed.ends[0].share->told.limited == 0 && bed.ends[0].share->told.bell == 1);
    CHECK(bed.ends[0].share->told.until_ns[0] == SHARE_FREE);
    job_ledger_close(&next);
    /* The configuration was read again: all begin anew. */
    ring(&bed, 0);
    shares_again(bed.broker);
    CHECK(!timer_runs(&bed) && bed.ends[1].share->told.limited == 0 && bed.ends[1].share->told.bell == 1);
    bed_close(&bed);
}

int main(void)
{
    static const struct test tests[] = {{"nobody_is_alone_limited", nobody_is_alone_limited, 0},
                                        {"users_have_weights", users_have_weights, 0},
                                        {"anything_is_written", anything_is_written, 0},
                                        {"limits_end_with_their_broker", limits_end_with_their_broker, 0}};

    return tests_run("share_words", TESTS(tests));
}
