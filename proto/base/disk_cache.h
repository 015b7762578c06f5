/* SPDX-License-Identifier: MIT
 *
 * disk_cache.h - what was dear to find out, on disk: one file for each key, in a directory of this user's alone.
 *
 * The directory has mode 0700 and this user's uid, is no symbolic link, and neither is a file in it; anything else is not used, and said. A file is
 * written beside its place, synced and renamed, so who reads it, on whichever machine of a shared file system, sees all of it or what was there before,
 * without a lock. It has its whole key and a checksum, so neither another key with the same hash nor a damaged disk is taken for it.
 */
#ifndef FCC_PROTO_BASE_DISK_CACHE_H
#define FCC_PROTO_BASE_DISK_CACHE_H

#include <stddef.h>

#include "proto/base/error.h"

#define DISK_CACHE_PATH 512

struct disk_cache {
    const char *directory; /* NULL: `name` in $XDG_CACHE_HOME, in $HOME/.cache, or in .cache of the user's home */
    const char *name;
    size_t bytes_most; /* of a file: of a larger one nothing is read or written */
    size_t files_most; /* who writes one more removes the one that is longest unchanged */
};

/* The value of a key, to be freed, with a NUL behind its *bytes bytes. NULL with e->status -ENOENT: there is none; otherwise *e says what is wrong with
 * directory or file. */
void *disk_cache_read(const struct disk_cache *c, const char *key, size_t *bytes, struct error *e);
/* 0, or a negative errno value: nothing was changed. `path` is where it lies. */
int disk_cache_write(const struct disk_cache *c, const char *key, const void *value, size_t bytes, char path[DISK_CACHE_PATH],
                     struct error *e);

#endif
