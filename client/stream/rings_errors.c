/* SPDX-License-Identifier: MIT
 *
 * rings_errors.c - what a rank hears of runs through rings that ranks have given up (struct rings_failure), in words; and of the end.
 */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "client/core/request.h"
#include "client/stream/bags.h"
#include "client/stream/bound.h"
#include "client/stream/counts.h"
#include "client/stream/rings.h"
#include "kernels/plan/compute/vector.h"

/* ---- errors of runs ---- */

/* Whether its runs are those that ranks compare in front of a program (guard.c). */
static bool op_is_guarded(const struct op_spec *op)
{
    return op && op->compute == COMPUTE_STEP;
}

/* What rank `rank` was about to do, by its header. */
static void what_text(const struct fcc_comm *comm, const struct rings_header *h, char text[160])
{
    const unsigned op = (unsigned)(h->what >> 24 & 0xff), dtype = (unsigned)(h->what >> 16 & 0xff);

    if (op_is_guarded(op_spec(op))) {
        char name[GUARD_TEXT];
        guard_name(comm, (uint32_t)h->own, name);
        (void)snprintf(text, 160, "%s", name);
        return;
    }
    (void)snprintf(text, 160, "%s of %s", op_spec(op) ? op_spec(op)->name : "another operator",
                   dtype ? dtype_name((enum fcc_dtype)dtype) : "nothing");
}

static const char *whole_name(const struct op_spec *op)
{
    return op->tensors[op->in == VECTOR_ALL || op->in == VECTOR_ROOT ? FCC_VECTOR_IN : FCC_VECTOR_OUT].name;
}

/* Two ranks that differ both say so. The lower rank's words are used, whichever of the two has been heard. */
static struct rings_failure seen_by_lower(const struct rings_failure *f)
{
    struct rings_failure seen = *f;

    if (f->why != RINGS_OTHER || f->rank > f->by)
        return seen;
    seen.rank = f->by;
    seen.by = f->rank;
    seen.theirs = f->mine;
    seen.mine = f->theirs;
    return seen;
}

/* Where two ranks differ, the first thing in which they do. */
static void other_text(const struct fcc_comm *comm, const struct rings_failure *f, const struct op_spec *op,
                       char text[FCC_TEXT_MAX])
{
    const uint64_t a = f->theirs.what, b = f->mine.what;
    const struct {
        const char *name;
        unsigned at;
    } fields[] = {{"reduction", 8}, {"root", 0}};
    char theirs[160], mine[160];

    what_text(comm, &f->theirs, theirs);
    what_text(comm, &f->mine, mine);
    if ((a >> 24 & 0xff) != (b >> 24 & 0xff))
        (void)snprintf(text, FCC_TEXT_MAX, "rank %u called %s, rank %u called %s", f->rank, theirs, f->by, mine);
    else if (op_is_product(op) || (op->epilogue && ((a | b) & 0xff)))
        product_other_text(f, op, text);
    else if (a >> 16 != b >> 16)
        (void)snprintf(text, FCC_TEXT_MAX, "dtype: rank %u has %s, rank %u has %s", f->rank,
                       dtype_name((enum fcc_dtype)(a >> 16 & 0xff)), f->by, dtype_name((enum fcc_dtype)(b >> 16 & 0xff)));
    else if (a == b && op->in == VECTOR_COUNTED)
        (void)snprintf(text, FCC_TEXT_MAX, "row_elements: rank %u has %" PRIu64 ", rank %u has %" PRIu64, f->rank,
                       f->theirs.whole, f->by, f->mine.whole);
    else if (a == b)
        (void)snprintf(text, FCC_TEXT_MAX, "%s: rank %u has %" PRIu64 " elements, rank %u's %s has %" PRIu64, whole_name(op),
                       f->rank, f->theirs.whole, f->by, whole_name(op), f->mine.whole);
    else if (a >> 8 != b >> 8)
        (void)snprintf(text, FCC_TEXT_MAX, "%s: rank %u has %s, rank %u has %s", fields[0].name, f->rank,
                       reduction_name((int64_t)(a >> 8 & 0xff)), f->by, reduction_name((int64_t)(b >> 8 & 0xff)));
    else
        (void)snprintf(text, FCC_TEXT_MAX, "%s: rank %u has %u, rank %u has %u", fields[1].name, f->rank, (unsigned)(a & 0xff),
                       f->by, (unsigned)(b & 0xff));
}

