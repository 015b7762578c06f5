/* SPDX-License-Identifier: MIT
 *
 * run.c - a worker, put together: start, the engine's loop, the end.
 *
 * The loop polls the clients' rings and the launches that come back. When nothing has come for SPIN_US it tells all
 * clients that it sleeps (so they ring the doorbell), looks once more, and waits in the event loop, which also serves the
 * sockets and timers. The two steps, both sequentially consistent, are the worker's half of the doorbell argument in
 * session.h; for launches that come back the same argument holds with engine_sleeps and wake_fd.
 */
#include "daemon/worker/run.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/common/confine.h"
#include "daemon/common/ledger.h"
#include "daemon/worker/comm/bound/launcher.h"
#include "daemon/worker/comm/regroup/regroup.h"
#include "daemon/worker/comm/turn.h"
#include "daemon/worker/comm/unformed.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/device/helpers.h"
#include "daemon/worker/device/launch.h"
#include "daemon/worker/engine/account.h"
#include "daemon/worker/engine/channel.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/idle.h"
#include "daemon/worker/nodes/gpu_data.h"
#include "daemon/worker/nodes/nodes.h"
#include "daemon/worker/session/session.h"
#include "daemon/worker/track/track.h"
#include "kernels/cpu/view.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/base/log_limit.h"
#include "proto/base/spin.h"
#include "proto/base/timeslice.h"
#include "proto/session.h"

#define SOCKETS_EVERY_NS 100000 /* while rings are busy, sockets and timers are served this often */

/* ---- the end ---- */

/* What still runs is told to leave. A worker that is killed while its kernels run takes, under MPS, all clients of its MPS server
 * with it. */
static void on_drain_over(evutil_socket_t sock, short what, void *arg)
{
    struct worker *w = arg;
    struct comm *c;

    (void)sock, (void)what;
    LIST_FOREACH(c, &w->comms, link)
        comm_abort(c, -ESHUTDOWN, "%s: an operator has not ended within %u ms", w->ending, w->config.drain_ms);
}

/* The clients' submissions, from their rings. */
static bool rings_poll(struct worker *w)
{
    struct session *s;
    bool any = false;

    TAILQ_FOREACH(s, &w->sessions, link)
        if (s->memory && !s->broken)
            any |= ring_look(s);
    if (!any)
        return false;
    w->arrivals_ns = clock_ns();
    TAILQ_FOREACH(s, &w->sessions, link)
        if (s->memory && !s->broken)
            (void)ring_poll(s);
    w->arrivals_ns = 0;
    return true;
}

/* Begin to drain: finish the operators that run, refuse the rest, then end. */
static void worker_drain(struct worker *w, const char *why)
{
    (void)rings_poll(w); /* requests submitted before the drain are accepted: they run, or wait for operators that run */
    if (!w->draining)
        text_copy(w->ending, sizeof(w->ending), why);
    w->draining = true;
    comm_drain(w);
    if (!evtimer_pending(w->drain_event, NULL))
        (void)event_add_ms(w->drain_event, w->config.drain_ms);
}

static void on_terminate(evutil_socket_t number, short what, void *arg)
{
    struct worker *w = arg;
    char why[sizeof(w->ending)];

    (void)number, (void)what;
    (void)snprintf(why, sizeof(why), "the worker of job '%s' (pid %d) was told to end, by SIGTERM", w->job, (int)getpid());
    if (!w->draining)
        log_info("%s", why);
    worker_drain(w, why);
}

static void on_log(evutil_socket_t sock, short what, void *arg)
{
    (void)sock, (void)what;
    log_catch_up(false);
    nodes_links_meter(arg);
}

/* ---- the loop ---- */

static void sleeping_set(struct worker *w, enum fcc_worker_sleeps sleeping)
{
    struct session *s;

    TAILQ_FOREACH(s, &w->sessions, link)
        if (s->memory)
            ring_set_sleeping(s, sleeping);
    atomic_store_explicit(&w->engine_sleeps, sleeping != FCC_WORKER_AWAKE, memory_order_seq_cst);
}

static bool anything_to_do(const struct worker *w)
{
    const struct session *s;

    TAILQ_FOREACH(s, &w->sessions, link)
        if (s->memory && !s->broken && ring_has_more(s))
            return true;
    return atomic_load_explicit(&w->finished, memory_order_seq_cst) != NULL || nodes_have_news(w) ||
           device_cpu_steps_ready(w) || track_has_news(w);
}

