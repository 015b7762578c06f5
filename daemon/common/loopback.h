/* SPDX-License-Identifier: MIT
 *
 * loopback.h - "127.0.0.1:9477", "[::1]:9477": addresses that only this machine reaches.
 */
#ifndef FCC_DAEMON_COMMON_LOOPBACK_H
#define FCC_DAEMON_COMMON_LOOPBACK_H

#include <stdint.h>
#include <sys/socket.h>

#define LOOPBACK_ALLOWED "127.x.x.x:port and [::1]:port"

/* -EINVAL: it is no such address. */
int loopback_parse(const char *text, struct sockaddr_storage *address, uint32_t *length);

#endif
