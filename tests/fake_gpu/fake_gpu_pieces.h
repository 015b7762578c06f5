/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_pieces.h - a rank on a fake GPU whose gemm_all_reduces, gemm_reduce_scatters and all_gather_gemms lie in memory of its own: cases, and what
 * their results are, to the bit. All numbers are small and whole, so sums are exact in f32; what is rounded before it is added is rounded here, too.
 */
#ifndef FAKE_GPU_PIECES_H
#define FAKE_GPU_PIECES_H

#include "kernels/gpu/device/tiles/tiles_order.h"
#include "kernels/gpu/rings.h"
#include "kernels/plan/dtype.h"
#include "tests/fake_gpu/fake_gpu_products.h"

enum kind { SUM, SCATTER, GATHER, KINDS };
static const char *const kind_names[KINDS] = {"gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm"};
enum { PART_GATHERED = PART_BIAS, PIECE_PARTS };

union piece_args {
    struct fcc_gemm_all_reduce_args sum;
    struct fcc_gemm_reduce_scatter_args scatter;
    struct fcc_all_gather_gemm_args gather;
};

struct piece_case {
    enum kind kind;
    enum fcc_dtype dtype;
    uint32_t schedule;
    int64_t m, n[RANKS_MOST], k[RANKS_MOST]; /* n: of sums, k: of what is gathered, the same on all ranks */
    int64_t rows[RANKS_MOST];                /* of each rank */
    bool gives_rows, gathered;
    int64_t gap[PIECE_PARTS], at[PIECE_PARTS];
    unsigned seed;
};

static inline fcc_context *pieces_open(struct rank *r, int rank, const struct ranks *all, uint32_t limit_ms)
{
    fake->library = 1;
    return own_open_limited(r, rank, all, limit_ms);
}

static inline void pieces_close(struct rank *r, fcc_context *context)
{
    own_close(r, context);
}

/* ---- tensors ---- */

static inline int64_t piece_rows(const struct piece_case *c, int rank, int part)
{
    return part == PART_W                         ? c->k[rank]
           : part == PART_X && c->kind == GATHER  ? c->rows[rank]
           : part == PART_Y && c->kind == SCATTER ? c->rows[rank]
                                                  : c->m;
}

static inline int64_t piece_columns(const struct piece_case *c, int rank, int part)
{
    return part == PART_X || part == PART_GATHERED ? c->k[rank] : c->n[rank];
}

static inline struct fcc_tensor piece_tensor(const struct rank *r, const struct piece_case *c, int part)
{
    const int64_t columns = piece_columns(c, r->rank, part);
    struct fcc_tensor t = fcc_tensor_2d(FCC_ADDRESS, r->memory[part] + (uint64_t)c->at[part] * element_bytes(c->dtype),
                                        c->dtype, piece_rows(c, r->rank, part), columns);

    t.stride[0] = columns + c->gap[part];
    t.stride[1] = 1;
    return t;
}

static inline union piece_args piece_args(const struct rank *r, const struct piece_case *c)
{
    const struct fcc_tensor a = piece_tensor(r, c, PART_X), b = piece_tensor(r, c, PART_W), y = piece_tensor(r, c, PART_Y);
    union piece_args args;

    memset(&args, 0, sizeof(args));
    if (c->kind == SUM)
        args.sum = (struct fcc_gemm_all_reduce_args){.a = a, .b = b, .c = y, .schedule = c->schedule};
    else if (c->kind == SCATTER)
        args.scatter = (struct fcc_gemm_reduce_scatter_args){
            .a = a, .b = b, .c = y, .rows = c->gives_rows ? c->rows : NULL, .schedule = c->schedule};
    else
        args.gather = (struct fcc_all_gather_gemm_args){.a = a, .b = b, .c = y, .schedule = c->schedule};
    if (c->kind == GATHER && c->gathered)
        args.gather.gathered = piece_tensor(r, c, PART_GATHERED);
    return args;
}

static inline int args_enqueue(const struct rank *r, enum kind kind, const union piece_args *args, fcc_request **out)
{
    return kind == SUM       ? fcc_gemm_all_reduce_enqueue(r->comm, &args->sum, r->stream, out)
           : kind == SCATTER ? fcc_gemm_reduce_scatter_enqueue(r->comm, &args->scatter, r->stream, out)
                             : fcc_all_gather_gemm_enqueue(r->comm, &args->gather, r->stream, out);
}

