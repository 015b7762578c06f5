/* SPDX-License-Identifier: MIT
 *
 * ledgers.c - the ledgers of jobs. The broker maps each one when it makes it, and keeps no descriptor of it.
 *
 * A worker may write anything into its ledger (ledger.h). Counters are taken by how much they have grown since they were last taken, so the sum
 * never falls, whatever a worker writes and whenever it ends. Names of nodes count if this broker knows such a node.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/broker/metrics/flights.h"
#include "daemon/broker/metrics/metrics.h"
#include "daemon/broker/nodes/node.h"
#include "daemon/broker/share/share.h"
#include "daemon/broker/store.h"
#include "proto/base/log.h"
#include "proto/sealed.h"

/* job.ledger */
struct ledger {
    const struct flight *flight; /* mapped; the meters lie behind it */
    struct counters last;        /* what was taken of the worker's counters */
    uint64_t links[METER_NODES][LINK_COUNTS];
};

/* What the next broker is left: the counts of workers that have ended. Those of workers that live lie in their ledgers. */
struct ledgers_kept {
    uint64_t ncounters; /* COUNTERS */
    struct counters past;
};
#define KEPT_AS "counts"

void ledgers_keep(struct broker *b)
{
    struct ledgers *ls = b->ledgers;
    int fd = store_take(b, KEPT_AS);
    struct stat st;
    void *there = MAP_FAILED;

    if (fd >= 0 && !fstat(fd, &st) && st.st_size >= (off_t)sizeof(*ls->kept))
        there = mmap(NULL, sizeof(*ls->kept), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    fd_close(&fd);
    if (there != MAP_FAILED && ((const struct ledgers_kept *)there)->ncounters == COUNTERS) {
        ls->kept = there;
        ls->sum = ls->kept->past;
        return;
    }
    if (there != MAP_FAILED) /* another version counts otherwise: they begin anew */
        (void)munmap(there, sizeof(*ls->kept));
    store_drop(b, KEPT_AS);
    if (!store_keeps(b) || sealed_memory_make("fccd-counts", sizeof(*ls->kept), &there, &fd))
        return;
    ls->kept = there;
    ls->kept->ncounters = COUNTERS;
    (void)store_keep(b, KEPT_AS, fd);
    (void)close(fd);
}

int ledgers_open(struct broker *b)
{
    b->ledgers = calloc(1, sizeof(*b->ledgers));
    if (!b->ledgers)
        return -ENOMEM;
    TAILQ_INIT(&b->ledgers->past);
    return 0;
}

void ledgers_close(struct broker *b)
{
    if (!b->ledgers)
        return;
    flights_forget(b->ledgers);
    if (b->ledgers->kept)
        (void)munmap(b->ledgers->kept, sizeof(*b->ledgers->kept));
    free(b->ledgers->page);
    free(b->ledgers);
    b->ledgers = NULL;
}

int job_ledger_open(struct job *j)
{
    struct ledger *l = calloc(1, sizeof(*l));
    int fd = l ? ledger_make() : -ENOMEM;

    if (fd >= 0)
        l->flight = ledger_map(fd);
    if (fd >= 0 && l->flight) {
        j->ledger = l;
        job_share_open(j, fd);
        return fd;
    }
    if (fd >= 0)
        (void)close(fd);
    free(l);
    return fd < 0 ? fd : -ENOMEM;
}

void job_ledger_adopt(struct job *j, int fd)
{
    struct ledger *l = calloc(1, sizeof(*l));
    struct stat st;

    if (l && !fstat(fd, &st) && st.st_size == (off_t)LEDGER_BYTES)
        l->flight = ledger_map(fd);
    if (l && l->flight && l->flight->magic == FLIGHT_MAGIC && l->flight->version == FLIGHT_VERSION &&
        meter_get(&ledger_meters(l->flight)->ncounters) == COUNTERS) {
        j->ledger = l;
        job_share_open(j, fd);
        (void)close(fd);
        return;
    }
    (void)close(fd);
    job_log(LOG_LEVEL_WARNING, j,
            "its worker %d has a ledger of another version: its operators are not counted any more, and have no share of GPUs",
            j->pid);
    if (l && l->flight)
        ledger_unmap(l->flight);
    free(l);
}

const struct meters *job_meters(const struct job *j)
{
    return j->ledger ? ledger_meters(j->ledger->flight) : NULL;
}

const struct flight *job_flight(const struct job *j)
{
    return j->ledger ? j->ledger->flight : NULL;
}

/* ---- links ---- */

/* The name that the worker has written, if it is that of a node that this broker knows; otherwise "other". */
static const char *node_name(const struct broker *b, const char *address, char name[FCC_NODE_MAX])
{
    const struct node *n;

    memcpy(name, address, FCC_NODE_MAX); /* once: the worker may change it meanwhile */
    name[FCC_NODE_MAX - 1] = '\0';
    if (b->nodes)
        TAILQ_FOREACH(n, &b->nodes->list, link)
            if (!strcmp(n->address, name))
                return name;
    return "other";
}

static const char *transport_name(const char *text)
{
    char name[16];

    memcpy(name, text, sizeof(name));
    name[sizeof(name) - 1] = '\0';
    return !strcmp(name, "tcp") ? "tcp" : !strcmp(name, "verbs") ? "verbs" : "none";
}

static struct link_total *link_find(struct ledgers *ls, const char *node, const char *transport)
{
    for (unsigned i = 0; i < ls->nlinks; i++)
        if (ls->links[i].transport == transport && !strcmp(ls->links[i].node, node))
            return &ls->links[i];
    if (ls->nlinks < LINKS_MAX) {
        struct link_total *l = &ls->links[ls->nlinks++];
        text_copy(l->node, sizeof(l->node), node);
        l->transport = transport;
        return l;
    }
    /* the last place is for all others; a scrape shows it as soon as it counts */
    text_copy(ls->links[LINKS_MAX].node, sizeof(ls->links[LINKS_MAX].node), "other");
    ls->links[LINKS_MAX].transport = "other";
    ls->nlinks = LINKS_MAX + 1;
    return &ls->links[LINKS_MAX];
}

static void links_take(const struct broker *b, const struct meters *m, uint64_t last[METER_NODES][LINK_COUNTS])
{
    for (int i = 0; i < METER_NODES && *m->nodes[i].address; i++) {
        const struct meter_node *n = &m->nodes[i];
        const uint64_t *now[LINK_COUNTS] = {&n->bytes_out,   &n->bytes_in, &n->messages_out,
                                            &n->messages_in, &n->waits,    &n->lost};
        char name[FCC_NODE_MAX];
        struct link_total *t = NULL;
        for (int k = 0; k < LINK_COUNTS; k++) {
            uint64_t count = meter_get(now[k]);
            if (count <= last[i][k] || count > INT64_MAX)
                continue;
            if (!t)
                t = link_find(b->ledgers, node_name(b, n->address, name), transport_name(n->transport));
            t->n[k] = t->n[k] + (count - last[i][k]) > INT64_MAX ? INT64_MAX : t->n[k] + (count - last[i][k]);
            last[i][k] = count;
        }
    }
}

/* ---- counts ---- */

static void ledger_take(const struct broker *b, struct ledger *l)
{
    const struct meters *m = ledger_meters(l->flight);

    counters_take(&m->counters, &l->last, &b->ledgers->sum);
    links_take(b, m, l->links);
}

void ledgers_take(const struct broker *b)
{
    const struct job *j;

    LIST_FOREACH(j, &b->jobs, link)
        if (j->ledger)
            ledger_take(b, j->ledger);
}

void job_ledger_close(struct job *j)
{
    struct ledger *l = j->ledger;
    struct counters none;

    if (!l)
        return;
    job_share_close(j);
    memset(&none, 0, sizeof(none));
    j->ledger = NULL;
    ledger_take(j->broker, l);
    if (j->broker->ledgers->kept && !j->broker->leaving)
        counters_take(&l->last, &none, &j->broker->ledgers->kept->past);
    flight_keep(j, l->flight);
    free(l);
}
