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
#include "tests/program/program_list.h"
#include "tests/program/reference.h"

/* If there is one: where each rank notes each case's results, as a hash of their bits, of a case's number and a rank. Shared by the ranks. */
enum { BITS_CASES = 192, BITS_RANKS = 8 };
static_assert(sizeof(cases) / sizeof(cases[0]) <= BITS_CASES, "each has its bits");
static uint64_t (*case_bits)[BITS_RANKS];
static int case_now;

static inline void bits_note(int rank, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;

    for (size_t i = 0; i < n && case_bits && case_now < BITS_CASES && rank < BITS_RANKS; i++)
        case_bits[case_now][rank] = (case_bits[case_now][rank] ^ at[i]) * UINT64_C(1099511628211);
}

/* How a program is run whose tensors have been given: for the first time, and again. */
static inline int case_call(fcc_program *p, int round)
{
    (void)round;
    return fcc_program_run(p);
}
static int (*case_calls)(fcc_program *p, int round) = case_call;

/* Fake GPUs compute no products of matrices, and add no rows of tables up: their programs are left out. */
static bool without_products;

struct given {
    const char *name;
    double value;
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
    const size_t count = reference_count(p, &t->value) * (size_t)p->rank_groups;
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
        for (int g = 0; g < p->rank_groups; g++)
            if (strcmp(name, givens[i].name) == 0)
                v[g] = givens[i].value;
    return v;
}

/* Offsets (`offsets`) end bags, some of which are empty; any other integers are indices of 5 rows and more. */
static inline void integers_fill(const struct program *p, const struct parameter *t, double *v)
{
    const bool offsets = strcmp(program_name_of(p, t->name), "offsets") == 0;
    const int64_t n = t->value.shape[0];

    for (int64_t i = 0; i < n * p->nranks * p->rank_groups; i++)
        v[i] = offsets ? (double)(i % n / 2 * 3) : (double)(i * 7 % 5);
}

static inline void integers_to_memory(void *to, const struct program *p, const struct value *v, const double *all, int rank,
                                      int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const int64_t x = (int64_t)all[reference_own(p, v, rank, i)];
        const int32_t half = (int32_t)x;
        if (v->dtype == FCC_I64)
            memcpy((unsigned char *)to + (size_t)i * sizeof(x), &x, sizeof(x));
        else
            memcpy((unsigned char *)to + (size_t)i * sizeof(half), &half, sizeof(half));
    }
}

static inline void to_memory(void *to, const struct program *p, const struct value *v, const double *all, int rank, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float x = (float)all[reference_own(p, v, rank, i)];
        dtype_from_f32((unsigned char *)to + (size_t)i * fcc_dtype_size((enum fcc_dtype)v->dtype), &x, (enum fcc_dtype)v->dtype,
                       1);
    }
}

static inline void expect_values(const struct program_case *c, const struct program *p, const struct parameter *t,
                                 const void *got, const double *all, int rank)
{
    const int64_t n = value_elements_of(&t->value, p->nranks, rank % p->nranks);

    for (int64_t i = 0; i < n; i++) {
        const double want = all[reference_own(p, &t->value, rank, i)];
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
        const bool integers = t->value.dtype == FCC_I32 || t->value.dtype == FCC_I64;
        if (integers)
            integers_fill(o->p, t, o->values[i]);
        if (t->kind == PARAMETER_SCALAR) {
            OK(fcc_program_scalar(o->run, name, o->values[i][0]));
            continue;
        }
        const int64_t n = fcc_program_elements(o->run, name);
        const size_t size = fcc_dtype_size((enum fcc_dtype)t->value.dtype);
        CHECK(n == value_elements_of(&t->value, o->p->nranks, rank % o->p->nranks));
        const bool scattered = lies_scattered(o->p, i);
        OK(fcc_buffer_alloc(comm, fcc_program_shares(o->run, name) ? FCC_BUFFER_RESULT : FCC_BUFFER_LOCAL,
                            scattered ? scattered_bytes(o->p, size) : (size_t)n * size + size, &o->buffers[i]));
        void *bytes = calloc((size_t)n + 1, size);
        CHECK(bytes != NULL);
        (integers ? integers_to_memory : to_memory)(bytes, o->p, &t->value, o->values[i], rank, n);
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
    *bytes = (size_t)value_elements_of(v, o->p->nranks, rank % o->p->nranks) * size;
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

/* Whether so many ranks are groups, as the program has them. */
static inline bool groups_bind(const struct program_case *c, const char *text, int ranks)
{
    struct program_size sizes[3];
    struct program *p;
    struct error e = {0};

    for (int i = 0; i < c->nsizes; i++)
        sizes[i] = (struct program_size){c->sizes[i].name, c->sizes[i].value};
    CHECK(program_parse(text, strlen(text), &p, &e) == 0);
    const bool divides = program_bind(p, ranks, sizes, (size_t)c->nsizes, &e) == 0 || !strstr(e.text, "groups of");
    program_free(p);
    return divides;
}

/* Programs of groups run where these have as many ranks each; elsewhere they are refused. */
static inline bool groups_divide(fcc_comm *comm, const struct program_case *c, const char *text)
{
    fcc_program *run;
    const bool divides = groups_bind(c, text, fcc_comm_size(comm));

    if (!divides)
        FAILS(fcc_program_open(comm, text, strlen(text), c->sizes, c->nsizes, &run), -EINVAL, "groups of",
              "ranks: allowed are numbers that divide the number of ranks");
    return divides;
}

/* Twice, so that what a run leaves is what the next one begins with. */
static inline void case_run(fcc_comm *comm, int rank, const struct program_case *c)
{
    char *text = text_of(c);

    if (without_products && (strstr(text, "matmul(") || strstr(text, "embedding"))) {
        free(text);
        return;
    }
    if (!groups_divide(comm, c, text)) {
        free(text);
        return;
    }
    struct open_program o = {.p = program_of(c, text, fcc_comm_size(comm))};

    OK(fcc_program_open(comm, text, strlen(text), c->sizes, c->nsizes, &o.run));
    parameters_give(&o, comm, rank);
    for (int round = 0; round < 2; round++) {
        const int status = case_calls(o.run, round);
        if (test_device() != FCC_DEVICE_CPU && strstr(text, "elu(") && status == -EOPNOTSUPP &&
            strstr(fcc_last_error(), "an activation fused with a product"))
            break; /* where fccd launches the steps */
        OK(status);
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
        if (test_takes(i))
            case_run(comm, rank, &cases[i]);
    }
    case_now = BITS_CASES; /* those that follow are not of the list, and their bits are compared with nothing */
    pages_run(comm, rank);
    operations_run(comm, rank);
    number_run(comm);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

#endif
