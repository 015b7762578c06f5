/* SPDX-License-Identifier: MIT
 *
 * secrets.h - removes what may be secret from a report.
 */
#ifndef FCC_CLIENT_FCCCTL_SECRETS_H
#define FCC_CLIENT_FCCCTL_SECRETS_H

#include <stddef.h>

struct json_object;

/* The cluster's key, if its file can be read; otherwise nothing. */
struct secrets {
    unsigned char key[4096];
    size_t bytes;
};
void secrets_read(struct secrets *s, const char *path);
void secrets_forget(struct secrets *s);

/* A copy of the object, whose texts, and names of members, have "[removed]" in the place of the key (as it is, in hexadecimal and in base64), of
 * every run of 32 hexadecimal digits and more, of the value behind password=, token=, secret= and the like, of members with such names, of what
 * headers authorization and cookie have, and of the user and password in an URL. */
struct json_object *secrets_remove(const struct secrets *s, struct json_object *o);

#endif
