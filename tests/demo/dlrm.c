/* SPDX-License-Identifier: MIT
 *
 * dlrm.c - the embedding layer of a recommendation model. A sample is a window of the text; its categorical features are what
 * can be said of the window's words, and each feature has a table of its own. Words being what they are, a few rows are read
 * very often; bags have any length, also none (most windows have no number). The tables are spread over the ranks unevenly.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/demo/demo.h"

#define FEATURE_MAX 32 /* ids that one word may add to a bag */
#define WINDOW_MIN 4
#define WINDOW_MAX 28

/* A feature: the hashes that the i-th word has for it. Returns their number. */
typedef int feature_fn(const struct text *t, int64_t i, uint64_t out[FEATURE_MAX]);

static uint64_t part_hash(const unsigned char *bytes, uint32_t length)
{
    uint64_t hash = 0;

    for (uint32_t i = 0; i < length; i++)
        hash = hash_join(hash, (uint64_t)tolower(bytes[i]));
    return hash;
}

static int feature_word(const struct text *t, int64_t i, uint64_t out[FEATURE_MAX])
{
    out[0] = text_word(t, i)->hash;
    return 1;
}

static int feature_bigram(const struct text *t, int64_t i, uint64_t out[FEATURE_MAX])
{
    out[0] = hash_join(text_word(t, i)->hash, text_word(t, i + 1)->hash);
    return 1;
}

static int feature_trigram(const struct text *t, int64_t i, uint64_t out[FEATURE_MAX])
{
    (void)feature_bigram(t, i, out);
    out[0] = hash_join(out[0], text_word(t, i + 2)->hash);
    return 1;
}

static int feature_skip(const struct text *t, int64_t i, uint64_t out[FEATURE_MAX])
{
    out[0] = hash_join(text_word(t, i)->hash, text_word(t, i + 2)->hash);
    return 1;
}

static int feature_prefix(const struct text *t, int64_t i, uint64_t out[FEATURE_MAX])
{
    const struct word *w = text_word(t, i);

    out[0] = part_hash(w->bytes, w->length < 3 ? w->length : 3);
    return 1;
}

static int feature_suffix(const struct text *t, int64_t i, uint64_t out[FEATURE_MAX])
{
    const struct word *w = text_word(t, i);
    uint32_t n = w->length < 3 ? w->length : 3;

    out[0] = part_hash(w->bytes + w->length - n, n);
    return 1;
}

static int feature_letters(const struct text *t, int64_t i, uint64_t out[FEATURE_MAX])
{
    const struct word *w = text_word(t, i);
    int n = 0;

    for (uint32_t at = 0; at + 3 <= w->length && n < FEATURE_MAX; at++)
        out[n++] = part_hash(w->bytes + at, 3);
    return n;
}

static int feature_length(const struct text *t, int64_t i, uint64_t out[FEATURE_MAX])
{
    out[0] = text_word(t, i)->length;
    return 1;
}

static int feature_initial(const struct text *t, int64_t i, uint64_t out[FEATURE_MAX])
{
    out[0] = (uint64_t)tolower(text_word(t, i)->bytes[0]);
    return 1;
}

static int feature_number(const struct text *t, int64_t i, uint64_t out[FEATURE_MAX])
{
    const struct word *w = text_word(t, i);

    out[0] = w->hash;
    return isdigit(w->bytes[0]) ? 1 : 0;
}

/* Which of the first two and the last letter are capitals. */
static int feature_shape(const struct text *t, int64_t i, uint64_t out[FEATURE_MAX])
{
    const struct word *w = text_word(t, i);

    out[0] = (isupper(w->bytes[0]) ? 1u : 0u) + (isupper(w->bytes[w->length > 1]) ? 2u : 0u) +
             (isupper(w->bytes[w->length - 1]) ? 4u : 0u);
    return 1;
}

/* The tables of each rank. */
struct layout {
    bool mean, weighted, wide;
    struct {
        feature_fn *feature;
        int64_t rows;
    } tables[DLRM_MAX_TABLES];
};

static const struct layout layouts[DEMO_RANKS] = {
    {.wide = true, .tables = {{feature_word, 30011}, {feature_bigram, 60013}, {feature_length, 32}}},
    {.mean = true, .tables = {{feature_trigram, 80021}, {feature_prefix, 4099}}},
    {.wide = true,
     .weighted = true,
     .tables = {{feature_suffix, 3089}, {feature_skip, 50021}, {feature_initial, 256}, {feature_shape, 8}}},
    {.mean = true, .tables = {{feature_number, 257}, {feature_letters, 8209}}},
};

