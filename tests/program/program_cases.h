/* SPDX-License-Identifier: MIT
 *
 * program_cases.h - programs on ranks of real daemons, on whatever device, give what the reference computes in double precision, as they are written and
 * as they are scheduled.
 */
#ifndef FCC_TESTS_PROGRAM_PROGRAM_CASES_H
#define FCC_TESTS_PROGRAM_PROGRAM_CASES_H

#include <errno.h>

#include "kernels/plan/dtype.h"
#include "kernels/program/steps.h"
#include "tests/bed/harness.h"
#include "tests/program/reference.h"

/* If there is one: where each rank notes each case's results, as a hash of their bits, of a case's number and a rank. Shared by the ranks. */
enum { BITS_CASES = 128, BITS_RANKS = 8 };
static uint64_t (*case_bits)[BITS_RANKS];
static int case_now;

static inline void bits_note(int rank, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;

    for (size_t i = 0; i < n && case_bits && case_now < BITS_CASES && rank < BITS_RANKS; i++)
        case_bits[case_now][rank] = (case_bits[case_now][rank] ^ at[i]) * UINT64_C(1099511628211);
}

/* Fake GPUs compute no products of matrices: their programs are left out. */
static bool without_products;

struct given {
    const char *name;
    double value;
};
struct program_case {
    const char *file, *text; /* one of them */
    bool scheduled;          /* false: the schedule is left out */
    struct fcc_program_size sizes[3];
    int nsizes;
    double tolerance;
};

static const struct given givens[] = {
    {"lr", 0.01}, {"momentum", 0.9}, {"beta1", 0.9},  {"beta2", 0.999}, {"epsilon", 1e-8},
    {"step", 3},  {"scale", 0.25},   {"decay", 0.01}, {"seed", 11},     {"k", 0.5},
};

static inline char *text_of(const struct program_case *c)
{
    char *text = calloc(1, 65536), *schedule;

    CHECK(text != NULL);
    if (c->text) {
        (void)snprintf(text, 65536, "%s", c->text);
    } else {
        FILE *f = fopen(c->file, "r");
        CHECK(f && fread(text, 1, 65535, f) > 0);
        (void)fclose(f);
    }
    schedule = strstr(text, "\nschedule");
    if (schedule && !c->scheduled)
        schedule[1] = '\0';
    return text;
}

static inline struct program *program_of(const struct program_case *c, const char *text, int ranks)
{
    struct program_size sizes[3];
    struct program *p;
    struct error e = {0};

    for (int i = 0; i < c->nsizes; i++)
        sizes[i] = (struct program_size){c->sizes[i].name, c->sizes[i].value};
    if (program_parse(text, strlen(text), &p, &e) || program_bind(p, ranks, sizes, (size_t)c->nsizes, &e) ||
        program_schedule(p, &e))
        check_failed(__FILE__, __LINE__, "%s", e.text);
    return p;
}

/* A parameter's values on all ranks, exact in its dtype: 8 bits after the point. */
static inline double *values_of(const struct program *p, const struct parameter *t)
{
    const char *name = program_name_of(p, t->name);
    const size_t count = reference_count(p, &t->value);
    double *v = calloc(count + 1, sizeof(*v));
    uint32_t x = 99;

    CHECK(v != NULL);
    for (const char *c = name; *c; c++)
        x = x * 31 + (unsigned char)*c;
    for (size_t i = 0; i < count; i++) {
        x = x * 1664525u + 1013904223u;
        v[i] = (double)((int32_t)(x >> 24) - 128) / 64;
        if (strcmp(name, "v") == 0) /* a second moment */
            v[i] = fabs(v[i]);
    }
    for (size_t i = 0; i < sizeof(givens) / sizeof(givens[0]) && t->kind == PARAMETER_SCALAR; i++)
        if (strcmp(name, givens[i].name) == 0)
            v[0] = givens[i].value;
    return v;
}

/* Where element i of this rank's part is among the reference's. */
static inline int64_t own_element(const struct program *p, const struct value *v, int rank, int64_t i)
{
    int64_t inner = 1;

    if (v->layout == LAYOUT_LOCAL)
        return rank * value_elements(v) + i;
    if (v->layout != LAYOUT_SLICED)
        return i;
    for (int d = v->sliced + 1; d < v->ndim; d++)
        inner *= v->shape[d];
    const int64_t size = v->shape[v->sliced], begin = slice_begin(size, p->nranks, rank),
                  own = slice_begin(size, p->nranks, rank + 1) - begin;
    return i / (own * inner) * size * inner + (begin + i / inner % own) * inner + i % inner;
}

