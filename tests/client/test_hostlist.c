/* SPDX-License-Identifier: MIT
 *
 * test_hostlist.c - Slurm's lists of hosts and of tasks, and addresses of nodes: known ones, wrong ones, random ones that were made by
 * hand, and any bytes.
 */
#include "client/launchers/hostlist.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "proto/base/address.h"
#include "tests/bed/random.h"

/* ---- lists of hosts ---- */

#define HOST_ROOM 64

static void list_is(const char *list, const char *expected)
{
    char text[512], *rest = text;
    uint32_t count = 0, i = 0;

    (void)snprintf(text, sizeof(text), "%s", expected);
    for (char *word; (word = strsep(&rest, " ")); i++) {
        char host[HOST_ROOM];
        struct error e;
        if (hostlist_find("list", list, i, host, sizeof(host), &count, &e))
            fail_msg("%s", e.text);
        assert_string_equal(host, word);
    }
    assert_int_equal(count, i);
}

static void list_fails(const char *list, uint32_t index, const char *words)
{
    char host[8];
    uint32_t count = 77;
    struct error e;

    assert_int_equal(hostlist_find("list", list, index, host, sizeof(host), &count, &e), -EINVAL);
    assert_int_equal(count, 77);
    if (!strstr(e.text, words))
        fail_msg("\"%s\" does not say \"%s\"", e.text, words);
}

static void test_hostlist(void **state)
{
    (void)state;
    list_is("a", "a");
    list_is("a,b.c-d_e", "a b.c-d_e");
    list_is("a[1-3,7],b2", "a1 a2 a3 a7 b2");
    list_is("n[08-11]", "n08 n09 n10 n11");
    list_is("n[8-11,001]", "n8 n9 n10 n11 n001");
    list_is("n[099-101]-ib,x", "n099-ib n100-ib n101-ib x");
    list_is("rack[0-1]node[2,4]", "rack0node2 rack0node4 rack1node2 rack1node4");
    list_is("[1-2][3-4]x", "13x 14x 23x 24x");
    list_is("x[16777215],y", "x16777215 y");
    list_fails("", 0, "character 0: expected a host");
    list_fails(",a", 0, "character 0: expected a host");
    list_fails("a,", 0, "character 2: expected a host");
    list_fails("a[", 0, "character 2: expected a number");
    list_fails("a[]", 0, "expected a number");
    list_fails("a[1", 0, "character 3: expected a comma or ]");
    list_fails("a[1-]", 0, "character 4: expected a number");
    list_fails("a[-1]", 0, "expected a number");
    list_fails("a[1,]", 0, "expected a number");
    list_fails("a[3-1]", 0, "a range that ends before it begins");
    list_fails("a[x]", 0, "expected a number");
    list_fails("a[1[2]]", 0, "expected a comma or ]");
    list_fails("a]", 0, "expected letters");
    list_fails("a b", 0, "character 1: expected letters");
    list_fails("a[1-2", 5, "expected a comma or ]");
    list_fails("a[1234567890]", 0, "more than 9 digits");
    list_fails("a[0-999999999]", 0, "more hosts than can be");
    list_fails("a[0-99999][0-99999]", 0, "more hosts than can be");
    list_fails("a[0-9999999],b[0-9999999]", 0, "more hosts than can be");
    list_fails("a[1-2]", 2, "2 hosts: host number 2 is none of them");
    list_fails("abcdefgh", 0, "too long");
    list_is("abc[1-2]", "abc1 abc2");
}

static void tasks_are(const char *list, uint32_t index, uint32_t tasks, uint32_t count, uint32_t sum)
{
    uint32_t t, c, s;
    struct error e;

    if (tasklist_find("list", list, index, &t, &c, &s, &e))
        fail_msg("%s", e.text);
    assert_true(t == tasks && c == count && s == sum);
}

static void tasks_fail(const char *list, const char *words)
{
    uint32_t t, c, s;
    struct error e;

    assert_int_equal(tasklist_find("list", list, 0, &t, &c, &s, &e), -EINVAL);
    if (!strstr(e.text, words))
        fail_msg("\"%s\" does not say \"%s\"", e.text, words);
}

static void test_tasklist(void **state)
{
    (void)state;
    tasks_are("2", 0, 2, 1, 2);
    tasks_are("2(x3),1", 2, 2, 4, 7);
    tasks_are("2(x3),1", 3, 1, 4, 7);
    tasks_are("1,4,2(x2)", 1, 4, 4, 9);
    tasks_fail("", "expected a number");
    tasks_fail("2(x3", "expected )");
    tasks_fail("2(3)", "expected x");
    tasks_fail("2x3", "expected a comma");
    tasks_fail("2,", "expected a number");
    tasks_fail("999999999(x9)", "more tasks than can be");
    tasks_fail("1(x99999999)", "more tasks than can be");
}

/* ---- random lists ---- */

#define HOSTS_MOST 64
struct hosts {
    char list[512];
    char host[HOSTS_MOST][HOST_ROOM];
    uint32_t n;
};

static void append(char *text, size_t room, const char *more)
{
    size_t n = strlen(text);
    (void)snprintf(text + n, room - n, "%s", more);
}