/* Returns the status. */
static int failure_text(const struct fcc_comm *comm, const struct rings_failure *f, const struct op_spec *op,
                        char text[FCC_TEXT_MAX])
{
    int status = 0;

    if (op->compute == COMPUTE_BAG && bags_failure_text(f, text, &status))
        return status;
    switch (f->why) {
    case RINGS_OTHER:
        other_text(comm, f, op, text);
        return -EINVAL;
    case RINGS_SUM:
        if (op_is_in_pieces(op)) {
            (void)snprintf(text, FCC_TEXT_MAX, "a: the ranks' have %" PRIu64 " elements together, c's rows need %" PRIu64,
                           f->theirs.own, f->mine.whole);
            return -EINVAL;
        }
        (void)snprintf(text, FCC_TEXT_MAX, "%s: the ranks' have %" PRIu64 " elements together, %s has %" PRIu64,
                       op->tensors[op->in == VECTOR_OWN ? FCC_VECTOR_IN : FCC_VECTOR_OUT].name, f->theirs.own, whole_name(op),
                       f->mine.whole);
        return -EINVAL;
    case RINGS_COUNT:
        (void)snprintf(text, FCC_TEXT_MAX, "%s: rank %u sends %" PRIu64 " %s to rank %u, which expects %" PRIu64,
                       op_is_product(op) ? op->values_name : "expected_counts", f->rank, f->theirs.own,
                       op_is_product(op) ? "rows" : "elements", f->by, f->mine.own);
        return -EINVAL;
    case RINGS_ROOM:
        (void)snprintf(text, FCC_TEXT_MAX, "%s: rank %u receives %" PRIu64 " %s, its %s has %" PRIu64,
                       op->tensors[op->result].name, f->by, f->theirs.own, op_is_product(op) ? "rows" : "elements",
                       op->tensors[op->result].name, f->mine.own);
        return -EINVAL;
    case RINGS_PLACE:
        (void)snprintf(text, FCC_TEXT_MAX,
                       "in: rank %u: overlaps out: allowed is in place: in begins %" PRIu64 " elements %s out, not %" PRIu64,
                       f->by, f->theirs.own, op->in == VECTOR_OWN ? "after the begin of" : "before", f->mine.own);
        return -EINVAL;
    case RINGS_REFUSED:
        (void)snprintf(text, FCC_TEXT_MAX, "%.*s", RINGS_TEXT - 1, f->text);
        return -EINVAL;
    case RINGS_SENDS:
        counts_wrong_text(op, (int64_t)f->mine.own, f->rank, (int64_t)f->mine.whole, text);
        return -EINVAL;
    default:
        (void)snprintf(text, FCC_TEXT_MAX,
                       "another collective or product of the communicator was under way on this rank's GPU: streams and graphs "
                       "must order them, and the communicator has ended");
        return -EBUSY;
    }
}

/* The newest run that was given up; 0: none. */
static uint64_t failed_run(const struct fcc_comm *comm)
{
    return atomic_load_explicit(&comm->rings->words->until, memory_order_acquire);
}

/* Whether rank r's finding is not reported: a refusal goes before what other ranks find because of it. */
static bool is_aside(const struct fcc_comm *comm, const struct rings_failure found[], int r, uint64_t run)
{
    for (int other = 0; other < comm->nranks; other++)
        if (found[other].run == run && found[other].why == RINGS_REFUSED)
            return other != r;
    return false;
}

/* The newest run up to `until` that ranks have given up and that the program has not heard of; 0: there is none. This rank's own refusal was
 * returned by the call that made it, so the program hears nothing more of that run, but of an older one. */
static uint64_t run_to_report(const struct fcc_comm *comm, const struct rings_failure found[], uint64_t until)
{
    const struct rings_failure *own = &found[comm->rank];
    uint64_t newest = 0;

    for (int r = 0; r < comm->nranks; r++)
        if (found[r].run <= until && found[r].run > comm->rings_reported && found[r].run > newest &&
            !(own->why == RINGS_REFUSED && own->run == found[r].run))
            newest = found[r].run;
    return newest;
}

/* The newest run that this rank's failure epoch names; UINT64_MAX: the communicator's end has ended runs. 0 also if the GPU does not answer. */
static uint64_t failure_epoch(const struct fcc_comm *comm)
{
    const uint64_t at = comm->rings->areas[comm->rank].address + GPU_PREPARED_FAILURE_AT;
    uint64_t failed = 0;

    return accelerator_copy_out(comm->accelerator, &failed, at, sizeof(failed)) ? 0 : failed;
}

/* A run may have ended here before another rank gave it up, or may have come when the communicator was over: the failure epoch says so, but no
 * kernel has told the host. */