static inline void to_memory(void *to, const struct program *p, const struct value *v, const double *all, int rank, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float x = (float)all[own_element(p, v, rank, i)];
        dtype_from_f32((unsigned char *)to + (size_t)i * fcc_dtype_size((enum fcc_dtype)v->dtype), &x, (enum fcc_dtype)v->dtype,
                       1);
    }
}

static inline void expect_values(const struct program_case *c, const struct program *p, const struct parameter *t,
                                 const void *got, const double *all, int rank)
{
    const int64_t n = value_elements_of(&t->value, p->nranks, rank);

    for (int64_t i = 0; i < n; i++) {
        const double want = all[own_element(p, &t->value, rank, i)];
        float v;
        dtype_to_f32(&v, (const unsigned char *)got + (size_t)i * fcc_dtype_size((enum fcc_dtype)t->value.dtype),
                     (enum fcc_dtype)t->value.dtype, 1);
        if (!(fabs((double)v - want) <= c->tolerance * (1 + fabs(want))) && !(isnan(v) && isnan(want)))
            check_failed(__FILE__, __LINE__, "rank %d of %d, %s%s: `%s`[%lld] is %.9g, expected is %.9g", rank, p->nranks,
                         c->file ? c->file : c->text, c->scheduled ? "" : ", as written", program_name_of(p, t->name),
                         (long long)i, (double)v, want);
    }
}

struct open_program {
    struct program *p;
    fcc_program *run;
    double *values[PROGRAM_PARAMETERS_MAX];
    fcc_buffer *buffers[PROGRAM_PARAMETERS_MAX];
};

/* Scattered parameters lie as tensors, from the last one on, with gaps; some of them in one piece. */
enum { GAP = 3 };
static inline bool lies_scattered(const struct program *p, uint32_t i)
{
    const struct value *v = &p->parameters[i].value;

    return v->table && v->layout != LAYOUT_SLICED && p->tensor_elements > 0 && i % 3 != 2;
}

static inline int64_t tensor_place(const struct program *p, int64_t tensor)
{
    return p->tensor_elements - reference_begin(p, tensor + 1) + GAP * (p->tensors - 1 - tensor);
}

static inline size_t scattered_bytes(const struct program *p, size_t size)
{
    return (size_t)(p->tensor_elements + GAP * p->tensors) * size;
}

/* Copies elements in one piece to their tensors, or back. */
static inline void scattered_copy(const struct program *p, unsigned char *scattered, unsigned char *whole, size_t size,
                                  bool back)
{
    for (int64_t t = 0; t < p->tensors; t++) {
        unsigned char *at = scattered + (size_t)tensor_place(p, t) * size, *in = whole + (size_t)reference_begin(p, t) * size;
        memcpy(back ? in : at, back ? at : in, (size_t)(reference_begin(p, t + 1) - reference_begin(p, t)) * size);
    }
}

static inline void tensors_tell(const struct open_program *o, const char *name, uint32_t i)
{
    const struct value *v = &o->p->parameters[i].value;
    struct fcc_tensor tensors[PROGRAM_TABLE_MAX];

    for (int64_t t = 0; t < o->p->tensors; t++)
        tensors[t] = fcc_tensor_1d(o->buffers[i], (uint64_t)tensor_place(o->p, t) * fcc_dtype_size((enum fcc_dtype)v->dtype),
                                   (enum fcc_dtype)v->dtype, reference_begin(o->p, t + 1) - reference_begin(o->p, t));
    OK(fcc_program_tensors(o->run, name, tensors, (int)o->p->tensors));
}

static inline void table_tell(const struct open_program *o)
{
    int64_t elements[PROGRAM_TABLE_MAX];

    for (int64_t t = 0; t < o->p->tensors; t++)
        elements[t] = reference_begin(o->p, t + 1) - reference_begin(o->p, t);
    if (o->p->tensors > 0)
        OK(fcc_program_table(o->run, elements, (int)o->p->tensors));
}

