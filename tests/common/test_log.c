/* SPDX-License-Identifier: MIT
 *
 * test_log.c - what stands in the log: a flood of lines is held back and counted, by kind and by subject, and no text breaks a line.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "proto/base/error.h"
#include "proto/base/log_limit.h"

#define SECOND_NS 1000000000ull

static char said[64][512];
static int nsaid;

static void say(enum log_level level, const char *text)
{
    (void)level;
    assert_true(nsaid < 64);
    (void)snprintf(said[nsaid++], sizeof(said[0]), "%s", text);
}

static int nothing_said(void **state)
{
    (void)state;
    nsaid = 0;
    return 0;
}

/* So many lines of that kind at that time: how many may be written. */
static int lines(const char *format, uint64_t subject, int n, uint64_t now_ns)
{
    int may = 0;

    for (int i = 0; i < n; i++) {
        if (!log_limit_take(LOG_LEVEL_INFO, format, subject, now_ns, say))
            continue;
        log_limit_note(format, subject, "refused somebody");
        may++;
    }
    return may;
}

static void flood(void **state)
{
    static const char kind[] = "flood";
    uint64_t t = 1000 * SECOND_NS;

    (void)state;
    assert_int_equal(lines(kind, 7, 42000, t), LOG_BURST);
    log_limit_catch_up(t + (LOG_WINDOW_S - 1) * SECOND_NS, false, say);
    assert_int_equal(nsaid, 0); /* its time is not over */
    log_limit_catch_up(t + LOG_WINDOW_S * SECOND_NS, false, say);
    assert_int_equal(nsaid, 1);
    assert_string_equal(said[0], "41980 more lines like this one in the last 10 s: refused somebody");
    /* It goes on: one line in each window, and the count. */
    t += LOG_WINDOW_S * SECOND_NS;
    assert_int_equal(lines(kind, 7, 1000, t + SECOND_NS), 1);
    log_limit_catch_up(t + LOG_WINDOW_S * SECOND_NS, false, say);
    assert_int_equal(nsaid, 2);
    assert_non_null(strstr(said[1], "999 more lines"));
    /* It has ended for a while: as at first. */
    assert_int_equal(lines(kind, 7, 1, t + 5 * LOG_WINDOW_S * SECOND_NS), 1);
    assert_int_equal(lines(kind, 7, 100, t + 7 * LOG_WINDOW_S * SECOND_NS), LOG_BURST);
    log_limit_catch_up(t + 7 * LOG_WINDOW_S * SECOND_NS, true, say); /* the process ends */
    assert_int_equal(nsaid, 3);
    assert_non_null(strstr(said[2], "80 more lines"));
}

static void subjects(void **state)
{
    static const char kind[] = "subjects", other[] = "another kind";
    uint64_t t = 3000 * SECOND_NS;

    (void)state;
    assert_int_equal(lines(kind, 1, 500, t), LOG_BURST);
    assert_int_equal(lines(kind, 2, 3, t), 3); /* another user's lines are not held back by that */
    assert_int_equal(lines(other, 1, 3, t), 3);
    log_limit_catch_up(t, true, say);
    assert_int_equal(nsaid, 1);
    assert_non_null(strstr(said[0], "480 more lines"));
}

static void many_subjects(void **state)
{
    static const char kind[] = "many";
    uint64_t t = 5000 * SECOND_NS;
    int may = 0;

    (void)state;
    for (uint64_t subject = 0; subject < 100000; subject++)
        may += lines(kind, subject, 1, t);
    assert_int_equal(may, LOG_KINDS + LOG_BURST); /* one each, and those that share a place */
    log_limit_catch_up(t, true, say);
    assert_int_equal(nsaid, 1);
    assert_non_null(strstr(said[0], "99852 more lines"));
}

/* ---- log.c ---- */

/* What standard error gets while run() runs. */
static void errors_capture(void (*run)(void), char *out, size_t room)
{
    int pipes[2], saved = dup(STDERR_FILENO);

    assert_true(saved >= 0 && pipe(pipes) == 0 && dup2(pipes[1], STDERR_FILENO) >= 0);
    run();
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    (void)close(saved);
    (void)close(pipes[1]);
    ssize_t n = read(pipes[0], out, room - 1);
    assert_true(n >= 0);
    out[n] = '\0';
    (void)close(pipes[0]);
}

static void say_hostile(void)
{
    log_info("job %s: %s", "a\nb",
             "\x1b[2Jred\r\x7f \xc2\x9b"
             "31m, but gr\xc3\xbc\xc3\x9f"
             "e stay");
}

static void say_much(void)
{
    static char text[3000];

    memset(text, 'x', sizeof(text) - 1);
    log_info("%s", text);
}

static void say_often(void)
{
    for (int i = 0; i < 5000; i++)
        log_about(LOG_LEVEL_WARNING, log_user(1000), "refused uid %u", 1000u);
    log_about(LOG_LEVEL_WARNING, log_user(0), "refused uid %u", 0u);
    log_catch_up(true);
}

