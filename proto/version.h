/* SPDX-License-Identifier: MIT
 *
 * version.h - the version of fccd and its library as text: "MAJOR.MINOR.PATCH"; and how a client and a fccd of different versions of the protocol
 * find one that both speak (proto.h).
 */
#ifndef FCC_PROTO_VERSION_H
#define FCC_PROTO_VERSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/fccclient.h"

#define VERSION_DIGITS_(x) #x
#define VERSION_JOIN_(a, b, c) VERSION_DIGITS_(a) "." VERSION_DIGITS_(b) "." VERSION_DIGITS_(c)
#define VERSION_TEXT VERSION_JOIN_(FCC_VERSION_MAJOR, FCC_VERSION_MINOR, FCC_VERSION_PATCH)

/* A fccd has refused the HELLO of *version in these words. If it has said that it speaks others, of which this client speaks one as well, sets
 * *version to the newest of these and returns true: the client then says HELLO again, on a new connection. */
bool version_agree(const char *refusal, uint32_t *version);

/* The same words, with what is to be upgraded, if they are about versions and do not say it. */
void version_explain(const char *refusal, char *text, size_t room);

#endif
