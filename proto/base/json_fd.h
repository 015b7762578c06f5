/* SPDX-License-Identifier: MIT
 *
 * json_fd.h - JSON text in a sealed memfd: an answer of any length in one descriptor.
 */
#ifndef FCC_PROTO_BASE_JSON_FD_H
#define FCC_PROTO_BASE_JSON_FD_H

#include <json-c/json.h>

#include "proto/base/error.h"

/* Takes the caller's reference of `object`. Returns the descriptor, which the caller closes, or -errno with the reason. */
int json_to_fd(struct json_object *object, struct error *e);

#endif