void rings_ask(struct fcc_comm *comm)
{
    (void)pthread_mutex_lock(&comm->rings_lock);
    const uint64_t failed = comm->rings ? failure_epoch(comm) : 0;
    if (failed == UINT64_MAX)
        comm->rings_over = true;
    else if (comm->rings && failed > failed_run(comm))
        atomic_store_explicit(&comm->rings->words->until, failed, memory_order_release);
    (void)pthread_mutex_unlock(&comm->rings_lock);
}

/* Why ranks gave this run up becomes the last error. Returns its status. */
static int run_explain(const struct fcc_comm *comm, struct rings_failure found[], uint64_t run)
{
    char text[FCC_TEXT_MAX], clean[RINGS_TEXT];
    int status = 0;

    for (int r = 0; r < comm->nranks && run && !status; r++) {
        struct rings_failure f = seen_by_lower(&found[r]);
        const struct op_spec *op = op_spec((unsigned)(f.mine.what >> 24 & 0xff));
        if (f.run != run || !op || !(op_has_rings(op) || op_is_guarded(op)) || is_aside(comm, found, r, run))
            continue;
        if (f.why != RINGS_DATA) {
            text_copy(clean, sizeof(clean), f.text);
            memcpy(f.text, clean, sizeof(clean));
            (void)text_clean(f.text);
        }
        status = failure_text(comm, &f, op, text);
        if (op_is_guarded(op) && guard_failure_text(comm, &f, text))
            status = last_error_set(status, "%.480s", text);
        else if (f.why == RINGS_REFUSED || f.why == RINGS_SENDS || f.why == RINGS_TWICE || f.why == RINGS_DATA)
            status = last_error_set(status, "rank %u: %s: %.400s", f.by, op->name, text);
        else /* in the worker's words */
            status = last_error_set(status, "%s: %.400s", op->name, text);
    }
    return status;
}

/* rings_lock held. The first error of a run that the program has not heard of becomes the last error. Returns its status. */
static int run_error_take(struct fcc_comm *comm)
{
    const uint64_t until = failed_run(comm), at = comm->rings->areas[comm->rank].address + GPU_PREPARED_SLOTS_AT;
    struct rings_failure found[RINGS_RANKS];
    int status;

    if (until == comm->rings_reported)
        return 0;
    status = accelerator_copy_out(comm->accelerator, found, at + offsetof(struct rings_head, failure), sizeof(found));
    if (!status)
        status = run_explain(comm, found, run_to_report(comm, found, until));
    comm->rings_over |= failure_epoch(comm) == UINT64_MAX;
    comm->rings_reported = until;
    return status;
}

/* Runs that the communicator's end has ended have no other error than that, which is reported once. */
int rings_error(struct fcc_comm *comm)
{
    (void)pthread_mutex_lock(&comm->rings_lock);
    const int status = comm->rings ? run_error_take(comm) : 0;
    const bool over = !status && comm->rings_over && !comm->rings_over_told;
    comm->rings_over_told |= over;
    (void)pthread_mutex_unlock(&comm->rings_lock);
    return over ? prepared_over_explain(comm, -ECONNABORTED, "fcc_comm_error") : status;
}

void rings_error_pass(struct fcc_comm *comm)
{
    (void)pthread_mutex_lock(&comm->rings_lock);
    if (comm->rings)
        (void)run_error_take(comm);
    (void)pthread_mutex_unlock(&comm->rings_lock);
}

void rings_error_keep(struct fcc_comm *comm)
{
    struct fcc_context *c = comm->context;
    const int status = run_error_take(comm);

    (void)pthread_mutex_lock(&c->lock);
    if (status && !comm->error.status) {
        (void)error_set(&comm->error, status, "%s", fcc_last_error());
        comm->error_id = c->last_id;
    }
    (void)pthread_mutex_unlock(&c->lock);
}

/* ---- the end ---- */

void rings_leave(struct fcc_comm *comm)
{
    uint64_t begun = 0, products = 0;

    if (!comm->rings)
        return;
    const uint64_t area = comm->rings->areas[comm->rank].address;
    struct fcc_binding *words = comm->rings->words;
    if (accelerator_copy_out(comm->accelerator, &begun, area + GPU_PREPARED_SLOTS_AT + offsetof(struct rings_head, begun),
                             sizeof(begun)) ||
        accelerator_copy_out(comm->accelerator, &products, area + GPU_FLAG_RUN * sizeof(uint64_t), sizeof(products)))
        return; /* the GPU is lost, which the worker sees */
    const uint32_t run = (uint32_t)(begun / RINGS_UNITS + products);
    atomic_store_explicit(&words->begun, run, memory_order_relaxed);
    atomic_store_explicit(&words->ended, run, memory_order_relaxed);
}
