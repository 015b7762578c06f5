/* SPDX-License-Identifier: MIT
 *
 * test_gather.c - all_gather_gemm with cases drawn at random, on one node and over two and three: uneven and empty parts, every dtype and schedule,
 * e4m3 with scales of every form, epilogues with what is of elements and of whole rows. Results against a plain double-precision product; the same
 * bits under every schedule; a rank's rows are overwritten as soon as its call returns. And what is refused, on all ranks.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bed/harness.h"
#include "tests/bed/random.h"
#include "tests/bed/value.h"
#include "tests/demo/reference.h"

enum { RANKS = 8, CASES = 60, M_MOST = 160, K_MOST = 300, N_MOST = 70, ROOM = 2 << 20, BLOCK = 128 };
enum part { PART_A, PART_B, PART_SCALE, PART_BIAS, PART_RESIDUAL, PART_GATE, PART_WEIGHT, PARTS }; /* of the inputs' buffer */
enum form { WHOLE, LINE, BLOCKS, ROW_BLOCKS, FORMS };                                              /* of scales */

struct gather_case {
    enum fcc_dtype dtype;
    bool f8, scaled, gathered, shared, bias, residual, gate, norm, sum, invariant;
    uint32_t activation;
    float scale;
    enum form form[RANKS];
    int m[RANKS], n[RANKS], k, all, gap;
    unsigned seed;
};

struct rank {
    fcc_comm *comm;
    int rank, n;
    fcc_buffer *local, *result, *own;
};

static struct gather_case case_draw(int nranks, unsigned number)
{
    static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16};
    struct gather_case c = {.dtype = dtypes[random_below(3)],
                            .f8 = random_below(3) == 0,
                            .gathered = random_below(2),
                            .shared = random_below(2),
                            .bias = random_below(3) == 0,
                            .residual = random_below(3) == 0,
                            .gate = random_below(4) == 0,
                            .norm = random_below(4) == 0,
                            .sum = random_below(4) == 0,
                            .invariant = random_below(6) == 0,
                            .activation = random_below(3) ? FCC_NO_ACTIVATION : FCC_RELU,
                            .scale = random_below(4) ? 0 : 0.5f,
                            .k = (int)random_size(random_below(4) ? 40 : K_MOST),
                            .gap = (int)random_below(3),
                            .seed = 5000u * number};

    c.scaled = c.f8 && random_below(4);
    for (int r = 0; r < nranks; r++) {
        c.m[r] = (int)random_size(random_below(4) ? 12 : M_MOST / nranks);
        c.n[r] = (int)random_size(random_below(3) ? 20 : N_MOST);
        c.form[r] = (enum form)random_below(FORMS);
        c.all += c.m[r];
    }
    return c;
}

/* ---- what is to come ---- */

static double f8_value(unsigned code)
{
    const int exponent = (int)(code >> 3 & 15), fraction = (int)(code & 7);
    const double v = exponent ? ldexp(1 + fraction / 8.0, exponent - 7) : ldexp(fraction / 8.0, -6);

    return code & 0x80 ? -v : v;
}

static unsigned f8_code(const struct gather_case *c, int r, int i, int q)
{
    return (unsigned)(value(c->seed + (unsigned)r, (int64_t)i * c->k + q) * 8 + 16) * 3u & 0xbfu; /* below 2 in magnitude */
}

static int blocks_of(int n)
{
    return (n + BLOCK - 1) / BLOCK;
}

/* How many scales rank r has in each row of scales, and which one element [i][q] has. */
static int scale_at(const struct gather_case *c, int r, int i, int q, int *cols)
{
    *cols = c->form[r] >= BLOCKS ? blocks_of(c->k) : c->form[r] == LINE ? c->m[r] : 1;
    switch (c->form[r]) {
    case WHOLE:
        return 0;
    case LINE:
        return i;
    case BLOCKS:
        return i / BLOCK * *cols + q / BLOCK;
    default:
        return i * *cols + q / BLOCK;
    }
}

static float scale_value(const struct gather_case *c, int r, int at)
{
    return (float)(value(c->seed + 100u + (unsigned)r, at) + 2.5) / 4;
}

