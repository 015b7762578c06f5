/* SPDX-License-Identifier: MIT
 *
 * epilogue_first.c - for programs that were linked with version 0.1 of the library, when struct fcc_epilogue had a bias and a residual only.
 */
#include <stddef.h>

#include "proto/fccclient.h"

struct epilogue_first {
    struct fcc_tensor bias, residual;
};

/* Returns out, or NULL for NULL. */
static const struct fcc_epilogue *widen(const struct epilogue_first *from, struct fcc_epilogue *out)
{
    if (!from)
        return NULL;
    *out = (struct fcc_epilogue){.bias = from->bias, .residual = from->residual};
    return out;
}

/* client/libfccclient.map gives today's functions the newer version of the name. */
#define FIRST(function, parameters, ...)                                                                                       \
    int function##_first parameters;                                                                                           \
    __asm__(".symver " #function "_first, " #function "@FCC_0");                                                               \
    int function##_first parameters                                                                                            \
    {                                                                                                                          \
        struct fcc_epilogue wide;                                                                                              \
        return function(comm, args, widen(epilogue, &wide), ##__VA_ARGS__);                                                    \
    }
#define GIVEN(name) fcc_comm *comm, const struct fcc_##name##_args *args, const struct epilogue_first *epilogue
#define FIRSTS(name)                                                                                                           \
    FIRST(fcc_##name##_epilogue, (GIVEN(name)))                                                                                \
    FIRST(fcc_##name##_epilogue_start, (GIVEN(name), fcc_request * *out), out)                                                 \
    FIRST(fcc_##name##_epilogue_enqueue, (GIVEN(name), void *stream, fcc_request **out), stream, out)
FIRSTS(gemv_all_reduce)
FIRSTS(gemm_all_to_all)
FIRSTS(gemm_all_reduce)