static inline int piece_enqueue(const struct rank *r, const struct piece_case *c, fcc_request **out)
{
    const union piece_args args = piece_args(r, c);

    return args_enqueue(r, c->kind, &args, out);
}

static inline size_t piece_bytes(const struct piece_case *c, int rank, int part)
{
    const int64_t stride = piece_columns(c, rank, part) + c->gap[part];

    return (size_t)(c->at[part] + piece_rows(c, rank, part) * stride + 8) * element_bytes(c->dtype);
}

/* The rank's factors. What lies beside them, and results, are 0xee everywhere. */
static inline void piece_fill(const struct rank *r, const struct piece_case *c)
{
    for (int part = 0; part < PIECE_PARTS; part++) {
        const int64_t rows = piece_rows(c, r->rank, part), columns = piece_columns(c, r->rank, part),
                      stride = columns + c->gap[part];
        const size_t bytes = piece_bytes(c, r->rank, part);
        CHECK(bytes <= ROOM);
        memset(r->image, 0xee, bytes);
        for (int64_t row = 0; row < rows && part <= PART_W; row++)
            for (int64_t col = 0; col < columns; col++)
                bits_put(c->dtype, r->image, c->at[part] + row * stride + col,
                         bits_of(c->dtype, small(c->seed, r->rank, (enum part)part, row * columns + col)));
        r->move(r, (enum part)part, bytes, false);
    }
}

/* ---- results ---- */

static inline float piece_round(enum fcc_dtype dtype, float v)
{
    unsigned char element[sizeof(float)];
    float out;

    dtype_from_f32(element, &v, dtype, 1);
    dtype_to_f32(&out, element, dtype, 1);
    return out;
}

static inline uint64_t piece_sent(const struct piece_case *c)
{
    return (uint64_t)(c->m * (c->kind == GATHER ? c->k[0] : c->n[0])) * element_bytes(c->dtype) / 2;
}

/* Whether two ranks multiply by tiles: fake GPUs are Hopper's. */
static inline bool is_by_tiles(const struct piece_case *c, int nranks)
{
    const char *wish = getenv("FCC_FUSED");

    return nranks == 2 && (c->schedule & ~FCC_SCHEDULE_ANY_ORDER) != FCC_SCHEDULE_SEQUENTIAL &&
           tiles_can(c->m, c->kind == GATHER ? c->k[0] : c->n[0], element_bytes(c->dtype)) &&
           ((wish && !strcmp(wish, "tiles")) ||
            ((!wish || !strcmp(wish, "auto")) && tiles_pay(c->m, piece_sent(c), c->kind == SUM)));
}

/* By tiles, too, the owner of a row adds in f32 what the other rank has rounded. */
static inline bool is_in_pieces(const struct piece_case *c, int nranks)
{
    const uint64_t bytes = piece_sent(c);
    const uint32_t schedule = c->schedule & ~FCC_SCHEDULE_ANY_ORDER;

    return nranks == 2 && (is_by_tiles(c, nranks) || schedule == FCC_SCHEDULE_FUSED ||
                           (schedule == FCC_SCHEDULE_AUTO && bytes >= RINGS_PIECES_LEAST));
}

static UNWATCHED void terms_add(float *out, float factor, const float *row, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] += factor * row[i];
}

/* The products of the rows of rank `a`'s first factor with rank `b`'s second: whole numbers, [rows][n]. */
static inline float *terms_make(const struct piece_case *c, int a, int b)
{
    const int64_t rows = c->kind == GATHER ? c->rows[a] : c->m, n = c->n[b], k = c->k[b];
    float *terms = calloc((size_t)(rows * n) + 1, sizeof(*terms)), *w = malloc((size_t)(k * n + 1) * sizeof(*w));

    CHECK(terms != NULL && w != NULL);
    for (int64_t i = 0; i < k * n; i++)
        w[i] = (float)small(c->seed, b, PART_W, i);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < k; i++)
            terms_add(terms + row * n, (float)small(c->seed, a, PART_X, row * k + i), w + i * n, n);
    free(w);
    return terms;
}

