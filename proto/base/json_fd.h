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

/* Adds a member to an object, which takes the caller's reference of `value`. */
static inline void json_add(struct json_object *o, const char *key, struct json_object *value)
{
    json_object_object_add(o, key, value);
}

/* Returns a new reference. JSON's integers are signed: numbers from 2^63 on become negative. */
static inline struct json_object *json_number(uint64_t n)
{
    return json_object_new_int64((int64_t)n);
}

#endif
