/* SPDX-License-Identifier: MIT
 *
 * broker.c - start, signals, shutdown.
 */
#include "daemon/broker/broker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include "daemon/broker/metrics/http.h"
#include "daemon/broker/metrics/metrics.h"
#include "daemon/broker/nodes/node.h"
#include "daemon/broker/share/share.h"
#include "daemon/broker/store.h"
#include "daemon/common/confine.h"
#include "proto/base/log.h"
#include "proto/base/log_limit.h"
#include "proto/base/timeslice.h"
#include "proto/variables.h"

#define VISITORS_MAX 1024        /* connections that are not handed over yet */
#define DESCRIPTORS_MAX 1000000u /* a higher limit of descriptors is treated as this one */
#define HOLD_LOOK_MS 500         /* interval at which to look whether HOLD_FILE is locked */

static void drain_over(evutil_socket_t sock, short what, void *arg)
{
    (void)sock, (void)what;
    jobs_kill(arg);
}

static void shut_down(struct broker *b, const char *why)
{
    log_info("%s: shutting down; running operators have %u ms to finish", why, b->config.drain_ms);
    (void)sd_notify(0, "STOPPING=1");
    b->draining = true;
    (void)event_del(&b->listen_event);
    listen_close(b);
    (void)event_add_ms(&b->drain_event, (uint64_t)b->config.drain_ms + CONTROL_LEAVE_MS);
    nodes_drain(b);
    jobs_drain(b);
    if (LIST_EMPTY(&b->jobs))
        (void)event_base_loopbreak(b->base);
}

/* Ends, and leaves the workers to the next broker. Whether there will be one only the service manager knows: if it is not to start another one it
 * drops the channels, and the workers drain. Workers that are not kept drain now. */
static void leave(struct broker *b, const char *why)
{
    log_info("%s: this fccd ends, and its jobs go on: the next one takes them over within %u s", why, b->config.adopt_seconds);
    (void)sd_notify(0, "STOPPING=1");
    b->leaving = true;
    jobs_drain(b);
    (void)event_base_loopbreak(b->base);
}

static void on_terminate(evutil_socket_t number, short what, void *arg)
{
    struct broker *b = arg;

    (void)what;
    if (!b->draining && number == SIGTERM && store_keeps(b)) {
        leave(b, strsignal((int)number));
        return;
    }
    if (b->draining) /* a second signal: end at once */
        jobs_kill(b);
    else
        shut_down(b, strsignal((int)number));
}

static void on_hold(evutil_socket_t sock, short what, void *arg)
{
    struct broker *b = arg;

    (void)sock, (void)what;
    if (!b->draining && hold_is_over(b->hold))
        shut_down(b, "no process holds HOLD_FILE any more");
}

static void on_child(evutil_socket_t number, short what, void *arg)
{
    struct broker *b = arg;

    (void)number, (void)what;
    jobs_reap(b);
    children_reap(b);
    lookups_go_on(b);
    if (b->draining && LIST_EMPTY(&b->jobs))
        (void)event_base_loopbreak(b->base);
}

static void on_log(evutil_socket_t sock, short what, void *arg)
{
    const struct broker *b = arg;

    (void)sock, (void)what;
    log_catch_up(false);
    if (b->nodes)
        nodes_catch_up(b->nodes);
}

static void key_changed(const char *key, bool taken)
{
    if (taken)
        log_info("%s has changed: it holds for this process from now on, and for workers that start from now on", key);
    else
        log_warning("%s has changed: that takes a restart", key);
}

static void log_start(const struct config *config)
{
    log_open("broker", (enum log_level)log_level_by_name(config->log_level),
             (enum log_format)log_format_by_name(config->log_format));
}

static void log_file_open(const struct config *config)
{
    int status = *config->log_file ? log_to_file(config->log_file) : 0;

    if (status)
        log_warning("LOG_FILE %s: %s: the log goes on where it went", config->log_file, strerror(-status));
}

