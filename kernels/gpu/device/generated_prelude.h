/* SPDX-License-Identifier: MIT
 *
 * generated_prelude.h - what the project's headers take from the system's, for code that is compiled where it runs: those headers need not be there.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_GENERATED_PRELUDE_H
#define FCC_KERNELS_GPU_DEVICE_GENERATED_PRELUDE_H

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;
#define INT64_C(number) number##L
#define UINT64_C(number) number##UL
#define UINT32_MAX 0xffffffffu
#define INT64_MAX 0x7fffffffffffffffL
#define UINT64_MAX 0xffffffffffffffffUL
#define offsetof(type, member) ((size_t) & ((type *)0)->member)

#endif
