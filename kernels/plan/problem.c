/* SPDX-License-Identifier: MIT
 *
 * problem.c - problems are begun, compared and checked, whatever their operator.
 */
#include "kernels/plan/problem.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "kernels/plan/program.h"

void problem_begin(struct problem *p, enum fcc_op op, int nranks)
{
    size_t bytes = (size_t)nranks * sizeof(int64_t);

    p->op = op;
    p->dtype = FCC_F32;
    p->nranks = nranks;
    memset(p->dim, 0, sizeof(p->dim));
    for (int i = 0; i < RANK_DIMS; i++)
        memset(p->rank_dim[i], 0, bytes);
}

bool problem_equal(const struct problem *a, const struct problem *b)
{
    const struct problem_spec *words = op_words(a->op);
    const bool counts = op_counts(a->op);
    size_t n = (size_t)a->nranks, bytes = n * sizeof(int64_t);
    bool equal = a->op == b->op && a->dtype == b->dtype && a->nranks == b->nranks &&
                 !memcmp(a->node_of, b->node_of, n * sizeof(a->node_of[0])) && !memcmp(a->dim, b->dim, sizeof(a->dim));

    for (int i = 0; equal && i < RANK_DIMS; i++)
        equal = !words->rank_dim[i].name || !memcmp(a->rank_dim[i], b->rank_dim[i], bytes);
    for (int r = 0; equal && counts && r < a->nranks; r++)
        equal = !memcmp(a->counts[r], b->counts[r], bytes);
    return equal;
}

static int word_check(const char *name, int64_t value, int64_t most, struct error *e)
{
    if (name && (value < 0 || value > most))
        return error_set(e, -EINVAL, "%s: %" PRId64 ": allowed are 0 to %" PRId64, name, value, most);
    return 0;
}

/* What rank r sends, and what it gets. */
static int counts_check_of(const struct problem *p, const char *name, int r, struct error *e)
{
    int64_t sent = 0, received = 0;
    int status = 0;

    for (int q = 0; q < p->nranks && status == 0; q++) {
        status = word_check(name, p->counts[r][q], INT32_MAX - sent, e);
        if (status == 0)
            status = word_check(name, p->counts[q][r], INT32_MAX - received, e);
        sent += status == 0 ? p->counts[r][q] : 0;
        received += status == 0 ? p->counts[q][r] : 0;
    }
    return status;
}

int problem_check(const struct problem *p, struct error *e)
{
    const struct problem_spec *words = op_words(p->op);
    int64_t rows = 0; /* of the ranks before */
    int status = 0;

    for (int i = 0; i < DIMS && status == 0; i++)
        status = word_check(words->dim[i].name, p->dim[i], words->dim[i].most, e);
    for (int r = 0; r < p->nranks && status == 0; r++) {
        for (int i = 0; i < RANK_DIMS && status == 0; i++)
            status =
                word_check(words->rank_dim[i].name, p->rank_dim[i][r], words->rank_dim[i].most - (i == DIM_M ? rows : 0), e);
        if (status == 0 && op_counts(p->op))
            status = counts_check_of(p, op_counts(p->op), r, e);
        rows += status == 0 ? p->rank_dim[DIM_M][r] : 0;
    }
    return status;
}
