/* SPDX-License-Identifier: MIT
 *
 * address.h - a node's address as text: "host", "host:port", "[IPv6]" or "[IPv6]:port".
 */
#ifndef FCC_PROTO_BASE_ADDRESS_H
#define FCC_PROTO_BASE_ADDRESS_H

#include <stdint.h>

#include "proto/base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ADDRESS_BYTES 64 /* the most that an address takes, with its NUL */

/* Checks an address's form; resolves nothing. `what` names the address in the error's text. Sets *port, to 0 if the address has
 * no port; port may be NULL. Returns 0 or -EINVAL. */
int address_check(const char *what, const char *address, uint32_t *port, struct error *e);

#ifdef __cplusplus
}
#endif
#endif