static double a_value(const struct gather_case *c, int r, int i, int q)
{
    int cols;

    if (!c->f8)
        return value(c->seed + (unsigned)r, (int64_t)i * c->k + q);
    return f8_value(f8_code(c, r, i, q)) * (c->scaled ? (double)scale_value(c, r, scale_at(c, r, i, q, &cols)) : 1);
}

static enum reference_type reference_of(enum fcc_dtype dtype)
{
    return dtype == FCC_F32 ? REFERENCE_F32 : dtype == FCC_F16 ? REFERENCE_F16 : REFERENCE_BF16;
}

static double rounded(const struct gather_case *c, double v)
{
    return c->dtype == FCC_F32 ? (double)(float)v : reference_round(reference_of(c->dtype), v);
}

static double silu_of(double v)
{
    return v / (1 + exp(-v));
}

/* Row `row` of rank `me`'s result, made of row i of rank r, and of its `sum`. */
static void row_expect(const struct gather_case *c, int me, int r, int i, int row, double *sum, double *out)
{
    const int n = c->n[me];
    double squares = 0;

    for (int j = 0; j < n; j++) {
        double v = 0;
        for (int q = 0; q < c->k; q++)
            v += a_value(c, r, i, q) * value(c->seed + 200u + (unsigned)me, (int64_t)q * n + j);
        v += c->bias ? value(c->seed + 300u + (unsigned)me, j) : 0;
        v += c->residual ? value(c->seed + 400u + (unsigned)me, (int64_t)row * n + j) : 0;
        sum[j] = out[j] = c->norm || c->sum ? rounded(c, v) : v;
        squares += out[j] * out[j];
    }
    for (int j = 0; j < n; j++) {
        out[j] *= c->norm ? 1 / sqrt(squares / n + 1) * value(c->seed + 500u + (unsigned)me, j) : 1;
        out[j] = c->activation == FCC_RELU && out[j] < 0 ? 0 : out[j];
        out[j] *= c->gate ? silu_of(value(c->seed + 600u + (unsigned)me, (int64_t)row * n + j)) : 1;
        out[j] *= c->scale != 0 ? (double)c->scale : 1;
    }
}

/* ---- a run ---- */

static uint64_t part_at(enum part part)
{
    return (uint64_t)part * (ROOM / PARTS / 64 * 64);
}

static unsigned char *image(fcc_buffer *b, uint64_t at)
{
    return (unsigned char *)fcc_buffer_data(b) + at;
}

static struct fcc_tensor matrix(fcc_buffer *b, uint64_t at, enum fcc_dtype dtype, int rows, int cols, int gap)
{
    struct fcc_tensor t = fcc_tensor_2d(b, at, dtype, rows, cols);

    t.stride[0] = cols + gap;
    t.stride[1] = 1;
    return t;
}

/* A tensor of the inputs' buffer, filled with the values of a seed. */
static struct fcc_tensor input(const struct rank *r, const struct gather_case *c, enum part part, unsigned seed, int rows,
                               int cols)
{
    struct fcc_tensor t = rows ? fcc_tensor_2d(r->local, part_at(part), c->dtype, rows, cols)
                               : fcc_tensor_1d(r->local, part_at(part), c->dtype, cols);

    for (int64_t i = 0; i < (int64_t)(rows ? rows : 1) * cols; i++)
        value_store(c->dtype, image(r->local, t.offset), i, value(c->seed + seed + (unsigned)r->rank, i));
    return t;
}

static struct fcc_tensor a_fill(const struct rank *r, const struct gather_case *c)
{
    fcc_buffer *b = c->shared ? r->result : r->local; /* rows may lie where results may, too */
    const uint64_t at = c->shared ? ROOM - ROOM / 4 : part_at(PART_A);
    struct fcc_tensor t = matrix(b, at, c->f8 ? FCC_F8E4M3 : c->dtype, c->m[r->rank], c->k, c->gap);

    for (int i = 0; i < c->m[r->rank]; i++)
        for (int q = 0; q < c->k; q++)
            if (c->f8)
                image(b, at)[i * t.stride[0] + q] = (unsigned char)f8_code(c, r->rank, i, q);
            else
                value_store(c->dtype, image(b, at), i * t.stride[0] + q, a_value(c, r->rank, i, q));
    return t;
}

