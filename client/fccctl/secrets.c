/* SPDX-License-Identifier: MIT */
#include "client/fccctl/secrets.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "client/fccctl/field.h"
#include "proto/base/fd.h"

#define REMOVED "[removed]"
#define HEX_RUN 32 /* so many hexadecimal digits in a row are no count and no address */
#define PIECE 12   /* bytes of the key: a text that has so many of them in a row gives away too much */

void secrets_read(struct secrets *s, const char *path)
{
    int fd = *path == '/' ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    ssize_t n = fd >= 0 ? read(fd, s->key, sizeof(s->key)) : -1;

    s->bytes = n > 0 ? (size_t)n : 0;
    fd_close(&fd);
}

void secrets_forget(struct secrets *s)
{
    explicit_bzero(s, sizeof(*s));
}

/* ---- what is a secret at a place of a text: its length, or 0 ---- */

static size_t hex_run(const char *at)
{
    size_t n = strspn(at, "0123456789abcdefABCDEF");

    return n >= HEX_RUN ? n : 0;
}

/* As the key stands in its file. */
static size_t key_plain(const struct secrets *s, const char *at)
{
    size_t n = 0, left = strlen(at);

    for (size_t from = 0; from + PIECE <= s->bytes; from++) {
        for (n = 0; from + n < s->bytes && n < left && (unsigned char)at[n] == s->key[from + n]; n++) {
        }
        if (n >= PIECE)
            return n;
    }
    return 0;
}

static size_t base64_make(const unsigned char *bytes, size_t n, bool url, char *out)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", last[2][3] = {"+/", "-_"};
    size_t length = 0;

    for (size_t i = 0; i + 2 < n; i += 3) { /* whole groups only: the rest is less than a piece */
        uint32_t group = (uint32_t)bytes[i] << 16 | (uint32_t)bytes[i + 1] << 8 | bytes[i + 2];
        for (int k = 18; k >= 0; k -= 6) {
            unsigned six = group >> k & 63;
            const char *digits = six < 62 ? &letters[six] : &last[url][six - 62];
            out[length++] = *digits;
        }
    }
    return length;
}

/* In base64, of whichever of its first three bytes the coding begins with. */
static size_t key_base64(const struct secrets *s, const char *at)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_=";
    size_t run = strspn(at, digits), piece = PIECE / 3 * 4;
    char *code = run >= piece && s->bytes ? malloc(s->bytes * 4 / 3 + 8) : NULL;
    bool found = false;

    for (unsigned from = 0; code && from < 3 && from < s->bytes; from++)
        for (int url = 0; url < 2 && !found; url++) {
            size_t length = base64_make(s->key + from, s->bytes - from, url, code);
            for (size_t k = 0; k + piece <= length && !found; k += 4)
                found = !memcmp(at, code + k, piece);
        }
    free(code);
    return found ? run : 0;
}

/* Back from a place over blanks, and quotes, also those of a text within a text. */
static const char *back_over(const char *text, const char *at)
{
    while (at > text && strchr(" \t\"'\\", at[-1]))
        at--;
    return at;
}

/* What ends in one of these names is of a secret; of these headers the rest of the line. */
static bool is_secret_name(const char *name, size_t length)
{
    static const char *const names[] = {"password", "passwd",      "passphrase", "token",        "secret",
                                        "apikey",   "api_key",     "access_key", "private_key",  "credential",
                                        "cookie",   "credentials", "api-key",    "authorization"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t n = strlen(names[i]);
        if (length >= n && !strncasecmp(name + length - n, names[i], n))
            return true;
    }
    return false;
}

/* `token=...`, `password: ...`, `"secret": "..."`: the length of what is behind it. In quotes it may have blanks, and what a header has may have several words. */
static size_t named_value(const char *text, const char *at)
{
    static const char *const headers[] = {"authorization", "cookie"};
    const char *colon = back_over(text, at), *end;

    if (colon == text || (colon[-1] != '=' && colon[-1] != ':'))
        return 0;
    end = back_over(text, colon - 1);
    if (!is_secret_name(text, (size_t)(end - text)))
        return 0;
    if (at[-1] == '"' || at[-1] == '\'')
        return strcspn(at, (const char[]){at[-1], '\n', '\0'});
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        size_t n = strlen(headers[i]);
        if ((size_t)(end - text) >= n && !strncasecmp(end - n, headers[i], n))
            return strcspn(at, "\"'\n");
    }
    return strcspn(at, "\"' \t,;&\n");
}

/* `https://user:password@host`: what is in front of the @. */
static size_t url_user(const char *text, const char *at)
{
    size_t n = at - text >= 3 && !strncmp(at - 3, "://", 3) ? strcspn(at, "/?#@\"' \t\n") : 0;

    return at[n] == '@' ? n : 0;
}

static struct json_object *text_clean_of_secrets(const struct secrets *s, const char *text)
{
    size_t length = 0;
    char *out = NULL;
    FILE *f = open_memstream(&out, &length);

    for (const char *at = text; f && *at;) {
        size_t n = hex_run(at);
        n = n ? n : key_plain(s, at);
        n = n ? n : key_base64(s, at);
        n = n ? n : named_value(text, at);
        n = n ? n : url_user(text, at);
        if (n)
            (void)fputs(REMOVED, f);
        else
            (void)fputc(*at, f);
        at += n ? n : 1;
    }
    if (!f || fclose(f))
        return json_text(REMOVED);
    struct json_object *o = json_object_new_string_len(out, (int)length);
    free(out);
    return o;
}

struct json_object *secrets_remove(const struct secrets *s, struct json_object *o)
{
    struct json_object *copy, *name;

    switch (json_object_get_type(o)) {
    case json_type_string:
        return text_clean_of_secrets(s, json_object_get_string(o));
    case json_type_array:
        copy = json_object_new_array();
        for (size_t i = 0; i < json_object_array_length(o); i++)
            (void)json_object_array_add(copy, secrets_remove(s, json_object_array_get_idx(o, i)));
        return copy;
    case json_type_object:
        copy = json_object_new_object();
        json_object_object_foreach(o, key, value)
        {
            bool secret = json_object_is_type(value, json_type_string) && is_secret_name(key, strlen(key));
            name = text_clean_of_secrets(s, key);
            (void)json_object_object_add(copy, json_object_get_string(name),
                                         secret ? json_text(REMOVED) : secrets_remove(s, value));
            (void)json_object_put(name);
        }
        return copy;
    default:
        return json_object_get(o);
    }
}
