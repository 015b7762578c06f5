/* SPDX-License-Identifier: MIT
 *
 * reading.h - reads the objects of a description by tables of their keys. Every refusal names the file, the line and the key.
 */
#ifndef FCC_CLIENT_FCCCTL_SIMULATE_READING_H
#define FCC_CLIENT_FCCCTL_SIMULATE_READING_H

#include <json-c/json.h>
#include <stddef.h>

#include "client/fccctl/simulate/describe.h"

enum field_kind { FIELD_INT, FIELD_NUMBER, FIELD_CHOICE, FIELD_BOOL, FIELD_UNIT, FIELD_OTHER };

struct field {
    const char *key;
    enum field_kind kind;
    bool needed;
    size_t at;
    double least, most; /* INT, NUMBER: bounds; UNIT: least 1: more than 0, least 0: 0 or more */
    enum unit_kind unit;
    const char *const *choices;
};

/* What all functions here know: a text that is known to be JSON, what errors call it, how many lines of its file are before it, and where what it says
 * goes. */
struct reading {
    const char *text, *name;
    int lines_before;
    struct description *d;
    struct error *e;
};

/* Rows of a table of fields, which ends with a key that is NULL. OTHER: a key that the caller reads. */
#define OTHER(name, is_needed)                                                                                                 \
    {                                                                                                                          \
        .key = (name), .kind = FIELD_OTHER, .needed = (is_needed)                                                              \
    }
#define AT(type, member) .at = offsetof(struct type, member)
#define TIME_AT(name, type, member)                                                                                            \
    {                                                                                                                          \
        .key = (name), .kind = FIELD_UNIT, AT(type, member), .unit = UNIT_TIME                                                 \
    }
#define RATE_AT(name, type, member, is_needed)                                                                                 \
    {                                                                                                                          \
        .key = (name), .kind = FIELD_UNIT, .needed = (is_needed), AT(type, member), .least = 1, .unit = UNIT_RATE              \
    }

/* The functions return 0, or -EINVAL once *r->e says what is wrong, and where. */

int reading_refuse(const struct reading *r, const struct place *at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A value within a field's bounds. *into: an int or a double, as the field's kind says. */
int reading_number(const struct reading *r, const struct place *at, const struct field *f, struct json_object *value,
                   void *into);
int reading_unit(const struct reading *r, const struct place *at, const struct field *f, struct json_object *value,
                 double *into);
/* Takes all keys of an object that the table has into the struct, and refuses others. OTHER fields are the caller's. */
int reading_object(const struct reading *r, const struct place *at, struct json_object *o, const struct field *fields,
                   void *into);
/* A member of an object. NULL: it has none, or is no object. */
struct json_object *object_member(struct json_object *o, const char *key);

/* ---- texts: describe.c ---- */

/* A file's text, at most `most` bytes, with a NUL after its *length bytes, to be freed. NULL: *e says why. */
char *text_read(const char *path, size_t most, size_t *length, struct error *e);
/* The text's first value as JSON, which belongs to the caller; NULL: it is none, or has a key twice, which *e says. used: NULL, and nothing may
 * follow the value; or where it ends. */
struct json_object *text_parse(const struct reading *r, size_t length, size_t *used);

/* machines.c: takes what *o says into r->d->machine. It may be called for what a machine's own file says. */
int machine_take(const struct reading *r, const struct place *at, struct json_object *o);
/* workloads.c: takes the list into r->d->operators, sorted. The machine has been taken. Also -ENOMEM. */
int workload_take(const struct reading *r, struct json_object *list);
/* The sizes of d->number, which stand at `here`. */
int sizes_take(const struct reading *r, const struct place *here, struct json_object *o, struct described *d);

#endif
