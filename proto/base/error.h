/* SPDX-License-Identifier: MIT
 *
 * error.h - a status with its reason in words. The function that detects an error writes the words; its callers pass them on.
 */
#ifndef FCC_PROTO_BASE_ERROR_H
#define FCC_PROTO_BASE_ERROR_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STATUS_LAST 4095 /* the largest errno value that a Linux system call can return */
#define FCC_TEXT_MAX 512 /* bytes of an error's text with its NUL */

struct error {
    int status; /* a negative errno value; 0: no error */
    char text[FCC_TEXT_MAX];
};

/* Resets to no error. Cheaper than an initializer, which would clear the whole text. */
static inline void error_clear(struct error *e)
{
    e->status = 0;
    e->text[0] = '\0';
}

/* Sets the error, its text cut to fit, and returns status. `e` may be NULL. With -EMFILE the text is followed by this process's id, unless it
 * names RLIMIT_NOFILE already. */
int error_set(struct error *e, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Replaces control characters and bytes that are not UTF-8 by '?', in place. So escape sequences in foreign text reach neither
 * a log nor a terminal, and JSON made of the text is valid. */
char *text_clean(char *text);
/* Copies a text with its NUL. A text that does not fit is cut between two UTF-8 characters. */
void text_copy(char *to, size_t room, const char *from);
/* Removes white space from both ends, in place. Returns the text's new beginning. */
char *text_trim(char *text);

#ifdef __cplusplus
}
#endif
#endif
