/* SPDX-License-Identifier: MIT */
#include "proto/base/disk_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define FORMAT "fccd cache 1"
#define HEAD_MOST 80
#define DIRECTORY_MOST 400
#define HASH_FIRST UINT64_C(1469598103934665603) /* FNV-1a (Fowler, Noll, Vo) */

static uint64_t hash_of(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;

    for (size_t i = 0; i < n; i++)
        hash = (hash ^ at[i]) * UINT64_C(1099511628211);
    return hash;
}

/* ---- the directory ---- */

static int directory_name(const struct disk_cache *c, char out[DIRECTORY_MOST], struct error *e)
{
    const char *cache = secure_getenv("XDG_CACHE_HOME"), *home = secure_getenv("HOME");
    struct passwd user, *found = NULL;
    char text[4096];
    int n;

    if (!c->directory && !(cache && *cache == '/') && !(home && *home == '/') &&
        getpwuid_r(geteuid(), &user, text, sizeof(text), &found) == 0 && found)
        home = user.pw_dir;
    if (c->directory)
        n = snprintf(out, DIRECTORY_MOST, "%s", c->directory);
    else if (cache && *cache == '/')
        n = snprintf(out, DIRECTORY_MOST, "%s/%s", cache, c->name);
    else if (home && *home == '/')
        n = snprintf(out, DIRECTORY_MOST, "%s/.cache/%s", home, c->name);
    else
        return error_set(e, -ENOENT,
                         "no directory for a cache: neither XDG_CACHE_HOME nor HOME is set, and the user has no home");
    return n < DIRECTORY_MOST
               ? 0
               : error_set(e, -ENAMETOOLONG, "the cache's directory: longer than %d characters", DIRECTORY_MOST - 1);
}

/* The directory, opened, made if `make`; a negative errno value. */
static int directory_open(const struct disk_cache *c, bool make, char path[DIRECTORY_MOST], struct error *e)
{
    struct stat s;
    int status = directory_name(c, path, e);

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
    (void)snprintf(out, 64, "%016" PRIx64, hash_of(HASH_FIRST, key, strlen(key)));
}

/* ---- reading ---- */

/* The bytes of a file of this user's: a regular one, no link, of a bounded size. */
static char *file_read(const struct disk_cache *c, int directory, const char *path, const char *name, size_t *bytes,
                       struct error *e)
{
    const int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat s;
    char *all = NULL;
    size_t n = 0;

