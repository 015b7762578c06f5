/* SPDX-License-Identifier: MIT
 *
 * field.h - read and print JSON values. A field that is missing or of another type reads as the value that the caller names, so
 * that fccctl works with a daemon of another version.
 */
#ifndef FCC_CLIENT_FCCCTL_FIELD_H
#define FCC_CLIENT_FCCCTL_FIELD_H

#include <stdbool.h>
#include <stdint.h>

#include <json-c/json.h>

int64_t field_int(struct json_object *object, const char *name, int64_t otherwise);
double field_double(struct json_object *object, const char *name, double otherwise);
bool field_bool(struct json_object *object, const char *name);                  /* false */
const char *field_text(struct json_object *object, const char *name);           /* ""; belongs to object */
struct json_object *field_object(struct json_object *object, const char *name); /* NULL; belongs to object */

/* The elements of an array; 0 and NULL if it is none. */
size_t field_count(struct json_object *object, const char *name);
struct json_object *field_at(struct json_object *object, const char *name, size_t index);

/* "1, 3" from an array of numbers or texts, cut to fit, and cleaned. */
const char *field_list(struct json_object *object, const char *name, char *out, size_t room);

/* A number printed with that many decimals. */
struct json_object *json_number(double value, int decimals);

/* Print the object on stdout, indented or on one line, and a newline. */
void json_print(struct json_object *object, bool indented);

#endif
