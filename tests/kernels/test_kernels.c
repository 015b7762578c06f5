/* SPDX-License-Identifier: MIT
 *
 * test_kernels.c - the operators' results on the cpu against plain loops in double precision that share no code with them.
 *
 * All ranks run in this thread: each in turn takes its next slice if the flags it waits for are raised. Every input lies in an
 * allocation of just its size, for the sanitizers; every byte around and between an output's elements must stay as it was.
 *
 * FCC_TEST_SEED=N repeats a run; a failure prints the seed and the case.
 */
#include "tests/kernels/kernel_embedding.h"
#include "tests/kernels/kernel_gather.h"
#include "tests/kernels/kernel_gemm.h"
#include "tests/kernels/kernel_gemv.h"
#include "tests/kernels/kernel_scatter.h"

#include "kernels/cpu/lanes/lanes.h"
#include "kernels/plan/dtype.h"

/* ---- f16, bf16 and e4m3 ---- */

struct format {
    enum fcc_dtype dtype;
    int fraction, exponent;
};
static const struct format formats[] = {{FCC_F16, 10, 5}, {FCC_BF16, 7, 8}};

static void expect_rounded(const struct format *format, const float *in, const uint16_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double value = float_round((double)in[i], format->fraction, format->exponent);
        double got = get(out, format->dtype, (int64_t)i);
        assert_true((isnan(got) && isnan(value)) || (got == value && !signbit(got) == !signbit(value)));
    }
}

/* One value to f32 and back, and f32 around it and around the middle between it and the next one. */
static void expect_conversions(const struct format *format, uint16_t h)
{
    double value = float_value(h, format->fraction, format->exponent);
    uint32_t bits, half = format->dtype == FCC_F16 ? 0x1000 : 0x8000;
    uint16_t back[2], halves[16]; /* twice what is used: get() could read f32 */
    float f, near[8];

    dtype_to_f32(&f, &h, format->dtype, 1);
    dtype_from_f32(back, &f, format->dtype, 1);
    if (isnan(value)) {
        assert_true(isnan(f) && isnan(get(back, format->dtype, 0)));
        assert_true((h ^ back[0]) < 1 << format->fraction); /* sign and exponent */
        return;
    }
    assert_true(f == (float)value && !signbit(f) == !signbit(value));
    assert_int_equal(h, back[0]);
    memcpy(&bits, &f, sizeof(bits));
    for (uint32_t j = 0; j < 8; j++) {
        uint32_t changed = bits + (j < 4 ? j - 2 : half + j - 6);
        memcpy(&near[j], &changed, sizeof(changed));
    }
    dtype_from_f32(halves, near, format->dtype, 8);
    expect_rounded(format, near, halves, 8);
}

static void test_dtypes(void **state)
{
    (void)state;
    for (size_t k = 0; k < 2; k++)
        for (uint32_t i = 0; i < 65536; i++)
            expect_conversions(&formats[k], (uint16_t)i);
    /* random f32 of all sizes, subnormal ones too, and lengths that are no multiple of a vector's */
    for (int round = 0; round < 20000; round++) {
        float in[37];
        uint16_t out[74];
        size_t n = 1 + (size_t)random_below(37);
        const struct format *format = &formats[random_below(2)];
        for (size_t i = 0; i < n; i++) {
            uint32_t bits = random_u32();
            if (random_below(2)) /* within f16's subnormals and normals */
                bits = (bits & 0x807fffff) | (uint32_t)(100 + random_below(45)) << 23;
            memcpy(&in[i], &bits, sizeof(bits));
        }
        out[n] = 0x5a5a;
        dtype_from_f32(out, in, format->dtype, n);
        assert_int_equal(out[n], 0x5a5a);
        expect_rounded(format, in, out, n);
    }
}

/* As where the processor does not convert f16. */
static void test_dtypes_without_f16c(void **state)
{
#ifdef FCC_F16C
    const bool has = dtype_f16c;

    if (!has)
        skip();
    dtype_f16c = false;
    test_dtypes(state);
    dtype_f16c = has;
#else
    (void)state;
    skip();
#endif
}