/* All rows of the result, [m][n]. */
static inline float *piece_wanted(const struct rank *r, const struct piece_case *c)
{
    const int64_t n = c->n[r->rank];
    const bool pieces = is_in_pieces(c, r->n);
    float *wanted = calloc((size_t)(c->m * n) + 1, sizeof(*wanted)), *term;
    int64_t before = 0;

    CHECK(wanted != NULL);
    for (int p = 0; p < r->n; p++) {
        term = terms_make(c, p, c->kind == GATHER ? r->rank : p);
        for (int64_t i = 0; i < (c->kind == GATHER ? c->rows[p] : c->m) * n; i++) {
            const bool own = i / n >= before && i / n < before + c->rows[p]; /* of the rank that adds up */
            wanted[c->kind == GATHER ? before * n + i : i] +=
                c->kind == GATHER || (pieces && own) ? term[i] : piece_round(c->dtype, term[i]);
        }
        free(term);
        before += c->rows[p];
    }
    return wanted;
}

static inline void part_check(const struct rank *r, const struct piece_case *c, int part, const uint32_t *wanted, int number)
{
    const int64_t columns = piece_columns(c, r->rank, part), stride = columns + c->gap[part],
                  rows = piece_rows(c, r->rank, part);
    const size_t size = element_bytes(c->dtype), bytes = piece_bytes(c, r->rank, part);

    r->move(r, (enum part)part, bytes, true);
    for (int64_t i = 0; i < (int64_t)(bytes / size); i++) {
        const int64_t from = i - c->at[part], row = stride ? from / stride : 0, col = stride ? from % stride : 0;
        const bool inside = from >= 0 && row < rows && col < columns;
        const uint32_t want = inside && wanted ? wanted[row * columns + col] : 0xeeeeeeee;
        uint32_t got = 0;
        memcpy(&got, r->image + (size_t)i * size, size);
        if (memcmp(&got, &want, size) != 0)
            check_failed(
                __FILE__, __LINE__,
                "case %d: rank %d of %d, %s, %s, m %ld (rank 0: %ld), n %ld, k %ld, schedule 0x%x: tensor %d: [%ld][%ld] "
                "is 0x%x, expected 0x%x",
                number, r->rank, r->n, kind_names[c->kind], dtype_text(c->dtype), (long)c->m, (long)c->rows[0],
                (long)c->n[r->rank], (long)c->k[r->rank], c->schedule, part, (long)row, (long)col, got, want);
    }
}

/* c, and `gathered`, are what they should be, and what lies beside them is untouched. */
static inline void piece_check(const struct rank *r, const struct piece_case *c, int number)
{
    const int64_t n = c->n[r->rank], k = c->k[r->rank];
    float *wanted = piece_wanted(r, c);
    uint32_t *bits = calloc((size_t)(c->m * (n > k ? n : k)) + 1, sizeof(*bits));
    int64_t before = 0;

    CHECK(bits != NULL);
    for (int p = 0; p < r->rank && c->kind == SCATTER; p++)
        before += c->rows[p];
    for (int64_t i = 0; i < piece_rows(c, r->rank, PART_Y) * n; i++)
        bits[i] = bits_of(c->dtype, (double)wanted[before * n + i]);
    stream_sync(r->stream);
    OK(fcc_comm_error(r->comm));
    part_check(r, c, PART_Y, bits, number);
    for (int p = 0; p < r->n && c->kind == GATHER; p++) {
        for (int64_t i = 0; i < c->rows[p] * k; i++)
            bits[before * k + i] = bits_of(c->dtype, small(c->seed, p, PART_X, i));
        before += c->rows[p];
    }
    part_check(r, c, PART_GATHERED, c->kind == GATHER && c->gathered ? bits : NULL, number);
    free(bits);
    free(wanted);
}

static inline void piece_works(const struct rank *r, const struct piece_case *c, int number)
{
    piece_fill(r, c);
    OK(piece_enqueue(r, c, NULL));
    piece_check(r, c, number);
}

/* Other numbers, at other places. */
static inline void piece_again(const struct rank *r, struct piece_case *c, int number)
{
    c->seed += 77;
    for (int part = 0; part < PIECE_PARTS; part++) {
        c->at[part] += 3;
        c->gap[part] ^= 1;
    }
    piece_works(r, c, number);
}