static struct fcc_tensor scales_fill(const struct rank *r, const struct gather_case *c)
{
    int cols;
    (void)scale_at(c, r->rank, 0, 0, &cols);
    const int rows = c->form[r->rank] == BLOCKS ? blocks_of(c->m[r->rank]) : c->form[r->rank] == ROW_BLOCKS ? c->m[r->rank] : 0;
    float *to = (float *)(void *)image(r->local, part_at(PART_SCALE));

    for (int i = 0; i < (c->form[r->rank] >= BLOCKS ? rows : 1) * cols; i++)
        to[i] = scale_value(c, r->rank, i);
    return c->form[r->rank] >= BLOCKS ? fcc_tensor_2d(r->local, part_at(PART_SCALE), FCC_F32, rows, cols)
                                      : fcc_tensor_1d(r->local, part_at(PART_SCALE), FCC_F32, cols);
}

struct call {
    struct fcc_all_gather_gemm_args args;
    struct fcc_epilogue e;
};

static struct call call_make(const struct rank *r, const struct gather_case *c)
{
    const int n = c->n[r->rank];
    struct call call = {.args = {.a = a_fill(r, c),
                                 .b = input(r, c, PART_B, 200u, c->k, n),
                                 .c = matrix(r->result, 0, c->dtype, c->all, n, c->gap)}};

    if (c->k == 0)
        call.args.b = fcc_tensor_2d(r->local, part_at(PART_B), c->dtype, 0, n);
    if (c->gathered)
        call.args.gathered = matrix(r->own, 0, c->f8 ? FCC_F8E4M3 : c->dtype, c->all, c->k, c->gap);
    if (c->bias)
        call.e.bias = input(r, c, PART_BIAS, 300u, 0, n);
    if (c->residual && c->all)
        call.e.residual = input(r, c, PART_RESIDUAL, 400u, c->all, n);
    else if (c->residual)
        call.e.residual = fcc_tensor_2d(r->local, part_at(PART_RESIDUAL), c->dtype, 0, n);
    if (c->gate && c->all)
        call.e.gate = input(r, c, PART_GATE, 600u, c->all, n);
    else if (c->gate)
        call.e.gate = fcc_tensor_2d(r->local, part_at(PART_GATE), c->dtype, 0, n);
    if (c->norm) {
        call.e.norm = FCC_RMS_NORM;
        call.e.norm_eps = 1;
        call.e.norm_weight = input(r, c, PART_WEIGHT, 500u, 0, n);
    }
    if (c->sum)
        call.e.sum = fcc_tensor_2d(r->own, ROOM / 2, c->dtype, c->all, n);
    if (c->scaled)
        call.e.x_scale = scales_fill(r, c);
    call.e.activation = c->activation;
    call.e.scale = c->scale;
    return call;
}

static size_t size_of(enum fcc_dtype dtype)
{
    return dtype == FCC_F32 ? 4 : dtype == FCC_F8E4M3 ? 1 : 2;
}

static void rows_compare(const struct rank *r, const struct gather_case *c, const char *what, const struct fcc_tensor *t,
                         int row, const double *expected)
{
    const unsigned char *at = image(t->buffer, t->offset) + (size_t)row * (size_t)t->stride[0] * size_of(c->dtype);
    int64_t first;

    if (reference_compare(reference_of(c->dtype), at, expected, t->shape[1], &first))
        check_failed(__FILE__, __LINE__, "%s, rank %d of %d: %s[%d][%d]: %g, expected %g", case_text, r->rank, r->n, what, row,
                     (int)first, reference_element(reference_of(c->dtype), at, first), expected[first]);
}

