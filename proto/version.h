/* SPDX-License-Identifier: MIT
 *
 * version.h - the version of fccd and its library as text: "MAJOR.MINOR.PATCH".
 */
#ifndef FCC_PROTO_VERSION_H
#define FCC_PROTO_VERSION_H

#include "proto/fccclient.h"

#define VERSION_DIGITS_(x) #x
#define VERSION_JOIN_(a, b, c) VERSION_DIGITS_(a) "." VERSION_DIGITS_(b) "." VERSION_DIGITS_(c)
#define VERSION_TEXT VERSION_JOIN_(FCC_VERSION_MAJOR, FCC_VERSION_MINOR, FCC_VERSION_PATCH)

#endif
