/* SPDX-License-Identifier: MIT
 *
 * verbs_faults.c - the verbs plug-in with a way to break queue pairs: a worker that has loaded this one drives the next queue pair that it
 * sends over to error when it gets SIGUSR2, and the next that it receives over when it gets SIGUSR1. All else is the transport's.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>

#include "daemon/net/verbs/link.h"
#include "daemon/net/verbs/receiver.h"

static volatile sig_atomic_t break_sender, break_receiver;

static void on_signal(int number)
{
    if (number == SIGUSR2)
        break_sender = 1;
    else
        break_receiver = 1;
}

static void queue_pair_break(const struct verbs_end *end, const char *which)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    int error = ibv_modify_qp(end->id->qp, &attr, IBV_QP_STATE);

    (void)fprintf(stderr, "queue pair %u, a %s's, is driven to error: %d\n", end->id->qp->qp_num, which, error);
}

/* With something under way. */
static int faults_progress(struct net_link *l, uint64_t now_ns)
{
    const struct verbs_link *v = (const struct verbs_link *)l; /* its first member */

    if (break_sender && v->state == READY && v->posted != v->done) {
        break_sender = 0;
        queue_pair_break(&v->end, "sender");
    }
    return net_verbs.progress(l, now_ns);
}

static int faults_receive(struct net_receiver *r, uint64_t now_ns)
{
    const struct verbs_receiver *v = (const struct verbs_receiver *)r; /* its first member */

    if (break_receiver && v->end.mr) {
        break_receiver = 0;
        queue_pair_break(&v->end, "receiver");
    }
    return net_verbs.receive(r, now_ns);
}

static struct net_ops faults;

static int faults_link_open(int sock, const struct net_options *options, struct net_counts *counts, struct net_link **out,
                            struct error *e)
{
    int status = net_verbs.link_open(sock, options, counts, out, e);

    if (!status)
        (*out)->ops = &faults;
    return status;
}

static int faults_receiver_open(int sock, const struct net_options *options, const struct net_sink *sink,
                                struct net_counts *counts, struct net_receiver **out, struct error *e)
{
    int status = net_verbs.receiver_open(sock, options, sink, counts, out, e);

    if (!status)
        (*out)->ops = &faults;
    return status;
}

const struct net_plugin *net_plugin(void);
__attribute__((visibility("default"))) const struct net_plugin *net_plugin(void)
{
    static const struct net_plugin plugin = {NET_PLUGIN_ABI, &faults};
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

    faults = net_verbs;
    faults.progress = faults_progress;
    faults.receive = faults_receive;
    faults.link_open = faults_link_open;
    faults.receiver_open = faults_receiver_open;
    (void)sigaction(SIGUSR1, &action, NULL);
    (void)sigaction(SIGUSR2, &action, NULL);
    return &plugin;
}
