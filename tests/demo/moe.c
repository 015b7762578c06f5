/* SPDX-License-Identifier: MIT
 *
 * moe.c - a mixture-of-experts layer, one expert on each rank. The router looks at the word, so frequent words make some
 * experts busier than others. The tokens lie at their experts already (the dispatch), sorted by the rank that owns them; the
 * expert's product and the way back to the owners (the combine) are the fused operator, with uneven counts.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/demo/demo.h"

#define SPARE_ROWS 8 /* of the result: nobody may write there */

/* A word's embedding: an integer of 9 bits for each dimension. */
static int word_value(const struct word *w, int64_t i)
{
    return (int)(hash_join(w->hash, (uint64_t)i) & 511) - 256;
}

/* A token is its word with something of the word before it; 11 bits, so that f16 holds it exactly. */
static void token_make(const struct text *t, int64_t token, int16_t *out)
{
    const struct word *w = text_word(t, token), *before = text_word(t, token + t->nwords - 1);

    for (int64_t i = 0; i < MOE_K; i++)
        out[i] = (int16_t)(3 * word_value(w, i) + word_value(before, i));
}

/* Top-1: the expert whose router vector fits the word best. */
static int route(const struct word *w)
{
    int best = 0;
    int64_t best_score = 0;

    for (int e = 0; e < DEMO_RANKS; e++) {
        int64_t score = 0;
        for (int64_t i = 0; i < MOE_K; i++)
            score += word_value(w, i) * (int64_t)((int)(hash_join(1000 + (uint64_t)e, (uint64_t)i) & 511) - 256);
        if (e == 0 || score > best_score) {
            best = e;
            best_score = score;
        }
    }
    return best;
}

int moe_make(const struct text *text, struct moe *out)
{
    static const int64_t owned[DEMO_RANKS] = {288, 480, 352, 416};
    const int64_t weights = (int64_t)DEMO_RANKS * MOE_K * MOE_N;

    *out = (struct moe){.tokens = malloc(sizeof(int16_t) * MOE_TOKENS * MOE_K),
                        .experts = malloc(sizeof(int16_t) * (size_t)weights)};
    if (!out->tokens || !out->experts)
        return -ENOMEM;
    for (int r = 0; r < DEMO_RANKS; r++) {
        out->first[r + 1] = out->first[r] + owned[r];
        out->most = owned[r] > out->most ? owned[r] : out->most;
    }
    for (int64_t i = 0; i < MOE_TOKENS; i++) {
        out->expert[i] = route(text_word(text, i));
        token_make(text, i, out->tokens + i * MOE_K);
    }
    for (int64_t i = 0; i < weights; i++)
        out->experts[i] = (int16_t)((int)(hash_mix((uint64_t)4 << 40 | (uint64_t)i) & 1023) - 512);
    return 0;
}

/* Tokens of `owner` that go to `expert`. */
static int64_t tokens_between(const struct moe *moe, int owner, int expert)
{
    int64_t n = 0;

    for (int64_t i = moe->first[owner]; i < moe->first[owner + 1]; i++)
        n += moe->expert[i] == expert;
    return n;
}

static void moe_describe(const struct demo *demo, char *out, size_t room)
{
    size_t used = (size_t)snprintf(out, room, "N %d, K %d, M", MOE_N, MOE_K);

    for (int e = 0; e < DEMO_RANKS && used < room; e++) {
        int64_t rows = 0;
        for (int p = 0; p < DEMO_RANKS; p++)
            rows += tokens_between(&demo->moe, p, e);
        used += (size_t)snprintf(out + used, room - used, "%s%d", e ? "/" : " ", (int)rows);
    }
}

static int64_t moe_rows(const struct demo *demo)
{
    return demo->moe.most + SPARE_ROWS;
}

static int64_t moe_elements(const struct demo *demo, int rank)
{
    (void)rank;
    return moe_rows(demo) * MOE_N;
}