static inline void parameters_give(struct open_program *o, fcc_comm *comm, int rank)
{
    table_tell(o);
    for (uint32_t i = 0; i < o->p->nparameters; i++) {
        const struct parameter *t = &o->p->parameters[i];
        const char *name = program_name_of(o->p, t->name);
        o->values[i] = values_of(o->p, t);
        if (t->kind == PARAMETER_SCALAR) {
            OK(fcc_program_scalar(o->run, name, o->values[i][0]));
            continue;
        }
        const int64_t n = fcc_program_elements(o->run, name);
        const size_t size = fcc_dtype_size((enum fcc_dtype)t->value.dtype);
        CHECK(n == value_elements_of(&t->value, o->p->nranks, rank));
        const bool scattered = lies_scattered(o->p, i);
        OK(fcc_buffer_alloc(comm, fcc_program_shares(o->run, name) ? FCC_BUFFER_RESULT : FCC_BUFFER_LOCAL,
                            scattered ? scattered_bytes(o->p, size) : (size_t)n * size + size, &o->buffers[i]));
        void *bytes = calloc((size_t)n + 1, size);
        CHECK(bytes != NULL);
        to_memory(bytes, o->p, &t->value, o->values[i], rank, n);
        if (scattered) {
            void *tensors = calloc(1, scattered_bytes(o->p, size));
            CHECK(tensors != NULL);
            scattered_copy(o->p, tensors, bytes, size, false);
            OK(fcc_buffer_write(o->buffers[i], 0, tensors, scattered_bytes(o->p, size)));
            free(tensors);
            free(bytes);
            tensors_tell(o, name, i);
            continue;
        }
        OK(fcc_buffer_write(o->buffers[i], 0, bytes, (size_t)n * size));
        free(bytes);
        const struct fcc_tensor tensor = fcc_tensor_1d(o->buffers[i], 0, (enum fcc_dtype)t->value.dtype, n);
        OK(fcc_program_tensor(o->run, name, &tensor));
    }
}

/* The parameter's elements on this rank, in one piece of *bytes, to be freed. */
static inline void *parameter_read(const struct open_program *o, uint32_t i, int rank, size_t *bytes)
{
    const struct value *v = &o->p->parameters[i].value;
    const size_t size = fcc_dtype_size((enum fcc_dtype)v->dtype);
    *bytes = (size_t)value_elements_of(v, o->p->nranks, rank) * size;
    void *got = malloc(*bytes + 1);

    CHECK(got != NULL);
    if (lies_scattered(o->p, i)) {
        void *tensors = malloc(scattered_bytes(o->p, size));
        CHECK(tensors != NULL);
        OK(fcc_buffer_read(o->buffers[i], 0, tensors, scattered_bytes(o->p, size)));
        scattered_copy(o->p, tensors, got, size, true);
        free(tensors);
    } else {
        OK(fcc_buffer_read(o->buffers[i], 0, got, *bytes));
    }
    return got;
}

/* Why GPUs refuse a program; NULL: they do not. */
static inline const char *gpus_refuse(const struct program *p)
{
    struct program_steps steps;
    struct error e = {0};
    bool activation = false;

    CHECK(program_steps(p, &steps, &e) == 0);
    for (uint32_t i = 0; i < steps.nsteps; i++)
        activation |= steps.steps[i].kind == STEP_OF_PRODUCT && steps.steps[i].activation;
    program_steps_free(&steps);
    return activation ? "an activation fused with a product" : NULL;
}

/* Twice, so that what a run leaves is what the next one begins with. */
static inline void case_run(fcc_comm *comm, int rank, const struct program_case *c)
{
    char *text = text_of(c);

    if (without_products && strstr(text, "matmul(")) {
        free(text);
        return;
    }
    struct open_program o = {.p = program_of(c, text, fcc_comm_size(comm))};

    const char *refused = test_device() != FCC_DEVICE_CPU ? gpus_refuse(o.p) : NULL;
    if (refused) { /* GPUs refuse them before anything runs */
        CHECK(fcc_program_open(comm, text, strlen(text), c->sizes, c->nsizes, &o.run) == -EOPNOTSUPP && !o.run);
        if (!strstr(fcc_last_error(), refused))
            check_failed(__FILE__, __LINE__, "%s", fcc_last_error());
        program_free(o.p);
        free(text);
        return;
    }
    OK(fcc_program_open(comm, text, strlen(text), c->sizes, c->nsizes, &o.run));
    parameters_give(&o, comm, rank);
    for (int round = 0; round < 2; round++) {
        OK(fcc_program_run(o.run));
        reference_run(o.p, o.values);
        for (uint32_t i = 0; i < o.p->nparameters; i++) {
            const struct parameter *t = &o.p->parameters[i];
            if (t->update < 0)
                continue;
            size_t bytes;
            void *got = parameter_read(&o, i, rank, &bytes);
            expect_values(c, o.p, t, got, o.values[i], rank);
            bits_note(rank, got, bytes);
            free(got);
        }
    }
    fcc_program_close(o.run);
    for (uint32_t i = 0; i < o.p->nparameters; i++) {
        fcc_buffer_free(o.buffers[i]);
        free(o.values[i]);
    }
    program_free(o.p);
    free(text);
}

