/* SPDX-License-Identifier: MIT
 *
 * no_ledger.c - a broker whose workers get no ledger, so they count nothing: loaded before the C library, for tests/bench/metrics.
 */
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

int memfd_create(const char *name, unsigned flags)
{
    int (*next)(const char *, unsigned) = (int (*)(const char *, unsigned))dlsym(RTLD_NEXT, "memfd_create");

    if (!strcmp(name, "fccd-ledger")) {
        errno = ENOMEM;
        return -1;
    }
    return next(name, flags);
}