/* The expert's input: its tokens of rank 0, then those of rank 1, ... */
static void gather_tokens(const struct moe *moe, int expert, fcc_buffer *a)
{
    uint16_t *to = fcc_buffer_data(a);

    for (int64_t token = 0; token < MOE_TOKENS; token++) {
        if (moe->expert[token] != expert)
            continue;
        for (int64_t i = 0; i < MOE_K; i++)
            *to++ = number_f16((float)moe->tokens[token * MOE_K + i] * (float)MOE_TOKEN_SCALE);
    }
}

static int moe_open(struct member *m)
{
    const struct moe *moe = &m->demo->moe;
    const int16_t *expert = moe->experts + (int64_t)m->rank * MOE_K * MOE_N;
    fcc_buffer *a, *b;
    int64_t rows = 0;
    uint16_t *to;
    int status;

    for (int p = 0; p < DEMO_RANKS; p++) {
        m->send_rows[p] = tokens_between(moe, p, m->rank);
        rows += m->send_rows[p];
    }
    if ((status = member_alloc(m, FCC_BUFFER_SYMMETRIC, demo_result_bytes(m->demo, DEMO_MOE), &m->out[DEMO_MOE])) ||
        (status = member_alloc(m, FCC_BUFFER_LOCAL, (size_t)rows * MOE_K * sizeof(uint16_t), &a)) ||
        (status = member_alloc(m, FCC_BUFFER_LOCAL, sizeof(uint16_t) * MOE_K * MOE_N, &b)))
        return status;
    gather_tokens(moe, m->rank, a);
    to = fcc_buffer_data(b);
    for (int64_t i = 0; i < (int64_t)MOE_K * MOE_N; i++)
        to[i] = number_f16((float)expert[i] * (float)MOE_EXPERT_SCALE);
    m->moe = (struct fcc_gemm_all_to_all_args){
        .a = fcc_tensor_2d(a, 0, FCC_F16, rows, MOE_K),
        .b = fcc_tensor_2d(b, 0, FCC_F16, MOE_K, MOE_N),
        .send_rows = m->send_rows,
        .c = fcc_tensor_2d(m->out[DEMO_MOE], 0, FCC_F16, moe_rows(m->demo), MOE_N),
        .recv_rows = m->recv_rows,
    };
    return 0;
}

static int moe_run(struct member *m, enum fcc_schedule_kind kind)
{
    int status;

    for (int e = 0; e < DEMO_RANKS; e++)
        m->recv_rows[e] = -1;
    m->moe.schedule = (uint32_t)kind;
    status = fcc_gemm_all_to_all(m->comm, &m->moe);
    for (int e = 0; e < DEMO_RANKS && status == 0; e++)
        m->report->wrong_counts[DEMO_MOE] += m->recv_rows[e] != tokens_between(&m->demo->moe, m->rank, e);
    return status;
}

/* Expert by expert, the tokens of the rank that went there. The rows beyond are nobody's. */
static int moe_expected(const struct demo *demo, int rank, double *out)
{
    const struct moe *moe = &demo->moe;
    int64_t row = 0;

    for (int e = 0; e < DEMO_RANKS; e++) {
        for (int64_t token = moe->first[rank]; token < moe->first[rank + 1]; token++) {
            if (moe->expert[token] == e)
                reference_row(moe->tokens + token * MOE_K, MOE_TOKEN_SCALE, moe->experts + (int64_t)e * MOE_K * MOE_N,
                              MOE_EXPERT_SCALE, MOE_K, MOE_N, out + row++ * MOE_N);
        }
    }
    for (int64_t i = row * MOE_N; i < moe_rows(demo) * MOE_N; i++)
        out[i] = (double)NAN;
    return 0;
}

const struct workload moe_workload = {
    .op = "gemm_all_to_all",
    .dtype = FCC_F16,
    .type = REFERENCE_F16,
    .describe = moe_describe,
    .elements = moe_elements,
    .open = moe_open,
    .run = moe_run,
    .expected = moe_expected,
};
