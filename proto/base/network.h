/* SPDX-License-Identifier: MIT
 *
 * network.h - networks of IP addresses: an address and how many of its first bits are the network's.
 */
#ifndef FCC_PROTO_BASE_NETWORK_H
#define FCC_PROTO_BASE_NETWORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct network {
    uint8_t family; /* NETWORK_IPV4: the address's first four bytes, the others are 0; NETWORK_IPV6: all */
    uint8_t prefix; /* at most network_bits() */
    unsigned char address[16];
};

enum { NETWORK_IPV4 = 4, NETWORK_IPV6 = 6 };
#define NETWORKS_MAX 32
#define NETWORK_TEXT_MAX 48 /* an address, '/' and a number */

/* Of an address of that family; 0: it is none. */
static inline unsigned network_bits(uint8_t family)
{
    return family == NETWORK_IPV4 ? 32 : family == NETWORK_IPV6 ? 128 : 0;
}

/* Is that address, whatever its own network, in this network? */
bool network_has(const struct network *n, const struct network *address);
/* Are two addresses in one network, as both see it: is each in the network of the other? */
bool network_is_shared(const struct network *a, const struct network *b);
bool network_is_link_local(const struct network *n);
/* The address alone. */
void network_address_text(const struct network *n, char text[NETWORK_TEXT_MAX]);

/* "10.1.0.0/16,fd00:1::/32": how many there are, at least 1; -EINVAL. "auto" is none: 0. */
#define NETWORKS_ALLOWED "auto, and up to 32 networks ADDRESS/BITS (IPv4 or IPv6) with commas between them"
int networks_parse(const char *text, struct network out[NETWORKS_MAX]);

#endif