    if (fd < 0) {
        (void)error_set(e, -errno, "%s/%s: %s", path, name, strerror(errno));
        return NULL;
    }
    if (fstat(fd, &s) || !S_ISREG(s.st_mode) || s.st_uid != geteuid() || (size_t)s.st_size > c->bytes_most)
        (void)error_set(e, -EPERM, "%s/%s: allowed is a file of user %u with at most %zu bytes", path, name,
                        (unsigned)geteuid(), c->bytes_most);
    else if (!(all = malloc((size_t)s.st_size + 1)))
        (void)error_set(e, -ENOMEM, "out of memory");
    while (all && n < (size_t)s.st_size) {
        const ssize_t got = read(fd, all + n, (size_t)s.st_size - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    (void)close(fd);
    if (all)
        all[n] = '\0';
    *bytes = n;
    return all;
}

/* The first line: what the rest is. */
static int head_print(char head[HEAD_MOST], const char *key, size_t key_bytes, const void *value, size_t value_bytes)
{
    return snprintf(head, HEAD_MOST, FORMAT " %016" PRIx64 " %zu %zu\n",
                    hash_of(hash_of(HASH_FIRST, key, key_bytes), value, value_bytes), key_bytes, value_bytes);
}

/* Whether a file's bytes have the length and the checksum that its first line says; then *key and *value lie in it. */
static bool file_is_whole(const char *all, size_t bytes, const char **key, size_t *key_bytes, const char **value,
                          size_t *value_bytes)
{
    const char *line = memchr(all, '\n', bytes < HEAD_MOST ? bytes : HEAD_MOST);
    const size_t head_bytes = line ? (size_t)(line + 1 - all) : 0;
    char head[HEAD_MOST];
    uint64_t hash;

    if (!line || sscanf(all, FORMAT " %16" SCNx64 " %zu %zu\n", &hash, key_bytes, value_bytes) != 3 ||
        *key_bytes > bytes - head_bytes || *value_bytes != bytes - head_bytes - *key_bytes)
        return false;
    *key = line + 1;
    *value = *key + *key_bytes;
    return head_print(head, *key, *key_bytes, *value, *value_bytes) == (int)head_bytes && !memcmp(head, all, head_bytes);
}

void *disk_cache_read(const struct disk_cache *c, const char *key, size_t *bytes, struct error *e)
{
    char path[DIRECTORY_MOST], name[64], *result = NULL;
    const char *its_key, *value;
    size_t n = 0, key_bytes;
    const int directory = directory_open(c, false, path, e);

    if (directory < 0)
        return NULL;
    file_name(key, name);
    char *all = file_read(c, directory, path, name, &n, e);
    (void)close(directory);
    if (!all)
        return NULL;
    if (!file_is_whole(all, n, &its_key, &key_bytes, &value, bytes))
        (void)error_set(e, -EBADMSG, "%s/%s: damaged: its length or checksum is another one", path, name);
    else if (key_bytes != strlen(key) || memcmp(its_key, key, key_bytes) != 0)
        (void)error_set(e, -ENOENT, "%s/%s: of another key", path, name);
    else if (!(result = malloc(*bytes + 1)))
        (void)error_set(e, -ENOMEM, "out of memory");
    if (result) {
        memcpy(result, value, *bytes);
        result[*bytes] = '\0';
    }
    free(all);
    return result;
}

/* ---- writing ---- */

static int whole_write(int fd, const void *bytes, size_t n)
{
    for (size_t done = 0; done < n;) {
        const ssize_t wrote = write(fd, (const char *)bytes + done, n - done);
        if (wrote < 0 && errno != EINTR)
            return -errno;
        done += wrote > 0 ? (size_t)wrote : 0;
    }
    return 0;
}

/* Makes room for one more file: the one that is longest unchanged goes, also what a writer that was killed has left. */
static void room_make(const struct disk_cache *c, int directory)
{
    const int again = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = again < 0 ? NULL : fdopendir(again);
    char oldest[256] = "";
    struct timespec when = {0};
    size_t n = 0;
    struct stat s;

    for (const struct dirent *one; d && (one = readdir(d));) {
        if (!strcmp(one->d_name, ".") || !strcmp(one->d_name, "..") ||
            fstatat(directory, one->d_name, &s, AT_SYMLINK_NOFOLLOW) || !S_ISREG(s.st_mode))
            continue;
        if (!n++ || s.st_mtim.tv_sec < when.tv_sec || (s.st_mtim.tv_sec == when.tv_sec && s.st_mtim.tv_nsec < when.tv_nsec)) {
            (void)snprintf(oldest, sizeof(oldest), "%s", one->d_name);
            when = s.st_mtim;
        }
    }
    if (n >= c->files_most)
        (void)unlinkat(directory, oldest, 0);
    if (d)
        (void)closedir(d);
    else if (again >= 0)
        (void)close(again);
}

/* All of a file, beside its place, then in it. */
static int file_write(int directory, const char *beside, const char *name, const char *head, const char *key, const void *value,
                      size_t bytes)
{
    const int fd = openat(directory, beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int status = fd < 0 ? -errno : whole_write(fd, head, strlen(head));

    if (fd < 0)
        return status;
    if (!status)
        status = whole_write(fd, key, strlen(key));
    if (!status)
        status = whole_write(fd, value, bytes);
    if (!status && fsync(fd))
        status = -errno;
    if (close(fd) && !status)
        status = -errno;
    if (!status && renameat(directory, beside, directory, name))
        status = -errno;
    if (status)
        (void)unlinkat(directory, beside, 0);
    return status;
}

int disk_cache_write(const struct disk_cache *c, const char *key, const void *value, size_t bytes, char path[DISK_CACHE_PATH],
                     struct error *e)
{
    uint64_t own = 0; /* of this writer, on whichever host and thread */
    char where[DIRECTORY_MOST], name[64], beside[128], head[HEAD_MOST];
    const int directory = directory_open(c, true, where, e);

    if (directory < 0)
        return directory;
    file_name(key, name);
    if (getrandom(&own, sizeof(own), 0) != sizeof(own)) {
        (void)close(directory);
        return error_set(e, -EIO, "%s: no random number for a file's name", where);
    }
    (void)snprintf(beside, sizeof(beside), ".%s.%d.%016" PRIx64, name, (int)getpid(), own);
    const int head_bytes = head_print(head, key, strlen(key), value, bytes);
    int status = (size_t)head_bytes + strlen(key) + bytes > c->bytes_most ? -EFBIG : 0;
    if (!status) {
        if (faccessat(directory, name, F_OK, AT_SYMLINK_NOFOLLOW))
            room_make(c, directory);
        status = file_write(directory, beside, name, head, key, value, bytes);
    }
    (void)close(directory);
    (void)snprintf(path, DISK_CACHE_PATH, "%s/%s", where, name);
    return status ? error_set(e, status, "%s: %s", path, strerror(-status)) : 0;
}