static void results_check(const struct rank *r, const struct gather_case *c, struct call *call)
{
    double sum[N_MOST], out[N_MOST];
    int row = 0;

    call->e.sum.stride[0] = c->n[r->rank];
    for (int s = 0; s < r->n; s++)
        for (int i = 0; i < c->m[s]; i++, row++) {
            row_expect(c, r->rank, s, i, row, sum, out);
            rows_compare(r, c, "c", &call->args.c, row, out);
            if (c->sum)
                rows_compare(r, c, "sum", &call->e.sum, row, sum);
            for (int q = 0; q < c->k && c->gathered; q++) {
                const int64_t at = row * call->args.gathered.stride[0] + q;
                const double got =
                    c->f8 ? f8_value(image(r->own, 0)[at]) : reference_element(reference_of(c->dtype), image(r->own, 0), at);
                if (got != (c->f8 ? f8_value(f8_code(c, s, i, q)) : a_value(c, s, i, q)))
                    check_failed(__FILE__, __LINE__, "%s: gathered[%d][%d] = %g", case_text, row, q, got);
            }
        }
}

/* Fused, sequential, auto: right, the same bits, and the rank's rows are its own again when its call returns. */
static void case_run(const struct rank *r, const struct gather_case *c)
{
    static const uint32_t schedules[] = {FCC_SCHEDULE_FUSED, FCC_SCHEDULE_SEQUENTIAL, FCC_SCHEDULE_AUTO, FCC_SCHEDULE_FUSED};
    static unsigned char bits[ROOM / 2];
    const size_t bytes = (size_t)c->all * (size_t)(c->n[r->rank] + c->gap) * size_of(c->dtype);

    (void)snprintf(
        case_text, sizeof(case_text),
        "seed %u: dtype %d, f8 %d %d, k %d, m %d, gathered %d, norm %d, sum %d, stages %d%d%d, shared %d, invariant %d, "
        "activation %u, scale %g",
        c->seed, c->dtype, c->f8, c->scaled, c->k, c->all, c->gathered, c->norm, c->sum, c->bias, c->residual, c->gate,
        c->shared, c->invariant, c->activation, (double)c->scale);
    CHECK(bytes <= sizeof(bits));
    for (int i = 0; i < 4; i++) {
        struct call call = call_make(r, c);
        call.args.schedule = schedules[i] | (c->invariant ? FCC_SCHEDULE_BATCH_INVARIANT : 0);
        memset(image(r->result, 0), 0xff, ROOM / 2);
        memset(image(r->own, 0), 0xff, ROOM);
        OK(fcc_noop(r->comm));
        OK(fcc_all_gather_gemm_epilogue(r->comm, &call.args, &call.e));
        memset(image(call.args.a.buffer, call.args.a.offset), 0xff,
               (size_t)c->m[r->rank] * (size_t)(c->k + c->gap) * size_of((enum fcc_dtype)call.args.a.dtype));
        results_check(r, c, &call);
        if (i == 0)
            memcpy(bits, image(r->result, 0), bytes);
        if (memcmp(bits, image(r->result, 0), bytes) != 0)
            check_failed(__FILE__, __LINE__, "%s: schedule %u: other bits", case_text, schedules[i]);
        for (int gap = 0; gap < c->gap && c->all > 1; gap++) /* nothing is stored between rows */
            CHECK(image(r->result, ((size_t)c->n[r->rank] + (size_t)gap) * size_of(c->dtype))[0] == 0xff);
    }
}

static void rank_open(struct rank *r, int rank, const struct ranks *all)
{
    *r = (struct rank){.comm = comm_open(all, rank, 0), .rank = rank, .n = all->n};
    OK(fcc_buffer_alloc(r->comm, FCC_BUFFER_LOCAL, ROOM, &r->local));
    OK(fcc_buffer_alloc(r->comm, FCC_BUFFER_RESULT, ROOM, &r->result));
    OK(fcc_buffer_alloc(r->comm, FCC_BUFFER_LOCAL, ROOM, &r->own));
}

static void rank_close(struct rank *r)
{
    OK(fcc_noop(r->comm));
    fcc_comm_destroy(r->comm);
    fcc_disconnect(comm_context());
}

static void cases_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;

    random_state = *(const uint64_t *)argument + (uint64_t)all->n;
    rank_open(&r, rank, all);
    for (unsigned i = 1; i <= (unsigned)test_rounds(CASES); i++) {
        const struct gather_case c = case_draw(all->n, i);
        case_run(&r, &c);
    }
    rank_close(&r);
}

