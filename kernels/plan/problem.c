/* SPDX-License-Identifier: MIT
 *
 * problem.c - problems are made, begun, copied, compared and checked, whatever their operator.
 */
#include "kernels/plan/problem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/plan/program.h"

static size_t arrays_bytes(int nranks)
{
    return (size_t)nranks * (RANK_DIMS * sizeof(int64_t) + sizeof(int32_t));
}

struct problem *problem_new(int nranks)
{
    struct problem *p = calloc(1, sizeof(*p) + arrays_bytes(nranks));

    if (!p)
        return NULL;
    p->nranks = nranks;
    p->node = -1;
    for (int i = 0; i < RANK_DIMS; i++)
        p->rank_dim[i] = (int64_t *)(void *)(p + 1) + i * nranks;
    p->node_of = (int32_t *)(void *)(p->rank_dim[RANK_DIMS - 1] + nranks);
    return p;
}

void problem_free(struct problem *p)
{
    if (!p)
        return;
    free(p->counts);
    free(p->sent);
    free(p);
}

/* The vectors of all ranks here lie behind their pointers: all `to`, all `at`, all `from`. */
static size_t counts_bytes(const struct problem *p)
{
    return (size_t)p->nranks * sizeof(p->counts[0]) + 3 * p->here_bytes;
}

static int counts_alloc(struct problem *p)
{
    size_t n = (size_t)p->nranks, here = 0, i = 0;

    for (int r = 0; r < p->nranks; r++)
        here += problem_is_here(p, r);
    p->here_bytes = here * n * sizeof(int64_t);
    p->counts = calloc(1, counts_bytes(p));
    p->sent = calloc(2 * n, sizeof(p->sent[0]));
    if (!p->counts || !p->sent) {
        free(p->counts);
        free(p->sent);
        p->counts = NULL;
        p->sent = NULL;
        return -ENOMEM;
    }
    p->received = p->sent + n;
    int64_t *vectors = (int64_t *)(void *)(p->counts + n);
    for (int r = 0; r < p->nranks; r++) {
        if (!problem_is_here(p, r))
            continue;
        p->counts[r] =
            (struct rank_counts){.to = vectors + i * n, .at = vectors + (here + i) * n, .from = vectors + (2 * here + i) * n};
        i++;
    }
    return 0;
}

int problem_begin(struct problem *p, enum fcc_op op)
{
    p->op = op;
    p->dtype = FCC_F32;
    p->factors = 0;
    memset(&p->epilogue, 0, sizeof(p->epilogue));
    memset(p->dim, 0, sizeof(p->dim));
    memset(p->rank_dim[0], 0, (size_t)p->nranks * RANK_DIMS * sizeof(int64_t));
    if (!op_counts(op))
        return 0;
    if (!p->counts)
        return counts_alloc(p);
    memset(p->received, 0, (size_t)p->nranks * sizeof(p->received[0]));
    p->wrong = 0;
    return 0;
}

struct problem *problem_copy(const struct problem *p)
{
    struct problem *copy = problem_new(p->nranks);

    if (!copy)
        return NULL;
    copy->op = p->op;
    copy->dtype = p->dtype;
    copy->factors = p->factors;
    copy->epilogue = p->epilogue;
    copy->node = p->node;
    memcpy(copy->dim, p->dim, sizeof(p->dim));
    memcpy(copy + 1, p + 1, arrays_bytes(p->nranks));
    if (!op_counts(p->op))
        return copy;
    if (counts_alloc(copy)) {
        problem_free(copy);
        return NULL;
    }
    memcpy(copy->counts + p->nranks, p->counts + p->nranks, 3 * p->here_bytes);
    memcpy(copy->sent, p->sent, 2 * (size_t)p->nranks * sizeof(p->sent[0]));
    copy->wrong = p->wrong;
    copy->most = p->most;
    return copy;
}

size_t problem_bytes(const struct problem *p)
{
    size_t counts = p->counts ? counts_bytes(p) + 2 * (size_t)p->nranks * sizeof(p->sent[0]) : 0;

    return sizeof(*p) + arrays_bytes(p->nranks) + counts;
}

void problem_counts_set(struct problem *p, int rank, const int64_t to[])
{
    const struct rank_counts *own = &p->counts[rank];
    int64_t sent = 0;

    for (int q = 0; q < p->nranks; q++) {
        int64_t most = op_words(p->op)->counts_most - (sent > p->received[q] ? sent : p->received[q]);
        if ((to[q] < 0 || to[q] > most) && !p->wrong) {
            p->wrong = to[q];
            p->most = most;
        }
        if (own->to) {
            own->to[q] = to[q];
            own->at[q] = p->received[q];
        }
        if (p->counts[q].from)
            p->counts[q].from[rank] = to[q];
        p->received[q] += to[q];
        sent += to[q];
    }
    p->sent[rank] = sent;
}

/* If all ranks are here, `to` says it all. */
static bool counts_equal(const struct problem *a, const struct problem *b)
{
    size_t n = (size_t)a->nranks, bytes = a->here_bytes == n * n * sizeof(int64_t) ? a->here_bytes : 3 * a->here_bytes;

    return a->here_bytes == b->here_bytes && a->wrong == b->wrong && !memcmp(a->counts + n, b->counts + n, bytes) &&
           !memcmp(a->sent, b->sent, 2 * n * sizeof(a->sent[0]));
}

bool problem_equal(const struct problem *a, const struct problem *b)
{
    const struct problem_spec *words = op_words(a->op);
    size_t n = (size_t)a->nranks, bytes = n * sizeof(int64_t);
    bool equal = a->op == b->op && a->dtype == b->dtype && a->factors == b->factors &&
                 !memcmp(&a->epilogue, &b->epilogue, sizeof(a->epilogue)) && a->nranks == b->nranks &&
                 !memcmp(a->node_of, b->node_of, n * sizeof(a->node_of[0])) && !memcmp(a->dim, b->dim, sizeof(a->dim));

    for (int i = 0; equal && i < RANK_DIMS; i++)
        equal = !words->rank_dim[i].name || !memcmp(a->rank_dim[i], b->rank_dim[i], bytes);
    return equal && (!op_counts(a->op) || counts_equal(a, b));
}

static int word_check(const char *name, int64_t value, int64_t most, struct error *e)
{
    if (name && (value < 0 || value > most))
        return error_set(e, -EINVAL, "%s: %" PRId64 ": allowed are 0 to %" PRId64, name, value, most);
    return 0;
}

int problem_check(const struct problem *p, struct error *e)
{
    const struct problem_spec *words = op_words(p->op);
    int64_t rows = 0; /* of the ranks before */
    int status = 0;

    for (int i = 0; i < DIMS && status == 0; i++)
        status = word_check(words->dim[i].name, p->dim[i], words->dim[i].most, e);
    if (status == 0 && op_counts(p->op) && p->wrong)
        status = word_check(op_counts(p->op), p->wrong, p->most, e);
    for (int r = 0; r < p->nranks && status == 0; r++) {
        for (int i = 0; i < RANK_DIMS && status == 0; i++)
            status =
                word_check(words->rank_dim[i].name, p->rank_dim[i][r], words->rank_dim[i].most - (i == DIM_M ? rows : 0), e);
        rows += status == 0 ? p->rank_dim[DIM_M][r] : 0;
    }
    return status;
}
