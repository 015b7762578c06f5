/* SPDX-License-Identifier: MIT
 *
 * openmetrics.h - a strict reader of OpenMetrics text 1.0.0, as far as fccd writes it: it fails on whatever a Prometheus would refuse.
 */
#ifndef FCC_TEST_OPENMETRICS_H
#define FCC_TEST_OPENMETRICS_H

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bed/harness.h"

struct om_sample {
    char name[96], labels[200]; /* labels: as they stand between the braces */
    double value;
};

struct om {
    unsigned nfamilies, nsamples;
    struct {
        char name[80], type[16];
    } families[128];
    struct om_sample samples[4096];
};

static inline bool om_is_name(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(isalpha((unsigned char)s[i]) || s[i] == '_' || s[i] == ':' || (i && isdigit((unsigned char)s[i]))))
            return false;
    return n > 0;
}

/* `name="value",...`, each name once. Returns what follows the closing brace. */
static inline const char *om_labels(const char *at, const char *line)
{
    char seen[8][40];
    unsigned n = 0;

    while (*at != '}') {
        size_t name = strcspn(at, "=");
        if (!om_is_name(at, name) || name >= sizeof(seen[0]) || at[name + 1] != '"' || n == 8)
            check_failed(__FILE__, __LINE__, "a label of: %s", line);
        (void)snprintf(seen[n], sizeof(seen[0]), "%.*s", (int)name, at);
        for (unsigned i = 0; i < n; i++)
            CHECK(strcmp(seen[i], seen[n]) != 0);
        n++;
        for (at += name + 2; *at && *at != '"'; at++)
            if (*at == '\\' && !strchr("\\\"n", *++at))
                check_failed(__FILE__, __LINE__, "an escape in: %s", line);
        if (*at != '"' || (at[1] != ',' && at[1] != '}') || (at[1] == ',' && at[2] == '}'))
            check_failed(__FILE__, __LINE__, "the labels of: %s", line);
        at += at[1] == ',' ? 2 : 1;
    }
    return at + 1;
}

/* Does a family of that type and name have samples of that name? */
static inline bool om_belongs(const char *family, const char *type, const char *sample)
{
    static const char *const ends[][4] = {
        {"counter", "_total"}, {"gauge", ""}, {"info", "_info"}, {"histogram", "_bucket", "_count", "_sum"}};
    size_t n = strlen(family);

    for (size_t t = 0; t < 4; t++)
        for (size_t i = 1; i < 4 && !strcmp(ends[t][0], type) && ends[t][i]; i++)
            if (!strncmp(sample, family, n) && !strcmp(sample + n, ends[t][i]))
                return true;
    return false;
}

static inline void om_sample_line(struct om *om, const char *line)
{
    struct om_sample *s = &om->samples[om->nsamples];
    size_t name = strcspn(line, "{ ");
    const char *at = line + name, *labels = at + 1;
    char *end;

    CHECK(om->nsamples < 4096 && om->nfamilies > 0);
    if (!om_is_name(line, name) || name >= sizeof(s->name))
        check_failed(__FILE__, __LINE__, "no name: %s", line);
    *s = (struct om_sample){.value = 0};
    (void)snprintf(s->name, sizeof(s->name), "%.*s", (int)name, line);
    if (*at == '{') {
        at = om_labels(at + 1, line);
        CHECK((size_t)(at - 1 - labels) < sizeof(s->labels));
        memcpy(s->labels, labels, (size_t)(at - 1 - labels));
    }
    s->value = *at == ' ' ? strtod(at + 1, &end) : (end = (char *)at, 0);
    if (*at != ' ' || end == at + 1 || *end || isspace((unsigned char)at[1]))
        check_failed(__FILE__, __LINE__, "no value: %s", line);
    const char *family = om->families[om->nfamilies - 1].name, *type = om->families[om->nfamilies - 1].type;
    if (!om_belongs(family, type, s->name))
        check_failed(__FILE__, __LINE__, "not of the %s %s: %s", type, family, line);
    CHECK(strcmp(type, "gauge") == 0 || s->value >= 0);
    for (unsigned i = 0; i < om->nsamples; i++)
        if (!strcmp(om->samples[i].name, s->name) && !strcmp(om->samples[i].labels, s->labels))
            check_failed(__FILE__, __LINE__, "twice: %s", line);
    om->nsamples++;
}

