/* SPDX-License-Identifier: MIT
 *
 * test_bound_model.c - every interleaving of a model of bound operators (daemon/worker/comm/bound/launcher.h): a worker, two ranks with two slots
 * each, their streams and kernels, and every program of three operators for each rank, each a run or none. Each step of the model is one
 * access to memory that the others see. The search finds no state in which something waits for ever, or in which two ranks' kernels
 * of different operators meet, or in which an operator is run by one rank and launched by the worker, too. Of a model from which one
 * rule is taken away it finds such a state, for each rule.
 */
#include "tests/bed/harness.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 2, OPS = 3, SLOTS = 2 };

/* The rules, each of which can be taken away. */
enum rule {
    SLEEPS_LIGHTLY = 1,  /* the worker does not sleep soundly while a rank waits for another */
    LOOKS_AT_END = 2,    /* a kernel looks at the failure epoch at its end, too */
    SETTLES = 4,         /* the failure epochs are stored before the worker launches the operator */
    BEHIND_OTHERS = 8,   /* a run's kernel begins behind the rank's earlier operators */
    WAITS_FOR_RUNS = 16, /* runs are recalled when those before have ended */
    ALL_OR_NONE = 32,    /* what all ranks have launched is not recalled */
    RULES = 63,
};

enum sleep { AWAKE, ABOUT_TO, ASLEEP };
enum binding { OPEN, ENDS, RECALLED };
enum host { IDLE, CHOSEN, PUSHED, RUNG };               /* of the rank's next operator */
enum kernel { WAITS, HAS_COME, HANDS_OVER, HAS_ENDED }; /* of the operator that the stream is at */

struct rank {
    uint8_t next; /* operator that the host is at */
    uint8_t host;
    uint8_t runs;                   /* that the host has launched */
    uint8_t run[OPS];               /* 0: it is none */
    uint8_t pushed, read, enqueued; /* operators */
    uint8_t at, kernel;             /* the stream's operator */
    uint8_t come, ended;            /* newest runs */
    uint8_t failure;
    uint8_t started, finished; /* operators, a bit each */
};

struct state {
    struct rank rank[RANKS];
    uint8_t sleep, soundly, bell;
    uint8_t binding, begun, done, runs; /* begun, done: turns */
    uint8_t failures_due;               /* ranks whose failure epoch is still to be stored, a bit each */
    uint8_t by_worker, by_run[RANKS];   /* operators that were launched by the worker; whose kernels ended by themselves */
};

struct search {
    unsigned rules;
    uint8_t program[RANKS]; /* operators that have the bound arguments, a bit each */
    struct state *seen;
    uint32_t *table, nseen, room;
    unsigned steps; /* from the state that is looked at */
    const char *wrong;
};

/* ---- states ---- */

static uint32_t hash_of(const struct state *s)
{
    const unsigned char *at = (const unsigned char *)s;
    uint32_t h = 2166136261u;

    for (size_t i = 0; i < sizeof(*s); i++)
        h = (h ^ at[i]) * 16777619u;
    return h;
}

static void table_grow(struct search *all)
{
    all->room = all->room ? 2 * all->room : 1 << 12;
    all->seen = realloc(all->seen, all->room * sizeof(all->seen[0]));
    free(all->table);
    all->table = calloc(2 * (size_t)all->room, sizeof(all->table[0]));
    CHECK(all->seen && all->table);
    for (uint32_t i = 0; i < all->nseen; i++) {
        uint32_t h = hash_of(&all->seen[i]) % (2 * all->room);
        while (all->table[h])
            h = (h + 1) % (2 * all->room);
        all->table[h] = i + 1;
    }
}

static void state_add(struct search *all, const struct state *s)
{
    uint32_t h;

    all->steps++;
    if (all->nseen == all->room)
        table_grow(all);
    for (h = hash_of(s) % (2 * all->room); all->table[h]; h = (h + 1) % (2 * all->room))
        if (!memcmp(&all->seen[all->table[h] - 1], s, sizeof(*s)))
            return;
    all->seen[all->nseen] = *s;
    all->table[h] = ++all->nseen;
}

static void wrong(struct search *all, const char *what)
{
    if (!all->wrong)
        all->wrong = what;
}

/* ---- a rank's process ---- */

static bool is_bound_op(const struct search *all, int rank, unsigned op)
{
    return all->program[rank] >> op & 1;
}

static void bell_ring(struct state *s, bool run)
{
    s->bell |= s->sleep != AWAKE && !(run && s->soundly);
}

static void host_steps(struct search *all, const struct state *s, int r)
{
    struct state next = *s;
    struct rank *me = &next.rank[r];
    unsigned op = me->next;

    if (op == OPS)
        return;
    switch (me->host) {
    case IDLE: /* look whether it is a run */
        if (op >= (unsigned)s->done + SLOTS)
            return;
        me->run[op] = is_bound_op(all, r, op) && s->binding == OPEN ? ++me->runs : 0;
        me->host = CHOSEN;
        break;
    case CHOSEN:
        me->pushed++;
        me->host = PUSHED;
        break;
    case PUSHED:
        bell_ring(&next, me->run[op] != 0);
        me->host = RUNG;
        break;
    default:
        me->enqueued++;
        me->next++;
        me->host = IDLE;
        break;
    }
    state_add(all, &next);
}