static int count(const char *text, const char *what)
{
    int n = 0;

    for (; (text = strstr(text, what)); text++)
        n++;
    return n;
}

static void texts(void **state)
{
    static char out[1 << 16];

    (void)state;
    log_open("broker", LOG_LEVEL_INFO, LOG_FORMAT_TEXT);
    errors_capture(say_hostile, out, sizeof(out));
    assert_int_equal(count(out, "\n"), 1);
    assert_non_null(strstr(out, "job a?b: ?[2Jred?? ??31m, but gr\xc3\xbc\xc3\x9f"
                                "e stay\n"));
    errors_capture(say_much, out, sizeof(out));
    assert_true(count(out, "\n") == 1 && strlen(out) <= 1024 + 192 && count(out, "xxxx\n") == 1);
    errors_capture(say_often, out, sizeof(out));
    assert_int_equal(count(out, ": refused uid 1000\n"), LOG_BURST + 1); /* the count quotes it */
    assert_int_equal(count(out, "4980 more lines like this one"), 1);
    assert_int_equal(count(out, ": refused uid 0\n"), 1);
}

/* Whatever a client says is UTF-8 afterwards: JSON has nothing else. */
static void characters(void **state)
{
    static const struct {
        const char *said, *clean;
    } cases[] = {
        {"gr\xc3\xbc\xc3\x9f"
         "e \xe2\x82\xac \xf0\x9f\x98\x80",
         "gr\xc3\xbc\xc3\x9f"
         "e \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"a\xff\x80z", "a??z"},
        {"\xc0\xaf", "??"},           /* '/' in too many bytes */
        {"\xe0\x9f\xbf.", "???."},    /* ... */
        {"\xf0\x8f\xbf\xbf", "????"}, /* ... */
        {"\xed\xa0\x80", "???"},      /* half of a pair of UTF-16's */
        {"\xf4\x90\x80\x80", "????"}, /* behind the last character */
        {"\xf5\x80\x80\x80", "????"},
        {"\xc2\x9b[2J", "??[2J"},
        {"\xc2", "?"},
        {"\xe2\x82", "??"},
        {"\xf0\x9f\x98", "???"},
        {"\xe2\x82\n", "???"},
        {"\xf0\x9f\xc3\xbc", "??\xc3\xbc"},
        {"\x7f\x01", "??"},
    };
    struct error e;
    char text[32];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_true(strlen(cases[i].said) < sizeof(text));
        (void)snprintf(text, sizeof(text), "%s", cases[i].said);
        assert_string_equal(text_clean(text), cases[i].clean);
    }
    char *exact = strdup("\xf0\x9f\x98"); /* nothing behind the text is looked at */
    assert_non_null(exact);
    assert_string_equal(text_clean(exact), "???");
    free(exact);
    /* What is cut is cut between two characters. */
    text_copy(text, 5, "ab\xe2\x82\xac");
    assert_string_equal(text, "ab");
    text_copy(text, 6, "ab\xe2\x82\xac");
    assert_string_equal(text, "ab\xe2\x82\xac");
    text_copy(text, 7, "ab\xf0\x9f\x98\x80");
    assert_string_equal(text, "ab\xf0\x9f\x98\x80");
    text_copy(text, 6, "ab\xf0\x9f\x98\x80");
    assert_string_equal(text, "ab");
    text_copy(text, 3, "\x80\x80\x80");
    assert_string_equal(text, "\x80\x80");
    text_copy(text, 1, "\xc3\xbc");
    assert_string_equal(text, "");
    assert_int_equal(error_set(&e, -EINVAL, "%*s\xe2\x82\xac", FCC_TEXT_MAX - 2, ""), -EINVAL);
    assert_int_equal(strlen(e.text), FCC_TEXT_MAX - 2);
}

static void *write_lines(void *arg)
{
    for (int i = 0; i < 20000; i++)
        (void)log_limit_take(LOG_LEVEL_INFO, arg, (uint64_t)(i % 3), 9000 * SECOND_NS, say);
    return NULL;
}

static void threads(void **state)
{
    static char kind[] = "threads";
    unsigned long long total = 0, n;
    pthread_t thread[4];

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, write_lines, kind), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    log_limit_catch_up(9000 * SECOND_NS, true, say);
    assert_int_equal(nsaid, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(sscanf(said[i], "%llu", &n), 1);
        total += n;
    }
    assert_int_equal(total, 4 * 20000 - 3 * LOG_BURST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(flood, nothing_said),         cmocka_unit_test_setup(subjects, nothing_said),
        cmocka_unit_test_setup(many_subjects, nothing_said), cmocka_unit_test_setup(texts, nothing_said),
        cmocka_unit_test_setup(threads, nothing_said),       cmocka_unit_test_setup(characters, nothing_said),
    };
    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
