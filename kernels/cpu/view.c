/* SPDX-License-Identifier: MIT
 *
 * view.c - pieces of shared memory, side by side.
 *
 * mremap(2) with an old size of 0 maps the pages of a shared mapping once more. What is written through one mapping is in the
 * other at once: they are the same memory, and x86 and arm64 order accesses by physical address. (As far as the compiler and the
 * language know, a view and its pieces are different objects, so nobody uses both at a time: a view is for storing a slice, and who
 * reads what it stored does so after the flag that the slice raises.)
 */
#include "kernels/cpu/view.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/base/huge.h"
#include "proto/base/list.h"

#define VIEWS_KEPT 256 /* number of views that are kept, the most recently used; others are freed when unused */

struct view {
    LIST_ENTRY(view) link;
    unsigned char *data; /* address of the first piece in the view */
    unsigned char *mapped;
    size_t mapped_bytes;
    unsigned users;
    int n;
    struct view_piece pieces[];
};

struct views {
    pthread_mutex_t lock;
    LIST_HEAD(view_head, view) used; /* the most recently used first */
    int kept;
    size_t page;
};

struct views *views_new(void)
{
    struct views *v = calloc(1, sizeof(*v));

    if (!v)
        return NULL;
    (void)pthread_mutex_init(&v->lock, NULL);
    LIST_INIT(&v->used);
    v->page = (size_t)sysconf(_SC_PAGESIZE);
    return v;
}

static void view_drop(struct views *v, struct view *view)
{
    LIST_REMOVE(view, link);
    v->kept--;
    (void)munmap(view->mapped, view->mapped_bytes);
    free(view);
}

void views_free(struct views *v)
{
    struct view *view, *next;

    if (!v)
        return;
    LIST_FOREACH_SAFE(view, &v->used, link, next)
        view_drop(v, view);
    (void)pthread_mutex_destroy(&v->lock);
    free(v);
}

/* Whether the view consists of whole pages. Only its two ends may be inside a page. */
static bool fits_pages(const struct views *v, const struct view_piece pieces[], int n)
{
    for (int i = 0; i < n; i++)
        if ((i > 0 && (uintptr_t)pieces[i].at % v->page) ||
            (i < n - 1 && (uintptr_t)(pieces[i].at + pieces[i].bytes) % v->page))
            return false;
    return true;
}

/* Maps the pieces' pages one behind the other. Huge pages stay huge if their alignment is the same. */
static bool view_map(const struct views *v, struct view *view)
{
    size_t head = (uintptr_t)view->pieces[0].at % v->page, bytes = head, shift;
    unsigned char *place, *at;

    for (int i = 0; i < view->n; i++)
        bytes += view->pieces[i].bytes;
    bytes = (bytes + v->page - 1) / v->page * v->page;
    view->mapped_bytes = bytes + HUGE_BYTES;
    place = mmap(NULL, view->mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED)
        return false;
    shift = (uintptr_t)(view->pieces[0].at - head - (uintptr_t)place) % HUGE_BYTES;
    view->mapped = place;
    view->data = place + shift + head;
    at = place + shift;
    for (int i = 0; i < view->n; i++) {
        size_t before = (uintptr_t)view->pieces[i].at % v->page,
               size = (before + view->pieces[i].bytes + v->page - 1) / v->page * v->page;
        if (mremap(view->pieces[i].at - before, 0, size, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED) {
            (void)munmap(place, view->mapped_bytes);
            return false;
        }
        at += size;
    }
    return true;
}

/* Frees the least recently used view that is not in use. */
static void oldest_drop(struct views *v, const struct view *newest)
{
    struct view *view, *oldest = NULL;

    LIST_FOREACH(view, &v->used, link)
        if (view->users == 0 && view != newest)
            oldest = view;
    if (oldest)
        view_drop(v, oldest);
}

static struct view *view_make(struct views *v, const struct view_piece pieces[], int n)
{
    struct view *view;

    if (!fits_pages(v, pieces, n))
        return NULL;
    view = calloc(1, sizeof(*view) + (size_t)n * sizeof(pieces[0]));
    if (!view)
        return NULL;
    view->n = n;
    for (int i = 0; i < n; i++)
        view->pieces[i] = pieces[i];
    if (!view_map(v, view)) {
        free(view);
        return NULL;
    }
    LIST_INSERT_HEAD(&v->used, view, link);
    if (++v->kept > VIEWS_KEPT)
        oldest_drop(v, view);
    return view;
}

static bool is_of(const struct view *view, const struct view_piece pieces[], int n)
{
    if (view->n != n)
        return false;
    for (int i = 0; i < n; i++)
        if (view->pieces[i].at != pieces[i].at || view->pieces[i].bytes != pieces[i].bytes)
            return false;
    return true;
}

unsigned char *views_get(struct views *v, const struct view_piece pieces[], int n)
{
    struct view *view;

    (void)pthread_mutex_lock(&v->lock);
    LIST_FOREACH(view, &v->used, link)
        if (is_of(view, pieces, n))
            break;
    if (!view) {
        view = view_make(v, pieces, n);
    } else if (view != LIST_FIRST(&v->used)) {
        LIST_REMOVE(view, link);
        LIST_INSERT_HEAD(&v->used, view, link);
    }
    if (view)
        view->users++;
    (void)pthread_mutex_unlock(&v->lock);
    return view ? view->data : NULL;
}

void views_release(struct views *v, unsigned char *data)
{
    struct view *view;

    (void)pthread_mutex_lock(&v->lock);
    LIST_FOREACH(view, &v->used, link)
        if (view->data == data)
            break;
    if (view)
        view->users--;
    (void)pthread_mutex_unlock(&v->lock);
}

void views_forget(struct views *v, const void *memory, size_t bytes)
{
    uintptr_t from = (uintptr_t)memory, to = from + bytes;
    struct view *view, *next;

    (void)pthread_mutex_lock(&v->lock);
    for (view = LIST_FIRST(&v->used); view; view = next) {
        bool overlaps = false;
        next = LIST_NEXT(view, link);
        for (int i = 0; i < view->n; i++) {
            uintptr_t at = (uintptr_t)view->pieces[i].at;
            overlaps |= at < to && at + view->pieces[i].bytes > from;
        }
        if (overlaps)
            view_drop(v, view);
    }
    (void)pthread_mutex_unlock(&v->lock);
}
