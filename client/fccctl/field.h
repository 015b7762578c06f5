/* SPDX-License-Identifier: MIT
 *
 * field.h - reads and prints JSON values. A field that is missing or of another type has a default value, so that fccctl works
 * with a daemon of another version.
 */
#ifndef FCC_CLIENT_FCCCTL_FIELD_H
#define FCC_CLIENT_FCCCTL_FIELD_H

#include <stdbool.h>
#include <stdint.h>

#include "client/fccctl/print.h"
#include "proto/base/json_fd.h"

int64_t field_int(struct json_object *object, const char *name, int64_t otherwise);
double field_double(struct json_object *object, const char *name, double otherwise);
bool field_bool(struct json_object *object, const char *name);                  /* default: false */
const char *field_text(struct json_object *object, const char *name);           /* default: ""; belongs to object */
struct json_object *field_object(struct json_object *object, const char *name); /* default: NULL; belongs to object */

/* The number of an array's elements, and one element; 0 and NULL if the field is not an array. */
size_t field_count(struct json_object *object, const char *name);
struct json_object *field_at(struct json_object *object, const char *name, size_t index);

/* An array of numbers or texts as "1, 3", cleaned. */
struct words field_list(struct json_object *object, const char *name);

/* A number that is printed with so many decimals. */
struct json_object *json_number(double value, int decimals);

/* Prints the object to stdout, indented or on one line, with a newline. */
void json_print(struct json_object *object, bool indented);

#endif
