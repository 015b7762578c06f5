/* SPDX-License-Identifier: MIT
 *
 * device.c - the contract of every device, asserted.
 */
#include "device.h"

int device_open(struct device *d, struct error *e)
{
    int status = d->state ? 0 : d->ops->open(d, e);
    assert(status == 0 ? d->state != NULL : status < 0);
    return status;
}

void device_launch(struct device *d, struct launch_part *part)
{
    assert(d->state && part->device == d && part->nruns > 0);
    d->ops->launch(d, part);
}

void device_run_inline(struct device *d, struct launch *l)
{
    assert(d->state && l->inline_);
    d->ops->run_inline(d, l);
}

void device_close(struct device *d)
{
    if (d->state)
        d->ops->close(d);
    d->state = NULL;
}