static void cases_on(const char *nodes, const int counts[])
{
    const char *given = getenv("FCC_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : 1;

    CHECK(!setenv("FCC_TEST_NODES", nodes, 1));
    (void)printf("FCC_TEST_SEED=%llu\n", (unsigned long long)seed);
    for (int i = 0; counts[i]; i++)
        ranks_run(counts[i], cases_rank, &seed);
}

static void on_one_node(void)
{
    cases_on("1", (const int[]){1, 2, 3, 8, 0});
}

static void on_two_nodes(void)
{
    cases_on("2", (const int[]){2, 5, 0});
}

static void on_three_nodes(void)
{
    cases_on("3", (const int[]){4, 7, 0});
}

/* ---- what is refused, on all ranks ---- */

static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    const bool last = rank == all->n - 1;
    struct gather_case c = {.dtype = FCC_F16, .k = 8, .gathered = true, .bias = true, .seed = 9};
    struct call good, bad;
    struct rank r;

    (void)argument;
    for (int i = 0; i < all->n; i++) {
        c.m[i] = 4;
        c.n[i] = 6;
        c.all += 4;
    }
    rank_open(&r, rank, all);
    good = call_make(&r, &c);
#define REFUSED(change, text)                                                                                                  \
    do {                                                                                                                       \
        bad = good;                                                                                                            \
        if (last)                                                                                                              \
            (change);                                                                                                          \
        FAILS(fcc_all_gather_gemm_epilogue(r.comm, &bad.args, &bad.e), -EINVAL);                                               \
        if (!strstr(fcc_last_error(), text))                                                                                   \
            check_failed(__FILE__, __LINE__, "rank %d: \"%s\", expected \"%s\"", rank, fcc_last_error(), text);                \
    } while (0)
    REFUSED(bad.args.a.shape[0] = 3, "all_gather_gemm: a: the ranks' have 7 rows together, c has 8");
    REFUSED((bad.args.a.shape[1] = bad.args.b.shape[0] = bad.args.gathered.shape[1] = 7),
            "all_gather_gemm: a: shape[1]: rank 1 has 7, rank 0 has 8");
    REFUSED(bad.args.gathered.buffer = NULL, "all_gather_gemm: gathered: rank 1 has none, rank 0 has one");
    REFUSED(bad.args.gathered = bad.args.c, "rank 1: all_gather_gemm: gathered: shape[1] 6: allowed is 8 (a's shape[1], K)");
    REFUSED((bad.args.gathered.buffer = r.local, bad.args.gathered.offset = bad.args.a.offset),
            "rank 1: all_gather_gemm: a: bytes ");
    REFUSED(bad.args.c.buffer = r.own, "rank 1: all_gather_gemm: c: in a buffer that takes no results");
    REFUSED(bad.args.b.shape[1] = 5, "rank 1: all_gather_gemm: c: shape[1] 6: allowed is 5 (b's shape[1], N)");
    REFUSED(bad.args.a.stride[0] = 1, "rank 1: all_gather_gemm: a: stride[0] 1: rows overlap: allowed are 8 and more");
    REFUSED(bad.e.bias.shape[0] = 5, "rank 1: all_gather_gemm: bias: shape[0] 5: allowed is 6 (N)");
    REFUSED(bad.e.residual = bad.args.c, "rank 1: all_gather_gemm: residual: bytes ");
    REFUSED(bad.e.bias.buffer = NULL, "all_gather_gemm: bias: rank 1 has none, rank 0 has one");
    REFUSED(bad.args.schedule = 9, "rank 1: all_gather_gemm: schedule: 9");
    REFUSED(bad.args.schedule = FCC_SCHEDULE_SEQUENTIAL, "all_gather_gemm: schedule: rank 1 has sequential, rank 0 has auto");
    REFUSED(bad.args.reserved[2] = 1, "rank 1: all_gather_gemm: reserved[2]: 1: must be 0");
#undef REFUSED
    FAILS(fcc_gemm_all_reduce(r.comm, NULL), -EINVAL);
    FAILS(last ? fcc_noop(r.comm) : fcc_all_gather_gemm(r.comm, &good.args), -EINVAL);
    case_run(&r, &c);
    rank_close(&r);
}