static void on_hangup(evutil_socket_t number, short what, void *arg)
{
    struct broker *b = arg;
    struct config fresh;
    enum config_action action;
    struct error e = {0};

    (void)number, (void)what;
    log_file_open(&b->config); /* log rotation has moved the old file away */
    if (config_load(b->argc, b->argv, &fresh, &action, &e)) {
        log_error("SIGHUP: the configuration stays as it was: %s", e.text);
        return;
    }
    log_info("SIGHUP: the configuration was read again");
    config_take(&b->config, &fresh, key_changed);
    shares_again(b);
    log_start(&b->config);
}

static int events_open(struct broker *b)
{
    static const struct {
        int number;
        event_callback_fn handle;
    } signals[BROKER_SIGNALS] = {{SIGTERM, on_terminate}, {SIGINT, on_terminate}, {SIGCHLD, on_child}, {SIGHUP, on_hangup}};

    b->base = event_base_new();
    if (!b->base)
        return -ENOMEM;
    for (int i = 0; i < BROKER_SIGNALS; i++) {
        (void)evsignal_assign(&b->signal_events[i], b->base, signals[i].number, signals[i].handle, b);
        if (event_add(&b->signal_events[i], NULL))
            return -ENOMEM;
    }
    (void)evtimer_assign(&b->drain_event, b->base, drain_over, b);
    (void)event_assign(&b->log_event, b->base, -1, EV_PERSIST, on_log, b);
    (void)event_assign(&b->hold_event, b->base, -1, EV_PERSIST, on_hold, b);
    (void)event_assign(&b->listen_event, b->base, b->listen_sock, EV_READ | EV_PERSIST, visitor_accept, b);
    (void)evtimer_assign(&b->listen_again, b->base, visitors_again, b);
    if (b->hold >= 0 && event_add_ms(&b->hold_event, HOLD_LOOK_MS))
        return -ENOMEM;
    return event_add_ms(&b->log_event, LOG_WINDOW_S * 1000) ? -ENOMEM : 0;
}

static void events_close(struct broker *b)
{
    event_stop(&b->listen_event);
    event_stop(&b->listen_again);
    event_stop(&b->drain_event);
    event_stop(&b->log_event);
    event_stop(&b->hold_event);
    for (int i = 0; i < BROKER_SIGNALS; i++)
        event_stop(&b->signal_events[i]);
    if (b->base)
        event_base_free(b->base);
}

/* Raises the limit of descriptors as far as allowed. Visitors may take half of them at most; the others are for workers and
 * other nodes. */
static void descriptors_allow(struct broker *b)
{
    struct rlimit limit = {.rlim_cur = 1024};

    if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < limit.rlim_max) {
        struct rlimit more = {.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
        if (!setrlimit(RLIMIT_NOFILE, &more))
            limit = more;
    }
    b->descriptors = limit.rlim_cur < DESCRIPTORS_MAX ? (unsigned)limit.rlim_cur : DESCRIPTORS_MAX;
    b->visitors_max = b->descriptors / 2 < VISITORS_MAX ? b->descriptors / 2 : VISITORS_MAX;
}

static void variable_unknown(const char *name, const char *nearest)
{
    log_warning("the environment's variable %s is unknown and does nothing: the nearest known one is %s", name, nearest);
}

/* Warns if this system lets a user's other processes trace a starting worker, against which a worker otherwise protects itself:
 * daemon/worker/engine/rights.c. */
static void dumpable_warn(void)
{
    FILE *f = geteuid() ? NULL : fopen("/proc/sys/fs/suid_dumpable", "re");
    int value = 0;

    if (f && fscanf(f, "%d", &value) == 1 && value == 1)
        log_warning(
            "fs.suid_dumpable is 1: a process may trace what changes its user, and so a worker of its user that starts");
    if (f)
        (void)fclose(f);
}