/* All codes, at every place in a vector and behind one, to f32 and back. */
static void test_f8(void **state)
{
    unsigned char codes[256 + 37], back[256];
    float out[256 + 37 + 1];

    (void)state;
    for (size_t i = 0; i < sizeof(codes); i++)
        codes[i] = (unsigned char)i;
    for (size_t first = 0; first < 37; first++) {
        out[256] = 5;
        dtype_to_f32(out, codes + first, FCC_F8E4M3, 256 - first);
        for (size_t i = 0; i < 256 - first; i++) {
            const int code = codes[first + i], exponent = code >> 3 & 15, fraction = code & 7;
            const double magnitude = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
            assert_true((code & 0x7f) == 0x7f ? isnan(out[i]) : fabs((double)out[i]) == magnitude);
            assert_int_equal(!!signbit(out[i]), code >> 7);
        }
        assert_true(out[256] == 5);
        f8e4m3_from_f32(back, out, 256 - first);
        assert_memory_equal(back, codes + first, 256 - first);
    }
}

/* ---- loops for each width of vectors ---- */

enum { LANES_M = 3, LANES_N = 70, LANES_K = 1100, LANES_ROWS = 50, LANES_IDS = 40 };

/* Inputs, and what the loops of one width make of them. */
struct lanes_case {
    float a[LANES_M * LANES_K], f32[LANES_N * LANES_K], weights[LANES_IDS];
    unsigned char b[LANES_N * LANES_K * 2];
    uint32_t ids[LANES_IDS + LANES_AHEAD];
};
struct lanes_made {
    float products[4][LANES_M * LANES_N], sums[6][512];
};

static void lanes_make(const struct lanes_loops *l, const struct lanes_case *c, int64_t k, int64_t dim, struct lanes_made *out)
{
    lanes_multiply *const multiply[] = {l->multiply_f32, l->multiply_f16, l->multiply_bf16, l->multiply_f8};
    lanes_add *const add[] = {l->add_f32,          l->add_f16,          l->add_bf16,
                              l->add_f32_weighted, l->add_f16_weighted, l->add_bf16_weighted};

    memset(out, 0, sizeof(*out));
    for (int i = 0; i < 4; i++)
        multiply[i](LANES_M, LANES_N, k, c->a, k, i == 0 ? (const unsigned char *)c->f32 : c->b, k, out->products[i], LANES_N);
    for (int i = 0; i < 6; i++) {
        const bool is_f32 = i % 3 == 0;
        const struct lanes_table t = {is_f32 ? (const unsigned char *)c->f32 : c->b, (size_t)dim * (is_f32 ? 4 : 2), dim, 0};
        add[i](out->sums[i], &t, c->ids, LANES_IDS, i < 3 ? NULL : c->weights);
    }
}

/* Whatever a processor's vectors, the bits are those of the narrowest ones: products are exact here, as the widest ones round them with the sum. */
static void test_lanes(void **state)
{
    struct lanes_case *c = calloc(1, sizeof(*c));
    struct lanes_made *narrow = malloc(sizeof(*narrow)), *wide = malloc(sizeof(*wide));

    (void)state;
    assert_true(c && narrow && wide && lanes_loops(16)->bytes == 16 && lanes_loops(LANES_WIDEST)->bytes >= 16);
    for (size_t i = 0; i < LANES_N * LANES_K; i++) {
        c->f32[i] = (float)random_below(2000) / 512 - 1;
        c->b[2 * i] = (unsigned char)(random_below(2) << 7 | random_below(0x7f)); /* no infinity and no NaN, whichever dtype */
        c->b[2 * i + 1] = (unsigned char)random_below(0x78);
    }
    for (size_t i = 0; i < LANES_M * LANES_K; i++)
        c->a[i] = (float)random_below(2000) / 512 - 2;
    for (size_t i = 0; i < LANES_IDS + LANES_AHEAD; i++)
        c->ids[i] = random_below(LANES_ROWS);
    for (size_t i = 0; i < LANES_IDS; i++)
        c->weights[i] = (float)random_below(100) / 64;
    for (int round = 0; round < 200; round++) {
        const int64_t k = 1 + random_below(LANES_K), dim = 1 + random_below(500);
        lanes_make(lanes_loops(16), c, k, dim, narrow);
        for (int bytes = 32; bytes <= LANES_WIDEST; bytes *= 2) {
            lanes_make(lanes_loops(bytes), c, k, dim, wide);
            for (int i = 0; i < 4; i++)
                assert_memory_equal(narrow->products[i], wide->products[i], sizeof(narrow->products[i]));
            for (int i = 0; i < 6; i++)
                assert_memory_equal(narrow->sums[i], wide->sums[i], sizeof(narrow->sums[i]));
        }
    }
    free(c);
    free(narrow);
    free(wide);
}