/* ---- cases ---- */

static inline struct piece_case piece_of(const struct rank *r, enum kind kind, enum fcc_dtype dtype, int64_t m, int64_t n)
{
    static unsigned seed = 5;
    struct piece_case c = {.kind = kind, .dtype = dtype, .m = m, .gives_rows = true, .gathered = seed % 2, .seed = seed};

    seed++;
    for (int p = 0; p < r->n; p++) {
        c.n[p] = n;
        c.k[p] = 8;
        c.rows[p] = m / r->n + (p < m % r->n);
    }
    return c;
}

static inline void piece_draw(struct piece_case *c, int nranks)
{
    static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};
    static const uint32_t schedules[] = {FCC_SCHEDULE_AUTO, FCC_SCHEDULE_FUSED, FCC_SCHEDULE_SEQUENTIAL};
    static const int64_t ms[] = {1, 2, 3, 7, 64, 100}, ns[] = {0, 1, 7, 64, 333}, ks[] = {0, 1, 5, 31, 40};
    const bool even = draw(2), dense = draw(2);

    *c = (struct piece_case){.kind = (enum kind)draw(KINDS),
                             .dtype = dtypes[draw(3)],
                             .schedule = schedules[draw(3)] | (draw(3) ? 0 : FCC_SCHEDULE_ANY_ORDER),
                             .gives_rows = !even,
                             .gathered = draw(2),
                             .seed = (unsigned)draw(1 << 30)};
    c->m = draw_of(ms, 6, 60);
    for (int p = 0; p < nranks; p++) {
        c->n[p] = p && c->kind != GATHER ? c->n[0] : draw_of(ns, 5, 200);
        c->k[p] = p && c->kind == GATHER ? c->k[0] : draw_of(ks, 5, 40);
    }
    int64_t left = c->m;
    for (int p = 0; p < nranks; p++) {
        c->rows[p] = even ? c->m / nranks + (p < c->m % nranks) : p == nranks - 1 ? left : draw(left + 1);
        left -= c->rows[p];
    }
    for (int i = 0; i < PIECE_PARTS; i++) {
        c->at[i] = draw(9);
        c->gap[i] = dense ? 0 : draw(9);
    }
}

/* Another collective of the communicator's. */
static inline void sum_works(const struct rank *r, int64_t n)
{
    const struct fcc_all_reduce_args args = {.in = fcc_tensor_1d(FCC_ADDRESS, r->memory[PART_X], FCC_F32, n),
                                             .out = fcc_tensor_1d(FCC_ADDRESS, r->memory[PART_W], FCC_F32, n)};
    float *in = (float *)(uintptr_t)r->memory[PART_X], *out = (float *)(uintptr_t)r->memory[PART_W];

    for (int64_t i = 0; i < n; i++)
        in[i] = (float)(i % 100 * (r->rank + 1));
    OK(fcc_all_reduce_enqueue(r->comm, &args, r->stream, NULL));
    stream_sync(r->stream);
    for (int64_t i = 0; i < n; i++)
        CHECK(out[i] == (float)(i % 100 * ((int64_t)r->n * (r->n + 1) / 2)));
}

/* All ranks have the error, the kernels' streams go on, and the communicator, too. */
static inline void piece_error_is(const struct rank *r, int status, const char *text)
{
    stream_sync(r->stream);
    int got = status < 0 ? status : fcc_comm_error(r->comm);
    if (got >= 0 || !strstr(fcc_last_error(), text))
        check_failed(__FILE__, __LINE__, "rank %d: %d (%s), expected %s", r->rank, got, fcc_last_error(), text);
    if (status < 0)
        (void)fcc_comm_error(r->comm); /* the run itself says the same */
    OK(fcc_comm_error(r->comm));
    for (int kind = 0; kind < KINDS; kind++) {
        struct piece_case c = piece_of(r, (enum kind)kind, FCC_F16, 5, 30);
        c.schedule = kind % 2 ? FCC_SCHEDULE_SEQUENTIAL : FCC_SCHEDULE_FUSED;
        piece_works(r, &c, -1);
    }
}

#endif