#define MLP                                                                                                                    \
    "program epilogue(M = 6, N = 700)\nin x: f32[M, N] local\nin b: f32[N]\nin r: f32[M, N]\nout y: f32[M, N]\nscalar seed, "  \
    "step\n"                                                                                                                   \
    "s = all_reduce(x)\nd = dropout(s + b, 0.25, seed, step)\ny = d + r\nschedule\n"

#define LAMB                                                                                                                   \
    "program lamb(N = 1500)\nin g: f32[N] local\ninout p, m, v: f32[N] replicated\nscalar lr, beta1, beta2, step, scale\n"     \
    "s = all_reduce(g)\na = s * scale\nm = beta1 * m + (1 - beta1) * a\nv = beta2 * v + (1 - beta2) * a * a\n"                 \
    "u = m / (1 - pow(beta1, step)) / (sqrt(v / (1 - pow(beta2, step))) + 0.01) + 0.01 * p\nwide = norm(p)\n"                  \
    "long = norm(u)\np = p - lr * select(wide * long > 0, wide / long, 1) * u\nschedule\n"

#define THIN                                                                                                                   \
    "program thin(M = 3, K = 100, N = 130)\nin x: f32[M, K] sliced(1)\nin w: f32[N, K] sliced(1)\nin b: f32[N]\nin r: f32[M, " \
    "N]\nout y: f32[M, N]\n"                                                                                                   \
    "product = matmul(x, transpose(w))\ns = all_reduce(product)\ny = relu(s + b + r)\nschedule\n"

#define PRODUCT                                                                                                                \
    "program product(M = 9, K = 64, N = 40)\nin a: f32[M, K] sliced(1)\nin b: f32[K, N] sliced(0)\nin bias: f32[N]\nin r: "    \
    "f32[M, N]\nout y: f32[M, N]\n"                                                                                            \
    "product = matmul(a, b)\ns = all_reduce(product)\ny = gelu(r + (bias + s))\nschedule\n"

#define ADAM_TENSORS                                                                                                           \
    "program adam(N = 9001, T = 11)\nin g: bf16[N] local scattered(T)\ninout p: bf16[N] replicated scattered(T)\ninout m: "    \
    "f32[N]\nscalar lr, "                                                                                                      \
    "beta1\n"                                                                                                                  \
    "s = all_reduce(g)\nm = beta1 * m + (1 - beta1) * f32(s)\np = bf16(f32(p) - lr * m)\nschedule\n"

