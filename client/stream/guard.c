/* SPDX-License-Identifier: MIT
 *
 * guard.c - runs of bound programs that the ranks compare before they make them (kernels/gpu/bound.h, "Guarded steps"): a run of the communicator's rings
 * that moves nothing. Its header says which program the rank is about to run, and with which numbers. Where ranks differ, or one refuses, all of them hear
 * why, as of a collective, none of them runs the program, and the communicator goes on.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/core/request.h"
#include "client/stream/bound.h"
#include "client/stream/rings.h"

#define CALL ACCELERATOR_CALL

static_assert(GUARD_CAPTURED <= UINT16_MAX, "a header has 16 bits for it");

int guard_enqueue(struct fcc_comm *comm, uint32_t key, uint32_t numbers, const char *refusal, void *stream)
{
    struct gpu_collective what = {.op = FCC_PROGRAM_STEP,
                                  .in_share = VECTOR_ALL,
                                  .out_share = VECTOR_ALL,
                                  .element_bytes = 1,
                                  .rows = key,
                                  .numbers = numbers};
    const int status = status_of(comm);

    if (status)
        return prepared_over_explain(comm, status, "fcc_program_enqueue");
    if (refusal)
        text_copy(what.refusal, sizeof(what.refusal), *refusal ? refusal : "refused");
    return rings_task_enqueue(comm, &(struct rings_task){.collective = &what}, stream);
}

int prepared_guard(struct fcc_prepared *p, void *stream)
{
    struct error e = {.status = 0};
    int before = 0, status = accelerator_enter(p->comm->accelerator, &before);

    if (status)
        return status;
    (void)pthread_mutex_lock(&p->lock);
    if (p->functions->guard(p->gpu, p->comm->rings->gpu, stream, &e)) /* rings that are open stay */
        status = last_error_set(e.status, "rank %d: %s", p->comm->rank, e.text);
    (void)pthread_mutex_unlock(&p->lock);
    accelerator_leave(p->comm->accelerator, before);
    return status;
}

/* ---- what ranks hear ---- */

void guard_learn(struct fcc_comm *comm, uint32_t key, const char *text)
{
    const size_t line = strcspn(text, "\n");
    unsigned i;

    (void)pthread_mutex_lock(&comm->rings_lock);
    for (i = 0; i < GUARD_NAMES && comm->guarded[i].key != key; i++)
        continue;
    if (i == GUARD_NAMES) {
        i = comm->guarded_next++ % GUARD_NAMES;
        comm->guarded[i].key = key;
        (void)snprintf(comm->guarded[i].name, sizeof(comm->guarded[i].name), "%.*s", (int)line, text);
    }
    (void)pthread_mutex_unlock(&comm->rings_lock);
}

void guard_name(const struct fcc_comm *comm, uint32_t key, char text[GUARD_TEXT])
{
    (void)snprintf(text, GUARD_TEXT, "another program");
    for (unsigned i = 0; i < GUARD_NAMES; i++)
        if (comm->guarded[i].key == key)
            (void)snprintf(text, GUARD_TEXT, "%s", comm->guarded[i].name);
}

static const char *way_of(uint32_t numbers)
{
    return numbers == GUARD_CAPTURED ? "replays a graph" : "does not";
}

/* Two ranks' runs are of programs. */
static void other_text(const struct fcc_comm *comm, const struct rings_failure *f, char text[FCC_TEXT_MAX])
{
    const uint32_t theirs = (uint32_t)(f->theirs.what >> 32 & UINT16_MAX), mine = (uint32_t)(f->mine.what >> 32 & UINT16_MAX);
    char its[GUARD_TEXT], own[GUARD_TEXT];

    guard_name(comm, (uint32_t)f->theirs.own, its);
    guard_name(comm, (uint32_t)f->mine.own, own);
    if (f->theirs.own != f->mine.own)
        (void)snprintf(text, FCC_TEXT_MAX, "rank %u runs %s, rank %u runs %s", f->rank, its, f->by, own);
    else if (theirs == GUARD_CAPTURED || mine == GUARD_CAPTURED)
        (void)snprintf(text, FCC_TEXT_MAX, "%s: rank %u %s, rank %u %s: allowed is the same on all ranks", own, f->rank,
                       way_of(theirs), f->by, way_of(mine));
    else
        (void)snprintf(text, FCC_TEXT_MAX,
                       "%s: scalars: rank %u's have other values than rank %u's: allowed are the same on all ranks", own,
                       f->rank, f->by);
}

bool guard_failure_text(const struct fcc_comm *comm, const struct rings_failure *f, char text[FCC_TEXT_MAX])
{
    char own[GUARD_TEXT];

    if (f->why == RINGS_REFUSED) {
        guard_name(comm, (uint32_t)f->mine.own, own);
        (void)snprintf(text, FCC_TEXT_MAX, "rank %u: %s: %.*s", f->by, own, RINGS_TEXT - 1, f->text);
        return true;
    }
    if (f->why != RINGS_OTHER || (f->theirs.what >> 24 & 0xff) != FCC_PROGRAM_STEP)
        return false;
    other_text(comm, f, text);
    return true;
}
