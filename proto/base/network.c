/* SPDX-License-Identifier: MIT */
#include "proto/base/network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Are the first `bits` bits the same? */
static bool bits_are_same(const unsigned char *a, const unsigned char *b, unsigned bits)
{
    unsigned rest = bits % 8;

    return !memcmp(a, b, bits / 8) && (!rest || (a[bits / 8] ^ b[bits / 8]) >> (8 - rest) == 0);
}

bool network_has(const struct network *n, const struct network *address)
{
    return n->family == address->family && bits_are_same(n->address, address->address, n->prefix);
}

bool network_is_shared(const struct network *a, const struct network *b)
{
    return network_has(a, b) && network_has(b, a);
}

bool network_is_link_local(const struct network *n)
{
    static const struct network four = {NETWORK_IPV4, 16, {169, 254}}, six = {NETWORK_IPV6, 10, {0xfe, 0x80}};

    return network_has(&four, n) || network_has(&six, n);
}

void network_address_text(const struct network *n, char text[NETWORK_TEXT_MAX])
{
    if (!inet_ntop(n->family == NETWORK_IPV4 ? AF_INET : AF_INET6, n->address, text, NETWORK_TEXT_MAX))
        memcpy(text, "?", 2);
}

/* Parses one network. Changes the text. */
static int network_parse(char *text, struct network *out)
{
    char *slash = strchr(text, '/'), *end;

    if (!slash || slash[1] < '0' || slash[1] > '9')
        return -EINVAL;
    *slash = '\0';
    *out = (struct network){.family = strchr(text, ':') ? NETWORK_IPV6 : NETWORK_IPV4};
    unsigned long prefix = strtoul(slash + 1, &end, 10);
    if (*end || prefix > network_bits(out->family) ||
        inet_pton(out->family == NETWORK_IPV4 ? AF_INET : AF_INET6, text, out->address) != 1)
        return -EINVAL;
    out->prefix = (uint8_t)prefix;
    return 0;
}

int networks_parse(const char *text, struct network out[NETWORKS_MAX])
{
    char one[NETWORK_TEXT_MAX];
    int n = 0;

    if (!strcmp(text, "auto"))
        return 0;
    for (;; text++) { /* text++ skips the comma */
        size_t length = strcspn(text, ",");
        if (n == NETWORKS_MAX || length >= sizeof(one))
            return -EINVAL;
        memcpy(one, text, length);
        one[length] = '\0';
        if (network_parse(one, &out[n]))
            return -EINVAL;
        n++;
        text += length;
        if (!*text)
            return n;
    }
}
