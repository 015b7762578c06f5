/* SPDX-License-Identifier: MIT
 *
 * gpu.c - rules of ranks on GPUs. All is done by queues of the GPUs (kernels/gpu/plugin/rules.hip), to which the thread gives runs that are due;
 * what it learns comes by words in host memory.
 *
 * Memory order. A GPU stores `landed` behind the run's signal, and `looked` behind the copies of the look's words; the thread loads both
 * (acquire).
 */
#include <errno.h>
#include <inttypes.h>
#include <time.h>

#include "daemon/worker/device/gpu/gpus.h"
#include "daemon/worker/device/gpu/host_memory.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/track/inside.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"

#define REST_NS 20000 /* between two looks at what has landed */
#define STREAM_PATIENCE_NS                                                                                                     \
    100000000u /* a stream waits by itself for its rule's words: a look at them is for people, and takes time of the GPU */
#define SETTLE_NS                                                                                                              \
    (UINT64_C(10) * 1000000000u) /* far more than any copy takes: a GPU that does not answer is broken, or about to be lost */

static const struct gpu_plugin *plugin_of(const struct tracker *t)
{
    return t->all->worker->gpus->plugin;
}

int gpu_words_open(struct tracker *t, struct error *e)
{
    int status = gpus_host_alloc(t->all->worker, sizeof(*t->words), &t->host, e);

    if (!status)
        t->words = (struct gpu_words *)(void *)t->host.data;
    return status;
}

static bool has_landed(const struct tracker *t, const struct rule *r)
{
    return !r->is_started || atomic_load_explicit(&t->words->landed[r->number], memory_order_acquire) > r->done;
}

static bool has_looked(const struct tracker *t)
{
    return !t->looked || atomic_load_explicit(&t->words->looked, memory_order_acquire) >= t->looks;
}

static bool all_is_done(const struct tracker *t)
{
    bool yes = has_looked(t);

    for (uint32_t i = 0; i < t->nrules && yes; i++)
        yes = has_landed(t, t->rules[i]);
    return yes;
}

void gpu_words_close(struct tracker *t)
{
    if (!t->words)
        return;
    if (all_is_done(t) || gpus_are_lost(t->all->worker, &(struct error){.status = 0}))
        gpus_host_free(&t->host); /* otherwise a GPU may still store there: it stays */
    t->words = NULL;
}

void gpu_rules_settle(struct tracker *t)
{
    static const struct timespec rest = {.tv_nsec = REST_NS};
    const uint64_t until = clock_ns() + SETTLE_NS;
    struct error why;

    if (!t->words)
        return;
    while (!all_is_done(t) && !gpus_are_lost(t->all->worker, &why)) {
        if (clock_ns() > until) {
            log_warning("rank %d: tracker: what a GPU has been given for its rules is not done after %" PRIu64 " s",
                        t->member->rank, SETTLE_NS / 1000000000u);
            return;
        }
        (void)nanosleep(&rest, NULL);
    }
}

/* The GPU refuses: its context is lost, as a rule. The communicator ends, which the engine does. */
static int gpu_refused(struct tracker *t, const struct rule *r, const struct error *why)
{
    if (!t->late.status)
        (void)error_set(&t->late, why->status, "rank %d: rule %u: %.400s", t->member->rank, r->number, why->text);
    atomic_store_explicit(&t->all->news, 1, memory_order_seq_cst);
    worker_wake(t->all->worker);
    return why->status;
}

int gpu_rule_run(struct tracker *t, struct rule *r, uint64_t run)
{
    const struct gpu_rule_run what = {.gpu = r->gpu,
                                      .lane = r->number,
                                      .action = (uint32_t)r->action,
                                      .dtype = (uint32_t)r->dtype,
                                      .from = (uintptr_t)r->from,
                                      .to = (uintptr_t)r->to,
                                      .rows = r->rows,
                                      .row_bytes = r->row_bytes,
                                      .from_stride = r->from_stride,
                                      .to_stride = r->to_stride,
                                      .signal = (uintptr_t)r->signal,
                                      .done = (uintptr_t)&t->words->landed[r->number],
                                      .run = run};
    struct error why;

    if (!r->rows && !r->signal)
        return 1;
    if (!r->is_started) {
        if (plugin_of(t)->rule_start(&what, &why))
            return gpu_refused(t, r, &why);
        r->is_started = true;
    }
    if (!has_landed(t, r))
        return 0;
    r->is_started = false;
    return 1;
}

/* Whether a look at the rule's words is worth it. */
static bool words_matter(const struct tracker *t, const struct rule *r, uint64_t now)
{
    const bool is_due = rule_count(t, r) / r->need > r->done,
               is_late = rule_is_in_stream(t, r) && r->since_ns && now - r->since_ns > STREAM_PATIENCE_NS;

    return !r->status && !r->is_started && (is_due || is_late) && !rule_words_are_there(t, r, r->done + 1);
}

/* The words that rules wait for, whose counts have come, or for which a stream has waited for long. Returns how many; one of those rules is *waits. */
static uint32_t words_gather(struct tracker *t, uint64_t words[], struct rule **waits)
{
    const uint64_t now = clock_ns();
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->nrules; i++) {
        struct rule *r = t->rules[i];
        if (!words_matter(t, r, now))
            continue;
        *waits = r;
        for (uint32_t k = 0; k < FCC_RULE_AWAITS; k++) {
            if (!r->awaits[k].buffer)
                continue;
            words[n] = (uintptr_t)r->awaits[k].word;
            t->places[n].rule = i;
            t->places[n++].await = k;
        }
    }
    return n;
}

void gpu_words_look(struct tracker *t)
{
    uint64_t words[FCC_RULES_MAX * FCC_RULE_AWAITS];
    struct rule *waits = NULL;
    struct error why;
    uint32_t n;

    if (!has_looked(t))
        return;
    for (uint32_t i = 0; i < t->looked; i++)
        t->rules[t->places[i].rule]->awaits[t->places[i].await].seen = t->words->values[i];
    t->looked = 0;
    n = words_gather(t, words, &waits);
    if (!n)
        return;
    if (plugin_of(t)->words_look(t->member->dev->device->index, words, n, t->words->values,
                                 (uint64_t *)(void *)&t->words->looked, t->looks + 1, &why)) {
        waits->status = gpu_refused(t, waits, &why);
        rule_tell(t, waits);
        return;
    }
    t->looks++;
    t->looked = n;
}