static int64_t window_first(const struct text *t, int64_t sample)
{
    return sample * t->nwords / DLRM_BATCH;
}

static int64_t window_words(int64_t sample)
{
    return WINDOW_MIN + (int64_t)(hash_mix((uint64_t)sample) % (WINDOW_MAX - WINDOW_MIN + 1));
}

/* Ids of one window's words, appended to the rank's. Of the words of a window the later ones weigh less. */
static void window_add(const struct text *t, const struct layout *l, int table, int64_t sample, struct dlrm_rank *r)
{
    int64_t first = window_first(t, sample), words = window_words(sample);
    uint64_t hashes[FEATURE_MAX];

    for (int64_t i = 0; i < words; i++) {
        int n = l->tables[table].feature(t, first + i, hashes);
        for (int j = 0; j < n; j++) {
            if (r->weights)
                r->weights[r->nnz] = 1.0f / (float)(1 + i);
            r->ids[r->nnz++] = (int64_t)(hashes[j] % (uint64_t)r->rows[table]);
        }
    }
}

/* Room for the most ids that a rank's bags can have. */
static int64_t ids_most(const struct text *t, const struct layout *l, int ntables)
{
    uint64_t hashes[FEATURE_MAX];
    int64_t most = 0;

    for (int table = 0; table < ntables; table++)
        for (int64_t s = 0; s < DLRM_BATCH; s++)
            for (int64_t i = 0; i < window_words(s); i++)
                most += l->tables[table].feature(t, window_first(t, s) + i, hashes);
    return most;
}

static int rank_make(const struct text *t, int rank, struct dlrm_rank *r)
{
    const struct layout *l = &layouts[rank];

    *r = (struct dlrm_rank){.mean = l->mean, .weighted = l->weighted, .wide = l->wide};
    for (; r->ntables < DLRM_MAX_TABLES && l->tables[r->ntables].feature; r->ntables++) {
        r->rows[r->ntables] = l->tables[r->ntables].rows;
        r->total_rows += r->rows[r->ntables];
    }
    int64_t most = ids_most(t, l, r->ntables);
    r->tables = r->total_rows > 0 ? malloc((size_t)r->total_rows * DLRM_DIM * sizeof(float)) : NULL;
    r->ids = malloc((size_t)(most + 1) * sizeof(int64_t));
    r->offsets = malloc(((size_t)r->ntables * DLRM_BATCH + 1) * sizeof(int64_t));
    r->weights = l->weighted ? malloc((size_t)(most + 1) * sizeof(float)) : NULL;
    if (!r->tables || !r->ids || !r->offsets || (l->weighted && !r->weights))
        return -ENOMEM;
    for (int64_t i = 0; i < r->total_rows * DLRM_DIM; i++)
        r->tables[i] = (float)(int16_t)hash_mix((uint64_t)rank << 40 | (uint64_t)i) * 0x1p-15f;
    for (int table = 0; table < r->ntables; table++) {
        for (int64_t s = 0; s < DLRM_BATCH; s++) {
            r->offsets[(int64_t)table * DLRM_BATCH + s] = r->nnz;
            window_add(t, l, table, s, r);
        }
    }
    r->offsets[(int64_t)r->ntables * DLRM_BATCH] = r->nnz;
    return 0;
}

int dlrm_make(const struct text *text, struct dlrm *out)
{
    static const int64_t percent[DEMO_RANKS - 1] = {19, 31, 23};

    *out = (struct dlrm){.split[DEMO_RANKS - 1] = DLRM_BATCH};
    for (int r = 0; r < DEMO_RANKS; r++) {
        if (r < DEMO_RANKS - 1) {
            out->split[r] = DLRM_BATCH * percent[r] / 100;
            out->split[DEMO_RANKS - 1] -= out->split[r];
        }
        if (rank_make(text, r, &out->ranks[r]))
            return -ENOMEM;
        out->total_tables += out->ranks[r].ntables;
    }
    return 0;
}

static void dlrm_describe(const struct demo *demo, char *out, size_t room)
{
    (void)snprintf(out, room, "%d tables, batch %d, dim %d", demo->dlrm.total_tables, DLRM_BATCH, DLRM_DIM);
}

static int64_t dlrm_elements(const struct demo *demo, int rank)
{
    return demo->dlrm.split[rank] * demo->dlrm.total_tables * DLRM_DIM;
}

