/* SPDX-License-Identifier: MIT
 *
 * json_fd.h - JSON text in a sealed memfd: an answer of any length in one descriptor. And what makes such answers.
 */
#ifndef FCC_PROTO_BASE_JSON_FD_H
#define FCC_PROTO_BASE_JSON_FD_H

#include <json-c/json.h>
#include <stdint.h>

#include "proto/base/error.h"

/* Takes the caller's reference of `object`. Returns the descriptor, which the caller closes, or -errno with the reason. */
int json_to_fd(struct json_object *object, struct error *e);

/* A member of an object. `value` is a reference that the object takes; NULL: null. */
struct json_member {
    const char *name;
    struct json_object *value;
};

/* Adds members, which end with one without a name. */
static inline struct json_object *json_members_add(struct json_object *o, const struct json_member *m)
{
    for (; m->name; m++)
        (void)json_object_object_add(o, m->name, m->value);
    return o;
}

/* JSON_ADD(object, {name, value}, ...) adds members to an object. JSON_OBJECT({name, value}, ...) is a new object. */
#define JSON_MEMBERS(...) ((const struct json_member[]){__VA_ARGS__, {NULL, NULL}})
#define JSON_ADD(object, ...) ((void)json_members_add(object, JSON_MEMBERS(__VA_ARGS__)))
#define JSON_OBJECT(...) json_members_add(json_object_new_object(), JSON_MEMBERS(__VA_ARGS__))

/* New values. JSON's integers are signed: numbers from 2^63 on become negative. */
#define json_int(n) json_object_new_int64((int64_t)(n))
#define json_text(s) json_object_new_string(s)
#define json_double(x) json_object_new_double(x)

#endif