static void engine_sleep(struct worker *w)
{
    sleeping_set(w, bindings_sleep_soundly(w) ? FCC_WORKER_SLEEPS_SOUNDLY : FCC_WORKER_SLEEPS);
    worker_counts_settle(w);
    if (w->links_stale)
        nodes_links_meter(w);
    bool may = nodes_rest(w);
    (void)event_base_loop(w->base, !may || anything_to_do(w) ? EVLOOP_ONCE | EVLOOP_NONBLOCK : EVLOOP_ONCE);
    nodes_wake(w);
    sleeping_set(w, FCC_WORKER_AWAKE);
}

/* Free broken sessions and peers. Freeing a peer may break sessions, and the other way round. */
static void sweep(struct worker *w)
{
    if (w->sweep)
        (void)launches_collect(w);
    while (w->sweep) {
        sessions_sweep(w);
        peers_sweep(w);
    }
}

/* The engine has nothing else to do: run slices of an operator for which a rank waits (comm/early.c). */
static bool begins_early(struct worker *w)
{
    struct comm *c = w->awaits;

    w->awaits = NULL;
    return c && launch_early_run(c);
}

bool worker_turn(struct worker *w, const struct spin *spin)
{
    bool busy = launches_collect(w);

    busy |= launches_poll(w);
    busy |= rings_poll(w);
    busy |= nodes_poll(w);
    if (device_cpu_steps_poll(w)) {
        (void)launches_collect(w); /* what has just ended */
        busy = true;
    }
    busy |= track_poll(w);
    /* Another thread on this core is probably the awaited client: yield to it first. */
    busy = busy || ((!spin->shared || spin_has_offered(spin)) && begins_early(w));
    gpus_sweep(w);
    sweep(w);
    return busy;
}

