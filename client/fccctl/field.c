/* SPDX-License-Identifier: MIT */
#include "client/fccctl/field.h"

#include <stdio.h>

#include "proto/base/error.h"

static struct json_object *field(struct json_object *object, const char *name, enum json_type type)
{
    struct json_object *value;

    if (!json_object_is_type(object, json_type_object) || !json_object_object_get_ex(object, name, &value))
        return NULL;
    if (json_object_is_type(value, type) || (type == json_type_double && json_object_is_type(value, json_type_int)))
        return value;
    return NULL;
}

int64_t field_int(struct json_object *object, const char *name, int64_t otherwise)
{
    struct json_object *value = field(object, name, json_type_int);
    return value ? json_object_get_int64(value) : otherwise;
}

double field_double(struct json_object *object, const char *name, double otherwise)
{
    struct json_object *value = field(object, name, json_type_double);
    return value ? json_object_get_double(value) : otherwise;
}

bool field_bool(struct json_object *object, const char *name)
{
    struct json_object *value = field(object, name, json_type_boolean);
    return value && json_object_get_boolean(value);
}

const char *field_text(struct json_object *object, const char *name)
{
    struct json_object *value = field(object, name, json_type_string);
    return value ? json_object_get_string(value) : "";
}

struct json_object *field_object(struct json_object *object, const char *name)
{
    return field(object, name, json_type_object);
}

size_t field_count(struct json_object *object, const char *name)
{
    struct json_object *value = field(object, name, json_type_array);
    return value ? json_object_array_length(value) : 0;
}

struct json_object *field_at(struct json_object *object, const char *name, size_t index)
{
    struct json_object *value = field(object, name, json_type_array);
    return value ? json_object_array_get_idx(value, index) : NULL;
}

struct words field_list(struct json_object *object, const char *name)
{
    struct words list = {""};

    for (size_t i = 0; i < field_count(object, name); i++) {
        const char *text = json_object_get_string(field_at(object, name, i)); /* NULL: null */
        words_add(&list, "%s%s", i ? ", " : "", text ? text : "?");
    }
    (void)text_clean(list.text);
    return list;
}

struct json_object *json_number(double value, int decimals)
{
    char text[64];

    (void)snprintf(text, sizeof(text), "%.*f", decimals, value);
    return json_object_new_double_s(value, text);
}

void json_print(struct json_object *object, bool indented)
{
    int flags = indented ? JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED : JSON_C_TO_STRING_PLAIN;
    printf("%s\n", json_object_to_json_string_ext(object, flags | JSON_C_TO_STRING_NOSLASHESCAPE));
}