static const struct program_case cases[] = {
    {.file = "client/programs/sgd.fcc", .sizes = {{"N", 3000}}, .nsizes = 1, .tolerance = 1e-5},
    {.file = "client/programs/sgd.fcc", .scheduled = true, .sizes = {{"N", 3001}}, .nsizes = 1, .tolerance = 1e-5},
    {.file = "client/programs/adam.fcc", .sizes = {{"N", 5000}}, .nsizes = 1, .tolerance = 1e-4},
    {.file = "client/programs/adam.fcc", .scheduled = true, .sizes = {{"N", 200003}}, .nsizes = 1, .tolerance = 1e-4},
    {.file = "client/programs/adam.fcc", .scheduled = true, .sizes = {{"N", 1}}, .nsizes = 1, .tolerance = 1e-4},
    {.file = "client/programs/adam.fcc", .scheduled = true, .sizes = {{"N", 0}}, .nsizes = 1, .tolerance = 1e-4},
    {.file = "client/programs/epilogue.fcc", .scheduled = true, .tolerance = 1e-4},
    {.file = "client/programs/mlp.fcc", .sizes = {{"M", 7}, {"K", 40}, {"H", 24}}, .nsizes = 3, .tolerance = 1e-4},
    {.file = "client/programs/mlp_slices.fcc",
     .scheduled = true,
     .sizes = {{"M", 7}, {"K", 40}, {"H", 24}},
     .nsizes = 3,
     .tolerance = 1e-4},
    {.file = "client/programs/pipeline.fcc", .scheduled = true, .tolerance = 1e-4},
    {.file = "client/programs/lamb.fcc", .sizes = {{"N", 5000}}, .nsizes = 1, .tolerance = 1e-4},
    {.file = "client/programs/lamb.fcc", .scheduled = true, .sizes = {{"N", 200003}}, .nsizes = 1, .tolerance = 1e-4},
    {.file = "client/programs/lamb.fcc", .scheduled = true, .sizes = {{"N", 1}}, .nsizes = 1, .tolerance = 1e-4},
    {.file = "client/programs/lamb.fcc", .scheduled = true, .sizes = {{"N", 0}}, .nsizes = 1, .tolerance = 1e-4},
    {.file = "client/programs/lamb_tensors.fcc", .sizes = {{"N", 5000}}, .nsizes = 1, .tolerance = 1e-4},
    {.file = "client/programs/lamb_tensors.fcc",
     .scheduled = true,
     .sizes = {{"N", 200003}, {"T", 37}},
     .nsizes = 2,
     .tolerance = 1e-4},
    {.file = "client/programs/lamb_tensors.fcc",
     .scheduled = true,
     .sizes = {{"N", 1}, {"T", 3}},
     .nsizes = 2,
     .tolerance = 1e-4},
    {.file = "client/programs/lamb_tensors.fcc",
     .scheduled = true,
     .sizes = {{"N", 0}, {"T", 1}},
     .nsizes = 2,
     .tolerance = 1e-4},
    {.file = "client/programs/lamb_tensors.fcc",
     .scheduled = true,
     .sizes = {{"N", 700}, {"T", 700}},
     .nsizes = 2,
     .tolerance = 1e-4},
    /* one pass over tensors that lie anywhere; what is added up and the result, too */
    {.text = ADAM_TENSORS "", .tolerance = 2e-2},
    {.text = ADAM_TENSORS "split s\nreorder s\nas_slice m\nfuse s_part, m_part, m, p as step\n",
     .scheduled = true,
     .tolerance = 2e-2},
    {.text = ADAM_TENSORS "fuse s, m, p\n", .scheduled = true, .tolerance = 2e-2},
    /* operators that need one piece, and sums of each tensor in each layout and dtype */
    {.text = "program tables(N = 3001, T = 9)\nin a: f32[N] local scattered(T)\nin h: bf16[N] scattered(T)\nin k: f32[T]\nout "
             "b, c: "
             "f32[N] scattered(T)\nout d: f32[N] local scattered(T)\nout e: f32[T]\nout f: bf16[T]\nout l: f32[T] local\nout "
             "o: f32[N]\nout w: f32[]\n"
             "b = all_reduce(a)\nc = broadcast(a, 0)\nd = send(a, 1)\ne = tensor_sum(f32(h)) * k\nf = tensor_norm(h)\nl = "
             "tensor_sum(a + 1)\n"
             "o = f32(h) * tensor_norm(f32(h)) - (e + e) * f32(h)\nw = norm(f32(h))\n",
     .tolerance = 2e-2},
    {.text = LAMB "", .tolerance = 1e-4},
    {.text = LAMB "split s\n", .scheduled = true, .tolerance = 1e-4},
    {.text = LAMB "split s\nreorder s past a, m, v\n", .scheduled = true, .tolerance = 1e-4},
    {.text = LAMB "split s\nreorder s\n", .scheduled = true, .tolerance = 1e-4},
    {.text = LAMB "split s\nreorder s\nas_slice m\nas_slice v\n", .scheduled = true, .tolerance = 1e-4},
    {.text = LAMB "fuse a, m, v, u, wide, long as moments\n", .scheduled = true, .tolerance = 1e-4},
    {.text = LAMB "fuse s, a\n", .scheduled = true, .tolerance = 1e-4},
    {.text = LAMB "split s\nreorder s\nas_slice m\nas_slice v\nfuse a, m_part, v_part, m, v, u, wide, long\nchunk s_part 2\n"
                  "overlap s_part, a\n",
     .scheduled = true,
     .tolerance = 1e-4},
    /* each sum of each layout and dtype; of expressions, in expressions; of one element and of many */
    {.text = "program sums(M = 7, N = 1301)\nin x: f32[M, N]\nin l: f32[M, N] local\nin t: f32[M, N] sliced(0)\nout a: f32[M, "
             "1]\nout b: f32[M, 1] local\nout c: f32[M, 1] sliced(0)\nout e: f32[]\nout f: f32[] local\nout k: f32[]\nout y: "
             "f32[M, N]\nout z: f32[M, N] sliced(0)\na = row_mean(x)\nb = row_norm(l + 1) * 2 + row_sum(l)\nc = row_sum(t)\ne "
             "= norm(x) + mean(t) - sum(x * 0.25)\nf = mean(l)\nk = norm(t)\ny = (x - row_mean(x)) / (row_norm(x) + 1) + x / "
             "(norm(x) + 1)\nz = t / (norm(t) + row_norm(t))\n",
     .tolerance = 1e-3},
    {.text = "program halves(M = 7, N = 130)\nin h: bf16[M, N]\nin t: f16[M, N] sliced(0)\nout d: bf16[M, 1]\nout e: f16[]\n"
             "d = row_mean(h * h)\ne = norm(t * 0.125)\n",
     .tolerance = 2e-2},
    {.text = "program layernorm(M = 9, N = 600)\nin x: f32[M, N] local\nin w: f32[N]\nout y: f32[M, N]\ns = all_reduce(x)\n"
             "c = s - row_mean(s)\ny = c / sqrt(row_mean(c * c) + 0.001) * w\nschedule\nsplit s\n",
     .scheduled = true,
     .tolerance = 1e-3},
    {.text = "program large(N = 300001)\nin x: f32[N]\nin t: f32[N] sliced(0)\nin h: f16[N] sliced(0)\nout a, b: f32[]\nout c: "
             "f16[]\n"
             "a = mean(x) + norm(x)\nb = norm(t) + mean(t)\nc = mean(h)\n",
     .tolerance = 1e-3},
    {.text = "program broken(N = 3000)\nin x: f32[N] sliced(0)\nin w: f32[5, N]\nout a, b: f32[]\nout y: f32[5, 1]\na = "
             "norm(log(x))\n"
             "b = sum(1 / (x * 0))\ny = row_norm(w * (1 / 0))\n",
     .tolerance = 1e-3},
    {.text = MLP, .tolerance = 1e-5},
    {.text = MLP "fuse s, d, y\n", .scheduled = true, .tolerance = 1e-5},
    {.text = MLP "split s\nreorder s\nfuse s_part, d, y\n", .scheduled = true, .tolerance = 1e-5},
    {.text = MLP "split s\nreorder s\n", .scheduled = true, .tolerance = 1e-5},
    {.text = MLP "split s\nreorder s past d\n", .scheduled = true, .tolerance = 1e-5},
    {.text = "program halves(N = 1500)\nin g: bf16[N] local\nin c: f16[N]\ninout p: f32[N]\nout q: bf16[N]\ns = "
             "all_reduce(g)\nu = p - 0.5 * f32(s)\np = u\n"
             "q = bf16(f32(c) * u)\nschedule\nfuse s, u\n",
     .scheduled = true,
     .tolerance = 2e-2},
    {.text = "program products(M = 9, K = 64, N = 40)\nin a: f32[M, K] sliced(1)\nin b: f32[K, N] sliced(0)\nin r: f32[M, "
             "N]\nout y: f32[M, N]\n"
             "s = all_reduce(matmul(a, b))\ny = gelu(s) + r\n",
     .tolerance = 1e-4},
    /* products alone, of each layout; of views; used twice */
    {.text =
         "program alone(M = 9, K = 25, N = 24)\nin a: f32[M, K] local\nin b: f32[K, N] local\nin x: f32[M, K] sliced(0)\nin w: "
         "f32[K, N]\nin u: f32[M, K]\nin z: f32[K, N] sliced(1)\nout c: f32[M, N] local\nout d: f32[M, N] sliced(0)\nout e, h: "
         "f32[M, N]\nout f: "
         "f32[M, N] sliced(1)\nout g: f32[M, N] sliced(0)\n"
         "c = matmul(a, b)\nd = relu(matmul(x, w))\ne = matmul(u, w) + 1\nf = matmul(u, z)\ng = matmul(as_slice(u, 0), w)\n"
         "t = matmul(as_slice(u, 1), as_slice(w, 0))\nr = all_reduce(t * 2)\nh = all_reduce(t) + r\n",
     .tolerance = 1e-4},
    {.text = "program halves(M = 5, K = 32, N = 12)\nin a: bf16[M, K] sliced(1)\nin b: bf16[K, N] sliced(0)\nin u: bf16[N, "
             "3]\nout y: bf16[M, 3]\n"
             "y = matmul(all_reduce(matmul(a, b)) * 0.0625, u)\n",
     .tolerance = 4e-2},
    /* a whole MLP: the first product's columns are spread over the ranks, and its epilogue is the product's */
    {.file = "client/programs/mlp_whole.fcc",
     .scheduled = true,
     .sizes = {{"M", 7}, {"K", 24}, {"H", 20}},
     .nsizes = 3,
     .tolerance = 1e-4},
    {.text =
         "program alone(M = 9, K = 25, N = 24)\nin a: f32[M, K] local\nin b: f32[K, N] local\nin l: f32[N] local\nin x: f32[M, "
         "K]\nin w: "
         "f32[K, N] sliced(1)\nin v: f32[K, N]\nin n: f32[N]\nin r: f32[M, N]\nout c: f32[M, N] local\nout d: f32[M, N] "
         "sliced(1)\nout e: f32[M, N]\nout f: "
         "f32[M, N] sliced(0)\n"
         "p = matmul(a, b)\nc = relu(p + l + as_local(r))\nq = matmul(x, w)\nd = q + n + r\nt = matmul(x, v)\ne = silu(r + t)\n"
         "u = matmul(as_slice(x, 0), v)\nf = gelu(n + u) \nschedule\nfuse p, c\nfuse q, d\nfuse t, e\nfuse u, f\n",
     .scheduled = true,
     .tolerance = 1e-4},
    /* few rows by a matrix that is stored transposed, and rows of the sum on each rank */
    {.text = THIN "", .tolerance = 1e-4},
    {.text = THIN "fuse product, s, y\n", .scheduled = true, .tolerance = 1e-4},
    {.text = "program thin(M = 2, K = 70, N = 130)\nin x: bf16[M, K] sliced(1)\nin w: bf16[N, K] sliced(1)\nout y: bf16[M, N]\n"
             "y = all_reduce(matmul(x, transpose(w)))\n",
     .tolerance = 4e-2},
    {.text = PRODUCT "", .tolerance = 1e-4},
    {.text = PRODUCT "fuse product, s, y\n", .scheduled = true, .tolerance = 1e-4},
    {.text = PRODUCT "split s\n", .scheduled = true, .tolerance = 1e-4},
    {.text = PRODUCT "split s\nreorder s\n", .scheduled = true, .tolerance = 1e-4},
    {.text = PRODUCT "split s\nreorder s\nas_slice r\n", .scheduled = true, .tolerance = 1e-4},
    {.file = "client/programs/mlp.fcc",
     .scheduled = true,
     .sizes = {{"M", 7}, {"K", 40}, {"H", 24}},
     .nsizes = 3,
     .tolerance = 1e-4},
    {.text = "program scattered(M = 11, K = 64, N = 40)\nin a: f32[M, K] sliced(1)\nin b: f32[K, N] sliced(0)\nin bias: "
             "f32[N]\nin r: f32[M, N]\nin q: "
             "f32[M, N] sliced(0)\nout y: f32[M, N] sliced(0)\nout z: f32[M, N] sliced(0)\n"
             "p = matmul(a, b)\ns = reduce_scatter(p)\ny = silu(s + bias + as_slice(r, 0))\nt = matmul(a, b)\nu = "
             "reduce_scatter(t, 0)\nz = gelu(q + u)\n"
             "schedule\nfuse p, s, y\nfuse t, u, z\n",
     .scheduled = true,
     .tolerance = 1e-4},
    {.text = "program moves(N = 600)\nin a: f32[N] local\nin w: f32[1]\nin t: f32[N] sliced(0)\nout b, c, h: f32[N]\nout d, e: "
             "f32[N] local\nout f: f32[N] sliced(0)\n"
             "b = broadcast(a * 2, 0)\nd = send(a, 1)\ne = reduce(a, 0) + 1\nf = reduce_scatter(a, 0) * w + as_slice(b, 0)\nc "
             "= all_gather(t) + select(b < 0, 1, w)\nh = 3\n",
     .tolerance = 1e-5},
    {.text =
         "program all(N = 513)\nin x: f32[N]\nscalar k\nout y, z: f32[N]\na = abs(x) + 0.5\n"
         "y = max(exp(-a), min(log(a), k)) + pow(a, k) * tanh(x) - sigmoid(x) / rsqrt(a) + relu(x) * silu(x) + gelu(x)\n"
         "z = select(x >= k, sqrt(a), -x) + select(x == 0, 1, k * x) + select(x != 0, x, k) + select(x > 0, 1, x) + select(x "
         "<= k, x, 3)\n",
     .tolerance = 1e-4},
    /* what was read of a parameter stays what it was after the parameter's update */
    {.text =
         "program before(N = 1500)\ninout m: f32[N]\nout prev, z: f32[N]\nprev = m\nm = m * 0.5\nz = prev * 2\nschedule\nfuse "
         "prev, m, z\n",
     .scheduled = true,
     .tolerance = 1e-5},
    {.text = "program views(N = 1500)\ninout w, v: f32[N]\nout y: f32[N] local\nout z: f32[N] sliced(0)\nold = "
             "as_local(w)\npart = as_slice(v, 0)\n"
             "w = w * 0.5\nv = v * 0.25\ny = old + 1\nz = part + 1\n",
     .tolerance = 1e-5},
    {.text = "program nan(N = 600)\nin x: f32[N]\nout y, z: f32[N]\ny = relu(log(x))\nz = relu(0 / 0)\n", .tolerance = 1e-4},
    {.text = "program slices(N = 700)\nin x: f32[N] local\nin w: f32[N] sliced(0)\nout y: f32[N] sliced(0)\ns = "
             "all_reduce(x)\ny = s * w\nschedule\nfuse s, y\n",
     .scheduled = true,
     .tolerance = 1e-5},
    {.text = "program named(M = 5, N = 300)\nin x: f32[M, N]\nin b: f32[N]\nscalar seed, step\nout y: f32[M, N]\n"
             "d = dropout(b, 0.25, seed, step)\ny = x + d\n",
     .tolerance = 1e-5},
};

