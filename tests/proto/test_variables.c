/* SPDX-License-Identifier: MIT
 *
 * test_variables.c - the list of environment variables that fccd's programs know, and the nearest name to a misspelt one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/common/config.h"
#include "proto/variables.h"

/* The library knows the daemon's variables, and not their keys: it must not call one of them unknown. */
static void known_ones(void **state)
{
    static const char *const keys[] = {
#define X(KEY, field, unit, standard, smallest, largest, what) "FCCD_" #KEY,
        CONFIG_NUMBERS(X)
#undef X
#define X(KEY, field, bytes, standard, what) "FCCD_" #KEY,
            CONFIG_STRINGS(X)
#undef X
    };
    size_t n;
    const char *const *known = variables_known(&n);

    (void)state;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        bool found = false;
        for (size_t j = 0; j < n; j++)
            found |= !strcmp(keys[i], known[j]);
        if (!found)
            fail_msg("proto/variables.c does not know %s", keys[i]);
    }
    for (size_t j = 0; j < n; j++)
        assert_string_equal(name_nearest(known[j], known, n), known[j]);
    assert_null(name_nearest("FCC_RANK", known, 0));
    assert_string_equal(name_nearest("FCC_RANKS", known, n), "FCC_RANK");
    assert_string_equal(name_nearest("FCC_ISZE", known, n), "FCC_SIZE");
    assert_string_equal(name_nearest("FCCD_MEMORY_USER_MB", known, n), "FCCD_MEMORY_PER_USER_MB");
}

static char found[512];

static void note(const char *name, const char *nearest)
{
    size_t n = strlen(found);

    (void)snprintf(found + n, sizeof(found) - n, "%s>%s ", name, nearest);
}

static void unknown_ones(void **state)
{
    static char long_name[300];

    (void)state;
    (void)clearenv();
    (void)setenv("FCC_TEST_ANYTHING", "1", 1);
    (void)setenv("FCC", "1", 1);
    (void)setenv("XFCC_RANKS", "1", 1);
    (void)setenv("FCCD_GPUS", "none", 1);
    variables_check(note);
    assert_string_equal(found, "");
    (void)setenv("FCCD_GPU", "none", 1);
    (void)setenv("FCC_LOCALRANK", "", 1);
    variables_check(note);
    assert_string_equal(found, "FCCD_GPU>FCCD_GPUS FCC_LOCALRANK>FCC_LOCAL_RANK ");
    (void)clearenv();
    (void)snprintf(long_name, sizeof(long_name), "FCC_%0290d", 0);
    (void)setenv(long_name, "1", 1);
    found[0] = '\0';
    variables_check(note); /* told by its beginning */
    assert_memory_equal(found, long_name, 63);
    assert_int_equal(found[63], '>');
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_ones), cmocka_unit_test(unknown_ones)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
