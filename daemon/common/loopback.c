/* SPDX-License-Identifier: MIT */
#include "daemon/common/loopback.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "proto/base/address.h"

int loopback_parse(const char *text, struct sockaddr_storage *address, uint32_t *length)
{
    struct sockaddr_in *four = (struct sockaddr_in *)(void *)address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)(void *)address;
    char host[ADDRESS_BYTES];
    uint32_t port = 0;
    struct error ignored;

    memset(address, 0, sizeof(*address));
    if (address_check("address", text, &port, &ignored) || !port)
        return -EINVAL;
    size_t n = (size_t)(strrchr(text, ':') - text);
    memcpy(host, text, n);
    host[n] = '\0';
    if (!strcmp(host, "[::1]")) {
        *six = (struct sockaddr_in6){
            .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
        *length = sizeof(*six);
        return 0;
    }
    four->sin_family = AF_INET;
    four->sin_port = htons((uint16_t)port);
    *length = sizeof(*four);
    return inet_pton(AF_INET, host, &four->sin_addr) == 1 && ntohl(four->sin_addr.s_addr) >> 24 == 127 ? 0 : -EINVAL;
}
