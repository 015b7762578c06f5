/* SPDX-License-Identifier: MIT
 *
 * reading.c - takes values by the rows of a table, and refuses what no table has.
 */
#include "client/fccctl/simulate/reading.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

int reading_refuse(const struct reading *r, const struct place *at, const char *format, ...)
{
    struct words why;
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(why.text, sizeof(why.text), format, ap);
    va_end(ap);
    return error_set(r->e, -EINVAL, "%s:%d: %s%s%s", r->name, r->lines_before + place_line(r->text, at), place_text(at).text,
                     at ? ": " : "", why.text);
}

int reading_number(const struct reading *r, const struct place *at, const struct field *f, struct json_object *value,
                   void *into)
{
    const enum json_type type = json_object_get_type(value);
    const double number = json_object_get_double(value);

    if (f->kind == FIELD_INT ? type != json_type_int : type != json_type_int && type != json_type_double)
        return reading_refuse(r, at, "needed is a %s", f->kind == FIELD_INT ? "whole number" : "number");
    if (!(number >= f->least && number <= f->most))
        return reading_refuse(r, at, "%s: allowed are %.15g to %.15g", json_object_get_string(value), f->least, f->most);
    if (f->kind == FIELD_INT)
        *(int *)into = (int)number;
    else
        *(double *)into = number;
    return 0;
}

int reading_unit(const struct reading *r, const struct place *at, const struct field *f, struct json_object *value,
                 double *into)
{
    struct error why = {0};
    struct words text = words("%s", json_object_get_string(value));

    if (!json_object_is_type(value, json_type_string) && !json_object_is_type(value, json_type_int) &&
        !json_object_is_type(value, json_type_double))
        return reading_refuse(r, at, "needed is a text with a number and a unit");
    if (unit_parse(text.text, f->unit, into, &why))
        return reading_refuse(r, at, "%s", why.text);
    if (f->least > 0 ? !(*into > 0) : !(*into >= 0))
        return reading_refuse(r, at, "%s: allowed is more than 0%s", text.text, f->least > 0 ? "" : ", or 0");
    return 0;
}

static int choice_take(const struct reading *r, const struct place *at, const struct field *f, struct json_object *value,
                       int *into)
{
    const char *text = json_object_is_type(value, json_type_string) ? json_object_get_string(value) : "";
    struct words known = {""};

    for (int i = 0; f->choices[i]; i++) {
        if (!strcmp(f->choices[i], text)) {
            *into = i;
            return 0;
        }
        words_add(&known, "%s%s", i ? ", " : "", f->choices[i]);
    }
    return reading_refuse(r, at, "\"%.40s\": allowed are %s", json_object_get_string(value), known.text);
}

int reading_object(const struct reading *r, const struct place *at, struct json_object *o, const struct field *fields,
                   void *into)
{
    if (!json_object_is_type(o, json_type_object))
        return reading_refuse(r, at, "needed is an object");
    json_object_object_foreach(o, key, value)
    {
        const struct place here = {.up = at, .key = key};
        const struct field *f = fields;
        void *to;
        int status = 0;
        if (!strcmp(key, "about") && json_object_is_type(value, json_type_string))
            continue;
        while (f->key && strcmp(f->key, key) != 0)
            f++;
        if (!f->key) {
            struct words known = {""};
            for (f = fields; f->key; f++)
                words_add(&known, "%s%s", f == fields ? "" : ", ", f->key);
            return reading_refuse(r, &here, "unknown key; there are %s", known.text);
        }
        to = (char *)into + f->at;
        if (f->kind == FIELD_INT || f->kind == FIELD_NUMBER)
            status = reading_number(r, &here, f, value, to);
        else if (f->kind == FIELD_CHOICE)
            status = choice_take(r, &here, f, value, to);
        else if (f->kind == FIELD_UNIT)
            status = reading_unit(r, &here, f, value, to);
        else if (f->kind == FIELD_BOOL && !json_object_is_type(value, json_type_boolean))
            status = reading_refuse(r, &here, "allowed are true and false");
        else if (f->kind == FIELD_BOOL)
            *(bool *)to = json_object_get_boolean(value);
        if (status)
            return status;
    }
    for (const struct field *f = fields; f->key; f++)
        if (f->needed && !json_object_object_get_ex(o, f->key, NULL))
            return reading_refuse(r, at, "\"%s\" is missing", f->key);
    return 0;
}

struct json_object *object_member(struct json_object *o, const char *key)
{
    struct json_object *value = NULL;

    (void)json_object_object_get_ex(o, key, &value);
    return value;
}