/* `# TYPE name type`, `# UNIT name unit`, `# HELP name text`: in this order, before the samples. */
static inline void om_comment_line(struct om *om, const char *line, char *before, unsigned *samples_before)
{
    static const char kinds[] = "TUH"; /* each may follow those before it */
    char kind[8] = "", name[80] = "", rest[32] = "";

    if (sscanf(line, "# %7s %79s %31s", kind, name, rest) != 3 || !om_is_name(name, strlen(name)))
        check_failed(__FILE__, __LINE__, "%s", line);
    if (!strcmp(kind, "TYPE")) {
        CHECK(om->nfamilies < 128);
        for (unsigned i = 0; i < om->nfamilies; i++)
            CHECK(strcmp(om->families[i].name, name) != 0);
        memcpy(om->families[om->nfamilies].name, name, sizeof(name));
        (void)snprintf(om->families[om->nfamilies++].type, 16, "%.15s", rest);
        *samples_before = om->nsamples;
    } else {
        CHECK(om->nfamilies > 0 && strcmp(om->families[om->nfamilies - 1].name, name) == 0 && om->nsamples == *samples_before);
        CHECK(!strcmp(kind, "UNIT") || !strcmp(kind, "HELP"));
        CHECK(strchr(kinds, *kind) > strchr(kinds, *before));
        size_t n = strlen(name), unit = strlen(rest);
        if (*kind == 'U')
            CHECK(n > unit + 1 && name[n - unit - 1] == '_' && strcmp(name + n - unit, rest) == 0);
    }
    *before = *kind;
}

/* A histogram's buckets stand in order, count what the ones before count, and end with +Inf, which is the count. */
static inline void om_histograms(const struct om *om)
{
    double last = 0, bound = -1;

    for (unsigned i = 0; i < om->nsamples; i++) {
        const struct om_sample *s = &om->samples[i];
        const char *le = strstr(s->labels, "le=\""), *end = s->name + strlen(s->name);
        if (le && end - s->name > 7 && !strcmp(end - 7, "_bucket")) {
            double b = strtod(le + 4, NULL);
            CHECK(b > bound && s->value >= last);
            last = s->value;
            bound = b;
        } else if (bound >= 0) {
            CHECK(isinf(bound) && !strcmp(end - 6, "_count") && s->value == last);
            CHECK(!strcmp(om->samples[i + 1].name + strlen(om->samples[i + 1].name) - 4, "_sum"));
            last = 0;
            bound = -1;
        }
    }
}

/* Reads all of it, or fails. The caller frees it. */
static inline struct om *om_parse(const char *text)
{
    struct om *om = calloc(1, sizeof(*om));
    char *copy = strdup(text), *rest = copy, *line, before = 'T';
    size_t length = strlen(text);
    unsigned samples_before = 0;

    CHECK(om && copy && length > 6 && strcmp(text + length - 6, "# EOF\n") == 0);
    copy[length - 6] = '\0';
    while ((line = strsep(&rest, "\n")) && rest) {
        if (*line == '#')
            om_comment_line(om, line, &before, &samples_before);
        else
            om_sample_line(om, line);
    }
    om_histograms(om);
    free(copy);
    return om;
}

/* The sample's value; -1: there is none. */
static inline double om_value(const struct om *om, const char *name, const char *labels)
{
    for (unsigned i = 0; i < om->nsamples; i++)
        if (!strcmp(om->samples[i].name, name) && !strcmp(om->samples[i].labels, labels))
            return om->samples[i].value;
    return -1;
}

#endif
