/* SPDX-License-Identifier: MIT */
#include "daemon/worker/engine/meter.h"

#include <errno.h>
#include <string.h>

void meter_aborted(const struct worker *w, int status, bool asked)
{
    enum meter_abort why = METER_ABORT_OTHER;

    if (!w->meters)
        return;
    if (asked)
        why = METER_ABORT_ASKED;
    else if (status == -ETIMEDOUT)
        why = METER_ABORT_TIME_LIMIT;
    else if (status == -ECONNABORTED)
        why = METER_ABORT_RANK_GONE;
    else if (status == -ECONNRESET || status == -EHOSTUNREACH || status == -ECONNREFUSED)
        why = METER_ABORT_NODE_LOST;
    else if (status == -ENOMEM)
        why = METER_ABORT_MEMORY;
    else if (status == -ESHUTDOWN)
        why = METER_ABORT_SHUTDOWN;
    meter_add(&w->meters->counters.aborts[why], 1);
}

void meter_node(const struct worker *w, const char *address, const char *transport, const struct meter_node *counts)
{
    struct meter_node *to = w->meters ? w->meters->nodes : NULL;
    int i = 0;

    while (to && i < METER_NODES && *to[i].address && strcmp(to[i].address, address) != 0)
        i++;
    if (!to || i == METER_NODES)
        return; /* more nodes than a job has peers at a time: the latest ones are not counted */
    if (!*to[i].address)
        text_copy(to[i].address, sizeof(to[i].address), address);
    if (*transport && strcmp(to[i].transport, transport) != 0)
        text_copy(to[i].transport, sizeof(to[i].transport), transport);
    meter_set(&to[i].bytes_out, counts->bytes_out);
    meter_set(&to[i].bytes_in, counts->bytes_in);
    meter_set(&to[i].messages_out, counts->messages_out);
    meter_set(&to[i].messages_in, counts->messages_in);
    meter_set(&to[i].waits, counts->waits);
    meter_set(&to[i].lost, counts->lost);
}
