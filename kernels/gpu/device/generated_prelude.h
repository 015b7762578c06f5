/* SPDX-License-Identifier: MIT
 *
 * generated_prelude.h - what the project's headers take from the system's, for code that is compiled where it runs: those headers need not be there.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_GENERATED_PRELUDE_H
#define FCC_KERNELS_GPU_DEVICE_GENERATED_PRELUDE_H

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
#if defined(__HIPCC_RTC__) /* it has some already */
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef decltype((char *)0 - (char *)0) ptrdiff_t;
#define NULL nullptr
#else
typedef long int64_t;
typedef unsigned long uint64_t;
#define __builtin_memcpy memcpy /* which NVRTC knows by this name alone */
#endif
typedef unsigned long uintptr_t;
#define INT64_C(number) ((int64_t)number##LL)
#define UINT64_C(number) ((uint64_t)number##ULL)
#define UINT32_MAX 0xffffffffu
#define INT64_MAX 0x7fffffffffffffffL
#define UINT64_MAX 0xffffffffffffffffUL
#define offsetof(type, member) ((size_t) & ((type *)0)->member) /* no constant for NVRTC, which has none */

#endif
