/* SPDX-License-Identifier: MIT
 *
 * units.c - numbers with units.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/fccctl/simulate/describe.h"

#define UNIT_MOST 1e30 /* of bytes, seconds and so on: what is calculated from such numbers is finite */
#define RATE_MOST 1e15 /* bytes a second, which are counted as whole numbers, of many links together */

struct unit {
    const char *name;
    double factor;
};

/* The first name of each is what errors show. */
static const struct unit units[][14] = {
    [UNIT_RATE] = {{"GB/s", 1e9},
                   {"TB/s", 1e12},
                   {"MB/s", 1e6},
                   {"kB/s", 1e3},
                   {"B/s", 1},
                   {"GiB/s", 1073741824.0},
                   {"MiB/s", 1048576.0},
                   {"Tb/s", 1.25e11},
                   {"Gb/s", 1.25e8},
                   {"Mb/s", 1.25e5},
                   {"kb/s", 125}},
    [UNIT_FLOPS_RATE] = {{"TFLOP/s", 1e12}, {"PFLOP/s", 1e15}, {"GFLOP/s", 1e9}, {"MFLOP/s", 1e6}},
    [UNIT_TIME] = {{"us", 1e-6}, {"ns", 1e-9}, {"ms", 1e-3}, {"s", 1}},
    [UNIT_BYTES] =
        {{"MiB", 1048576.0}, {"B", 1}, {"KiB", 1024.0}, {"GiB", 1073741824.0}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}},
    [UNIT_FLOPS] = {{"GFLOP", 1e9}, {"TFLOP", 1e12}, {"MFLOP", 1e6}, {"FLOP", 1}},
    [UNIT_PART] = {{"%", 0.01}},
};

int unit_parse(const char *text, enum unit_kind kind, double *out, struct error *e)
{
    struct words known = {""};
    char *end;
    const double number = strtod(text, &end);

    for (const struct unit *u = units[kind]; u->name; u++)
        words_add(&known, "%s%s", u == units[kind] ? "" : ", ", u->name);
    if (end == text || !isfinite(number))
        return error_set(e, -EINVAL, "\"%.40s\": no number; needed is one with a unit: %s", text, known.text);
    end += strspn(end, " ");
    if (!*end)
        return error_set(e, -EINVAL, "\"%.40s\": the unit is missing: %s", text, known.text);
    for (const struct unit *u = units[kind]; u->name; u++)
        if (!strcmp(u->name, end)) {
            *out = number * u->factor;
            return *out <= (kind == UNIT_RATE ? RATE_MOST : UNIT_MOST)
                       ? 0
                       : error_set(e, -EINVAL, "\"%.40s\": more than any machine has", text);
        }
    return error_set(e, -EINVAL, "\"%.40s\": \"%.20s\" is no unit of this; there are %s", text, end, known.text);
}

struct words unit_text(double value, enum unit_kind kind, const char *like)
{
    const struct unit *unit = units[kind];
    char *end;

    (void)strtod(like, &end);
    end += strspn(end, " ");
    for (const struct unit *u = units[kind]; u->name; u++)
        if (!strcmp(u->name, end))
            unit = u;
    const double number = value / unit->factor;
    return words(number >= 1e4 && number < 1e15 ? "%.0f %s" : "%.4g %s", number, unit->name);
}