/* An element with up to two brackets, and its hosts by hand: every prefix with every number, one bracket after the other. */
static void element_make(struct hosts *h)
{
    char done[HOSTS_MOST][HOST_ROOM] = {"h"};
    uint32_t n = 1;

    append(h->list, sizeof(h->list), h->n ? ",h" : "h");
    for (int64_t brackets = random_size(2); brackets > 0; brackets--) {
        char made[HOSTS_MOST][HOST_ROOM], numbers[8][16], text[64] = "[";
        uint32_t nnumbers = 0, m = 0;
        for (int64_t ranges = 1 + random_below(2); ranges > 0; ranges--) {
            int64_t low = random_below(120), more = random_below(3), width = random_below(2) ? 1 : 1 + random_below(4);
            char one[32];
            if (more)
                (void)snprintf(one, sizeof(one), "%0*d-%d", (int)width, (int)low, (int)(low + more));
            else
                (void)snprintf(one, sizeof(one), "%0*d", (int)width, (int)low);
            for (int64_t i = 0; i <= more; i++)
                (void)snprintf(numbers[nnumbers++], sizeof(numbers[0]), "%0*d", (int)width, (int)(low + i));
            append(text, sizeof(text), one);
            append(text, sizeof(text), ranges > 1 ? "," : "]");
        }
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = 0; k < nnumbers; k++)
                (void)snprintf(made[m++], HOST_ROOM, "%.30s%.15s-", done[i], numbers[k]);
        append(h->list, sizeof(h->list), text);
        append(h->list, sizeof(h->list), "-");
        memcpy(done, made, sizeof(made[0]) * m);
        n = m;
    }
    for (uint32_t i = 0; i < n && h->n < HOSTS_MOST; i++)
        (void)snprintf(h->host[h->n++], HOST_ROOM, "%s", done[i]);
}

static void test_random_lists(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 2000; round++) {
        struct hosts h = {.n = 0};
        uint32_t count;
        struct error e;
        random_state = round;
        do
            element_make(&h);
        while (h.n < HOSTS_MOST / 4 && random_below(4));
        if (h.n == HOSTS_MOST) /* maybe cut */
            continue;
        (void)snprintf(case_text, sizeof(case_text), "seed %u: %.200s", round, h.list);
        for (uint32_t i = 0; i < h.n; i++) {
            char host[HOST_ROOM];
            EXPECT(hostlist_find("list", h.list, i, host, sizeof(host), &count, &e) == 0);
            EXPECT(count == h.n && !strcmp(host, h.host[i]));
        }
        char host[HOST_ROOM];
        EXPECT(hostlist_find("list", h.list, h.n, host, sizeof(host), &count, &e) == -EINVAL);
    }
}

/* Any bytes: an error with its words, or hosts that are names. */
static void test_random_bytes(void **state)
{
    static const char alphabet[] = "a0019[[]],,--()x:. \x80";

    (void)state;
    for (unsigned round = 0; round < 200000; round++) {
        char list[24], host[HOST_ROOM];
        uint32_t count = 0, tasks, sum;
        struct error e = {0};
        random_state = round;
        size_t n = (size_t)random_below(sizeof(list) - 1);
        for (size_t i = 0; i < n; i++)
            list[i] = alphabet[random_below(sizeof(alphabet) - 1)];
        list[n] = '\0';
        (void)snprintf(case_text, sizeof(case_text), "seed %u: %s", round, list);
        int status = hostlist_find("list", list, (uint32_t)random_below(4), host, sizeof(host), &count, &e);
        EXPECT(status == (status ? -EINVAL : 0) && (status ? e.text[0] : count > 0));
        EXPECT(status || (host[0] && !strpbrk(host, "[](),: \x80")));
        status = tasklist_find("list", list, 0, &tasks, &count, &sum, &e);
        EXPECT(status == (status ? -EINVAL : 0) && (status || tasks <= sum));
        status = address_check("address", list, &count, &e);
        EXPECT(status == (status ? -EINVAL : 0) && (status || count <= UINT16_MAX));
    }
}

static void address_is(const char *address, int64_t expected)
{
    uint32_t port = 77;
    struct error e;
    int status = address_check("address", address, &port, &e);

    if (status != (expected < 0 ? -EINVAL : 0) || port != (expected < 0 ? 77 : expected))
        fail_msg("%s: %d, port %u", address, status, port);
}

static void test_address(void **state)
{
    (void)state;
    address_is("n1", 0);
    address_is("n1:7800", 7800);
    address_is("10.0.0.1:65535", 65535);
    address_is("[fd00::2]", 0);
    address_is("[fd00::2%eth0]:1", -1);
    address_is("[fd00::2]:1", 1);
    address_is("fd00::2", -1);
    address_is("[fd00::2", -1);
    address_is("[]", -1);
    address_is("[fd00::2]1", -1);
    address_is("n1:", -1);
    address_is("n1:0", -1);
    address_is("n1:65536", -1);
    address_is("n1:01", -1);
    address_is("n1:+1", -1);
    address_is("n1:1 ", -1);
    address_is(":1", -1);
    address_is("", -1);
    address_is("a host", -1);
    address_is("123456789012345678901234567890123456789012345678901234567890123", 0);
    address_is("1234567890123456789012345678901234567890123456789012345678901234", -1);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hostlist),     cmocka_unit_test(test_tasklist), cmocka_unit_test(test_random_lists),
        cmocka_unit_test(test_random_bytes), cmocka_unit_test(test_address),
    };
    return cmocka_run_group_tests_name("hostlist", tests, NULL, NULL);
}
