/* SPDX-License-Identifier: MIT
 *
 * metrics.c - the verb metrics: what fccd counts, as OpenMetrics text. With --json each sample is an object.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/fccctl/control.h"
#include "client/fccctl/fccctl.h"
#include "client/fccctl/field.h"
#include "proto/base/error.h"

/* `name="value",...}`: adds the labels, and returns what follows the brace. NULL: it is not of that form. The daemon's labels have no character
 * that is escaped. */
static char *labels_parse(char *at, struct json_object *labels)
{
    while (*at && *at != '}') {
        char *equals = strstr(at, "=\""), *end = equals ? strchr(equals + 2, '"') : NULL;
        if (!end)
            return NULL;
        *equals = *end = '\0';
        JSON_ADD(labels, {at, json_text(equals + 2)});
        at = end + 1 + (end[1] == ',');
    }
    return *at ? at + 1 : NULL;
}

/* One line `name{labels} value`. NULL: it is none. */
static struct json_object *sample_parse(char *line)
{
    struct json_object *labels = json_object_new_object();
    char *at = line + strcspn(line, "{ "), *end, open = *at;

    *at++ = '\0';
    if (open == '{')
        at = labels_parse(at, labels);
    double value = at ? strtod(at, &end) : 0;
    if (!open || !at || end == at) {
        (void)json_object_put(labels);
        return NULL;
    }
    return JSON_OBJECT({"name", json_text(line)}, {"labels", labels}, {"value", json_double(value)});
}

static struct json_object *samples_of(const char *text)
{
    struct json_object *list = json_object_new_array();
    char *copy = strdup(text), *rest = copy, *line;

    while (copy && (line = strsep(&rest, "\n"))) {
        struct json_object *o = *line && *line != '#' ? sample_parse(line) : NULL;
        if (o)
            (void)json_object_array_add(list, o);
    }
    free(copy);
    return JSON_OBJECT({"metrics", list});
}

static void metrics_print(struct json_object *answer)
{
    (void)fputs(field_text(answer, "text"), stdout);
}

int verb_metrics(struct call *call)
{
    struct json_object *answer = NULL, *samples;
    struct error e;

    if (!args_parse(call, NULL, 0, 0))
        return call->exit;
    if (control_ask_broker(call->socket, FCC_QUERY_METRICS, &answer, &e))
        return control_fail(call, &e);
    if (!call->json)
        return control_show(call, answer, true, metrics_print);
    samples = samples_of(field_text(answer, "text"));
    (void)json_object_put(answer);
    return control_show(call, samples, true, NULL);
}
