/* SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "daemon/common/ledger.h"
#include "tests/fuzz/ledgers.h"

/* Words of a ledger that the scribbler changes all the time, from one value to the other. */
enum { SCRIBBLED = 8 };
static struct {
    pthread_mutex_t lock;
    unsigned char *ledger; /* whose; NULL: nothing is scribbled */
    uint32_t at[SCRIBBLED];
    uint64_t values[2];
} scribbler = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *scribble(void *none)
{
    for (unsigned turn = 0;; turn++) {
        (void)pthread_mutex_lock(&scribbler.lock);
        for (int i = 0; i < SCRIBBLED && scribbler.ledger; i++)
            __atomic_store_n((uint64_t *)(void *)(scribbler.ledger + scribbler.at[i]),
                             scribbler.values[(turn + (unsigned)i) & 1], __ATOMIC_RELAXED);
        bool idle = !scribbler.ledger;
        (void)pthread_mutex_unlock(&scribbler.lock);
        (void)(idle ? usleep(100) : sched_yield());
    }
    return none;
}

void ledger_leave(const unsigned char *ledger)
{
    (void)pthread_mutex_lock(&scribbler.lock);
    if (scribbler.ledger == ledger)
        scribbler.ledger = NULL;
    (void)pthread_mutex_unlock(&scribbler.lock);
}

/* A place of a ledger: mostly among its counters, gauges and nodes, or the first words of its flight recorder's communicators. */
static uint32_t ledger_place(struct input *in)
{
    uint32_t which = input_u8(in), at = (uint32_t)LEDGER_METERS + input_below(in, sizeof(struct meters) / 8) * 8;

    if (which < 40)
        at = (uint32_t)offsetof(struct flight, comms) + input_below(in, FLIGHT_COMMS) * (uint32_t)sizeof(struct flight_comm);
    else if (which < 100)
        at = (uint32_t)(LEDGER_METERS + offsetof(struct meters, nodes)) +
             input_below(in, METER_NODES) * (uint32_t)sizeof(struct meter_node) +
             input_below(in, sizeof(struct meter_node) / 8) * 8;
    return at;
}

static uint64_t ledger_value(struct input *in)
{
    static const uint64_t values[] = {0, 1, INT64_MAX, INT64_MAX - 1, UINT64_MAX, UINT32_MAX, 0x0000706374 /* "tcp" */};
    uint32_t which = input_u8(in);

    return which < sizeof(values) / sizeof(values[0]) ? values[which] : (uint64_t)input_number(in);
}

void ledger_scribble(unsigned char *ledger, struct input *in)
{
    uint32_t how = input_u8(in);

    if (!ledger)
        return;
    if (how & 1) {
        (void)pthread_mutex_lock(&scribbler.lock);
        scribbler.ledger = how & 2 ? ledger : NULL;
        for (int i = 0; i < SCRIBBLED; i++)
            scribbler.at[i] = ledger_place(in);
        for (int i = 0; i < 2; i++)
            scribbler.values[i] = ledger_value(in);
        (void)pthread_mutex_unlock(&scribbler.lock);
        return;
    }
    for (uint32_t n = 1 + how % 32; n && in->left; n--) {
        uint64_t value = ledger_value(in), *to = (uint64_t *)(void *)(ledger + ledger_place(in));
        if (how & 0x40) /* all words of a histogram, say */
            for (int i = 0; i < 16 && (unsigned char *)(to + i + 1) <= ledger + LEDGER_BYTES; i++)
                __atomic_store_n(to + i, value, __ATOMIC_RELAXED);
        else
            __atomic_store_n(to, value, __ATOMIC_RELAXED);
    }
}

void ledgers_begin(void)
{
    pthread_t thread;

    FUZZ_CHECK(pthread_create(&thread, NULL, scribble, NULL) == 0 && pthread_detach(thread) == 0);
}

void ledgers_metrics_check(char *text)
{
    char *rest = text, *line, before[256] = "";
    double last = 0;

    while ((line = strsep(&rest, "\n")) && *line) {
        if (*line == '#')
            continue;
        char *space = strrchr(line, ' '), *end, *bound = strstr(line, "_bucket{") ? strstr(line, "le=\"") : NULL;
        FUZZ_CHECK(space && space[1]);
        double value = strtod(space + 1, &end);
        FUZZ_CHECK(!*end && value >= 0 && value <= 2e19);
        if (!bound) { /* a counter's schedule="fused" is none, though it ends in the same letters */
            *before = '\0';
            continue;
        }
        *bound = '\0';
        FUZZ_CHECK(strcmp(before, line) != 0 || value >= last);
        (void)snprintf(before, sizeof(before), "%s", line);
        last = value;
    }
}