/* Who waits for a slot, or for the end, wakes the worker. */
static bool host_hurries(struct search *all, const struct state *s, int r)
{
    const struct rank *me = &s->rank[r];
    struct state next = *s;

    if (s->sleep != ASLEEP || s->bell || me->pushed == me->read || me->host != IDLE ||
        (me->next < OPS && me->next < s->done + SLOTS))
        return false;
    next.bell = 1;
    state_add(all, &next);
    return true;
}

/* ---- a rank's stream ---- */

/* Whether the other rank's kernel has come to the run, and for the same operator. */
static bool has_met(struct search *all, const struct state *s, int r, unsigned run, unsigned op)
{
    const struct rank *other = &s->rank[!r];

    if (other->come < run)
        return false;
    for (unsigned i = 0; i < OPS; i++)
        if (other->run[i] == run && i != op)
            wrong(all, "kernels of two operators meet");
    return true;
}

static void kernel_end(struct state *s, int r)
{
    struct rank *me = &s->rank[r];

    me->ended = me->run[me->at];
    me->kernel = WAITS;
    me->at++;
}

static void run_steps(struct search *all, const struct state *s, int r)
{
    struct state next = *s;
    struct rank *me = &next.rank[r];
    unsigned op = me->at, run = me->run[op];

    switch (me->kernel) {
    case WAITS:
        if (all->rules & BEHIND_OTHERS)
            for (unsigned i = 0; i < op; i++)
                if (!me->run[i] && !(me->finished >> i & 1))
                    return;
        me->come = (uint8_t)run;
        me->kernel = HAS_COME;
        break;
    case HAS_COME:
        if (me->failure && all->rules & LOOKS_AT_END) {
            me->kernel = HANDS_OVER;
            me->started |= 1u << op;
            break;
        }
        if (me->failure) { /* one that looks only while it waits may meet the other nevertheless */
            struct state left = next;
            left.rank[r].kernel = HANDS_OVER;
            left.rank[r].started |= 1u << op;
            state_add(all, &left);
        }
        if (!has_met(all, s, r, run, op))
            return;
        next.by_run[r] |= 1u << op;
        kernel_end(&next, r);
        break;
    default:
        if (!(me->finished >> op & 1))
            return;
        kernel_end(&next, r);
        break;
    }
    state_add(all, &next);
}

static void stream_steps(struct search *all, const struct state *s, int r)
{
    struct state next = *s;
    struct rank *me = &next.rank[r];

    if (me->at == me->enqueued)
        return;
    if (me->run[me->at]) {
        run_steps(all, s, r);
        return;
    }
    if (!(me->started >> me->at & 1))
        me->started |= 1u << me->at;
    else if (!(all->rules & BEHIND_OTHERS) || me->finished >> me->at & 1)
        me->at++; /* without the rule: the wait comes later, as in a group */
    else
        return;
    state_add(all, &next);
}

/* ---- the worker ---- */

static bool rank_waits(const struct state *s)
{
    return s->rank[0].read != s->rank[1].read || s->begun < s->rank[0].read;
}

/* can: it has something to do. */
static void sleep_steps(struct search *all, const struct state *s, bool can)
{
    struct state next = *s;
    bool more = s->rank[0].pushed != s->rank[0].read || s->rank[1].pushed != s->rank[1].read;

    if (s->sleep == AWAKE) {
        if (can || s->failures_due)
            return;
        next.sleep = ABOUT_TO;
        next.soundly = !(all->rules & SLEEPS_LIGHTLY) || !rank_waits(s);
    } else if (s->sleep == ABOUT_TO) {
        next.sleep = more ? AWAKE : ASLEEP;
    } else if (s->bell) {
        next.sleep = AWAKE;
        next.bell = 0;
    } else {
        return;
    }
    state_add(all, &next);
}

/* What is wanted of the worker otherwise: its times, say. */
static void until_step(struct search *all, const struct state *s)
{
    struct state next = *s;

    next.binding = ENDS;
    if (s->binding == OPEN)
        state_add(all, &next);
}

static bool turn_begin(struct search *all, struct state *s)
{
    unsigned op = s->begun, run0 = s->rank[0].run[op], run1 = s->rank[1].run[op];
    bool both = run0 && run0 == run1 && run0 == s->runs + 1u && s->binding != RECALLED;

    if (!(all->rules & ALL_OR_NONE) && s->binding != OPEN)
        both = false;
    if (both) {
        s->runs++;
        s->begun++;
        return true;
    }
    if (run0 || run1) {
        if (s->begun != s->done && all->rules & WAITS_FOR_RUNS)
            return false;
        if (s->binding != RECALLED) {
            s->binding = RECALLED;
            s->failures_due = 3;
            return true;
        }
    }
    if (s->failures_due && all->rules & SETTLES)
        return false;
    s->by_worker |= 1u << op;
    s->begun++;
    return true;
}

