/* SPDX-License-Identifier: MIT */
#include "proto/base/address.h"

#include <errno.h>
#include <string.h>

#define PORT_DIGITS 5

/* Parses text that is a port and nothing else; returns 0 if it is not one. */
static uint32_t port_parse(const char *text)
{
    size_t digits = strspn(text, "0123456789");
    uint32_t port = 0;

    if (digits == 0 || digits > PORT_DIGITS || text[digits] || *text == '0')
        return 0;
    for (; *text; text++)
        port = port * 10 + (uint32_t)(*text - '0');
    return port <= UINT16_MAX ? port : 0;
}

int address_check(const char *what, const char *address, uint32_t *port, struct error *e)
{
    static const char shapes[] = "allowed are host, host:port, [IPv6] and [IPv6]:port";
    size_t length = strlen(address);
    const char *host = address, *end;
    uint32_t number = 0;

    if (length == 0 || length >= ADDRESS_BYTES)
        return error_set(e, -EINVAL, "%s: %zu characters: allowed are 1 to %d", what, length, ADDRESS_BYTES - 1);
    for (size_t i = 0; i < length; i++)
        if (address[i] <= ' ' || address[i] > '~')
            return error_set(e, -EINVAL, "%s: character %zu is 0x%02x: %s", what, i, (unsigned char)address[i], shapes);
    if (*host == '[') {
        size_t inside = strspn(++host, "0123456789abcdefABCDEF:.%");
        end = host + inside;
        if (*end != ']' || inside < 2)
            return error_set(e, -EINVAL, "%s: \"%s\": %s", what, address, shapes);
        end++;
    } else {
        end = host + strcspn(host, ":[]");
        if (end == host)
            return error_set(e, -EINVAL, "%s: \"%s\": %s", what, address, shapes);
    }
    if (*end == ':')
        number = port_parse(end + 1);
    if (*end && !number)
        return error_set(e, -EINVAL, "%s: \"%s\": %s, ports from 1 to %d", what, address, shapes, UINT16_MAX);
    if (port)
        *port = number;
    return 0;
}