/* ---- the rest ---- */

static void test_noop(void **state)
{
    struct test_case c = {.nranks = 5};
    struct error e = {0};

    (void)state;
    (void)snprintf(case_text, sizeof(case_text), "noop");
    case_match(&c, FCC_OP_NOOP);
    for (int kind = FCC_SCHEDULE_FUSED; kind <= FCC_SCHEDULE_COMM_ONLY; kind++)
        assert_int_equal(execute(&c, (struct schedule){.kind = (enum fcc_schedule_kind)kind}, &e), 0);
    problem_free(c.problem);
}

static void test_scratch(void **state)
{
    struct workgroup wg = {0};
    unsigned char *a, *b;

    (void)state;
    a = must(workgroup_scratch(&wg, 1));
    assert_true((uintptr_t)a % 64 == 0);
    memset(a, 1, 1);
    b = must(workgroup_scratch(&wg, 1000000));
    memset(b, 1, 1000000);
    assert_ptr_equal(workgroup_scratch(&wg, 500), b);
    assert_null(workgroup_scratch(&wg, SIZE_MAX - 5));
    assert_ptr_equal(workgroup_scratch(&wg, 1000000), b);
    workgroup_release(&wg);
    assert_non_null(workgroup_scratch(&wg, 0));
    workgroup_release(&wg);
}

int main(void)
{
#define ON_ALL_DEVICES                                                                                                         \
    cmocka_unit_test(test_embedding), cmocka_unit_test(test_embedding_ranges), cmocka_unit_test(test_embedding_ranges_large),  \
        cmocka_unit_test(test_gemv), cmocka_unit_test(test_gemv_order), cmocka_unit_test(test_gemv_regular),                   \
        cmocka_unit_test(test_gemm), cmocka_unit_test(test_gemm_regular), cmocka_unit_test(test_gemm_tiles),                   \
        cmocka_unit_test(test_gemm_rows), cmocka_unit_test(test_gemm_sums), cmocka_unit_test(test_gemm_epilogue),              \
        cmocka_unit_test(test_sums_epilogue), cmocka_unit_test(test_scatter), cmocka_unit_test(test_sums_any_order),           \
        cmocka_unit_test(test_gather), cmocka_unit_test(test_gather_epilogue), cmocka_unit_test(test_noop)
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dtypes),
                                       cmocka_unit_test(test_dtypes_without_f16c),
                                       cmocka_unit_test(test_f8),
                                       cmocka_unit_test(test_lanes),
                                       ON_ALL_DEVICES,
                                       cmocka_unit_test(test_scratch)};
    const struct CMUnitTest on_gpus[] = {ON_ALL_DEVICES};
#undef ON_ALL_DEVICES
    const char *seed = getenv("FCC_TEST_SEED");

    random_state = seed ? strtoull(seed, NULL, 0) : 1;
    (void)printf("FCC_TEST_SEED=%llu\n", (unsigned long long)random_state);
    return bed_device() ? cmocka_run_group_tests(on_gpus, bed_setup, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
