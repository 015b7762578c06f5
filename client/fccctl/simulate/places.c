/* SPDX-License-Identifier: MIT
 *
 * places.c - where in a JSON text a value stands. The library that parses it keeps no lines, so they are looked for when there is something to say of
 * one. The text has been parsed before, so what is no JSON does not come here.
 */
#include <ctype.h>
#include <string.h>

#include "client/fccctl/simulate/describe.h"

struct scan {
    const char *at;
    int line;
    int twice; /* the line of the first key that stands twice */
    char key[64];
};

static void space_skip(struct scan *s)
{
    for (; *s->at && isspace((unsigned char)*s->at); s->at++)
        s->line += *s->at == '\n';
}

static void string_skip(struct scan *s)
{
    for (s->at++; *s->at && *s->at != '"'; s->at++)
        s->at += *s->at == '\\' && s->at[1];
    s->at += *s->at == '"';
}

static void value_skip(struct scan *s, const struct place *path[], int depth, int *found);

/* Whether a key of the text, between two quotes, is this one. */
static bool key_is(const char *quoted, size_t length, const char *key)
{
    return strlen(key) == length && !memcmp(quoted, key, length);
}

#define KEYS_KEPT 64

static void object_skip(struct scan *s, const struct place *path[], int depth, int *found)
{
    struct {
        const char *at;
        size_t length;
    } keys[KEYS_KEPT];
    size_t n = 0;

    for (s->at++, space_skip(s); *s->at == '"'; space_skip(s)) {
        const char *key = s->at + 1;
        const int line = s->line;
        string_skip(s);
        const size_t length = (size_t)(s->at - key - 1);
        for (size_t i = 0; i < n && !s->twice; i++)
            if (keys[i].length == length && !memcmp(keys[i].at, key, length)) {
                s->twice = line;
                (void)snprintf(s->key, sizeof(s->key), "%.*s", (int)(length < 60 ? length : 60), key);
            }
        if (n < KEYS_KEPT) {
            keys[n].at = key;
            keys[n++].length = length;
        }
        space_skip(s);
        s->at += *s->at == ':';
        space_skip(s);
        const bool is_it = depth > 0 && path[depth - 1]->key && key_is(key, length, path[depth - 1]->key);
        if (is_it && depth == 1)
            *found = line;
        value_skip(s, path, is_it ? depth - 1 : 0, found);
        space_skip(s);
        s->at += *s->at == ',';
    }
    s->at += *s->at == '}';
}

static void array_skip(struct scan *s, const struct place *path[], int depth, int *found)
{
    size_t i = 0;

    for (s->at++, space_skip(s); *s->at && *s->at != ']'; i++) {
        const bool is_it = depth > 0 && !path[depth - 1]->key && path[depth - 1]->index == i;
        if (is_it && depth == 1)
            *found = s->line;
        value_skip(s, path, is_it ? depth - 1 : 0, found);
        space_skip(s);
        s->at += *s->at == ',';
        space_skip(s);
    }
    s->at += *s->at == ']';
}

/* path[depth - 1] is the step that leads on from here, path[0] the last one. */
static void value_skip(struct scan *s, const struct place *path[], int depth, int *found)
{
    if (*s->at == '{')
        object_skip(s, path, depth, found);
    else if (*s->at == '[')
        array_skip(s, path, depth, found);
    else if (*s->at == '"')
        string_skip(s);
    else
        while (*s->at && !strchr(",]} \t\r\n", *s->at))
            s->at++;
}

int place_line(const char *text, const struct place *place)
{
    const struct place *path[16];
    struct scan s = {.at = text, .line = 1};
    int depth = 0, found = 1;

    for (; place && depth < 16; place = place->up)
        path[depth++] = place;
    space_skip(&s);
    found = s.line;
    value_skip(&s, path, depth, &found);
    return found;
}

int places_twice(const char *text, char key[64])
{
    struct scan s = {.at = text, .line = 1};
    int found = 0;

    space_skip(&s);
    value_skip(&s, NULL, 0, &found);
    memcpy(key, s.key, sizeof(s.key));
    return s.twice;
}

struct words place_text(const struct place *place)
{
    struct words out = {""};

    if (!place)
        return out;
    out = place_text(place->up);
    if (place->key)
        words_add(&out, "%s%s", *out.text ? "." : "", place->key);
    else
        words_add(&out, "[%zu]", place->index);
    return out;
}
