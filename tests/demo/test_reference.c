/* SPDX-License-Identifier: MIT
 *
 * test_reference.c - the reference against what the compiler knows and what can be counted on fingers, and that it finds what
 * is wrong.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/demo/demo.h"

static double bits_f32(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* 2^-24 is f16's smallest subnormal; the others follow from the format's definition. */
static void formats_are_read(void **state)
{
    (void)state;
    assert_true(reference_f16(0x0001) == 0x1p-24);
    assert_true(reference_f16(0x03ff) == 1023 * 0x1p-24);
    assert_true(reference_f16(0x0400) == 0x1p-14);
    assert_true(reference_f16(0x3555) == 1365.0 / 4096);
    assert_true(reference_f16(0xfbff) == -65504);
    assert_true(reference_f16(0xfc00) == -(double)INFINITY);
    assert_true(isnan(reference_f16(0xffff)));
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        double expected = bits_f32(bits << 16), got = reference_bf16((uint16_t)bits);
        assert_true(got == expected || (isnan(got) && isnan(expected)));
    }
}

static void short_formats_go_there_and_back(void **state)
{
    (void)state;
    for (int i = -1024; i <= 1024; i++) {
        assert_true(reference_f16(number_f16((float)i * (float)MOE_TOKEN_SCALE)) == i * MOE_TOKEN_SCALE);
        assert_true(reference_f16(number_f16((float)i * (float)MOE_EXPERT_SCALE)) == i * MOE_EXPERT_SCALE);
    }
    for (uint64_t i = 0; i < 100000; i++) {
        float x = (float)((double)(int64_t)hash_mix(i) * 0x1p-62);
        assert_true(reference_bf16(number_bf16(x)) == reference_round(REFERENCE_BF16, (double)x));
    }
}

static void rounding_is_to_nearest_even(void **state)
{
    (void)state;
    assert_true(reference_round(REFERENCE_BF16, 257) == 256);
    assert_true(reference_round(REFERENCE_BF16, 259) == 260);
    assert_true(reference_round(REFERENCE_BF16, -257.5) == -258);
    assert_true(reference_round(REFERENCE_F16, 2049) == 2048);
    assert_true(reference_round(REFERENCE_F16, 2051) == 2052);
    assert_true(reference_round(REFERENCE_F16, 0) == 0);
}

static void bags_are_pooled(void **state)
{
    const float table[] = {1, 10, 2, 20, 4, 40}, weights[] = {1, 0.5f, 2};
    const int64_t ids[] = {2, 0, 2};
    double out[2] = {-1, -1};

    (void)state;
    reference_bag(table, 2, ids, NULL, 3, false, out);
    assert_true(out[0] == 9 && out[1] == 90);
    reference_bag(table, 2, ids, NULL, 3, true, out);
    assert_true(out[0] == 3 && out[1] == 30);
    reference_bag(table, 2, ids, weights, 3, false, out);
    assert_true(out[0] == 12.5 && out[1] == 125);
    reference_bag(table, 2, ids, NULL, 0, true, out);
    assert_true(out[0] == 0 && out[1] == 0);
}

static void products_are_products(void **state)
{
    const int16_t x[] = {1, 2, 3}, w[] = {1, 2, 3, 4, 5, 6};
    const signed char gate[] = {1, 0}, up[] = {0, 1}, down[] = {3, 5};
    const struct reference_mlp mlp = {.hidden = 2, .inner = 1, .gate = gate, .up = up, .down = down, .scale = 2};
    const float token[] = {1, 3};
    double y[2], inner[1], silu = 2 / (1 + exp(-2.0));

    (void)state;
    reference_row(x, 0.5, w, 4, 3, 2, y);
    assert_true(y[0] == 44 && y[1] == 56);
    reference_mlp(&mlp, token, REFERENCE_F32, inner, y);
    assert_true(fabs(inner[0] - silu * 6) < 1e-12);
    assert_true(fabs(y[0] - silu * 36) < 1e-12 && fabs(y[1] - silu * 60) < 1e-12);
}

/* A single element that is off, missing or written where nobody was to write is found, in each type. */
static void wrong_elements_are_counted(void **state)
{
    const double expected[] = {1, -0.5, 0, (double)NAN};
    float f32[] = {1, -0.5f, 0, NAN};
    int64_t first = -1;
    uint16_t f16[] = {0x3c00, 0xb800, 0, 0xffff}, bf16[] = {0x3f80, 0xbf00, 0, 0xffff};

    (void)state;
    assert_int_equal(reference_compare(REFERENCE_F32, f32, expected, 4, &first), 0);
    assert_int_equal(reference_compare(REFERENCE_F16, f16, expected, 4, &first), 0);
    assert_int_equal(reference_compare(REFERENCE_BF16, bf16, expected, 4, &first), 0);
    f32[0] = 1.0001f;
    f32[1] = NAN;
    f32[2] = 0.001f;
    f32[3] = 0;
    assert_int_equal(reference_compare(REFERENCE_F32, f32, expected, 4, &first), 4);
    f16[0] = 0x3c02; /* two units in the last place */
    bf16[0] = 0x3f82;
    first = -1;
    assert_int_equal(reference_compare(REFERENCE_F16, f16, expected, 4, &first), 1);
    assert_int_equal(reference_compare(REFERENCE_BF16, bf16, expected, 4, &first), 1);
    assert_int_equal(first, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_are_read),
        cmocka_unit_test(short_formats_go_there_and_back),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(bags_are_pooled),
        cmocka_unit_test(products_are_products),
        cmocka_unit_test(wrong_elements_are_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
