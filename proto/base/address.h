/* SPDX-License-Identifier: MIT
 *
 * address.h - a node's address in words: "host", "host:port", "[IPv6]" or "[IPv6]:port".
 */
#ifndef FCC_PROTO_BASE_ADDRESS_H
#define FCC_PROTO_BASE_ADDRESS_H

#include <stdint.h>

#include "proto/base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Checks an address, of which nothing is looked up; `what` names it in the error's text. *port is 0 if it has none; NULL is
 * allowed. -EINVAL. */
int address_check(const char *what, const char *address, uint32_t *port, struct error *e);

#ifdef __cplusplus
}
#endif
#endif
