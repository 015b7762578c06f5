/* SPDX-License-Identifier: MIT
 *
 * generated_kernel.h - what a generated kernel is called, and its workgroups' threads: what loads and launches it (kernels/gpu/plugin/) knows of it.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_GENERATED_KERNEL_H
#define FCC_KERNELS_GPU_DEVICE_GENERATED_KERNEL_H

#define GENERATED_NAME "fcc_generated_step"
enum { GENERATED_THREADS = 256 };

#endif
