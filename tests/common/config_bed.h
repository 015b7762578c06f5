/* SPDX-License-Identifier: MIT
 *
 * config_bed.h - configurations of the tests of daemon/common/config.c: they are written to a file and loaded.
 */
#ifndef CONFIG_BED_H
#define CONFIG_BED_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/common/config.h"

static char path[64];

static void file_write(const char *text)
{
    (void)snprintf(path, sizeof(path), "/tmp/fccd-config.XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    (void)close(fd);
}

/* Load with the file and further arguments; returns the status. */
static int load(const char *text, char *const more[], struct config *c, struct error *e)
{
    char *argv[16] = {"fccd", "--config", path};
    enum config_action action;
    int argc = 3;

    file_write(text);
    for (; more && *more; more++)
        argv[argc++] = *more;
    int status = config_load(argc, argv, c, &action, e);
    (void)unlink(path);
    return status;
}

static void wrong(const char *text, char *const more[], const char *says)
{
    struct config c;
    struct error e = {0};

    assert_int_equal(load(text, more, &c, &e), -EINVAL);
    if (!strstr(e.text, says))
        fail_msg("\"%s\" does not say \"%s\"", e.text, says);
}

#endif
