/* SPDX-License-Identifier: MIT */
#include "client/device/graphs.h"

#include <errno.h>
#include <stdlib.h>

#define CALL ACCELERATOR_CALL

/* Something that graphs may still use. */
struct held {
    SLIST_ENTRY(held) link; /* graphs.held */
    void (*end)(void *argument, const struct accelerator *a);
    void *argument;
    struct accelerator_memory memory; /* if there is no end() */
};

SLIST_HEAD(helds, held);

struct graphs {
    LIST_ENTRY(graphs) link; /* all. lock */
    _Atomic int alive;      /* number of captures whose graphs are not gone. A graph's last access to this struct counts down */
    unsigned users;         /* the communicator, until it is gone, and buffers that lead here. lock */
    struct accelerator gpu; /* a copy that outlives the communicator's, with the primary context retained once more */
    struct helds held;      /* lock */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, graphs) all = LIST_HEAD_INITIALIZER(all); /* lock */

void graphs_forked(void)
{
    (void)pthread_mutex_init(&lock, NULL);
    LIST_INIT(&all);
}

int graphs_open(const struct accelerator *a, struct graphs **out)
{
    struct graphs *g = calloc(1, sizeof(*g));
    int status;

    if (!g)
        return last_error_set(-ENOMEM, "%s GPU %d: out of memory", a->driver->name, a->number);
    g->users = 1;
    g->gpu = (struct accelerator){
        .driver = a->driver, .number = a->number, .ordinal = a->ordinal, .device = a->device, .uuid = a->uuid};
    status = CALL(a, context_retain, &g->gpu.context, a->device);
    if (status) {
        free(g);
        return status;
    }
    (void)pthread_mutex_lock(&lock);
    LIST_INSERT_HEAD(&all, g, link);
    (void)pthread_mutex_unlock(&lock);
    *out = g;
    return 0;
}

/* Called by the driver, on any thread, under locks of its own. The release orders whatever the graph was used for before what
 * graphs_look() frees. */
static void graph_gone(void *argument)
{
    struct graphs *g = argument;

    (void)atomic_fetch_sub_explicit(&g->alive, 1, memory_order_release);
}

int graphs_retain(struct graphs *g, void *graph)
{
    const struct accelerator *a = &g->gpu;
    void *object;
    int status = CALL(a, object_create, &object, g, graph_gone, 1, DRIVER_OBJECT_UNSYNCHRONIZED);

    if (status)
        return status;
    (void)atomic_fetch_add_explicit(&g->alive, 1, memory_order_relaxed);
    status = CALL(a, graph_retain, graph, object, 1, DRIVER_OBJECT_MOVE);
    if (status)
        (void)a->driver->object_release(object, 1); /* graph_gone() */
    return status;
}

/* lock held */
static bool is_used(struct graphs *g)
{
    return atomic_load_explicit(&g->alive, memory_order_acquire) > 0;
}

static bool hold(struct graphs *g, const struct held *what)
{
    struct held *h;
    bool yes;

    if (!g)
        return false;
    (void)pthread_mutex_lock(&lock);
    yes = is_used(g);
    h = yes ? malloc(sizeof(*h)) : NULL;
    if (h) { /* otherwise, without memory, it stays for ever */
        *h = *what;
        SLIST_INSERT_HEAD(&g->held, h, link);
    }
    (void)pthread_mutex_unlock(&lock);
    return yes;
}

bool graphs_hold(struct graphs *g, void (*end)(void *argument, const struct accelerator *a), void *argument)
{
    return hold(g, &(struct held){.end = end, .argument = argument});
}

bool graphs_hold_memory(struct graphs *g, const struct accelerator_memory *m)
{
    return hold(g, &(struct held){.memory = *m});
}

/* lock held, also while the driver is called: graph_gone() does not take it. */
static void held_end(struct graphs *g)
{
    struct held *h;

    while ((h = SLIST_FIRST(&g->held))) {
        SLIST_REMOVE_HEAD(&g->held, link);
        if (h->end)
            h->end(h->argument, &g->gpu);
        else
            accelerator_unmap(&g->gpu, &h->memory);
        free(h);
    }
}

void graphs_look(void)
{
    struct graphs *g, *next;

    (void)pthread_mutex_lock(&lock);
    LIST_FOREACH_SAFE(g, &all, link, next) {
        if (is_used(g))
            continue;
        held_end(g);
        if (g->users)
            continue;
        LIST_REMOVE(g, link);
        (void)g->gpu.driver->context_release(g->gpu.device);
        free(g);
    }
    (void)pthread_mutex_unlock(&lock);
}

void graphs_share(struct graphs *g)
{
    (void)pthread_mutex_lock(&lock);
    g->users++;
    (void)pthread_mutex_unlock(&lock);
}

void graphs_put(struct graphs *g)
{
    if (!g)
        return;
    (void)pthread_mutex_lock(&lock);
    g->users--;
    (void)pthread_mutex_unlock(&lock);
}

void graphs_leave(struct graphs *g)
{
    graphs_put(g);
    if (g)
        graphs_look();
}
