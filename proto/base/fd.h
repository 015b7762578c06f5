/* SPDX-License-Identifier: MIT */
#ifndef FCC_PROTO_BASE_FD_H
#define FCC_PROTO_BASE_FD_H

#include <unistd.h>

/* Closes the descriptor, unless it is -1, and sets it to -1. */
static inline void fd_close(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

#endif
