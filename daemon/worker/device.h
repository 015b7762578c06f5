/* SPDX-License-Identifier: MIT
 *
 * device.h - what runs plans. Callers use the device_* functions, which assert the contract, not the table.
 */
#ifndef FCCD_DEVICE_H
#define FCCD_DEVICE_H

#include "launch.h"

struct device;

struct device_ops {
    const char *kind; /* "cpu" */
    /* Make the device ready for parts: threads, contexts. Called once, before the first part. */
    int (*open)(struct device *d, struct error *e);
    /* Take a part into the device's queue. Parts run in this order. When all workgroups have left the last part of a launch,
     * the device calls worker_launch_finished(). Does not wait. */
    void (*launch)(struct device *d, struct launch_part *part);
    /* Run the given ranks of a launch in the calling thread, alone, and return when it is done. */
    void (*run_inline)(struct device *d, struct launch *l);
    /* All parts are done. */
    void (*close)(struct device *d);
};

struct device {
    const struct device_ops *ops;
    struct worker *worker;
    int index;
    unsigned workgroups;
    void *state; /* the implementation's; NULL: not open */
};

extern const struct device_ops device_cpu;

/* Opens it if it is not. */
int device_open(struct device *d, struct error *e);
void device_launch(struct device *d, struct launch_part *part);
void device_run_inline(struct device *d, struct launch *l);
void device_close(struct device *d);

#endif
