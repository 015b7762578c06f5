/* SPDX-License-Identifier: MIT
 *
 * cache.h - what tuning found, on disk: one small file for each key, in a directory of this user's alone.
 *
 * The directory is the caller's, or fccd-tuned in $XDG_CACHE_HOME, or in $HOME/.cache. It has mode 0700 and this user's uid, is no symbolic link, and
 * neither is a file in it; anything else is not used, and said. A file is written beside its place, synced and renamed, so who reads it, on whichever
 * machine of a shared file system, sees all of it or what was there before. It has its whole key and a checksum.
 */
#ifndef FCC_CLIENT_TUNE_CACHE_H
#define FCC_CLIENT_TUNE_CACHE_H

#include <stddef.h>

#include "proto/base/error.h"

#define CACHE_BYTES_MAX 65536 /* of a file */

/* The value of a key, to be freed. NULL with e->status -ENOENT: there is none; otherwise *e says what is wrong with directory or file. */
char *cache_read(const char *directory, const char *key, struct error *e);
/* 0, or a negative errno value: nothing was changed. `path` is where it lies. */
int cache_write(const char *directory, const char *key, const char *value, char path[512], struct error *e);

#endif
