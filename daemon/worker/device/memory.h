/* SPDX-License-Identifier: MIT
 *
 * memory.h - memory of a device, as this process and the devices of its kind address it.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_MEMORY_H
#define FCC_DAEMON_WORKER_DEVICE_MEMORY_H

#include <stdint.h>

#include "kernels/gpu/abi.h"
#include "proto/proto.h"

struct gpus;

struct device_memory {
    unsigned char *data; /* NULL: none. The CPU cannot touch a GPU's memory by it */
    uint64_t bytes;      /* at least what was asked for */
    enum fcc_memory_kind kind;
    struct gpu_memory gpu;
    struct gpus *gpus; /* host memory that GPUs see (device/gpu/steps.c). NULL: they do not */
};

#endif