static void refused(void)
{
    CHECK(!setenv("FCC_TEST_NODES", "1", 1));
    ranks_run(2, refused_rank, NULL);
}

/* ---- two ranks of one client, which may give both the same buffer ---- */

struct thread {
    pthread_t thread;
    fcc_context *context;
    struct fcc_unique_id id;
    pthread_barrier_t *barrier;
    fcc_buffer **both; /* rank 0's, which both use */
    int rank, nranks;
};

/* Rank 0's `gathered` and rank 1's rows lie in one buffer: refused where they overlap, and well beside each other. A third rank, which is on
 * another node, hears of it, too. */
static void *thread_run(void *argument)
{
    enum { M = 2, K = 4, N = 3 };
    const struct thread *t = argument;
    fcc_comm *comm;
    const int n = t->nranks;
    const bool shares = t->rank == 1;
    const size_t all = sizeof(float) * (size_t)n * M * K;
    fcc_buffer *b, *c;

    OK(fcc_comm_init(t->context, &t->id, n, t->rank, NULL, &comm));
    if (t->rank == 0)
        OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 2 * all, t->both));
    (void)pthread_barrier_wait(t->barrier);
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 2 * all + sizeof(float) * K * N, &b));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_RESULT, sizeof(float) * (size_t)n * M * N, &c));
    struct fcc_all_gather_gemm_args args = {
        .a = shares ? fcc_tensor_2d(*t->both, 32, FCC_F32, M, K) : fcc_tensor_2d(b, 0, FCC_F32, M, K),
        .b = fcc_tensor_2d(b, all, FCC_F32, K, N),
        .gathered = t->rank ? fcc_tensor_2d(b, all + sizeof(float) * K * N, FCC_F32, n * M, K)
                            : fcc_tensor_2d(*t->both, 0, FCC_F32, n * M, K),
        .c = fcc_tensor_2d(c, 0, FCC_F32, n * M, N)};
    FAILS(fcc_all_gather_gemm(comm, &args), -EINVAL, "rank 1: all_gather_gemm: a: bytes 32 to 63", "overlap rank 0's gathered");
    if (shares)
        args.a.offset = all; /* behind it */
    OK(fcc_all_gather_gemm(comm, &args));
    (void)pthread_barrier_wait(t->barrier);
    fcc_comm_destroy(comm);
    return NULL;
}

static void client_run(int nodes)
{
    struct thread threads[3];
    struct test_daemon d;
    fcc_context *context, *elsewhere = NULL;
    struct fcc_unique_id id;
    pthread_barrier_t barrier;
    fcc_buffer *both = NULL;
    const int n = nodes + 1;

    daemons_start(&d, nodes, NULL);
    OK(fcc_connect(NULL, &context));
    if (nodes > 1) {
        const struct fcc_connect_options there = {.socket_path = d.node[1].socket};
        OK(fcc_connect(&there, &elsewhere));
    }
    OK(fcc_get_unique_id(context, &id));
    CHECK(pthread_barrier_init(&barrier, NULL, (unsigned)n) == 0);
    for (int r = 0; r < n; r++) {
        threads[r] = (struct thread){
            .context = r == 2 ? elsewhere : context, .id = id, .barrier = &barrier, .both = &both, .rank = r, .nranks = n};
        CHECK(pthread_create(&threads[r].thread, NULL, thread_run, &threads[r]) == 0);
    }
    for (int r = 0; r < n; r++)
        CHECK(pthread_join(threads[r].thread, NULL) == 0);
    fcc_disconnect(context);
    if (elsewhere)
        fcc_disconnect(elsewhere);
    (void)pthread_barrier_destroy(&barrier);
    daemon_stop(&d);
}

static void one_client(void)
{
    client_run(1);
}

static void one_client_of_two_nodes(void)
{
    client_run(2);
}

int main(void)
{
    static const struct test tests[] = {
        {"on_one_node", on_one_node, 120},       {"on_two_nodes", on_two_nodes, 120},
        {"on_three_nodes", on_three_nodes, 120}, {"refused", refused, 30},
        {"one_client", one_client, 30},          {"one_client_of_two_nodes", one_client_of_two_nodes, 30}};

    return tests_run("gather", TESTS(tests));
}
