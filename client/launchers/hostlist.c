/* SPDX-License-Identifier: MIT
 *
 * hostlist.c - reads Slurm's lists: hosts ("a[1-3,07],b2-ib") and tasks per host ("2(x3),1").
 *
 * A list has elements separated by commas. An element of a host list is text with any number of brackets. Each bracket has
 * numbers and ranges, whose numbers are padded with the leading zeros of the range's first number; the last bracket varies
 * fastest. Lists are not expanded: the hosts of each element are counted, and one host is written from its index as a number
 * in that mixed radix.
 */
#include "client/launchers/hostlist.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define DIGITS_MAX 9 /* digits of one number, which then fits 32 bits */

/* The reading position. `e` is set on failure. */
struct reader {
    const char *what, *list, *at;
    struct error *e;
};

static int refuse(const struct reader *r, const char *why)
{
    return error_set(r->e, -EINVAL, "%s: \"%.200s\": character %zu: %s", r->what, r->list, (size_t)(r->at - r->list), why);
}

/* Reads a number. *width: its number of digits. */
static int number_read(struct reader *r, uint32_t *value, size_t *width)
{
    *width = strspn(r->at, "0123456789");
    if (*width == 0 || *width > DIGITS_MAX)
        return refuse(r, *width ? "a number of more than 9 digits" : "expected a number");
    *value = 0;
    for (size_t i = 0; i < *width; i++)
        *value = *value * 10 + (uint32_t)(*r->at++ - '0');
    return 0;
}

struct range {
    uint32_t low, high;
    size_t width; /* width of the numbers, padded with zeros */
};

/* Reads "3" or "3-7". */
static int range_read(struct reader *r, struct range *range)
{
    size_t width;
    int status = number_read(r, &range->low, &range->width);

    range->high = range->low;
    if (status || *r->at != '-')
        return status;
    r->at++;
    status = number_read(r, &range->high, &width);
    if (!status && range->high < range->low)
        status = refuse(r, "a range that ends before it begins");
    return status;
}

/* Reads a bracket such as "[1-3,07]". *count: how many numbers it has. Writes the number at `index` if `to` is not NULL. */
static int bracket_read(struct reader *r, uint32_t index, char *to, size_t room, uint32_t *count)
{
    struct range range;

    *count = 0;
    do {
        r->at++; /* skips the bracket or the comma */
        int status = range_read(r, &range);
        if (status)
            return status;
        uint32_t n = range.high - range.low + 1;
        if (to && index >= *count && index - *count < n)
            (void)snprintf(to, room, "%0*u", (int)range.width, range.low + (index - *count));
        if (n > HOSTLIST_MAX - *count)
            return refuse(r, "more hosts than can be");
        *count += n;
    } while (*r->at == ',');
    if (*r->at != ']')
        return refuse(r, "expected a comma or ]");
    r->at++;
    return 0;
}

static bool host_character(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '.' || c == '_';
}

/* Reads one element, up to its comma or the end. host is NULL: sets *count to the number of its hosts. Otherwise *count is that,
 * and writes host number `index`. */
static int element_read(struct reader *r, uint32_t index, uint32_t *count, char *host, size_t room)
{
    const char *from = r->at;
    uint32_t hosts = host ? *count : 1, n;

    while (*r->at && *r->at != ',') {
        char text[DIGITS_MAX + 2] = {*r->at};
        const struct reader begin = *r;
        if (*r->at == '[') {
            int status = bracket_read(r, 0, NULL, 0, &n);
            if (!status && !host && n > HOSTLIST_MAX / hosts)
                status = refuse(r, "more hosts than can be");
            if (status)
                return status;
            hosts = host ? hosts / n : hosts * n; /* `host`: as many have one number of this bracket */
        } else if (!host_character(*r->at++)) {
            return refuse(&begin, "expected letters, digits, - . _ or numbers in [ ]");
        }
        if (!host)
            continue;
        if (*begin.at == '[') {
            *r = begin;
            (void)bracket_read(r, index / hosts, text, sizeof(text), &n);
            index %= hosts;
        }
        if (strlen(text) >= room)
            return refuse(r, "a host's name that is too long");
        room -= strlen(text);
        host = stpcpy(host, text);
    }
    if (!host)
        *count = hosts;
    return r->at == from ? refuse(r, "expected a host") : 0;
}

int hostlist_find(const char *what, const char *list, uint32_t index, char *host, size_t room, uint32_t *count, struct error *e)
{
    struct reader r = {.what = what, .list = list, .at = list, .e = e};
    uint32_t sum = 0, n = 0;

    for (;;) {
        struct reader element = r;
        int status = element_read(&r, 0, &n, NULL, 0);
        if (!status && n > HOSTLIST_MAX - sum)
            status = refuse(&r, "more hosts than can be");
        if (!status && index >= sum && index - sum < n)
            status = element_read(&element, index - sum, &n, host, room);
        if (status)
            return status;
        sum += n;
        if (!*r.at)
            break;
        r.at++;
    }
    if (index >= sum)
        return error_set(e, -EINVAL, "%s: \"%.200s\": %u hosts: host number %u is none of them", what, list, sum, index);
    *count = sum;
    return 0;
}

/* Reads "2" or "2(x3)". */
static int tasks_read(struct reader *r, uint32_t *tasks, uint32_t *times)
{
    size_t width;
    int status = number_read(r, tasks, &width);

    *times = 1;
    if (status || *r->at != '(')
        return status;
    r->at++;
    if (*r->at != 'x')
        return refuse(r, "expected x and a number");
    r->at++;
    status = number_read(r, times, &width);
    if (!status && *r->at != ')')
        status = refuse(r, "expected )");
    if (!status)
        r->at++;
    return status;
}

int tasklist_find(const char *what, const char *list, uint32_t index, uint32_t *tasks, uint32_t *count, uint32_t *sum,
                  struct error *e)
{
    struct reader r = {.what = what, .list = list, .at = list, .e = e};
    uint32_t hosts = 0, found = 0, n = 0, times = 1;
    uint64_t all = 0;

    for (;;) {
        int status = tasks_read(&r, &n, &times);
        if (!status && (times > HOSTLIST_MAX - hosts || all + (uint64_t)n * times > INT32_MAX))
            status = refuse(&r, "more tasks than can be");
        if (!status && *r.at && *r.at != ',')
            status = refuse(&r, "expected a comma");
        if (status)
            return status;
        if (index >= hosts && index - hosts < times)
            found = n;
        hosts += times;
        all += (uint64_t)n * times;
        if (!*r.at)
            break;
        r.at++;
    }
    if (index >= hosts)
        return error_set(e, -EINVAL, "%s: \"%.200s\": %u hosts: host number %u is none of them", what, list, hosts, index);
    *tasks = found;
    *count = hosts;
    *sum = (uint32_t)all;
    return 0;
}