static inline void tree_write(FILE *f, int levels, int casts)
{
    if (levels == 0) {
        for (int i = 0; i < casts; i++)
            (void)fputs("f32(", f);
        (void)fputc('x', f);
        for (int i = 0; i < casts; i++)
            (void)fputc(')', f);
        return;
    }
    (void)fputc('(', f);
    tree_write(f, levels - 1, casts);
    (void)fputs(" + ", f);
    tree_write(f, levels - 1, casts);
    (void)fputc(')', f);
}

/* One statement of more operations than a step has instructions: f32 of f32 is none. */
static inline void operations_run(fcc_comm *comm, int rank)
{
    char *text = NULL;
    size_t length;
    FILE *f = open_memstream(&text, &length);

    CHECK(f != NULL);
    (void)fputs("program casts(N = 700)\nin x: f32[N]\nout y: f32[N]\ny = ", f);
    tree_write(f, 6, 36);
    CHECK(fputc('\n', f) == '\n' && fclose(f) == 0);
    const struct program_case c = {.text = text, .tolerance = 1e-5};
    case_run(comm, rank, &c);
    free(text);
}

/* Each program that client/PROGRAMS.md shows. */
static inline void pages_run(fcc_comm *comm, int rank)
{
    static char page[65536];
    FILE *f = fopen("client/PROGRAMS.md", "r");
    int n = 0;

    CHECK(f && fread(page, 1, sizeof(page) - 1, f) > 0);
    (void)fclose(f);
    for (char *at = strstr(page, "```fcc\n"), *end; at; at = strstr(end + 3, "```fcc\n"), n++) {
        end = strstr(at + 7, "```");
        CHECK(end != NULL);
        *end = '\0';
        const struct program_case c = {.text = at + 7, .scheduled = true, .tolerance = 1e-4};
        case_run(comm, rank, &c);
    }
    CHECK(n >= 4);
}

