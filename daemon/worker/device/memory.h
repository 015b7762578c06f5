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
    unsigned char *data; /* NULL: there is no memory. For memory of a GPU, an address that the CPU cannot access */
    uint64_t bytes;      /* at least the size that was asked for */
    enum fcc_memory_kind kind;
    struct gpu_memory gpu;
    struct gpus *gpus; /* host memory that these GPUs can access (device/gpu/host_memory.h). NULL: GPUs cannot */
};

#endif
