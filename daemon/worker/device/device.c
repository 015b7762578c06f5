/* SPDX-License-Identifier: MIT
 *
 * device.c - the contract of every device, asserted.
 */
#include "daemon/worker/device/device.h"

int device_open(struct device *d, struct error *e)
{
    int status = d->state ? 0 : d->ops->open(d, e);
    assert(status == 0 ? d->state != NULL : status < 0);
    return status;
}

int device_memory_alloc(struct device *d, uint64_t bytes, struct device_memory *out, int *fd, struct error *e)
{
    assert(d->state && bytes > 0);
    int status = d->ops->memory_alloc(d, bytes, out, fd, e);
    assert(status == 0 ? out->data && out->bytes >= bytes : status < 0);
    return status;
}

void device_memory_free(struct device *d, struct device_memory *m)
{
    if (m->data)
        d->ops->memory_free(d, m);
    *m = (struct device_memory){.data = NULL};
}

void device_launch(struct launch *l)
{
    struct device *d = l->parts[0].device;

    for (int p = 0; p < l->nparts; p++)
        assert(l->parts[p].device->state && l->parts[p].device->ops == d->ops && l->parts[p].nruns > 0);
    d->ops->launch(d, l);
}

void device_close(struct device *d)
{
    if (d->state)
        d->ops->close(d);
    d->state = NULL;
}