static void engine_loop(struct worker *w)
{
    struct spin spin = {0};
    uint64_t sockets_ns = 0;

    while (!w->quit && !(w->draining && !worker_anything_runs(w)) && !gpus_are_lost(w, &w->lost)) {
        if (worker_turn(w, &spin)) {
            spin_reset(&spin);
            if (w->told && w->contended)
                spin_offer(&spin);
            w->told = false;
        } else if (w->crowded || LIST_EMPTY(&w->comms) || !spin_once(&spin, w->config.spin_us)) {
            /* Without a communicator nothing can come that is worth a core: who only connects and leaves costs others no time of polling. */
            engine_sleep(w);
            sweep(w);
            spin_reset(&spin);
            continue;
        }
        if (nodes_lead(w)) {
            spin_hurry(&spin); /* each look at the sockets takes as long as all the pauses before a yield */
            w->contended = spin.shared ? CONTENDED_FOR : w->contended;
        }
        if (spin_keeps_core(&spin))
            continue; /* not even a look at the clock */
        uint64_t now = clock_ns();
        if (now - sockets_ns >= SOCKETS_EVERY_NS) {
            (void)event_base_loop(w->base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
            sockets_ns = now;
        }
    }
}

/* ---- start and end ---- */

static void on_hangup(evutil_socket_t number, short what, void *arg)
{
    (void)number, (void)what, (void)arg;
    log_info("SIGHUP: ignored: a worker keeps the configuration that it started with");
}

static int worker_events_open(struct worker *w)
{

    w->base = event_base_new();
    if (!w->base)
        return -ENOMEM;
    w->terminate_event = evsignal_new(w->base, SIGTERM, on_terminate, w);
    w->hangup_event = evsignal_new(w->base, SIGHUP, on_hangup, w);
    w->idle_event = evtimer_new(w->base, worker_on_idle, w);
    w->drain_event = evtimer_new(w->base, on_drain_over, w);
    w->log_event = event_new(w->base, -1, EV_PERSIST, on_log, w);
    w->wake_event = event_new(w->base, w->wake_fd, EV_READ | EV_PERSIST, worker_on_wake, w);
    if (!w->terminate_event || !w->hangup_event || !w->idle_event || !w->drain_event || !w->wake_event || !w->log_event ||
        event_add(w->terminate_event, NULL) || event_add(w->hangup_event, NULL) || event_add(w->wake_event, NULL) ||
        event_add_ms(w->log_event, LOG_WINDOW_S * 1000))
        return -ENOMEM;
    return control_open(w);
}

static int cores_find(struct worker *w)
{
    if (sched_getaffinity(0, sizeof(w->affinity), &w->affinity))
        return -errno;
    w->cores = CPU_COUNT(&w->affinity);
    return 0;
}

/* Each buffer for results of a communicator with several ranks here keeps a descriptor, and each client has some. */
static void descriptors_allow(void)
{
    struct rlimit limit;

    if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static const struct channel_ops channel_ops = {
    .session = session_open,
    .peer = peer_arrived,
    .connected = peer_connected,
    .denied = nodes_denial_heard,
    .drain = worker_drain,
    .handed = worker_handed,
    .retire = worker_retire,
    .adopted = worker_adopted,
    .doubt = peer_arrival_doubt,
};

int worker_open(struct worker *w, const struct control_start *start, int account)
{
    char who[96];

    w->config = start->config;
    w->channel_ops = &channel_ops;
    w->span = &span_over_nodes;
    w->track = &track_over_rules;
    w->regroup = &regroup_of_ranks;
    w->session_poll = ring_poll;
    w->uid = start->uid;
    memcpy(w->job, start->job, sizeof(w->job));
    memcpy(w->mps_pipe, start->mps_pipe, sizeof(w->mps_pipe));
    memcpy(w->node, start->node, sizeof(w->node));
    memcpy(w->meeting_key, start->meeting_key, sizeof(w->meeting_key));
    w->self = start->self;
    w->place = start->place;
    cgroup_find(&w->cgroup, "", 0);
    w->memory_limited = cgroup_limit(&w->cgroup) != UINT64_MAX;
    w->limits = start->limits;
    (void)snprintf(who, sizeof(who), "worker %u/%s", w->uid, w->job);
    log_open(who, (enum log_level)log_level_by_name(w->config.log_level),
             (enum log_format)log_format_by_name(w->config.log_format));
    TAILQ_INIT(&w->sessions);
    TAILQ_INIT(&w->letters);
    TAILQ_INIT(&w->questions);
    LIST_INIT(&w->comms);
    TAILQ_INIT(&w->unformed);
    LIST_INIT(&w->peers);
    LIST_INIT(&w->accounts);
    descriptors_allow();
    (void)timeslice_shorten(); /* for the worker's other threads, too: they come from this one */
    w->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    w->ndevices = (int)w->config.cpu_devices;
    int found = cores_find(w);
    w->devices = calloc((size_t)w->ndevices, sizeof(w->devices[0]));
    w->views = views_new();
    if (found || w->wake_fd < 0 || !w->devices || !w->views)
        return found ? found : -ENOMEM;
    int status = account_open(&w->account, account);
    if (status || w->place >= w->account.nplaces)
        return status ? status : -EPROTO;
    for (int i = 0; i < w->ndevices; i++)
        w->devices[i] =
            (struct device){.ops = &device_cpu, .worker = w, .index = i, .workgroups = config_cpu_workgroups(&w->config)};
    return worker_events_open(w);
}

void worker_close(struct worker *w)
{
    struct event *events[] = {w->terminate_event, w->hangup_event, w->idle_event, w->drain_event, w->wake_event, w->log_event};
    struct session *s;

    TAILQ_FOREACH(s, &w->sessions, link) {
        if (w->draining)
            session_farewell(s, -ESHUTDOWN, w->ending);
        if (w->lost.status)
            session_farewell(s, w->lost.status, w->lost.text);
        session_break(s, "its worker ended");
    }
    control_close(w);
    if (w->lost.status) { /* the GPUs' runtime is good for nothing any more: not even for taking things down */
        log_error("%s", w->lost.text);
        log_catch_up(true);
        _exit(EXIT_FAILURE);
    }
    sessions_sweep(w);
    track_close(w);
    nodes_data_stop(w);
    peers_close(w);
    nodes_links_free(w);
    unformed_free(w);
    gpu_data_close(w);
    gpus_close(w);
    helpers_close(w->helpers);
    for (int i = 0; i < w->ndevices; i++)
        device_close(&w->devices[i]);
    nodes_data_free(w);
    views_free(w->views);
    free(w->devices);
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        event_drop(&events[i]);
    if (w->base)
        event_base_free(w->base);
    fd_close(&w->wake_fd);
    fd_close(&w->ledger);
    ledger_close(w->flight);
    account_close(&w->account);
}

int worker_run(int argc, char *argv[])
{
    static _Alignas(16) unsigned char buf[FCC_MSG_MAX];
    struct worker w = WORKER_CLOSED(CONTROL_FD);
    struct control_start *start = (struct control_start *)buf;
    int account = control_start(argc, argv, start);

    if (account < 0)
        return 2;
    struct error e = {0};
    if (confine(CONFINE_WORKER, start->config.seccomp, &e)) {
        (void)fprintf(stderr, "fccd: worker: %s\n", e.text);
        return EXIT_FAILURE;
    }
    int status = worker_open(&w, start, account);
    explicit_bzero(start->meeting_key, sizeof(start->meeting_key));
    (void)close(account);
    if (status) {
        log_error("cannot start: %s", strerror(-status));
    } else {
        worker_sessions_changed(&w);
        engine_loop(&w);
    }
    worker_close(&w);
    log_catch_up(true);
    return status ? EXIT_FAILURE : EXIT_SUCCESS;
}