static void serve(struct broker *b)
{
    if (event_add(&b->listen_event, NULL)) {
        log_error("no memory to accept connections");
        (void)event_base_loopbreak(b->base);
        return;
    }
    log_info("serves %s with %u cpu devices of %u workgroups", b->config.socket, b->config.cpu_devices,
             config_cpu_workgroups(&b->config));
    if (!store_keeps(b))
        log_info(
            "no service manager keeps this fccd's descriptors (FDSTORE, FileDescriptorStoreMax=): a restart ends its jobs");
    (void)sd_notify(0, "READY=1");
    background_ready();
}

int broker_open(struct broker *b, const struct config *config, int argc, char *argv[])
{
    struct timespec now;
    int status;

    *b = (struct broker){
        .config = *config, .argc = argc, .argv = argv, .listen_sock = -1, .exe = -1, .hold = -1, .started_ns = clock_ns()};
    LIST_INIT(&b->visitors);
    LIST_INIT(&b->jobs);
    LIST_INIT(&b->users);
    LIST_INIT(&b->children);
    TAILQ_INIT(&b->lookups);
    (void)clock_gettime(CLOCK_REALTIME, &now);
    b->started_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
    descriptors_allow(b);
    if (getrandom(&b->last.broker, sizeof(b->last.broker), 0) != sizeof(b->last.broker)) {
        log_error("no random numbers: %s", strerror(errno));
        return -EIO;
    }
    b->exe = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (b->exe < 0) {
        status = -errno;
        log_error("/proc/self/exe: %s: workers cannot be started without /proc", strerror(-status));
        return status;
    }
    if ((status = ledgers_open(b)) || (status = store_open(b)))
        return status;
    ledgers_keep(b);
    status = pid_file_write(config);
    dumpable_warn();
    if (status >= 0 && *config->hold_file)
        b->hold = status = hold_open(config);
    if (status >= 0)
        status = listen_open(b);
    if (status >= 0) {
        b->listen_sock = status;
        status = events_open(b);
        if (status)
            log_error("cannot set up the event loop: %s", strerror(-status));
    }
    if (status >= 0)
        status = nodes_open(b);
    if (status >= 0)
        status = metrics_open(b);
    if (status >= 0 && *config->log_file && (status = log_to_file(config->log_file)))
        log_error("LOG_FILE %s: %s", config->log_file, strerror(-status));
    if (status >= 0) {
        probe_start(b);
        b->serve = serve;
        jobs_adopt(b);
    }
    b->leaving = status < 0 && store_keeps(b); /* what there is stays as it is, for a next start */
    return status < 0 ? status : 0;
}

void broker_close(struct broker *b)
{
    nodes_close(b); /* before the visitors, so that those that wait for a ping get an answer */
    while (!LIST_EMPTY(&b->visitors))
        visitor_free(LIST_FIRST(&b->visitors));
    metrics_close(b);
    lookups_close(b);
    children_close(b);
    probe_close(b);
    if (b->leaving)
        jobs_leave(b);
    shares_close(b);
    ledgers_close(b);
    event_stop(&b->adopt_event);
    events_close(b);
    listen_close(b);
    store_close(b);
    pid_file_remove(&b->config);
    fd_close(&b->exe);
    hold_close(&b->config, &b->hold); /* last: whoever waits for the lock may start the next daemon */
}

int broker_run(const struct config *config, int argc, char *argv[])
{
    struct broker b;

    log_start(config);
    variables_check(variable_unknown);
    struct error e = {0};
    if (confine(CONFINE_BROKER, config->seccomp, &e)) {
        log_error("%s", e.text);
        log_catch_up(true);
        return EXIT_FAILURE;
    }
    /* It works for microseconds when somebody connects, or a worker or node has something to say, and must not wait for the slices of those who compute. */
    (void)timeslice_shorten();
    int status = broker_open(&b, config, argc, argv);
    if (!status) {
        (void)event_base_dispatch(b.base);
        log_info("ended");
    }
    broker_close(&b);
    log_catch_up(true);
    return status ? EXIT_FAILURE : EXIT_SUCCESS;
}
