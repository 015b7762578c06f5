/* SPDX-License-Identifier: MIT
 *
 * describe.c - reads a description from its file, and its machine from another file if it names one.
 */
#include "client/fccctl/simulate/reading.h"

#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>

struct top {
    int seed;
};
static const struct field top_fields[] = {OTHER("name", false),
                                          {"seed", FIELD_INT, false, AT(top, seed), 0, INT32_MAX},
                                          OTHER("machine", true),
                                          OTHER("workload", true),
                                          {.key = NULL}};

struct json_object *text_parse(const struct reading *r, size_t length, size_t *used)
{
    struct json_tokener *tokener = json_tokener_new_ex(16);
    struct json_object *o = NULL;
    char key[64];
    int line = r->lines_before + 1;

    if (!tokener) {
        (void)error_set(r->e, -ENOMEM, "%s: no memory", r->name);
        return NULL;
    }
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | (used ? JSON_TOKENER_ALLOW_TRAILING_CHARS : 0));
    if (memchr(r->text, 0, length))
        (void)error_set(r->e, -EINVAL, "%s: a NUL byte: no JSON", r->name);
    else
        o = json_tokener_parse_ex(tokener, r->text, (int)length + 1);
    const enum json_tokener_error why = json_tokener_get_error(tokener);
    const size_t end = json_tokener_get_parse_end(tokener);
    for (size_t i = 0; i < end && i < length; i++)
        line += r->text[i] == '\n';
    if (!o && !r->e->status)
        (void)error_set(r->e, -EINVAL, "%s:%d: no JSON: %s", r->name, line,
                        why == json_tokener_continue ? "it ends too early" : json_tokener_error_desc(why));
    json_tokener_free(tokener);
    if (used)
        *used = end < length ? end : length;
    if (o && (line = places_twice(r->text, key))) {
        (void)error_set(r->e, -EINVAL, "%s:%d: \"%s\" stands twice", r->name, r->lines_before + line, key);
        (void)json_object_put(o);
        return NULL;
    }
    return o;
}

static int object_read(struct reading *r, struct json_object *o, struct json_object *machine,
                       const struct reading *machine_reading)
{
    const struct place at = {.key = "machine"}, named = {.key = "name"};
    struct json_object *name = object_member(o, "name");
    struct top top = {.seed = 1};

    if (reading_object(r, NULL, o, top_fields, &top))
        return r->e->status;
    r->d->seed = (uint64_t)top.seed;
    if (name && (!json_object_is_type(name, json_type_string) || json_object_get_string_len(name) >= DESCRIPTION_NAME))
        return reading_refuse(r, &named, "needed is a text of at most %d characters", DESCRIPTION_NAME - 1);
    text_copy(r->d->name, sizeof(r->d->name), name ? json_object_get_string(name) : "");
    if (machine ? machine_take(machine_reading, NULL, machine) : machine_take(r, &at, object_member(o, "machine")))
        return r->e->status;
    return workload_take(r, object_member(o, "workload"));
}

int description_parse(const char *text, size_t length, const char *name, struct description *out, struct error *e)
{
    struct reading r = {.text = text, .name = name, .d = out, .e = e};

    *out = (struct description){.noperators = 0};
    error_clear(e);
    struct json_object *o = text_parse(&r, length, NULL);
    if (!o)
        return e->status;
    const int status = object_read(&r, o, NULL, NULL);
    (void)json_object_put(o);
    if (status)
        description_free(out);
    return status;
}

char *text_read(const char *path, size_t most, size_t *length, struct error *e)
{
    FILE *in = fopen(path, "re");
    char *text = in ? malloc(most + 1) : NULL;

    if (!in || !text) {
        (void)error_set(e, in ? -ENOMEM : -errno, "%s: %s", path, in ? "no memory" : strerror(errno));
    } else {
        const size_t n = fread(text, 1, most + 1, in);
        if (ferror(in))
            (void)error_set(e, -EIO, "%s: %s", path, strerror(errno));
        else if (n > most)
            (void)error_set(e, -EINVAL, "%s: larger than %zu bytes", path, most);
        *length = n <= most ? n : 0;
        text[*length] = '\0';
    }
    if (in)
        (void)fclose(in);
    if (e->status) {
        free(text);
        return NULL;
    }
    return text;
}

int description_read(const char *path, struct description *out, struct error *e)
{
    struct reading r = {.name = path, .d = out, .e = e}, m = r;
    struct json_object *machine = NULL, *o;
    char *other = NULL, *text;
    size_t length = 0;
    struct words folder = words("%s", path);

    *out = (struct description){.noperators = 0};
    error_clear(e);
    r.text = text = text_read(path, DESCRIPTION_BYTES, &length, e);
    o = text ? text_parse(&r, length, NULL) : NULL;
    struct json_object *named = o ? object_member(o, "machine") : NULL;
    struct words file; /* outlives m, which calls it by name */
    if (json_object_is_type(named, json_type_string)) {
        file = words("%s/%s", dirname(folder.text), json_object_get_string(named));
        m.name = file.text;
        m.text = other = text_read(file.text, DESCRIPTION_BYTES, &length, e);
        machine = other ? text_parse(&m, length, NULL) : NULL;
    }
    if (!e->status)
        (void)object_read(&r, o, machine, &m);
    (void)json_object_put(o);
    (void)json_object_put(machine);
    free(text);
    free(other);
    if (e->status)
        description_free(out);
    return e->status;
}

void description_free(struct description *d)
{
    free(d->operators);
    free(d->machine.fabric.cables);
    *d = (struct description){.noperators = 0};
}