/* A number that a parameter of 16 bits gets has these bits for who uses it in the same step, too. */
static inline void number_run(fcc_comm *comm)
{
    static const char text[] =
        "program constant(N = 5)\nout w: bf16[N]\nout y: f32[N]\nw = 0.1\ny = f32(w) * 3\nschedule\nfuse w, y\n";
    const float number = 0.1f;
    uint16_t half;
    float stored;
    fcc_buffer *w, *y;
    fcc_program *p;

    dtype_from_f32(&half, &number, FCC_BF16, 1);
    dtype_to_f32(&stored, &half, FCC_BF16, 1);
    OK(fcc_program_open(comm, text, strlen(text), NULL, 0, &p));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 64, &w));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 64, &y));
    const struct fcc_tensor tw = fcc_tensor_1d(w, 0, FCC_BF16, 5), ty = fcc_tensor_1d(y, 0, FCC_F32, 5);
    OK(fcc_program_tensor(p, "w", &tw));
    OK(fcc_program_tensor(p, "y", &ty));
    OK(fcc_program_run(p));
    uint16_t halves[5];
    float floats[5];
    OK(fcc_buffer_read(w, 0, halves, sizeof(halves)));
    OK(fcc_buffer_read(y, 0, floats, sizeof(floats)));
    for (int i = 0; i < 5; i++)
        CHECK(halves[i] == half && floats[i] == stored * 3);
    fcc_program_close(p);
    fcc_buffer_free(w);
    fcc_buffer_free(y);
}

static inline void cases_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);

    (void)argument;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        case_now = (int)i;
        case_run(comm, rank, &cases[i]);
    }
    pages_run(comm, rank);
    operations_run(comm, rank);
    number_run(comm);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

#endif
