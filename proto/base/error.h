/* SPDX-License-Identifier: MIT
 *
 * error.h - a status with its reason in words. Who finds an error writes the words; callers pass it on.
 */
#ifndef FCC_PROTO_BASE_ERROR_H
#define FCC_PROTO_BASE_ERROR_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STATUS_LAST 4095 /* the largest errno value that Linux has room for */
#define FCC_TEXT_MAX 512 /* bytes of an error's text with its NUL */

struct error {
    int status; /* negative errno; 0: none */
    char text[FCC_TEXT_MAX];
};

/* No error. Where microseconds count, instead of an initializer, which would clear all of the text. */
static inline void error_clear(struct error *e)
{
    e->status = 0;
    e->text[0] = '\0';
}

/* Sets the error (cut to fit) and returns status. `e` may be NULL. */
int error_set(struct error *e, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Replaces control characters by '?', in place, and what is no UTF-8: an escape sequence in somebody's text must not reach a log or a terminal,
 * and JSON with anything else in it is none. */
char *text_clean(char *text);
/* Copies a text, cut to fit between two characters, with its NUL. */
void text_copy(char *to, size_t room, const char *from);
/* Without the white space at both ends, in place: where it begins. */
char *text_trim(char *text);

#ifdef __cplusplus
}
#endif
#endif
