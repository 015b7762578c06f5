/* SPDX-License-Identifier: MIT */
#include "client/tune/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define FORMAT "fccd tuned 1"

static uint64_t hash_of(const char *text, size_t n)
{
    uint64_t hash = 1469598103934665603u; /* FNV-1a (Fowler, Noll, Vo) */

    for (size_t i = 0; i < n; i++)
        hash = (hash ^ (unsigned char)text[i]) * UINT64_C(1099511628211);
    return hash;
}

static int directory_name(const char *given, char out[400], struct error *e)
{
    const char *cache = secure_getenv("XDG_CACHE_HOME"), *home = secure_getenv("HOME");
    int n;

    if (given)
        n = snprintf(out, 400, "%s", given);
    else if (cache && *cache == '/')
        n = snprintf(out, 400, "%s/fccd-tuned", cache);
    else if (home && *home == '/')
        n = snprintf(out, 400, "%s/.cache/fccd-tuned", home);
    else
        return error_set(e, -ENOENT, "no directory for a cache: neither XDG_CACHE_HOME nor HOME is set");
    return n < 400 ? 0 : error_set(e, -ENAMETOOLONG, "the cache's directory: longer than 399 characters");
}

/* The directory, opened, made if `make`; a negative errno value. */
static int directory_open(const char *given, bool make, char path[400], struct error *e)
{
    struct stat s;
    int status = directory_name(given, path, e);

    if (status)
        return status;
    if (make) { /* one above it may be missing, too */
        char *last = strrchr(path, '/');
        if (last && last != path) {
            *last = '\0';
            (void)mkdir(path, 0700);
            *last = '/';
        }
        (void)mkdir(path, 0700);
    }
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return error_set(e, -errno, "%s: %s", path, strerror(errno));
    if (fstat(fd, &s) || s.st_uid != geteuid() || (s.st_mode & 077)) {
        (void)close(fd);
        return error_set(e, -EPERM, "%s: owner %u, mode %o: allowed is a directory of user %u alone, mode 700", path,
                         (unsigned)s.st_uid, (unsigned)(s.st_mode & 07777), (unsigned)geteuid());
    }
    return fd;
}

static void file_name(const char *key, char out[64])
{
    (void)snprintf(out, 64, "%016" PRIx64, hash_of(key, strlen(key)));
}

/* The text of a file of this user's: a regular one, no link, of a bounded size. */
static char *file_read(int directory, const char *path, const char *name, struct error *e)
{
    const int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat s;
    char *text = NULL;

    if (fd < 0) {
        (void)error_set(e, -errno, "%s/%s: %s", path, name, strerror(errno));
        return NULL;
    }
    if (fstat(fd, &s) || !S_ISREG(s.st_mode) || s.st_uid != geteuid() || s.st_size > CACHE_BYTES_MAX)
        (void)error_set(e, -EPERM, "%s/%s: allowed is a file of user %u with at most %d bytes", path, name, (unsigned)geteuid(),
                        CACHE_BYTES_MAX);
    else if (!(text = calloc(1, CACHE_BYTES_MAX + 1)))
        (void)error_set(e, -ENOMEM, "out of memory");
    ssize_t n = 0;
    while (text && n < CACHE_BYTES_MAX) {
        const ssize_t got = read(fd, text + n, (size_t)(CACHE_BYTES_MAX - n));
        if (got <= 0)
            break;
        n += got;
    }
    (void)close(fd);
    return text;
}

/* "FORMAT checksum\nkey\nvalue"; the key has no newline. */
char *cache_read(const char *given, const char *key, struct error *e)
{
    char path[400], name[64], head[64], *value = NULL;
    const int directory = directory_open(given, false, path, e);

    if (directory < 0)
        return NULL;
    file_name(key, name);
    char *text = file_read(directory, path, name, e);
    (void)close(directory);
    if (!text)
        return NULL;
    char *body = strchr(text, '\n');
    (void)snprintf(head, sizeof(head), FORMAT " %016" PRIx64, body ? hash_of(body + 1, strlen(body + 1)) : 0);
    if (!body || strncmp(text, head, strlen(head)) != 0 || (size_t)(body - text) != strlen(head))
        (void)error_set(e, -EBADMSG, "%s/%s: damaged: its checksum is another one", path, name);
    else if (strncmp(body + 1, key, strlen(key)) != 0 || body[1 + strlen(key)] != '\n')
        (void)error_set(e, -ENOENT, "%s/%s: of another program", path, name);
    else if (!(value = strdup(body + 1 + strlen(key) + 1)))
        (void)error_set(e, -ENOMEM, "out of memory");
    free(text);
    return value;
}

static int whole_write(int fd, const char *text, size_t n)
{
    for (size_t done = 0; done < n;) {
        const ssize_t wrote = write(fd, text + done, n - done);
        if (wrote < 0 && errno != EINTR)
            return -errno;
        done += wrote > 0 ? (size_t)wrote : 0;
    }
    return fsync(fd) ? -errno : 0;
}

int cache_write(const char *given, const char *key, const char *value, char path[512], struct error *e)
{
    uint64_t own = 0; /* of this writer, on whichever host and thread */
    char where[400], name[64], beside[96], *body = NULL, *text = NULL;
    const int directory = directory_open(given, true, where, e);

    if (directory < 0)
        return directory;
    file_name(key, name);
    if (getrandom(&own, sizeof(own), 0) != sizeof(own)) {
        (void)close(directory);
        return error_set(e, -EIO, "%s: no random number for a file's name", where);
    }
    (void)snprintf(beside, sizeof(beside), ".%s.%d.%016" PRIx64, name, (int)getpid(), own);
    const int length = asprintf(&body, "%s\n%s", key, value);
    const int whole = length < 0 ? -1 : asprintf(&text, FORMAT " %016" PRIx64 "\n%s", hash_of(body, strlen(body)), body);
    int status = whole < 0 ? -ENOMEM : whole > CACHE_BYTES_MAX ? -EFBIG : 0;
    const int fd = status ? -1 : openat(directory, beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (!status && fd < 0)
        status = -errno;
    if (fd >= 0) {
        status = whole_write(fd, text, (size_t)whole);
        if (close(fd) && !status)
            status = -errno;
        if (!status && renameat(directory, beside, directory, name))
            status = -errno;
        if (status)
            (void)unlinkat(directory, beside, 0);
    }
    free(length < 0 ? NULL : body);
    free(whole < 0 ? NULL : text);
    (void)close(directory);
    (void)snprintf(path, 512, "%s/%s", where, name);
    return status ? error_set(e, status, "%s: %s", path, strerror(-status)) : 0;
}
