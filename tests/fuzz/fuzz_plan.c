/* SPDX-License-Identifier: MIT
 *
 * fuzz_plan.c - the plans of any problem, by the properties that test_plan.c asserts of random ones: every element is computed and delivered
 * once, flags are raised before they are waited for, every order of execution comes to an end, and the same problem has the same plan.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/fuzz/random_input.h"

#include "tests/plan/plan_expect.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct test_case c;

    random_begin(data, size);
    enum fcc_op op = all_ops[random_below(sizeof(all_ops) / sizeof(all_ops[0]))];
    case_open(&c, op, (enum fcc_schedule_kind)(FCC_SCHEDULE_FUSED + random_below(4)), 0);
    expect_plans(&c);
    case_close(&c);
    return 0;
}
