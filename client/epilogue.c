/* SPDX-License-Identifier: MIT
 *
 * epilogue.c - epilogues as programs give them, also those that were built when struct fcc_epilogue had a bias and a residual only.
 */
#include "client/epilogue.h"

#include <errno.h>
#include <string.h>

#include "proto/operators.h"

int epilogue_tensors(const struct fcc_epilogue *p)
{
    int n = 0;

    for (int i = 0; p && i < STAGES; i++)
        if (epilogue_arg(p, i)->buffer)
            n = i + 1;
    return n;
}

size_t epilogue_attr(const struct fcc_epilogue *p, int64_t words[EPILOGUE_ATTR_WORDS])
{
    bool any = false;

    words[0] = (int64_t)((uint64_t)FCC_ATTR_EPILOGUE << 32 | EPILOGUE_NUMBERS);
    for (int i = 0; p && i < EPILOGUE_NUMBERS; i++) {
        uint32_t bits;
        memcpy(&bits, (const unsigned char *)p + epilogue_numbers[i].at, sizeof(bits));
        words[1 + i] = bits;
        any |= bits != 0;
    }
    return any ? EPILOGUE_ATTR_WORDS : 0;
}

int epilogue_reserved_check(const struct fcc_epilogue *p, struct error *e)
{
    for (size_t i = 0; p && i < sizeof(p->reserved) / sizeof(p->reserved[0]); i++)
        if (p->reserved[i])
            return error_set(e, -EINVAL, "epilogue: reserved[%zu]: %u: must be 0", i, p->reserved[i]);
    return 0;
}

/* ---- programs that were linked with version 0.1 of the library ---- */

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
    FIRST(fcc_##name##_epilogue_start, (GIVEN(name), fcc_request **out), out)                                                  \
    FIRST(fcc_##name##_epilogue_enqueue, (GIVEN(name), void *stream, fcc_request **out), stream, out)
FIRSTS(gemv_all_reduce)
FIRSTS(gemm_all_to_all)
FIRSTS(gemm_all_reduce)
