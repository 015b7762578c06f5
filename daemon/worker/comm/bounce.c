/* SPDX-License-Identifier: MIT */
#include "daemon/worker/comm/bounce.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/worker/comm/comm.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/device/gpu/host_memory.h"

int bounce_make(struct comm *c, uint64_t bytes, struct device_memory *out, struct error *e)
{
    struct device_memory m = {.bytes = bytes, .kind = FCC_MEMORY_HOST};

    if (c->dev.ops->number != FCC_DEVICE_CPU)
        return gpus_host_alloc(c->worker, bytes, out, e);
    m.data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m.data == MAP_FAILED)
        return error_set(e, -ENOMEM, "%llu bytes for a bounce buffer: %s", (unsigned long long)bytes, strerror(errno));
    *out = m;
    return 0;
}

void bounce_free(struct device_memory *m)
{
    if (m->gpus)
        gpus_host_free(m);
    else if (m->data)
        (void)munmap(m->data, m->bytes);
    *m = (struct device_memory){.data = NULL};
}