static bool turn_done(const struct state *s)
{
    unsigned op = s->done, run = s->rank[0].run[op];

    if (s->by_worker >> op & 1)
        return s->rank[0].started >> op & s->rank[1].started >> op & 1;
    return s->rank[0].ended >= run && s->rank[1].ended >= run;
}

static void turn_end(struct search *all, struct state *s)
{
    unsigned op = s->done++;

    if (s->by_worker >> op & 1)
        for (int r = 0; r < RANKS; r++)
            s->rank[r].finished |= 1u << op;
    if ((s->by_run[0] | s->by_run[1]) & s->by_worker)
        wrong(all, "a rank has run what the worker has launched");
}

static void worker_steps(struct search *all, const struct state *s)
{
    struct state next = *s;

    for (int r = 0; r < RANKS; r++)
        if (s->failures_due >> r & 1) {
            next.failures_due &= (uint8_t) ~(1u << r);
            next.rank[r].failure = 1;
            state_add(all, &next);
            next = *s;
        }
    if (s->done < s->begun && turn_done(s)) { /* the thread that watches GPUs wakes the worker */
        turn_end(all, &next);
        next.sleep = AWAKE;
        next.bell = 0;
        state_add(all, &next);
        next = *s;
    }
    bool begins = s->begun < s->rank[0].read && s->begun < s->rank[1].read && turn_begin(all, &next);
    if (begins && s->sleep == AWAKE)
        state_add(all, &next);
    next = *s;
    sleep_steps(all, s, begins);
    if (s->sleep != AWAKE)
        return;
    for (int r = 0; r < RANKS; r++)
        if (s->rank[r].read < s->rank[r].pushed) {
            next.rank[r].read++;
            state_add(all, &next);
            next = *s;
        }
    until_step(all, s);
}

/* ---- the search ---- */

/* Nothing goes on by itself any more: all must be over, or some rank hurries the worker, and no other one waits for that. */
static void standstill_check(struct search *all, const struct state *s, bool hurries)
{
    if (s->done == OPS && s->rank[0].at == OPS && s->rank[1].at == OPS)
        return;
    if (!hurries)
        wrong(all, "something waits for ever");
    else
        for (int r = 0; r < RANKS; r++)
            if (s->rank[r].pushed > s->done && !s->rank[r].run[s->done])
                wrong(all, "a rank waits until somebody else has patience no more");
}

static void program_search(struct search *all)
{
    struct state first;

    memset(&first, 0, sizeof(first));
    all->nseen = all->room = 0;
    state_add(all, &first);
    for (uint32_t i = 0; i < all->nseen && !all->wrong; i++) {
        struct state s = all->seen[i];
        bool hurries = false;
        all->steps = 0;
        for (int r = 0; r < RANKS; r++) {
            host_steps(all, &s, r);
            stream_steps(all, &s, r);
        }
        worker_steps(all, &s);
        bool stands = s.sleep == ASLEEP && !all->steps;
        for (int r = 0; r < RANKS; r++)
            hurries |= host_hurries(all, &s, r);
        if (stands)
            standstill_check(all, &s, hurries);
    }
    free(all->seen);
    free(all->table);
    all->seen = NULL;
    all->table = NULL;
}

/* All programs. What is wrong, or NULL. */
static const char *model_search(unsigned rules, uint64_t *states)
{
    struct search all = {.rules = rules};

    *states = 0;
    for (unsigned first = 0; first < 1u << OPS; first++)
        for (unsigned second = first; second < 1u << OPS && !all.wrong; second++) { /* the ranks are alike */
            all.program[0] = (uint8_t)first;
            all.program[1] = (uint8_t)second;
            program_search(&all);
            *states += all.nseen;
        }
    return all.wrong;
}

static void whole(void)
{
    uint64_t states;
    const char *what = model_search(RULES, &states);

    printf("  %s%llu states\n", what ? what : "", (unsigned long long)states);
    CHECK(what == NULL);
}

static void without(enum rule rule)
{
    uint64_t states;
    const char *what = model_search(RULES & ~(unsigned)rule, &states);

    printf("  %s, after %llu states\n", what ? what : "nothing", (unsigned long long)states);
    CHECK(what != NULL);
}

#define WITHOUT(name, rule)                                                                                                    \
    static void name(void)                                                                                                     \
    {                                                                                                                          \
        without(rule);                                                                                                         \
    }
WITHOUT(sleeps_lightly, SLEEPS_LIGHTLY)
WITHOUT(looks_at_end, LOOKS_AT_END)
WITHOUT(settles, SETTLES)
WITHOUT(behind_others, BEHIND_OTHERS)
WITHOUT(waits_for_runs, WAITS_FOR_RUNS)
WITHOUT(all_or_none, ALL_OR_NONE)

int main(void)
{
    static const struct test tests[] = {
        {"whole", whole, 120},
        {"without_sleeps_lightly", sleeps_lightly, 0},
        {"without_looks_at_end", looks_at_end, 0},
        {"without_settles", settles, 0},
        {"without_behind_others", behind_others, 0},
        {"without_waits_for_runs", waits_for_runs, 0},
        {"without_all_or_none", all_or_none, 0},
    };

    return tests_run("bound_model", TESTS(tests));
}
