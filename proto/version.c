/* SPDX-License-Identifier: MIT */
#include "proto/version.h"

#include <stdio.h>
#include <string.h>

#include "proto/proto.h"

/* The broker's words are in daemon/broker/hello.c. Before a fccd spoke several versions, it said one. */
static bool spoken_find(const char *refusal, unsigned *oldest, unsigned *newest)
{
    static const char speaks[] = "speaks version";
    const char *at = strstr(refusal, speaks);

    if (!at)
        return false;
    at += strlen(speaks);
    if (sscanf(at, "s %u to %u", oldest, newest) == 2)
        return true;
    if (sscanf(at, " %u", oldest) != 1)
        return false;
    *newest = *oldest;
    return true;
}

bool version_agree(const char *refusal, uint32_t *version)
{
    unsigned oldest, newest;

    if (!spoken_find(refusal, &oldest, &newest) || oldest >= *version || newest >= *version || newest < FCC_PROTO_OLDEST)
        return false;
    *version = newest;
    return true;
}

void version_explain(const char *refusal, char *text, size_t room)
{
    unsigned oldest, newest;

    if (!spoken_find(refusal, &oldest, &newest) || strstr(refusal, "upgrade"))
        (void)snprintf(text, room, "%s", refusal);
    else
        (void)snprintf(text, room, "%.300s: this client (" VERSION_TEXT ") speaks versions %u to %u: upgrade %s", refusal,
                       FCC_PROTO_OLDEST, FCC_PROTO_VERSION,
                       newest < FCC_PROTO_OLDEST ? "fccd" : "libfccclient (or the Python package fccd)");
}
