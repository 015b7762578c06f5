/* SPDX-License-Identifier: MIT
 *
 * network.h - IP networks in CIDR form: an address and the length of its network prefix.
 */
#ifndef FCC_PROTO_BASE_NETWORK_H
#define FCC_PROTO_BASE_NETWORK_H

#include <stdbool.h>
#include <stdint.h>

struct network {
    uint8_t family;            /* NETWORK_IPV4 or NETWORK_IPV6 */
    uint8_t prefix;            /* bits of the network prefix, at most network_bits() */
    unsigned char address[16]; /* in network byte order; IPv4: the first four bytes, the others are 0 */
};

enum { NETWORK_IPV4 = 4, NETWORK_IPV6 = 6 };
#define NETWORKS_MAX 32
#define NETWORK_TEXT_MAX 48 /* bytes of "ADDRESS/BITS" with its NUL */

/* Bits of an address of that family; 0: not a family. */
static inline unsigned network_bits(uint8_t family)
{
    return family == NETWORK_IPV4 ? 32 : family == NETWORK_IPV6 ? 128 : 0;
}

/* Is `address` in network n? The prefix of `address` is ignored. */
bool network_has(const struct network *n, const struct network *address);
/* Is each of the two addresses in the other's network? */
bool network_is_shared(const struct network *a, const struct network *b);
bool network_is_link_local(const struct network *n);
/* Writes the address without its prefix. */
void network_address_text(const struct network *n, char text[NETWORK_TEXT_MAX]);

/* Parses "10.1.0.0/16,fd00:1::/32". Returns the number of networks, 0 for "auto", or -EINVAL. */
#define NETWORKS_ALLOWED "auto, and up to 32 networks ADDRESS/BITS (IPv4 or IPv6) with commas between them"
int networks_parse(const char *text, struct network out[NETWORKS_MAX]);

#endif
