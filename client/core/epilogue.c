/* SPDX-License-Identifier: MIT
 *
 * epilogue.c - epilogues as programs give them.
 */
#include "client/core/epilogue.h"

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

bool epilogue_does(const struct fcc_epilogue *p)
{
    int64_t words[EPILOGUE_ATTR_WORDS];

    return epilogue_tensors(p) || epilogue_attr(p, words);
}

int epilogue_reserved_check(const struct fcc_epilogue *p, struct error *e)
{
    for (size_t i = 0; p && i < sizeof(p->reserved) / sizeof(p->reserved[0]); i++)
        if (p->reserved[i])
            return error_set(e, -EINVAL, "epilogue: reserved[%zu]: %u: must be 0", i, p->reserved[i]);
    return 0;
}
