/* SPDX-License-Identifier: MIT
 *
 * slow_names.c - a name service that takes SLOW_NAMES_MS for each user: loaded before the C library.
 */
#include <dlfcn.h>
#include <pwd.h>
#include <stdlib.h>
#include <unistd.h>

struct passwd *getpwuid(uid_t uid)
{
    struct passwd *(*next)(uid_t) = (struct passwd * (*)(uid_t)) dlsym(RTLD_NEXT, "getpwuid");
    const char *ms = getenv("SLOW_NAMES_MS");

    (void)usleep(ms ? (useconds_t)atoi(ms) * 1000u : 0);
    return next(uid);
}