static void ids_store(const int64_t *ids, int64_t n, bool wide, fcc_buffer *buffer)
{
    int32_t *narrow = fcc_buffer_data(buffer);

    if (wide) {
        memcpy(fcc_buffer_data(buffer), ids, (size_t)n * sizeof(*ids));
        return;
    }
    for (int64_t i = 0; i < n; i++)
        narrow[i] = (int32_t)ids[i];
}

static int dlrm_open(struct member *m)
{
    const struct dlrm *d = &m->demo->dlrm;
    const struct dlrm_rank *r = &d->ranks[m->rank];
    enum fcc_dtype id_type = r->wide ? FCC_I64 : FCC_I32;
    int64_t noffsets = (int64_t)r->ntables * DLRM_BATCH + 1;
    size_t table_bytes = (size_t)r->total_rows * DLRM_DIM * sizeof(float), id_size = fcc_dtype_size(id_type);
    fcc_buffer *tables, *ids, *offsets, *weights = NULL;
    int status;

    if ((status = member_alloc(m, FCC_BUFFER_SYMMETRIC, demo_result_bytes(m->demo, DEMO_DLRM), &m->out[DEMO_DLRM])) ||
        (status = member_alloc(m, FCC_BUFFER_LOCAL, table_bytes, &tables)) ||
        (status = member_alloc(m, FCC_BUFFER_LOCAL, (size_t)r->nnz * id_size, &ids)) ||
        (status = member_alloc(m, FCC_BUFFER_LOCAL, (size_t)noffsets * id_size, &offsets)))
        return status;
    if (r->weighted && (status = member_alloc(m, FCC_BUFFER_LOCAL, (size_t)r->nnz * sizeof(float), &weights)))
        return status;
    memcpy(fcc_buffer_data(tables), r->tables, table_bytes);
    ids_store(r->ids, r->nnz, r->wide, ids);
    ids_store(r->offsets, noffsets, r->wide, offsets);
    if (weights)
        memcpy(fcc_buffer_data(weights), r->weights, (size_t)r->nnz * sizeof(float));
    m->dlrm = (struct fcc_embedding_all_to_all_args){
        .tables = fcc_tensor_2d(tables, 0, FCC_F32, r->total_rows, DLRM_DIM),
        .table_rows = r->rows,
        .num_tables = r->ntables,
        .pooling = r->mean ? FCC_POOLING_MEAN : FCC_POOLING_SUM,
        .indices = fcc_tensor_1d(ids, 0, id_type, r->nnz),
        .offsets = fcc_tensor_1d(offsets, 0, id_type, noffsets),
        .batch = DLRM_BATCH,
        .batch_split = d->split,
        .out = fcc_tensor_3d(m->out[DEMO_DLRM], 0, FCC_F32, d->split[m->rank], d->total_tables, DLRM_DIM),
    };
    if (weights)
        m->dlrm.sample_weights = fcc_tensor_1d(weights, 0, FCC_F32, r->nnz);
    return 0;
}

static int dlrm_run(struct member *m, enum fcc_schedule_kind kind)
{
    m->dlrm.schedule = (uint32_t)kind;
    return fcc_embedding_all_to_all(m->comm, &m->dlrm);
}

static int dlrm_expected(const struct demo *demo, int rank, double *out)
{
    const struct dlrm *d = &demo->dlrm;
    int64_t first = 0;

    for (int p = 0; p < rank; p++)
        first += d->split[p];
    for (int64_t s = first; s < first + d->split[rank]; s++) {
        for (int holder = 0; holder < DEMO_RANKS; holder++) {
            const struct dlrm_rank *r = &d->ranks[holder];
            const float *table = r->tables;
            for (int t = 0; t < r->ntables; t++) {
                int64_t from = r->offsets[(int64_t)t * DLRM_BATCH + s], to = r->offsets[(int64_t)t * DLRM_BATCH + s + 1];
                reference_bag(table, DLRM_DIM, r->ids + from, r->weights ? r->weights + from : NULL, to - from, r->mean, out);
                out += DLRM_DIM;
                table += r->rows[t] * DLRM_DIM;
            }
        }
    }
    return 0;
}

const struct workload dlrm_workload = {
    .op = "embedding_all_to_all",
    .dtype = FCC_F32,
    .type = REFERENCE_F32,
    .describe = dlrm_describe,
    .elements = dlrm_elements,
    .open = dlrm_open,
    .run = dlrm_run,
    .expected = dlrm_expected,
};
